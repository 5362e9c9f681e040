"""Tests of the choice of tokens: sampling, penalties, forced tokens, and beams as in transformers."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from distill.core.errors import UserError
from distill.edge import sampling
from distill.edge.sampling import Beams, GenerationOptions, GenerationSettings, OneToken, find_likely
from tests.edge.conftest import Patch


def make_settings(eos: tuple[int, ...], most: int, **values: Any) -> GenerationSettings:
    return GenerationSettings(eos, None, most, None, **values)


NEVER = make_settings((), 1000)


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, None), (5, None), (None, 0.6), (None, 1.0), (7, 0.5), (1, 0.1), (500, 0.999)]
)
def test_the_tokens_that_may_be_sampled_are_those_of_transformers(
    monkeypatch: Patch, top_k: int | None, top_p: float | None
) -> None:
    monkeypatch.setattr(sampling, "FEW", 3)
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)) * 2
    expected = TemperatureLogitsWarper(0.8)(None, logits)
    if top_k is not None:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p is not None:
        expected = TopPLogitsWarper(top_p)(None, expected)
    weights = np.exp(logits[0].numpy().astype(np.float64) / 0.8)
    likely = find_likely(weights, top_k=top_k, top_p=top_p)
    assert sorted(likely.tolist()) == expected[0].isfinite().nonzero()[:, 0].tolist()


def test_sampled_tokens_have_the_probabilities_of_the_model() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], dtype=np.float32))
    options: dict[str, Any]
    for options, expected in (
        ({"temperature": 1.0}, [0.5, 0.3, 0.15, 0.05]), ({"temperature": 0.5, "top_k": 2}, [25 / 34, 9 / 34, 0, 0]),
    ):  # fmt: skip
        choice = OneToken([], GenerationOptions(seed=3, **options), make_settings((), 10**6))
        for _ in range(2000):
            choice.advance(logits)
        assert np.bincount(choice.tokens, minlength=4) / 2000 == pytest.approx(expected, abs=0.04)


def test_a_seed_repeats_the_tokens_and_none_does_not() -> None:
    logits = np.zeros((1, 1000), dtype=np.float32)

    def sample(seed: int | None, number: int = 0) -> list[int]:
        choice = OneToken([], GenerationOptions(temperature=1.0, seed=seed), NEVER, number)
        for _ in range(10):
            choice.advance(logits)
        return choice.tokens

    assert sample(5) == sample(5)
    assert len({tuple(sample(seed, number)) for seed, number in ((5, 0), (5, 1), (6, 0), (None, 0), (None, 0))}) == 5


def test_the_penalty_of_repetition_is_that_of_transformers() -> None:
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(1))
    written = [[1, 2, 2, 8], [0, 5, 5, 5]]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor(written), logits)
    options = GenerationOptions(repetition_penalty=1.7)
    assert OneToken([], options, NEVER).adjust(logits.numpy(), written) == pytest.approx(expected.numpy())
    choice = OneToken([3], GenerationOptions(repetition_penalty=2.0), NEVER)
    for _ in range(3):  # 3 is in the prompt, so that 4 is the best one, and 3 is it again beside it.
        choice.advance(np.array([[0, 0, 0, 2.0, 1.5]]))
    assert choice.tokens == [4, 3, 3]


def test_forced_tokens_begin_and_end_a_text() -> None:
    settings = make_settings((2,), 4, forced_bos=7, forced_eos=2)
    choice = OneToken([], GenerationOptions(), settings)
    logits = np.eye(9)[[5]]
    steps = [choice.advance(logits) for _ in range(4)]
    assert choice.tokens == [7, 5, 5, 2]
    assert steps == [([0], [7]), ([0], [5]), ([0], [5]), None]


def test_beams_find_a_text_that_the_best_first_token_hides() -> None:
    # The first token 0 has 0.6, then 0.5 at most; 1 has 0.4, then 0.9.
    first = np.log([[0.6, 0.4, 1e-9]])
    then = np.log([[0.5, 0.5 - 1e-9, 1e-9], [0.05, 0.9, 0.05]])
    beams = Beams([], GenerationOptions(beams=2), make_settings((), 2))
    assert beams.advance(first) == ([0, 0], [0, 1])
    assert beams.advance(then) is None
    assert beams.tokens == [1, 1]
    assert beams.score == pytest.approx(np.log(0.4 * 0.9) / 2, rel=1e-5)


def test_ends_that_are_not_among_the_best_candidates_are_no_texts_of_a_beam_search() -> None:
    beams = Beams([], GenerationOptions(beams=2), make_settings((2, 3), 9, early_stopping=True))
    assert beams.advance(np.log([[0.5, 0.4, 0.06, 0.04]])) == ([0, 0], [0, 1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beams": 0}, "got beams=0, expected a whole number from 1 to 64"),
        ({"temperature": 0}, "got temperature=0, expected a number above 0, or none for the most probable token"),
        ({"temperature": float("nan")}, "got temperature=nan, expected a number above 0"),
        ({"temperature": float("inf")}, "got temperature=inf, expected a number above 0"),
        ({"temperature": 10**400}, "got temperature=10000.*, expected a number above 0"),
        ({"temperature": "hot"}, "got temperature='hot', expected a number above 0"),
        ({"temperature": 1, "top_p": 0}, "got top_p=0, expected a number above 0 and at most 1"),
        ({"temperature": 1, "top_p": 1.01}, "got top_p=1.01, expected a number above 0 and at most 1"),
        ({"temperature": 1, "top_k": 0}, "got top_k=0, expected a whole number from 1"),
        ({"temperature": 1, "seed": -1}, "got seed=-1, expected a whole number from 0"),
        ({"top_k": 5}, "got top_k=5 without a temperature, by which tokens are sampled: give temperature=1 too"),
        ({"seed": 3}, "got seed=3 without a temperature"),
        ({"beams": 2, "temperature": 1.0}, "got beams=2 and temperature=1.0, expected one of the two"),
        ({"max_new_tokens": 0}, "got max_new_tokens=0, expected a whole number from 1"),
        ({"repetition_penalty": 0}, "got repetition_penalty=0, expected a number above 0"),
        ({"stop": [""]}, r"got stop=\[''\], expected texts that are not empty"),
        ({"stop": 3}, "got stop=3, expected texts that are not empty"),
        ({"stop": ["\ud800"]}, "expected Unicode: character 1 is a lone surrogate"),
        ({"truncate": True}, "got truncate=True, expected left or right, or none to refuse"),
    ],
)
def test_options_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        GenerationOptions(**values)
