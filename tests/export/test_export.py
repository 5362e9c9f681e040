"""Tests that a bundle equals torch from the text on, and that the gate fails if it does not."""

import copy
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from transformers import BertConfig, BertForTokenClassification, PreTrainedModel, PreTrainedTokenizerBase

from distill.core import console
from distill.core.contracts import Scores
from distill.core.errors import NumericalError, OptionError, UserError
from distill.data.splits import LabelledData, Split, text_split
from distill.edge import bundle_files
from distill.edge.bundle import Bundle
from distill.edge.bundle_files import FORMAT, session
from distill.export import gate, latency
from distill.export.bundle_writer import FILES, Scorer, check_patterns, take_first, write_bundle
from distill.export.gate import describe_sensitivity, judge, judge_float32
from distill.export.onnx import export_onnx
from distill.export.quantization import FORMATS, RECIPES, ExportSettings, RecipeInput, write_dynamic
from distill.kinds import Classification, TokenClassification
from distill.kinds.classification import OneClass
from distill.records.verdict import recommend
from distill.text.vocabulary import train_word_pieces
from distill.training.module import evaluate
from tests.conftest import LABELS, LOOSE, sentences, toy_bert
from tests.edge.conftest import Output, Patch, write_ranking_bundle, write_toy_bundle


def inputs(batch: int, length: int, *, padded: bool, vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(length)
    mask = np.ones((batch, length), dtype=np.int64)
    if padded:
        for row in range(batch):
            mask[row, max(1, length // (row + 2)) :] = 0
    ids = random.integers(5, vocabulary, (batch, length))
    return {"input_ids": np.where(mask == 1, ids, 0), "attention_mask": mask, "token_type_ids": ids % 2 * mask}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """A teacher, which reads token types, and its student, both in torch and in ONNX."""
    directory = tmp_path_factory.mktemp("onnx")
    teacher = toy_bert(len(tokenizer), layers=2).eval()
    student = from_teacher(teacher, layers=[0, 1]).eval()
    models = {"teacher": teacher, "student": student}
    for name, model in models.items():
        export_onnx(model, directory / f"{name}.onnx")
    sessions = {name: session(directory / f"{name}.onnx") for name in models}
    return {"directory": directory, "models": models, "sessions": sessions}


def test_graphs_have_the_inputs_of_their_models_plain_attention_and_no_paths(
    exported: dict[str, Any], tmp_path: Path
) -> None:
    names = {name: [v.name for v in session.get_inputs()] for name, session in exported["sessions"].items()}
    assert "token_type_ids" in names["teacher"]
    assert "token_type_ids" not in names["student"]
    options, file = onnxruntime.SessionOptions(), exported["directory"] / "student.onnx"
    assert b".py" not in file.read_bytes()  # No source file of the machine.
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    graph = onnx.load(str(tmp_path / "optimized.onnx")).graph
    operations = Counter(node.op_type for node in graph.node)
    assert operations["Softmax"] == 2  # Layers.
    assert operations["LayerNormalization"] == 5
    assert not {"IsNaN", "SkipLayerNormalization"} & set(operations)  # Residual sums are not fused.


def test_a_bfloat16_model_is_exported_in_float32_and_left_as_it_is(exported: dict[str, Any], tmp_path: Path) -> None:
    model = copy.deepcopy(exported["models"]["teacher"]).bfloat16().train()
    export_onnx(model, tmp_path / "model.onnx")
    assert (model.dtype, model.training) == (torch.bfloat16, True)
    feed = inputs(2, 7, padded=True, vocabulary=100)
    with torch.no_grad():
        expected = model.eval().float()(**{key: torch.from_numpy(value) for key, value in feed.items()}).logits
    np.testing.assert_allclose(session(tmp_path / "model.onnx").run(["logits"], feed)[0], expected.numpy(), atol=2e-5)


@pytest.mark.parametrize(("bits", "largest"), [(7, 64), (8, 127)])
def test_int8_weights_use_as_many_bits_as_the_processor_allows(
    exported: dict[str, Any], tmp_path: Path, bits: int, largest: int
) -> None:
    """Eight bits saturate on processors without VNNI: two products of 255 x 127 do not fit into 16 bits."""
    write_dynamic(RecipeInput(exported["directory"] / "student.onnx", bits), tmp_path / "int8.onnx")
    graph = onnx.load(str(tmp_path / "int8.onnx")).graph
    multiplied = {node.input[1] for node in graph.node if node.op_type == "MatMulInteger"}
    weights = [onnx.numpy_helper.to_array(t) for t in graph.initializer if t.name in multiplied]
    assert weights
    assert all(weight.dtype == np.int8 for weight in weights)
    assert largest - 2 <= max(np.abs(weight.astype(int)).max() for weight in weights) <= largest
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]


def split() -> Split:
    texts, labels = zip(*sentences(24), strict=True)
    return text_split(list(texts), labels=np.array(labels))


SCORING = OneClass(("accuracy", "f1"), classes=LABELS)


def data_of(dev: Split) -> LabelledData:
    return LabelledData(labels=LABELS, splits={"train": dev, "dev": dev}, sha256="", scoring=SCORING)


def scores_of(logits: np.ndarray, dev: Split) -> Scores:
    return Scores({"logits": logits}, dev.labels, np.arange(len(dev)))


def torch_logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> np.ndarray:
    encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=16, return_tensors="pt")
    with torch.no_grad():
        return model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).logits.numpy()


def write(
    directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **settings: Any
) -> dict[str, dict[str, Any]]:
    directory.mkdir(exist_ok=True)
    task = Classification(name="toy", text=["sentence"], labels=LABELS, max_length=16)
    dev = split()
    scores = scores_of(torch_logits(model, tokenizer, dev.texts), dev)
    return write_bundle(
        directory, model=model, tokenizer=tokenizer, task=task, splits=data_of(dev), scores={"dev": scores},
        settings=ExportSettings(**settings),
    ).formats  # fmt: skip


@pytest.fixture
def student(exported: dict[str, Any]) -> PreTrainedModel:
    model: PreTrainedModel = exported["models"]["student"]
    return model


def patch_logits(monkeypatch: Patch, change: Callable[[Bundle, list[Any]], list[Any]]) -> None:
    """Changes the logits of all bundles."""
    original = Bundle.item_logits
    monkeypatch.setattr(
        Bundle, "item_logits", lambda self, *values, **options: change(self, original(self, *values, **options))
    )


def test_a_bundle_equals_torch_from_the_text_on(
    student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: Patch
) -> None:
    original, threads = bundle_files._onnx_session, set()

    def load(path: Path, number: int | None) -> bundle_files.Session:
        threads.add(number)
        return original(path, number)

    monkeypatch.setattr(bundle_files, "_onnx_session", load)
    formats = write(tmp_path, student, tokenizer, max_drop=1.0)
    assert formats["fp32"]["max_abs_diff"] < 2e-5
    assert formats["fp32"]["max_probability_diff"] < 1e-5 < formats["int8"]["max_probability_diff"]
    assert formats["fp32"]["agreement"] == 1.0
    assert formats["fp32"]["gate"] == "passed"
    assert formats["int8"]["bytes"] < formats["fp32"]["bytes"]
    about = json.loads((tmp_path / "bundle.json").read_text())
    assert about["recommended"] == "int8"
    assert (about["format"], about["kind"], about["decoder"]) == (FORMAT, "classification", "classes")
    assert about["metrics"] == {name: row["metrics"] for name, row in formats.items()}
    assert set(about["files"]) == {"model.onnx", "model.int8.onnx", "tokenizer.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bundle.json", "model.int8.onnx", "model.onnx", "tokenizer.json",
    ]  # fmt: skip
    assert threads == {torch.get_num_threads()}  # A run that has a part of the cores scores its files with that part.


def test_scoring_a_file_shows_its_progress(
    student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: Patch,
    capsys: Output,
) -> None:  # fmt: skip
    monkeypatch.setattr(console, "LINE_EVERY_SECONDS", 0.0)
    write(tmp_path, student, tokenizer, max_drop=1.0)
    lines = capsys.readouterr().out.splitlines()
    for name in (FILES["fp32"], "in other batches"):
        assert any(name in line and re.search(r"examples ([\d,]+)/\1  0 s left$", line) for line in lines), name


def test_files_with_other_predictions_fail_their_gates_and_none_is_recommended(
    student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: Patch
) -> None:
    """The float32 file has every label of torch with another probability, and int8 no label."""
    labels = torch_logits(student, tokenizer, split().texts).argmax(axis=1)  # The model is right, and int8 wrong.
    dev = text_split(split().texts, labels=labels)
    monkeypatch.setattr("tests.export.test_export.split", lambda: dev)
    factors = {FILES["fp32"]: 1.1}
    patch_logits(monkeypatch, lambda bundle, logits: [factors.get(bundle.model, -1) * of for of in logits])
    formats = write(tmp_path, student, tokenizer, recipes=("dynamic",))
    assert (formats["fp32"]["agreement"], formats["fp32"]["gate"], formats["int8"]["gate"]) == (1, "failed", "failed")
    assert formats["fp32"]["max_probability_diff"] > 1e-3
    assert formats["int8"]["drop"] > 0.5
    assert json.loads((tmp_path / "bundle.json").read_text())["recommended"] is None


def write_broken(material: RecipeInput, path: Path, **options: Any) -> None:
    """Writes the float32 file with weights that are not numbers, as after an overflow in float16."""
    model = onnx.load(str(material.fp32))
    for value in model.graph.initializer:
        if value.data_type == onnx.TensorProto.FLOAT and len(value.dims) == 2:
            value.CopyFrom(onnx.numpy_helper.from_array(np.full(list(value.dims), np.nan, np.float32), value.name))
    onnx.save(model, str(path))


def test_a_file_with_outputs_that_are_not_finite_is_left_out(
    student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: Patch,
    capsys: Output,
) -> None:  # fmt: skip
    monkeypatch.setitem(RECIPES, "dynamic", replace(RECIPES["dynamic"], write=write_broken))
    monkeypatch.setitem(FORMATS, "fp16", replace(FORMATS["fp16"], write=write_broken))  # type: ignore[arg-type]
    formats = write(
        tmp_path, student, tokenizer, max_drop=1.0, formats=("fp32", "int8", "fp16"), recipes=("dynamic", "smoothed")
    )
    assert {name: row["recipe"] for name, row in formats.items()} == {
        "fp32": "float32", "int8": "dynamic int8 with smoothed activations"
    }  # fmt: skip
    output = " ".join("".join(capsys.readouterr()).split())
    assert "model.int8.dynamic.onnx has outputs for 24 of 24 texts that are not finite: the recipe dynamic" in output
    assert "model.fp16.onnx has outputs for 24 of 24 texts that are not finite, and it is left out" in output
    assert {path.name for path in tmp_path.glob("*.onnx")} == {"model.onnx", "model.int8.onnx"}
    broken = copy.deepcopy(student)
    torch.nn.init.constant_(broken.classifier.bias, float("nan"))
    with pytest.raises(NumericalError, match=r"^model\.onnx has outputs for 24 of 24 texts that are not finite$"):
        write(tmp_path / "broken", broken, tokenizer)


@pytest.fixture
def large(student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: Patch) -> Path:
    """A bundle whose models have their weights in a second file, as those above 1.5 GB have."""
    monkeypatch.setattr("distill.export.onnx.EXTERNAL_DATA_BYTES", 1000)
    monkeypatch.setattr("distill.export.graph.EXTERNAL_DATA_BYTES", 1000)
    formats = write(tmp_path / "draft", student, tokenizer, max_drop=1.0)
    bundle = (tmp_path / "draft").rename(tmp_path / "bundle")
    for row in formats.values():
        files = [bundle / row["file"], bundle / f"{row['file']}.data"]
        assert row["bytes"] == sum(file.stat().st_size for file in files) > files[1].stat().st_size > 10_000
    return bundle


def test_a_large_model_has_its_weights_in_a_second_file(large: Path) -> None:
    names = {file for model in FILES.values() for file in (model, f"{model}.data")}
    assert {path.name for path in large.iterdir()} == names | {"bundle.json", "tokenizer.json"}
    assert set(json.loads((large / "bundle.json").read_text())["files"]) == names | {"tokenizer.json"}
    candidate = latency.load_candidate("student", "fp32", large / "model.onnx", [], 1)
    assert candidate.bytes == sum((large / name).stat().st_size for name in ("model.onnx", "model.onnx.data"))
    for name, file in FILES.items():
        assert Bundle(large, model=name).logits(split().texts).shape == (24, 2)
        data = large / f"{file}.data"
        content = data.read_bytes()
        data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(UserError, match=f"{data.name} is damaged: its SHA-256 is not the one in bundle.json"):
            Bundle(large, model=name)
        data.unlink()
        with pytest.raises(UserError, match=f"is incomplete: {data.name} is missing"):
            Bundle(large, model=name)


def test_a_quantized_model_is_in_one_file_if_it_is_small_enough(
    exported: dict[str, Any], student: PreTrainedModel, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("distill.export.onnx.EXTERNAL_DATA_BYTES", 1000)
    export_onnx(student, tmp_path / "large.onnx")
    write_dynamic(RecipeInput(tmp_path / "large.onnx", 7), tmp_path / "int8.onnx")
    write_dynamic(RecipeInput(exported["directory"] / "student.onnx", 7), tmp_path / "expected.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {
        "large.onnx", "large.onnx.data", "int8.onnx", "expected.onnx",
    }  # fmt: skip
    feed = inputs(3, 7, padded=True, vocabulary=100)
    del feed["token_type_ids"]
    logits = [session(tmp_path / name).run(["logits"], feed)[0] for name in ("int8.onnx", "expected.onnx")]
    assert np.array_equal(*logits)


GATES: list[tuple[dict[str, Any], str]] = [
    ({"drop": 0.762 - 0.752}, "passed"),  # Five of 500, and in floating point a little more than 0.01.
    ({"drop": 0.012, "interval": [0.001, 0.018]}, "failed"),
    ({"drop": 0.012, "interval": [0.0, 0.018]}, "undecided"),  # It may be noise.
    ({"drop": math.nan}, "failed"),
    ({"interval": [0.0, 0.02]}, "passed"),
    ({"interval": [-0.03, 0.021]}, "undecided"),
    ({"agreement": 0.97}, "passed"),
    ({"agreement": 0.969}, "failed"),
    ({"max_probability_diff": 0.31}, "failed"),
    ({"max_probability_diff": math.nan}, "failed"),
    ({"ece_rise": 0.02}, "passed"),
    ({"ece_rise": 0.021}, "failed"),
    ({"ece_rise": None}, "passed"),
]
FLOAT_GATES: list[tuple[dict[str, Any], str]] = [
    ({"agreement": 0.998}, "failed"),
    ({"agreement": 0.999}, "passed"),
    ({"max_probability_diff": 1e-3}, "passed"),
    ({"max_probability_diff": 2e-3}, "failed"),
    ({"max_probability_diff": math.nan}, "failed"),
    ({"drop": 0.011}, "failed"),
]


def test_the_gate_passes_up_to_its_limits_and_fails_beyond() -> None:
    """A float32 file must have the predictions of torch."""
    comparison: dict[str, Any] = {
        "drop": 0.0, "interval": [0.0, 0.0], "agreement": 0.999, "max_probability_diff": 1e-3, "ece_rise": 0.0,
        "examples": 500, "resolution": 0.006, "types": {},
    }  # fmt: skip
    exact = {"drop": 0.0, "agreement": 1.0, "max_probability_diff": 1e-5, "ece_rise": 0.5}
    loose = ExportSettings(max_drop=0.01, min_agreement=0, max_probability_diff=1)
    for cases, judge_file, start, settings in (
        (GATES, judge, comparison, ExportSettings(max_drop=0.01)), (FLOAT_GATES, judge_float32, exact, loose),
    ):  # fmt: skip
        for changes, verdict in cases:
            found = judge_file(start | changes, settings)  # type: ignore[arg-type]
            assert (found.gate, found.reason is None) == (verdict, verdict == "passed"), changes


def test_the_smallest_drop_is_0_and_failed_files_are_not_recommended() -> None:
    assert recommend({"fp32": {"gate": "failed", "bytes": 2}, "int8": {"gate": "failed", "bytes": 1}}) is None
    with pytest.raises(ValueError, match="max_drop=-1, expected a number of at least 0"):
        ExportSettings(max_drop=-1)


def tagger(vocabulary: int, **options: Any) -> BertForTokenClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        num_labels=2, **options,
    )  # fmt: skip
    return BertForTokenClassification(config).eval()


def test_a_bundle_tags_the_words_that_training_has_not_cut(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    monkeypatch.setattr(gate, "FEWEST_OF_TYPE", 1)
    words = [["zebra", "unicorn", "x"], ["a", "crocodile"], ["x"], ["elephantine", "crocodile", "unicorn"]]
    for name in ("train", "dev"):
        lines = ["".join(f"{word} {'O' if len(word) < 3 else 'B-animal'}\n" for word in row) for row in words]
        (tmp_path / f"{name}.conll").write_text("\n".join(lines))
    # Every letter is a token, and eight of them fit: no word is cut in its middle.
    tokenizer = train_word_pieces([" ".join(word for row in words for word in row)], 10)
    tokenizer.truncation_side = "left"
    task = TokenClassification(data=tmp_path, max_length=10)
    splits = task.read(tmp_path)
    model = tagger(len(tokenizer), initializer_range=0.3)
    model.classifier.weight.data.neg_()  # It finds few animals.
    examples = task.encode(splits, tokenizer, None)
    dev = evaluate(model, task, splits.scoring, [[examples["dev"][[row]]] for row in range(len(words))])
    scores = {"dev": replace(dev, decoding=splits.scoring.fit_decoder(dev))}
    assert scores["dev"].example_id.tolist() == [0, 0, 2, 3]
    formats = write_bundle(
        tmp_path, model=model, tokenizer=tokenizer, task=task, splits=splits, scores=scores,
        settings=replace(LOOSE, patterns={"email": None}),
        taught_by={"dev": dev.with_columns(logits=np.eye(2)[dev.labels])},
    ).formats  # fmt: skip
    recall = formats["fp32"]["recalls"]["animal"]
    assert (recall["number"], recall["teacher"]) == (int(dev.labels.sum()), 1)
    assert recall["student"] < 0.95
    assert f"less than 0.95 of the teacher's animal {recall['student']:.3f} (teacher 1.000)" in " ".join(
        capsys.readouterr().out.split()
    )
    assert formats["fp32"]["max_abs_diff"] < 2e-5
    assert Bundle(tmp_path).truncation_side == "left"
    found = Bundle(tmp_path).predict("x to a@b.org")["entities"]
    assert [(of["text"], of["score"]) for of in found if of["type"] == "email"] == [("a@b.org", 1.0)]


def test_a_pattern_of_a_type_that_the_tags_have_is_refused() -> None:
    settings = ExportSettings(patterns={"city": "[A-Z]{3}", "email": None})
    check_patterns(["O", "B-river"], settings)
    with pytest.raises(OptionError, match="got export.patterns.city=.*, expected another name than the types"):
        check_patterns(["O", "B-city", "I-city"], settings)
    with pytest.raises(OptionError, match="patterns=7, expected a mapping of types to patterns, or null"):
        ExportSettings(patterns=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(("side", "truncated"), [("right", [False, False, True]), ("left", [True, False, False])])
def test_words_that_a_smaller_vocabulary_truncates_count_as_missed(
    tmp_path: Path, side: str, truncated: list[bool], capsys: Output
) -> None:
    """In the vocabulary of the task each letter of `unicorn` is a piece, so that one of its neighbours does not fit."""
    train, dev = ([["a", "zebra"]], [["O", "B-x"]]), ([["unicorn", "a", "zebra"]], [["B-x", "O", "B-x"]])
    tokenizer = train_word_pieces(["a zebra", "unicorn"] * 4, 200)
    tokenizer.truncation_side = side
    task = TokenClassification(train=train, dev=dev, max_length=10)
    splits = task.read(tmp_path)
    model = tagger(len(tokenizer))
    model.classifier.bias.data = torch.tensor([0.0, 9.0])  # Every word is an entity.
    scored = evaluate(model, task, splits.scoring, [[task.encode(splits, tokenizer, None)["dev"][[0]]]])
    scores = {"dev": replace(scored, decoding=splits.scoring.fit_decoder(scored))}
    assert len(scores["dev"].labels) == 3
    exported = write_bundle(
        tmp_path, model=model, tokenizer=tokenizer, task=task, splits=splits, scores=scores,
        settings=replace(LOOSE, vocabulary="task"),
    )  # fmt: skip
    of_file = exported.scores["fp32"]["dev"]
    assert of_file.columns["truncated"].tolist() == truncated
    predicted = [splits.labels[tag] for tag in splits.scoring.predictions(of_file)]
    assert predicted == ["O" if is_truncated else "B-x" for is_truncated in truncated]
    file = exported.formats["fp32"]
    assert file["metrics"]["recall"] == 0.5
    assert file["agreement"] == pytest.approx(2 / 3)
    assert file["max_probability_diff"] < 0.1  # Of the words that the file reads.
    assert "which truncates 1 of 3 items of dev; they count as missed" in " ".join(capsys.readouterr().out.split())


def test_probabilities_are_compared_at_the_texts_that_a_smaller_vocabulary_reads_alike(tmp_path: Path) -> None:
    """The letters of `unicorn` are pieces of the cut vocabulary. The answer to it counts in the agreement alone."""
    known = ["a zebra", "zebra a zebra"]
    tokenizer = train_word_pieces(["a zebra", "unicorn"] * 4, 200)
    task = Classification(name="toy", text="text", labels=LABELS, max_length=16)
    model = toy_bert(len(tokenizer), layers=1, initializer_range=1.0).eval()
    train, dev = (text_split(texts, labels=np.arange(len(texts)) % 2) for texts in (known, [*known, "unicorn"]))
    encoded = tokenizer(dev.texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        scores = {"dev": scores_of(model(**encoded).logits.numpy(), dev)}
    exported = write_bundle(
        tmp_path, model=model, tokenizer=tokenizer, task=task, scores=scores,
        splits=LabelledData(labels=LABELS, splits={"train": train, "dev": dev}, sha256="", scoring=SCORING),
        settings=replace(LOOSE, vocabulary="task", recipes=("dynamic",)),
    )  # fmt: skip
    of_file = exported.scores["fp32"]["dev"]
    assert of_file.columns["reread"].tolist() == [False, False, True]
    assert np.abs(of_file.columns["logits"] - scores["dev"].columns["logits"]).max() > 0.1
    assert exported.formats["fp32"]["max_abs_diff"] < 2e-5
    assert exported.scores["int8"]["dev"].columns["reread"].tolist() == [False, False, True]


def test_a_bundle_with_other_items_than_torch_is_refused(
    student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: Patch
) -> None:
    patch_logits(monkeypatch, lambda _, logits: [logits[0], np.concatenate([logits[1]] * 2), *logits[2:]])
    with pytest.raises(ValueError, match="the bundle has 2 items in example 2, expected 1 as in torch"):
        write(tmp_path, student, tokenizer)


def test_a_file_whose_answers_depend_on_the_batch_recommends_to_run_texts_alone(
    student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: Patch
) -> None:
    original = Bundle.item_logits

    def depend_on_the_batch(self: Bundle, records: Any, *, batch_size: int | None = None, **options: Any) -> list[Any]:
        logits = original(self, records, batch_size=batch_size, **options)
        if self.model == FILES["fp32"] or batch_size in (None, 1):
            return logits
        return [of + np.array([0.0, 4.0], dtype=np.float32) for of in logits]  # Every text is positive in a batch.

    monkeypatch.setattr(Bundle, "item_logits", depend_on_the_batch)
    formats = write(tmp_path, student, tokenizer, max_drop=1.0)
    about = json.loads((tmp_path / "bundle.json").read_text())
    assert about["batch_sensitivity"] == {name: row["batch_sensitivity"] for name, row in formats.items()}
    fp32, int8 = (about["batch_sensitivity"][name] for name in ("fp32", "int8"))
    assert (fp32["examples"], fp32["batch"], fp32["changed"]) == (24, 24, 0.0)
    assert fp32["max_probability_diff"] < 1e-5
    assert 0.3 < int8["max_probability_diff"] <= 1.0
    alone = [prediction["label"] for prediction in Bundle(tmp_path, model="int8").predict(split().texts, batch_size=1)]
    assert int8["changed"] == pytest.approx(alone.count("negative") / 24)
    assert about["batch_sizes"] == {"int8": 1}
    assert (Bundle(tmp_path, model="fp32").batch_size, Bundle(tmp_path, model="int8").batch_size) == (32, 1)
    formats = write(tmp_path, student, tokenizer, max_drop=1.0, max_batch_diff=1.0)
    assert json.loads((tmp_path / "bundle.json").read_text())["batch_sizes"] == {}
    words = describe_sensitivity("model.int8.onnx", int8 | {"changed": 0.5}, 1)
    assert "another prediction in 50.0% of cases: the bundle recommends batch_size=1" in words


def test_a_difference_in_the_batches_that_bundles_run_is_seen_however_they_are_grouped(monkeypatch: Patch) -> None:
    """Of 600 examples the first 512 are compared. The last of them differs only where all are sorted together."""
    groups: list[tuple[int, int]] = []

    def item_logits(records: list[str], *, batch_size: int, report: object) -> list[np.ndarray]:
        groups.append((len(records), batch_size))
        positive = 4.0 if (len(records), batch_size) == (512, 32) else 0.0
        return [np.zeros((1, 2))] * (len(records) - 1) + [np.array([[0.0, positive]])]

    output = SimpleNamespace(name="logits", shape=[None, 2])
    bundle: Any = SimpleNamespace(
        item_logits=item_logits, decoder=SimpleNamespace(at_positions=False, ranks=False, generates=False),
        session=SimpleNamespace(get_outputs=lambda: [output]),
    )  # fmt: skip
    monkeypatch.setattr(Scorer, "_load", lambda self, path: bundle)
    dev = text_split(["text"] * 600, labels=np.zeros(600, dtype=int))
    scores = {"dev": scores_of(np.zeros((600, 2)), dev)}
    sensitivity = Scorer(bundle, data_of(dev), scores).compare_batches(Path("int8.onnx"))
    assert groups == [(512, 1), *[(32, 32)] * 16, (512, 32)]
    assert (sensitivity["examples"], sensitivity["batch"], sensitivity["changed"]) == (512, 32, pytest.approx(1 / 512))
    assert sensitivity["max_probability_diff"] == pytest.approx(1 / (1 + math.exp(-4)) - 0.5)
    words = describe_sensitivity("model.int8.onnx", sensitivity, None)
    assert words.endswith("in a batch of up to 32 the same probabilities as alone, within 0.48 (512 examples of dev)")


def test_the_records_that_are_compared_in_batches_are_fewer_where_they_have_many_documents(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    write_ranking_bundle(tmp_path, tokenizer)
    records = [{"query": "film", "documents": ["a film", "dull", "film"]}] * 4
    assert [len(take_first(Bundle(tmp_path), records, most)) for most in (2, 3, 8, 9, 99)] == [1, 1, 2, 3, 4]
    write_toy_bundle(tmp_path, tokenizer)
    assert take_first(Bundle(tmp_path), ["film", "dull", "a film"], 2) == ["film", "dull"]
