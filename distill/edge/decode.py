"""Decoders, which turn the logits of a model into predictions, and the words that a prediction rests on.

Decoders, which turn the logits of a model into predictions with numpy. A decoder selects the items of its task among
the logits of a row of the model, and makes a prediction from those of all rows of a record.

Labels may be words that a model with an encoder would write: the likeliest word of a text's task is its label. A source
is the name of a task and the columns of a row with their names, as T5 has it (arXiv 1910.10683, appendix D): `mrpc
sentence1: ... sentence2: ...`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np

from distill.core.errors import UserError, check_text, escape, shorten
from distill.edge import answering
from distill.edge.decoder import (
    SEVERAL,
    Decoder,
    Example,
    Floats,
    Items,
    Limits,
    Prediction,
    Record,
    Row,
    SourceTokens,
    most_probable,
    pad_classes,
    sigmoid,
    softmax,
    split_pair,
)
from distill.edge.patterns import add_matches, parse_patterns
from distill.edge.text_decoders import Continuations, FilledTargets, Masks, Targets
from distill.edge.values import SIZE, Rule, check_count, is_number, is_share, null_or
from distill.edge.words import OUTSIDE, CutEncoding, Splitter, TagScheme, cut_between_words, join_words, locate_words

if TYPE_CHECKING:
    from distill.edge.bundle import Bundle


class WordEffect(TypedDict):
    """What a word adds to the probability of the predicted class.

    Attributes:
        start, end: of the word in the text, in code points.
        effect: the probability with the word minus that without it.
    """

    word: str
    start: int
    end: int
    effect: float


class Explanation(TypedDict):
    """A prediction, and the effect of each word on the probability of its class (arXiv 1311.2901, section 4.2)."""

    label: str
    probability: float
    words: list[WordEffect]


def explain(bundle: "Bundle", text: str, *, batch_size: int | None = None) -> Explanation:
    """Returns the most likely class of a text, and what the probability loses without each word.

    Gradients would be faster, but an exported file has none.

    Raises:
        UserError: for a bundle that gives texts no classes.
    """
    if bundle.decoder.fields != ("label", "probability", "probabilities") or bundle.manifest.get("pair"):
        raise UserError(
            f"a {bundle.manifest['kind']} bundle has no words to explain: expected one that gives single texts a class"
        )
    spans = Splitter().split(text)
    texts = [text, *(f"{text[:start]}{text[end:]}".strip() or " " for start, end in spans)]
    predictions = bundle.predict(texts, batch_size=batch_size)
    whole, *others = (prediction["probabilities"] for prediction in predictions)
    label = max(whole, key=lambda name: whole[name])
    words: list[WordEffect] = [
        {"word": text[start:end], "start": start, "end": end, "effect": whole[label] - without[label]}
        for (start, end), without in zip(spans, others, strict=True)
    ]
    return {"label": label, "probability": whole[label], "words": words}


WITHHELD = "(no label)"  # In the plain form, of a bundle that abstains.
NO_ANSWER = "(no answer)"  # In the plain form.
IMPOSSIBLE = -30.0  # The logit of a class whose probability is 0, with 0 for the others.


class Classes(Decoder):
    """Decodes the class of a text: `label`, its `probability`, and the `probabilities` of all labels."""

    label_counts = SEVERAL
    fields: tuple[str, ...] = ("label", "probability", "probabilities")

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(_, logits)] = rows
        return most_probable(self.labels, logits)

    def format(self, prediction: Prediction) -> str:
        name = prediction[self.fields[0]]
        return f"{WITHHELD if name is None else escape(name)}\t{prediction['probability']:.4f}"


class Labels(Decoder):
    """Decodes any number of labels of a text.

    `labels` are those whose probability is at least their threshold, each with `label` and `probability`, the most
    probable one first. `probabilities` are those of all labels.

    Args:
        decoding: `thresholds`, a probability for each label.
    """

    label_counts = SEVERAL
    fields = ("labels", "probabilities")

    def configure(self, decoding: Mapping[str, Any]) -> None:
        thresholds: Any = decoding.get("thresholds")
        is_list = isinstance(thresholds, list) and len(thresholds) == len(self.labels)
        if not is_list or not all(map(is_share, thresholds)):
            raise UserError(f"decoding has thresholds {thresholds}, expected a probability for each of the labels")
        self.thresholds: list[float] = thresholds

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(_, logits)] = rows
        row = sigmoid(logits[0].astype(np.float64))
        given = [
            {"label": self.labels[index], "probability": float(row[index])}
            for index in np.argsort(-row, kind="stable").tolist()
            if row[index] >= self.thresholds[index]
        ]
        return {"labels": given, "probabilities": dict(zip(self.labels, row.tolist(), strict=True))}

    def format(self, prediction: Prediction) -> str:
        given = prediction["labels"]
        return "; ".join(f"{escape(of['label'])}: {of['probability']:.4f}" for of in given) or "-"


class Number(Decoder):
    """Decodes the number of a regression: `value`."""

    label_counts = range(1, 2)
    fields = ("value",)

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(_, logits)] = rows
        return {"value": float(logits[0, 0])}

    def format(self, prediction: Prediction) -> str:
        return f"{prediction['value']:.4f}"


class Tags(Decoder):
    """Decodes the entities of a text, or of the words of a record `{"tokens": [...]}`.

    Each has `text`, `type`, `score` (the mean probability of its tags), and `start` and `end` in code points. A text is
    cut between words, and the words that are left out are in no entity. The tags are the likeliest valid sequence of
    those of the words that are left, as `TagScheme` decodes it.

    The matches of patterns in the text, also in what is cut off of it, are entities with a `score` of 1, and take the
    place of those that they overlap.

    Args:
        decoding: `splitter`, as `Splitter.describe` returns it, of texts into words, the `scheme` of the tags, which
            follows from the labels in bundles without it, and `patterns`, as `Pattern.describe` returns each.
    """

    label_counts = SEVERAL
    fields = ("entities",)
    axes = 3
    cuts = finds_entities = True

    def configure(self, decoding: Mapping[str, Any]) -> None:
        self.scheme, self.splitter = TagScheme(self.labels, decoding.get("scheme")), Splitter.parse(decoding)
        self.patterns = parse_patterns(decoding.get("patterns", []))

    def read(self, record: Record) -> Example:
        if isinstance(record, str):
            return Example(check_text(record), words=self.splitter.split(record))
        words = record.get("tokens") if isinstance(record, Mapping) else None
        if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
            return Example(check_text(" ".join(words)), words=locate_words(words))
        raise UserError(f'got {shorten(record)}, expected a text or {{"tokens": [...]}}')

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        [encoding] = row
        kept = cut_between_words(
            example.words, encoding.offsets, encoding.special_tokens_mask, length=limits.max_length, side=limits.side
        )  # fmt: skip
        return [row if len(kept) == len(encoding.ids) else [CutEncoding.select(encoding, kept)]]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        [encoding] = row
        words, pieces = join_words(example.words, encoding.offsets, encoding.special_tokens_mask)
        return words, logits[0, pieces]

    def truncated_item(self) -> Floats | None:
        return np.array([0.0 if label == OUTSIDE else IMPOSSIBLE for label in self.labels], dtype=np.float32)

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(words, logits)] = rows
        probabilities = softmax(logits.astype(np.float64))
        best = self.scheme.decode(logits)
        entities = []
        for first, last, kind in zip(*self.scheme.find(best), strict=True):
            start, end = words[first][0], words[last - 1][1]
            score = float(probabilities[range(first, last), best[first:last]].mean())
            text = example.text[start:end]
            name = self.scheme.types[kind]
            entities.append({"text": text, "type": name, "score": score, "start": start, "end": end})
        return {"entities": add_matches(self.patterns, example.text, entities)}

    def format(self, prediction: Prediction) -> str:
        entities = prediction["entities"]
        return "; ".join(f"{escape(entity['type'])}: {escape(entity['text'])}" for entity in entities) or "-"


class Spans(Decoder):
    """Decodes the answer to a question, which is a span of its context.

    `answer` is its text, None for no answer, `score` its probability, and `start` and `end` are its code points in the
    context. A record is `{"question": ..., "context": ...}`, or the two texts as a pair. With `top_k` in the record a
    prediction has `answers` too, the most probable ones in the same form, no answer among them if there may be none.

    Args:
        decoding: `n_best` and `max_answer_length` as in `answering.find_candidates`, and `null_threshold`: the
            difference from which on there is no answer, None if there always is one.
    """

    label_counts = range(2, 3)
    fields = ("answer", "score", "start", "end")
    axes = 3
    cuts = True
    classes_are_tokens = True
    rules: Mapping[str, Rule] = {
        "n_best": SIZE, "max_answer_length": SIZE, "null_threshold": null_or(is_number, "a number or null"),
    }  # fmt: skip

    def configure(self, decoding: Mapping[str, Any]) -> None:
        self.threshold: float | None = decoding.get("null_threshold")
        self.limits = {name: decoding[name] for name in ("n_best", "max_answer_length")}

    def parse(self, line: str) -> Record:
        return split_pair(line)

    def read(self, record: Record) -> Example:
        texts: Sequence[object] = ()
        top_k = None
        if isinstance(record, Mapping):
            texts = [record.get(name) for name in ("question", "context")]
            top_k = record.get("top_k")
        elif isinstance(record, list | tuple):
            texts = record
        if top_k is not None:
            check_count("top_k", top_k, most=self.limits["n_best"], meaning=", the spans that the bundle compares")
        if len(texts) == 2 and all(isinstance(text, str) and text.strip() for text in texts):
            question, context = texts
            return Example(check_text(str(question)), check_text(str(context)), top_k=cast(int | None, top_k))
        raise UserError(f'got {shorten(record)}, expected {{"question": ..., "context": ...}}, and no empty text')

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        if limits.doc_stride is None:
            raise UserError("the bundle has no doc_stride, the tokens that windows share: export it again")
        [encoding] = row
        windows = answering.cut_windows(encoding, max_length=limits.max_length, doc_stride=limits.doc_stride)
        return [[window] for window in windows]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        [window] = row
        return window.characters, answering.mask_classes(logits[0].T, window.characters)

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        width = max(logits.shape[-1] for _, logits in rows)
        logits = np.concatenate([pad_classes(array, width) for _, array in rows])
        characters = np.concatenate([pad_classes(array, width, answering.NO_CLASS) for array, _ in rows])
        found = answering.find_candidates(logits, characters, np.zeros(len(rows), dtype=np.int64), **self.limits)
        best = found.best()
        score = float(best.probability(self.threshold)[0])
        prediction = (
            _no_answer(score)
            if best.is_null(self.threshold)[0]
            else _show_answer(str(example.pair), found.start[0], found.end[0], score)
        )
        if example.top_k is None:
            return prediction
        shares = found.probabilities(self.threshold).tolist()
        answers = [
            _show_answer(str(example.pair), start, end, share)
            for start, end, share in zip(found.start, found.end, shares, strict=True)
        ]
        if self.threshold is not None:
            answers.append(_no_answer(max(0.0, 1 - sum(shares))))
            answers.sort(key=itemgetter("score"), reverse=True)
        return {**prediction, "answers": answers[: example.top_k]}

    def format(self, prediction: Prediction) -> str:
        answer = NO_ANSWER if prediction["answer"] is None else escape(prediction["answer"])
        return f"{answer}\t{prediction['score']:.4f}"


def _no_answer(score: float) -> Prediction:
    return {"answer": None, "score": score, "start": None, "end": None}


def _show_answer(context: str, start: int, end: int, score: float) -> Prediction:
    """Returns the answer without the space before it, which a tokenizer may count among the characters of a word."""
    text = context[start:end]
    start = int(start) + len(text) - len(text.lstrip())
    return {"answer": text.strip(), "score": score, "start": start, "end": start + len(text.strip())}


class Choices(Classes):
    """Decodes the choice of a record `{"question": ..., "choices": [...]}`, which may have a `context`.

    A prediction has the text of the `choice`, its `index` from 0 and its `probability`, and the `probabilities` of all
    choices in their order. Other keys of a record are ignored.
    """

    label_counts = range(1)
    fields = ("choice", "index", "probability", "probabilities")
    input_axes = 3

    def parse(self, line: str) -> Record:
        question, *choices = line.split("\t")
        if len(choices) < 2:
            raise UserError(f"got {shorten(line)}, expected a question and at least two choices with tabs between them")
        return {"question": question, "choices": choices}

    def read(self, record: Record) -> Example:
        if not isinstance(record, Mapping) or not {"question", "choices"} <= set(record):
            raise UserError(f'got {shorten(record)}, expected {{"question": ..., "choices": [...]}}')
        question, choices, context = record["question"], record["choices"], record.get("context")
        if not isinstance(question, str) or not question.strip() or not isinstance(context, str | None):
            raise UserError(f"got {shorten(record)}, expected a question of text, and a context of text or none")
        if not isinstance(choices, list | tuple) or len(choices) < 2:
            raise UserError(f"got {shorten(record)}, expected a list of at least two choices")
        if not all(isinstance(choice, str) and choice.strip() for choice in choices):
            raise UserError(f"got {shorten(record)}, expected choices of text")
        about = None if context is None else check_text(context)
        return Example(check_text(question), choices=tuple(map(check_text, choices)), context=about)

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        return None, logits.T  # [1, K]

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(_, logits)] = rows
        row = softmax(logits[0].astype(np.float64))
        best = int(row.argmax())
        return {
            "choice": example.choices[best], "index": best, "probability": float(row[best]),
            "probabilities": row.tolist(),
        }  # fmt: skip


class Ranking(Decoder):
    """Decodes the scores of a record `{"query": ..., "documents": [...]}`, and the order of its documents.

    `order` has the positions of the documents from 0, those with the highest scores first, and `scores` has their
    scores as they are given. A score is a logit and means something only beside others of the same query. Of equal
    scores the document that is given first comes first.
    """

    label_counts = range(1, 2)
    fields = ("order", "scores")
    ranks = True

    def parse(self, line: str) -> Record:
        query, *documents = line.split("\t")
        if not documents:
            raise UserError(f"got {shorten(line)}, expected a query and its documents with tabs between them")
        return {"query": query, "documents": documents}

    def read(self, record: Record) -> Example:
        if not isinstance(record, Mapping) or not {"query", "documents"} <= set(record):
            raise UserError(f'got {shorten(record)}, expected {{"query": ..., "documents": [...]}}')
        query, documents = record["query"], record["documents"]
        if not isinstance(query, str) or not query.strip():
            raise UserError(f"got the query {shorten(query)}, expected text")
        if not isinstance(documents, list | tuple) or not documents:
            raise UserError(f"got the documents {shorten(documents)}, expected a list of at least one text")
        for position, text in enumerate(documents):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"document {position} is {shorten(text)}, expected text")
        return Example(check_text(query), choices=tuple(map(check_text, documents)))

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        return [[sequence] for sequence in row]  # The documents need not run together.

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        scores = np.concatenate([logits[0] for _, logits in rows]).astype(np.float64)
        return {"order": np.argsort(-scores, kind="stable").tolist(), "scores": scores.tolist()}

    def format(self, prediction: Prediction) -> str:
        return "; ".join(f"{position}: {prediction['scores'][position]:.4f}" for position in prediction["order"])


class Vectors(Decoder):
    """Decodes the `vector` of a text, a list of numbers.

    A record may also be a list of texts, whose vectors are a list of lists. Numbers have the digits that float32 needs.
    A line of two texts with a tab between them is such a list, and is shown as the cosine of their vectors.
    """

    fields = ("vector",)
    encodes = True

    def parse(self, line: str) -> Record:
        return line.split("\t") if line.count("\t") == 1 else line

    def read(self, record: Record) -> Example:
        texts = [record] if isinstance(record, str) else record
        if not isinstance(texts, list | tuple) or not texts or not all(isinstance(t, str) and t.strip() for t in texts):
            raise UserError(f"got {shorten(record)}, expected a text or a list of texts, and no empty text")
        first, *more = map(check_text, texts)
        return Example(first, more=tuple(more))

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        return [[sequence] for sequence in row]  # The texts of a list need not run together.

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        vectors = np.concatenate([vector for _, vector in rows])
        every = [[float(f"{number:.9g}") for number in vector] for vector in vectors]
        return {"vector": every if example.more else every[0]}

    def format(self, prediction: Prediction) -> str:
        vectors = np.atleast_2d(prediction["vector"])
        if len(vectors) == 2:
            lengths = np.linalg.norm(vectors, axis=1)
            return f"{vectors[0] @ vectors[1] / max(lengths.prod(), 1e-12):.4f}"
        return " ".join(f"{number:.4g}" for number in vectors.ravel())


TASK = "task"  # The key of a record with the name of its task.


@dataclass(frozen=True)
class WordTask:
    """A task whose labels are words.

    Args:
        name: stands before each source.
        columns: of the texts of a row, whose names are a part of the source.
        labels: in the order of the classes.
        words: of each label.
        positive: of two labels the one whose F1 is computed; None for the mean of both.
    """

    name: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    words: tuple[str, ...]
    positive: str | None = None

    @classmethod
    def parse(cls, value: object) -> "WordTask":
        """Returns the task of an entry of bundle.json; raises UserError for one that is none."""
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            lists = [value.get(name) for name in ("columns", "labels", "words")]
            if all(isinstance(of, list) and of and all(isinstance(text, str) for text in of) for of in lists):
                columns, labels, words = map(tuple, lists)  # type: ignore[arg-type]  # They are lists.
                if len(labels) == len(words) > 1:
                    return cls(value["name"], columns, labels, words, value.get("positive"))
        raise UserError(f"decoding has the task {shorten(value)}, expected a name, columns, and a word for each label")

    def describe(self) -> dict[str, Any]:
        """Returns the task as an entry of bundle.json."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @property
    def beginning(self) -> str:
        """The beginning of every source."""
        return f"{self.name} {self.columns[0]}: "

    def source(self, texts: Sequence[str]) -> str:
        """Returns the source of a row with these texts."""
        named = (f"{column}: {text}" for column, text in zip(self.columns, texts, strict=True))
        return " ".join([self.name, *named])


class LabelWords(Targets):
    """Decodes the label of a text as `Classes` does, by the log-likelihood of its word after the source.

    The probabilities are the softmax of the log-likelihoods of the words of a task, each with the token that ends it. A
    bundle of several tasks adds `task`. A record is a whole source, which begins with the name of its task and a
    column, or a mapping of the columns, with `task` where several tasks have them. Where a bundle has one task, a
    record may also be a text, or the two texts of a pair.

    Args:
        decoding: that of `Targets`, and `tasks`, as `WordTask.describe` returns each.
    """

    label_counts = SEVERAL
    fields = ("label", "probability", "probabilities")
    rules: Mapping[str, Rule] = {
        **Targets.rules,
        "tasks": (lambda value: isinstance(value, list) and bool(value), "a list of at least one task"),
    }

    def configure(self, decoding: Mapping[str, Any]) -> None:
        super().configure(decoding)
        self.tasks = {task.name: task for task in map(WordTask.parse, decoding["tasks"])}
        if self.start is None or self.end is None or self.max_target is None:
            raise UserError("decoding lacks start, end or max_target, without which no word can be scored")
        self.words = {  # The tokens of the words of each task.
            name: [self._tokenize(word, self.max_target, self.end, "right") for word in task.words]
            for name, task in self.tasks.items()
        }

    def parse(self, line: str) -> Record:
        return line.split("\t") if "\t" in line else line

    def complete(self, text: str) -> str:
        """Returns the whole source of a text, as `read` does."""
        return self.read(text).text

    def read(self, record: Record) -> Example:
        """Returns the source of a record; raises UserError for one of an unknown task, or without a text."""
        texts: object = record
        if isinstance(record, str):
            begun = [task for task in self.tasks.values() if record.startswith(task.beginning)]
            if begun:
                return Example(check_text(record), task=begun[0].name)
            texts = [record]
        if isinstance(record, Mapping):
            task = self.find(record)
            texts = [record[column] for column in task.columns]
        else:
            task = self._find_only(record)
        texts = texts if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts) else ()
        if len(texts) != len(task.columns) or not any(text.strip() for text in texts):
            raise UserError(f"got {shorten(record)}, expected text in {' and '.join(task.columns)}")
        return Example(check_text(task.source(texts)), task=task.name)

    def _find_only(self, record: Record) -> WordTask:
        """Returns the task of a bundle with one; raises UserError where the record must name one of several."""
        if len(self.tasks) > 1:
            names = ", ".join(repr(task.beginning.strip()) for task in self.tasks.values())
            raise UserError(
                f'got {shorten(record)}, expected a text that begins with one of {names}, or {{"{TASK}": ..., ...}} '
                "with the columns of the task"
            )
        return next(iter(self.tasks.values()))

    def find(self, row: Mapping[str, Any]) -> WordTask:
        """Returns the task that a row names, or the only one whose columns it has.

        Raises:
            UserError: for an unknown task, and where none or several have these columns.
        """
        named = row.get(TASK)
        if named is not None and TASK not in {column for task in self.tasks.values() for column in task.columns}:
            fitting = [task for task in self.tasks.values() if task.name == named]
            if not fitting:
                raise UserError(f"got the task {shorten(named)}, expected one of {', '.join(self.tasks)}")
        else:
            fitting = [task for task in self.tasks.values() if set(task.columns) <= set(row)]
        if len(fitting) > 1:
            names = " and ".join(task.name for task in fitting)
            raise UserError(f"got the columns {', '.join(row)}, which {names} both have: name one of them in {TASK}")
        if not fitting or not set(fitting[0].columns) <= set(row):
            known = "; ".join(f"{task.name} has {', '.join(task.columns)}" for task in fitting or self.tasks.values())
            raise UserError(f"got the columns {', '.join(map(str, row)) or 'none'}, and {known}")
        return fitting[0]

    def cut(self, example: Example, row: Row, limits: Limits) -> list[Row]:
        [source] = row
        # The decoder reads the tokens of a word to predict each next one.
        return [[SourceTokens.add(source, [cast(int, self.start), *ids[:-1]]) for ids in self.words[str(example.task)]]]

    def select(self, example: Example, row: Row, logits: Floats) -> Items:
        """Returns the log-likelihood of each word, `[1, words]`, from the logits `[words, T, V]` of its tokens."""
        likelihoods = [
            _log_likelihood(of_word[: len(ids)], ids)
            for ids, of_word in zip(self.words[str(example.task)], logits, strict=True)
        ]
        return row, np.array([likelihoods], dtype=np.float32)

    def decode(self, example: Example, rows: Sequence[Items]) -> Prediction:
        [(_, logits)] = rows
        task = self.tasks[str(example.task)]
        return most_probable(task.labels, logits) | ({TASK: task.name} if len(self.tasks) > 1 else {})

    def format(self, prediction: Prediction) -> str:
        return f"{escape(prediction['label'])}\t{prediction['probability']:.4f}"


def _log_likelihood(logits: Floats, ids: Sequence[int]) -> float:
    """Returns the log-likelihood of tokens `[T]` from the logits `[T, V]` at each."""
    values = logits.astype(np.float64)
    most = values.max(axis=-1)
    log_sums = most + np.log(np.exp(values - most[:, None]).sum(axis=-1))
    return float((values[np.arange(len(ids)), ids] - log_sums).sum())


DECODERS: Mapping[str, type[Decoder]] = {
    "classes": Classes, "labels": Labels, "number": Number, "tags": Tags, "spans": Spans, "choices": Choices,
    "vectors": Vectors, "masks": Masks, "ranking": Ranking, "continuation": Continuations, "seq2seq": Targets,
    "label_words": LabelWords, "mask_predict": FilledTargets,
}  # fmt: skip
