"""Tests of probabilities from the tokens of a reply, and of their calibration."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from distill.labelling.probabilities import Token, fit_temperature, label_probabilities, temper

Cut = Callable[[str], list[str]]
SHARED = {"refund_full": 0.5, "refund_part": 0.2, "re_open": 0.1, "cancel": 0.2}


def cut_into_letters(text: str) -> list[str]:
    return list(text)


def cut_into_pairs(text: str) -> list[str]:
    return [text[place : place + 2] for place in range(0, len(text), 2)]


def cut_at_words(text: str) -> list[str]:
    """Cuts as a byte-pair encoding does, where `_` begins a piece and `re` is one."""
    pieces = text.replace("_", "\0_").replace('"', '\0"\0').replace("re", "re\0").replace(" ", "\0 ").split("\0")
    return [piece for piece in pieces if piece]


def sample_reply(shares: Mapping[str, float], cut: Cut, form: str) -> list[Token]:
    """Returns the tokens of the most probable reply of a model with these probabilities, token by token."""
    replies = {tuple(cut(form % label)): share for label, share in shares.items()}
    chosen = max(replies, key=lambda pieces: replies[pieces])
    tokens = list[Token]()
    for place, piece in enumerate(chosen):
        mass = {key: share for key, share in replies.items() if key[:place] == chosen[:place]}
        nexts = {key[place] for key in mass if len(key) > place}
        share_of = {other: sum(s for key, s in mass.items() if key[place : place + 1] == (other,)) for other in nexts}
        logs = [(other, math.log(share / sum(mass.values()))) for other, share in share_of.items()]
        tokens.append((piece, dict(logs)[piece], logs))
    return tokens


@pytest.mark.parametrize("form", ['{"label": "%s"}', '{"label":"%s"}', "%s", " %s\n"])
@pytest.mark.parametrize("cut", [cut_into_letters, cut_into_pairs, cut_at_words])
def test_probabilities_of_labels_that_share_their_first_tokens(cut: Cut, form: str) -> None:
    tokens = sample_reply(SHARED, cut, form)
    assert math.exp(sum(logprob for _, logprob, _ in tokens)) == pytest.approx(0.5, abs=1e-6)
    probabilities = label_probabilities(tokens, list(SHARED), "label")
    assert probabilities == pytest.approx(list(SHARED.values()), abs=1e-6)


def test_a_label_that_another_one_begins_with_is_told_by_its_end() -> None:
    shares = {"ham": 0.6, "hamster": 0.4}
    for form in ('{"label": "%s"}', '{"label": "%s"}\n'):
        tokens = sample_reply(shares, cut_into_letters, form)
        assert label_probabilities(tokens, list(shares), "label") == pytest.approx([0.6, 0.4], abs=1e-6)


def test_labels_behind_one_alternative_share_it() -> None:
    tokens = sample_reply({"spam": 0.6, "bill_a": 0.3, "bill_b": 0.1}, cut_into_letters, '{"label": "%s"}')
    assert label_probabilities(tokens, ["spam", "bill_a", "bill_b"], "label") == pytest.approx([0.6, 0.2, 0.2])


def test_a_reply_without_an_option_has_no_probabilities() -> None:
    assert label_probabilities([("no", -0.1, [("no", -0.1)])], ["spam", "ham"], "label") is None


def test_the_temperature_of_probabilities_that_are_too_sure() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(4000, 3))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = np.array([random.choice(3, p=row) for row in true])
    sharp = temper(true, 0.5)
    assert fit_temperature(sharp, right) == pytest.approx(2, rel=0.1)
    assert temper(sharp, 2) == pytest.approx(true, abs=1e-4)
