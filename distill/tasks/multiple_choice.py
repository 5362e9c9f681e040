"""Multiple choice: the right one of several choices for a question, any number of them; one item an example.

>>> from distill.tasks import MultipleChoice
>>> train = {"question": ["2 + 2?", "3 - 1?"], "choices": [["4", "5"], ["1", "2", "3"]], "answer": [0, 1]}
>>> dev = {"question": ["5 - 1?"], "choices": [["4", "6"]], "answer": [0]}
>>> MultipleChoice(train=train, dev=dev).read(None).splits["train"]["choices"][1]
['1', '2', '3']
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import numpy as np
from pydantic import Field

from distill.contracts import IGNORED, Batch, Constant, Examples, Items, Outputs, Scores, TaskInfo
from distill.data.choices import ChoiceColumns
from distill.data.tables import LabelledData, Split, text_split
from distill.edge.decoder import pair_choices
from distill.errors import OptionError
from distill.losses import HardLabels
from distill.losses.term import mask_logits, scatter_logits
from distill.options import check_arguments, show_value
from distill.tasks import rows
from distill.tasks.scoring import Scoring, always

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.batching import TokenizedExamples

Choices = Annotated[
    str | int | Sequence[str | int | Sequence[str | int]],
    Field(description="the column of the lists of choices, or a list of the columns of the single choices"),
]


@dataclass(frozen=True)
class ChoiceScores(Scoring):
    """The choices of a model, and the share that is right.

    Args:
        choices: the usual number of choices of an example.
        reading: of the answers; None before the data is read.
    """

    names = ("accuracy",)
    can_abstain = True

    choices: int | None = None
    reading: str | None = None

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """The logits `[n, K]`, `MASKED` for a choice that an example does not have."""
        return {"logits": mask_logits(super().score(outputs, items)["logits"], items.valid)}

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """Returns the reading of the answers, with which a bundle reads those of a labelled file."""
        return {"answers": self.reading}

    def metrics(self, scores: Scores) -> dict[str, float]:
        return {"accuracy": float((self.predictions(scores) == scores.labels).mean())}

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        return np.asarray(self.predictions(scores) == scores.labels, dtype=np.float64)

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The indices of the right and of the predicted choice."""
        return {
            "label": scores.labels.tolist(),
            "prediction": self.predictions(scores).tolist(),
            "probability": self.confidences(scores).tolist(),
        }

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The most frequent position of the right choice."""
        position = int(np.bincount(scores.labels).argmax())
        return [always(f"always choice {position + 1}", position)]

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": [],
            "answer": "choices",
            "choices": self.choices,
            "pipeline_tag": "multiple-choice",
            "prediction": "Takes one of the choices of a question.",
            "example": r"$'a question\tone choice\tanother choice'",
        }

    def summary(self, splits: LabelledData) -> str:
        every = [len(choices) for split in splits.splits.values() for choices in split["choices"]]
        numbers = f"{min(every)}" if min(every) == max(every) else f"{min(every)} to {max(every)}"
        return f"{numbers} choices"


class MultipleChoice:
    """Questions with choices, of which one is right. Examples may have different numbers of choices.

    A model reads every choice with its question as two texts, or with a context, the context and both of them. Models
    are of `AutoModelForMultipleChoice`, and give each choice one logit.

    Args:
        question: the column of the question; of several names the first one that is there.
        choices: the column that holds the list of choices, or the columns of the single choices, of which the last
            ones may be empty. Of several lists of columns the first one whose columns are there.
        answer: the column of the right choice; of several names the one that is there. An answer is the name
            of a choice where the data names them, its index from 0, its number from 1, its letter or its text. All
            answers are read in the same way.
        context: the column of a text that the question is about; None for data without one.
        max_length: tokens that a choice with its question is cut to, the longer text first.
        name: names the task in records and directories.
        options: those of `rows.DataOptions`, `unlabelled` with questions and their choices. Of a single file or
            table, dev is drawn without regard to the answers.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("multiple_choice",)
    auto_class = "AutoModelForMultipleChoice"

    @check_arguments
    def __init__(
        self,
        *,
        question: rows.Columns = "question",
        choices: Choices = "choices",
        answer: rows.Columns = "answer",
        context: rows.Columns | None = None,
        name: str = "multiple_choice",
        max_length: rows.MaxLength = 128,
        **options: Unpack[rows.DataOptions],
    ) -> None:
        self.columns = ChoiceColumns(
            question=rows.column_names(question), choices=_list_columns(choices), answer=rows.column_names(answer),
            context=() if context is None else rows.column_names(context),
        )  # fmt: skip
        self.source = rows.table_source(name=name, text=self.columns.text, label=self.columns.answer, **options)
        self.pool = rows.pool_source(options, lambda questions: partial(self.columns.add_unlabelled, questions))
        self.info = TaskInfo(
            name=name, kind=self.kinds[0], auto_class=self.auto_class, likelihood="softmax", decoder="choices",
            max_length=max_length, pair=True, builtin=options.get("builtin", False),
            can_abstain=ChoiceScores.can_abstain, **self.pool.info(),
        )  # fmt: skip

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split, and determines the usual number of choices and how their answers are read.

        Raises:
            UserError: for a directory, file, column, text or answer that is missing or unusable.
        """
        labelled, reading = self.columns.read(self.source, cache_dir)
        data = self.pool.add_to(labelled)
        choices = int(np.bincount(list(map(len, data.splits["train"]["choices"]))).argmax())
        terms = {"hard": HardLabels()}
        return replace(data, scoring=ChoiceScores(choices, reading), terms=terms, choices=choices)

    def encode(
        self, data: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> dict[str, Examples]:
        """Tokenizes every choice with its question. The logits of all splits are as wide as the most choices."""
        every: list[Split] = [*data.splits.values(), *([data.pool.rows] if len(data.pool) else [])]
        most = max(len(choices) for split in every for choices in split["choices"])

        def encode(name: str, split: Split) -> "TokenizedExamples":
            return _encode(split, most, tokenizer, self.info.max_length, cache_dir)

        return rows.encode_splits(
            data, encode, lambda pool: pool.with_columns(labels=np.full(len(pool), IGNORED, dtype=np.int64))
        )  # fmt: skip

    def select(self, batch: Batch) -> Items:
        """The examples, whose valid classes are the choices that they have."""
        return rows.select_examples(batch, self.info.likelihood, valid=batch["valid"])

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the model on the sequences `[S, L]` of all choices."""
        from distill.models.forward import collect_outputs, run_model

        output = run_model(model, batch, needs)
        return collect_outputs(output, scatter_logits(output.logits, batch["valid"]))  # [B, K]


def _list_columns(choices: str | int | Sequence[str | int | Sequence[str | int]]) -> tuple[tuple[str, ...], ...]:
    """Returns the lists of columns that `choices` names."""
    if isinstance(choices, str | int):
        return ((str(choices),),)
    lists = [rows.column_names(entry) for entry in choices if not isinstance(entry, str | int)]
    if not choices or (lists and len(lists) < len(choices)) or not all(lists):
        raise OptionError("choices", show_value(choices), "names of columns, or lists of them, of which one is taken")
    return tuple(lists) or (tuple(map(str, choices)),)


def _encode(
    split: Split, most: int, tokenizer: "PreTrainedTokenizerBase", max_length: int, cache_dir: Path | None
) -> "TokenizedExamples":
    """Tokenizes the sequences of a split, whose examples have at most `most` of them."""
    from distill.data import token_cache
    from distill.data.batching import TokenizedExamples

    contexts = split.columns.get("context", itertools.repeat(None))
    rows = zip(split["question"], contexts, split["choices"], strict=False)
    pairs = [pair for row in rows for pair in pair_choices(*row)]
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    tokens = token_cache.tokenize_split(text_split(first, second), tokenizer, max_length, cache_dir)
    valid = np.arange(most) < np.array([len(choices) for choices in split["choices"]])[:, None]
    return TokenizedExamples(
        tokens, tokenizer, per_example={"labels": split.labels}, valid=valid,
        classes_per_item=float(valid.sum(axis=1).mean()),
    )  # fmt: skip
