"""Probabilities of labels from those of the tokens of a reply, and a temperature that calibrates them."""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

# A token of a reply: its text and log-probability, and the texts and log-probabilities of the most probable ones there.
# Texts are bytes of UTF-8, each as a character, because a token may be a part of a character.
Token = tuple[str, float, Sequence[tuple[str, float]]]
SMALLEST = 1e-6


def as_bytes(token: Any) -> str:
    """Returns the text of a token of a server, with a character for each byte."""
    content = token.token.encode(errors="replace") if token.bytes is None else bytes(token.bytes)
    return str(content.decode("latin-1"))


def label_probabilities(
    tokens: Sequence[Token], options: Sequence[str], key: str, answer: str | None = None
) -> np.ndarray | None:
    """Returns the probability of each option from the tokens of a reply, `[C]`; None if they tell none.

    The probability of the reply's own option is the product of those of its tokens. An alternative token leads away
    from the reply with the product of the tokens before it and its own probability, which belongs to the options that
    go on as it does. If there are several, each has a share by what is known of it from other places, or an equal one.
    Options are compared as texts, so that it is of no account where a tokenizer cuts them.

    Args:
        tokens: of the reply: `{"label": "refund"}`, or the option alone.
        options: as they are written.
        key: of the option in JSON.
        answer: the option that the reply was read as; None for any.
    """
    text = "".join(piece for piece, _, _ in tokens)
    found = [match.end() for match in re.finditer(rf'"{re.escape(key)}"\s*:\s*', text)]
    start = found[-1] if found else len(text) - len(text.lstrip())
    # Where the reply has quotes, they tell an option from a longer one.
    is_quoted = text[start : start + 1] == '"'
    written = [json.dumps(option, ensure_ascii=False) if is_quoted else option for option in options]
    written = [option.encode(errors="replace").decode("latin-1") for option in written]
    own = [number for number, option in enumerate(written) if text.startswith(option, start)]
    longest = max(own, key=lambda number: len(written[number]), default=None)
    if longest is None or (answer is not None and options[longest] != answer):
        return None
    end = start + len(written[longest])
    exact, undecided = np.zeros(len(options)), list[tuple[list[int], float]]()
    place, before = 0, 0.0
    for piece, logprob, alternatives in tokens:
        after = place + len(piece)
        if after > start and place < end:
            for other, other_logprob in alternatives:
                if other != piece:
                    going_on = text[start:place] + other[max(0, start - place) :]
                    fitting = [number for number, option in enumerate(written) if _agree(option, going_on)]
                    undecided.append((fitting, float(np.exp(before + other_logprob))))
            before += logprob
        place = after
    exact[longest] = np.exp(before)
    for fitting, share in undecided:
        if len(fitting) == 1:
            exact[fitting[0]] += share
    known = exact.copy()
    for fitting, share in undecided:
        if len(fitting) > 1:
            weights = known[fitting] if known[fitting].all() else np.ones(len(fitting))
            exact[fitting] += share * weights / weights.sum()
    return exact / exact.sum() if exact.sum() > SMALLEST else None


def _agree(option: str, going_on: str) -> bool:
    """Returns whether an option begins as a text, or is its beginning."""
    return bool(going_on.strip()) and (option.startswith(going_on) or going_on.startswith(option))


def fit_temperature(shares: np.ndarray, right: np.ndarray) -> float:
    """Returns the temperature by which the likelihood of the right options is greatest (Guo et al., arXiv 1706.04599).

    An example more, which is as likely to be of any option, keeps the temperature above 0 where all are right.

    Args:
        shares: probabilities, `[n, C]`.
        right: the right option of each, `[n]`.
    """
    from scipy.optimize import minimize_scalar

    targets = np.full(shares.shape, 1 / (shares.shape[1] * (len(right) + 1)))
    targets[np.arange(len(right)), right] += len(right) / (len(right) + 1)

    def loss(logarithm: float) -> float:
        return -float((targets * np.log(np.maximum(temper(shares, np.exp(logarithm)), 1e-300))).sum(axis=1).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(0.05), np.log(20)), method="bounded").x))


def temper(shares: np.ndarray, temperature: float) -> np.ndarray:
    """Returns probabilities `[..., C]` at a temperature."""
    logits = np.log(np.maximum(shares, SMALLEST)) / temperature
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    tempered: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return tempered
