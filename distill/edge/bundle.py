"""Predicts with a bundle through onnxruntime, tokenizers and numpy."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from distill.core.errors import Overview, Shown, UserError, describe_call, first_line, shorten
from distill.edge import bundle_files, prediction
from distill.edge.bundle_files import count_bytes, fingerprint, read_manifest
from distill.edge.decode import Explanation, explain
from distill.edge.decoder import Items, MaskedTokens, Prediction, Record
from distill.edge.generation import Generator, Writing
from distill.edge.index import (
    DOCUMENT,
    QUERY,
    RESCORED,
    Index,
    Precision,
    check_dimensions,
    find_nearest,
    similarity,
    take_dimensions,
)
from distill.edge.opening import ModelFiles
from distill.edge.sampling import GenerationOptions
from distill.edge.text_decoders import Continuations, FilledTargets, MaskPredictor, describe_writing
from distill.edge.values import check_count, is_number

MOST_THREADS = 1024
SHOWN = 12  # Labels in an overview.
BATCH_SIZE = 32  # Where the bundle recommends none.
OneRecord = str | Mapping[str, Any] | MaskedTokens


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
        files = ModelFiles(self.directory, self.manifest, model)
        self.model = files.name
        # Rows in a forward pass unless a call names another number. It is 1 for a model whose predictions depend on the
        # other texts of a batch by more than the limit of its export.
        self.batch_size: int = self.manifest["batch_sizes"].get(self.model, BATCH_SIZE)
        # Why the model did not pass the gate of its export; None if it passed.
        self.caution: str | None = self.manifest["gates"].get(self.model)
        self.threshold: float | None = self.manifest["thresholds"].get(self.model)
        self.tokenizer = files.load_tokenizer()
        if max_length is not None:
            special = self.tokenizer.num_special_tokens_to_add(self.pair)
            if max_length <= special:
                raise UserError(
                    f"got max_length={max_length}, expected more than the {special} special tokens of a text"
                )
            self.manifest = {**self.manifest, "max_length": int(max_length)}
        self.decoder = files.create_decoder(self.tokenizer, top_k)
        self._rows = prediction.RowEncoder(self.tokenizer, self.decoder, self.manifest)
        self.threads = bundle_files.count_cores() if threads is None else int(threads)
        self.session = files.load_model(self.threads, self.decoder, self.tokenizer)
        self._writer = files.load_writer(self.session) if self.decoder.generates else None
        self._filler: MaskPredictor | None = None
        if isinstance(self.decoder, FilledTargets):
            self._filler = files.load_filler(self.session, self.decoder)

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
        return [*self.manifest["inputs"], *self.decoder.list_inputs()]

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
        by_row = self._run(self._rows.encode(self._records(records, None)), batch_size, report)
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
        encoded = self._rows.encode(self._records(records, None))
        rows = list(itertools.chain.from_iterable(one.rows for one in encoded))
        for batch in prediction.split_batches(rows, batch_size):
            yield self._rows.make_inputs([rows[i] for i in batch])

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
        return self._rows.encode([record])[0].is_truncated

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
        escalate: float | None = None,
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
        escalate: float | None = None,
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
        escalate: float | None = None,
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
            rounds: of predictions of the masks of a text. Each further one masks the least certain tokens again
                (`refine_masks`). None is one, or as many as bundle.json has for targets whose masks are filled.
            lengths: of a target whose masks are filled, the likeliest ones. Of their texts the one with the largest
                mean log-probability of a token is taken. None for as many as bundle.json has.
            escalate: share of dev, from 0 to 0.3, whose least sure predictions are left to the teacher. Predictions
                then have `escalate`, which is true where their probability is below that of this share of dev.

        Raises:
            LongTextError: for a record that may not be cut, of more windows, or whose masks or question are cut away.
            UserError: for a record of another form, logits that are not finite, and options out of range or in vain.
        """
        predictor = self._create_predictor(batch_size, truncate, most_rows, rounds, lengths, escalate)
        if not isinstance(records, str | Mapping | MaskedTokens):
            return self._predict(self._records(records, pairs), predictor)
        if not isinstance(pairs, str | None):
            raise UserError(
                f"got one text and {shorten(pairs)} as pairs, expected one text: give two lists or two texts"
            )
        return self._predict(self._records([records], None if pairs is None else [pairs]), predictor)[0]

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
        batch_size = self._check_batch_size(batch_size)
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

    @property
    def space(self) -> str | None:
        """The fingerprint of the teacher among whose vectors those of the bundle are, the `source` of its indexes."""
        space: str | None = self.manifest.get("space")
        return space

    @property
    def prompts(self) -> dict[str, str]:
        """The beginnings of texts by their names, `query` and `document`; none for a bundle without roles of texts."""
        return dict(self.manifest.get("prompts", {}))

    def encode(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        batch_size: int | None = None,
    ) -> NDArray[np.float32]:
        """Returns the vectors `[texts, D]` (float32) of texts.

        Args:
            texts: the texts, none of them empty.
            prompt_name: the one of `prompts` that begins each of them; None for texts as they are.
            dimensions: number of first dimensions, scaled to the length of the whole vector; None for all. Those that
                passed the gate of the export are in `dimensions`.
            batch_size: texts of a forward pass; None for that of the bundle.

        Raises:
            UserError: for a bundle without vectors, a text that is empty or no text, a prompt that the bundle has not,
                dimensions that the vectors have not, and vectors that are not finite.
        """
        if not self.decoder.encodes:
            raise UserError(
                f"{self.directory} is of a {self.manifest['kind']} and has no vectors of texts: call predict instead"
            )
        records = self._records(texts, None)
        for text in records:
            if not isinstance(text, str):
                raise UserError(f"got {shorten(text)}, expected a text")
        if prompt_name is not None:
            if prompt_name not in self.prompts:
                known = ", ".join(self.prompts) or "none"
                raise UserError(f"{self.directory} has no prompt {shorten(prompt_name)}, expected one of {known}")
            records = [self.prompts[prompt_name] + str(text) for text in records]
        width = self._width()
        size = check_dimensions(dimensions, width)
        outputs = self._run_finite(self._rows.encode(records), batch_size)
        vectors = [logits for rows in outputs for _, logits in rows]
        whole = np.concatenate([np.empty((0, width)), *vectors], dtype=np.float32)
        return whole if size == width else take_dimensions(whole, size)

    @property
    def dimensions(self) -> list[int]:
        """The numbers of first dimensions of vectors that passed the gate of the export, from the smallest."""
        forms = self.manifest.get("vectors", {}).get(self.model, [])
        own = [form for form in forms if form["precision"] == "float32" and form.get("documents", "own") == "own"]
        return sorted({form["dimensions"] for form in own if form["gate"] == "passed"})

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

    def _find_threshold(self, escalate: float | None) -> float | None:
        """Returns the probability below which this share of dev is, interpolated between those of bundle.json.

        It is 0 for 0, which leaves nothing to the teacher, and None for None.
        """
        if escalate is None:
            return None
        rows = self.manifest.get("escalate", {}).get(self.model)
        if rows is None:
            raise UserError(
                f"got escalate={shorten(escalate)}, and bundle.json of {self.directory} has no shares of dev for "
                f"{self.model}: leave it out, or export a classifier or a model of choices with a teacher"
            )
        shares, thresholds = zip(*rows, strict=True)
        if not is_number(escalate) or not 0 <= escalate <= shares[-1]:
            raise UserError(f"got escalate={shorten(escalate)}, expected a share from 0 to {shares[-1]}")
        return float(np.interp(escalate, shares, thresholds)) if escalate else 0.0

    def _create_predictor(
        self, batch_size: int | None, truncate: bool, most_rows: int | None, rounds: int | None, lengths: int | None,
        escalate: float | None,
    ) -> prediction.Predictor:  # fmt: skip
        options = prediction.PredictionOptions(
            self._check_batch_size(batch_size), truncate, most_rows, rounds, lengths, self._find_threshold(escalate)
        )
        subject = f"{self.directory} is of a {self.manifest.get('kind')}"
        if self._filler is not None:
            return prediction.TargetFiller(self._rows, self._run_finite, self.threshold, subject, options, self._filler)
        predictor = prediction.MaskRefiner if self.decoder.at_positions else prediction.Predictor
        return predictor(self._rows, self._run_finite, self.threshold, subject, options)

    def _predict(self, records: list[Record], predictor: prediction.Predictor) -> list[Prediction]:
        if not self.generates:
            return predictor.predict(records)
        side = self.truncation_side if predictor.options.truncate else None
        return self.generate_all(cast(list[str], records), batch_size=predictor.options.batch_size, truncate=side)

    def _check_batch_size(self, batch_size: int | None) -> int:
        """Returns the rows of a forward pass; raises UserError for a number that is none."""
        batch_size = self.batch_size if batch_size is None else batch_size
        check_count("batch_size", batch_size)
        return batch_size

    def _run(
        self,
        encoded: Sequence[prediction.Encoded],
        batch_size: int | None,
        report: Callable[[float], None] | None = None,
    ) -> list[list[Items]]:
        """Returns the items of each row of each record with their logits; `report` is as in `item_logits`."""
        batch_size = self._check_batch_size(batch_size)
        rows = list(itertools.chain.from_iterable(one.rows for one in encoded))
        if self.decoder.generates or self.decoder.targets:
            batch_size = self._rows.limit_logits(rows, batch_size, self._width())
        owners = [one.example for one in encoded for _ in one.rows]
        outputs = dict[int, Items]()
        for batch in prediction.split_batches(rows, batch_size):
            try:
                logits = self.session.run(["logits"], self._rows.make_inputs([rows[i] for i in batch]))[0]
            except Exception as error:  # The errors of onnxruntime have no class in common.
                reason = first_line(error)
                raise UserError(f"{self.directory}: the model {self.model} cannot be run: {reason}") from error
            ends = np.cumsum([self._rows.count_outputs(rows[i]) for i in batch])
            for i, of_row in zip(batch, np.split(logits, ends[:-1]), strict=True):
                outputs[i] = self._rows.select_items(owners[i], rows[i], of_row)
            if report is not None:
                report(len(outputs) / len(rows))
        remaining = map(outputs.__getitem__, range(len(rows)))
        return [list(itertools.islice(remaining, len(one.rows))) for one in encoded]

    def _run_finite(self, encoded: Sequence[prediction.Encoded], batch_size: int | None) -> list[list[Items]]:
        """Returns the result of `_run`; raises UserError if a logit is not finite."""
        outputs = self._run(encoded, batch_size)
        for number, rows in enumerate(outputs, 1):
            if not all(np.isfinite(logits).all() for _, logits in rows):
                raise UserError(f"{self.directory}: the logits of {self.model} for record {number} are not finite")
        return outputs

    def _width(self) -> int:
        """Returns the number of logits of an item, or of dimensions of a vector."""
        return int(next(value.shape[-1] for value in self.session.get_outputs() if value.name == "logits"))

    def _identity(self) -> str:
        """Returns the SHA-256 of the names and the content of all files, whichever of its models is loaded."""
        return fingerprint(self.manifest["files"])

    def read_index(self, path: Path) -> Index:
        """Returns the index of a path, as `Index.read` does.

        Raises:
            UserError: as `Index.read` does, and for vectors of another width in a file that says no more of them.
        """
        index = Index.read(path)
        if path.is_file() and index.dimensions != self._width():
            raise UserError(
                f"the index has vectors {index.dimensions} wide, and those of {self.directory} are {self._width()} "
                "wide: they are of another model"
            )
        return index

    def _role(self, name: str) -> str | None:
        """Returns the name of the prompt of queries or documents, None where they have none."""
        return name if name in self.prompts else None

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
        Index.check_precision(precision)
        if self.decoder.encodes:
            check_dimensions(dimensions, self._width())
        vectors = self.encode(texts, prompt_name=self._role(DOCUMENT), batch_size=batch_size)
        return Index(vectors, precision=precision, dimensions=dimensions, source=self._identity())

    def search(
        self,
        queries: Iterable[str],
        corpus: Iterable[str] | NDArray[np.floating] | Index | None = None,
        *,
        index: Index | str | Path | None = None,
        k: int = 10,
        rescore: int = RESCORED,
    ) -> list[list[tuple[int, float]]]:
        """Returns positions from 0 and cosines of the `k` texts of the corpus nearest to each query, nearest first.

        Args:
            queries: the texts to search for.
            corpus: texts, or their vectors `[texts, D]` as `encode` returns them, which are computed once so, or an
                index.
            index: an index in place of `corpus`, or its path as for `Index.read`, such as one with vectors of the
                teacher, among which those of this bundle are.
            k: number of texts for each query.
            rescore: in a binary index, `rescore * k` texts are compared again by their vectors in 8 bits; 0 for none.

        Raises:
            UserError: as `encode`, `Index.read` and `Index.search` do, for an index of another model or width, and for
                both or neither of corpus and index.
        """
        if (corpus is None) == (index is None):
            raise UserError("got both a corpus and an index, or neither: give one of them")
        if index is not None:
            corpus = index if isinstance(index, Index) else self.read_index(Path(index))
        if isinstance(corpus, Index):
            if corpus.source not in (None, self._identity(), self.space):
                raise UserError(
                    f"the index is of another model than {self.directory} and its teacher: make it again with "
                    "Bundle.index, or with the vectors of the teacher"
                )
            found = corpus.search(self.encode(queries, prompt_name=self._role(QUERY)), k, rescore=rescore)
        else:
            has_texts = not isinstance(corpus, np.ndarray) or corpus.dtype.kind in "USO"
            texts, role = cast(Iterable[str], corpus), self._role(DOCUMENT)
            vectors = self.encode(texts, prompt_name=role) if has_texts else cast(NDArray[np.floating], corpus)
            found = find_nearest(self.encode(queries, prompt_name=self._role(QUERY)), vectors, k)
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

    def similarity(self, first: Iterable[str], second: Iterable[str]) -> NDArray[np.float32]:
        """Returns the cosines `[n, m]` of the vectors of n and of m texts.

        Args:
            first: n texts.
            second: m texts.

        Raises:
            UserError: as `encode` does.
        """
        return similarity(self.encode(first), self.encode(second))


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
