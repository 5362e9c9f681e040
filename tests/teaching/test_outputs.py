"""Are a teacher's outputs kept once, whole, and used as if the teacher had been asked?"""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from distill.teaching.finetune import Teacher
from transformers import BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from distill.data import batching, tables
from distill.data.batching import Examples
from distill.errors import NumericalError, UserError
from distill.losses import Cosine, HardLabels, Objective, SoftTargets
from distill.models.chunked_logits import logits_at_items
from distill.models.forward import run_model
from distill.tasks import Classification, MaskedLM
from distill.teaching import output_cache, outputs
from distill.teaching.output_cache import OutputCache, TopKOutputs
from distill.teaching.outputs import ComputedOutputs, cache_outputs
from distill.text.masking import Masking
from distill.text.sequences import Sequences
from distill.text.sequences import read as read_sequences
from distill.training import fitting
from distill.training.module import DistillationModule
from distill.training.settings import TrainerSettings
from students.distilbert import from_teacher
from teachers.embedded import train_tokenizer
from tests.conftest import at_once, sentences, toy_bert

TASK = Classification(name="toy", text=["sentence"])
Asking = Callable[..., ComputedOutputs]


@pytest.fixture
def examples(tokenizer: PreTrainedTokenizerBase) -> Examples:
    texts, labels = zip(*sentences(40), strict=True)
    return Examples(tables.Split(list(texts), None, np.array(labels)), TASK, tokenizer)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch, examples: Examples) -> int:
    """Parts of a fifth of the tokens; returns how many there are."""
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", int(examples.lengths.sum()) // 5 + 1)
    return 5


@pytest.fixture
def ask(teacher: PreTrainedModel, examples: Examples, tmp_path: Path) -> Asking:
    def asking(*, hidden: bool = False, model: Any = None, fingerprint: str = "one", **options: Any) -> ComputedOutputs:
        return cache_outputs(
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
    original, asked = outputs._ask, []

    def counted(*arguments: Any, **options: Any) -> Any:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(options["first"])
        return original(*arguments, **options)

    monkeypatch.setattr(outputs, "_ask", counted)
    with pytest.raises(KeyboardInterrupt):
        ask()
    monkeypatch.setattr(outputs, "_ask", lambda *a, **o: asked.append(o["first"]) or original(*a, **o))
    resumed = ask().kept
    assert len(asked) == small_parts
    assert asked == sorted(set(asked))  # No part twice.
    monkeypatch.setattr(outputs, "_ask", original)
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
    examples = Examples(tables.Split(list(texts), None, np.array(labels)), TASK, tokenizer)
    output_cache.SHARD_TOKENS = 60
    torch.set_num_threads(1)
    teacher = toy_bert(len(tokenizer)).eval()
    barrier.wait()
    found = cache_outputs(lambda: teacher, examples, cache=OutputCache(), directory=directory, fingerprint="")
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
        ({"enabled": 0}, "got enabled=0, expected auto, true or false"),
        ({"enabled": "maybe"}, "got enabled=maybe, expected auto, true or false"),
        ({"max_gb": 0}, "got max_gb=0, expected a number above 0"),
        ({"top_k": True}, "got top_k=true, expected a whole number of at least 1"),
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
        settings = TrainerSettings(
            learning_rate=1e-3, batch_size=8, max_epochs=3, precision="32-true", accelerator="cpu"
        )
        loaders = batching.all_loaders({"train": examples, "dev": examples}, **settings.batches())
        cached = cache_outputs(
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


# A vocabulary


@pytest.fixture(scope="module")
def masked(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Sequences:
    """Packed sequences with two fixed masks each."""
    root = tmp_path_factory.mktemp("text")
    for number in range(20):
        text = "\n".join(f"{sentence} ." for sentence, _ in sentences(12 + number))
        (root / f"{number}.txt").write_text(text, encoding="utf-8")
    task = MaskedLM(
        name="text", mask=Masking(), data_dir=str(root), max_length=32, masking="static", masks=2, dev_fraction=0.2
    )
    return read_sequences(task, tokenizer, cache_dir=root / "cache")[0]["train"]


@pytest.fixture(scope="module")
def language_model(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return BertForMaskedLM(toy_bert(len(tokenizer)).config).eval()


def kept_of(
    masked: Sequences, model: PreTrainedModel, directory: Path, *, top_k: int, hidden: bool = False, epochs: int = 2
) -> Any:
    return cache_outputs(
        lambda: model, masked, cache=OutputCache(top_k=top_k), directory=directory, fingerprint="one", epochs=epochs,
        vocabulary=model.config.vocab_size, hidden_size=32 if hidden else None,
    ).kept  # fmt: skip


def soft_loss(student: PreTrainedModel, outputs: Any, batch: dict[str, torch.Tensor], temperature: float) -> float:
    rows = {"items": torch.ones(1, outputs.logits.shape[1], dtype=torch.bool), "labels": batch["labels"]}
    said = SimpleNamespace(logits=logits_at_items(student, batch).unsqueeze(0))
    total, _ = SoftTargets(temperature=temperature)(said, outputs, rows)
    return float(total) / outputs.logits.shape[1]


def test_all_logits_of_a_vocabulary_are_kept_up_to_a_constant(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path
) -> None:
    kept = kept_of(masked, language_model, tmp_path, top_k=10_000, hidden=True)
    for batch in (masked[[3, 0]], masked[[len(masked) + 3]]):  # The second one is of the second mask.
        with torch.no_grad():
            expected = logits_at_items(language_model, batch).log_softmax(dim=-1)
            states = run_model(language_model, batch, frozenset({"hidden_states"})).hidden_states[-1]
        outputs = kept.outputs(batch)
        torch.testing.assert_close(outputs.logits[0], expected, atol=1e-2, rtol=1e-3)  # Of float16.
        torch.testing.assert_close(outputs.hidden_states[-1], states, atol=5e-3, rtol=1e-3)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
def test_the_error_of_the_largest_logits_shrinks_with_their_number(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path, temperature: float
) -> None:
    student, batch = from_teacher(language_model).eval(), masked[[1, 2]]
    with torch.no_grad():
        whole = SimpleNamespace(logits=logits_at_items(language_model, batch).unsqueeze(0))
        exact = soft_loss(student, whole, batch, temperature)
        losses = {
            k: soft_loss(student, kept_of(masked, language_model, tmp_path / str(k), top_k=k).outputs(batch), batch,
                         temperature)
            for k in (1, 8, 64, 10_000)
        }  # fmt: skip
    errors = [abs(loss - exact) / exact for loss in losses.values()]
    assert errors[3] < 2e-3
    assert errors[0] > errors[2] > errors[3] / 2
    assert errors[2] < 0.02


@torch.no_grad()
def everything(masked: Sequences, model: PreTrainedModel) -> torch.Tensor:
    """Logits at the masked tokens of all sequences, with both masks."""
    return torch.cat([logits_at_items(model, masked[[i]]) for i in range(2 * len(masked))])


def test_what_is_left_of_the_probability_is_spread_over_the_others(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path
) -> None:
    kept = kept_of(masked, language_model, tmp_path, top_k=3)
    batch = masked[[0]]
    logits = kept.outputs(batch).logits[0]
    torch.testing.assert_close(logits.exp().sum(dim=-1), torch.ones(len(logits)), atol=2e-3, rtol=0)
    with torch.no_grad():
        exact = logits_at_items(language_model, batch).log_softmax(dim=-1)
    assert torch.equal(logits.argmax(dim=-1), exact.argmax(dim=-1))
    # The others follow the mean over all tokens, up to a constant.
    profile = torch.stack([row.log_softmax(dim=-1).mean(dim=0) for row in (everything(masked, language_model),)])[0]
    for row, known in zip(logits, exact.topk(3).indices, strict=True):
        others = torch.ones(len(row), dtype=torch.bool).scatter_(0, known, False)
        difference = (row - profile)[others]
        assert difference.max() - difference.min() < 0.02  # Of float16.
    mass = everything(masked, language_model).softmax(dim=-1).topk(3).values.sum(dim=-1)
    assert kept.mass() == pytest.approx(float(mass.mean()), abs=1e-3)


@pytest.mark.parametrize("temperature", [0.25, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 8.0, 50.0])
def test_the_others_have_what_they_had_at_every_temperature(temperature: float) -> None:
    """However uneven they are: here, as in language, the probability falls with the rank."""
    torch.manual_seed(0)
    logits = -1.5 * torch.arange(1.0, 5001.0).log()[torch.stack([torch.randperm(5000) for _ in range(3)])]
    said = OutputCache(top_k=20).shortened(logits.log_softmax(dim=-1))
    with torch.autocast("cpu", torch.bfloat16):  # As in a training.
        found = TopKOutputs(**said, profile=torch.randn(5000)).logits_at(temperature)[0]
    softened, exact = (values.div(temperature).softmax(dim=-1) for values in (found, logits))
    kept = [probabilities.gather(-1, said["ids"].long()).sum(dim=-1) for probabilities in (softened, exact)]
    torch.testing.assert_close(kept[0], kept[1], atol=5e-3, rtol=0)


def test_only_the_masks_of_the_epochs_to_come_are_asked_about(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", 200)
    asked: list[int] = []
    original = outputs._ask
    monkeypatch.setattr(outputs, "_ask", lambda *a, **o: asked.append(o["first"]) or original(*a, **o))
    kept_of(masked, language_model, tmp_path, top_k=4, epochs=1)
    assert asked
    assert max(asked) < len(masked)
    first = len(asked)
    kept_of(masked, language_model, tmp_path, top_k=4, epochs=5)
    assert min(asked[first:]) >= asked[first - 1]  # The first mask's are there.
    assert kept_of(masked, language_model, tmp_path, top_k=4).missing() == []


def test_terms_over_all_tokens_have_the_teacher_asked_in_every_step() -> None:
    objective = Objective(name="all", terms={"soft": SoftTargets(positions="all")})
    task = MaskedLM(name="text", mask=Masking(), masking="static")
    why = outputs._why_not_kept(OutputCache(), objective, task, hidden_gb=0.0)
    assert why == "soft wants all logits, and the largest at the masked tokens are kept"
