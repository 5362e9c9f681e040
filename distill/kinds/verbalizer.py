"""Labels as words to write: classifications as texts for texts, and the scores of their words.

Labels as words to write: classifications as texts for texts, several of them told apart by their names.

>>> from distill.kinds import Classification, TextLabels
>>> train = [{"sentence": f"{word} {n}", "label": word} for n in range(10) for word in ("good", "bad")]
>>> dev = [{"sentence": f"so {word} {n}", "label": word} for n in range(10) for word in ("good", "bad")]
>>> task = TextLabels(tasks={"sst2": Classification(text="sentence", train=train, dev=dev)})
>>> rows = task.read(None).splits["train"]
>>> rows["source"][0], rows["target"][0]
('sst2 sentence: good 0', 'good')
"""

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import print_notice
from distill.core.contracts import IGNORED, Batch, Constant, Items, Outputs, Scores
from distill.core.errors import OptionError, Overview, UserError, describe_call
from distill.core.options import check_arguments, show_value
from distill.data.batches import TokenizedExamples
from distill.data.splits import LabelledData, Split, compute_digest, text_split
from distill.data.tokenization import tokenize_split
from distill.edge.decode import TASK, WordTask
from distill.edge.decoder import MASKED
from distill.kinds import labelled_rows
from distill.kinds.classification import Classification, OneClass
from distill.kinds.kind import Encoder, Kind
from distill.kinds.multitask import MEAN, NAME
from distill.kinds.scoring import Scoring, WritingSettings
from distill.kinds.seq2seq import TargetTask, encode_targets, ends_texts
from distill.losses import HardLabels
from distill.models.decoding import score_words

WORDS = "label_words"  # The column `[B, K, T]` of batches with the tokens of the words that an example may have.
NUMBER = "word_task"  # The column `[B]` of batches with the number of the task that an example belongs to.


def simplify_word(text: str) -> str:
    """Returns a word as it is compared with a written text: without spaces, and in lower case.

    A vocabulary may write `not_equivalent` as `not _ equivalent`, or without capitals.
    """
    return "".join(text.split()).casefold()


def choose_words(task: str, labels: Sequence[str], given: Mapping[str, str] | None) -> tuple[str, ...]:
    """Returns the word of each label: the given one, or without any its name, with spaces for underscores.

    Args:
        task: its name.
        given: the word of each label, by its name, or by its index from 0 if no label has that name.

    Raises:
        UserError: for a label without a word, a word without a label, an empty one, and one of two labels.
    """
    words = dict(zip(labels, (label.replace("_", " ") for label in labels), strict=True))
    if given is not None:
        words = {_find_label(label, labels, task): word for label, word in given.items()}
    if missing := [label for label in labels if label not in words]:
        raise UserError(f"the label {missing[0]} of task {task} has no word: {_advise(task, missing[0])}")
    by_word: dict[str, str] = {}
    for label in labels:
        key = simplify_word(words[label])
        if not key:
            raise UserError(f"the word of the label {label} of task {task} is empty: {_advise(task, label)}")
        if key in by_word:
            raise UserError(
                f"the labels {by_word[key]} and {label} of task {task} have the same word {words[label]}, and no "
                f"answer could tell them apart: {_advise(task, label)}"
            )
        by_word[key] = label
    return tuple(words[label].strip() for label in labels)


def _find_label(given: str, labels: Sequence[str], task: str) -> str:
    if given in labels:
        return given
    if given.isdecimal() and int(given) < len(labels):
        return labels[int(given)]
    raise UserError(
        f"task.words has a word for {given}, which is no label of task {task}: expected {', '.join(labels)}"
    )


def _advise(task: str, label: str) -> str:
    return f"give it a word of its own with task.words={{{task}: {{{label}: WORD, ...}}}}"


def word_split(task: WordTask, number: int, split: Split) -> Split:
    """Returns labelled rows as pairs of texts, whose records a bundle reads.

    Args:
        number: of the task among all.
    """
    columns = [split[name] for name in split.text]
    sources = [task.source(texts) for texts in zip(*columns, strict=True)]
    words = [task.words[label] for label in split.labels]
    records = [{TASK: task.name, **dict(zip(task.columns, texts, strict=True))} for texts in zip(*columns, strict=True)]
    return Split(
        {
            "source": sources, "target": words, "references": [[word] for word in words], "record": records,
            "text": [f"{source} {word}" for source, word in zip(sources, words, strict=True)],
            "labels": split.labels, NUMBER: np.full(len(split), number),
        },
        ("source",), operator.itemgetter("record"), whole="text",
    )  # fmt: skip


def encode_words(
    tasks: Sequence[WordTask], tokenizer: PreTrainedTokenizerBase, max_target: int, end: int | None
) -> np.ndarray:
    """Returns the tokens of the words of each task, `[tasks, K, T]`, each with the one that ends it.

    What a task or a word has fewer is `IGNORED`.

    Args:
        max_target: tokens that a word may have, its end among them.
        end: the token that is put behind each word; None if the tokenizer does that itself.

    Raises:
        UserError: for a word that is too long, that the vocabulary cannot write, and for two of the same tokens.
    """
    rows = [list(_list_tokens(task, tokenizer, max_target, end)) for task in tasks]
    longest = max(len(ids) for of_task in rows for ids in of_task)
    encoded = np.full((len(tasks), max(map(len, rows)), longest), IGNORED, dtype=np.int64)
    for number, of_task in enumerate(rows):
        for place, ids in enumerate(of_task):
            encoded[number, place, : len(ids)] = ids
    return encoded


def _list_tokens(
    task: WordTask, tokenizer: PreTrainedTokenizerBase, max_target: int, end: int | None
) -> Iterator[list[int]]:
    """Yields the tokens of the words of a task."""
    tokens = tokenize_split(text_split(list(task.words)), tokenizer, max_target + 1)
    labels: dict[tuple[int, ...], str] = {}
    rows = [ids.tolist() for ids in np.split(tokens.columns["input_ids"], tokens.offsets[1:-1])]
    for label, word, ids in zip(task.labels, task.words, rows, strict=True):
        advice = _advise(task.name, label)
        whole = [*ids, *([] if end is None else [end])]
        if len(whole) > max_target:
            raise UserError(
                f"the word {word} of the label {label} has more than {max_target} tokens: {advice}, or raise "
                "task.max_target"
            )
        written = [token for token in ids if token not in tokenizer.all_special_ids]
        if not written or tokenizer.unk_token_id in ids:
            raise UserError(f"the vocabulary cannot write the word {word} of the label {label}: {advice}")
        if other := labels.get(tuple(ids)):
            raise UserError(f"the words of the labels {other} and {label} have the same tokens: {advice}")
        labels[tuple(ids)] = label
        yield whole


WRITTEN_ACCURACY, NO_LABEL = "written_accuracy", "no_label"


@dataclass(frozen=True)
class WordScores(Scoring):
    """The log-likelihoods of the words of each example as the logits of its classes.

    With one task the metrics are its own. With several they are `task/metric`, and `mean`, the mean of the tasks' first
    metrics, which selects checkpoints. A split may lack a task.

    Args:
        tasks: in the order of their numbers, with the scoring of the labels of each.
        writing: of the texts that are scored besides; None for none.
    """

    tasks: Sequence[tuple[WordTask, OneClass]]
    writing: WritingSettings | None = None

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]  # A property in place of a value.
        if len(self.tasks) == 1:
            return self.tasks[0][1].names
        return (MEAN, *(f"{task.name}/{name}" for task, scoring in self.tasks for name in scoring.names))

    def score(self, outputs: Outputs, items: Items) -> dict[str, Tensor]:
        """The log-likelihoods `[n, K]`, `MASKED` for words that an example's task lacks, and the number of the task."""
        return {**super().score(outputs, items), NUMBER: items[NUMBER][items.row]}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The metrics of the tasks that have examples here, and the mean of their first ones."""
        values = {name: (scoring, scoring.metrics(of_task)) for name, scoring, of_task in self._parts(scores)}
        if len(self.tasks) == 1:
            return next(metrics for _, metrics in values.values())
        mean = np.mean([metrics[scoring.metric] for scoring, metrics in values.values()])
        named = {f"{name}/{metric}": value for name, (_, of) in values.items() for metric, value in of.items()}
        return {MEAN: float(mean), **named}

    def selecting_metric(self, scores: Scores) -> float:
        """The first metric of the task, or its mean over the tasks that have examples here."""
        values = []
        for _, scoring, of_task in self._parts(scores):
            by_example = scoring.example_metric(of_task)
            values.append(scoring.selecting_metric(of_task) if by_example is None else float(by_example.mean()))
        return float(np.mean(values))

    def _parts(self, scores: Scores) -> Iterator[tuple[str, OneClass, Scores]]:
        """Yields the name, the scoring and the scores of each task that has examples, its logits without others'."""
        numbers = scores.columns[NUMBER]
        for number, (task, scoring) in enumerate(self.tasks):
            chosen = numbers == number
            if chosen.any():
                of_task = scores.select(chosen)
                logits = of_task.columns["logits"][:, : len(task.labels)]
                yield task.name, scoring, of_task.with_columns(logits=logits)

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        numbers = scores.columns[NUMBER].tolist()
        names = [self.tasks[number][0].labels for number in numbers]
        columns = {"label": scores.labels.tolist(), "prediction": self.predictions(scores).tolist()}
        named = {key: [of[index] for of, index in zip(names, column, strict=True)] for key, column in columns.items()}
        return {**named, "probability": self.probabilities(scores).max(axis=-1).tolist()}

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        """Whether each label is right, where the accuracy of one task is compared."""
        if len(self.tasks) > 1:
            return None
        [(_, scoring, of_task)] = self._parts(scores)
        return scoring.example_metric(of_task)

    def spoil(self, scores: Scores) -> Scores | None:
        """The least likely word of each example; None where a function of the user is compared."""
        if any(scoring.metric in scoring.functions for _, scoring in self.tasks):
            return None
        logits = scores.columns["logits"]
        return scores.with_columns(logits=np.where(logits <= MASKED, logits, -logits))

    def right_answers(self, scores: Scores) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Those of the labels; of several tasks by `task/label`."""
        return {
            f"{name}/{label}" if len(self.tasks) > 1 else label: answers
            for name, scoring, of_task in self._parts(scores)
            for label, answers in scoring.right_answers(of_task).items()
        }

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The constants of one task, or of several the best one of each together."""
        if len(self.tasks) == 1:
            [(_, scoring, of_task)] = self._parts(scores)
            return scoring.constants(of_task)
        best = dict[str, Constant]()
        for name, scoring, of_task in self._parts(scores):
            values = [(scoring.selecting_metric(each.predict(of_task)), each) for each in scoring.constants(of_task)]
            best[name] = max(values, key=lambda pair: pair[0])[1]

        def predict(scores: Scores) -> Scores:
            logits, numbers = np.array(scores.columns["logits"]), scores.columns[NUMBER]
            for name, _, of_task in self._parts(scores):
                values = best[name].predict(of_task).columns["logits"]
                logits[numbers == of_task.columns[NUMBER][0], : values.shape[1]] = values
            return scores.with_columns(logits=logits)

        return [Constant(", ".join(f"{constant.answer} for {name}" for name, constant in best.items()), predict)]

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        return {"tasks": [task.describe() for task, _ in self.tasks]}

    def plain_texts(self, split: Split) -> list[str]:
        """The sources that texts are written for."""
        return [] if self.writing is None else [split["source"][row] for row in self.writing.rows(len(split))]

    def text_metrics(self, split: Split, predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The share of written texts that are the right word, and of those that are no word of the task."""
        if self.writing is None:
            return {}
        rows = self.writing.rows(len(split))
        known = [set(map(simplify_word, task.words)) for task, _ in self.tasks]
        written = [simplify_word(prediction["text"]) for prediction in predictions]
        right = [text == simplify_word(split["target"][row]) for text, row in zip(written, rows, strict=True)]
        strange = [text not in known[split[NUMBER][row]] for text, row in zip(written, rows, strict=True)]
        return {WRITTEN_ACCURACY: float(np.mean(right)), NO_LABEL: float(np.mean(strange))}

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        first, _ = self.tasks[0]
        shown = "; ".join(f"{task.name}: {', '.join(task.labels)}" for task, _ in self.tasks)
        return {
            "labels": list(dict.fromkeys(label for task, _ in self.tasks for label in task.labels)),
            "answer": "label_words",
            "word_tasks": [task.describe() for task, _ in self.tasks],
            "pipeline_tag": "text2text-generation",
            "prediction": f"Writes labels, the likeliest word of each task. Labels of {shown}.",
            "example": f'"{first.source(["a sentence"] * len(first.columns))}"',
        }

    def summary(self, splits: LabelledData) -> str:
        named = (
            f"{task.name} " + ", ".join(f"{label} ({word})" if word != label else label for label, word in
                                         zip(task.labels, task.words, strict=True))
            for task, _ in self.tasks
        )  # fmt: skip
        return f"the words of labels: {'; '.join(named)}"


Word = str | int | float
WordTasks = Annotated[
    Mapping[str, Any], Field(min_length=1, description="at least one classification, as in task.tasks=[sst2,mrpc]")
]
Words = Annotated[
    Mapping[Any, Word | Mapping[Any, Word]],
    Field(description="words of labels by task, as in {sst2: {0: bad, 1: good}}, quoted if YAML's true or false"),
]


class TextLabels(TargetTask):
    """Classifications as texts for texts (arXiv 1910.10683, section 2.4), with one model and one head for all of them.

    A source is the name of the task and the columns of a row with their names, `mrpc sentence1: ... sentence2: ...`,
    and its target is the word of the label. Models are those of `Seq2Seq`, and learn as these do. They are scored by
    the log-likelihood of the words of the task, each with the token that ends it: the likeliest one is the label.

    The rows of all tasks are one data set, so that a batch has rows of several. Rows without a label are left out.

    Args:
        tasks: classifications of one label by name, of a text or a pair of texts. Their data, labels and metrics are
            those of the task of an encoder; `max_length` is that of this task.
        words: of each task the word of each label, by its name or by its index. Of a single task also without its name.
            A task without words has the names of its labels, with spaces for underscores.
        max_length: tokens that a source is cut to, at its end.
        max_target: tokens that a word may have, its end among them.
        scored_texts: sources of dev, and of each further split, for which models write a text at the end, without a
            restriction to the words; None for all, 0 for none.
        name: names the task in records and directories.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for a task that is no classification of one label, or has texts or weights that words cannot have.
    """

    kinds = ("label_words",)
    decoder = "label_words"

    @check_arguments
    def __init__(
        self,
        *,
        tasks: WordTasks,
        words: Words | None = None,
        max_length: labelled_rows.MaxLength = 128,
        max_target: labelled_rows.MaxLength = 16,
        scored_texts: Annotated[int, Field(ge=0)] | None = 200,
        name: str = "text_labels",
    ) -> None:
        for task_name, task in tasks.items():
            _check_task(task_name, task)
        super().__init__(name, max_length, builtin=all(task.info.builtin for task in tasks.values()))
        self.tasks: dict[str, Classification] = dict(tasks)
        self.words = _by_task(words or {}, tuple(tasks))
        self.max_target = max_target
        self.writing = None if scored_texts == 0 else WritingSettings((), scored_texts, 1, max_target)

    def __repr__(self) -> str:
        return describe_call("TextLabels", list(self.tasks), name=self.name)

    def overview(self) -> Overview:
        """Returns a row for each task, with its columns and its words, if they are given."""
        shown = [
            (name, ", ".join(task.rows.text), ", ".join(self.words.get(name, {}).values()) or "names of labels")
            for name, task in self.tasks.items()
        ]
        return Overview(f"TextLabels {self.name}", shown, header=("task", "columns", "words"))

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every task, and joins the splits of one name.

        Raises:
            UserError: for data that the task of an encoder refuses too, rows of train that have no label at all, a
                label without a word, and two labels with one word.
        """
        of_tasks = {name: task.read(cache_dir) for name, task in self.tasks.items()}
        known, splits = list[tuple[WordTask, OneClass]](), dict[str, list[Split]]()
        for number, (name, data) in enumerate(of_tasks.items()):
            task = self._describe(name, data)
            known.append((task, data.scoring))
            for split_name, split in data.splits.items():
                splits.setdefault(split_name, []).append(word_split(task, number, split))
        joined = {name: functools.reduce(operator.add, parts) for name, parts in splits.items()}
        return LabelledData(
            (), joined, compute_digest([[task.describe(), of_tasks[task.name].sha256] for task, _ in known]),
            scoring=WordScores(tuple(known), self.writing), terms={"hard": HardLabels()},
        ).with_option(f"max_target={self.max_target}")  # fmt: skip

    def _describe(self, name: str, data: LabelledData) -> WordTask:
        """Returns a task with the words of its labels."""
        if data.scoring.weights is not None:
            raise _refuse(name, "class_weights")
        if data.scoring.needs_teacher:
            raise UserError(f"task {name} has no row with a label, and words are learned from labels: add labels")
        if len(data.pool):
            print_notice(f"task {name}: {len(data.pool):,} rows without a label are left out")
        words = choose_words(name, data.labels, self.words.get(name))
        return WordTask(name, self.tasks[name].rows.text, data.labels, words, data.scoring.describe(data)["positive"])

    def encode_split(self, encoder: Encoder, data: LabelledData, name: str, split: Split) -> TokenizedExamples:
        """Tokenizes the sources of a split, the targets of train, and the words that others are scored by.

        Raises:
            UserError: for a word that is too long, or that the vocabulary cannot write, and two that it writes alike.
        """
        tokenizer, texts = encoder.tokenizer, text_split(split["source"])
        end = None if ends_texts(tokenizer) else int(tokenizer.eos_token_id)
        words = encode_words([task for task, _ in data.scoring.tasks], tokenizer, self.max_target, end)
        if name == "train":
            targets = encode_targets(split["target"], tokenizer, self.max_target, encoder.cache_dir)
            return TokenizedExamples(encoder.tokenize(texts), tokenizer, targets=targets)
        numbers = np.asarray(split[NUMBER])
        return encoder.encode(texts, **{"labels": split.labels, NUMBER: numbers, WORDS: words[numbers]})

    def select(self, batch: Batch) -> Items:
        """The tokens of the targets of train, and elsewhere the examples, whose classes are the words of their task."""
        if WORDS not in batch:
            return super().select(batch)
        return Kind.select(self, {**batch, "valid": (batch[WORDS] != IGNORED).any(dim=-1)})

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs both halves on the targets, or on each of the words after the source, which is encoded once."""
        if WORDS not in batch:
            return super().run(model, batch, items, needs)
        return Outputs(logits=score_words(model, batch, batch[WORDS]))  # [B, K]


def _check_task(name: str, task: object) -> None:
    """Raises an error for a task whose labels are no words that can be learned."""
    if not NAME.fullmatch(name):
        raise OptionError("tasks", show_value(name), "names of letters, digits, _ and -")
    if not isinstance(task, Classification) or task.info.likelihood != "softmax":
        kind = getattr(getattr(task, "info", None), "kind", type(task).__name__)
        raise UserError(f"task {name} is a {kind}, and words are for the labels of a classification of one label")
    for option, is_set in {"bank": task.info.bank is not None, "unlabelled": task.info.unlabelled == "given"}.items():
        if is_set:
            raise _refuse(name, option)


def _refuse(name: str, option: str) -> UserError:
    return UserError(f"task.tasks.{name}.{option} has no use for words that a model writes: set it to null")


def _by_task(words: Mapping[Any, Any], names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Returns the words of each task by label; raises OptionError for those of an unknown task."""
    is_flat = not any(isinstance(value, Mapping) for value in words.values())
    by_task = {names[0]: words} if words and is_flat and len(names) == 1 else words
    for name, of_task in by_task.items():
        if name not in names or not isinstance(of_task, Mapping):
            raise OptionError("words", show_value(dict(words)), f"a mapping of labels to words for {', '.join(names)}")
    return {str(name): {str(label): str(word) for label, word in of.items()} for name, of in by_task.items()}
