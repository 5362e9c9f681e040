"""The corruption of packed sequences into sources and targets, which depends on seed, sequence and visit only."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.errors import OptionError, UserError
from distill.text.corruptions.deletion import Deletion
from distill.text.corruptions.deshuffle import Deshuffle
from distill.text.corruptions.infilling import Infilling
from distill.text.corruptions.mass import Mass
from distill.text.corruptions.permutation import Permutation
from distill.text.corruptions.prefix import Prefix
from distill.text.corruptions.rotation import Rotation
from distill.text.corruptions.symbols import Symbols, check_text
from distill.text.corruptions.t5_spans import T5Spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CORRUPTIONS: dict[str, Any] = {
    "t5_spans": T5Spans, "prefix": Prefix, "deshuffle": Deshuffle, "mass": Mass, "infilling": Infilling,
    "permutation": Permutation, "deletion": Deletion, "rotation": Rotation,
}  # fmt: skip
_WITH_SHARE = ("t5_spans", "mass", "infilling", "deletion")
_WITH_SPANS = ("t5_spans", "infilling")


@dataclass(frozen=True)
class Corruption:
    """Options of a corruption, the keys of `conf/task/denoising.yaml`.

    Args:
        names: corruptions, which are applied one after another. Only those whose target is the whole text may be
            several.
        noise: share of the tokens that is hidden; None for that of each corruption.
        mean_span: mean length of spans in tokens.

    Raises:
        OptionError: for an unknown corruption or a number out of range.
        UserError: for several corruptions with targets of their own.
    """

    names: tuple[str, ...]
    noise: float | None = None
    mean_span: float = 3.0

    def __post_init__(self) -> None:
        if not self.names or any(name not in CORRUPTIONS for name in self.names):
            got = ", ".join(map(str, self.names)) or "nothing"
            raise OptionError("corruption", got, f"one or several of {', '.join(CORRUPTIONS)}")
        if self.noise is not None and not 0 < self.noise < 1:
            raise OptionError("noise", str(self.noise), "a share between 0 and 1, or null")
        if self.noise is not None and not set(self.names) & set(_WITH_SHARE):
            raise OptionError("noise", str(self.noise), f"null, because it is for {', '.join(_WITH_SHARE)}")
        if not 1 <= self.mean_span < float("inf"):
            raise OptionError("mean_span", str(self.mean_span), "a number of at least 1")
        own = [name for name in self.names if not CORRUPTIONS[name].restores_whole]
        if own and len(self.names) > 1:
            whole = ", ".join(name for name, of in CORRUPTIONS.items() if of.restores_whole)
            raise UserError(
                f"task.corruption={own[0]} has targets of its own and cannot be combined with others: leave out the "
                f"others, or combine {whole}"
            )

    def steps(self) -> list[Any]:
        """Returns the corruptions in their order."""
        shares = {} if self.noise is None else {"share": self.noise}
        return [
            CORRUPTIONS[name](
                **(shares if name in _WITH_SHARE else {}),
                **({"mean_span": self.mean_span} if name in _WITH_SPANS else {}),
            )
            for name in self.names
        ]


class Corruptor:
    """Makes sources and targets of the sequences that a tokenizer's texts are packed into.

    Both are wrapped in the special tokens that the tokenizer puts around a text, the last of which ends it.

    Those of the tokenizer must end with a token for the end of a text.
    """

    def __init__(self, corruption: Corruption, tokenizer: "PreTrainedTokenizerBase", *, seed: int) -> None:
        self.corruption, self.seed, self.symbols = corruption, seed, Symbols.of(tokenizer)
        self._steps = corruption.steps()
        wrapped: list[int] = tokenizer("a")["input_ids"]
        inside: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
        first = next(start for start in range(len(wrapped)) if wrapped[start : start + len(inside)] == inside)
        self._before, self._after = (
            np.array(of, dtype=np.int32) for of in (wrapped[:first], wrapped[first + len(inside) :])
        )

    def describe(self) -> list[object]:
        """Returns everything that a source and a target depend on besides sequence and visit."""
        symbols = self.symbols
        special = np.flatnonzero(symbols.special).tolist()
        return [asdict(self.corruption), self.seed, symbols.mask, symbols.sentinels.tolist(), special]

    def check_lengths(self, lengths: np.ndarray) -> None:
        """Raises UserError for lengths of sequences `[N]`, with special tokens, that cannot be corrupted so."""
        around = len(self._before) + len(self._after)
        for name, step in zip(self.corruption.names, self._steps, strict=True):
            check_text(int(lengths.min()) - around, step.least, name)
            step.check(int(lengths.max()) - around, self.symbols)

    def count_targets(self, lengths: np.ndarray) -> np.ndarray:
        """Returns the largest number of tokens of the target of a sequence of each length, `[N]`."""
        step, around = self._steps[0], len(self._before) + len(self._after)
        if step.restores_whole:
            return lengths
        sizes, inverse = np.unique(lengths, return_inverse=True)
        targets = np.array([step.count_targets(int(size) - around) + around for size in sizes])
        return targets[inverse]

    def __call__(self, ids: np.ndarray, *, example: int, visit: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source and the target of a sequence `[L]`, each with special tokens around it."""
        random = np.random.default_rng([self.seed, example, visit])
        text = ids[len(self._before) : len(ids) - len(self._after)]
        if self._steps[0].restores_whole:
            source, target = text, text
            for step in self._steps:
                source = step(source, random, self.symbols)
        else:
            source, target = self._steps[0](text, random, self.symbols)
        return self._wrap(source), self._wrap(target)

    def _wrap(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate((self._before, ids, self._after))
