"""Tests of the page for browsers, in headless Chromium, and of the reader in Node: both must predict as Python does."""

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from distill.edge import Bundle, web
from distill.edge.__main__ import main
from distill.errors import UserError
from tests.conftest import sentences
from tests.edge.conftest import write_toy_bundle

ROOT = Path(__file__).parents[2]
NODE_MODULES = ROOT / "build" / "node" / "node_modules"
CHROMIUM = shutil.which("chromium")
TEXTS = [
    *(text for text, _ in sentences(200)), "", " ", "\U0001f600 a film \U0001f3ac", "caf\u00e9 na\u00efve \u4f60\u597d",
    "a film " * 2000, "a\x00film\tand\u2028more", "<b>a film</b> & \"quotes\" '",
]  # fmt: skip
PAIRS = [[TEXTS[i], " ".join(TEXTS[i + 1 : i + 1 + i % 4])] for i in range(50)] + [["", ""], ["a film " * 50, "film"]]

needs_libraries = pytest.mark.skipif(
    not (NODE_MODULES / "onnxruntime-web").is_dir(), reason="needs the JavaScript libraries that .ci/run installs"
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which .ci/run installs")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra dev")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture
def serve() -> Iterator[Any]:
    """A function that serves a folder and returns its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(directory: Path) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/index.html"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def write_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> Bundle:
    directory.mkdir()
    write_toy_bundle(directory, tokenizer, task="films", metrics={"fp32": {"accuracy": 0.75}}, **changes)
    return Bundle(directory)


def open_page(browser: Any, address: str) -> Any:
    page = browser.new_page()
    page.goto(address)
    page.wait_for_function("window.bundle")
    return page


def check(page: Any, bundle: Bundle, records: list[Any]) -> None:
    """The page has the tokens and the predictions of Python for every record."""
    answers = page.evaluate(
        "async (records) => Promise.all(records.map(async (record) => "
        "[window.bundle.encode([record].flat()), await window.bundle.predict(record)]))",
        records,
    )
    examples = [bundle.decoder.read(record) for record in records]
    for encoded, expected, (tokens, prediction) in zip(
        bundle._encode(examples), bundle.predict(records), answers, strict=True
    ):
        [[encoding]] = encoded.rows
        assert isinstance(encoding, Encoding)
        assert (tokens["ids"], tokens["types"]) == (encoding.ids, encoding.type_ids)
        assert prediction.pop("isCut") == bool(encoding.overflowing)
        assert prediction["label"] == expected["label"]
        assert prediction["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
def test_a_folder_predicts_texts_as_python_does(
    browser: Any, serve: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    bundle = write_bundle(
        tmp_path / "bundle", tokenizer, max_length=12, truncation_side="left",
        teacher={"name": "MiniLM", "metrics": {"accuracy": 0.875}},
    )  # fmt: skip
    web.write_page(bundle, tmp_path / "page", libraries=NODE_MODULES)
    page = open_page(browser, serve(tmp_path / "page"))
    check(page, bundle, TEXTS)
    assert page.inner_text("table").split() == [
        "on", "dev", "this", "student", "(fp32)", "teacher", "(MiniLM)", "accuracy", "0.7500", "0.8750",
    ]  # fmt: skip
    page.fill("#texts", "a film\n\n<b>a dull film and a moving film</b> " + "and more " * 9)
    page.click("#button")
    page.wait_for_selector(".result")
    shown = page.inner_text("#results").splitlines()
    assert shown[0] == "a film"
    assert "The text is longer than the model reads and was cut." in shown
    assert page.locator(".result").count() == 2


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
def test_a_single_file_predicts_pairs_as_python_does(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    bundle = write_bundle(tmp_path / "bundle", tokenizer, pair=True, max_length=11)
    file = web.write_page(bundle, tmp_path / "page.html", libraries=NODE_MODULES, single_file=True)
    page = open_page(browser, file.as_uri())
    check(page, bundle, PAIRS)
    page.fill("#texts", "only one text")
    page.click("#button")
    page.wait_for_selector(".error")
    assert page.inner_text("#status") == '"only one text": expected two texts, with a tab or || between them'
    page.fill("#texts", "one || two")
    page.click("#button")
    page.wait_for_selector(".result")


@needs_libraries
def test_the_reader_in_node_predicts_as_python_does(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    script = NODE_MODULES.parent / f"{tmp_path.name}.mjs"  # Beside its libraries, where Node looks for them.
    shutil.copyfile(ROOT / "docs" / "predict.mjs", script)
    texts = [text for text in TEXTS if "\0" not in text]
    try:
        for name, side in (("one", "right"), ("two", "left")):
            bundle = write_bundle(tmp_path / name, tokenizer, max_length=12, truncation_side=side)
            command = ["node", str(script), str(bundle.directory), *texts]
            lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
            for line, expected in zip(lines, bundle.predict(texts), strict=True):
                assert json.loads(line) == pytest.approx(expected["probabilities"], abs=1e-6)
        (bundle.directory / "tokenizer.json").write_bytes(b"{}")
        assert (
            "tokenizer.json is damaged" in subprocess.run(command, capture_output=True, text=True, check=False).stderr
        )
    finally:
        script.unlink()


def test_special_tokens_are_told_apart_from_texts(tokenizer: PreTrainedTokenizerBase) -> None:
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert web.special_tokens(tokenizer.backend_tokenizer, pair=True) == [
        {"ids": [cls], "type": 0}, {"text": 0, "type": 0}, {"ids": [sep], "type": 0}, {"text": 1, "type": 1},
        {"ids": [sep], "type": 1},
    ]  # fmt: skip


def fake_libraries(directory: Path) -> Path:
    for file in web.LIBRARIES.values():
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).write_text("// a library")
    return directory


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "got 0 names of a page, expected one: --web BUNDLE NAME"),
        (["page", "other"], "got 2 names of a page, expected one: --web BUNDLE NAME"),
        (["bundle"], "bundle exists already, expected a new name"),
        (["page", "--libraries", "nowhere"], "nowhere/onnxruntime-web/dist/ort.wasm.bundle.min.mjs is missing: npm "),
    ],
)
def test_a_page_that_cannot_be_written_is_refused(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_bundle(tmp_path / "bundle", tokenizer)
    fake_libraries(tmp_path / "node_modules")
    assert main(["--web", "bundle", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_decoder_that_the_page_lacks_is_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    bundle = write_bundle(tmp_path / "bundle", tokenizer)
    bundle.manifest["decoder"] = "tags"
    with pytest.raises(UserError, match=r"needs the decoder tags, the page has classes, number: serve it with"):
        web.write_page(bundle, tmp_path / "page", libraries=fake_libraries(tmp_path / "node_modules"))


def test_options_may_stand_before_the_texts(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    bundle = write_bundle(tmp_path / "bundle", tokenizer)
    assert main([str(bundle.directory), "--json", "a film", "--threads", "1", "dull"]) == 0
    assert [json.loads(line)["text"] for line in capfdbinary.readouterr().out.splitlines()] == ["a film", "dull"]


def test_the_command_writes_a_page(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    write_bundle(tmp_path / "bundle", tokenizer)
    libraries = fake_libraries(tmp_path / "node_modules")
    page = tmp_path / "page"
    assert main(["--web", str(tmp_path / "bundle"), str(page), "--libraries", str(libraries)]) == 0
    assert capfdbinary.readouterr().out.decode().startswith(f"{page / 'index.html'}: python -m http.server --directory")
    assert {path.name for path in page.iterdir()} >= {"index.html", "model.onnx", "tokenizer.json", "bundle.mjs"}
