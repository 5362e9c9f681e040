"""Predictions of a run: the file of them, their statistics and figures on dev, and written texts beside each other.

Writes predictions.parquet: the predictions of every model of a run on every split that is scored. One row an example.
The columns are `split`, `index`, those of the texts, `label`, and for each model NAME `NAME_prediction` and
`NAME_probability`. A task gives the last three in the form of its own: names of classes, numbers, lists of labels or of
tags, or indices of choices. The texts are `text` and `second_text`, or `question`, `context` and `choices`. Of models
that write texts there are the `references` and for each model `NAME_written`, its text.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.core.contracts import Data, Scores
from distill.core.errors import UserError, first_line
from distill.core.files import atomic_file
from distill.edge.answering import normalize_references, score_answer
from distill.kinds.scoring import CALIBRATION_BINS
from distill.records import plots
from distill.records.plots import Figure
from distill.records.verdict import Record, RecordSettings, format_number
from distill.rows.labels import sort_classes
from distill.training.statistics import Estimate

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.axes import Axes


FILE = "predictions.parquet"
REFERENCES, WRITTEN = "references", "_written"  # The column of references, and the ending of those of written texts.


def write_predictions(
    directory: Path,
    models: Mapping[str, Mapping[str, Scores]],
    *,
    splits: Data,
    settings: RecordSettings,
    written: Mapping[str, Mapping[str, Sequence[object]]] = MappingProxyType({}),
) -> None:
    """Writes the predictions of `models`, whose scores are by split and in the order of the examples.

    Args:
        written: the columns of written texts of each split.
    """
    import pyarrow
    import pyarrow.parquet

    tables = []
    for name, split in splits.scored().items():
        count = len(split)
        columns: dict[str, Sequence[object]] = {"split": [name] * count, "index": range(count)}
        if settings.texts:
            columns |= {**split.text_columns(), **written.get(name, {})}
        for model, scores in models.items():
            predictions = splits.scoring.tabulate(scores[name], splits, examples=count)
            columns.setdefault("label", predictions["label"])
            columns |= {f"{model}_{column}": predictions[column] for column in ("prediction", "probability")}
        tables.append(pyarrow.table({column: pyarrow.array(values) for column, values in columns.items()}))
    table = pyarrow.concat_tables(tables, promote_options="default")  # A split may have values where another has none.
    schema = [field.with_type(pyarrow.float64()) if field.type == pyarrow.null() else field for field in table.schema]
    with atomic_file(directory / FILE) as temporary:
        pyarrow.parquet.write_table(table.cast(pyarrow.schema(schema)), temporary)


MOST_CLASSES = 20  # Of a confusion matrix.
SHOWN_DIFFERENCES = 10  # Examples on which the models differ most.
LABEL_SETS = "labels"  # The form of a prediction that is any number of labels.
SHIPPED = ("int8", "fp32", "student")  # The first one that there is, is compared with the teacher.
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Calibration:
    """The reliability diagram of a model, in the bins of `Scoring.calibration_error`.

    Attributes:
        confidence: the mean probability in each bin that has predictions.
        accuracy: the share of right predictions in it.
        number: of the predictions in it.
        error: the expected calibration error.
    """

    confidence: Sequence[float]
    accuracy: Sequence[float]
    number: Sequence[int]
    error: float

    def mean_confidence(self) -> float:
        """Returns the mean probability of all predictions."""
        return float(np.average(self.confidence, weights=self.number))

    def mean_accuracy(self) -> float:
        """Returns the share of right predictions."""
        return float(np.average(self.accuracy, weights=self.number))


@dataclass(frozen=True)
class Disagreement:
    """An example on which two models differ: its texts, the label, and the two predictions with probabilities."""

    texts: Mapping[str, str]
    index: int
    label: object
    teacher: object
    student: object
    teacher_probability: float | None
    student_probability: float | None


@dataclass(frozen=True)
class Analysis:
    """Statistics of the predictions of a run on dev.

    Attributes:
        model: the name of the model that is compared with the teacher, such as `int8`.
        number: of the examples.
        agreement: share of the examples for which both predict the same; None for numbers.
        calibration: by model, of those with probabilities.
        calibrated: the name of their error. Of any number of labels it is that of the labels that were given, where
            the gate of a file has that of all labels.
        classes: the labels of the rows and columns of `confusion`.
        confusion: `[label, prediction]`, the numbers of examples of `model`; None without classes or with many of them.
        numbers: the predictions of teacher and `model` `[n, 2]`, if they are numbers.
        lengths: the words of each example; empty if the run recorded no texts.
        differences: the examples on which `model` and the teacher differ most.
    """

    model: str
    number: int
    agreement: float | None
    calibration: Mapping[str, Calibration]
    classes: Sequence[str]
    confusion: np.ndarray | None
    numbers: np.ndarray | None
    lengths: Sequence[int]
    differences: Sequence[Disagreement]
    calibrated: str = "calibration error"


def analyze_predictions(directory: Path, *, answer: str | None = None) -> Analysis | None:
    """Returns the statistics of a run's predictions; None without any, or without a teacher beside the student.

    Args:
        answer: the form of a prediction, as in the `task` of run.json.

    Raises:
        UserError: if the file is damaged.
    """
    path = directory / FILE
    if not path.is_file():
        return None
    columns = _read_dev(path)
    models = [name.removesuffix("_prediction") for name in columns if name.endswith("_prediction")]
    model = next((name for name in SHIPPED if name in models), None)
    if model is None or "teacher" not in models or not columns["label"]:
        return None
    classes, confusion = ((), None) if answer == LABEL_SETS else _count_confusions(columns, model)
    numbers = _stack_numbers(columns, model)
    pairs = list(zip(columns["teacher_prediction"], columns[f"{model}_prediction"], strict=True))
    calibrations = {name: _calibrate(_judge_items(columns, name, answer)) for name in models}
    return Analysis(
        model=model, number=len(pairs), classes=classes, confusion=confusion, numbers=numbers,
        agreement=None if numbers is not None else sum(first == second for first, second in pairs) / len(pairs),
        calibration={name: found for name, found in calibrations.items() if found is not None},
        lengths=_count_words(columns), differences=_find_differences(columns, model),
        calibrated="calibration error of given labels" if answer == LABEL_SETS else "calibration error",
    )  # fmt: skip


def _read_dev(path: Path) -> Columns:
    """Returns the columns of the examples of dev; of a retrieval set without the documents, which have no label."""
    columns: dict[str, list[Any]] = _read_table(path).to_pydict()
    names = [name.removesuffix("_prediction") for name in columns if name.endswith("_prediction")]
    needed = {"split", "index", "label", *(f"{name}_probability" for name in names)}
    if not needed <= columns.keys():
        raise UserError(f"{path} is damaged: it has no column {min(needed - columns.keys())}")
    # A question that is rightly left unanswered has neither label nor prediction, and a probability.
    known = [columns["label"], *(columns[f"{name}_{of}"] for name in names for of in ("prediction", "probability"))]
    rows = [row for row in range(len(columns["label"])) if any(of[row] is not None for of in known)]
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def _read_table(path: Path) -> "pyarrow.Table":
    """Returns the rows of dev; raises UserError for a file that cannot be read."""
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path, filters=[("split", "==", "dev")])
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error


def _text_columns(columns: Columns) -> list[str]:
    rest, endings = ("split", "index", "label", REFERENCES), ("_prediction", "_probability", WRITTEN)
    return [name for name in columns if name not in rest and not name.endswith(endings)]


def _rows(columns: Columns, model: str) -> Iterator[tuple[Any, Any, Any]]:
    """Yields label, prediction and probability of each example."""
    return zip(*(columns[name] for name in ("label", f"{model}_prediction", f"{model}_probability")), strict=True)


def _judge_items(columns: Columns, model: str, answer: str | None) -> list[tuple[bool, float]]:
    """Returns whether each item is right, and its probability.

    An item is an example, each of its words, or each label that it was given. A question with several correct answers
    is right if its prediction is one of them.
    """
    may_be_unanswerable = None in columns["label"]
    items: list[tuple[bool, float]] = []
    for label, prediction, probability in _rows(columns, model):
        if answer == LABEL_SETS:
            items += [(name in label, value) for name, value in zip(prediction, probability, strict=True)]
        elif isinstance(probability, float) and isinstance(label, list):
            references = normalize_references(label, may_be_unanswerable=may_be_unanswerable)
            exact, _ = score_answer(prediction, references, may_be_unanswerable=may_be_unanswerable)
            items.append((bool(exact), probability))
        elif isinstance(probability, float):
            items.append((label == prediction, probability))
        elif isinstance(probability, list):
            items += [
                (name == predicted, value)
                for name, predicted, value in zip(label, prediction, probability, strict=True)
            ]
    return items


def _calibrate(items: Sequence[tuple[bool, float]]) -> Calibration | None:
    """Returns the reliability diagram of items that are right or not, with their probabilities; None without any."""
    if not items:
        return None
    right, probability = np.array(items, dtype=np.float64).T
    bins = np.clip((probability * CALIBRATION_BINS).astype(int), 0, CALIBRATION_BINS - 1)
    used = [number for number in range(CALIBRATION_BINS) if (bins == number).any()]
    confidence = [float(probability[bins == number].mean()) for number in used]
    accuracy = [float(right[bins == number].mean()) for number in used]
    numbers = [int((bins == number).sum()) for number in used]
    gaps = np.abs(np.array(confidence) - np.array(accuracy))
    return Calibration(confidence, accuracy, numbers, float((gaps * numbers).sum() / len(items)))


def _count_confusions(columns: Columns, model: str) -> tuple[Sequence[str], np.ndarray | None]:
    """Returns the classes and the numbers of items by label and prediction; None if they are no names, or too many."""
    items: list[tuple[Any, Any]] = []
    for label, prediction, probability in _rows(columns, model):
        items += zip(label, prediction, strict=True) if isinstance(probability, list) else [(label, prediction)]
    names = sort_classes(name for item in items for name in item if isinstance(name, str))
    if not 1 < len(names) <= MOST_CLASSES or not all(isinstance(name, str) for item in items for name in item):
        return (), None
    counts = Counter(items)
    return names, np.array([[counts[label, prediction] for prediction in names] for label in names])


def _stack_numbers(columns: Columns, model: str) -> np.ndarray | None:
    """Returns the predictions of teacher and model `[n, 2]`; None if they are not numbers."""
    both = [columns[f"{name}_prediction"] for name in ("teacher", model)]
    if not all(isinstance(value, float) for values in both for value in values):
        return None
    return np.array(both).T


def _count_words(columns: Columns) -> list[int]:
    """Returns the number of words of the texts of each example."""
    texts = [columns[name] for name in _text_columns(columns)]
    return [sum(len(_plain(value).split()) for value in values) for values in zip(*texts, strict=True)]


def _plain(value: object) -> str:
    """Returns a text, or the texts of a list with ` | ` between them."""
    return " | ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _find_differences(columns: Columns, model: str) -> list[Disagreement]:
    """Returns the examples on which teacher and model differ most.

    Numbers are ordered by their distance. Other predictions differ or not: those that differ come first, the surest
    ones at the top, and then those with the largest difference of their probabilities.
    """
    found: list[tuple[tuple[bool, float], Disagreement]] = []
    names = _text_columns(columns)
    for row in range(len(columns["label"])):
        first, second = (columns[f"{name}_prediction"][row] for name in ("teacher", model))
        sure = [_mean(columns[f"{name}_probability"][row]) for name in ("teacher", model)]
        if isinstance(first, float) and isinstance(second, float):
            differs, rank = first != second, abs(first - second)
        elif first != second:
            differs, rank = True, sum(value or 0.0 for value in sure)
        else:
            differs, rank = False, abs((sure[0] or 0.0) - (sure[1] or 0.0))
        if differs or rank:
            texts = {name: _plain(columns[name][row]) for name in names}
            label, index = columns["label"][row], columns["index"][row]
            found.append(((differs, rank), Disagreement(texts, index, label, first, second, *sure)))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return [difference for _, difference in found[:SHOWN_DIFFERENCES]]


def _mean(probability: object) -> float | None:
    """Returns a probability, or the mean of those of an example's words."""
    if isinstance(probability, list):
        known = [value for value in probability if isinstance(value, float)]
        return sum(known) / len(known) if known else None
    return probability if isinstance(probability, float) else None


POINTS = 400  # Of a scatter plot, which would be slow to open with more.
BARS = 24  # Of a histogram, at most.
LENGTHS = 3  # From which on times are drawn against the length.


def draw_models(models: Mapping[str, Estimate], *, metric: str, split: str, bars: str) -> Figure:
    """Returns the metric of the models of a run below each other, with lines at the first one and at the baseline.

    Args:
        models: by name, in the order from the top.
        bars: the words of the caption about the bars.
    """
    ends = [end for found in models.values() for end in found.interval or ()]
    low, high, is_cut = plots.find_range([found.value for found in models.values()], ends)

    def plot(axes: "Axes") -> None:
        for number, (name, found) in enumerate(models.items()):
            below, above = found.errors()
            color = plots.SERIES[0] if name.startswith("student") else plots.INK
            if number == 0 or name.startswith("baseline"):
                axes.axvline(
                    found.value,
                    color=plots.INK,
                    linestyle=plots.LINES[1 + number % 3],
                    linewidth=0.8,
                    alpha=0.5,
                    zorder=1,
                )
            axes.errorbar(
                [found.value], [number], xerr=[[below], [above]], color=color, marker=plots.MARKERS[0], markersize=6,
                elinewidth=1.4, linestyle="none",
            )  # fmt: skip
            axes.text(1.02, number, f"{found.value:.4f}", transform=axes.get_yaxis_transform(), va="center")
        axes.set_yticks(range(len(models)), [plots.label_axes(name, longest=26) for name in models])
        axes.set(ylim=(len(models) - 0.4, -0.6), xlim=(low, high), xlabel=f"{plots.label_axes(metric)} on {split}")
        axes.grid(visible=False, axis="y")

    cut = plots.CUT if is_cut else ""
    paired = ". A difference of two models is surer than their bars, because both saw the same examples" if bars else ""
    caption = f"{metric} on {split} of every model{bars}{cut}{paired}"
    return plots.draw(caption, plot, name="models", height=0.9 + 0.3 * len(models))


def draw_seeds(models: Mapping[str, Sequence[float]], *, metric: str, teacher: float | None, caption: str) -> Figure:
    """Returns the metric of each model and seed, with the mean as a line."""

    def plot(axes: "Axes") -> None:
        for number, (_, values) in enumerate(models.items()):
            style = plots.style_of(number)
            axes.scatter([number] * len(values), values, color=str(style["color"]), marker=str(style["marker"]), s=22)
            axes.hlines(float(np.mean(values)), number - 0.25, number + 0.25, color=str(style["color"]), linewidth=1.6)
        plots.plot_references(axes, {} if teacher is None else {"teacher": teacher})
        axes.set_xticks(range(len(models)), [plots.label_axes(name, longest=18) for name in models])
        axes.set(xlim=(-0.6, len(models) - 0.4), ylabel=plots.label_axes(metric))

    return plots.draw(caption, plot, name="seeds", height=2.6)


def draw_calibration(models: Mapping[str, Calibration]) -> Figure:
    """Returns the reliability diagram of several models."""

    def plot(axes: "Axes") -> None:
        axes.plot([0, 1], [0, 1], color=plots.GRID, linewidth=1.2)
        lines = {f"{name} (error {of.error:.3f})": (of.confidence, of.accuracy) for name, of in models.items()}
        plots.plot_lines(axes, lines)
        low = min([0.5, *(value for found in models.values() for value in found.confidence)])
        axes.set(
            xlabel="probability of the prediction", ylabel="share of right predictions",
            xlim=(low - 0.02, 1.02), ylim=(-0.02, 1.02),
        )  # fmt: skip

    caption = "Calibration on dev: right predictions against their probability, in ten bins"
    return plots.draw(caption, plot, name="calibration")


def draw_confusion(classes: Sequence[str], counts: np.ndarray, *, model: str) -> Figure:
    """Returns the confusion matrix `[label, prediction]`, shaded by the share of the label's examples."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = len(classes)
    cells = {
        (row, column): (str(count or ""), 0.02 + 0.5 * float(shares[row, column]))
        for (row, column), count in np.ndenumerate(counts)
    }

    def plot(axes: "Axes") -> None:
        names = [plots.label_axes(name, longest=14) for name in classes]
        plots.plot_cells(axes, cells, rows=names, columns=names, fontsize=9 if size <= 8 else 6)
        axes.set_xticks(range(size), names, rotation=0 if size <= 3 else 60, ha="center" if size <= 3 else "right")
        axes.set(xlabel="prediction", ylabel="label")

    height = max(plots.HEIGHT - 0.4, 1.2 + 0.25 * size)
    return plots.draw(f"Confusion of {model} on dev, in examples", plot, name="confusion", height=height)


def draw_numbers(pairs: np.ndarray, *, model: str) -> Figure:
    """Returns the predictions of a model against the teacher's, `[n, 2]` with the teacher's first."""

    def plot(axes: "Axes") -> None:
        shown = pairs[:: max(1, len(pairs) // POINTS)]
        low, high = float(pairs.min()), float(pairs.max())
        axes.plot([low, high], [low, high], color=plots.GRID, linewidth=1.2)
        axes.scatter(shown[:, 0], shown[:, 1], s=7, color=plots.SERIES[0], alpha=0.5, linewidths=0)
        axes.set(xlabel="teacher", ylabel=plots.label_axes(model))

    return plots.draw(f"Predictions of {model} and of the teacher on dev", plot, name="predictions")


def draw_by_length(models: Mapping[str, Mapping[str, Mapping[str, float]]], *, metric: str, split: str) -> Figure:
    """Returns the metric of each model for each group of lengths, as the `lengths` of run.json have them.

    Args:
        models: the groups of each model.
    """
    groups = next(iter(models.values()))

    def plot(axes: "Axes") -> None:
        places = range(len(groups))
        plots.plot_lines(axes, {
            name: (places, [values[group].get(metric, np.nan) for group in groups]) for name, values in models.items()
        })  # fmt: skip
        axes.set_xticks(places, [f"{group}\n({values['number']:,.0f})" for group, values in groups.items()])
        axes.set(
            xlim=(-0.3, len(groups) - 0.7), xlabel="tokens of an example (examples)",
            ylabel=f"{plots.label_axes(metric)} on {split}",
        )  # fmt: skip

    caption = f"{metric} on {split} by the length of an example in tokens"
    return plots.draw(caption, plot, name="metric-by-length", columns=4)


def draw_pruning(steps: Sequence[Mapping[str, Any]], *, metric: str) -> Figure:
    """Returns the metric on dev against the share of the layers' weights that iterative pruning has removed.

    Args:
        steps: the `pruning` of run.json.
    """
    curves = {"after the training that follows": "after", "right after the removal": "before"}
    points = {
        name: [(step["removed"], step[field]) for step in steps if step.get(field) is not None]
        for name, field in curves.items()
    }

    def plot(axes: "Axes") -> None:
        plots.plot_lines(axes, {name: tuple(zip(*of, strict=True)) for name, of in points.items() if of})
        axes.set(
            xlabel="share of the weights in the layers that was removed", ylabel=f"{plots.label_axes(metric)} on dev"
        )

    return plots.draw(f"{metric} on dev against the share that was removed; 0 is the teacher", plot, name="pruning")


def draw_cost_by_length(timings: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Returns the median time of each model against the length of the text; None for fewer than `LENGTHS` lengths.

    Args:
        timings: as run.json has them, of which those of the smallest batch and the first number of threads are shown.
    """
    if not timings:
        return None
    batch, threads = min(row["batch"] for row in timings), timings[0]["threads"]
    times: dict[str, dict[int, float]] = {}
    for row in timings:
        if (row["batch"], row["threads"]) == (batch, threads):
            times.setdefault(f"{row['model']} {row['format'].removeprefix('onnx-')}", {})[row["length"]] = row["p50_ms"]
    lengths = sorted({length for of in times.values() for length in of})
    if len(lengths) < LENGTHS:
        return None

    def plot(axes: "Axes") -> None:
        plots.plot_lines(axes, {name: tuple(zip(*sorted(of.items()), strict=True)) for name, of in times.items()})
        plots.set_logarithmic(axes, "x", lengths)
        plots.set_logarithmic(axes, "y", [value for of in times.values() for value in of.values()])
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set(xlabel="tokens of a text", ylabel="p50 latency in ms")

    conditions = f"batch {batch}, {threads} thread{'s' * (threads != 1)}"
    caption = f"p50 latency against the length of a text, both on logarithmic axes: {conditions}"
    return plots.draw(caption, plot, name="cost-by-length", columns=3)


def bin_lengths(shortest: int, longest: int) -> list[int]:
    """Returns the edges of at most `BARS` bars for whole numbers, each of which has equally many of them.

    Bars of 2 and of 1 numbers in turns would look like gaps that the lengths do not have.

    >>> bin_lengths(3, 5), bin_lengths(1, 50)[:3]
    ([3, 4, 5, 6], [1, 4, 7])
    """
    width = max(1, -(-(longest - shortest + 1) // BARS))
    return [*range(shortest, longest + 1, width), shortest + width * -(-(longest - shortest + 1) // width)]


def draw_lengths(lengths: Sequence[int]) -> Figure:
    """Returns the histogram of the words of the examples."""

    def plot(axes: "Axes") -> None:
        top = int(np.quantile(lengths, 0.99)) + 1
        axes.hist(np.minimum(lengths, top), bins=bin_lengths(min(lengths), top), color=plots.SERIES[0], alpha=0.7)
        median = float(np.median(lengths))
        axes.axvline(median, color=plots.INK, linestyle="--", linewidth=1, label=f"median {median:g}")
        axes.set(xlabel="words of an example of dev", ylabel="examples")

    return plots.draw(
        "Length of the examples of dev; the last bar has all longer ones", plot, name="lengths", height=2.6
    )


SHOWN_SAMPLES = 12  # Samples, evenly spaced, whatever their quality.
TableRows = list[tuple[str, ...]]


@dataclass(frozen=True)
class WrittenTables:
    """The tables of the texts of one split, each with its header first.

    Attributes:
        sources: number of them.
        beams: of the search for the texts.
        metrics: of the teacher and the files.
        differences: of each file from the teacher and from the float32 file, with 95% intervals.
        lengths: the metrics by the words of the source.
    """

    sources: int
    beams: int
    metrics: TableRows
    differences: TableRows
    lengths: TableRows


@dataclass(frozen=True)
class Sample:
    """A row of dev: its source, its references, and the text of each model."""

    row: int
    source: str
    target: str
    written: Mapping[str, str]


def tabulate_written(record: Record) -> dict[str, WrittenTables]:
    """Returns the tables of each split; none for a run without written texts."""
    tables = {}
    for split, of_split in (record.get("texts") or {}).items():
        lengths, prefix = of_split["lengths"], "" if split == "dev" else f"{split}/"
        metrics = [name for name in next(iter(next(iter(lengths.values())).values())) if name != "number"]
        owners = {name: record["teacher"] if name == "teacher" else record["export"].get(name, {}) for name in lengths}
        models: TableRows = [
            (_name(model), *(format_number(owner.get("metrics", {}).get(f"{prefix}{name}"), ".4f") for name in metrics))
            for model, owner in owners.items()
        ]
        tables[split] = WrittenTables(
            of_split["sources"], of_split["beams"], [("", *metrics), *models],
            _list_differences(of_split["comparison"]), _list_lengths(lengths, metrics),
        )  # fmt: skip
    return tables


def read_samples(directory: Path) -> list[Sample]:
    """Returns evenly spaced rows of dev with the texts that were written for them; none without any.

    Raises:
        UserError: if predictions.parquet is damaged.
    """
    path = directory / FILE
    table = _read_table(path) if path.is_file() else None
    models = [name for name in table.column_names if name.endswith(WRITTEN)] if table else []
    if table is None or not models:
        return []
    if missing := {"index", "source", REFERENCES} - {*table.column_names}:
        raise UserError(f"{path} is damaged: it has no column {min(missing)}")
    written = [row for row in table.to_pylist() if row[models[0]] is not None]
    number = min(SHOWN_SAMPLES, len(written))
    chosen = [written[round(place * (len(written) - 1) / max(1, number - 1))] for place in range(number)]
    return [
        Sample(
            row["index"], row["source"], " | ".join(row[REFERENCES]),
            {_name(model.removesuffix(WRITTEN)): row[model] for model in models},
        )
        for row in chosen
    ]  # fmt: skip


def _name(model: str) -> str:
    return model if model == "teacher" else f"student {model}"


def _list_differences(comparison: Mapping[str, Mapping[str, Mapping[str, Record]]]) -> TableRows:
    rows: TableRows = [("", "against", "metric", "difference", "95% interval", "p")]
    for model, references in comparison.items():
        for reference, metrics in references.items():
            for metric, of in metrics.items():
                interval = " to ".join(format_number(end, "+.4f") for end in of["interval"] or ())
                values = (format_number(of["difference"], "+.4f"), interval, format_number(of["p"], ".2g"))
                rows.append((_name(model), _name(reference), metric, *values))
    return rows


def _list_lengths(lengths: Mapping[str, Mapping[str, Record]], metrics: Sequence[str]) -> TableRows:
    """Returns a row for each metric and group of sources."""
    rows: TableRows = [("source", "texts", "metric", *map(_name, lengths))]
    for group, first in next(iter(lengths.values())).items():
        for metric in metrics:
            values = (format_number(groups[group].get(metric), ".4f") for groups in lengths.values())
            rows.append((group, f"{first['number']:,.0f}", metric, *values))
    return rows
