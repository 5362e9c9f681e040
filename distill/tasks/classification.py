"""Classification of one text or a pair of texts, with one label or several: `logits [B, C]`, one item an example.

>>> from distill.tasks import Classification
>>> task = Classification(text="sentence", train=(["good", "bad"] * 10, [1, 0] * 10), dev=(["fine", "poor"], [1, 0]))
>>> task.read(None).labels
('0', '1')
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from pydantic import Field

from distill.contracts import Batch, Examples, Items, Outputs, TaskInfo
from distill.data.tables import LabelledData
from distill.errors import OptionError
from distill.options import check_arguments, show_value
from distill.readers.labels import simplify
from distill.tasks import rows
from distill.tasks.class_scores import METRICS, OneClass
from distill.tasks.class_weights import ClassWeights
from distill.tasks.label_scores import METRICS as SET_METRICS
from distill.tasks.label_scores import LabelSets
from distill.tasks.overview import ShownTask
from distill.tasks.own_metrics import Functions, annotate_metrics, read_metrics

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.tasks.own_metrics import Metrics
else:
    Metrics = annotate_metrics(f"{', '.join(METRICS)}, or with multi_label of {', '.join(SET_METRICS)}")
Separator = Annotated[str, Field(min_length=1, description="at least one character")]
Labels = Annotated[
    Sequence[str | int | float], Field(min_length=2, description="at least two names, quoted if YAML's true or false")
]
Label = Annotated[str | int | float, Field(description="the name of a class, quoted if YAML's true or false")]


class Classification(ShownTask):
    """Classes of one text or a pair of texts, one of them or, with `multi_label`, any number.

    Args:
        text: the column, or the two columns of a pair, that hold the text. Data in memory as
            `(texts, labels)` need no name.
        label: the column that holds the class; of several names the one that is there. With `multi_label` also the
            columns of 0 and 1, one for each label. None if no text has one. Without any label in train, the teacher
            must know the classes of `labels`, and the metric `agreement` with it selects checkpoints.
        name: names the task in records and directories.
        labels: names of the classes in the order of the data's integers; None takes the training split's own.
        positive: of two classes the one whose F1 is computed. None is the second one of `labels` or of 0 and 1; classes
            that the data names have none.
        class_weights: weights of the classes in the loss on the labels, of student and fine-tuned teacher: `balanced`
            (n / (C * count of the class) in train), or one number for each class; None weighs all alike. Only None
            with `multi_label`.
        multi_label: whether an example has any number of the labels, also none. A label is then given from a threshold
            of its probability on, which has the largest F1 of the label on dev.
        separator: between the labels of an example in a text, such as a field of CSV; lists of labels, and vectors of
            0 and 1 for each label, have none.
        metrics: accuracy, f1, matthews or macro_f1 (the mean of the F1 of every class with a row in the split), and
            with `multi_label` micro_f1, macro_f1 or subset_accuracy; the first one selects checkpoints, and retention
            compares it. None takes accuracy and f1, or all three of several labels.
            A function `(y_true, y_score) -> float` is a metric too, of which more is better, under its own name or
            that of a mapping. Of two classes it reads 1 for the positive one and its probability, `[N]` both; of more,
            the index of the class `[N]` and all probabilities `[N, C]`; with `multi_label` 0 and 1 `[N, C]` and the
            probabilities `[N, C]`. A bundle has its values, and cannot compute it.
        max_length: tokens that an example is cut to.
        data: a path as `data_dir`, a table, or split -> table; a table is a pandas frame, a `datasets.Dataset`, a
            mapping of columns, or `(texts, labels)`. Of a single table `dev_fraction` is held out as dev.
        train, dev, test: tables, in place of `data`.
        data_dir: a directory with `train` and `dev`, or one file of which `dev_fraction` is held out as dev.
        dev_fraction: share of a single file or table that becomes dev, drawn class by class, the same in every run.
        splits: names under which a split is found besides the usual ones. Every split but train and dev is scored at
            the end and selects nothing. With no name for dev, `{"dev": []}`, `dev_fraction` of train is held out.
        hub_id: the Hub's data set and, after a colon, its configuration, e.g. `nyu-mll/glue:sst2`.
        builtin: the data comes with the program.
        train_examples, dev_examples: use only so many examples, always the same ones; None uses all.
        missing: the treatment of rows without a label or a text, which are reported together with their lines. `error`
            refuses them, `drop` leaves them out, and `unlabelled` gives those of train that have a text to the teacher
            as unlabelled texts. `auto` does so too, except that with `multi_label` no label is none of the labels.
        unlabelled: more texts, which only the teacher labels: a file (plain text with one text a line, or a table
            with the columns of `text`), a directory of such files, a data set of the Hub, a list of texts or of pairs
            of texts, or a table. Texts of any split and repeated ones are left out. `auto` takes changed copies of the
            training texts and sentences of the bank, as many as suit the data (`data.auto_text`).
        unlabelled_share: share of unlabelled texts in the examples of every optimizer step.
        bank: sentences or prose in the domain of the task, of which those near the training texts join the texts of
            `unlabelled=auto`: a source as for `unlabelled`. A bank is for single texts.
        clean: rules for the texts of `unlabelled` and the bank: `web` keeps the prose of web text; None keeps all.
        options: those of `rows.TextOptions`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = (OneClass.kind, LabelSets.kind)
    auto_class = "AutoModelForSequenceClassification"

    @check_arguments
    def __init__(
        self,
        *,
        text: rows.Columns | None = None,
        label: rows.Columns | None = "label",
        name: str = "classification",
        labels: Labels | None = None,
        positive: Label | None = None,
        class_weights: ClassWeights | None = None,
        multi_label: bool = False,
        separator: Separator = "|",
        metrics: Metrics | None = None,
        max_length: rows.MaxLength = 128,
        **options: Unpack[rows.TextOptions],
    ) -> None:
        names = None if labels is None else tuple(map(str, labels))
        if names is not None and len(set(map(simplify, names))) < len(names):
            raise OptionError("labels", show_value(names), "at least two names, each once")
        chosen, functions = _choose_metrics(metrics, multi_label=multi_label)
        self._answers: OneClass | LabelSets
        if multi_label:
            _refuse_options_of_one_label(positive, class_weights)
            self._answers = LabelSets(chosen, separator=separator, functions=functions)
        else:
            positive = None if positive is None else str(positive)
            self._answers = OneClass(
                chosen, functions, labels=names, positive=positive, class_weights=class_weights, classes=names or ()
            )
        self.rows = rows.labelled_text(
            name=name,
            text=text,
            label=label,
            label_names=names,
            separator=separator if multi_label else None,
            **options,
        )
        self.pool = rows.text_pool(options, self.rows)
        if label is None and multi_label:
            raise OptionError("label", "null", "the column of the labels, because task.multi_label=true")
        answers = self._answers
        self.info = TaskInfo(
            name=name, kind=answers.kind, auto_class=self.auto_class, likelihood=answers.likelihood,
            decoder=answers.decoder, max_length=max_length, pair=len(self.rows.text) == 2,
            builtin=options.get("builtin", False), can_abstain=answers.can_abstain, can_augment=True,
            model_settings=dict(answers.model_settings), **self.pool.info(),
        )  # fmt: skip

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split, and takes from it what the metrics and the weights of the classes need.

        Raises:
            UserError: for invalid data and class weights that do not fit it, and if F1 selects checkpoints and the
                positive class of two is unknown.
        """
        return self._answers.adapt(self.pool.add_to(self.rows.read(cache_dir)))

    def encode(
        self, data: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> dict[str, Examples]:
        return rows.encode_rows(
            data, tokenizer, self.info.max_length, cache_dir, no_label=self._answers.no_label,
            weights=data.scoring.weights,
        )  # fmt: skip

    def select(self, batch: Batch) -> Items:
        return rows.select_examples(batch, self.info.likelihood)

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        return rows.run_whole_model(model, batch, needs)


def _choose_metrics(metrics: "Metrics | None", *, multi_label: bool) -> tuple[tuple[str, ...], Functions]:
    """Returns the names of the metrics, by default the usual ones, and the functions among them.

    Raises:
        OptionError: for metrics of one class with several labels, or the other way round.
    """
    known, others = list(METRICS), list(SET_METRICS)
    if multi_label:
        known, others = others, known
    if metrics is None:
        return tuple(known if multi_label else known[:2]), {}
    listed = metrics if isinstance(metrics, Iterable) else ()
    if any(isinstance(metric, str) and metric in others and metric not in known for metric in listed):
        reason = f"because task.multi_label={show_value(multi_label)}"
        raise OptionError("metrics", show_value(list(metrics)), f"a list of some of {', '.join(known)}, {reason}")
    return read_metrics(metrics, known)


def _refuse_options_of_one_label(positive: object, class_weights: object) -> None:
    """Raises OptionError for options that examples with several labels do not have."""
    if positive is not None:
        raise OptionError("positive", show_value(positive), "null, because task.multi_label=true has F1 of all labels")
    if class_weights is not None:
        reason = "each label of task.multi_label=true has a threshold of its own"
        raise OptionError("class_weights", show_value(class_weights), f"null, because {reason}")
