"""Tests of the page for browsers, in Chromium and in Node, and of the reader in Node, which predict as Python."""

import errno
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.edge import Bundle, web
from distill.edge.__main__ import main
from distill.edge.bundle_files import data_file
from tests.conftest import sentences
from tests.edge.conftest import NODE_MODULES, ROOT, Output, Patch, Write, needs_browser, needs_libraries, open_page

TEXTS = [
    *(text for text, _ in sentences(40)), "", " ", "\U0001f600 a film \U0001f3ac", "caf\u00e9 na\u00efve \u4f60\u597d",
    "a film " * 2000, "a\x00film\tand\u2028more", "<b>a film</b> & \"quotes\" '",
]  # fmt: skip
PAIRS = [[TEXTS[i], " ".join(TEXTS[i + 1 : i + 1 + i % 4])] for i in range(40)] + [["", ""], ["a film " * 50, "film"]]
WORDS = [
    "a lovely and moving film", "5\u20ac it's a_b-c  (x)", "caf\u00e9 cafe\u0301 \u4f60\u597d, \U0001f600\U0001f3ac!",
    "", "   ", "a film " * 40, "wonderful acting , " * 9, "x" * 300 + " film",
    "Zu\u0308rich, \u0939\u093f\u0928\u094d\u0926\u0940",
    "zero\u200bwidth\x00null\u2028line\x1cend \ufeffmark",
    *(text for text, _ in sentences(12)),
]  # fmt: skip
QUESTIONS = [
    {"question": "which film", "choices": ["a dull film", "a lovely and moving film " * 5, "caf\u00e9"]},
    {"question": "why", "choices": ["a", "b"], "context": "a film \U0001f600"},
]
EDGES = {"name": "edges", "whole": ["it's", "..."], "leading": ["@"], "trailing": []}
# A decoder, values of its bundle.json, and records.
CASES: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "classes": ("classes", {"max_length": 12, "truncation_side": "left"}, [*TEXTS, "film " * 200_000]),
    "pairs": ("classes", {"pair": True, "max_length": 11}, PAIRS),
    "labels": ("classes", {"decoder": "labels", "decoding": {"thresholds": [0.999, 0.5]}}, WORDS),
    "number": ("classes", {"decoder": "number", "labels": ["stars"], "max_length": 12}, WORDS),
    "tags": ("tags", {}, WORDS),
    "tags cut on the left": ("tags", {"max_length": 9, "truncation_side": "left"}, WORDS),
    "tags split at edges": ("tags", {"decoding": {"splitter": EDGES}}, WORDS),
    "tags of letters": ("tags", {"decoding": {"splitter": {"name": "characters"}}}, WORDS),
    "tags of bytes": ("tags", {"max_length": 20}, WORDS),
    "choices": ("choices", {"max_length": 16}, QUESTIONS),
    "vectors": ("vectors", {}, [text for text in WORDS if text.strip()]),
}
BLANK = ["", " ", "\t\u3000\x1c\x85", "\u200b", "\ufeff"]  # The last two are no spaces in Python.


def byte_level(texts: list[str]) -> Any:
    """Returns a tokenizer of bytes, which reads the space before a word as a part of it."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=400, special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer._tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    return SimpleNamespace(backend_tokenizer=tokenizer._tokenizer)


# Calls the methods of the bundles of several pages with onnxruntime in Node.
CALLS = """
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
const { libraries, pages } = JSON.parse(readFileSync(0, "utf8")), load = createRequire(`${libraries}/`);
const [ort, tokenizers] = ["onnxruntime-node", "@huggingface/tokenizers"].map(load);
globalThis.document = { querySelector: () => null };
const results = [];
for (const { folder, calls } of pages) {
  const [bundle, generation, page] = await Promise.all(
    ["bundle", "generation", "page"].map((name) => import(`${folder}/${name}.mjs`)));
  const [description, tokenizer] = ["description", "tokenizer"].map(
    (name) => JSON.parse(readFileSync(`${folder}/${name}.json`)));
  const open = (name) => ort.InferenceSession.create(`${folder}/${name}`);
  const made = await page.create([ort, tokenizers, bundle, generation], description, tokenizer, open);
  made.pieces = async (...values) => {
    const pieces = [];
    for await (const piece of made.write(...values)) pieces.push(piece);
    return pieces;
  };
  for (const [method, ...values] of calls) {
    try { results.push(await made[method](...values)); } catch (error) { results.push({ error: error.message }); }
  }
}
console.log(JSON.stringify(results));
"""


def call_pages(pages: Sequence[tuple[Path, Sequence[Sequence[Any]]]]) -> Iterator[Any]:
    """Yields the results of calls `[method, ...]` of the bundles of pages, or `{"error": ...}`, in Node."""
    given = [{"folder": str(folder), "calls": calls} for folder, calls in pages]
    content = json.dumps({"libraries": str(NODE_MODULES), "pages": given})
    command = ["node", "--input-type=module", "-e", CALLS]
    yield from json.loads(subprocess.run(command, input=content, capture_output=True, text=True, check=True).stdout)


def same(value: Any, expected: Any) -> bool:
    """Returns whether two predictions are equal, their numbers within 1e-6."""
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    return bool(value == pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else value == expected)


@pytest.fixture
def directory(write: Write, monkeypatch: Patch) -> Path:
    """A directory with a bundle and files for the libraries of a page."""
    directory = write().parent
    for file in web.LIBRARIES.values():
        path = directory / "node_modules" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("// a library")
    monkeypatch.chdir(directory)
    return directory


@needs_libraries
def test_the_code_of_a_page_predicts_as_python_does_with_every_decoder(directory: Path, write: Write) -> None:
    pages, bundles = [], {}
    for case, (decoder, changes, records) in CASES.items():
        own = {"tokenizer": byte_level(WORDS)} if case == "tags of bytes" else {}
        bundles[case] = Bundle(write(decoder, name=case, **own, **changes))
        page = directory / f"page of {case}"
        web.write_page(bundles[case], page, libraries=directory / "node_modules")  # Those of Node are used.
        pages.append((page, [["predict", record] for record in records]))
        if decoder == "classes":
            pages.append((page, [["encode", [record] if isinstance(record, str) else record] for record in records]))
    pages += [(page, [["predict", "a \ud800 film"], *(["predict", text] for text in BLANK[:3])])]
    found = call_pages(pages)
    for case, (decoder, _, records) in CASES.items():
        for record, expected in zip(records, bundles[case].predict(records), strict=True):
            prediction = next(found)
            assert prediction.pop("isCut") == expected.pop("truncated", False), (case, record)
            assert same(prediction, expected), (case, record, prediction, expected)
        for encoded in bundles[case]._rows.encode(records if decoder == "classes" else []):
            tokens, [[encoding]] = next(found), encoded.rows
            assert (tokens["ids"], tokens["types"], tokens["isCut"]) == (
                encoding.ids, encoding.type_ids, encoded.is_truncated
            )  # fmt: skip
    assert next(found) == {"error": "The text is not Unicode: it has a lone surrogate."}
    assert list(found) == [{"error": "The text is empty."}] * 3
    for text in BLANK[:3]:
        with pytest.raises(UserError, match="no empty text"):
            bundles["vectors"].predict([text])


@needs_browser
@pytest.mark.xdist_group("browser")
def test_a_page_has_words_for_metrics_and_a_card_for_each_prediction(browser: Any) -> None:
    script = Path(web.__file__).with_name("page.mjs").read_text()
    page = browser.new_page()
    page.evaluate(f"(0, eval)({json.dumps(script[: script.index('/** @param load')])})")
    named = {name: page.evaluate(f"nameMetric({name!r})") for name in ("matthews", "text_f1", "accuracy", "own_metric")}
    assert named == {
        "matthews": "Matthews' correlation", "text_f1": "F1 of plain text", "accuracy": "accuracy",
        "own_metric": "own metric",
    }  # fmt: skip
    for decoder, pair, parts in (("classes", False, 1), ("classes", True, 2), ("choices", True, 3)):
        example = page.evaluate("(of) => showExample(of)", {"decoder": decoder, "pair": pair})
        assert len(example.split("||")) == parts
    two = {"a": 0.25, "b": 0.75}
    entity = {"text": "\U0001f600", "type": "face", "score": 0.5, "start": 3, "end": 4}
    cards: list[tuple[str, Any, Any, str]] = [
        ("classes", "t", {"label": "b", "probabilities": two}, "t b 0.750 a 0.250"),
        ("classes", "t", {"label": None, "probabilities": two}, "t Too unsure for a label. b 0.750 a 0.250"),
        ("labels", "t", {"labels": [], "probabilities": two}, "t No label reaches its threshold. b 0.750 a 0.250"),
        ("number", "t", {"value": 1.5, "isCut": True},
         "t The text is longer than the model reads and was cut. 1.5000"),
        ("tags", "\U0001f600, \U0001f600!", {"entities": [entity]}, "\U0001f600, \U0001f600 face 0.500 !"),
        ("tags", "t", {"entities": []}, "t No entities."),
        ("choices", {"question": "q", "choices": ["x", "y"]},
         {"choice": "y", "index": 1, "probabilities": [0.25, 0.75]}, "q x 0.250 y 0.750"),
        ("vectors", "t", {"vector": [1, 2]}, "t A vector of 2 numbers, which the other texts are compared with."),
        ("vectors", "t", {"vector": [1, 2], "similarity": 0.5}, "t cosine 0.500"),
    ]  # fmt: skip
    show = """([decoder, record, prediction]) => {
        const node = card("t", record, prediction, decoder), all = [];
        const texts = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) all.push(texts.currentNode.data.trim());
        return [all.filter(Boolean).join(" "), node.querySelectorAll("strong, mark").length];
    }"""
    for decoder, record, prediction, expected in cards:
        words, marks = page.evaluate(show, [decoder, record, prediction])
        assert words == expected
        given = (
            prediction.get("label")
            or prediction.get("choice")
            or prediction.get("entities")
            or "similarity" in prediction
        )
        assert marks == bool(given or decoder == "number")
    page.close()


def write_page(directory: Path, target: Path, **options: Any) -> Path:
    return web.write_page(Bundle(directory), target, libraries=NODE_MODULES, **options)


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
def test_a_folder_predicts_what_is_typed(browser: Any, serve: Any, tmp_path: Path, write: Write) -> None:
    teacher = {"name": "MiniLM", "metrics": {"accuracy": 0.875}}
    directory = write(task="films", metrics={"fp32": {"accuracy": 0.75}}, teacher=teacher)
    write_page(directory, tmp_path / "page")
    page = open_page(browser, serve(tmp_path / "page"))
    assert page.inner_text("table").split() == [
        "on", "dev", "this", "student", "(fp32)", "teacher", "(MiniLM)", "accuracy", "0.7500", "0.8750",
    ]  # fmt: skip
    assert page.get_attribute("#texts", "placeholder").startswith("A lovely film")
    page.fill("#texts", "a film\n\n<b>a dull film and a moving film</b> " + "and more " * 9)
    page.click("#button")
    page.wait_for_selector(".result")
    shown = page.inner_text("#results").splitlines()
    assert shown[0] == "a film"
    assert "The text is longer than the model reads and was cut." in shown
    assert page.locator(".result").count() == 2
    page.close()


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
def test_a_single_file_predicts_pairs_as_python_does(browser: Any, tmp_path: Path, write: Write) -> None:
    directory = write(pair=True, max_length=11)
    page = open_page(browser, write_page(directory, tmp_path / "page.html", single_file=True).as_uri())
    prediction = page.evaluate("window.bundle.predict(['a film', 'a joy'])")
    assert prediction.pop("isCut") is False
    assert same(prediction, Bundle(directory).predict("a film", "a joy"))
    page.fill("#texts", "only one text")
    page.click("#button")
    page.wait_for_selector(".error")
    assert page.inner_text("#status") == '"only one text": expected two texts, with a tab or || between them'
    page.fill("#texts", "one || two")
    page.click("#button")
    page.wait_for_selector(".result")
    page.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Path]:
    """The reader in Node beside its libraries, where Node looks for them."""
    script = NODE_MODULES.parent / f"{tmp_path.name}-{os.getpid()}.mjs"  # Two workers may have paths of one name.
    shutil.copyfile(ROOT / "docs" / "predict.mjs", script)
    yield script
    script.unlink()


def run_node(*arguments: object) -> tuple[list[str], str]:
    """Returns the lines that a program of Node writes, and its errors."""
    command = ["node", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.split("\n")[:-1], result.stderr


TWO_MODELS = {"fp32": "model.onnx", "int8": "model.onnx"}
NODE_BUNDLES: dict[str, dict[str, Any]] = {
    "a number": {"decoder": "number", "labels": ["stars"], "max_length": 12},
    "a threshold": {"thresholds": {"fp32": 0.95}},
    "another model's threshold": {
        "models": TWO_MODELS, "thresholds": {"int8": 1.0}, "max_length": 12, "truncation_side": "left",
    },
}  # fmt: skip


@needs_libraries
@pytest.mark.parametrize("case", NODE_BUNDLES)
def test_the_reader_in_node_writes_the_lines_of_python(
    case: str, reader: Path, write: Write, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    directory = write(**NODE_BUNDLES[case])
    texts = [*BLANK, *(text for text in TEXTS if "\0" not in text)]
    lines, error = run_node(reader, directory, *texts)
    assert error == ""
    assert main([str(directory), "--json", "--", *texts]) == 0
    expected = [json.loads(line) for line in capfdbinary.readouterr().out.decode().split("\n")[:-1]]
    assert same([json.loads(line) for line in lines], expected)
    labels = {line.get("label") for line in expected}
    assert labels == {"a number": {None}, "a threshold": {None, "long"}}.get(case, {None, "long", "short"})


@needs_libraries
@pytest.mark.skipif(platform.machine() != "x86_64", reason="processors of arm64 add products of int8")
def test_the_reader_in_node_refuses_wrong_models_and_damaged_files(reader: Path, tmp_path: Path, write: Write) -> None:
    directory = write(models=TWO_MODELS, targets={"int8": "vnni"})
    preload = tmp_path / "processor.mjs"

    def run(flags: str, model: str) -> tuple[list[str], str]:
        preload.write_text(
            "import fs from 'node:fs'; import { syncBuiltinESMExports } from 'node:module';\n"
            "const read = fs.readFileSync;\n"
            f"fs.readFileSync = (path, ...rest) => path === '/proc/cpuinfo' ? 'flags\\t: sse {flags}\\n' : "
            "read(path, ...rest);\nsyncBuiltinESMExports();\n"
        )
        return run_node("--import", preload.as_uri(), reader, directory, "--model", model, "a film")

    lines, error = run("avx2 avx512_vnni", "int8")
    assert (len(lines), error) == (1, "")
    assert len(run("avx2", "fp32")[0]) == 1
    (directory / "tokenizer.json").write_bytes(b"{}")
    for flags, model, message in (
        ("avx2", "int8", "int8 is for processors of the kind vnni, and this one is avx2: add --model fp32"),
        ("avx2", "int4", "there is no model int4: add --model with one of fp32, int8"),
        ("avx2", "fp32", "tokenizer.json is damaged"),
    ):
        lines, error = run(flags, model)
        assert lines == []
        assert message in error


def test_special_tokens_are_told_apart_from_texts(tokenizer: PreTrainedTokenizerBase) -> None:
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert web.special_tokens(tokenizer.backend_tokenizer, pair=True) == [
        {"ids": [cls], "type": 0}, {"text": 0, "type": 0}, {"ids": [sep], "type": 0}, {"text": 1, "type": 1},
        {"ids": [sep], "type": 1},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "got 0 names of a page, expected one: --web BUNDLE NAME"),
        (["bundle"], "bundle exists already, expected a new name"),
        (["page", "--libraries", "nowhere"], "nowhere/onnxruntime-web/dist/ort.wasm.bundle.min.mjs is missing: npm "),
    ],
)
@pytest.mark.usefixtures("directory")
def test_a_page_that_cannot_be_written_is_refused(capsys: Output, arguments: list[str], message: str) -> None:
    assert main(["--web", "bundle", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_bundle_that_no_page_can_run_is_refused(directory: Path) -> None:
    bundle = Bundle(directory / "bundle")
    data_file(directory / "bundle" / "model.onnx").touch()
    with pytest.raises(UserError, match="model.onnx has weights in a second file, expected one file: it is too large"):
        web.write_page(bundle, directory / "page", libraries=directory / "node_modules")
    bundle.manifest["decoder"] = "spans"
    with pytest.raises(UserError, match="needs the decoder spans, the page has classes, labels, .*, seq2seq: serve it"):
        web.write_page(bundle, directory / "page", libraries=directory / "node_modules")


@pytest.mark.usefixtures("directory")
def test_the_command_writes_a_page(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["--web", "bundle", "page"]) == 0
    assert capfdbinary.readouterr().out.decode().startswith("page/index.html: python -m http.server --directory")
    assert {path.name for path in Path("page").iterdir()} >= {
        "index.html", "model.onnx", "tokenizer.json", "bundle.mjs"
    }  # fmt: skip


@pytest.mark.parametrize("form", [[], ["--single-file"]])
def test_a_page_that_a_full_disk_cuts_off_is_refused_and_leaves_nothing(
    form: list[str], directory: Path, monkeypatch: Patch, capsys: Output
) -> None:
    before = sorted(directory.iterdir())

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    assert main(["--web", "bundle", "page", *form]) == 2
    expected = "error: page cannot be written (No space left on device): make room, or give another name\n"
    assert capsys.readouterr().err == expected
    assert sorted(directory.iterdir()) == before
