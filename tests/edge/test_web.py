"""Tests of the page for browsers, in headless Chromium, and of the reader in Node: both must predict as Python does."""

import errno
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing
from transformers import PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.core.files import hash_file, write_json
from distill.edge import Bundle, web
from distill.edge.__main__ import main
from distill.edge.bundle_files import data_file
from tests.conftest import sentences
from tests.edge.conftest import (
    NODE_MODULES,
    ROOT,
    needs_browser,
    needs_libraries,
    open_page,
    write_choice_bundle,
    write_tag_bundle,
    write_toy_bundle,
    write_vector_bundle,
)

TEXTS = [
    *(text for text, _ in sentences(200)), "", " ", "\U0001f600 a film \U0001f3ac", "caf\u00e9 na\u00efve \u4f60\u597d",
    "a film " * 2000, "a\x00film\tand\u2028more", "<b>a film</b> & \"quotes\" '",
]  # fmt: skip
PAIRS = [[TEXTS[i], " ".join(TEXTS[i + 1 : i + 1 + i % 4])] for i in range(50)] + [["", ""], ["a film " * 50, "film"]]


def write_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> Bundle:
    directory.mkdir()
    write_toy_bundle(directory, tokenizer, task="films", metrics={"fp32": {"accuracy": 0.75}}, **changes)
    return Bundle(directory)


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
        assert (tokens["ids"], tokens["types"]) == (encoding.ids, encoding.type_ids)
        assert prediction.pop("isCut") == encoded.is_truncated
        assert prediction["label"] == expected["label"]
        assert prediction["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)


@needs_browser
@pytest.mark.xdist_group("browser")
def test_metrics_have_words_and_each_field_an_example(browser: Any) -> None:
    script = Path(web.__file__).with_name("page.mjs").read_text()
    functions = script[script.index("// Metrics whose names") : script.index("/** What to type, in words. */")]
    page = browser.new_page()
    page.evaluate(f"(0, eval)({json.dumps(functions)})")
    named = {name: page.evaluate(f"nameMetric({name!r})") for name in ("matthews", "text_f1", "accuracy", "own_metric")}
    assert named == {
        "matthews": "Matthews' correlation", "text_f1": "F1 of plain text", "accuracy": "accuracy",
        "own_metric": "own metric",
    }  # fmt: skip
    for decoder, pair, parts in (("classes", False, 1), ("classes", True, 2), ("choices", True, 3)):
        example = page.evaluate("(of) => showExample(of)", {"decoder": decoder, "pair": pair})
        assert len(example.split("||")) == parts
    page.close()


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
    check(page, bundle, [*TEXTS, "film " * 200_000])
    with pytest.raises(Exception, match="The text is not Unicode: it has a lone surrogate"):
        page.evaluate("window.bundle.predict('a \\ud800 film')")
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


def byte_level(texts: list[str]) -> Any:
    """Returns a tokenizer of bytes, which reads the space before a word as a part of it."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=400, special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer._tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    return SimpleNamespace(backend_tokenizer=tokenizer._tokenizer)


def same(value: Any, expected: Any) -> bool:
    """Returns whether two predictions are equal, their numbers within 1e-6."""
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    return bool(value == pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else value == expected)


EDGES = {"name": "edges", "whole": ["it's", "..."], "leading": ["@"], "trailing": []}
# A function that writes a bundle, values of its bundle.json, and records.
CASES: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "labels": (write_toy_bundle, {"decoder": "labels", "decoding": {"thresholds": [0.999, 0.5]}}, WORDS),
    "number": (write_toy_bundle, {"decoder": "number", "labels": ["stars"], "max_length": 12}, WORDS),
    "tags": (write_tag_bundle, {}, WORDS),
    "tags cut on the left": (write_tag_bundle, {"max_length": 9, "truncation_side": "left"}, WORDS),
    "tags split at edges": (write_tag_bundle, {"decoding": {"splitter": EDGES}}, WORDS),
    "tags of letters": (write_tag_bundle, {"decoding": {"splitter": {"name": "characters"}}}, WORDS),
    "tags of bytes": (write_tag_bundle, {"max_length": 20}, WORDS),
    "choices": (write_choice_bundle, {"max_length": 16}, QUESTIONS),
    "vectors": (write_vector_bundle, {}, [text for text in WORDS if text.strip()]),
}
BLANK = ["", " ", "\t\u3000\x1c\x85", "\u200b", "\ufeff"]  # The last two are no spaces in Python.
# The bars of a page with two texts, or a question with two choices.
BARS = {"labels": 4, "choices": 2, "vectors": 1}


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("case", CASES)
def test_a_page_predicts_as_python_does_with_every_decoder(
    browser: Any, serve: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, case: str
) -> None:
    write, changes, records = CASES[case]
    directory = tmp_path / "bundle"
    directory.mkdir()
    write(directory, byte_level(WORDS) if "bytes" in case else tokenizer, **changes)
    bundle = Bundle(directory)
    web.write_page(bundle, tmp_path / "page", libraries=NODE_MODULES)
    page = open_page(browser, serve(tmp_path / "page"))
    predictions = page.evaluate("async (records) => Promise.all(records.map((r) => window.bundle.predict(r)))", records)
    for record, prediction, expected in zip(records, predictions, bundle.predict(records), strict=True):
        assert prediction.pop("isCut") == expected.pop("truncated", False), record
        assert same(prediction, expected), (record, prediction, expected)
    if case == "vectors":
        for text in BLANK[:3]:
            with pytest.raises(UserError, match="no empty text"):
                bundle.predict([text])
            with pytest.raises(Exception, match="The text is empty"):
                page.evaluate("(text) => window.bundle.predict(text)", text)
    lines = ["a film || which is dull || which is lovely"] if case == "choices" else ["a lovely film", "a dull mess"]
    page.fill("#texts", "\n".join(lines))
    page.click("#button")
    page.wait_for_selector(".result")
    assert (page.locator(".result").count(), page.locator(".error").count()) == (len(lines), 0)
    assert page.locator(".row").count() == BARS.get(case, 0)
    assert "%" not in page.inner_text("#results")  # The metrics above have decimals, too.
    assert all(re.fullmatch(r"-?[01]\.[0-9]{3}", text) for text in page.locator(".row > :last-child").all_inner_texts())
    if "tags" in case:
        assert page.locator("mark").count() == sum(len(of["entities"]) for of in bundle.predict(lines)) > 0
    page.close()


def write_full_range_bundle(directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes a bundle whose number is the sum of 8 products of 255 and 127 in int8, which two of them overflow."""
    write_toy_bundle(directory, tokenizer, decoder="number", labels=["sum"])
    names = ("input_ids", "attention_mask")
    graph = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["attention_mask", "axis"], ["tokens"], keepdims=1),
            helper.make_node("Mul", ["tokens", "none"], ["zero"]),
            helper.make_node("Add", ["zero", "bytes"], ["row"]),
            helper.make_node("Cast", ["row"], ["left"], to=TensorProto.UINT8),
            helper.make_node("MatMulInteger", ["left", "right"], ["sum"]),
            helper.make_node("Cast", ["sum"], ["logits"], to=TensorProto.FLOAT),
            helper.make_node("Identity", ["input_ids"], ["unused"]),
        ],
        "toy",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])],
        [
            helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
            helper.make_tensor("none", TensorProto.INT64, [1], [0]),
            helper.make_tensor("bytes", TensorProto.INT64, [1, 8], [255] * 8),
            helper.make_tensor("right", TensorProto.INT8, [8, 1], [127] * 8),
        ],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(directory / "model.onnx"))
    content = json.loads((directory / "bundle.json").read_text())
    content["files"]["model.onnx"] = hash_file(directory / "model.onnx")
    write_json(directory / "bundle.json", content)


@needs_libraries
@needs_browser
@pytest.mark.xdist_group("browser")
def test_an_int8_file_of_every_target_is_right_in_a_browser(
    browser: Any, serve: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    (tmp_path / "bundle").mkdir()
    write_full_range_bundle(tmp_path / "bundle", tokenizer)
    web.write_page(Bundle(tmp_path / "bundle"), tmp_path / "page", libraries=NODE_MODULES)
    page = open_page(browser, serve(tmp_path / "page"))
    assert page.evaluate("window.bundle.predict('a film')") == {"value": 8 * 255 * 127, "isCut": False}
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


NODE_BUNDLES: dict[str, dict[str, Any]] = {
    "classes": {"max_length": 12},
    "cut on the left": {"max_length": 12, "truncation_side": "left"},
    "a number": {"decoder": "number", "labels": ["stars"], "max_length": 12},
    "a threshold": {"thresholds": {"fp32": 0.95}},
    "thresholds of another model": {
        "models": {"fp32": "model.onnx", "int8": "model.onnx"},
        "thresholds": {"int8": 1.0},
    },
}


@needs_libraries
@pytest.mark.parametrize("case", NODE_BUNDLES)
def test_the_reader_in_node_writes_the_lines_of_python(
    case: str, reader: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:  # fmt: skip
    bundle = write_bundle(tmp_path / "bundle", tokenizer, **NODE_BUNDLES[case])
    texts = [*BLANK, *(text for text in TEXTS if "\0" not in text)]
    lines, error = run_node(reader, bundle.directory, *texts)
    assert error == ""
    assert main([str(bundle.directory), "--json", "--", *texts]) == 0
    expected = [json.loads(line) for line in capfdbinary.readouterr().out.decode().split("\n")[:-1]]
    assert same([json.loads(line) for line in lines], expected)
    labels = {line.get("label") for line in expected}
    assert labels == {"a number": {None}, "a threshold": {None, "long"}}.get(case, {None, "long", "short"})


@needs_libraries
def test_the_reader_in_node_refuses_damaged_files_and_unknown_models(
    reader: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    bundle = write_bundle(tmp_path / "bundle", tokenizer)
    assert "there is no model int4: add --model with one of fp32" in run_node(
        reader, bundle.directory, "--model", "int4", "a film"
    )[1]  # fmt: skip
    (bundle.directory / "tokenizer.json").write_bytes(b"{}")
    assert "tokenizer.json is damaged" in run_node(reader, bundle.directory, "a film")[1]


@needs_libraries
@pytest.mark.skipif(platform.machine() != "x86_64", reason="processors of arm64 add products of int8")
@pytest.mark.parametrize(("flags", "is_right"), [("avx2", False), ("avx2 avx512_vnni", True), ("avx_vnni x", True)])
def test_the_reader_in_node_refuses_a_model_for_other_processors(
    flags: str, is_right: bool, reader: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    write_bundle(
        tmp_path / "bundle", tokenizer, models={"fp32": "model.onnx", "int8": "model.onnx"}, targets={"int8": "vnni"},
    )  # fmt: skip
    preload = tmp_path / "processor.mjs"
    preload.write_text(
        "import fs from 'node:fs'; import { syncBuiltinESMExports } from 'node:module';\n"
        "const read = fs.readFileSync;\n"
        f"fs.readFileSync = (path, ...rest) => path === '/proc/cpuinfo' ? 'flags\\t: sse {flags}\\n' : "
        "read(path, ...rest);\nsyncBuiltinESMExports();\n"
    )
    command = ("--import", preload.as_uri(), reader, tmp_path / "bundle")
    lines, error = run_node(*command, "--model", "int8", "a film")
    if is_right:
        assert (len(lines), error) == (1, "")
    else:
        assert "the model int8 is for processors of the kind vnni, and this one is avx2: add --model fp32" in error
        assert lines == []
    assert len(run_node(*command, "a film")[0]) == 1  # The recommended one is right everywhere.


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


def test_a_model_with_weights_in_a_second_file_has_no_page(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    bundle = write_bundle(tmp_path / "bundle", tokenizer)
    data_file(tmp_path / "bundle" / "model.onnx").touch()
    with pytest.raises(UserError, match="model.onnx has weights in a second file, expected one file: it is too large"):
        web.write_page(bundle, tmp_path / "page", libraries=fake_libraries(tmp_path / "node_modules"))


def test_a_decoder_that_the_page_lacks_is_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    bundle = write_bundle(tmp_path / "bundle", tokenizer)
    bundle.manifest["decoder"] = "spans"
    with pytest.raises(UserError, match="needs the decoder spans, the page has classes, labels, .*, seq2seq: serve it"):
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


@pytest.mark.parametrize("form", [[], ["--single-file"]])
def test_a_page_that_a_full_disk_cuts_off_is_refused_and_leaves_nothing(
    form: list[str], tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "bundle").mkdir()
    write_toy_bundle(tmp_path / "bundle", tokenizer)
    libraries = fake_libraries(tmp_path / "node_modules")
    before = sorted(tmp_path.iterdir())

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    page = tmp_path / "page"
    assert main(["--web", str(tmp_path / "bundle"), str(page), "--libraries", str(libraries), *form]) == 2
    expected = f"error: {page} cannot be written (No space left on device): make room, or give another name\n"
    assert capsys.readouterr().err == expected
    assert sorted(tmp_path.iterdir()) == before
