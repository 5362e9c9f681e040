"""The options of a generation: how tokens are chosen, and when it ends."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from distill.edge.search import check_count
from distill.edge.strings import check_text, shorten
from distill.errors import UserError

Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")
MOST_BEAMS = 64
MOST_TOKENS = 2**20
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class GenerationOptions:
    """The options of a generation.

    Args:
        max_new_tokens: tokens to write at most; None for the number of the bundle.
        temperature: divides the logits of sampled tokens; None takes the most probable token each time.
        top_k: samples from the `top_k` most probable tokens alone; None for any number.
        top_p: samples from the fewest most probable tokens whose probabilities sum to `top_p` or more (arXiv
            1904.09751); None for all.
        seed: repeats the sampled tokens; None for others each time.
        beams: sequences that a beam search keeps, 1 for none; None for the number of the bundle, or 1 for a text that
            is sampled.
        stop: texts at which the generation ends. They are no part of its text. A beam search goes on behind them, and
            its text is cut there.
        repetition_penalty: divides positive logits of the tokens so far and multiplies negative ones (arXiv 1909.05858,
            equation 2); None for that of the bundle.
        truncate: the end at which a prompt with more tokens than the model has positions is cut; None refuses it.

    Raises:
        UserError: for a value out of range, and for options that exclude each other.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    beams: int | None = None
    stop: Sequence[str] = ()
    repetition_penalty: float | None = None
    truncate: Side | None = None

    def __post_init__(self) -> None:
        for name, most in (("max_new_tokens", MOST_TOKENS), ("top_k", MOST_TOKENS)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), most=most)
        if self.beams is not None:
            check_count("beams", self.beams, most=MOST_BEAMS)
        if self.temperature is not None and not _is_positive(self.temperature):
            raise UserError(
                f"got temperature={shorten(self.temperature)}, expected a number above 0, or none for the most "
                "probable token each time"
            )
        if self.top_p is not None and not (_is_positive(self.top_p) and self.top_p <= 1):
            raise UserError(f"got top_p={shorten(self.top_p)}, expected a number above 0 and at most 1")
        if self.repetition_penalty is not None and not _is_positive(self.repetition_penalty):
            raise UserError(f"got repetition_penalty={shorten(self.repetition_penalty)}, expected a number above 0")
        if self.seed is not None:
            check_count("seed", self.seed, least=0, most=LARGEST_SEED)
        if self.truncate not in (None, *SIDES):
            raise UserError(f"got truncate={shorten(self.truncate)}, expected {' or '.join(SIDES)}, or none to refuse")
        object.__setattr__(self, "stop", _read_stops(self.stop))
        self._check_together()

    def _check_together(self) -> None:
        """Raises UserError for an option that another one leaves without an effect."""
        if self.temperature is None:
            for name in ("top_k", "top_p", "seed"):
                if (value := getattr(self, name)) is not None:
                    raise UserError(
                        f"got {name}={value} without a temperature, by which tokens are sampled: give temperature=1 "
                        "too, or leave it out"
                    )
        elif (self.beams or 1) > 1:
            raise UserError(f"got beams={self.beams} and temperature={self.temperature}, expected one of the two")


def _read_stops(stop: object) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, list | tuple) or not all(isinstance(text, str) and text for text in stops):
        raise UserError(f"got stop={shorten(stop)}, expected texts that are not empty")
    return tuple(map(check_text, stops))


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
