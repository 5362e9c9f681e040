"""Are a teacher's outputs cached once, whole, and the same as the teacher computes them?"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from distill.contracts import Outputs
from distill.data import batching
from distill.data.batching import TokenizedExamples
from distill.data.tables import LabelledData, Split
from distill.errors import NumericalError, UserError
from distill.losses import Cosine, HardLabels, Objective, SoftTargets
from distill.models.forward import run_model
from distill.tasks import Classification, MaskedLM
from distill.teaching import output_cache, outputs
from distill.teaching.output_cache import CachedOutputs, OutputCache
from distill.teaching.outputs import Computation, ComputedOutputs, cache_outputs
from distill.teaching.teacher import PreparedTeacher
from distill.teaching.top_k import TopKOutputs, take_top_k
from distill.text.masking import Masking
from distill.text.sequences import Sequences
from distill.training import fitting
from distill.training.module import DistillationModule
from distill.training.settings import TrainerSettings
from students.distilbert import from_teacher
from teachers.embedded import train_tokenizer
from tests.conftest import at_once, sentences, toy_bert

TASK = Classification(name="toy", text=["sentence"])
Compute = Callable[..., ComputedOutputs]


def tokenized(tokenizer: PreTrainedTokenizerBase) -> TokenizedExamples:
    texts, labels = zip(*sentences(40), strict=True)
    split = Split(list(texts), None, np.array(labels))
    data = LabelledData(labels=("bad", "good"), splits={"train": split, "dev": split}, sha256="")
    return TASK.encode(data, tokenizer, None)["train"]


@pytest.fixture
def examples(tokenizer: PreTrainedTokenizerBase) -> TokenizedExamples:
    return tokenized(tokenizer)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch, examples: TokenizedExamples) -> int:
    """Shards of a fifth of the tokens; returns their number."""
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", int(examples.lengths.sum()) // 5 + 1)
    return 5


@pytest.fixture
def compute(teacher: PreTrainedModel, examples: TokenizedExamples, tmp_path: Path) -> Compute:
    def computed(
        *, hidden: bool = False, model: Any = None, fingerprint: str = "one", **options: Any
    ) -> ComputedOutputs:
        cache = OutputCache(hidden=hidden, **options)
        computation = Computation(model or (lambda: teacher), fingerprint, TASK, cache, tmp_path)
        return cache_outputs(computation, examples, hidden_size=32 if hidden else None)

    return computed


def refuse() -> PreTrainedModel:
    raise AssertionError("the teacher was loaded")


@pytest.mark.parametrize("hidden", [False, True])
def test_cached_outputs_are_those_of_the_teacher(
    compute: Compute, teacher: PreTrainedModel, examples: TokenizedExamples, small_shards: int, hidden: bool
):
    first = compute(hidden=hidden)
    assert first.seconds > 0
    again = compute(hidden=hidden, model=refuse)
    assert (again.seconds, again.record()["hit"], first.record()["hit"]) == (0, True, False)
    assert len(list(again.outputs.directory.iterdir())) == small_shards
    assert again.record()["bytes"] == sum(path.stat().st_size for path in again.outputs.directory.iterdir())
    batch = examples[[39, 0, 17, 3]]
    with torch.no_grad():
        expected = run_model(teacher, batch, frozenset({"hidden_states"}))
    items = TASK.select(batch)
    cached = again.outputs(batch, items)
    logits, hidden_states = cached.at(items).logits, cached.whole().hidden_states
    torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert (hidden_states is not None) is hidden
    if hidden_states is not None:
        tokens = batch["attention_mask"].bool()
        states, wanted = hidden_states[-1], expected.hidden_states[-1]
        assert (states.shape, states.dtype) == (wanted.shape, torch.float32)
        torch.testing.assert_close(states[tokens], wanted[tokens], atol=2e-3, rtol=2e-3)  # float16
        assert not states[~tokens].any()


def test_all_logits_are_in_the_order_of_the_split(
    compute: Compute, teacher: PreTrainedModel, examples: TokenizedExamples, small_shards: int
):
    logits = compute().outputs.logits()
    assert logits.shape == (40, 2)
    for index in (0, 11, 39):
        with torch.no_grad():
            expected = run_model(teacher, examples[[index]]).logits[0]
        np.testing.assert_allclose(logits[index], expected.numpy(), atol=1e-5)


def test_every_teacher_text_and_precision_has_its_own_directory(compute: Compute, examples: TokenizedExamples):
    directories = {
        compute().outputs.directory,
        compute(fingerprint="two").outputs.directory,
        compute(hidden=True).outputs.directory,
    }
    examples.digest = "other texts"
    directories.add(compute().outputs.directory)
    assert len(directories) == 4


def test_an_interrupted_pass_resumes(compute: Compute, small_shards: int, monkeypatch: pytest.MonkeyPatch):
    original, computed = outputs._compute, []

    def counted(*arguments: Any, **options: Any) -> Any:
        if len(computed) == 2:
            raise KeyboardInterrupt
        computed.append(options["first"])
        return original(*arguments, **options)

    monkeypatch.setattr(outputs, "_compute", counted)
    with pytest.raises(KeyboardInterrupt):
        compute()
    monkeypatch.setattr(outputs, "_compute", lambda *a, **o: computed.append(o["first"]) or original(*a, **o))
    resumed = compute().outputs
    assert len(computed) == small_shards
    assert computed == sorted(set(computed))  # No part twice.
    monkeypatch.setattr(outputs, "_compute", original)
    np.testing.assert_array_equal(resumed.logits(), compute(fingerprint="at once").outputs.logits())


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "of another split"])
def test_a_damaged_shard_is_computed_again(
    compute: Compute, small_shards: int, damage: str, capsys: pytest.CaptureFixture[str]
):
    cached = compute().outputs
    before = cached.logits()
    files = sorted(cached.directory.iterdir())
    content = bytearray(files[2].read_bytes())
    if damage == "changed":
        content[-1] ^= 1
    new = {"truncated": content[:-9], "empty": b"", "changed": content, "of another split": files[0].read_bytes()}
    files[2].write_bytes(new[damage])
    again = compute()
    assert "is damaged: the teacher computes it again" in capsys.readouterr().out
    assert again.seconds > 0
    np.testing.assert_array_equal(again.outputs.logits(), before)
    assert compute(model=refuse).seconds == 0


def _pass(directory: Path, barrier: Any, results: Any) -> None:
    tokenizer = train_tokenizer([text for text, _ in sentences(64)], 300)
    examples = tokenized(tokenizer)
    output_cache.SHARD_TOKENS = 60
    torch.set_num_threads(1)
    teacher = toy_bert(len(tokenizer)).eval()
    barrier.wait()
    found = cache_outputs(Computation(lambda: teacher, "", TASK, OutputCache(), directory), examples)
    results.put((found.outputs.logits().tobytes(), len(found.outputs.missing()), len(found.outputs.damaged)))


def test_processes_that_start_at_once_do_not_disturb_each_other(tmp_path: Path):
    found = at_once(_pass, tmp_path)
    assert len(set(found)) == 1
    assert found[0][1:] == (0, 0)
    [directory] = tmp_path.iterdir()
    assert {path.suffix for path in directory.iterdir()} == {".safetensors"}  # Nothing half written is left.


def test_a_teacher_of_another_precision_is_another_teacher(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
):
    def made(**other: Any) -> PreparedTeacher:
        values = {"precision": "float32", "weights": "abc", **other}
        return PreparedTeacher(
            requested="", resolved="", substituted=False, origin="", tokenizer=tokenizer, load=lambda: teacher,
            device=torch.device("cpu"), seconds=0.0, **values,
        )  # fmt: skip

    assert len({made().fingerprint, made(precision="bfloat16").fingerprint, made(weights="abd").fingerprint}) == 3
    assert made().running() is teacher
    rounded = made(precision="bfloat16")
    assert rounded.running().dtype == torch.bfloat16
    assert rounded.running() is rounded.running()
    assert rounded.model.dtype == torch.float32  # What a student is copied from, and what is timed and exported.


@pytest.mark.parametrize(
    ("number", "hidden", "expected"),
    [(float("nan"), False, NumericalError), (float("inf"), False, NumericalError), (1e6, True, UserError)],
)
def test_outputs_that_cannot_be_cached_are_refused(
    compute: Compute, teacher: PreTrainedModel, number: float, hidden: bool, expected: type[Exception], tmp_path: Path
):
    layer = teacher.bert.encoder.layer[-1].output.LayerNorm if hidden else teacher.classifier
    with torch.no_grad():
        layer.bias.fill_(number)
    with pytest.raises(expected, match="hidden states pass 65,504" if hidden else "logits are not finite"):
        compute(hidden=hidden)
    assert not list(tmp_path.rglob("*.safetensors"))


# When outputs are cached


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
        ({}, HIDDEN, True, "cosine reads hidden states: teacher.cache.hidden=true caches those too, 1.50 GB of disk"),
        ({"hidden": True}, {"attentions": ["maps"]}, True, "maps reads attentions, which cannot be cached"),
    ],
)
def test_the_reason_why_outputs_are_not_cached(options: Any, needs: Any, fixed: bool, expected: str | None):
    assert OutputCache(**options).obstacle(needs, fixed_inputs=fixed, hidden_gb=1.5) == expected


def test_enabled_makes_the_reason_an_error():
    with pytest.raises(
        UserError,
        match=r"\(teacher.cache.enabled=true\): the inputs change every epoch; use auto or false",
    ):
        OutputCache(enabled=True).obstacle({}, fixed_inputs=False, hidden_gb=1)


def test_outputs_beyond_the_allowed_size_are_refused(compute: Compute, examples: TokenizedExamples, tmp_path: Path):
    needed = (int(examples.lengths.sum()) * 2 * 32 + 40 * 2 * 4) / 1e6
    with pytest.raises(UserError) as caught:
        compute(hidden=True, max_gb=1e-6)
    assert str(caught.value) == (
        f"the teacher's outputs would take {needed:.1f} MB, more than teacher.cache.max_gb=1e-06: raise it, or set "
        "teacher.cache.hidden=false"
    )
    assert not list(tmp_path.iterdir())  # Refused before anything was written.


def test_the_size_is_printed(compute: Compute, capsys: pytest.CaptureFixture[str]):
    compute(hidden=True)
    assert "computes the outputs for 40 examples once, 0.0 MB in" in capsys.readouterr().out


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


# A student that learns from cached outputs


def test_cached_outputs_serve_a_training_in_bf16(
    compute: Compute, teacher: PreTrainedModel, examples: TokenizedExamples
):
    """Autocast would refuse to join their float16."""
    terms = {"soft": SoftTargets(), "cosine": Cosine()}
    losses = []
    for cached in (None, compute(hidden=True).outputs):
        student = from_teacher(teacher)
        module = DistillationModule(
            student=student, objective=Objective(name="toy", terms=terms), task=TASK, cached_outputs=cached,
            teacher=None if cached else teacher,
        )  # fmt: skip
        student.eval()
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(module.losses(examples[[3, 17, 30]])[0].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("cosine", [0.0, 1.0])
def test_the_student_is_the_same_with_cached_outputs(
    tokenizer: PreTrainedTokenizerBase, examples: TokenizedExamples, tmp_path: Path, cosine: float
):
    """Within 1e-5 for logits; hidden states are cached as float16, which moves the student by more."""
    found = []
    for from_cache in (False, True):
        teacher = toy_bert(len(tokenizer), spread=0.05).eval()
        hidden_size = 32 if cosine else None
        terms = {"soft": SoftTargets(), "hard": HardLabels(), "cosine": Cosine(weight=cosine)}
        settings = TrainerSettings(
            learning_rate=1e-3, batch_size=8, max_epochs=3, precision="32-true", accelerator="cpu"
        )
        loaders = batching.all_loaders({"train": examples, "dev": examples}, **settings.batches())
        computation = Computation(lambda teacher=teacher: teacher, "", TASK, OutputCache(), tmp_path / "outputs")
        cached = cache_outputs(computation, examples, hidden_size=hidden_size).outputs
        module = DistillationModule(
            student=from_teacher(teacher), objective=Objective(name="toy", terms=terms), task=TASK,
            teacher=None if from_cache else teacher, cached_outputs=cached if from_cache else None,
            **settings.optimization(len(loaders["train"])),
        )  # fmt: skip
        assert (module.teacher is None) is from_cache
        fitting.fit(
            module, loaders["train"], loaders["dev"], settings=settings, checkpoints=tmp_path / str(from_cache),
            logger=None, title="toy",
        )  # fmt: skip
        found.append(copy.deepcopy(module.student.state_dict()))
        assert (module.teacher_seconds == 0) is from_cache
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, atol=5e-3 if cosine else 1e-5, rtol=0)


# A vocabulary

TEXT = MaskedLM(masking="static", masks=2, max_length=32)


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
    encoded = task.encode(task.read(root / "cache"), tokenizer, root / "cache")["train"]
    assert isinstance(encoded, Sequences)
    return encoded


@pytest.fixture(scope="module")
def language_model(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return BertForMaskedLM(toy_bert(len(tokenizer)).config).eval()


def cached_of(
    masked: Sequences, model: PreTrainedModel, directory: Path, *, top_k: int, hidden: bool = False, epochs: int = 2
) -> CachedOutputs:
    computation = Computation(lambda: model, "one", TEXT, OutputCache(top_k=top_k), directory)
    return cache_outputs(computation, masked, hidden_size=32 if hidden else None, epochs=epochs).outputs


def exact_logits(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """All logits at the masked tokens `[n, V]`."""
    items = TEXT.select(batch)
    logits = TEXT.run(model, batch, items, frozenset()).at(items).logits
    assert logits is not None
    return logits


def cached_logits(cached: CachedOutputs, batch: dict[str, Tensor]) -> TopKOutputs:
    items = TEXT.select(batch)
    found = cached(batch, items).at(items)
    assert isinstance(found, TopKOutputs)
    return found


def soft_loss(student: PreTrainedModel, teacher_output: Any, batch: dict[str, Tensor], temperature: float) -> float:
    student_output = Outputs(logits=exact_logits(student, batch))
    total, count = SoftTargets(temperature=temperature)(student_output, teacher_output, TEXT.select(batch))
    return float(total / count)


def test_all_logits_of_a_vocabulary_are_cached_up_to_a_constant(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path
) -> None:
    cached = cached_of(masked, language_model, tmp_path, top_k=10_000, hidden=True)
    for batch in (masked[[3, 0]], masked[[len(masked) + 3]]):  # The second one is of the second mask.
        with torch.no_grad():
            expected = exact_logits(language_model, batch).log_softmax(dim=-1)
            states = run_model(language_model, batch, frozenset({"hidden_states"})).hidden_states[-1]
        hidden_states = cached(batch, TEXT.select(batch)).whole().hidden_states
        assert hidden_states is not None
        torch.testing.assert_close(cached_logits(cached, batch).logits, expected, atol=1e-2, rtol=1e-3)  # Of float16.
        torch.testing.assert_close(hidden_states[-1], states, atol=5e-3, rtol=1e-3)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
def test_the_error_of_the_largest_logits_shrinks_with_their_number(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path, temperature: float
) -> None:
    student, batch = from_teacher(language_model).eval(), masked[[1, 2]]
    with torch.no_grad():
        exact = soft_loss(student, Outputs(logits=exact_logits(language_model, batch)), batch, temperature)
        losses = []
        for k in (1, 8, 64, 10_000):
            largest = cached_logits(cached_of(masked, language_model, tmp_path / str(k), top_k=k), batch)
            losses.append(soft_loss(student, largest, batch, temperature))
    errors = [abs(loss - exact) / exact for loss in losses]
    assert errors[3] < 2e-3
    assert errors[0] > errors[2] > errors[3] / 2
    assert errors[2] < 0.02


@torch.no_grad()
def everything(masked: Sequences, model: PreTrainedModel) -> Tensor:
    """Logits at the masked tokens of all sequences, with both masks."""
    return torch.cat([exact_logits(model, masked[[i]]) for i in range(2 * len(masked))])


def test_the_rest_of_the_probability_is_spread_over_the_other_tokens(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path
) -> None:
    cached = cached_of(masked, language_model, tmp_path, top_k=3)
    batch = masked[[0]]
    logits = cached_logits(cached, batch).logits
    torch.testing.assert_close(logits.exp().sum(dim=-1), torch.ones(len(logits)), atol=2e-3, rtol=0)
    with torch.no_grad():
        exact = exact_logits(language_model, batch).log_softmax(dim=-1)
    assert torch.equal(logits.argmax(dim=-1), exact.argmax(dim=-1))
    # The others follow the mean over all tokens, up to a constant.
    profile = torch.stack([row.log_softmax(dim=-1).mean(dim=0) for row in (everything(masked, language_model),)])[0]
    for row, known in zip(logits, exact.topk(3).indices, strict=True):
        others = torch.ones(len(row), dtype=torch.bool).scatter_(0, known, False)
        difference = (row - profile)[others]
        assert difference.max() - difference.min() < 0.02  # Of float16.
    mass = everything(masked, language_model).softmax(dim=-1).topk(3).values.sum(dim=-1)
    assert cached.mass() == pytest.approx(float(mass.mean()), abs=1e-3)


@pytest.mark.parametrize("temperature", [0.25, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 8.0, 50.0])
def test_the_mass_of_the_other_tokens_is_right_at_every_temperature(temperature: float) -> None:
    """However uneven they are: here, as in language, the probability falls with the rank."""
    torch.manual_seed(0)
    logits = -1.5 * torch.arange(1.0, 5001.0).log()[torch.stack([torch.randperm(5000) for _ in range(3)])]
    columns = take_top_k(logits.log_softmax(dim=-1), 20)
    with torch.autocast("cpu", torch.bfloat16):  # As in a training.
        found = TopKOutputs(columns, torch.randn(5000)).logits_at(temperature)
    softened, exact = (values.div(temperature).softmax(dim=-1) for values in (found, logits))
    mass = [probabilities.gather(-1, columns["ids"].long()).sum(dim=-1) for probabilities in (softened, exact)]
    torch.testing.assert_close(mass[0], mass[1], atol=5e-3, rtol=0)


def test_only_the_masks_of_the_planned_epochs_are_computed(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", 200)
    computed: list[int] = []
    original = outputs._compute
    monkeypatch.setattr(outputs, "_compute", lambda *a, **o: computed.append(o["first"]) or original(*a, **o))
    cached_of(masked, language_model, tmp_path, top_k=4, epochs=1)
    assert computed
    assert max(computed) < len(masked)
    first = len(computed)
    cached_of(masked, language_model, tmp_path, top_k=4, epochs=5)
    assert min(computed[first:]) >= computed[first - 1]  # The first mask's are there.
    assert cached_of(masked, language_model, tmp_path, top_k=4).missing() == []


def test_with_a_term_over_all_tokens_the_teacher_runs_in_every_step() -> None:
    objective = Objective(name="all", terms={"soft": SoftTargets(positions="all")})
    task = MaskedLM(name="text", mask=Masking(), masking="static")
    reason = outputs._obstacle(OutputCache(), objective, task, hidden_gb=0.0)
    assert reason == "soft reads all logits, and only the largest at the masked tokens are cached"
