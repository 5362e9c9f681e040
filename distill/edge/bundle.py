"""Predicts with a bundle through onnxruntime, tokenizers and numpy."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Tokenizer

from distill.core.errors import Overview, Shown, UserError, describe_call, first_line, shorten
from distill.core.files import hash_file
from distill.edge import bundle_files, decode
from distill.edge.bundle_files import (
    ABOVE,
    ANY,
    count_bytes,
    data_file,
    encoder_file,
    find_weight_files,
    list_model_files,
    needs_openvino,
    read_manifest,
    runs,
    shared_file,
    this_target,
)
from distill.edge.decode import Explanation, explain
from distill.edge.decoder import (
    Decoder,
    Example,
    Items,
    MaskedTokens,
    Prediction,
    Record,
    Row,
    TooLongError,
    Truncation,
    chunk_texts,
)
from distill.edge.generation import CachedModel, Generator, Writing, pad_rows
from distill.edge.index import (
    RESCORED,
    Index,
    Precision,
    check_count,
    check_dimensions,
    check_precision,
    find_nearest,
    similarity,
    take_dimensions,
)
from distill.edge.sampling import GenerationOptions, GenerationSettings
from distill.edge.text_decoders import (
    TARGET,
    TARGET_MASK,
    Continuations,
    FilledTargets,
    MaskPredictor,
    Masks,
    WholeTexts,
    describe_writing,
    open_model,
    refine_masks,
)

MOST_THREADS = 1024
SHOWN = 12  # Labels in an overview.
BATCH_SIZE = 32  # Where the bundle recommends none.
MOST_LOGITS = 2**26  # Of a model that writes text in a forward pass, 268 MB.
# Pairs of tokens of the rows of a batch, of which attention has a number for each head: 1.7 GB in 6 layers of 12 heads.
MOST_PAIRS = 2**24
POSITIONS = "positions"  # The input of a decoder with `at_positions`.
OneRecord = str | Mapping[str, Any] | MaskedTokens
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
    """The rows of a record, and whether tokens of it were cut off."""

    rows: list[Row]
    is_truncated: bool


class Bundle(Shown):
    """An exported student: its tokenizer, its labels, and one of its models.

    Args:
        directory: contains bundle.json, tokenizer.json and the models.
        model: a file of the bundle such as `fp32`, `int8` or `openvino`; None for the recommended one.
        threads: number of threads of the model; None for as many as the process may use cores.
        top_k: number of pieces for each mask, for a bundle that fills masks; None takes that of bundle.json.
        max_length: tokens that texts are cut to, which are less than those that bundle.json has; None takes those.

    Raises:
        UserError: if the directory is not a bundle or lacks the model, or a file is damaged.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        model: str | None = None,
        threads: int | None = None,
        top_k: int | None = None,
        max_length: int | None = None,
    ) -> None:
        if threads is not None:
            check_count("threads", threads, most=MOST_THREADS)
        self.directory = Path(directory)
        self.manifest = read_manifest(self.directory)
        if max_length is not None:
            check_count("max_length", max_length, most=self.manifest["max_length"])
        self.labels: list[str] = self.manifest["labels"]
        self.pair: bool = self.manifest["pair"]
        self.truncation_side: str = self.manifest["truncation_side"]
        decoder = _find_decoder(self.manifest, self.directory)
        models: dict[str, str] = self.manifest["models"]
        self.model = self.manifest["recommended"] if model is None else model
        if self.model is None:
            raise UserError(
                f"{directory} recommends no model because all failed the gate: choose one of {', '.join(models)}"
            )
        if self.model not in models:
            raise UserError(f"{directory} has no model {self.model}, expected one of {', '.join(models)}")
        self._check_target()
        # Rows in a forward pass unless a call names another number. It is 1 for a model whose predictions depend on the
        # other texts of a batch by more than the limit of its export.
        self.batch_size: int = self.manifest["batch_sizes"].get(self.model, BATCH_SIZE)
        # Why the model did not pass the gate of its export; None if it passed.
        self.caution: str | None = self.manifest["gates"].get(self.model)
        self.threshold: float | None = self.manifest["thresholds"].get(self.model)
        if self.threshold is not None and "probability" not in decoder.fields:
            raise UserError(f"{directory} is damaged: the decoder {self.manifest['decoder']} has no thresholds")
        path = self.directory / models[self.model]
        encoder = encoder_file(path) if decoder.targets else None
        self._check_files(path, encoder)
        self.tokenizer = self._load_tokenizer()
        if max_length is not None:
            self._shorten(max_length)
        self.decoder = self._create_decoder(decoder, top_k)
        self._check_weights(path)
        self.threads = bundle_files.count_cores() if threads is None else int(threads)
        self.session = open_model(path, self.threads)
        self._check_model(path)
        self._writer = self._load_writer(encoder) if decoder.generates else None
        self._filler = self._load_filler(encoder) if isinstance(self.decoder, FilledTargets) else None

    def __repr__(self) -> str:
        return describe_call("Bundle", str(self.directory), model=self.model)

    def overview(self) -> Overview:
        """Returns the kind of its predictions, its labels, and the size and the metrics of its model."""
        labels = ", ".join(self.labels[:SHOWN]) + (", ..." if len(self.labels) > SHOWN else "")
        path = self.directory / self.manifest["models"][self.model]
        metrics = self.manifest["metrics"].get(self.model, {})
        rows = {
            "directory": str(self.directory), "kind": str(self.manifest.get("kind", "")), "labels": labels,
            "model": f"{self.model}, {count_bytes(path) / 1e6:.1f} MB",
            "other models": ", ".join(name for name in self.manifest["models"] if name != self.model),
            "reads": f"{'two texts' if self.pair else 'one text'} of at most {self.manifest['max_length']} tokens",
            "metrics": ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()),
            "caution": self.caution or "",
        }  # fmt: skip
        return Overview("Bundle", [(name, value) for name, value in rows.items() if value])

    @property
    def input_names(self) -> list[str]:
        """The names of the model's inputs."""
        positions, targets = self.decoder.at_positions, self.decoder.targets
        own = {POSITIONS: positions, TARGET: targets, TARGET_MASK: positions and targets}
        return [*self.manifest["inputs"], *(name for name, is_input in own.items() if is_input)]

    def item_logits(
        self, records: Iterable[Record], *, batch_size: int | None = None, report: Callable[[float], None] | None = None
    ) -> list[NDArray[np.floating]]:
        """Returns the logits `[n, C]` of the items of each row of the model. Rows of similar length share a batch.

        A record is one row, or as many as it has windows. A row has one sequence of tokens, or one for each choice. The
        vectors of the texts of a record are together, and so are the scores of its documents, `[1, documents]`.

        Args:
            records: as in `predict`.
            batch_size: rows of a forward pass; None for that of the bundle.
            report: is called after each forward pass with the share of all rows that are done.
        """
        examples = [self.decoder.read(record) for record in self._records(records, None)]
        by_row = self._run(examples, self._encode(examples), batch_size, report)
        outputs = [[logits for _, logits in rows] for rows in by_row]
        if self.decoder.ranks:
            return [np.concatenate(rows).T for rows in outputs]
        return list(map(np.concatenate, outputs)) if self.decoder.encodes else list(itertools.chain(*outputs))

    def inputs(
        self, records: Iterable[Record], *, batch_size: int = BATCH_SIZE
    ) -> Iterator[dict[str, NDArray[np.int64]]]:
        """Yields the model's inputs for the records: `[B, L]`, or `[B, 1, L]` for a model of choices.

        Rows of similar length share a batch.
        """
        encoded = self._encode([self.decoder.read(record) for record in self._records(records, None)])
        rows = list(itertools.chain.from_iterable(one.rows for one in encoded))
        for batch in _batches(rows, batch_size):
            yield self._make_inputs([rows[i] for i in batch])

    def logits(
        self, texts: Iterable[str], pairs: Iterable[str] | None = None, *, batch_size: int | None = None
    ) -> NDArray[np.floating]:
        """Returns the logits `[texts, C]` of a model with one row of logits for each text.

        Args:
            texts: the texts, or the first ones of pairs.
            pairs: the second text of each pair.
            batch_size: texts of a forward pass; None for that of the bundle.
        """
        rows = self.item_logits(self._records(texts, pairs), batch_size=batch_size)
        if len({row.shape[-1] for row in rows}) > 1:
            raise UserError("the records have different numbers of choices, expected one: call item_logits")
        return np.concatenate(rows) if rows else np.empty((0, len(self.labels)), dtype=np.float32)

    def truncates(self, record: Record) -> bool:
        """Returns whether tokens of a record are cut off, because it has more than `max_length`.

        Args:
            record: as in `predict`.
        """
        return self._encode([self.decoder.read(record)])[0].is_truncated

    # A text is a sequence of texts as well, so that the two signatures overlap.
    @overload
    def predict(  # type: ignore[overload-overlap]
        self,
        records: OneRecord,
        pairs: str | None = None,
        *,
        batch_size: int | None = None,
        truncate: bool = True,
        most_rows: int | None = None,
        rounds: int | None = None,
        lengths: int | None = None,
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        records: Iterable[Record],
        pairs: Iterable[str] | None = None,
        *,
        batch_size: int | None = None,
        truncate: bool = True,
        most_rows: int | None = None,
        rounds: int | None = None,
        lengths: int | None = None,
    ) -> list[Prediction]: ...

    def predict(
        self,
        records: OneRecord | Iterable[Record],
        pairs: Iterable[str] | None = None,
        *,
        batch_size: int | None = None,
        truncate: bool = True,
        most_rows: int | None = None,
        rounds: int | None = None,
        lengths: int | None = None,
    ) -> Prediction | list[Prediction]:
        """Returns the prediction for each record, or for each text and its pair.

        A text or a mapping by itself is one record and has one prediction, without a list. So has one text with one
        text as `pairs`. Any other sequence is a list of records: a single pair is `[["a text", "its pair"]]`.

        For classes it has `label`, `probability` and the `probabilities` of all labels, for a number `value`, for tags
        `entities`, for a question with a context `answer`, `score`, `start` and `end`, and for one with choices
        `choice`, `index`, `probability` and `probabilities`; an encoder gives a text its `vector`, and a language
        model a text with masks its `masks` and the filled `text`; a query has the `order` and the `scores` of its
        documents. The label or choice is None where the bundle has a threshold and the probability is below. The
        prediction for a record that was cut has `truncated`, which is true.

        Args:
            records: texts, pairs of texts, or mappings with `question` and `context`, `choices` or `tokens`,
                or `query` and `documents`.
            pairs: the second text of each pair, if the records are the first ones.
            batch_size: rows of a forward pass, fewer of long ones; None for that of the bundle.
            truncate: whether to cut a record of more than `max_length` tokens.
            most_rows: windows that a record may have; None for any number.
            rounds: of predictions of the masks of a text. All are predicted at once; each further round masks the least
                certain tokens again, fewer each time, and predicts them from the others (`refine_masks`). None is one
                round, or as many as bundle.json has for targets whose masks are filled.
            lengths: of a target whose masks are filled, the likeliest ones. Of their texts the one with the largest
                mean log-probability of a token is taken. None for as many as bundle.json has.

        Raises:
            LongTextError: for such a record, if none may be cut, or if its masks or its question are cut away, and for
                one of more windows.
            UserError: for a record of another form, a model whose logits are not finite, `rounds` below 1, or above it
                for a bundle that fills no masks, and `lengths` below 1, or for a bundle that predicts none.
        """
        options: dict[str, Any] = {
            "batch_size": batch_size, "truncate": truncate, "most_rows": most_rows,
            "rounds": self._check_rounds(rounds), "lengths": self._check_lengths(lengths),
        }  # fmt: skip
        if not isinstance(records, str | Mapping | MaskedTokens):
            return self._predict(self._records(records, pairs), **options)
        if not isinstance(pairs, str | None):
            raise UserError(
                f"got one text and {shorten(pairs)} as pairs, expected one text: give two lists or two texts"
            )
        [prediction] = self._predict(self._records([records], None if pairs is None else [pairs]), **options)
        return prediction

    def _predict(
        self,
        records: Sequence[Record],
        *,
        batch_size: int | None,
        truncate: bool,
        most_rows: int | None,
        rounds: int | None,
        lengths: int | None,
    ) -> list[Prediction]:
        if self.generates:
            side = self.truncation_side if truncate else None
            return self.generate_all(cast(list[str], records), batch_size=batch_size, truncate=side)
        examples = [self.decoder.read(record) for record in records]
        encoded = self._encode(examples)
        if not truncate:
            self._refuse_long(encoded)
        for number, one in enumerate(encoded, 1):
            if most_rows is not None and len(one.rows) > most_rows:
                raise LongTextError(number, f"it has {len(one.rows):,} windows, expected {most_rows} at most: cut it")
        if self._filler is not None:
            outputs: Sequence[list[Items]] = self._fill(encoded, rounds, lengths, batch_size)
        else:
            outputs = self._run_finite(examples, encoded, batch_size)
            if rounds is not None and rounds > 1:
                outputs = self._refine(examples, outputs, rounds, batch_size)
        predictions = [
            self._withhold(self.decoder.decode(example, rows)) for example, rows in zip(examples, outputs, strict=True)
        ]
        return [
            {**prediction, "truncated": True} if one.is_truncated else prediction
            for prediction, one in zip(predictions, encoded, strict=True)
        ]

    def _check_rounds(self, rounds: int | None) -> int | None:
        if rounds is None:
            return None
        check_count("rounds", rounds)
        if rounds > 1 and not self.decoder.at_positions:
            kind = self.manifest["kind"]
            raise UserError(f"got rounds={rounds}, and {self.directory} is of a {kind}, which fills no masks: use 1")
        return int(rounds)

    def _check_lengths(self, lengths: int | None) -> int | None:
        if lengths is None:
            return None
        if self._filler is None:
            kind = self.manifest["kind"]
            raise UserError(
                f"got lengths={lengths}, and {self.directory} is of a {kind}, which predicts no lengths: leave it out"
            )
        check_count("lengths", lengths)
        return int(lengths)

    def _fill(
        self, encoded: Sequence[Encoded], rounds: int | None, lengths: int | None, batch_size: int | None
    ) -> list[list[Items]]:
        """Returns the target of each source, of the best length and after all rounds. Its logits are no longer read."""
        decoder, filler = cast(FilledTargets, self.decoder), cast(MaskPredictor, self._filler)
        batch_size = self.batch_size if batch_size is None else batch_size
        check_count("batch_size", batch_size)
        sources = [one.rows[0][0] for one in encoded]
        targets: list[list[Items]] = [[] for _ in sources]
        for batch in _batches([[source] for source in sources], batch_size):
            filled = filler.write(
                [sources[i].ids for i in batch], rounds=rounds or decoder.rounds, lengths=lengths or decoder.lengths
            )
            for i, target in zip(batch, filled, strict=True):
                targets[i] = [(target, np.empty(0))]
        return targets

    def _refine(
        self, examples: Sequence[Example], outputs: Sequence[list[Items]], rounds: int, batch_size: int | None
    ) -> list[list[Items]]:
        """Returns the masks of each example, one row each, with their logits after all rounds."""
        decoder = cast(Masks, self.decoder)

        def predict(rows: Sequence[MaskedTokens | None]) -> list[NDArray[np.floating]]:
            encoded = [Encoded([] if row is None else [[row]], is_truncated=False) for row in rows]
            again = self._run_finite(examples, encoded, batch_size)
            return [row[0][1] if row else np.empty(0) for row in again]

        tokens = [row for [(row, _)] in outputs]
        refined = refine_masks(
            tokens, [logits for [(_, logits)] in outputs], predict,
            rounds=rounds, mask_id=decoder.mask_id, tokens=decoder.size,
        )  # fmt: skip
        return [[items] for items in zip(tokens, refined, strict=True)]

    def _refuse_long(self, encoded: Sequence[Encoded]) -> None:
        for number, one in enumerate(encoded, 1):
            if one.is_truncated:
                length = self.manifest["max_length"]
                raise LongTextError(number, f"it has more tokens than the {length} that the bundle reads: cut it")

    def explain(self, text: str, *, batch_size: int | None = None) -> Explanation:
        """Returns the most likely class of a text, and what its probability loses without each word.

        Args:
            batch_size: texts of a forward pass; None for that of the bundle.

        Raises:
            UserError: for a bundle that gives texts no classes.
        """
        return explain(self, text, batch_size=batch_size)

    @property
    def generates(self) -> bool:
        """Whether a prediction is a text that the model writes."""
        return self._writer is not None and self.decoder.fields[0] == "text"

    def generate(self, prompt: str, **options: Any) -> Iterator[str]:
        """Returns an iterator over the pieces of the text that the model writes after a prompt, as they come.

        A piece has whole characters, and nothing of a stop string. A beam search has one piece, which comes at its end.

        Args:
            prompt: a text to continue, or the source of a model with an encoder, before which the prefix of its task is
                put.
            options: the fields of `GenerationOptions`, such as `max_new_tokens=100, temperature=0.8, seed=1`.

        Raises:
            UserError: for a bundle that writes no text, an option out of range, and a prompt that is empty or too long.
        """
        generator = self.generator()
        [writing] = generator.start([prompt], GenerationOptions(**options))
        return _read_pieces(generator, writing)

    def generate_all(
        self, prompts: Iterable[str], *, batch_size: int | None = None, **options: Any
    ) -> list[Prediction]:
        """Returns the text that the model writes after each prompt.

        Each is a mapping with `text`, `tokens` (the ids, with the end token), `finish` (`stop` at a stop string, `eos`
        at an end token, `length` at the last token that it may have), the `score` of a beam search, and `truncated`,
        which is true, if its prompt was cut. Of one seed, each text is sampled independently, whatever the batches are.

        Args:
            prompts: texts to continue, or the sources of a model with an encoder.
            batch_size: texts that are written together; None for that of the bundle.
            options: as in `generate`.

        Raises:
            UserError: as `generate` does.
        """
        batch_size = self.batch_size if batch_size is None else batch_size
        check_count("batch_size", batch_size)
        generator, chosen = self.generator(), GenerationOptions(**options)
        read = [generator.prompts.read(prompt, chosen) for prompt in _to_list(prompts, "prompts=")]
        predictions: list[Prediction] = [{} for _ in read]
        # Prompts of similar length share a batch.
        order = sorted(range(len(read)), key=lambda number: len(read[number].tokens))
        for begin in range(0, len(order), batch_size):
            numbers = order[begin : begin + batch_size]
            writings = generator.start([read[number] for number in numbers], chosen, numbers=numbers)
            while generator.running:
                generator.step()
            for number, writing in zip(numbers, writings, strict=True):
                predictions[number] = describe_writing(writing)
        return predictions

    def generator(self) -> Generator:
        """Returns a generator of its own, which writes several texts step by step.

        Raises:
            UserError: for a bundle that writes no text.
        """
        if self._writer is None:
            kind = self.manifest.get("kind")
            raise UserError(f"{self.directory} is of a {kind} and writes no text: call predict instead")
        model, settings = self._writer
        return Generator(model, self.tokenizer, settings, cast(Continuations, self.decoder).complete)

    def encode(
        self, texts: Iterable[str], *, dimensions: int | None = None, batch_size: int | None = None
    ) -> NDArray[np.float32]:
        """Returns the vectors `[texts, D]` (float32) of texts.

        Args:
            texts: the texts, none of them empty.
            dimensions: number of first dimensions, scaled to the length of the whole vector; None for all. Those that
                passed the gate of the export are in `dimensions`.
            batch_size: texts of a forward pass; None for that of the bundle.

        Raises:
            UserError: for a bundle without vectors, a text that is empty or no text, dimensions that the vectors have
                not, and vectors that are not finite.
        """
        if not self.decoder.encodes:
            raise UserError(
                f"{self.directory} is of a {self.manifest['kind']} and has no vectors of texts: call predict instead"
            )
        records = self._records(texts, None)
        for text in records:
            if not isinstance(text, str):
                raise UserError(f"got {shorten(text)}, expected a text")
        examples = list(map(self.decoder.read, records))
        width = self._width()
        size = check_dimensions(dimensions, width)
        vectors = [
            logits for rows in self._run_finite(examples, self._encode(examples), batch_size) for _, logits in rows
        ]
        whole = np.concatenate([np.empty((0, width)), *vectors], dtype=np.float32)
        return whole if size == width else take_dimensions(whole, size)

    def _width(self) -> int:
        """Returns the number of logits of an item, or of dimensions of a vector."""
        return int(next(value.shape[-1] for value in self.session.get_outputs() if value.name == "logits"))

    @property
    def dimensions(self) -> list[int]:
        """The numbers of first dimensions of vectors that passed the gate of the export, from the smallest."""
        forms = self.manifest.get("vectors", {}).get(self.model, [])
        passed = {form["dimensions"] for form in forms if form["precision"] == "float32" and form["gate"] == "passed"}
        return sorted(passed)

    def _withhold(self, prediction: Prediction) -> Prediction:
        """Returns the prediction, without its label if the probability is below the threshold."""
        if self.threshold is None or prediction["probability"] >= self.threshold:
            return prediction
        return {**prediction, self.decoder.fields[0]: None}

    def _records(self, records: Iterable[Record], pairs: Iterable[str] | None) -> list[Record]:
        listed = _to_list(records, "")
        if pairs is None:
            return listed
        if not self.pair:
            raise UserError("got pairs, the bundle reads single texts: leave out pairs")
        others = _to_list(pairs, "pairs=")
        if len(listed) != len(others):
            raise UserError(f"got {len(listed)} texts and {len(others)} pairs, expected one pair for each text")
        return [list(pair) for pair in zip(cast(list[str], listed), cast(list[str], others), strict=True)]

    def _run(
        self,
        examples: Sequence[Example],
        encoded: Sequence[Encoded],
        batch_size: int | None,
        report: Callable[[float], None] | None = None,
    ) -> list[list[Items]]:
        """Returns the items of each row of each example with their logits; `report` is as in `item_logits`."""
        batch_size = self.batch_size if batch_size is None else batch_size
        check_count("batch_size", batch_size)
        rows = list(itertools.chain.from_iterable(one.rows for one in encoded))
        batch_size = self._limit_logits(rows, batch_size)
        owners = [example for example, one in zip(examples, encoded, strict=True) for _ in one.rows]
        outputs: list[Any] = [None] * len(rows)
        done = 0
        for batch in _batches(rows, batch_size):
            try:
                logits = self.session.run(["logits"], self._make_inputs([rows[i] for i in batch]))[0]
            except Exception as error:  # The errors of onnxruntime have no class in common.
                reason = first_line(error)
                raise UserError(f"{self.directory}: the model {self.model} cannot be run: {reason}") from error
            sizes = [self._count_outputs(rows[i]) for i in batch]
            for i, size, end in zip(batch, sizes, itertools.accumulate(sizes), strict=True):
                outputs[i] = self._select_items(owners[i], rows[i], logits[end - size : end])
            done += len(batch)
            if report is not None:
                report(done / len(rows))
        remaining = iter(outputs)
        return [list(itertools.islice(remaining, len(one.rows))) for one in encoded]

    def _limit_logits(self, rows: Sequence[Row], batch_size: int) -> int:
        """Returns the number of rows whose logits fit into memory at once, at most `batch_size`."""
        if (not self.decoder.generates and not self.decoder.targets) or not rows:
            return batch_size
        longest = max(
            len(row) * len(sequence.target if self.decoder.targets else sequence) for row in rows for sequence in row
        )
        return max(1, min(batch_size, MOST_LOGITS // (longest * self._width())))

    def index(
        self,
        texts: Iterable[str],
        *,
        precision: Precision = "float32",
        dimensions: int | None = None,
        batch_size: int | None = None,
    ) -> Index:
        """Returns an index of the vectors of texts, for `search`.

        Args:
            texts: the corpus.
            precision: `float32`, `int8` or `binary`, which are 4 and 32 times as small.
            dimensions: number of first dimensions; None for all.
            batch_size: texts of a forward pass; None for that of the bundle.

        Raises:
            UserError: as `encode` and `Index` do.
        """
        check_precision(precision)
        if self.decoder.encodes:
            check_dimensions(dimensions, self._width())
        vectors = self.encode(texts, batch_size=batch_size)
        return Index(vectors, precision=precision, dimensions=dimensions, source=self._identity())

    def search(
        self,
        queries: Iterable[str],
        corpus: Iterable[str] | NDArray[np.floating] | Index,
        *,
        k: int = 10,
        rescore: int = RESCORED,
    ) -> list[list[tuple[int, float]]]:
        """Returns positions from 0 and cosines of the `k` texts of the corpus nearest to each query, nearest first.

        Args:
            queries: the texts to search for.
            corpus: texts, or their vectors `[texts, D]` as `encode` returns them, which are computed once so, or an
                index.
            k: number of texts for each query.
            rescore: in a binary index, `rescore * k` texts are compared again by their vectors in 8 bits; 0 for none.

        Raises:
            UserError: as `encode` and `Index.search` do, and for an index of another bundle.
        """
        if isinstance(corpus, Index):
            if corpus.source not in (None, self._identity()):
                raise UserError(
                    f"the index is of another bundle than {self.directory}: make it again with Bundle.index"
                )
            found = corpus.search(self.encode(queries), k, rescore=rescore)
        else:
            has_texts = not isinstance(corpus, np.ndarray) or corpus.dtype.kind in "USO"
            vectors = self.encode(cast(Iterable[str], corpus)) if has_texts else cast(NDArray[np.floating], corpus)
            found = find_nearest(self.encode(queries), vectors, k)
        cosines, rows = found
        return [
            list(zip(numbers.tolist(), scores.tolist(), strict=True))
            for numbers, scores in zip(rows, cosines, strict=True)
        ]

    def rank(self, query: str, documents: Iterable[str], *, batch_size: int | None = None) -> Prediction:
        """Returns the `order` of documents for a query and their `scores`, as `predict` does for one record.

        `order` has their positions from 0, the best first, and `scores` is in the order of `documents`. If tokens of
        one were cut, it has `truncated`, which is true.

        Args:
            query: a text.
            documents: one text or more, such as those that a search has found.
            batch_size: documents of a forward pass; None for that of the bundle.

        Raises:
            UserError: for a bundle that ranks no documents, a text that is empty, and no documents.
        """
        if not self.decoder.ranks:
            kind = self.manifest["kind"]
            raise UserError(f"{self.directory} is of a {kind} and ranks no documents: call predict instead")
        record = {"query": query, "documents": _to_list(documents, "documents=")}
        [ranking] = self.predict([record], batch_size=batch_size)
        return ranking

    def _identity(self) -> str:
        """Returns the SHA-256 of the names and the content of all files, whichever of its models is loaded."""
        return hashlib.sha256(json.dumps(self.manifest["files"], sort_keys=True).encode()).hexdigest()

    def similarity(self, first: Iterable[str], second: Iterable[str]) -> NDArray[np.float32]:
        """Returns the cosines `[n, m]` of the vectors of n and of m texts.

        Args:
            first: n texts.
            second: m texts.

        Raises:
            UserError: as `encode` does.
        """
        return similarity(self.encode(first), self.encode(second))

    def _run_finite(
        self, examples: Sequence[Example], encoded: Sequence[Encoded], batch_size: int | None
    ) -> list[list[Items]]:
        """Returns the result of `_run`; raises UserError if a logit is not finite."""
        outputs = self._run(examples, encoded, batch_size)
        for number, rows in enumerate(outputs, 1):
            if not all(np.isfinite(logits).all() for _, logits in rows):
                raise UserError(f"{self.directory}: the logits of {self.model} for record {number} are not finite")
        return outputs

    def _encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Returns the rows of each example, cut as in training or else by the decoder."""
        texts = [example.sequences() for example in examples]
        sequences = self._tokenize(list(itertools.chain.from_iterable(texts)))
        limits = {"max_length": self.manifest["max_length"], "doc_stride": self.manifest["doc_stride"]}
        encoded: list[Encoded] = []
        for number, (example, own) in enumerate(zip(examples, texts, strict=True), 1):
            tokenized = list(itertools.islice(sequences, len(own)))
            row: Row = [tokens for tokens, _ in tokenized]
            try:
                rows = self.decoder.cut(example, row, **limits, side=self.truncation_side)
            except ValueError as error:
                refused = LongTextError if isinstance(error, TooLongError) else RecordError
                raise refused(number, error) from error
            # Windows share tokens, and lose none.
            is_cut = rows != [row] and _count_tokens([row]) > _count_tokens(rows)
            encoded.append(Encoded(rows, is_cut or any(was_cut for _, was_cut in tokenized)))
        return encoded

    def _tokenize(self, texts: Sequence[str | tuple[str, str]]) -> Iterator[tuple[Any, bool]]:
        """Yields the tokens of each sequence, and whether some were cut off; a decoder that cuts gets them all."""
        if self.decoder.cuts:
            chunks = chunk_texts(texts, lambda text: len(text) if isinstance(text, str) else sum(map(len, text)))
            encodings = itertools.chain.from_iterable(map(self.tokenizer.encode_batch, chunks))
            return ((encoding, False) for encoding in encodings)
        return Truncation(
            self.tokenizer, max_length=self.manifest["max_length"], side=self.truncation_side,
            offsets=self.decoder.classes_are_tokens,
        ).encode(texts)  # fmt: skip

    def _count_outputs(self, row: Row) -> int:
        """Returns how many of the logits' first axis belong to a row."""
        return sum(len(sequence.positions) for sequence in row) if self.decoder.at_positions else len(row)

    def _select_items(self, example: Example, row: Row, logits: NDArray[np.floating]) -> Items:
        """Returns the items of a row, from logits `[K, C]` of its sequences or `[K, L, C]` of their tokens."""
        if self.decoder.axes == 3:  # The logits of tokens have padding.
            tokens = max(len(sequence.target if self.decoder.targets else sequence.ids) for sequence in row)
            is_left = self.manifest["padding_side"] == "left" and not self.decoder.targets
            logits = logits[:, logits.shape[1] - tokens :] if is_left else logits[:, :tokens]
        return self.decoder.select(example, row, logits)

    def _make_inputs(self, batch: Sequence[Row]) -> dict[str, NDArray[np.int64]]:
        """Returns the model's inputs `[B, L]` of B sequences, padded to the longest of the batch.

        For a model of choices they are `[B, 1, L]`: a choice does not depend on the others, so that each can be the
        only one.
        """
        sequences = list(itertools.chain.from_iterable(batch))
        lengths = np.array(list(map(len, sequences)))[:, None]
        length = int(lengths.max())
        place = np.arange(length)
        is_token = place >= length - lengths if self.manifest["padding_side"] == "left" else place < lengths
        inputs = {}
        for name in self.manifest["inputs"]:
            array = np.full((len(sequences), length), self.manifest["padding"][name], dtype=np.int64)
            values = itertools.chain.from_iterable(getattr(sequence, SOURCES[name]) for sequence in sequences)
            array[is_token] = np.fromiter(values, dtype=np.int64, count=int(lengths.sum()))
            inputs[name] = array if self.decoder.input_axes == 2 else array[:, None]
        if self.decoder.targets:
            inputs[TARGET], is_read = pad_rows([sequence.target for sequence in sequences], on_left=False)
            if self.decoder.at_positions:
                inputs[TARGET_MASK], length = is_read.astype(np.int64), is_read.shape[1]
        if self.decoder.at_positions:
            inputs[POSITIONS] = self._locate(sequences, length)
        return inputs

    def _locate(self, sequences: Sequence[Any], length: int) -> NDArray[np.int64]:
        """Returns the positions `[n]` of the predicted tokens, counted over the batch `[B * L]` or `[B * T]`."""
        is_left = self.manifest["padding_side"] == "left" and not self.decoder.targets
        return np.array(
            [
                place * length + (length - len(sequence.ids) if is_left else 0) + position
                for place, sequence in enumerate(sequences)
                for position in sequence.positions
            ],
            dtype=np.int64,
        )

    def _check_target(self) -> None:
        """Raises UserError for a model that gives wrong answers on this processor, with the one to take instead."""
        targets, device = self.manifest["targets"], this_target()
        if runs(targets.get(self.model, ANY), device):
            return
        right = [name for name in self.manifest["models"] if runs(targets.get(name, ANY), device)]
        # The smallest file is named last.
        instead = f"choose {' or '.join(reversed(right))}" if right else "export it with export.target=avx2"
        raise UserError(
            f"{self.directory}: the model {self.model} is for processors of the kind {targets[self.model]}, and this "
            f"one is {device}, on which int8 sums of it overflow: {instead}"
        )

    def _check_files(self, model: Path, encoder: Path | None) -> None:
        """Raises UserError for a file of the model or the tokenizer that is missing or damaged."""
        checksums = self.manifest["files"]
        files = [model] if encoder is None else [model, encoder]
        data = {name for file in files for name in (data_file(file).name, f"{ABOVE}{shared_file(file).name}")}
        for name in (*(file.name for file in files), *sorted(checksums.keys() & data), "tokenizer.json"):
            path = self.directory / name
            if name not in checksums:
                raise UserError(f"{self.directory} is damaged: files has no SHA-256 of {name}")
            if not path.is_file():
                raise UserError(f"{self.directory} is incomplete: {name} is missing")
            try:
                digest = hash_file(path)
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}") from error
            if digest != checksums[name]:
                raise UserError(f"{path} is damaged: its SHA-256 is not the one in bundle.json")

    def _check_weights(self, model: Path) -> None:
        """Raises UserError if a model reads weights from a file that bundle.json does not list."""
        if needs_openvino(model):  # Its one file of weights is listed.
            return
        try:
            names = find_weight_files(model)
        except (OSError, ValueError) as error:
            raise UserError(f"{model} cannot be loaded by onnxruntime: {first_line(error)}") from error
        if not names:
            return
        expected, used = data_file(model), list_model_files(model)[-1]
        if strange := sorted(names - {expected.name}):
            raise UserError(f"{model} reads weights from {strange[0]!r}, expected {expected.name} as in bundle.json")
        listed = used.name if used == expected else f"{ABOVE}{used.name}"
        if used == model or listed not in self.manifest["files"]:
            raise UserError(
                f"{model} reads weights from {expected.name}, which bundle.json does not list for that directory: "
                "take the bundle from its source again"
            )

    def _load_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer, which neither pads nor truncates."""
        path = self.directory / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_str(path.read_bytes().decode("utf-8"))
        except Exception as error:  # tokenizers raises no narrower class.
            raise UserError(
                f"{path} cannot be read by tokenizers {tokenizers.__version__}: {first_line(error)}"
            ) from error
        special, length = tokenizer.num_special_tokens_to_add(self.pair), self.manifest["max_length"]
        if length < special:
            raise UserError(
                f"{self.directory} is damaged: max_length is {length}, less than its {special} special tokens"
            )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def _shorten(self, length: int) -> None:
        """Makes the bundle read fewer tokens; raises UserError for less than its special tokens and one more."""
        special = self.tokenizer.num_special_tokens_to_add(self.pair)
        if length <= special:
            raise UserError(f"got max_length={length}, expected more than the {special} special tokens of a text")
        self.manifest = {**self.manifest, "max_length": int(length)}

    def _create_decoder(self, decoder: type[Decoder], top_k: int | None) -> Decoder:
        decoding: dict[str, Any] = dict(self.manifest["decoding"])
        if top_k is not None:
            if not decoder.at_positions:
                raise UserError(
                    f"got top_k={top_k}, and {self.directory} is of a {self.manifest['kind']}, which fills no masks: "
                    "leave it out"
                )
            check_count("top_k", top_k, most=self.tokenizer.get_vocab_size())
            decoding["top_k"] = int(top_k)
        try:
            return decoder(self.labels, self.pair, decoding, self.tokenizer)
        except UserError as error:
            raise UserError(f"{self.directory} is damaged: {error}") from error

    def _load_writer(self, encoder: Path | None) -> tuple[CachedModel, GenerationSettings]:
        """Returns the model that writes text, and how its texts begin and end."""
        try:
            settings = GenerationSettings.read(self.manifest.get("generation"))
            if not isinstance(self.session, WholeTexts):
                raise UserError(f"{self.manifest['models'][self.model]} has no caches of keys and values")
            if encoder is None:
                return CachedModel(self.session.decoder), settings
            if settings.start is None:
                raise UserError("generation has start null, expected the token that the decoder begins with")
            self._check_weights(encoder)
            return CachedModel(self.session.decoder, self.session.encoder, settings.start), settings
        except UserError as error:
            raise UserError(f"{self.directory} is damaged: {error}") from error

    def _load_filler(self, encoder: Path | None) -> MaskPredictor:
        """Returns the model that fills the masks of targets."""
        decoder = cast(FilledTargets, self.decoder)
        if not isinstance(self.session, WholeTexts) or self.session.encoder is None or encoder is None:
            file = self.manifest["models"][self.model]
            raise UserError(f"{self.directory} is damaged: {file} has no encoder")
        self._check_weights(encoder)
        return MaskPredictor(self.session.encoder, self.session.decoder, decoder.frame, decoder.size)

    def _check_model(self, path: Path) -> None:
        """Raises UserError if inputs or outputs of the model are not those of bundle.json."""
        names, expected = [value.name for value in self.session.get_inputs()], self.input_names
        if set(names) != set(expected):
            raise UserError(f"{path} has the inputs {', '.join(names)}, bundle.json has {', '.join(expected)}")
        for value in self.session.get_inputs():
            if value.name != POSITIONS and len(value.shape) != self.decoder.input_axes:
                raise UserError(
                    f"{path} has {value.name} {value.shape}, expected {self.decoder.input_axes} axes for the decoder "
                    f"{self.manifest['decoder']}"
                )
        shapes = {value.name: value.shape for value in self.session.get_outputs()}
        shape, axes = shapes.get("logits", []), self.decoder.axes
        at_tokens = self.decoder.at_positions or self.decoder.generates
        has_labels = not self.decoder.encodes and not at_tokens
        is_known = shape and isinstance(shape[-1], int) and has_labels
        classes = shape[-1] if is_known else len(self.labels)
        if len(shape) != axes or classes != len(self.labels):
            raise UserError(
                f"{path} has logits {shape}, expected {axes} axes and {len(self.labels)} classes as in bundle.json"
            )
        tokens = self.tokenizer.get_vocab_size()
        if at_tokens and isinstance(shape[-1], int) and shape[-1] < tokens:
            raise UserError(f"{path} has logits {shape}, expected one for each of the {tokens} tokens of the tokenizer")


def _read_pieces(generator: Generator, writing: Writing) -> Iterator[str]:
    """Yields the pieces of a text that has started."""
    while True:
        if piece := writing.read():
            yield piece
        if writing.finish is not None:
            return
        generator.step()


def _to_list(values: object, name: str) -> list[Any]:
    """Returns records as a list; `name` stands before them in a message.

    Raises:
        UserError: for a table, which would give the names of its columns, and for values without an order.
    """
    if hasattr(values, "columns"):
        raise UserError(
            f"got {name}a table ({type(values).__name__}), expected a list of records: give one of its columns, as in "
            "list(table['text']), or records of it, as in table.to_dict('records')"
        )
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        one = "" if name else ", or one text or mapping"
        raise UserError(f"got {name}{shorten(values)}, expected a list of records{one}")
    return list(values)


def _batches(rows: Sequence[Row], batch_size: int) -> Iterator[list[int]]:
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


def _find_decoder(manifest: Mapping[str, Any], directory: Path) -> type[Decoder]:
    name, labels = manifest["decoder"], manifest["labels"]
    if name not in decode.DECODERS:
        known = ", ".join(decode.DECODERS)
        raise UserError(f"{directory} needs the decoder {name}, this version of distill has {known}: update distill")
    decoder = decode.DECODERS[name]
    if len(labels) not in decoder.label_counts:
        raise UserError(f"{directory} is damaged: the decoder {name} does not fit {len(labels)} labels")
    return decoder
