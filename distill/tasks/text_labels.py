"""Labels as words to write: classifications as texts for texts, several of them told apart by their names.

>>> from distill.tasks import Classification, TextLabels
>>> train = [{"sentence": f"{word} {n}", "label": word} for n in range(10) for word in ("good", "bad")]
>>> dev = [{"sentence": f"so {word} {n}", "label": word} for n in range(10) for word in ("good", "bad")]
>>> task = TextLabels(tasks={"sst2": Classification(text="sentence", train=train, dev=dev)})
>>> rows = task.read(None).splits["train"]
>>> rows["source"][0], rows["target"][0]
('sst2 sentence: good 0', 'good')
"""

import functools
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from distill.console import print_notice
from distill.contracts import IGNORED, Batch, Examples, Items, Outputs, TaskInfo
from distill.data.label_words import NUMBER, WORDS, choose_words, encode_words, word_split
from distill.data.tables import LabelledData, Split, compute_digest, text_split
from distill.edge.label_words import WordTask
from distill.edge.overview import Overview, describe_call
from distill.errors import OptionError, UserError
from distill.losses import HardLabels
from distill.options import check_arguments, show_value
from distill.tasks import rows
from distill.tasks.class_scores import OneClass
from distill.tasks.classification import Classification
from distill.tasks.multi import NAME
from distill.tasks.overview import ShownTask
from distill.tasks.seq2seq import encode_targets, ends_texts, run_halves, select_targets
from distill.tasks.word_scores import WordScores
from distill.tasks.writing import Writing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.batching import TokenizedExamples

Word = str | int | float
WordTasks = Annotated[
    Mapping[str, Any], Field(min_length=1, description="at least one classification, as in task.tasks=[sst2,mrpc]")
]
Words = Annotated[
    Mapping[Any, Word | Mapping[Any, Word]],
    Field(description="words of labels by task, as in {sst2: {0: bad, 1: good}}, quoted if YAML's true or false"),
]


class TextLabels(ShownTask):
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
    auto_class = "AutoModelForSeq2SeqLM"

    @check_arguments
    def __init__(
        self,
        *,
        tasks: WordTasks,
        words: Words | None = None,
        max_length: rows.MaxLength = 128,
        max_target: rows.MaxLength = 16,
        scored_texts: Annotated[int, Field(ge=0)] | None = 200,
        name: str = "text_labels",
    ) -> None:
        for task_name, task in tasks.items():
            _check_task(task_name, task)
        self.tasks: dict[str, Classification] = dict(tasks)
        self.words = _by_task(words or {}, tuple(tasks))
        self.max_target = max_target
        self.writing = None if scored_texts == 0 else Writing((), scored_texts, 1, max_target)
        self.info = TaskInfo(
            name=name, kind=self.kinds[0], auto_class=self.auto_class, likelihood="softmax", decoder="label_words",
            max_length=max_length, classes_are_tokens=True, caches_outputs=False, generates=True,
            builtin=all(task.info.builtin for task in tasks.values()), max_target=max_target,
        )  # fmt: skip

    def __repr__(self) -> str:
        return describe_call("TextLabels", list(self.tasks), name=self.info.name)

    def overview(self) -> Overview:
        """Returns a row for each task, with its columns and its words, if they are given."""
        shown = [
            (name, ", ".join(task.rows.text), ", ".join(self.words.get(name, {}).values()) or "names of labels")
            for name, task in self.tasks.items()
        ]
        return Overview(f"TextLabels {self.info.name}", shown, header=("task", "columns", "words"))

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

    def encode(
        self, data: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> dict[str, Examples]:
        """Tokenizes the sources of all splits, the targets of train, and the words that others are scored by.

        Raises:
            UserError: for a word that is too long, or that the vocabulary cannot write, and two that it writes alike.
        """
        from distill.data import token_cache
        from distill.data.batching import TokenizedExamples

        end = None if ends_texts(tokenizer) else int(tokenizer.eos_token_id)
        words = encode_words([task for task, _ in data.scoring.tasks], tokenizer, self.max_target, end)

        def encode(name: str, split: Split) -> "TokenizedExamples":
            tokens = token_cache.tokenize_split(
                text_split(split["source"]), tokenizer, self.info.max_length, cache_dir
            )  # fmt: skip
            if name == "train":
                targets = encode_targets(split["target"], tokenizer, self.max_target, cache_dir)
                return TokenizedExamples(tokens, tokenizer, targets=targets)
            numbers = np.asarray(split[NUMBER])
            columns = {"labels": split.labels, NUMBER: numbers, WORDS: words[numbers]}
            return TokenizedExamples(tokens, tokenizer, per_example=columns)

        return rows.encode_splits(data, encode, lambda pool: pool)

    def select(self, batch: Batch) -> Items:
        """The tokens of the targets of train, and elsewhere the examples, whose classes are the words of their task."""
        if WORDS not in batch:
            return select_targets(batch)
        return rows.select_examples(batch, self.info.likelihood, valid=(batch[WORDS] != IGNORED).any(dim=-1))

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs both halves on the targets, or on each of the words after the source, which is encoded once."""
        if WORDS not in batch:
            return run_halves(model, batch, items, needs)
        from distill.models.label_words import score_words

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
