"""Are a teacher's outputs kept once, whole, and used as if the teacher had been asked?"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill import answers, batches, data, fitting
from distill.answers import Answers, ask_once
from distill.batches import Examples
from distill.errors import NumericalError, UserError
from distill.finetune import Teacher
from distill.losses import Cosine, HardLabels, Objective, SoftTargets
from distill.module import DistillationModule, run_model
from distill.tasks import SequenceTask
from students.distilbert import from_teacher
from teachers import cache
from teachers.cache import OutputCache
from teachers.embedded import train_tokenizer
from tests.conftest import at_once, sentences, toy_bert

TASK = SequenceTask(name="toy", text=["sentence"])
Asking = Callable[..., Answers]


@pytest.fixture
def examples(tokenizer: PreTrainedTokenizerBase) -> Examples:
    texts, labels = zip(*sentences(40), strict=True)
    return Examples(data.Split(list(texts), None, np.array(labels)), TASK, tokenizer)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch, examples: Examples) -> int:
    """Parts of a fifth of the tokens; returns how many there are."""
    monkeypatch.setattr(cache, "SHARD_TOKENS", int(examples.lengths.sum()) // 5 + 1)
    return 5


@pytest.fixture
def ask(teacher: PreTrainedModel, examples: Examples, tmp_path: Path) -> Asking:
    def asking(*, hidden: bool = False, model: Any = None, fingerprint: str = "one", **options: Any) -> Answers:
        return ask_once(
            model or (lambda: teacher), examples, cache=OutputCache(hidden=hidden, **options), directory=tmp_path,
            fingerprint=fingerprint, hidden_size=32 if hidden else None,
        )  # fmt: skip

    return asking


def nobody() -> PreTrainedModel:
    raise AssertionError("the teacher was loaded")


@pytest.mark.parametrize("hidden", [False, True])
def test_kept_outputs_are_what_the_teacher_says(
    ask: Asking, teacher: PreTrainedModel, examples: Examples, small_parts: int, hidden: bool
):
    first = ask(hidden=hidden)
    assert first.seconds > 0
    again = ask(hidden=hidden, model=nobody)
    assert (again.seconds, again.record()["hit"], first.record()["hit"]) == (0, True, False)
    assert len(list(again.kept.directory.iterdir())) == small_parts
    assert again.record()["bytes"] == sum(path.stat().st_size for path in again.kept.directory.iterdir())
    batch = examples[[39, 0, 17, 3]]
    with torch.no_grad():
        expected = run_model(teacher, batch, frozenset({"hidden_states"}))
    found = again.kept.outputs(batch)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert (found.hidden_states is not None) is hidden
    if hidden:
        tokens = batch["attention_mask"].bool()
        states, wanted = found.hidden_states[-1], expected.hidden_states[-1]
        assert (states.shape, states.dtype) == (wanted.shape, torch.float32)
        torch.testing.assert_close(states[tokens], wanted[tokens], atol=2e-3, rtol=2e-3)  # float16
        assert not states[~tokens].any()


def test_all_logits_come_in_the_order_of_the_split(
    ask: Asking, teacher: PreTrainedModel, examples: Examples, small_parts: int
):
    logits = ask().kept.logits()
    assert logits.shape == (40, 2)
    for index in (0, 11, 39):
        with torch.no_grad():
            expected = run_model(teacher, examples[[index]]).logits[0]
        np.testing.assert_allclose(logits[index], expected.numpy(), atol=1e-5)


def test_every_teacher_text_and_precision_has_its_own(ask: Asking, examples: Examples):
    directories = {ask().kept.directory, ask(fingerprint="two").kept.directory, ask(hidden=True).kept.directory}
    examples.digest = "other texts"
    directories.add(ask().kept.directory)
    assert len(directories) == 4


def test_an_interrupted_pass_goes_on_where_it_stopped(ask: Asking, small_parts: int, monkeypatch: pytest.MonkeyPatch):
    original, asked = answers._ask, []

    def counted(*arguments: Any, **options: Any) -> Any:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(arguments[2])
        return original(*arguments, **options)

    monkeypatch.setattr(answers, "_ask", counted)
    with pytest.raises(KeyboardInterrupt):
        ask()
    monkeypatch.setattr(answers, "_ask", lambda *a, **o: asked.append(a[2]) or original(*a, **o))
    resumed = ask().kept
    assert len(asked) == small_parts
    assert asked == sorted(set(asked))  # No part twice.
    monkeypatch.setattr(answers, "_ask", original)
    np.testing.assert_array_equal(resumed.logits(), ask(fingerprint="at once").kept.logits())


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "of another split"])
def test_a_damaged_part_is_noticed_and_made_again(
    ask: Asking, small_parts: int, damage: str, capsys: pytest.CaptureFixture[str]
):
    kept = ask().kept
    before = kept.logits()
    files = sorted(kept.directory.iterdir())
    content = bytearray(files[2].read_bytes())
    if damage == "changed":
        content[-1] ^= 1
    new = {"truncated": content[:-9], "empty": b"", "changed": content, "of another split": files[0].read_bytes()}
    files[2].write_bytes(new[damage])
    again = ask()
    assert "is damaged: the teacher is asked again" in capsys.readouterr().out
    assert again.seconds > 0
    np.testing.assert_array_equal(again.kept.logits(), before)
    assert ask(model=nobody).seconds == 0


def _pass(directory: Path, barrier: Any, results: Any) -> None:
    tokenizer = train_tokenizer([text for text, _ in sentences(64)], 300)
    texts, labels = zip(*sentences(40), strict=True)
    examples = Examples(data.Split(list(texts), None, np.array(labels)), TASK, tokenizer)
    cache.SHARD_TOKENS = 60
    torch.set_num_threads(1)
    teacher = toy_bert(len(tokenizer)).eval()
    barrier.wait()
    found = ask_once(lambda: teacher, examples, cache=OutputCache(), directory=directory, fingerprint="")
    results.put((found.kept.logits().tobytes(), len(found.kept.missing()), len(found.kept.damaged)))


def test_processes_that_start_at_once_do_not_disturb_each_other(tmp_path: Path):
    found = at_once(_pass, tmp_path)
    assert len(set(found)) == 1
    assert found[0][1:] == (0, 0)
    [directory] = tmp_path.iterdir()
    assert {path.suffix for path in directory.iterdir()} == {".safetensors"}  # Nothing half written is left.


def test_a_teacher_of_another_precision_is_another_teacher(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
):
    def made(**other: Any) -> Teacher:
        values = {"precision": "float32", "weights": "abc", **other}
        return Teacher(
            requested="", resolved="", substituted=False, origin="", tokenizer=tokenizer, load=lambda: teacher,
            device=torch.device("cpu"), seconds=0.0, **values,
        )  # fmt: skip

    assert len({made().fingerprint, made(precision="bfloat16").fingerprint, made(weights="abd").fingerprint}) == 3
    assert made().answering() is teacher
    rounded = made(precision="bfloat16")
    assert rounded.answering().dtype == torch.bfloat16
    assert rounded.answering() is rounded.answering()
    assert rounded.model.dtype == torch.float32  # What a student is copied from, and what is timed and exported.


@pytest.mark.parametrize(
    ("number", "hidden", "expected"),
    [(float("nan"), False, NumericalError), (float("inf"), False, NumericalError), (1e6, True, UserError)],
)
def test_what_cannot_be_kept_is_said(
    ask: Asking, teacher: PreTrainedModel, number: float, hidden: bool, expected: type[Exception], tmp_path: Path
):
    layer = teacher.bert.encoder.layer[-1].output.LayerNorm if hidden else teacher.classifier
    with torch.no_grad():
        layer.bias.fill_(number)
    with pytest.raises(expected, match="hidden states pass 65,504" if hidden else "logits are not finite"):
        ask(hidden=hidden)
    assert not list(tmp_path.rglob("*.safetensors"))


# When they are kept


NOTHING: dict[str, list[str]] = {}
HIDDEN = {"hidden_states": ["cosine"]}


@pytest.mark.parametrize(
    ("options", "needs", "fixed", "expected"),
    [
        ({}, NOTHING, True, None),
        ({"hidden": True}, HIDDEN, True, None),
        ({"enabled": True}, NOTHING, True, None),
        ({"enabled": False}, NOTHING, True, "teacher.cache.enabled=false"),
        ({}, NOTHING, False, "the inputs change every epoch"),
        ({}, HIDDEN, True, "cosine reads hidden states: teacher.cache.hidden=true keeps those too, 1.50 GB of disk"),
        ({"hidden": True}, {"attentions": ["maps"]}, True, "maps reads attentions, which are never kept"),
    ],
)
def test_outputs_are_kept_where_they_serve(options: Any, needs: Any, fixed: bool, expected: str | None):
    assert OutputCache(**options).obstacle(needs, fixed_inputs=fixed, hidden_gb=1.5) == expected


def test_who_insists_is_told_why_not():
    with pytest.raises(UserError, match="teacher.cache.enabled=true cannot be: the inputs change every epoch"):
        OutputCache(enabled=True).obstacle({}, fixed_inputs=False, hidden_gb=1)


def test_no_more_is_kept_than_allowed(ask: Asking, examples: Examples, tmp_path: Path):
    needed = (int(examples.lengths.sum()) * 2 * 32 + 40 * 2 * 4) / 1e6
    with pytest.raises(UserError) as caught:
        ask(hidden=True, max_gb=1e-6)
    assert str(caught.value) == (
        f"the teacher's outputs would take {needed:.1f} MB, more than teacher.cache.max_gb=1e-06: raise it, or set "
        "teacher.cache.hidden=false"
    )
    assert not list(tmp_path.iterdir())  # Refused before anything was written.


def test_the_size_is_announced(ask: Asking, capsys: pytest.CaptureFixture[str]):
    ask(hidden=True)
    assert "answers 40 examples once, 0.0 MB in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enabled": 0}, "teacher.cache.enabled=0 is unknown, expected auto, true or false"),
        ({"enabled": "maybe"}, "teacher.cache.enabled=maybe is unknown, expected auto, true or false"),
        ({"max_gb": 0}, "teacher.cache.max_gb=0 leaves no room, expected a number above 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        OutputCache(**options)


# A student taught from kept outputs


def test_kept_outputs_serve_a_training_in_bf16(ask: Asking, teacher: PreTrainedModel, examples: Examples):
    """Autocast would refuse to join their float16."""
    terms = {"soft": SoftTargets(), "cosine": Cosine()}
    losses = []
    for asked in (None, ask(hidden=True).kept):
        student = from_teacher(teacher)
        module = DistillationModule(
            student=student, objective=Objective(name="toy", terms=terms), task=TASK, kept=asked,
            teacher=None if asked else teacher,
        )  # fmt: skip
        student.eval()
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(module.losses(examples[[3, 17, 30]])[0].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("cosine", [0.0, 1.0])
def test_the_student_is_the_same_with_kept_outputs(
    tokenizer: PreTrainedTokenizerBase, examples: Examples, tmp_path: Path, cosine: float
):
    """Within 1e-5 for logits; hidden states are kept as float16, which moves the student by more."""
    found = []
    for kept in (False, True):
        teacher = toy_bert(len(tokenizer), spread=0.05).eval()
        hidden_size = 32 if cosine else None
        terms = {"soft": SoftTargets(), "hard": HardLabels(), "cosine": Cosine(weight=cosine)}
        settings = fitting.Settings(
            learning_rate=1e-3, batch_size=8, max_epochs=3, precision="32-true", accelerator="cpu"
        )
        loaders = batches.loaders({"train": examples, "dev": examples}, **settings.batches())
        cached = ask_once(
            lambda teacher=teacher: teacher, examples, cache=OutputCache(), directory=tmp_path / "outputs",
            fingerprint="", hidden_size=hidden_size,
        ).kept  # fmt: skip
        module = DistillationModule(
            student=from_teacher(teacher), objective=Objective(name="toy", terms=terms), task=TASK,
            teacher=None if kept else teacher, kept=cached if kept else None,
            **settings.optimization(len(loaders["train"])),
        )  # fmt: skip
        assert (module.teacher is None) is kept
        fitting.fit(
            module, loaders["train"], loaders["dev"], settings=settings, checkpoints=tmp_path / str(kept), logger=None,
            title="toy",
        )  # fmt: skip
        found.append(copy.deepcopy(module.student.state_dict()))
        assert (module.teacher_seconds == 0) is kept
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, atol=5e-3 if cosine else 1e-5, rtol=0)
