"""Tests of locating a teacher, matching its labels to the task's, and refusing pickles."""

import copy
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distill.builtin.teachers.loaded import Loaded
from distill.builtin.teachers.new import NewModel
from distill.builtin.teachers.pretrained import Pretrained
from huggingface_hub import constants
from transformers import BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase, dynamic_module_utils

from distill import api
from distill.core.errors import UnreachableError, UserError
from distill.kinds import Classification
from distill.kinds.classification import OneClass
from distill.models.loading import match_labels, reorder_head
from distill.teachers import preparation as teaching
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.source import TeacherSource, locate
from distill.text.vocabulary import SPECIAL_TOKENS, train_word_pieces
from distill.training.module import freeze
from tests.conftest import LABELS, SETTINGS, sentences, toy_bert
from tests.teachers.conftest import fingerprint_of, prepare

AUTO_CLASS = "AutoModelForSequenceClassification"


@pytest.fixture
def classifier_dir(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    toy_bert(len(tokenizer)).save_pretrained(tmp_path / "classifier")
    tokenizer.save_pretrained(tmp_path / "classifier")
    return tmp_path / "classifier"


def test_a_teacher_of_any_precision_is_loaded_in_float32(encoder_dir: Path) -> None:
    source = Pretrained(name="toy", path=str(encoder_dir), precision="bfloat16")
    # A student is copied from the float32 weights.
    assert {p.dtype for p in source.load(AUTO_CLASS, LABELS, []).model.parameters()} == {torch.float32}
    assert source.precision == "bfloat16"
    with pytest.raises(UserError, match="precision=float8 is unknown, expected one of float32, bfloat16, auto"):
        Pretrained(name="toy", path=str(encoder_dir), precision="float8")


def test_the_head_is_reordered_to_the_labels_of_the_task(
    classifier_dir: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    inputs = dict(tokenizer(["a dull film", "warm and clever"], padding=True, return_tensors="pt"))
    original = Pretrained(name="toy", path=str(classifier_dir)).load(AUTO_CLASS, LABELS, [])
    reordered = Pretrained(name="toy", path=str(classifier_dir)).load(AUTO_CLASS, LABELS[::-1], [])
    assert reordered.fits
    assert "put in order: positive, negative" in reordered.notices[0]
    with torch.no_grad():
        expected, result = original.model.eval()(**inputs).logits, reordered.model.eval()(**inputs).logits
    torch.testing.assert_close(result, expected.flip(-1))
    assert reordered.model.config.id2label == {0: "positive", 1: "negative"}


@pytest.mark.parametrize(
    ("own", "labels", "order", "reason"),
    [
        (["LABEL_0", "LABEL_1"], ["no", "yes"], [0, 1], ""),
        (["NO", "YES"], ["no", "yes"], [0, 1], ""),
        (["yes", "no"], ["no", "yes"], [1, 0], ""),
        (["cat", "dog"], ["no", "yes"], None, "its labels are cat, dog and the task's no, yes"),
        (["LABEL_0", "LABEL_1"], ["LABEL_1", "LABEL_2"], None, "its labels are LABEL_0, LABEL_1 and the task's LA"),
        (["0", "1"], ["no", "yes"], None, "its labels are 0, 1 and the task's no, yes"),
        (["Us", "us"], ["us", "Us"], [1, 0], ""),
        (["a", "a"], ["a", "b"], None, "its labels are a, a and the task's a, b"),
    ],
)
def test_labels_are_matched_by_name_or_else_by_index(
    own: list[str], labels: list[str], order: list[int] | None, reason: str
) -> None:
    actual_order, actual_reason, notices = match_labels(own, labels)
    assert actual_order == order
    assert actual_reason == reason if order is not None else actual_reason.startswith(reason)
    assert bool(notices) == (order is not None and (own[0] == "LABEL_0" or order == [1, 0]))


def test_names_that_are_indices_are_matched_by_name_in_any_order() -> None:
    indices, names = ([f"{start}{index}" for index in range(12)] for start in ("", "LABEL_"))
    for own in (indices, names):
        for labels in (indices, names):
            asked = sorted(labels)  # 0, 1, 10, 11, 2: the order of labels that were read as text.
            order, reason, notices = match_labels(own, asked)
            assert (order, reason) == ([labels.index(label) for label in asked], "")
            pairs = ", ".join(f"{own[index]}={label}" for index, label in zip(order or (), asked, strict=True))
            in_order = f"the teacher's labels are put in order: {', '.join(asked)}"
            by_index = f"the teacher's labels have no names and are taken by index: {pairs}"
            assert notices == [in_order if own is labels else by_index]
            assert own is not labels or match_labels(own, labels) == ([*range(12)], "", [])


@pytest.mark.parametrize(
    ("problem_type", "own", "labels", "reason"),
    [
        (
            "multi_label_classification", LABELS, LABELS[::-1],
            "its head is for labels of which several can be right at once (multi_label_classification), and the task "
            "is for labels that exclude each other",
        ),
        ("multi_label_classification", ["toxic"], ["score"], "(multi_label_classification), and the task is for numb"),
    ],
)  # fmt: skip
def test_a_teacher_trained_for_another_kind_of_problem_does_not_fit(
    problem_type: str, own: Sequence[str], labels: Sequence[str], reason: str, tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
) -> None:  # fmt: skip
    config = toy_bert(len(tokenizer)).config
    config.id2label, config.problem_type = dict(enumerate(own)), problem_type
    model = BertForSequenceClassification(config)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    start = Pretrained(name="toy", path=str(tmp_path)).load(AUTO_CLASS, labels, [])
    assert not start.fits
    assert reason in start.reason
    assert start.model.config.problem_type == ("regression" if len(labels) == 1 else "single_label_classification")
    order = [own.index(label) for label in labels] if len(own) > 1 else [0]
    assert torch.equal(start.model.classifier.weight, model.classifier.weight[order])  # A fine-tuning starts from it.


def test_reordering_needs_a_linear_head() -> None:
    model = toy_bert(50, layers=1)
    with pytest.raises(UserError, match="no linear head"):
        reorder_head(model, [2, 1, 0])


def test_a_local_path_must_be_a_model(tmp_path: Path, encoder_dir: Path) -> None:
    (tmp_path / "config.json").write_text((encoder_dir / "config.json").read_text())
    with pytest.raises(UserError, match="holds no weights"):
        Pretrained(name="toy", path=str(tmp_path)).locate()
    with pytest.raises(UserError, match="give teacher.path=DIR or teacher.id=NAME"):
        Pretrained(name="toy")


def write_model_cache(root: Path, name: str, source: Path) -> None:
    """Copies `source` into `root` as the Hub's client lays out a download."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = root / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in source.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)


def test_a_teacher_is_loaded_from_the_hub_cache_offline(
    tmp_path: Path, classifier_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model_cache(tmp_path / "hub", "owner/toy", classifier_dir)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    source = Pretrained(name="toy", id="owner/toy")
    assert source.load(AUTO_CLASS, LABELS, []).fits
    assert source.resolved() == "owner/toy"
    assert source.fingerprint() == Pretrained(name="toy", path=str(classifier_dir)).fingerprint()


def test_missing_weights_are_reported_with_three_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UnreachableError, match=r"teacher.path=DIR .* \(hf download owner/toy\), or .* \+teacher=embed"):
        Pretrained(name="toy", id="owner/toy").locate()


def test_a_fingerprint_depends_on_the_weights_and_not_on_the_name(classifier_dir: Path) -> None:
    before = Pretrained(name="toy", path=str(classifier_dir)).fingerprint()
    assert before == Pretrained(name="other name", path=str(classifier_dir)).fingerprint()
    toy_bert(300, seed=1).save_pretrained(classifier_dir)
    assert before != Pretrained(name="toy", path=str(classifier_dir)).fingerprint()


def test_the_embedded_teacher_depends_on_every_file_of_its_tokenizer(tmp_path: Path) -> None:
    def fingerprint() -> str:
        return NewModel(tokenizer=str(tmp_path)).fingerprint()

    names = ("vocab.txt", "tokenizer.json", "merges.txt", "spiece.model")
    for name in names:
        (tmp_path / name).write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfilm\n")
    before = {fingerprint()}
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert {fingerprint()} == before
    for number, name in enumerate(names, 2):
        (tmp_path / name).write_text("another")
        before.add(fingerprint())
        assert len(before) == number


def test_pieces_within_words_have_the_order_of_their_characters() -> None:
    """The trainer's own numbering follows a hash table that is seeded anew in every process."""
    texts = [f"{a}{b}{c} {c}{a}" for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwx"]
    vocabulary = train_word_pieces(texts, 120).get_vocab()
    first = sorted(vocabulary, key=lambda piece: vocabulary[piece])[: 5 + 24]
    assert first == [*SPECIAL_TOKENS, *(f"##{character}" for character in "abcdefghijklmnopqrstuvwx")]


def test_a_frozen_model_stays_in_evaluation_mode() -> None:
    model = freeze(toy_bert(50, layers=1).train())
    model.train()
    assert not model.training
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


class _Unreachable:
    name = "big"

    def locate(self) -> None:
        raise UnreachableError("far away")


def test_only_the_built_in_task_accepts_a_substitute(capsys: pytest.CaptureFixture[str]) -> None:
    stand_in = TeacherSource(NewModel(), None)
    requested = TeacherSource(_Unreachable(), None, substitute=lambda: stand_in)
    own = Classification(name="own", text=["text"], data_dir="somewhere")
    with pytest.raises(UnreachableError, match="far away"):
        locate(requested, own)
    builtin = Classification(name="docstrings", text=["sentence"], builtin=True)
    assert locate(requested, builtin) == replace(stand_in, stands_for="big")
    printed = capsys.readouterr().out
    assert "ANOTHER TEACHER TEACHES" in printed
    assert "Requested    big" in printed
    assert locate(stand_in, own) is stand_in


CODE = {
    "configuration_toy.py": """
from transformers import BertConfig

class ToyConfig(BertConfig):
    model_type = "toy_of_a_stranger"
""",
    "modeling_toy.py": """
from transformers import BertForSequenceClassification
from .configuration_toy import ToyConfig

class ToyForSequenceClassification(BertForSequenceClassification):
    config_class = ToyConfig
""",
}


@pytest.fixture
def foreign_dir(encoder_dir: Path, tmp_path: Path) -> Path:
    """An encoder whose class is in Python files beside the weights."""
    directory = tmp_path / "foreign"
    shutil.copytree(encoder_dir, directory)
    for name, code in CODE.items():
        (directory / name).write_text(code)
    config = json.loads((directory / "config.json").read_text())
    config |= {
        "model_type": "toy_of_a_stranger", "architectures": None,
        "auto_map": {
            "AutoConfig": "configuration_toy.ToyConfig",
            "AutoModelForSequenceClassification": "modeling_toy.ToyForSequenceClassification",
        },
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_fine_tuned_teacher_with_code_of_its_own_is_loaded_again(
    foreign_dir: Path, task: Classification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    weights = Pretrained(name="foreign", path=str(foreign_dir), trust_remote_code=True)
    source = TeacherSource(weights=weights, finetune=replace(SETTINGS, max_epochs=None, max_steps=1))
    short = Classification(name="toy", text=["sentence"], max_length=64, data_dir=task.rows.source.data_dir)
    for origin in ("fine-tuned", "kept"):
        teacher = prepare(source, short, tmp_path)
        assert teacher.origin == origin
        assert type(teacher.model).__name__ == "ToyForSequenceClassification"
    again = Loaded(teacher.model, teacher.tokenizer).load(AUTO_CLASS, short.read(tmp_path).labels, [])
    assert again.fits
    assert type(again.model).__name__ == "ToyForSequenceClassification"


def test_a_loaded_teacher_keeps_the_settings_of_its_tokenizer(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    changed = copy.deepcopy(tokenizer)
    changed.truncation_side, changed.model_input_names = "left", ["input_ids", "attention_mask"]
    weights = Loaded(teacher, changed)
    assert weights.fingerprint() != Loaded(teacher, tokenizer).fingerprint()
    loaded = weights.load(AUTO_CLASS, LABELS, []).tokenizer
    assert (loaded.truncation_side, loaded.model_input_names) == ("left", ["input_ids", "attention_mask"])
    text = "a lovely and moving film"
    assert loaded(text, truncation=True, max_length=5) == changed(text, truncation=True, max_length=5)
    assert changed.init_kwargs.get("truncation_side") is None


def test_a_fine_tuned_teacher_is_cached_by_everything_that_it_depends_on(
    encoder_dir: Path, task: Classification, splits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = Pretrained(name="toy", path=str(encoder_dir))

    def fingerprint(of: Any = task, data: Any = splits, **options: Any) -> str:
        return fingerprint_of(TeacherSource(weights, replace(SETTINGS, **options)), of, data, tmp_path)

    shorter = Classification(name="toy", text=["sentence"], max_length=32, data_dir=task.rows.source.data_dir)
    changes: list[dict[str, Any]] = [
        {}, {"ema": 0.9}, {"soup": 3}, {"patience": 2}, {"schedule": "cosine"}, {"of": shorter},
        {"data": replace(splits, sha256="other")},
    ]  # fmt: skip
    keys = [fingerprint(**change) for change in changes]
    assert fingerprint(checkpoint_steps=7) == keys[0]
    for module in (torch, transformers):
        major, minor, *_ = module.__version__.split(".")
        with monkeypatch.context() as patch:
            patch.setattr(module, "__version__", f"{major}.{minor}.99")
            assert fingerprint() == keys[0]
            patch.setattr(module, "__version__", f"{major}.{int(minor) + 1}.0")
            keys.append(fingerprint())
    assert len(set(keys)) == len(keys)


@pytest.fixture
def contrary(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Classification:
    """A task whose labels are the opposite of the toy teacher's predictions."""
    texts = [text for text, _ in sentences(64)]
    with torch.no_grad():
        predicted = teacher(**tokenizer(texts, padding=True, return_tensors="pt")).logits.argmax(dim=-1)
    rows = (texts, [LABELS[1 - index] for index in predicted.tolist()])
    return Classification(name="toy", text="text", max_length=64, train=rows, dev=rows)


def score_teacher(source: TeacherSource, task: Classification, directory: Path) -> PreparedTeacher:
    splits = task.read(directory)
    prepared: PreparedTeacher = prepare(source, task, directory, splits=splits)
    examples = task.encode(splits, prepared.tokenizer, None)
    teaching.score(prepared, task, splits.scoring, examples, source=source, directory=directory / "outputs")
    return prepared


def test_a_weak_teacher_is_refused_with_a_way_out(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, contrary: Classification, tmp_path: Path
) -> None:
    source = TeacherSource(weights=Loaded(teacher, tokenizer), finetune=None)
    expected = "teacher loaded is worse than a constant prediction on dev: accuracy 0.000 against 0."
    ways = (
        ": check that its labels mean the task's, give it more labels or dev more rows, or set "
        "teacher.accept_weak=true to learn from it all the same"
    )
    with pytest.raises(UserError, match=f"^{re.escape(expected)}.*{re.escape(ways)}$"):
        score_teacher(source, contrary, tmp_path)
    message = r"train it for longer \(teacher.finetune.max_epochs=N\), check that its labels"
    with pytest.raises(UserError, match=message):
        score_teacher(replace(source, finetune=SETTINGS), contrary, tmp_path)
    [notice] = score_teacher(replace(source, accept_weak=True), contrary, tmp_path).record()["notices"]
    assert notice.startswith(expected)
    with pytest.raises(UserError, match="got teacher.accept_weak=1, expected true or false"):
        replace(source, accept_weak=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [{"max_epochs": 3}, {"max_epochs": None, "max_steps": 12}], ids=["epochs", "steps"])
def test_a_teacher_whose_training_was_too_short_says_so_when_it_is_reused_too(
    length: dict[str, Any], encoder_dir: Path, task: Classification, splits: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    scores = iter([0.2, 0.4, 0.7])
    monkeypatch.setattr(OneClass, "metrics", lambda self, of_dev: {"accuracy": next(scores)})
    task = Classification(name="toy", text=["sentence"], max_length=64, data_dir=task.rows.source.data_dir)
    source = TeacherSource(Pretrained(name="toy", path=str(encoder_dir)), replace(SETTINGS, **length))
    expected = (
        "teacher toy: accuracy on dev was still improving at the end of its training, by 0.300 to 0.700 in the last "
        f"third: set teacher.finetune.{'max_steps=24' if 'max_steps' in length else 'max_epochs=6'} to train it for "
        "longer"
    )
    for origin in ("fine-tuned", "kept"):
        teacher = prepare(source, task, tmp_path, splits=splits)
        assert teacher.origin == origin
        assert teacher.record()["notices"] == [expected]
        assert expected in " ".join(capsys.readouterr().out.split())


def test_the_fine_tuning_is_chosen_from_data_and_teacher(encoder_dir: Path, task: Classification, splits: Any) -> None:
    """The toy encoder is 32 wide; 64 examples are 2 steps of an epoch."""
    pretrained = TeacherSource(Pretrained(name="toy", path=str(encoder_dir)), api.FINETUNE)
    source, chosen = teaching.choose_finetuning(pretrained, splits, task.info)
    assert source.finetune is not None
    assert (source.finetune.learning_rate, source.finetune.max_epochs, source.finetune.patience) == (1e-4, 40, 14)
    assert chosen["learning_rate"]["reason"] == "a whole pre-trained encoder of width 32 is fine-tuned"
    source, _ = teaching.choose_finetuning(replace(pretrained, weights=NewModel(hidden_size=1024)), splits, task.info)
    assert source.finetune is not None
    assert (source.finetune.learning_rate, source.finetune.patience) == (5e-4, None)  # Its layers are random.


def test_the_width_is_read_from_the_configuration(
    classifier_dir: Path, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    config = json.loads((classifier_dir / "config.json").read_text())
    weights = Pretrained(name="toy", path=str(classifier_dir))
    assert weights.width() == Loaded(teacher, tokenizer).width() == config["hidden_size"] == 32
    for other, width in (({"model_type": "distilbert", "dim": 48}, 48), (config | {"hidden_size": 1024}, 1024)):
        (classifier_dir / "config.json").write_text(json.dumps(other))
        assert weights.width() == width
    (classifier_dir / "config.json").write_text(json.dumps({"model_type": "resnet"}))
    with pytest.raises(UserError, match=r"has hidden_size=None, expected the size of the hidden states of an encoder"):
        weights.width()
    (classifier_dir / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    with pytest.raises(UserError, match=r"classifier cannot be loaded: "):
        weights.width()
