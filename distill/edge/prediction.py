"""Predictions from records: rows of a model, and predictions in one pass, in several rounds, or by filling targets.

Examples are encoded as rows, rows of similar length share a batch, and each has its logits.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from distill.core.errors import UserError
from distill.edge.decoder import (
    POSITIONS,
    TARGET,
    TARGET_MASK,
    Decoder,
    Example,
    Items,
    Limits,
    MaskedTokens,
    Prediction,
    Record,
    Row,
    TooLongError,
    Truncation,
    chunk_texts,
)
from distill.edge.generation import pad_rows
from distill.edge.text_decoders import FilledTargets, MaskPredictor, Masks, locate_positions, refine_masks
from distill.edge.values import check_count

MOST_LOGITS = 2**26  # Of a model that writes text in a forward pass, 268 MB.
# Pairs of tokens of the rows of a batch, of which attention has a number for each head: 1.7 GB in 6 layers of 12 heads.
MOST_PAIRS = 2**24
ESCALATE = "escalate"  # The key of a prediction that says whether the teacher should make it.
SOURCES = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


class RecordError(UserError):
    """A record that the model has no input for.

    Args:
        number: of the record, from 1.
        reason: in words.
    """

    def __init__(self, number: int, reason: object) -> None:
        super().__init__(f"record {number}: {reason}")
        self.number, self.reason = number, str(reason)


class LongTextError(RecordError):
    """A record with more tokens than the bundle reads, where none may be cut."""


@dataclass(frozen=True)
class Encoded:
    """A record with its rows, and whether tokens of it were cut off."""

    example: Example
    rows: list[Row]
    is_truncated: bool


@dataclass(frozen=True)
class RowEncoder:
    """Encodes examples as rows of a model, and makes the inputs of batches of rows.

    Args:
        tokenizer: neither pads nor truncates.
        manifest: bundle.json.
    """

    tokenizer: Tokenizer
    decoder: Decoder
    manifest: Mapping[str, Any]

    @property
    def _is_left(self) -> bool:
        """Whether the logits of tokens are padded on the left: those of a target are on the right."""
        return self.manifest["padding_side"] == "left" and not self.decoder.targets

    def encode(self, records: Iterable[Record]) -> list[Encoded]:
        """Returns the rows of each record, cut as in training or else by the decoder."""
        examples = list(map(self.decoder.read, records))
        texts = [example.sequences() for example in examples]
        sequences = self._tokenize(list(itertools.chain.from_iterable(texts)))
        limits = Limits(*(self.manifest[name] for name in ("max_length", "doc_stride", "truncation_side")))
        encoded: list[Encoded] = []
        for number, (example, own) in enumerate(zip(examples, texts, strict=True), 1):
            tokenized = list(itertools.islice(sequences, len(own)))
            row: Row = [tokens for tokens, _ in tokenized]
            try:
                rows = self.decoder.cut(example, row, limits)
            except ValueError as error:
                refused = LongTextError if isinstance(error, TooLongError) else RecordError
                raise refused(number, error) from error
            # Windows share tokens, and lose none.
            is_cut = rows != [row] and _count_tokens([row]) > _count_tokens(rows)
            encoded.append(Encoded(example, rows, is_cut or any(was_cut for _, was_cut in tokenized)))
        return encoded

    def _tokenize(self, texts: Sequence[str | tuple[str, str]]) -> Iterator[tuple[Any, bool]]:
        """Yields the tokens of each sequence, and whether some were cut off; a decoder that cuts gets them all."""
        if self.decoder.cuts:
            chunks = chunk_texts(texts, lambda text: len(text) if isinstance(text, str) else sum(map(len, text)))
            encodings = itertools.chain.from_iterable(map(self.tokenizer.encode_batch, chunks))
            return ((encoding, False) for encoding in encodings)
        return Truncation(
            self.tokenizer, max_length=self.manifest["max_length"], side=self.manifest["truncation_side"],
            offsets=self.decoder.classes_are_tokens,
        ).encode(texts)  # fmt: skip

    def make_inputs(self, batch: Sequence[Row]) -> dict[str, NDArray[np.int64]]:
        """Returns the model's inputs `[B, L]` of B sequences, padded to the longest of the batch.

        For a model of choices they are `[B, 1, L]`: a choice does not depend on the others, so that each can be the
        only one.
        """
        sequences = list(itertools.chain.from_iterable(batch))
        length, inputs = max(map(len, sequences)), {}
        for name in self.manifest["inputs"]:
            rows = [getattr(sequence, SOURCES[name]) for sequence in sequences]
            on_left, filler = self.manifest["padding_side"] == "left", self.manifest["padding"][name]
            array, _ = pad_rows(rows, on_left=on_left, filler=filler)
            inputs[name] = array if self.decoder.input_axes == 2 else array[:, None]
        if self.decoder.targets:
            inputs[TARGET], is_read = pad_rows([sequence.target for sequence in sequences], on_left=False)
            if self.decoder.at_positions:
                inputs[TARGET_MASK], length = is_read.astype(np.int64), is_read.shape[1]
        if self.decoder.at_positions:
            inputs[POSITIONS] = locate_positions(sequences, length, on_left=self._is_left)
        return inputs

    def count_outputs(self, row: Row) -> int:
        """Returns how many of the logits' first axis belong to a row."""
        return sum(len(sequence.positions) for sequence in row) if self.decoder.at_positions else len(row)

    def select_items(self, example: Example, row: Row, logits: NDArray[np.floating]) -> Items:
        """Returns the items of a row, from logits `[K, C]` of its sequences or `[K, L, C]` of their tokens."""
        if self.decoder.axes == 3:  # The logits of tokens have padding.
            tokens = max(len(_scored_tokens(sequence)) for sequence in row)
            logits = logits[:, logits.shape[1] - tokens :] if self._is_left else logits[:, :tokens]
        return self.decoder.select(example, row, logits)

    def limit_logits(self, rows: Sequence[Row], batch_size: int, width: int) -> int:
        """Returns the number of rows whose logits `[tokens, width]` fit into memory at once, at most `batch_size`."""
        longest = max((len(row) * len(_scored_tokens(sequence)) for row in rows for sequence in row), default=1)
        return max(1, min(batch_size, MOST_LOGITS // (longest * width)))


def _scored_tokens(sequence: Any) -> Sequence[int]:
    """Returns the tokens of a sequence that have logits: those of its target, if it has one."""
    tokens: Sequence[int] = getattr(sequence, "target", sequence.ids)
    return tokens


def split_batches(rows: Sequence[Row], batch_size: int) -> Iterator[list[int]]:
    """Yields the positions of the rows of each batch, those of short sequences first, fewer of long ones."""
    lengths = [max(map(len, row)) for row in rows]
    batch: list[int] = []
    for i in sorted(range(len(rows)), key=lengths.__getitem__):
        if batch and (len(batch) == batch_size or (len(batch) + 1) * lengths[i] ** 2 > MOST_PAIRS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _count_tokens(rows: Sequence[Row]) -> int:
    return sum(len(sequence) for row in rows for sequence in row)


Run = Callable[[Sequence[Encoded], int], list[list[Items]]]


@dataclass(frozen=True)
class PredictionOptions:
    """The options of `Bundle.predict`, with the probability below which a prediction is left to the teacher."""

    batch_size: int
    truncate: bool
    most_rows: int | None
    rounds: int | None
    lengths: int | None
    escalate_below: float | None = None


@dataclass(frozen=True)
class Predictor:
    """Predicts from records in one pass of the model.

    Args:
        rows: of the model.
        run: returns the items of each row of each record with their logits, which are finite.
        threshold: probability below which a prediction has no label; None for none.
        subject: the bundle and its kind, in a message.

    Raises:
        UserError: for rounds or lengths that the model cannot predict in.
    """

    rows: RowEncoder
    run: Run
    threshold: float | None
    subject: str
    options: PredictionOptions

    fills_masks: ClassVar[bool] = False
    predicts_lengths: ClassVar[bool] = False

    def __post_init__(self) -> None:
        rounds, lengths = self.options.rounds, self.options.lengths
        if rounds is not None:
            check_count("rounds", rounds)
            if rounds > 1 and not self.fills_masks:
                raise UserError(f"got rounds={rounds}, and {self.subject}, which fills no masks: use 1")
        if lengths is not None:
            if not self.predicts_lengths:
                raise UserError(f"got lengths={lengths}, and {self.subject}, which predicts no lengths: leave it out")
            check_count("lengths", lengths)

    def predict(self, records: Sequence[Record]) -> list[Prediction]:
        """Returns the prediction for each record; raises what `Bundle.predict` does."""
        encoded = self.rows.encode(records)
        for number, one in enumerate(encoded, 1):
            self._check_length(number, one)
        outputs = self._find_outputs(encoded)
        return [self._decode(one, rows) for one, rows in zip(encoded, outputs, strict=True)]

    def _find_outputs(self, encoded: Sequence[Encoded]) -> list[list[Items]]:
        """Returns the items of each row of each record with their logits."""
        return self.run(encoded, self.options.batch_size)

    def _check_length(self, number: int, one: Encoded) -> None:
        """Raises LongTextError for a record that is too long, the one of this number."""
        if one.is_truncated and not self.options.truncate:
            length = self.rows.manifest["max_length"]
            raise LongTextError(number, f"it has more tokens than the {length} that the bundle reads: cut it")
        most = self.options.most_rows
        if most is not None and len(one.rows) > most:
            raise LongTextError(number, f"it has {len(one.rows):,} windows, expected {most} at most: cut it")

    def _decode(self, one: Encoded, rows: Sequence[Items]) -> Prediction:
        """Returns the prediction for a record, without its label if the probability is below the threshold."""
        prediction = self.rows.decoder.decode(one.example, rows)
        if self.threshold is not None and prediction["probability"] < self.threshold:
            prediction = {**prediction, self.rows.decoder.fields[0]: None}
        if (below := self.options.escalate_below) is not None:
            prediction = {**prediction, ESCALATE: prediction["probability"] < below}
        return {**prediction, "truncated": True} if one.is_truncated else prediction


class MaskRefiner(Predictor):
    """Predicts the masks of texts, in several rounds if asked to."""

    fills_masks = True

    def _find_outputs(self, encoded: Sequence[Encoded]) -> list[list[Items]]:
        outputs = super()._find_outputs(encoded)
        rounds = self.options.rounds or 1
        if rounds == 1:
            return outputs
        decoder = cast(Masks, self.rows.decoder)

        def predict(rows: Sequence[MaskedTokens | None]) -> list[NDArray[np.floating]]:
            masked = [replace(one, rows=[] if row is None else [[row]]) for one, row in zip(encoded, rows, strict=True)]
            again = self.run(masked, self.options.batch_size)
            return [row[0][1] if row else np.empty(0) for row in again]

        tokens = [row for [(row, _)] in outputs]
        refined = refine_masks(
            tokens, [logits for [(_, logits)] in outputs], predict,
            rounds=rounds, mask_id=decoder.mask_id, tokens=decoder.size,
        )  # fmt: skip
        return [[items] for items in zip(tokens, refined, strict=True)]


@dataclass(frozen=True)
class TargetFiller(Predictor):
    """Predicts the target of each source, of the best length and after all rounds.

    Args:
        filler: the model.
    """

    fills_masks = True
    predicts_lengths = True
    filler: MaskPredictor

    def _find_outputs(self, encoded: Sequence[Encoded]) -> list[list[Items]]:
        """Returns the target of each source. Its logits are no longer read."""
        decoder = cast(FilledTargets, self.rows.decoder)
        rounds, lengths = self.options.rounds or decoder.rounds, self.options.lengths or decoder.lengths
        sources = [one.rows[0][0] for one in encoded]
        targets: list[list[Items]] = [[] for _ in sources]
        for batch in split_batches([[source] for source in sources], self.options.batch_size):
            filled = self.filler.write([sources[i].ids for i in batch], rounds=rounds, lengths=lengths)
            for i, target in zip(batch, filled, strict=True):
                targets[i] = [(target, np.empty(0))]
        return targets
