"""Tests of draws from a teacher's distribution over a vocabulary: their mean, their cache, and what cannot use them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertForMaskedLM, PreTrainedTokenizerBase

from distill.core.contracts import Items, Outputs
from distill.core.errors import UserError
from distill.kinds import MaskedLM
from distill.losses import Objective, PseudoLabels, SoftTargets
from distill.losses.term import get_logits
from distill.teachers.computation import Computation, cache_outputs
from distill.teachers.output_cache import Cached, Draws, OutputCache
from distill.teachers.signal import check_cache
from tests.conftest import toy_bert, write_corpus

TEXT = MaskedLM(builtin=True, masking="static", masks=1, max_length=16, dev_fraction=0.2)


def draw(log_probs: Tensor, number: int, temperature: float = 1.0, *, seed: int = 0) -> Outputs:
    draws = Draws(number, temperature)
    columns = draws.pack(log_probs, torch.Generator().manual_seed(seed))
    assert columns["drawn"].shape == (len(log_probs), number)
    return draws.restore(columns, torch.zeros(log_probs.shape[-1]))


def items_of(number: int) -> Items:
    rows = torch.arange(number)
    return Items({}, rows, torch.zeros_like(rows), torch.ones(number, dtype=torch.bool), classes_are_tokens=True)


@pytest.mark.parametrize("seed", range(5))
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


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
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


# Cached


@pytest.fixture
def text(tmp_path: Path) -> MaskedLM:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    return MaskedLM(data_dir=str(write_corpus(corpus)), masking="static", masks=1, max_length=16, dev_fraction=0.2)


def test_draws_of_a_lost_file_are_drawn_again_alike(
    text: MaskedLM, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(toy_bert(len(tokenizer)).config).eval()
    examples = text.encode(text.read(tmp_path), tokenizer, tmp_path)["train"]

    def cache(kept: Draws) -> Cached:
        computation = Computation(lambda: model, "one", text, OutputCache(), tmp_path / "outputs", kept=kept)
        return cache_outputs(computation, examples)  # type: ignore[arg-type]

    first = cache(Draws(20, 2.0))
    assert "20 tokens drawn at temperature 2" in first.describe()
    assert first.mass() == 1.0
    [file] = first.directory.glob("*.safetensors")
    content = load_file(file)["drawn"].clone()
    file.unlink()
    assert cache(Draws(20, 2.0)).directory == first.directory
    assert torch.equal(load_file(file)["drawn"], content)
    assert len({cache(kept).directory for kept in (Draws(20, 2.0), Draws(20, 1.0), Draws(21, 2.0))}) == 3
    batch = examples[[3, 0, 7]]  # type: ignore[index]
    items = text.select(batch)
    with torch.no_grad():
        logits = text.run(model, batch, items, frozenset()).at(items).logits
    drawn = first(batch, items).at(items).logits_at(2.0)
    assert logits is not None
    assert drawn is not None
    shares, exact = ((of / 2.0).softmax(dim=-1) for of in (drawn, logits))
    assert float((shares - exact).abs().max()) < 1 / 20 + 1e-4


def test_draws_take_less_than_the_largest_logits() -> None:
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
    with pytest.raises(UserError, match=r"^got draws=0, expected a whole number of at least 1 or null$"):
        OutputCache(draws=0)
