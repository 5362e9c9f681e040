"""Regression on one text or a pair of texts: `logits [B, 1]` are the number, one item an example.

>>> from distill.kinds import Regression
>>> Regression(text=["question", "answer"], label="score", data="pairs.csv").info.pair
True
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from distill.core.console import print_notice
from distill.core.contracts import Constant, Scores
from distill.core.errors import OptionError
from distill.core.options import check_arguments, show_value
from distill.data.splits import LabelledData
from distill.edge.metrics import NUMBER_METRICS, compute_metrics
from distill.kinds import labelled_rows
from distill.kinds.known import LABEL, SCORE, Found, KnownTable
from distill.kinds.labelled_rows import TextRows
from distill.kinds.scoring import Functions, NumberScoring, annotate_metrics, is_constant, read_metrics
from distill.labelling.forms import NumberForm
from distill.losses import HardLabels

if TYPE_CHECKING:
    from distill.kinds.scoring import Metrics
else:
    Metrics = annotate_metrics(", ".join(NUMBER_METRICS))


@dataclass(frozen=True)
class NumberScores(NumberScoring):
    """The numbers of a model, compared with those of the labels.

    Args:
        names: some of `NUMBER_METRICS` and of `functions`.
        functions: metrics of the user, of the numbers `y_true [N]` and the predictions `y_score [N]`.
    """

    is_correlation = True

    names: tuple[str, ...]
    functions: Functions = field(default_factory=dict)

    def adapt(self, data: LabelledData) -> LabelledData:
        """Returns the data with its scoring."""
        numbers = data.splits["dev"].labels
        if is_constant(numbers):
            print_notice(
                f"all numbers of dev are {numbers[0]:g}, so that {self.metric} is 0 whatever a model predicts: give a "
                "dev with different numbers"
            )
        data = self.adopt_functions(
            data, perfect=lambda labels: labels[:, None], constant=lambda logits: np.full_like(logits, logits.mean())
        )
        return replace(data, scoring=self, terms={"hard": HardLabels()})

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The metrics; a correlation with a constant is 0."""
        values = compute_metrics(NUMBER_METRICS, self.names, self.predictions(scores), scores.labels)
        return self.add_functions(values, scores)

    def predictions(self, scores: Scores) -> np.ndarray:
        """The predicted numbers, `[n]`."""
        return np.asarray(scores.columns["logits"][:, 0])

    def true_and_scores(self, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the labels and of the model."""
        return scores.labels, self.predictions(scores)

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        numbers = self.predictions(scores).tolist()
        return {"label": scores.labels.tolist(), "prediction": numbers, "probability": [None] * len(numbers)}

    def spoil_all(self, scores: Scores) -> Scores:
        """The labels, reflected at their mean."""
        reflected = 2 * scores.labels.mean() - scores.labels
        return scores.with_columns(logits=reflected[:, None].astype(np.float32))

    def values(self, scores: Scores) -> np.ndarray:
        return self.predictions(scores)

    def probability_diff(self, scores: Scores, reference: Scores) -> float:
        """The largest difference as a share of the reference's range, or of the labels' where that is larger."""
        expected = self.values(reference)
        scale = max(float(np.ptp(expected)), float(np.ptp(reference.labels))) or 1.0
        return float(np.abs(self.values(scores) - expected).max()) / scale

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The mean of dev; nothing if all of its numbers are the same, because every correlation is then 0."""
        if is_constant(scores.labels):
            return []
        mean = float(scores.labels.mean())

        def predict(scores: Scores) -> Scores:
            return replace(scores, columns={"logits": np.full_like(scores.columns["logits"], mean)})

        return [Constant("always the mean of the labels", predict)]

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        return {
            "labels": list(splits.labels),
            "answer": "number",
            "pipeline_tag": "text-classification",
            "prediction": f"Predicts a number: {splits.labels[0]}.",
            **self.describe_functions(),
        }

    def summary(self, splits: LabelledData) -> str:
        numbers = splits.splits["train"].labels
        return f"a number, {splits.labels[0]}: {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.4g}"


class Regression(TextRows):
    """A number for one text or a pair of texts.

    Args:
        text: the column, or the two columns of a pair, that hold the text. Data in memory as
            `(texts, labels)` need no name.
        label: the column that holds the number; of several names the one that is there.
        metrics: pearson, spearman or mae, or functions as in `Classification` that read numbers `[N]`; the first one
            selects checkpoints, and retention compares it.
        name: names the task in records and directories.
        max_length: tokens that an example is cut to.
        options: those of `labelled_rows.TextOptions`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("regression",)
    likelihood = "gaussian"
    decoder = "number"
    no_label = np.nan
    answer_form = NumberForm

    @check_arguments
    def __init__(
        self,
        *,
        text: labelled_rows.Columns | None = None,
        label: labelled_rows.Columns = "label",
        name: str = "regression",
        metrics: Metrics = ("pearson",),
        max_length: labelled_rows.MaxLength = 128,
        **options: Unpack[labelled_rows.TextOptions],
    ) -> None:
        names, functions = read_metrics(metrics, list(NUMBER_METRICS))
        if names[0] == "mae":
            raise OptionError("metrics", show_value(names), "pearson or spearman first, because more of it is better")
        super().__init__(
            name, max_length, NumberScores(names, functions), text, label, {"task": "regression"}, options
        )  # fmt: skip

    def read_known(self, known: KnownTable, data: LabelledData) -> Found:
        """Yields the number of each text."""
        name = SCORE if known.has(SCORE) else LABEL
        for row, texts in enumerate(known.texts(self.known_columns)):
            yield row, texts, np.array([[known.number(row, name, known.value(row, name), "a number")]])
