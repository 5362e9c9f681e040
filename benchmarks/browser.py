"""The page of a bundle in headless Chromium: its size, its speed on one thread, and its predictions next to Python's.

    python benchmarks/browser.py path/to/run/bundle --libraries build/node/node_modules

It needs `pip install playwright`, Chromium, and the JavaScript libraries of the page (docs/device.md). The bundle is
one of classes, in the directory of its run. The page predicts 200 sentences of dev, one after the other, from the
folder over HTTP and from the single file over `file://`.
"""

import argparse
import functools
import gzip
import http.server
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machine import describe_machine
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table

from distill.edge import Bundle, web

SENTENCES = 200
ODD = ["", " ", "\U0001f600 a film \U0001f3ac", "a film " * 1500, "a\x00film", "<b>a film</b>"]
PREDICT = """async (texts) => {
  const answers = [];
  for (const text of texts) {
    const started = performance.now();
    const { label, probabilities } = await window.bundle.predict(text);
    answers.push({ label, probabilities, ms: performance.now() - started });
  }
  return answers;
}"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


def measure(page: Any, bundle: Bundle, texts: list[str]) -> dict[str, Any]:
    """Returns how many labels differ from Python's, the largest difference of a probability, and the median ms."""
    page.wait_for_function("window.bundle")
    page.evaluate(PREDICT, texts[:5])  # A warm-up.
    answers = page.evaluate(PREDICT, [*texts, *ODD])
    expected = [bundle.predict([text])[0] for text in [*texts, *ODD]]
    differences = [
        max(abs(answer["probabilities"][label] - value) for label, value in prediction["probabilities"].items())
        for answer, prediction in zip(answers, expected, strict=True)
    ]
    return {
        "other labels": sum(a["label"] != e["label"] for a, e in zip(answers, expected, strict=True)),
        "difference": max(differences),
        "ms": float(np.median([answer["ms"] for answer in answers[: len(texts)]])),
    }


def count_gzipped(path: Path) -> int:
    """Returns the bytes of a file, or of all files of a folder, each compressed by gzip."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(len(gzip.compress(file.read_bytes())) for file in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--libraries", type=Path, required=True, help="a node_modules directory")
    parser.add_argument("--screenshots", type=Path, help="a directory for pictures at 390 and 1280 px")
    options = parser.parse_args()
    texts = read_texts(options.bundle)
    table = Table("file", "page", "MB gzipped", "other labels", "largest difference", "ms a sentence")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        handler = functools.partial(QuietHandler, directory=name)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for model in ("fp32", "int8"):
            bundle, folder, file = Bundle(options.bundle, model=model), Path(name, model), Path(name, f"{model}.html")
            web.write_page(bundle, folder, libraries=options.libraries)
            web.write_page(bundle, file, libraries=options.libraries, single_file=True)
            for form, path, address in (
                ("folder", folder, f"http://127.0.0.1:{server.server_port}/{model}/index.html"),
                ("single file", file, file.as_uri()),
            ):
                page = browser.new_page()
                page.goto(address)
                found = measure(page, bundle, texts)
                table.add_row(
                    model, form, f"{count_gzipped(path) / 1e6:.1f}", str(found["other labels"]),
                    f"{found['difference']:.1e}", f"{found['ms']:.1f}",
                )  # fmt: skip
                if options.screenshots:
                    take_screenshots(page, texts, options.screenshots / f"{model}-{form.replace(' ', '-')}")
                page.close()
        browser.close()
        server.shutdown()
    Console().print(table)
    print(f"{len(texts)} sentences and {len(ODD)} odd ones; {describe_machine()}")


def read_texts(bundle: Path) -> list[str]:
    """Returns sentences of dev, from the predictions of the bundle's run."""
    rows = pd.read_parquet(bundle.resolve().parent / "predictions.parquet")
    return [str(text) for text in rows[rows["split"] == "dev"]["text"].head(SENTENCES)]


def take_screenshots(page: Any, texts: list[str], path: Path) -> None:
    """Writes pictures of the page with four predictions at the widths of a telephone and of a desk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page.fill("#texts", "\n".join(texts[:4]))
    page.click("#button")
    page.wait_for_selector(".result")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.screenshot(path=f"{path}-{width}.png", full_page=True)


if __name__ == "__main__":
    main()
