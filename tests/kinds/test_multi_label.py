"""Tests of examples with any number of labels: their reading, losses, thresholds, metrics, and the exported bundle."""

import copy
import csv
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students.bilstm import from_teacher as bilstm
from distill.builtin.students.distilbert import from_teacher as distilbert
from distill.builtin.teachers.pretrained import Pretrained
from sklearn.metrics import f1_score
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from distill.chain.plan import Student
from distill.core.contracts import Items, Outputs, Scores
from distill.core.errors import UserError
from distill.data import batches
from distill.edge import decode
from distill.edge.__main__ import main as edge
from distill.edge.bundle import Bundle
from distill.edge.decoder import Example
from distill.export.bundle_writer import write_bundle
from distill.export.gate import TorchScores, check_abstention, judge
from distill.export.quantization import ExportSettings
from distill.kinds import Classification
from distill.kinds.classification import LabelSets, choose_thresholds
from distill.losses import HardLabels, PseudoLabels, SoftTargets
from distill.models.loading import load_directory
from distill.records.prediction_analysis import FILE, write_predictions
from distill.records.verdict import RecordSettings
from distill.teachers.preparation import load_start
from distill.teachers.prepared import compare_with_constant
from distill.teachers.source import TeacherSource, mix_logits
from distill.text.vocabulary import train_word_pieces
from distill.training import statistics
from distill.training.module import dev_metrics, evaluate_splits, fit_decoding
from tests.conftest import LOOSE, SETTINGS, toy_bert

NOWHERE = Path("nowhere")
HEAD = "AutoModelForSequenceClassification"
DROP_ONLY = ExportSettings(min_agreement=0, max_probability_diff=1, max_ece_rise=1)
TRAIN = (["a", "b", "c", "d"], [["x", "y"], ["z"], [], ["y"]])
DEV = (["e", "f"], [["y"], ["x", "z"]])


def multi_label(**options: Any) -> Classification:
    tables = {} if {"data", "data_dir"} & set(options) else {"train": TRAIN, "dev": DEV}
    return Classification(**{"text": "text", "multi_label": True, **tables, **options})


def scores_of(logits: Sequence[Sequence[float]], labels: Sequence[Sequence[float]], **decoding: Any) -> Scores:
    return Scores({"logits": np.array(logits)}, np.array(labels), np.arange(len(labels)), decoding)


def write_jsonl(path: Path, labels: Sequence[object], texts: Sequence[str] | None = None) -> None:
    texts = [f"text {number}" for number in range(len(labels))] if texts is None else texts
    rows = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels, strict=True)]
    path.write_text("\n".join(rows) + "\n")


def write_csv(path: Path, labels: Sequence[str]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((f"text {n}", label) for n, label in enumerate(labels))])


def evaluate_file(bundle: Bundle, path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """Returns the metrics that the command of the edge writes."""
    capsys.readouterr()
    assert edge([str(bundle.directory), "--model", "fp32", "--evaluate", str(path), "--json"]) == 0
    metrics: dict[str, float] = json.loads(capsys.readouterr().out)["metrics"]
    return metrics


@pytest.mark.parametrize(
    ("suffix", "train", "options"),
    [
        (".jsonl", ["x|y", "z", None, ["y"]], {}),
        (".csv", ["x|y", "z", "", "y"], {}),
        (".csv", ["y ; x", "z", " ", "y"], {"separator": ";"}),
    ],
)
def test_lists_and_texts_with_a_separator_are_the_same_labels(
    suffix: str, train: list[Any], options: dict[str, Any], tmp_path: Path
) -> None:
    write = write_csv if suffix == ".csv" else write_jsonl
    write(tmp_path / f"train{suffix}", train)
    write(tmp_path / f"dev{suffix}", ["y", "z"])
    data = multi_label(data_dir=tmp_path, **options).read(NOWHERE)
    assert data.labels == ("x", "y", "z")
    assert data.splits["train"].labels.tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert data.splits["dev"].labels.tolist() == [[0, 1, 0], [0, 0, 1]]


def test_a_file_with_one_label_each_has_one_label_each() -> None:
    task = multi_label(train=(["a", "b", "c"], [2, 0, 1]), dev=(["d"], [1]), labels=["no", "maybe", "yes"])
    data = task.read(NOWHERE)
    assert data.splits["train"].labels.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert data.scoring.summary(data) == "3 labels, 1 an example of train: no, maybe, yes"


def test_train_keeps_an_example_of_every_label_when_dev_is_held_out() -> None:
    labels = [["often"]] * 18 + [["often", "once"], ["never again"]]
    data = multi_label(data=([f"text {n}" for n in range(20)], labels), dev_fraction=0.5).read(NOWHERE)
    assert data.labels == ("never again", "often", "once")
    assert data.splits["train"].labels.any(axis=0).all()
    assert data.sizes() == {"train": 11, "dev": 9}  # Half of the 17 that train need not keep.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": (["a", "b"], ["", ""])}, "train has no label in any of its 2 examples, expected lists of labels, o"),
        ({"dev": (["e"], [["y", "w"]])}, "the split dev, example 1: label 'w' is unknown, expected one of x, y, z"),
        ({"train": (["a", "b"], ["x|", "y"])}, r"example 1: label 'x\|' has nothing on one side of '\|', expected a l"),
        ({"train": (["a", "b"], [["x", ""], ["y"]])}, "example 1: label '' is empty, expected a class"),
        ({"train": (["a", "b"], [["x"], ["x"]])}, r"train has one class only \(x\), expected at least two"),
        ({"positive": "x"}, "got positive=x, expected null, because task.multi_label=true has F1 of all labels"),
        ({"class_weights": "balanced"}, "got class_weights=balanced, expected null, because each label of task.multi_"),
        (
            {"metrics": ["accuracy", "f1"]},
            r"got metrics=\[accuracy, f1\], expected a list of some of micro_f1, macro_f1, subset_accuracy, because "
            "task.multi_label=true",
        ),
        ({"multi_label": False, "metrics": ["micro_f1"]}, "some of accuracy, f1, matthews, macro_f1, because task.mul"),
        ({"separator": ""}, "got separator='', expected at least one character"),
    ],
)
def test_what_several_labels_cannot_be_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        multi_label(**options).read(NOWHERE)
    assert caught.value.exit_code == 2


def test_a_bundle_of_several_labels_does_not_abstain() -> None:
    with pytest.raises(UserError, match=r"got export.abstain=0.1, expected null, because task .* has no classes of"):
        check_abstention(multi_label().info, 0.1)


def choose_threshold(probabilities: Sequence[float], labels: Sequence[int], metric: str) -> float:
    [threshold] = choose_thresholds(np.array([probabilities]).T, np.array([labels]).T > 0, metric=metric)
    return threshold


def test_a_threshold_has_the_largest_f1_of_its_label() -> None:
    # From 0.35 on 3 of 4 are right and none is missed: F1 6/7. From 0.7 on it is 4/5, from 0.2 on 6/8.
    probabilities, labels = [0.9, 0.3, 0.8, 0.1, 0.4, 0.6], [1, 0, 1, 0, 1, 0]
    for metric in ("macro_f1", "micro_f1"):  # Of one label they are the same.
        assert choose_threshold(probabilities, labels, metric) == pytest.approx(0.35)
    assert choose_threshold(probabilities, [0] * 6, "macro_f1") == 0.5
    # Equal probabilities are not parted, and of equal F1 the threshold nearest to 0.5 is taken.
    assert choose_threshold([0.7, 0.7, 0.2], [1, 0, 0], "macro_f1") == pytest.approx(0.45)
    assert choose_threshold([0.9, 0.5, 0.3, 0.1], [1, 0, 0, 1], "macro_f1") == pytest.approx(0.7)
    # One mistake with 0.7, two with all others.
    assert choose_threshold([0.9, 0.5, 0.1, 0.0], [1, 0, 0, 1], "subset_accuracy") == pytest.approx(0.7)
    assert choose_threshold([0.4, 0.3, 0.2], [0, 0, 1], "subset_accuracy") == pytest.approx(0.7)
    assert choose_threshold([1.0, 0.3, 0.2], [0, 0, 1], "subset_accuracy") == pytest.approx(0.65)  # 1 is always given.


def test_a_rare_label_that_nobody_can_tell_is_not_given_for_micro_f1() -> None:
    # The first label is known; the second one belongs to the example that has its smallest probability.
    probabilities = np.array([[0.9, 0.4], [0.8, 0.3], [0.1, 0.2], [0.2, 0.1]])
    labels = np.array([[1, 0], [1, 0], [0, 0], [0, 1]]) > 0
    assert choose_thresholds(probabilities, labels, metric="micro_f1") == pytest.approx([0.5, 0.7])  # F1 4/5.
    assert choose_thresholds(probabilities, labels, metric="macro_f1") == pytest.approx([0.5, 0.05])  # Micro F1 6/9.


@pytest.mark.parametrize("seed", range(2))
def test_no_other_thresholds_have_a_larger_micro_f1(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.random((12, 3)) < [0.5, 0.2, 0.1]
    labels[0] = True
    probabilities = np.round(0.3 * labels + 0.7 * random.random((12, 3)), 1)  # Many are equal.
    every = [np.unique([*column, 2.0]) for column in probabilities.T]

    def micro_f1(thresholds: Sequence[float]) -> float:
        found = probabilities >= np.array(thresholds)
        return float(2 * (found & labels).sum() / (found.sum() + labels.sum()))

    chosen = choose_thresholds(probabilities, labels, metric="micro_f1")
    assert micro_f1(chosen) == pytest.approx(max(map(micro_f1, itertools.product(*every))), abs=1e-12)


def test_metrics_are_those_of_the_sets_at_the_thresholds() -> None:
    scoring = multi_label().read(NOWHERE).scoring
    # Probabilities 0.88, 0.27, 0.5; 0.05, 0.73, 0.12 against x; y and z.
    logits, labels = [[2.0, -1.0, 0.0], [-3.0, 1.0, -2.0]], [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    assert scoring.metrics(scores_of(logits, labels)) == pytest.approx(
        {"micro_f1": 2 * 2 / (3 + 3), "macro_f1": 2 / 3, "subset_accuracy": 0.0}
    )
    scores = scores_of(logits, labels, thresholds=[0.5, 0.5, 0.1])
    assert scoring.metrics(scores) == pytest.approx(
        {"micro_f1": 6 / 7, "macro_f1": (1 + 1 + 2 / 3) / 3, "subset_accuracy": 0.5}
    )
    assert scoring.breakdown(scores)["z"] == {"micro_f1": pytest.approx(2 / 3), "number": 1}
    assert scoring.agreement(scores, scores_of(logits, labels)) == pytest.approx((1 + 1 / 2) / 2)
    even = scores_of([[0.0] * 3] * 2, labels)
    assert scoring.probability_diff(scores, even) == pytest.approx(0.5 - 1 / (1 + np.exp(3)))
    wrong = scores_of([[-9.0, -9.0, 9.0], [9.0, -9.0, -9.0]], labels)
    for metric, value in scoring.metrics(scores).items():
        assert replace(scoring, names=(metric,)).selecting_metric(scores) == pytest.approx(value), metric
    [constant] = scoring.constants(wrong)
    assert (constant.answer, scoring.metrics(constant.predict(wrong))["micro_f1"]) == ("always x, y, z", 2 / 3)


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1", "subset_accuracy"])
@pytest.mark.parametrize("shares", [(0.9, 0.4, 0.1), (0.2, 0.1, 0.05)])
def test_the_best_constant_is_that_of_all_numbers_of_labels(metric: str, shares: tuple[float, ...]) -> None:
    scoring, labels = LabelSets((metric,), separator="|"), np.random.default_rng(0).random((40, 3)) < shares
    scores = scores_of(np.zeros((40, 3)).tolist(), labels.tolist())
    order = np.argsort(-labels.sum(axis=0), kind="stable")
    every = [scores_of([[9.0 if c in order[:k] else -9.0 for c in range(3)]] * 40, labels.tolist()) for k in range(4)]
    values = [scoring.metrics(each)[metric] for each in every]
    [constant] = scoring.constants(scores)
    assert scoring.metrics(constant.predict(scores))[metric] == pytest.approx(max(values))
    assert metric == "macro_f1" or values[-1] < max(values)


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1", "subset_accuracy"])
def test_a_random_teacher_is_weak_and_one_that_knows_something_is_not(metric: str) -> None:
    """Thresholds that are chosen on all of dev are never worse there than the best constant set."""
    scoring, random = LabelSets((metric,), separator="|"), np.random.default_rng(5)
    labels = random.random((200, 3)) < (0.5, 0.4, 0.6)
    noise = random.normal(size=labels.shape) - 3  # No probability of a good teacher reaches 0.5 often.
    for knows, weak in ((0.0, True), (1.5, False), (3.0, False)):
        scores = scores_of((noise + knows * labels).tolist(), labels.tolist())
        scores = replace(scores, decoding=scoring.fit_decoder(scores))
        [constant] = scoring.constants(scores)
        assert scoring.metrics(scores)[metric] >= scoring.metrics(constant.predict(scores))[metric]
        result = compare_with_constant(scoring, {"dev": scores})
        assert result is not None
        assert (result.weakness is not None) == weak
        assert result.difference["number"] == 200


def draw(examples: int, *, signal: float, seed: int, labels: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and the logits of a model that knows as much of them."""
    random = np.random.default_rng(seed)
    drawn = random.random((examples, labels)) < np.geomspace(0.03, 0.3, labels)
    return drawn.astype(float), random.normal(size=drawn.shape) + signal * drawn


@pytest.mark.parametrize(("signal", "metric"), [(0.0, "macro_f1"), (1.0, "macro_f1"), (1.0, "micro_f1")])
def test_dev_is_scored_with_thresholds_that_it_did_not_choose(signal: float, metric: str) -> None:
    """Those of the other half of dev. With its own it would be far above fresh rows, above all without a signal."""
    scoring = LabelSets((metric,), separator="|", labels=tuple(map(str, range(20))))
    labels, logits = draw(3000, signal=signal, seed=1)
    fresh = scores_of(logits, labels)  # type: ignore[arg-type]
    found, own, on_fresh = list[float](), list[float](), list[float]()
    for seed in range(2, 7):
        labels, logits = draw(200, signal=signal, seed=seed)
        fitted = fit_decoding(scoring, {"dev": scores_of(logits, labels), "test": fresh})
        found.append(scoring.selecting_metric(fitted["dev"]))
        on_fresh.append(scoring.selecting_metric(fitted["test"]))
        columns = {"logits": fitted["dev"].columns["logits"]}
        own.append(scoring.selecting_metric(replace(fitted["dev"], columns=columns)))
        order = np.random.default_rng(0).permutation(200)
        shuffled = Scores({"logits": logits[order]}, labels[order], order)
        assert dev_metrics(scoring, shuffled)[metric] == pytest.approx(found[-1])
    assert np.mean(found) == pytest.approx(np.mean(on_fresh), abs=0.02)
    assert np.mean(own) > np.mean(on_fresh) + 0.04


def test_noise_in_the_logits_of_a_file_fails_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has the signal of the model. With the thresholds that dev chose for the model it would be far worse."""
    monkeypatch.setattr(statistics, "METRIC_RESAMPLES", 100)
    scoring, gates = LabelSets(("macro_f1",), separator="|", labels=tuple(map(str, range(20)))), list[str]()
    for seed in range(6):
        labels, logits = draw(200, signal=1.0, seed=seed)
        [reference] = fit_decoding(scoring, {"dev": scores_of(logits, labels)}).values()  # type: ignore[arg-type]
        noise = 0.05 * np.random.default_rng(seed + 100).normal(size=logits.shape)
        file = scoring.rescore(reference, (logits + noise)[:, None])
        comparison = TorchScores(scoring, {"dev": reference}).compare({"dev": file})
        assert abs(comparison["drop"]) < 0.015
        gates.append(judge(comparison, DROP_ONLY).gate)
    assert "failed" not in gates


def test_the_macro_f1_of_labels_leaves_out_one_that_no_example_has(capsys: pytest.CaptureFixture[str]) -> None:
    data = multi_label(dev=(["e", "f"], [["y"], ["x"]])).read(NOWHERE)
    assert "dev has no row of z: the mean F1 is that of the other 2 classes" in "".join(capsys.readouterr())
    labels = data.splits["dev"].labels
    for of_z in (-9.0, 9.0):
        scores = scores_of([[-9.0, 9.0, of_z], [9.0, 9.0, -9.0]], labels)
        assert data.scoring.metrics(scores)["macro_f1"] == pytest.approx((1 + 2 / 3) / 2)
        macro = replace(data.scoring, names=("macro_f1",))  # type: ignore[type-var]
        [constant] = macro.constants(scores)
        assert macro.metrics(constant.predict(scores))["macro_f1"] == pytest.approx(2 / 3)  # Of all labels.


def test_losses_are_binary_cross_entropies_of_the_labels() -> None:
    student, teacher = (
        torch.tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True),
        torch.tensor([[2.0, 0.0], [-1.0, 1.0]]),
    )
    task = multi_label()
    items = task.select({"labels": torch.tensor([[1.0, 0.0], [torch.nan, torch.nan]])})
    assert items.labelled.tolist() == [True, False]
    total, count = HardLabels()(Outputs(student), Outputs(), items)
    assert int(count) == 1
    assert float(total.detach()) == pytest.approx((np.log1p(np.exp(-1)) + np.log1p(np.exp(-2))) / 2)
    total, count = SoftTargets(temperature=2.0)(Outputs(student), Outputs(teacher), items)
    probabilities, expected = (teacher / 2).sigmoid(), (student / 2).sigmoid()
    entropies = -probabilities * expected.log() - (1 - probabilities) * (1 - expected).log()
    own = -probabilities * probabilities.log() - (1 - probabilities) * (1 - probabilities).log()
    assert (float(total.detach()), int(count)) == (pytest.approx(4 * float((entropies - own).detach().sum()) / 2), 2)
    total.backward()
    assert student.grad is not None
    torch.testing.assert_close(student.grad, 2 * (expected - probabilities).detach() / 2)
    assert not PseudoLabels().suits(likelihood=task.info.likelihood, classes_are_tokens=False)


def test_the_mean_of_an_ensemble_is_that_of_the_probabilities() -> None:
    mixed = mix_logits([torch.tensor([[2.0, -1.0]]), torch.tensor([[0.0, 30.0]])], (0.25, 0.75), "sigmoid")
    expected = 0.25 * torch.tensor([[2.0, -1.0]]).sigmoid() + 0.75 * torch.tensor([[0.0, 30.0]]).sigmoid()
    torch.testing.assert_close(mixed.sigmoid(), expected)


def test_a_new_head_gives_each_label_its_share_of_train(encoder_dir: Path) -> None:
    task = multi_label()
    data = task.read(NOWHERE)
    # Of four texts x has one, y two and z one; with the rule of succession 2, 3 and 2 of six.
    assert data.head_bias == pytest.approx([np.log(2 / 4), 0.0, np.log(2 / 4)])
    source = TeacherSource(Pretrained(name="toy", path=str(encoder_dir)), SETTINGS)
    teacher = load_start(source, task, data).model
    assert teacher.classifier.bias.tolist() == pytest.approx(data.head_bias)
    student = Student("bilstm", bilstm).make(teacher, task, data)
    assert _last_bias(student).tolist() == pytest.approx(data.head_bias)


def test_a_trained_head_keeps_its_bias(encoder_dir: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    task = multi_label()
    data = task.read(NOWHERE)
    trained = load_start(TeacherSource(Pretrained(name="toy", path=str(encoder_dir)), SETTINGS), task, data).model
    torch.nn.init.constant_(trained.classifier.bias, 7.0)
    trained.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    start = load_start(TeacherSource(Pretrained(name="toy", path=str(tmp_path)), SETTINGS), task, data)
    assert start.fits  # It was saved as a model of several labels.
    for model in (
        start.model,
        Student("distilbert", distilbert).make(start.model, task, data),
        Student("mine", copy.deepcopy(start.model)).make(start.model, task, data),
    ):
        assert _last_bias(model).tolist() == [7.0] * 3
    assert _last_bias(
        Student("distilbert", partial(distilbert, init="random")).make(start.model, task, data)
    ).tolist() == (pytest.approx(data.head_bias))


@pytest.mark.parametrize(
    ("problem_type", "reason"),
    [
        (
            "single_label_classification",
            "its head is for labels that exclude each other (single_label_classification), and the task is for labels "
            "of which several can be right at once",
        ),
        ("regression", "its head is for numbers (regression), and the task is for labels of which several can be righ"),
        (None, ""),  # Many models of several labels do not say so.
    ],
)
def test_a_head_for_one_label_does_not_fit_several(
    problem_type: str | None, reason: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    config = toy_bert(len(tokenizer), layers=1).config
    config.update({"id2label": dict(enumerate("xyz")), "problem_type": problem_type})
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    task = multi_label()
    start = load_start(TeacherSource(Pretrained(name="toy", path=str(tmp_path)), SETTINGS), task, task.read(NOWHERE))
    assert start.fits is (problem_type is None)
    assert start.reason.startswith(reason)


def test_labels_that_exclude_each_other_have_no_initial_bias() -> None:
    task = Classification(text="text", train=(["a", "b"], ["x", "y"]), dev=(["c"], ["x"]))
    assert task.read(NOWHERE).head_bias is None


def _last_bias(model: PreTrainedModel) -> torch.Tensor:
    *_, last = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    return last.bias


def test_texts_without_labels_are_items_without_labels() -> None:
    task = multi_label(unlabelled=["g", "h"], unlabelled_share=0.5)
    tokenizer = train_word_pieces(["a b c d e f g h"] * 4, 60)
    examples = task.encode(task.read(NOWHERE), tokenizer, None)
    items: Items = task.select(examples["train"][range(6)])  # type: ignore[index]
    assert items.labelled.tolist() == [True] * 4 + [False] * 2
    assert items.labels.shape == (6, 3)


def test_a_decoder_gives_the_labels_from_their_thresholds_on() -> None:
    tokenizer = train_word_pieces(["a"], 60).backend_tokenizer
    decoder = decode.Labels(["x", "y", "z"], False, {"thresholds": [0.9, 0.2, 0.5]}, tokenizer)
    prediction = decoder.decode(Example("a"), [(None, np.array([[2.0, -1.0, 0.0]]))])
    assert [each["label"] for each in prediction["labels"]] == ["z", "y"]
    assert prediction["probabilities"] == pytest.approx({"x": 0.8807971, "y": 0.2689414, "z": 0.5})
    assert decoder.format(prediction) == "z: 0.5000; y: 0.2689"
    assert decoder.format({"labels": []}) == "-"
    for thresholds in (None, [0.5], [0.5, 0.5, 2.0], [0.5, 0.5, True]):
        with pytest.raises(UserError, match=r"decoding has thresholds .*, expected a probability for each of the labe"):
            decode.Labels(["x", "y", "z"], False, {"thresholds": thresholds}, tokenizer)


def test_a_bundle_gives_the_labels_of_torch_and_scores_files(
    golden_run: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The student is that of the golden run, exported for other texts."""
    texts, names = ["a film", "dull acting", "a", "stale joy", "a joy or a bore"], ["acting", "film", "joy"]
    labels = [["acting", "film"], ["joy"], [], ["acting"], ["film", "joy"]]
    rows = (texts[1:], labels[1:])  # Dev is decoded by halves, and test as by the bundle.
    task = multi_label(train=(texts, labels), dev=rows, test=rows, max_length=8)
    data = task.read(tmp_path)
    start = load_directory(golden_run("labels") / "student", HEAD, names, trust_remote_code=False)
    model, tokenizer = start.model.eval(), start.tokenizer
    scores = evaluate_splits(model, task, data.scoring, batches.evaluation_loaders(task.encode(data, tokenizer, None)))
    settings = replace(LOOSE, formats=("fp32",))
    (tmp_path / "bundle").mkdir()
    exported = write_bundle(
        tmp_path / "bundle", model=model, tokenizer=tokenizer, task=task, splits=data, scores=scores, settings=settings
    )
    assert exported.formats["fp32"]["max_abs_diff"] < 2e-5
    bundle = Bundle(tmp_path / "bundle", model="fp32")
    predicted = [{each["label"] for each in prediction["labels"]} for prediction in bundle.predict(texts[1:])]
    expected, metrics = data.scoring.tabulate(scores["test"], data, examples=4), data.scoring.metrics(scores["test"])
    assert predicted == [set(of_text) for of_text in expected["prediction"]]

    vectors = [[int(name in of_text) for name in names] for of_text in labels[1:]]
    for values in (labels[1:], vectors):
        write_jsonl(tmp_path / "dev.jsonl", values, texts[1:])
        assert evaluate_file(bundle, tmp_path / "dev.jsonl", capsys) == pytest.approx(metrics)
    columns = [",".join(map(str, (text, *row))) for text, row in zip(texts[1:], vectors, strict=True)]
    (tmp_path / "dev.csv").write_text("\n".join(["text,acting,film,joy", *columns]))
    assert evaluate_file(bundle, tmp_path / "dev.csv", capsys) == pytest.approx(metrics)
    given = np.array([[name in of_text for name in names] for of_text in predicted])
    known = np.array([[name in of_text for name in names] for of_text in labels[1:]])
    assert metrics["macro_f1"] == pytest.approx(f1_score(known, given, average="macro", zero_division=0))


def test_predictions_are_lists_also_where_a_model_gives_no_label(tmp_path: Path) -> None:
    import pyarrow.parquet

    task = multi_label(test=(["g"], [["x"]]))
    data = task.read(NOWHERE)
    nothing = {
        "dev": scores_of([[-9.0] * 3] * 2, data.splits["dev"].labels),
        "test": scores_of([[9.0, -9.0, -9.0]], data.splits["test"].labels),
    }
    write_predictions(tmp_path, {"student": nothing}, splits=data, settings=RecordSettings())
    rows = pyarrow.parquet.read_table(tmp_path / FILE).to_pylist()
    assert [row["student_prediction"] for row in rows] == [[], [], ["x"]]
    assert [row["label"] for row in rows] == [["y"], ["x", "z"], ["x"]]
