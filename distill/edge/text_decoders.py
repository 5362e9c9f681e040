"""Decoders of models that write texts or fill masks, token by token, in one pass, or in rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from distill.core.errors import UserError, check_text, escape, shorten
from distill.edge.bundle_files import Session, Value, encoder_file, session
from distill.edge.decoder import (
    POSITIONS,
    TARGET,
    TARGET_MASK,
    Decoder,
    Example,
    Floats,
    Items,
    Limits,
    MaskedTokens,
    Prediction,
    Record,
    Row,
    SourceTokens,
    TooLongError,
    Truncation,
    fill_masks,
    show_piece,
    softmax,
    split_inputs,
)
from distill.edge.generation import PAST, Writing, pad_rows, run_model
from distill.edge.values import COUNT, SIZE_OR_NONE, TOKENS, Rule, is_size, null_or

STATES = "encoder_hidden_states"  # The input of a decoder with an encoder.


class WholeTexts:
    """A model that writes text, run on whole texts: its caches are empty, and nobody reads those that it returns.

    A causal model has the inputs `input_ids [B, L]` and `attention_mask [B, L]`, and an encoder-decoder
    `decoder_input_ids [B, T]` too. Texts may be padded on either side. One that fills targets has no caches, and the
    inputs `decoder_attention_mask [B, T]` and `positions [n]` besides.

    Args:
        decoder: as `export.generator` or `export.mask_predictor` writes it.
        encoder: of an encoder-decoder; None for a causal model.
    """

    def __init__(self, decoder: Session, encoder: Session | None) -> None:
        self.decoder, self.encoder = decoder, encoder
        self.shapes = {value.name: value.shape for value in decoder.get_inputs()}

    def run(self, names: Sequence[str], inputs: Mapping[str, NDArray[np.int64]]) -> list[NDArray[np.floating]]:
        """Returns the outputs of these names."""
        rows, mask = len(inputs["input_ids"]), inputs["attention_mask"]
        feed: dict[str, Any] = {
            name: np.zeros((rows, shape[1], 0, shape[3]), dtype=np.float32)
            for name, shape in self.shapes.items()
            if name.startswith(PAST)
        }
        if self.encoder is None:
            positions = (mask.cumsum(axis=1) - 1).clip(min=0)
            feed |= {"input_ids": inputs["input_ids"], "attention_mask": mask, "position_ids": positions}
        else:
            states = self._encode(inputs["input_ids"], mask)
            feed |= {"input_ids": inputs[TARGET], "encoder_attention_mask": mask, STATES: states}
            feed |= {own: inputs[name] for own, name in self._own_inputs().items()}
        return self.decoder.run(names, {name: value for name, value in feed.items() if name in self.shapes})

    def _encode(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.floating]:
        """Returns the states `[B, L, H]` of the sources; equal ones that follow each other are encoded once."""
        assert self.encoder is not None
        changes = (ids[1:] != ids[:-1]).any(axis=1) | (mask[1:] != mask[:-1]).any(axis=1)
        firsts = np.flatnonzero(np.append(True, changes))
        [states] = self.encoder.run(["last_hidden_state"], {"input_ids": ids[firsts], "attention_mask": mask[firsts]})
        return states if len(firsts) == len(ids) else np.repeat(states, np.diff(firsts, append=len(ids)), axis=0)

    def get_inputs(self) -> Sequence[Any]:
        """Returns the inputs that `run` takes."""
        if self.encoder is None:
            return [Value(name, self.shapes[name]) for name in ("input_ids", "attention_mask")]
        own = [Value(name, self.shapes[given]) for given, name in self._own_inputs().items()]
        return [*self.encoder.get_inputs(), Value(TARGET, self.shapes["input_ids"]), *own]

    def _own_inputs(self) -> dict[str, str]:
        """Returns the further inputs of a decoder that fills targets, and their names in `run`."""
        names = {"attention_mask": TARGET_MASK, POSITIONS: POSITIONS}
        return {own: name for own, name in names.items() if own in self.shapes}

    def get_outputs(self) -> Sequence[Any]:
        """Returns the outputs of the decoder."""
        return self.decoder.get_outputs()


def open_model(path: Path, threads: int | None = None, *, encoder: Path | None = None) -> Session:
    """Returns a session that reads whole texts: `WholeTexts` of a model with caches or an encoder, else its own.

    Args:
        threads: as in `bundle_files.session`.
        encoder: the file of the encoder, if there is one; None for the one beside `path`.

    Raises:
        UserError: if a file cannot be loaded.
    """
    loaded = session(path, threads)
    if not any(value.name.startswith(PAST) or value.name == STATES for value in loaded.get_inputs()):
        return loaded
    beside = encoder_file(path) if encoder is None else encoder
    return WholeTexts(loaded, session(beside, threads) if beside.is_file() else None)


class Masks(Decoder):
    """Decodes the masks of a text: the most probable pieces of each, and the `text` with the best ones in their place.

    An entry of `masks` has `start` and `end` of the mask in code points, and `pieces`, each a `piece` of text with its
    `probability`, the most probable one first. A record is a text, or `{"text": ..., "top_k": ...}` with the number of
    pieces. A mask that was cut off has no entry and stays in the text.

    Args:
        decoding: `mask_token`, and `top_k`, the number of pieces for a record that gives none.
    """

    fields = ("masks", "text")
    classes_are_tokens = True
    at_positions = True

    def configure(self, decoding: Mapping[str, Any]) -> None:
        self.size = self.tokenizer.get_vocab_size()
        mask_token = decoding.get("mask_token")
        mask_id = self.tokenizer.token_to_id(mask_token) if isinstance(mask_token, str) else None
        if mask_id is None:
            raise UserError(f"decoding has mask_token {shorten(mask_token)}, expected a token of tokenizer.json")
        self.mask_token, self.mask_id = str(mask_token), int(mask_id)
        self.top_k = decoding.get("top_k")
        if not self._is_number(self.top_k):
            raise UserError(f"decoding has top_k {shorten(self.top_k)}, expected {self._numbers()}")

    def _is_number(self, value: object) -> bool:
        return is_size(value) and cast(int, value) <= self.size

    def _numbers(self) -> str:
        return f"a whole number from 1 to {self.size}, the tokens of the vocabulary"

    def parse(self, line: str) -> Record:
        return line

    def read(self, record: Record) -> Example:
        if isinstance(record, MaskedTokens):
            return Example("", tokens=record)
        text = record.get("text") if isinstance(record, Mapping) else record
        top_k = record.get("top_k") if isinstance(record, Mapping) else None
        if not isinstance(text, str):
            raise UserError(f'got {shorten(record)}, expected a text or {{"text": ..., "top_k": ...}}')
        if top_k is not None and not self._is_number(top_k):
            raise UserError(f"got top_k={shorten(top_k)}, expected {self._numbers()}")
        if self.mask_token not in text:
            raise UserError(f"got {shorten(text)} without a mask, expected {self.mask_token} at each place to fill")
        return Example(check_text(text), top_k=top_k)  # type: ignore[arg-type]  # It is a number.

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        if example.tokens is not None:
            return [[example.tokens]]
        [encoding] = row
        tokens = MaskedTokens.find(encoding, example.text, self.mask_id)
        if not tokens.positions:
            most = limits.max_length
            raise TooLongError(f"its masks are beyond the {most} tokens that the bundle reads: shorten the text")
        return [[tokens]]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return row[0], logits

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(tokens, logits)] = rows
        # A model may have more rows than there are tokens, such as a multiple of 64. They take no share.
        probabilities = softmax(logits[:, : self.size].astype(np.float64))
        best = np.argsort(-probabilities, axis=-1, kind="stable")[:, : example.top_k or self.top_k]
        spans = tokens.spans or [(None, None)] * len(best)  # Tokens that were made elsewhere have no text.
        masks = [
            {"start": start, "end": end, "pieces": [
                {"piece": show_piece(self.tokenizer, token), "probability": float(distribution[token])}
                for token in ids.tolist()
            ]}
            for (start, end), ids, distribution in zip(spans, best, probabilities, strict=True)
        ]  # fmt: skip
        is_text = example.tokens is None
        text = fill_masks(self.tokenizer, example.text, tokens, best[:, 0].tolist()) if is_text else None
        return {"masks": masks, "text": text}

    def format(self, prediction: Prediction) -> str:
        pieces = (
            ", ".join(f"{escape(of['piece'].strip())} {of['probability']:.4f}" for of in mask["pieces"])
            for mask in prediction["masks"]
        )
        return f"{escape(prediction['text'])}\t{'; '.join(pieces)}"


class Continuations(Decoder):
    """Makes predictions of texts that a model has written: `text`, its `tokens` and its `finish`.

    `tokens` are the ids, `finish` is `stop` at a stop string, `eos` at an end token and `length` at the last token that
    a text may have. A beam search adds its `score`.

    Where a whole text is scored in place of being continued, its items are all tokens but the first one.
    """

    fields = ("text", "tokens", "finish")
    axes = 3
    classes_are_tokens = True
    generates = True

    def complete(self, text: str) -> str:
        """Returns a text with what the model reads before every one."""
        return text

    def read(self, record: Record) -> Example:
        if isinstance(record, MaskedTokens):
            return Example("", tokens=record)
        if not isinstance(record, str):
            raise UserError(f"got {shorten(record)}, expected a text")
        return Example(self.complete(check_text(record)))

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        return [row if example.tokens is None else [example.tokens]]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return row, logits[0, :-1]

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(writing, _)] = rows
        return describe_writing(writing)

    def format(self, prediction: Prediction) -> str:
        return escape(prediction["text"])


class Targets(Continuations):
    """The decoder of a model with an encoder, whose predictions are those of `Continuations`.

    Where it is scored, a record is `{"source": ..., "target": ...}` or has the tokens of both, and the items are the
    tokens of the target.

    Args:
        decoding: `start`, the token that a target begins after, `end`, the one that ends it, which is put behind it if
            the tokenizer does not, `max_target`, the tokens that it is cut to, and `prefix`, which is put before every
            source; none if it is missing.
    """

    targets = True
    rules: Mapping[str, Rule] = {"prefix": null_or(lambda value: isinstance(value, str), "a text")}

    def configure(self, decoding: Mapping[str, Any]) -> None:
        self.start: int | None = decoding.get("start")
        self.end: int | None = decoding.get("end")
        self.max_target: int | None = decoding.get("max_target")
        self.prefix: str = decoding.get("prefix") or ""

    def complete(self, text: str) -> str:
        return self.prefix + text

    def read(self, record: Record) -> Example:
        if isinstance(record, SourceTokens):
            return Example("", tokens=record)
        if not isinstance(record, Mapping):
            return super().read(record)
        source, target = record.get("source"), record.get("target")
        if not isinstance(source, str) or not isinstance(target, str):
            raise UserError(f'got {shorten(record)}, expected {{"source": ..., "target": ...}}')
        return Example(self.complete(check_text(source)), target=check_text(target))

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        [source] = row or [example.tokens]
        if example.target is None and not isinstance(source, SourceTokens):
            return [row]
        if self.start is None or self.end is None or self.max_target is None:
            raise ValueError("a target cannot be scored, because decoding lacks start, end or max_target")
        if example.target is None:
            ids = source.target
        else:
            ids = self._tokenize(example.target, self.max_target, self.end, limits.side)
        # The decoder reads each token to predict the next one.
        target = [self.start, *ids[:-1]]
        return [[SourceTokens.add(source, target)]]

    def _tokenize(self, target: str, most: int, end: int, side: str) -> list[int]:
        ends = self.tokenizer.encode("a").ids[-1:] == [end]
        truncation = Truncation(self.tokenizer, max_length=most - (not ends), side=side, offsets=False)
        [(encoding, _)] = truncation.encode([target])
        return [*encoding.ids, *([] if ends else [end])]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return row, logits[0]


def describe_writing(writing: Writing) -> Prediction:
    """Returns a text that has ended as a prediction."""
    prediction: Prediction = {"text": writing.text, "tokens": writing.tokens, "finish": writing.finish}
    if writing.score is not None:
        prediction["score"] = writing.score
    return prediction | ({"truncated": True} if writing.is_truncated else {})


@dataclass(frozen=True)
class TargetFrame:
    """The special tokens before and after a target, the one that stands for a mask, and the most tokens of all."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mask: int
    max_target: int

    @property
    def most(self) -> int:
        """The most tokens of a target without the special ones."""
        return self.max_target - len(self.before) - len(self.after)

    def put_around(self, tokens: Sequence[int]) -> list[int]:
        """Returns tokens with the special ones."""
        return [*self.before, *tokens, *self.after]

    def describe(self) -> dict[str, Any]:
        """Returns the values of bundle.json's `decoding`."""
        return {**asdict(self), "before": list(self.before), "after": list(self.after)}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "TargetFrame":
        """Returns the frame of bundle.json's `decoding`; raises UserError for one without room for a token."""
        frame = cls(tuple(values["before"]), tuple(values["after"]), values["mask"], values["max_target"])
        if frame.most < 1:
            raise UserError(f"decoding has max_target {frame.max_target}, expected more than its special tokens")
        return frame


def choose_masked(tokens: Sequence[int], visit: int = 0) -> list[int]:
    """Returns the places of the tokens that are masked, in ascending order: the same ones for the same tokens.

    Their number is drawn uniformly from 1 to all of them (Ghazvininejad et al., arXiv 1904.09324, section 3.1).

    Args:
        tokens: of a target without special ones.
        visit: of the same target, from 0. Each has masks of its own.
    """
    if not len(tokens):
        return []
    random = np.random.default_rng([visit, *tokens])
    number = int(random.integers(1, len(tokens), endpoint=True))
    places: list[int] = np.sort(random.choice(len(tokens), size=number, replace=False)).tolist()
    return places


@dataclass(frozen=True)
class MaskedTarget(SourceTokens):
    """The row of a model that fills targets: a source, and a `target` with masks at `positions`."""

    positions: Sequence[int] = ()


@dataclass(frozen=True)
class Filled:
    """A target whose masks are filled: its tokens without special ones, and the mean of their log-probabilities."""

    tokens: list[int]
    score: float


class FilledTargets(Targets):
    """The decoder of a model that fills all masks of a target at once: `text`, its `tokens` and its `score`.

    `tokens` are the ids without special ones, and `score` is the mean of their log-probabilities.

    Where it is scored, a record is `{"source": ..., "target": ...}`, and the items are the tokens of the target that
    `choose_masked` chooses.

    Args:
        decoding: the fields of `TargetFrame`, and the numbers of `rounds` and of `lengths` where a call gives none.
    """

    fields = ("text", "tokens", "score")
    axes = 2
    at_positions = True
    generates = False
    rules: Mapping[str, Rule] = {
        **Targets.rules, "before": TOKENS, "after": TOKENS, "mask": COUNT, "max_target": COUNT,
        "rounds": SIZE_OR_NONE, "lengths": SIZE_OR_NONE,
    }  # fmt: skip

    def configure(self, decoding: Mapping[str, Any]) -> None:
        super().configure(decoding)
        self.frame, self.size = TargetFrame.read(decoding), self.tokenizer.get_vocab_size()
        self.rounds, self.lengths = decoding.get("rounds") or 1, decoding.get("lengths") or 1

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        if example.target is None:
            return [row]
        [source] = row
        most = self.frame.most
        ids = self.tokenizer.encode(example.target, add_special_tokens=False).ids
        ids = ids[-most:] if limits.side == "left" else ids[:most]
        places = choose_masked(ids)
        target = self.frame.put_around(ids)
        positions = [len(self.frame.before) + place for place in places]
        for position in positions:
            target[position] = self.frame.mask
        return [[MaskedTarget.add(source, target, positions=positions)]]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return row, logits

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(filled, _)] = rows
        text = self.tokenizer.decode(filled.tokens, skip_special_tokens=True).strip()
        return {"text": text, "tokens": filled.tokens, "score": filled.score}


def refine_masks(
    rows: Sequence[MaskedTokens],
    logits: Sequence[Floats],
    predict: Callable[[Sequence[MaskedTokens | None]], Sequence[Floats]],
    *,
    rounds: int,
    mask_id: int,
    tokens: int,
) -> list[Floats]:
    """Returns the logits `[N, V]` of the N masks of each row, each from the last round that predicted it.

    Round t of T (from 0) masks the `N * (T - t) // T` tokens of the lowest probability again and predicts them from all
    others, which keep their token and its probability (Ghazvininejad et al., arXiv 1904.09324, section 3.2). Of equal
    probabilities the earlier token is masked.

    Args:
        rows: with all masks.
        logits: `[N, V]` of each row, of round 0, which predicted all masks at once.
        predict: returns the logits `[n, V]` at the positions of each row; a row that is finished is None and has any.
        rounds: T, at least 1.
        mask_id: of the token that stands for a mask.
        tokens: size of the vocabulary. Logits beyond it belong to no token.
    """
    latest = [of.copy() for of in logits]
    certain = [best_log_probability(of[:, :tokens]) for of in latest]
    for number in range(1, rounds):
        counts = [len(row.positions) * (rounds - number) // rounds for row in rows]
        chosen = [np.sort(np.argsort(of, kind="stable")[:count]) for of, count in zip(certain, counts, strict=True)]
        masked = [
            _mask_again(row, of[:, :tokens].argmax(axis=-1), which, mask_id) if len(which) else None
            for row, of, which in zip(rows, latest, chosen, strict=True)
        ]
        if not any(counts):
            break
        for row, (which, new) in enumerate(zip(chosen, predict(masked), strict=True)):
            if len(which):
                latest[row][which] = new
                certain[row][which] = best_log_probability(new[:, :tokens])
    return latest


def best_log_probability(logits: Floats) -> Floats:
    """Returns the log-probability `[N]` (float64) of the most probable token of each row `[N, V]`."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(-np.log(shifted.sum(axis=-1, dtype=np.float64)))


def _mask_again(row: MaskedTokens, best: NDArray[np.integer], which: NDArray[np.integer], mask_id: int) -> MaskedTokens:
    """Returns the row with its predicted tokens, and masks at those of them that are predicted anew.

    Args:
        best: the predicted tokens, `[N]`.
        which: those that are masked, `[n]`, in ascending order.
    """
    ids, positions = np.array(row.ids), np.array(row.positions)
    ids[positions] = best
    ids[positions[which]] = mask_id
    return replace(row, ids=ids.tolist(), positions=positions[which].tolist(), spans=())


MOST_LOGITS = 2**25  # Of the targets that are filled together, 134 MB.


# The states `[B, L, H]` of sources, and the mask `[B, L]` of their tokens.
_Sources = tuple[Floats, NDArray[np.int64]]


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
        tokens, is_token = pad_rows(sources, on_left=False)
        inputs = {"input_ids": tokens, "attention_mask": is_token.astype(np.int64)}
        states, length_logits = _run(self.encoder, ["last_hidden_state", "length_logits"], inputs)
        read = states, inputs["attention_mask"]
        candidates = [
            (source, length)
            for source, logits in enumerate(length_logits)
            for length in likely_lengths(logits, lengths, most=self.frame.most)
        ]
        best: list[Filled | None] = [None] * len(sources)
        # The logits of a chunk fit into memory.
        for chunk in split_inputs(candidates, lambda candidate: candidate[1] * self.tokens, most=MOST_LOGITS):
            for (source, _), filled in zip(chunk, self._fill(read, chunk, rounds), strict=True):
                before = best[source]
                if before is None or filled.score > before.score:
                    best[source] = filled
        return [filled for filled in best if filled is not None]

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
        inputs = {
            "input_ids": tokens, "attention_mask": is_token.astype(np.int64),
            STATES: read[0][sources], "encoder_attention_mask": read[1][sources],
            POSITIONS: locate_positions(rows, tokens.shape[1], on_left=False),
        }  # fmt: skip
        [logits] = _run(self.decoder, ["logits"], inputs)
        counts = [0 if row is None else len(row.positions) for row in masked]
        return np.split(logits, np.cumsum(counts)[:-1])


def locate_positions(rows: Sequence[Any], length: int, *, on_left: bool) -> NDArray[np.int64]:
    """Returns the `positions` of rows `[n]`, counted over a batch `[B * length]` with padding on the left or right."""
    places = [
        number * length + (length - len(row.ids) if on_left else 0) + position
        for number, row in enumerate(rows)
        for position in row.positions
    ]
    return np.array(places, dtype=np.int64)


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
    outputs = list(run_model(session, names, inputs).values())
    if not all(np.isfinite(output).all() for output in outputs):
        raise UserError("the model has outputs that are not finite")
    return outputs
