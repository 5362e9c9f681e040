"""Tests that a teacher's outputs, or draws from them, are cached once, completely, and equal to the computed ones."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Items, Outputs
from distill.core.errors import NumericalError, UserError
from distill.core.storage import LEASE
from distill.data.batches import TokenizedExamples
from distill.kinds import MaskedLM
from distill.losses import Cosine, Objective, PseudoLabels, SoftTargets
from distill.losses.term import get_logits
from distill.models import decoding
from distill.models.forward import run_model
from distill.teachers import computation as module
from distill.teachers import output_cache, signal
from distill.teachers.computation import Computation, cache_outputs
from distill.teachers.output_cache import Cached, Draws, HiddenLayers, OutputCache, TopK, restore_logits
from distill.teachers.signal import check_cache
from distill.text.masking import Masking
from distill.text.sequences import Sequences
from distill.training.module import DistillationModule
from tests.conftest import live, stored_logits, toy_bert, write_corpus
from tests.teachers.conftest import TASK, make_prepared

LAST = HiddenLayers(width=32, depth=4, layers=(4,))  # Of the toy teacher.
Compute = Callable[..., Cached]


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch, examples: TokenizedExamples) -> int:
    """Sets the shards to a fifth of the tokens; returns their number."""
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", int(examples.lengths.sum()) // 5 + 1)
    return 5


@pytest.fixture
def compute(teacher: PreTrainedModel, examples: TokenizedExamples, tmp_path: Path) -> Compute:
    def compute_outputs(
        *, hidden: bool = False, model: Any = None, fingerprint: str = "one", device: str = "cpu"
    ) -> Cached:
        cache = OutputCache(hidden=hidden)
        computation = Computation(model or (lambda: teacher), fingerprint, TASK, cache, tmp_path, device=device)
        return cache_outputs(computation, examples, hidden=LAST if hidden else None)

    return compute_outputs


def fail_to_load() -> PreTrainedModel:
    raise AssertionError("the teacher was loaded")


def test_cached_outputs_equal_those_of_the_teacher(
    compute: Compute, teacher: PreTrainedModel, examples: TokenizedExamples, small_shards: int
) -> None:
    first = compute(hidden=True)
    assert first.seconds > 0
    again = compute(hidden=True, model=fail_to_load)
    assert (again.seconds, again.reason) == (0, None)
    assert len(list(again.directory.glob("*.safetensors"))) == small_shards
    assert again.bytes == sum(path.stat().st_size for path in again.directory.iterdir())
    batch = examples[[39, 0, 17, 3]]
    with torch.no_grad():
        expected = run_model(teacher, batch, frozenset({"hidden_states"}))
    items = TASK.select(batch)
    cached = again(batch, items)
    torch.testing.assert_close(cached.at(items).logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert cached.whole().hidden_states is not None
    tokens, states = batch["attention_mask"].bool(), cached.whole().hidden_states[-1]
    assert (states.shape, states.dtype) == (expected.hidden_states[-1].shape, torch.float32)
    torch.testing.assert_close(states[tokens], expected.hidden_states[-1][tokens], atol=2e-3, rtol=2e-3)  # float16
    assert not states[~tokens].any()
    batch_of_logits = compute()(batch, items)
    torch.testing.assert_close(batch_of_logits.at(items).logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert batch_of_logits.whole().hidden_states is None


def test_everything_that_outputs_depend_on_selects_a_directory(
    compute: Compute, examples: TokenizedExamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[dict[str, Any]] = [{}, {"fingerprint": "two"}, {"hidden": True}, {"device": "cuda"}]
    directories = [compute(**change).directory for change in changes]
    assert compute(model=fail_to_load).directory == directories[0]
    with monkeypatch.context() as patch:
        patch.setattr(module, "library_versions", lambda: {"torch": "1.0", "transformers": "5.0"})
        directories.append(compute().directory)
    examples.digest = "other texts"
    directories.append(compute().directory)
    assert len(set(directories)) == len(directories) == 6


def test_an_interrupted_pass_resumes(compute: Compute, small_shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original, computed, most = module._compute, list[int](), 2

    def count_and_interrupt(*arguments: Any, **options: Any) -> Any:
        if len(computed) == most:
            raise KeyboardInterrupt
        computed.append(options["first"])
        return original(*arguments, **options)

    monkeypatch.setattr(module, "_compute", count_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        compute()
    most = -1
    resumed = compute()
    assert len(computed) == small_shards
    assert computed == sorted(set(computed))  # No shard is computed twice.
    np.testing.assert_array_equal(stored_logits(resumed), stored_logits(compute(fingerprint="at once")))


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed", "of another split"])
def test_a_damaged_shard_is_computed_again(
    compute: Compute, small_shards: int, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_whole_shards_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five examples of three tokens: two shards of two examples and one of one."""
    monkeypatch.setattr(output_cache, "SHARD_TOKENS", 6)
    cached = Cached(tmp_path, np.full(5, 3), hidden=None)
    assert [cached.covering(examples) for examples in range(6)] == [0, 2, 2, 4, 4, 5]
    assert all(cached.missing(examples)[-1][1] == cached.covering(examples) for examples in range(1, 6))


def test_processes_that_start_at_once_cache_equal_outputs(compute: Compute, small_shards: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()

    def run() -> None:
        torch.set_num_threads(1)
        barrier.wait()
        result = compute()
        results.put((stored_logits(result).tobytes(), len(result.missing()), len(result.damaged)))

    processes = [context.Process(target=run) for _ in range(3)]
    for process in processes:
        process.start()
    found = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert found == {(stored_logits(compute(model=fail_to_load)).tobytes(), 0, 0)}
    [directory] = tmp_path.iterdir()
    names = {path.name for path in directory.iterdir()} - {LEASE}
    assert {Path(name).suffix for name in names} == {".safetensors"}  # No partial shard is left.


def test_the_fingerprint_of_a_teacher_depends_on_precision_and_weights(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    one, rounded, other = (
        make_prepared(teacher, tokenizer, **of) for of in ({}, {"precision": "bfloat16"}, {"weights": "abd"})
    )
    assert len({prepared.fingerprint for prepared in (one, rounded, other)}) == 3
    assert one.running() is teacher
    assert rounded.running().dtype == torch.bfloat16
    assert rounded.running() is rounded.running()
    assert rounded.model.dtype == torch.float32  # The student is copied from it, and it is timed and exported.


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(
    compute: Compute, teacher: PreTrainedModel, number: float, tmp_path: Path
) -> None:
    with torch.no_grad():
        teacher.classifier.bias.fill_(number)
    with pytest.raises(NumericalError, match="logits are not finite"):
        compute()
    assert not list(tmp_path.rglob("*.safetensors"))


# When outputs are cached


@pytest.mark.parametrize(
    ("cache", "given", "expected"),
    [
        ({}, {}, None),
        ({"hidden": True}, {"needs": {"hidden_states": ["cosine"]}}, None),
        ({"enabled": False}, {}, "teacher.cache.enabled=false"),
        ({}, {"fixed_inputs": False}, "the inputs change every epoch"),
        ({}, {"needs": {"hidden_states": ["cosine"]}}, None),
        (
            {"hidden": False}, {"needs": {"hidden_states": ["cosine"]}},
            "cosine reads hidden states: teacher.cache.hidden=true caches those too, 1.50 GB of disk",
        ),
        ({}, {"needs": {"attentions": ["maps"]}}, "maps reads attentions, which cannot be cached"),
        ({"enabled": True}, {"by_default": False}, None),
        ({"hidden": True}, {"by_default": False}, None),
        ({"enabled": False, "hidden": True}, {"by_default": False}, "teacher.cache.enabled=false"),
    ],
)  # fmt: skip
def test_the_obstacle_to_caching_is_named(cache: Any, given: Any, expected: str | None) -> None:
    options = {"needs": {}, "fixed_inputs": True, "hidden_gb": 1.5, **given}
    assert OutputCache(**cache).obstacle(options.pop("needs"), **options) == expected


def test_an_obstacle_of_size_is_a_reason_and_one_to_required_caching_an_error() -> None:
    reason = OutputCache().obstacle({}, fixed_inputs=True, by_default=False, hidden_gb=0.0)
    assert "is 200 bytes a token: teacher.cache.enabled=true caches it" in str(reason)
    with pytest.raises(UserError, match=r"\(teacher.cache.enabled=true\): the inputs change every epoch; use auto or"):
        OutputCache(enabled=True).obstacle({}, fixed_inputs=False, hidden_gb=1)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("enabled", 0, "auto, true or false"), ("enabled", "maybe", "auto, true or false"),
        ("max_gb", 0, "a number above 0"), ("top_k", True, "a whole number of at least 1"),
        ("draws", 0, "a whole number of at least 1 or null"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(UserError, match=f"got {name}={str(value).lower()}, expected {expected}"):
        OutputCache(**{name: value})


def test_cached_outputs_give_the_same_loss_under_bf16_autocast(
    compute: Compute, teacher: PreTrainedModel, examples: TokenizedExamples
) -> None:
    """The cached hidden states are float16, which autocast does not mix with bfloat16."""
    objective = Objective(name="toy", terms={"soft": SoftTargets(), "cosine": Cosine()})
    losses = []
    for of in (live(teacher, objective, TASK), compute(hidden=True)):
        student = from_teacher(teacher)
        training = DistillationModule(student=student, objective=objective, task=TASK, signal=of)
        student.eval()
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(training.losses(examples[[3, 17, 30]])[0].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


# Language models

TEXT = MaskedLM(masking="static", masks=2, max_length=32)


@pytest.fixture(scope="module")
def masked(tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Sequences:
    """Packed sequences with two fixed masks each."""
    root = write_corpus(tmp_path_factory.mktemp("text"))
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


@torch.no_grad()
def compute_logits(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """Returns all logits at the masked tokens `[n, V]`."""
    items = TEXT.select(batch)
    logits = TEXT.run(model, batch, items, frozenset()).at(items).logits
    assert logits is not None
    return logits


def read_cached(cached: Cached, batch: dict[str, Tensor]) -> Outputs:
    items = TEXT.select(batch)
    return cached(batch, items).at(items)


def test_all_logits_of_a_vocabulary_are_cached_up_to_a_constant(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, pack = [], TopK.pack

    def record(self: TopK, log_probs: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        sizes.append(len(log_probs))
        return pack(self, log_probs, generator)

    monkeypatch.setattr(TopK, "pack", record)
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "CHUNK_LOGITS", 2 * language_model.config.vocab_size)
        cached = cache_top_k(masked, language_model, tmp_path, top_k=10_000, hidden=True)
    assert max(sizes) == 2  # No more are in memory at once.
    for batch in (masked[[3, 0]], masked[[len(masked) + 3]]):  # The second batch has the second mask.
        with torch.no_grad():
            states = run_model(language_model, batch, frozenset({"hidden_states"})).hidden_states[-1]
        hidden_states = cached(batch, TEXT.select(batch)).whole().hidden_states
        assert hidden_states is not None
        expected = compute_logits(language_model, batch).log_softmax(dim=-1)
        torch.testing.assert_close(get_logits(read_cached(cached, batch)), expected, atol=1e-2, rtol=1e-3)  # float16
        torch.testing.assert_close(hidden_states[-1], states, atol=5e-3, rtol=1e-3)


def test_the_rest_of_the_probability_is_spread_over_the_other_tokens(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path
) -> None:
    cached = cache_top_k(masked, language_model, tmp_path, top_k=3)
    batch = masked[[0]]
    logits = get_logits(read_cached(cached, batch))
    torch.testing.assert_close(logits.exp().sum(dim=-1), torch.ones(len(logits)), atol=2e-3, rtol=0)
    exact = compute_logits(language_model, batch).log_softmax(dim=-1)
    assert torch.equal(logits.argmax(dim=-1), exact.argmax(dim=-1))
    # The others follow the mean over all tokens, up to a constant.
    everything = torch.cat([compute_logits(language_model, masked[[i]]) for i in range(2 * len(masked))])
    profile = everything.log_softmax(dim=-1).mean(dim=0)
    for row, known in zip(logits, exact.topk(3).indices, strict=True):
        others = torch.ones(len(row), dtype=torch.bool).scatter_(0, known, False)
        difference = (row - profile)[others]
        assert difference.max() - difference.min() < 0.02  # float16
    mass = everything.softmax(dim=-1).topk(3).values.sum(dim=-1)
    assert cached.mass() == pytest.approx(float(mass.mean()), abs=1e-3)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 50.0])
def test_the_probability_of_the_other_tokens_is_right_at_every_temperature(temperature: float) -> None:
    """Uses uneven logits, whose probability falls with the rank as in language."""
    torch.manual_seed(0)
    logits = -1.5 * torch.arange(1.0, 5001.0).log()[torch.stack([torch.randperm(5000) for _ in range(3)])]
    columns = TopK(20).pack(logits.log_softmax(dim=-1), torch.Generator())
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
    first = len(computed)
    assert max(computed) < len(masked)
    cache_top_k(masked, language_model, tmp_path, top_k=4, epochs=5)
    assert min(computed[first:]) >= computed[first - 1]  # The first mask's outputs are cached already.
    assert cache_top_k(masked, language_model, tmp_path, top_k=4).missing() == []


def test_a_term_over_all_tokens_prevents_caching() -> None:
    objective = Objective(name="all", terms={"soft": SoftTargets(positions="all")})
    task = MaskedLM(name="text", mask=Masking(), masking="static")
    reason = signal._obstacle(OutputCache(), objective, task)
    assert reason == "soft reads all logits, and only the largest at the masked tokens are cached"


# Draws from the distribution over a vocabulary


def draw(log_probs: Tensor, number: int, temperature: float = 1.0, *, seed: int = 0) -> Outputs:
    draws = Draws(number, temperature)
    columns = draws.pack(log_probs, torch.Generator().manual_seed(seed))
    assert columns["drawn"].shape == (len(log_probs), number)
    return draws.restore(columns, torch.zeros(log_probs.shape[-1]))


def items_of(number: int) -> Items:
    rows = torch.arange(number)
    return Items({}, rows, torch.zeros_like(rows), torch.ones(number, dtype=torch.bool), classes_are_tokens=True)


@pytest.mark.parametrize("seed", range(3))
def test_a_token_is_drawn_as_often_as_its_probability_says(seed: int) -> None:
    probabilities = torch.tensor([[0.51, 0.0, 0.29, 0.2], [0.0, 0.0, 1.0, 0.0]])
    outputs = draw(probabilities.log(), 10, seed=seed)
    counts = 10 * get_logits(outputs).softmax(dim=-1)
    torch.testing.assert_close(counts, counts.round())
    counts = counts.round()
    assert counts[0, 0] in (5, 6)
    assert counts[0, 2] in (2, 3)
    assert counts[:, 1].tolist() == [0, 0]
    assert counts[1].tolist() == [0, 0, 10, 0]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_mean_gradient_of_soft_targets_is_that_of_all_logits(temperature: float) -> None:
    torch.manual_seed(0)
    teacher, student = (3 * torch.randn(2000, 40)[:1].expand(2000, 40) for _ in range(2))
    term, items = SoftTargets(temperature=temperature), items_of(2000)

    def gradient(of: Outputs) -> Tensor:
        logits = student.clone().requires_grad_()
        total, count = term(Outputs(logits=logits), of, items)
        assert total.isfinite()
        [found] = torch.autograd.grad(total / count, logits)
        return found.sum(dim=0)

    exact = gradient(Outputs(logits=teacher))
    errors = [
        float((gradient(draw(teacher.log_softmax(dim=-1), number, temperature)) - exact).abs().max())
        for number in (1, 20)
    ]
    assert errors[0] < 0.05 * float(exact.abs().max()) + 0.02 * temperature
    assert errors[1] < errors[0]


def test_draws_are_read_at_their_temperature_alone() -> None:
    outputs = draw(torch.randn(3, 7).log_softmax(dim=-1), 5, 2.0)
    assert outputs.logits_at(2.0) is not None
    with pytest.raises(ValueError, match=r"^got temperature 1, expected 2, at which the teacher's tokens were drawn$"):
        outputs.logits_at(1.0)


def test_draws_of_a_lost_file_are_drawn_again_alike(
    masked: Sequences, language_model: PreTrainedModel, tmp_path: Path
) -> None:
    def cache(kept: Draws) -> Cached:
        return cache_outputs(
            Computation(lambda: language_model, "one", TEXT, OutputCache(), tmp_path, kept=kept), masked
        )

    first = cache(Draws(20, 2.0))
    assert "20 tokens drawn at temperature 2" in first.describe()
    assert first.mass() == 1.0
    [file] = first.directory.glob("*.safetensors")
    content = load_file(file)["drawn"].clone()
    file.unlink()
    assert cache(Draws(20, 2.0)).directory == first.directory
    assert torch.equal(load_file(file)["drawn"], content)
    assert len({cache(kept).directory for kept in (Draws(20, 2.0), Draws(20, 1.0), Draws(21, 2.0))}) == 3
    batch = masked[[3, 0, 7]]
    drawn, logits = read_cached(first, batch).logits_at(2.0), compute_logits(language_model, batch)
    assert drawn is not None
    shares, exact = ((of / 2.0).softmax(dim=-1) for of in (drawn, logits))
    assert float((shares - exact).abs().max()) < 1 / 20 + 1e-4
    assert OutputCache().bytes_per_item == 200 < OutputCache(draws=None).bytes_per_item == 404


def test_terms_that_cannot_learn_from_the_draws_are_refused() -> None:
    def check(cache: OutputCache, **terms: SoftTargets | PseudoLabels) -> None:
        check_cache(cache, Objective(name="toy", terms=terms), TEXT)

    check(OutputCache(), soft=SoftTargets(temperature=3))
    several = {"soft": SoftTargets(temperature=2), "sharp": SoftTargets(temperature=1)}
    message = (
        r"^teacher.cache.draws=50 draws at one temperature, and the terms have several \(soft 2 and sharp 1\): give "
        r"them the same one, or set teacher.cache.draws=null$"
    )
    with pytest.raises(UserError, match=message):
        check(OutputCache(), **several)
    check(OutputCache(draws=None), **several)
    message = (
        r"^the term pseudo reads the teacher's largest logits, and teacher.cache.draws=50 caches tokens that were "
        r"drawn: set teacher.cache.draws=null to cache the largest ones$"
    )
    with pytest.raises(UserError, match=message):
        check(OutputCache(), pseudo=PseudoLabels())
    check(OutputCache(draws=None), pseudo=PseudoLabels())
