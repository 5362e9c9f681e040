"""Writes whole targets with a model that fills masks: lengths are predicted, and masks are filled in rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distill.edge.cached_rows import pad_rows
from distill.edge.masks import MaskedTokens
from distill.edge.model_files import Session
from distill.edge.refinement import best_log_probability, refine_masks
from distill.edge.target_masks import Filled, TargetFrame
from distill.errors import UserError, first_line

MOST_LOGITS = 2**25  # Of the targets that are filled together, 134 MB.
Floats = NDArray[np.floating]


@dataclass(frozen=True)
class _Sources:
    """The states `[B, L, H]` of sources, the mask `[B, L]` of their tokens, and logits `[B, M+1]` of lengths from 0."""

    states: Floats
    mask: NDArray[np.int64]
    lengths: Floats


@dataclass(frozen=True)
class MaskPredictor:
    """Mask-Predict (Ghazvininejad et al., arXiv 1904.09324, section 3).

    Args:
        encoder: has the inputs `input_ids` and `attention_mask`, `[B, L]`, and the outputs `last_hidden_state` and
            `length_logits`.
        decoder: has the inputs `input_ids` and `attention_mask`, `[B, T]`, `encoder_hidden_states`,
            `encoder_attention_mask` and `positions [n]`, counted over `[B * T]`, and the output `logits [n, V]`.
        frame: of the targets.
        tokens: size of the vocabulary. Logits beyond it belong to no token.
    """

    encoder: Session
    decoder: Session
    frame: TargetFrame
    tokens: int

    def write(self, sources: Sequence[Sequence[int]], *, rounds: int, lengths: int) -> list[Filled]:
        """Returns a target for each source `[L]`: the best one of several lengths.

        The `lengths` most likely lengths each give a target, of which that with the largest mean log-probability of its
        tokens is taken (section 3.4).

        Raises:
            UserError: if the model cannot be run, or its logits are not finite.
        """
        read = self._read(sources)
        candidates = [
            (source, length)
            for source, logits in enumerate(read.lengths)
            for length in likely_lengths(logits, lengths, most=self.frame.most)
        ]
        best: list[Filled | None] = [None] * len(sources)
        for first, last in self._split([length for _, length in candidates]):
            chunk = candidates[first:last]
            for (source, _), filled in zip(chunk, self._fill(read, chunk, rounds), strict=True):
                before = best[source]
                if before is None or filled.score > before.score:
                    best[source] = filled
        return [filled for filled in best if filled is not None]

    def _read(self, sources: Sequence[Sequence[int]]) -> _Sources:
        tokens, is_token = pad_rows(sources, on_left=False)
        mask = is_token.astype(np.int64)
        states, lengths = _run(
            self.encoder, ["last_hidden_state", "length_logits"], {"input_ids": tokens, "attention_mask": mask}
        )
        return _Sources(states, mask, lengths)

    def _split(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the first and the last (exclusive) candidate of each part whose logits fit into memory."""
        parts, first, size = list[tuple[int, int]](), 0, 0
        for number, length in enumerate(lengths):
            if number > first and (size + length) * self.tokens > MOST_LOGITS:
                parts.append((first, number))
                first, size = number, 0
            size += length
        return [*parts, (first, len(lengths))]

    def _fill(self, read: _Sources, candidates: Sequence[tuple[int, int]], rounds: int) -> list[Filled]:
        """Returns a target for each source and length."""
        begin = len(self.frame.before)
        rows = []
        for _, length in candidates:
            ids = self.frame.put_around([self.frame.mask] * length)
            rows.append(MaskedTokens(ids, [0] * len(ids), [1] * len(ids), range(begin, begin + length)))
        owners = [source for source, _ in candidates]

        def predict(masked: Sequence[MaskedTokens | None]) -> list[Floats]:
            return self._predict(read, owners, masked)

        latest = refine_masks(
            rows, predict(rows), predict, rounds=rounds, mask_id=self.frame.mask, tokens=self.tokens
        )  # fmt: skip
        known = [logits[:, : self.tokens] for logits in latest]
        return [Filled(of.argmax(axis=-1).tolist(), float(best_log_probability(of).mean())) for of in known]

    def _predict(self, read: _Sources, owners: Sequence[int], masked: Sequence[MaskedTokens | None]) -> list[Floats]:
        """Returns the logits `[n, V]` at the masks of each target; of one that is None there are none."""
        chosen = [(owner, row) for owner, row in zip(owners, masked, strict=True) if row is not None]
        sources, rows = [owner for owner, _ in chosen], [row for _, row in chosen]
        tokens, is_token = pad_rows([row.ids for row in rows], on_left=False)
        places = [number * tokens.shape[1] + place for number, row in enumerate(rows) for place in row.positions]
        inputs = {
            "input_ids": tokens, "attention_mask": is_token.astype(np.int64),
            "encoder_hidden_states": read.states[sources], "encoder_attention_mask": read.mask[sources],
            "positions": np.array(places, dtype=np.int64),
        }  # fmt: skip
        [logits] = _run(self.decoder, ["logits"], inputs)
        counts = [0 if row is None else len(row.positions) for row in masked]
        return np.split(logits, np.cumsum(counts)[:-1])


def likely_lengths(logits: Floats, number: int, *, most: int) -> list[int]:
    """Returns the most likely lengths of a target, at most `number` of them, the likeliest first.

    Args:
        logits: `[M+1]`, of the lengths from 0.
        most: tokens of a target.
    """
    order = np.argsort(-logits[1 : most + 1], kind="stable")[:number] + 1
    lengths: list[int] = order.tolist()
    return lengths


def _run(session: Session, names: Sequence[str], inputs: dict[str, NDArray[np.generic]]) -> list[Floats]:
    """Returns the outputs of a model; raises UserError if it cannot be run, or they are not finite."""
    try:
        outputs = session.run(names, inputs)  # type: ignore[arg-type]  # States are no whole numbers.
    except Exception as error:  # The errors of onnxruntime have no class in common.
        raise UserError(f"the model cannot be run: {first_line(error)}") from error
    if not all(np.isfinite(output).all() for output in outputs):
        raise UserError("the model has outputs that are not finite")
    return outputs
