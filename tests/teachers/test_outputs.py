"""Tests that a teacher's outputs are cached once, completely, and equal to the computed ones."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from distill.builtin.teachers.vocabulary import train_word_pieces
from torch import Tensor
from transformers import BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Outputs
from distill.core.errors import NumericalError, UserError
from distill.core.storage import LEASE
from distill.data import batches
from distill.data.batches import TokenizedExamples
from distill.data.splits import LabelledData, text_split
from distill.kinds import Classification, MaskedLM
from distill.kinds.classification import OneClass
from distill.losses import Cosine, HardLabels, Objective, SoftTargets
from distill.losses.term import get_logits
from distill.models import decoding
from distill.models.forward import run_model
from distill.teachers import computation as module
from distill.teachers import output_cache, signal
from distill.teachers import output_cache as top_k_module
from distill.teachers.computation import Computation, cache_outputs
from distill.teachers.output_cache import Cached, HiddenLayers, OutputCache, TopK, restore_logits, take_top_k
from distill.teachers.prepared import PreparedTeacher
from distill.text.masking import Masking
from distill.text.sequences import Sequences
from distill.training import fitting
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import DistillationModule
from tests.conftest import live, run_concurrently, sentences, stored_logits, toy_bert

TASK = Classification(name="toy", text=["sentence"])
SCORING = OneClass(("accuracy",))
LAST = HiddenLayers(width=32, depth=4, layers=(4,))  # Of the toy teacher.
Compute = Callable[..., Cached]


def tokenize_sentences(tokenizer: PreTrainedTokenizerBase) -> TokenizedExamples:
    texts, labels = zip(*sentences(40), strict=True)
    split = text_split(list(texts), labels=np.array(labels))
    data = LabelledData(labels=("bad", "good"), splits={"train": split, "dev": split}, sha256="", scoring=SCORING)
    return TASK.encode(data, tokenizer, None)["train"]


@pytest.fixture
def examples(tokenizer: PreTrainedTokenizerBase) -> TokenizedExamples:
    return tokenize_sentences(tokenizer)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch, examples: TokenizedExamples) -> int:
    """Sets the shards to a fifth of the tokens; returns their number."""
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", int(examples.lengths.sum()) // 5 + 1)
    return 5


@pytest.fixture
def compute(teacher: PreTrainedModel, examples: TokenizedExamples, tmp_path: Path) -> Compute:
    def compute_outputs(*, hidden: bool = False, model: Any = None, fingerprint: str = "one", **options: Any) -> Cached:
        cache = OutputCache(hidden=hidden, **options)
        computation = Computation(model or (lambda: teacher), fingerprint, TASK, cache, tmp_path)
        return cache_outputs(computation, examples, hidden=LAST if hidden else None)

    return compute_outputs


def fail_to_load() -> PreTrainedModel:
    raise AssertionError("the teacher was loaded")


@pytest.mark.parametrize("hidden", [False, True])
def test_cached_outputs_equal_those_of_the_teacher(
    compute: Compute, teacher: PreTrainedModel, examples: TokenizedExamples, small_shards: int, hidden: bool
):
    first = compute(hidden=hidden)
    assert first.seconds > 0
    again = compute(hidden=hidden, model=fail_to_load)
    assert (again.seconds, again.reason) == (0, None)
    assert len(list(again.directory.glob("*.safetensors"))) == small_shards
    assert again.bytes == sum(path.stat().st_size for path in again.directory.iterdir())
    batch = examples[[39, 0, 17, 3]]
    with torch.no_grad():
        expected = run_model(teacher, batch, frozenset({"hidden_states"}))
    items = TASK.select(batch)
    cached = again(batch, items)
    logits, hidden_states = cached.at(items).logits, cached.whole().hidden_states
    torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert (hidden_states is not None) is hidden
    if hidden_states is not None:
        tokens = batch["attention_mask"].bool()
        states, expected_states = hidden_states[-1], expected.hidden_states[-1]
        assert (states.shape, states.dtype) == (expected_states.shape, torch.float32)
        torch.testing.assert_close(states[tokens], expected_states[tokens], atol=2e-3, rtol=2e-3)  # float16
        assert not states[~tokens].any()


def test_fingerprint_hidden_states_and_data_each_select_a_directory(compute: Compute, examples: TokenizedExamples):
    directories = {
        compute().directory,
        compute(fingerprint="two").directory,
        compute(hidden=True).directory,
    }
    examples.digest = "other texts"
    directories.add(compute().directory)
    assert len(directories) == 4


def test_an_interrupted_pass_resumes(compute: Compute, small_shards: int, monkeypatch: pytest.MonkeyPatch):
    original, computed = module._compute, []

    def count_and_interrupt(*arguments: Any, **options: Any) -> Any:
        if len(computed) == 2:
            raise KeyboardInterrupt
        computed.append(options["first"])
        return original(*arguments, **options)

    monkeypatch.setattr(module, "_compute", count_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        compute()
    monkeypatch.setattr(module, "_compute", lambda *a, **o: computed.append(o["first"]) or original(*a, **o))
    resumed = compute()
    assert len(computed) == small_shards
    assert computed == sorted(set(computed))  # No shard is computed twice.
    monkeypatch.setattr(module, "_compute", original)
    np.testing.assert_array_equal(stored_logits(resumed), stored_logits(compute(fingerprint="at once")))


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "of another split"])
def test_a_damaged_shard_is_computed_again(
    compute: Compute, small_shards: int, damage: str, capsys: pytest.CaptureFixture[str]
):
    cached = compute()
    before = stored_logits(cached)
    files = sorted(cached.directory.glob("*.safetensors"))
    content = bytearray(files[2].read_bytes())
    if damage == "changed":
        content[-1] ^= 1
    new = {"truncated": content[:-9], "empty": b"", "changed": content, "of another split": files[0].read_bytes()}
    files[2].write_bytes(new[damage])
    again = compute()
    assert "is damaged: the teacher computes it again" in capsys.readouterr().out
    assert again.seconds > 0
    np.testing.assert_array_equal(stored_logits(again), before)
    assert compute(model=fail_to_load).seconds == 0


def test_whole_shards_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Five examples of three tokens: two shards of two examples and one of one."""
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", 6)
    cached = output_cache.Cached(tmp_path, np.full(5, 3), hidden=None)
    assert [cached.covering(examples) for examples in range(6)] == [0, 2, 2, 4, 4, 5]
    assert all(cached.missing(examples)[-1][1] == cached.covering(examples) for examples in range(1, 6))


def test_outputs_belong_to_the_device_and_the_versions_of_the_libraries(
    teacher: PreTrainedModel, examples: TokenizedExamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def compute_on(device: str) -> Cached:
        return cache_outputs(Computation(lambda: teacher, "", TASK, OutputCache(), tmp_path, device=device), examples)

    first = compute_on("cpu")
    assert compute_on("cpu").seconds == 0
    assert compute_on("cuda").directory != first.directory
    monkeypatch.setattr(module, "library_versions", lambda: {"torch": "1.0", "transformers": "5.0"})
    assert compute_on("cpu").directory != first.directory


def _run_teacher_pass(directory: Path, barrier: Any, results: Any) -> None:
    tokenizer = train_word_pieces([text for text, _ in sentences(64)], 300)
    examples = tokenize_sentences(tokenizer)
    output_cache.SHARD_TOKENS = 60
    torch.set_num_threads(1)
    teacher = toy_bert(len(tokenizer)).eval()
    barrier.wait()
    result = cache_outputs(Computation(lambda: teacher, "", TASK, OutputCache(), directory), examples)
    results.put((stored_logits(result).tobytes(), len(result.missing()), len(result.damaged)))


def test_processes_that_start_at_once_cache_equal_outputs(tmp_path: Path):
    results = run_concurrently(_run_teacher_pass, tmp_path)
    assert len(set(results)) == 1
    assert results[0][1:] == (0, 0)
    [directory] = tmp_path.iterdir()
    names = {path.name for path in directory.iterdir()} - {LEASE}
    assert {Path(name).suffix for name in names} == {".safetensors"}  # No partial shard is left.


def test_the_fingerprint_of_a_teacher_depends_on_precision_and_weights(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
):
    def make_prepared(**other: Any) -> PreparedTeacher:
        values = {"precision": "float32", "weights": "abc", **other}
        return PreparedTeacher(
            requested="", resolved="", substituted=False, origin="", tokenizer=tokenizer, load=lambda: teacher,
            device=torch.device("cpu"), seconds=0.0, **values,
        )  # fmt: skip

    others = (make_prepared(precision="bfloat16"), make_prepared(weights="abd"))
    assert len({prepared.fingerprint for prepared in (make_prepared(), *others)}) == 3
    assert make_prepared().running() is teacher
    rounded = make_prepared(precision="bfloat16")
    assert rounded.running().dtype == torch.bfloat16
    assert rounded.running() is rounded.running()
    assert rounded.model.dtype == torch.float32  # The student is copied from it, and it is timed and exported.


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
        ({}, HIDDEN, True, None),
        (
            {"hidden": False},
            HIDDEN,
            True,
            "cosine reads hidden states: teacher.cache.hidden=true caches those too, 1.50 GB of disk",
        ),
        ({"hidden": True}, {"attentions": ["maps"]}, True, "maps reads attentions, which cannot be cached"),
    ],
)
def test_the_obstacle_to_caching_is_named(options: Any, needs: Any, fixed: bool, expected: str | None):
    assert OutputCache(**options).obstacle(needs, fixed_inputs=fixed, hidden_gb=1.5) == expected


def test_outputs_of_every_token_are_cached_if_an_option_says_so():
    options = {"fixed_inputs": True, "by_default": False, "hidden_gb": 0.0}
    reason = OutputCache().obstacle({}, **options)
    assert reason is not None
    assert "is 200 bytes a token: teacher.cache.enabled=true caches it" in reason
    for asked in (OutputCache(enabled=True), OutputCache(hidden=True)):
        assert asked.obstacle({}, **options) is None
    assert OutputCache(enabled=False, hidden=True).obstacle({}, **options) == "teacher.cache.enabled=false"


def test_an_obstacle_raises_if_caching_is_required():
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enabled": 0}, "got enabled=0, expected auto, true or false"),
        ({"enabled": "maybe"}, "got enabled=maybe, expected auto, true or false"),
        ({"max_gb": 0}, "got max_gb=0, expected a number above 0"),
        ({"top_k": True}, "got top_k=true, expected a whole number of at least 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        OutputCache(**options)


# A student that learns from cached outputs


def test_cached_outputs_give_the_same_loss_under_bf16_autocast(
    compute: Compute, teacher: PreTrainedModel, examples: TokenizedExamples
):
    """The cached hidden states are float16, which autocast does not mix with bfloat16."""
    objective = Objective(name="toy", terms={"soft": SoftTargets(), "cosine": Cosine()})
    losses = []
    for cached in (None, compute(hidden=True)):
        student = from_teacher(teacher)
        module = DistillationModule(
            student=student, objective=objective, task=TASK, signal=cached or live(teacher, objective, TASK),
        )  # fmt: skip
        student.eval()
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(module.losses(examples[[3, 17, 30]])[0].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize(
    "cosine",
    [
        0.0,
    ],
)
def test_cached_outputs_train_the_same_student(
    tokenizer: PreTrainedTokenizerBase, examples: TokenizedExamples, tmp_path: Path, cosine: float
):
    """Weights differ by less than 1e-5 with logits, and by more with hidden states, cached as float16."""
    state_dicts = []
    for from_cache in (False, True):
        teacher = toy_bert(len(tokenizer), initializer_range=0.05).eval()
        hidden = LAST if cosine else None
        terms = {"soft": SoftTargets(), "hard": HardLabels(), "cosine": Cosine(weight=cosine)}
        settings = TrainerSettings(
            learning_rate=1e-3, batch_size=8, max_epochs=3, precision="32-true", accelerator="cpu"
        )
        loaders = batches.all_loaders({"train": examples, "dev": examples}, **settings.batches())
        computation = Computation(lambda teacher=teacher: teacher, "", TASK, OutputCache(), tmp_path / "outputs")
        cached = cache_outputs(computation, examples, hidden=hidden)
        objective = Objective(name="toy", terms=terms)
        module = DistillationModule(
            student=from_teacher(teacher), objective=objective, task=TASK, scoring=SCORING,
            signal=cached if from_cache else live(teacher, objective, TASK),
            **settings.optimization(len(loaders["train"])),
        )  # fmt: skip
        fitting.fit(
            module, loaders["train"], loaders["dev"], settings=settings, checkpoints=tmp_path / str(from_cache),
            logger=None, title="toy",
        )  # fmt: skip
        state_dicts.append(copy.deepcopy(module.student.state_dict()))
        assert (module.teacher_seconds == 0) is from_cache
    for name, tensor in state_dicts[0].items():
        torch.testing.assert_close(state_dicts[1][name], tensor, atol=5e-3 if cosine else 1e-5, rtol=0)


# Language models

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


def cache_top_k(
    masked: Sequences, model: PreTrainedModel, directory: Path, *, top_k: int, hidden: bool = False, epochs: int = 2
) -> Cached:
    computation = Computation(lambda: model, "one", TEXT, OutputCache(top_k=top_k), directory, kept=TopK(top_k))
    return cache_outputs(computation, masked, hidden=LAST if hidden else None, epochs=epochs)


def compute_logits(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """Returns all logits at the masked tokens `[n, V]`."""
    items = TEXT.select(batch)
    logits = TEXT.run(model, batch, items, frozenset()).at(items).logits
    assert logits is not None
    return logits


def read_cached(cached: Cached, batch: dict[str, Tensor]) -> Outputs:
    items = TEXT.select(batch)
    return cached(batch, items).at(items)


def soft_loss(student: PreTrainedModel, teacher_output: Any, batch: dict[str, Tensor], temperature: float) -> float:
    student_output = Outputs(logits=compute_logits(student, batch))
    total, count = SoftTargets(temperature=temperature)(student_output, teacher_output, TEXT.select(batch))
    return float(total / count)


@pytest.mark.parametrize("most", [2, 1000])
def test_all_logits_of_a_vocabulary_are_cached_up_to_a_constant(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    sizes = []

    def record(log_probs: Tensor, top_k: int) -> dict[str, Tensor]:
        sizes.append(len(log_probs))
        return take_top_k(log_probs, top_k)

    monkeypatch.setattr(top_k_module, "take_top_k", record)
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "CHUNK_LOGITS", most * language_model.config.vocab_size)
        cached = cache_top_k(masked, language_model, tmp_path, top_k=10_000, hidden=True)
    assert max(sizes) == most if most == 2 else max(sizes) > 2  # No more are in memory at once.
    for batch in (masked[[3, 0]], masked[[len(masked) + 3]]):  # The second batch has the second mask.
        with torch.no_grad():
            expected = compute_logits(language_model, batch).log_softmax(dim=-1)
            states = run_model(language_model, batch, frozenset({"hidden_states"})).hidden_states[-1]
        hidden_states = cached(batch, TEXT.select(batch)).whole().hidden_states
        assert hidden_states is not None
        torch.testing.assert_close(get_logits(read_cached(cached, batch)), expected, atol=1e-2, rtol=1e-3)  # float16
        torch.testing.assert_close(hidden_states[-1], states, atol=5e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "temperature",
    [
        2.0,
    ],
)
def test_the_error_of_the_loss_shrinks_with_top_k(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path, temperature: float
) -> None:
    student, batch = from_teacher(language_model).eval(), masked[[1, 2]]
    with torch.no_grad():
        exact = soft_loss(student, Outputs(logits=compute_logits(language_model, batch)), batch, temperature)
        losses = []
        for k in (1, 8, 64, 10_000):
            largest = read_cached(cache_top_k(masked, language_model, tmp_path / str(k), top_k=k), batch)
            losses.append(soft_loss(student, largest, batch, temperature))
    errors = [abs(loss - exact) / exact for loss in losses]
    assert errors[3] < 2e-3
    assert errors[0] > errors[2] > errors[3] / 2
    assert errors[2] < 0.02


@torch.no_grad()
def compute_all_logits(masked: Sequences, model: PreTrainedModel) -> Tensor:
    """Returns the logits at the masked tokens of all sequences, with both masks."""
    return torch.cat([compute_logits(model, masked[[i]]) for i in range(2 * len(masked))])


def test_the_rest_of_the_probability_is_spread_over_the_other_tokens(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path
) -> None:
    cached = cache_top_k(masked, language_model, tmp_path, top_k=3)
    batch = masked[[0]]
    logits = get_logits(read_cached(cached, batch))
    torch.testing.assert_close(logits.exp().sum(dim=-1), torch.ones(len(logits)), atol=2e-3, rtol=0)
    with torch.no_grad():
        exact = compute_logits(language_model, batch).log_softmax(dim=-1)
    assert torch.equal(logits.argmax(dim=-1), exact.argmax(dim=-1))
    # The others follow the mean over all tokens, up to a constant.
    everything = compute_all_logits(masked, language_model)
    profile = everything.log_softmax(dim=-1).mean(dim=0)
    for row, known in zip(logits, exact.topk(3).indices, strict=True):
        others = torch.ones(len(row), dtype=torch.bool).scatter_(0, known, False)
        difference = (row - profile)[others]
        assert difference.max() - difference.min() < 0.02  # float16
    mass = everything.softmax(dim=-1).topk(3).values.sum(dim=-1)
    assert cached.mass() == pytest.approx(float(mass.mean()), abs=1e-3)


@pytest.mark.parametrize("temperature", [0.25, 0.5, 1.0, 2.0, 50.0])
def test_the_probability_of_the_other_tokens_is_right_at_every_temperature(temperature: float) -> None:
    """Uses uneven logits, whose probability falls with the rank as in language."""
    torch.manual_seed(0)
    logits = -1.5 * torch.arange(1.0, 5001.0).log()[torch.stack([torch.randperm(5000) for _ in range(3)])]
    columns = take_top_k(logits.log_softmax(dim=-1), 20)
    with torch.autocast("cpu", torch.bfloat16):  # As in a training.
        cached_logits = restore_logits(columns, torch.randn(5000), temperature)
    softened, exact = (values.div(temperature).softmax(dim=-1) for values in (cached_logits, logits))
    mass = [probabilities.gather(-1, columns["ids"].long()).sum(dim=-1) for probabilities in (softened, exact)]
    torch.testing.assert_close(mass[0], mass[1], atol=5e-3, rtol=0)


def test_only_the_masks_of_the_planned_epochs_are_computed(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", 200)
    computed: list[int] = []
    original = module._compute
    monkeypatch.setattr(module, "_compute", lambda *a, **o: computed.append(o["first"]) or original(*a, **o))
    cache_top_k(masked, language_model, tmp_path, top_k=4, epochs=1)
    assert computed
    assert max(computed) < len(masked)
    first = len(computed)
    cache_top_k(masked, language_model, tmp_path, top_k=4, epochs=5)
    assert min(computed[first:]) >= computed[first - 1]  # The first mask's outputs are cached already.
    assert cache_top_k(masked, language_model, tmp_path, top_k=4).missing() == []


def test_a_term_over_all_tokens_prevents_caching() -> None:
    objective = Objective(name="all", terms={"soft": SoftTargets(positions="all")})
    task = MaskedLM(name="text", mask=Masking(), masking="static")
    reason = signal._obstacle(OutputCache(), objective, task)
    assert reason == "soft reads all logits, and only the largest at the masked tokens are cached"
