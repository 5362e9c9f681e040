"""One class per kind of task: the Hugging Face auto class, how its output becomes logits of items, its metrics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.text.masking import check_span

Floats = NDArray[np.floating]
Integers = NDArray[np.integer]

METRICS = ("accuracy", "f1", "matthews")
REGRESSION_METRICS = ("pearson", "spearman", "mae")
NEVER_FIRST = ("mae",)  # The first metric selects, so more of it must be better.
PACKINGS = ("full_sentences", "doc_sentences", "segment_pair", "sentence")
PAIRS = ("nsp", "sop")
DOCUMENTS = ("file", "paragraph", "line")
SPLITS = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}


class SequenceTask:
    """Classification of, or a number for, one text or a pair of texts: `logits [B, C]`, one item an example.

    Args:
        name: names the task in records and directories.
        text: the column, or the two columns of a pair, that hold the text.
        label: the column that holds the class or the number; of several names the first one that is there.
        labels: names of the classes in the order of the data's integers; None takes the training split's own.
        regression: the label is a number, and `logits [B, 1]` are the answer itself.
        metrics: out of `METRICS` or `REGRESSION_METRICS`; the first one selects, and is what retention speaks of.
        max_length: tokens an example is cut to.
        data_dir: a directory with `train` and `dev`, or one file of which `dev_fraction` is held out as dev; None
            asks the Hub for `hub_id`.
        dev_fraction: share of a single file that becomes dev, drawn class by class, the same in every run.
        splits: where a split is found under other names than those of `SPLITS`. Every split but train and dev is
            scored at the end, and chooses nothing.
        hub_id: the Hub's data set and, after a colon, its configuration, e.g. `nyu-mll/glue:sst2`.
        builtin: the data come with the program: nothing from outside is needed.
        train_examples, dev_examples: use only so many examples, always the same ones; None uses all.
    """

    kind = "sequence"
    auto_class = "AutoModelForSequenceClassification"
    selects = "max"  # The best checkpoint has the most of the first metric.
    fixed_inputs = True  # The same tokens in every epoch, so that a teacher need not be asked twice.

    def __init__(
        self,
        *,
        name: str,
        text: str | Sequence[str],
        label: str | Sequence[str] = "label",
        labels: Sequence[str] | None = None,
        regression: bool = False,
        metrics: Sequence[str] = ("accuracy",),
        max_length: int = 128,
        data_dir: str | None = None,
        dev_fraction: float = 0.1,
        splits: Mapping[str, Sequence[str]] | None = None,
        hub_id: str | None = None,
        builtin: bool = False,
        train_examples: int | None = None,
        dev_examples: int | None = None,
    ) -> None:
        text = [text] if isinstance(text, str | int) else text
        if not 1 <= len(text) <= 2:
            raise ValueError(f"got task.text={list(text)}, expected one column or the two of a pair")
        if labels is not None and len({str(name) for name in labels}) < max(2, len(labels)):
            raise ValueError(f"got task.labels={list(labels)}, expected at least two names, each once")
        if any(isinstance(name, bool) for name in labels or ()):
            raise ValueError(f"got task.labels={list(labels or ())}, expected names: put quotes around them")
        known = REGRESSION_METRICS if regression else METRICS
        if not metrics or any(metric not in known for metric in metrics):
            raise ValueError(f"got task.metrics={list(metrics)}, expected some of {', '.join(known)}")
        if metrics[0] in NEVER_FIRST:
            raise ValueError(f"got {metrics[0]} as the first of task.metrics, expected one that is better when larger")
        if regression and labels is not None:
            raise ValueError(f"got task.labels={list(labels)}, but a number has no classes: leave out one of the two")
        if not 0 < dev_fraction < 1:
            raise ValueError(f"got task.dev_fraction={dev_fraction}, expected a share between 0 and 1")
        if max_length < 3:
            raise ValueError(f"got task.max_length={max_length}, expected at least 3 tokens")
        for option, examples in (("train_examples", train_examples), ("dev_examples", dev_examples)):
            if examples is not None and examples < 1:
                raise ValueError(f"got task.{option}={examples}, expected at least 1 or null for all")
        self.name = name
        # A column may be called 0, which the command line hands over as a number.
        self.text = tuple(map(str, text))
        self.label = (str(label),) if isinstance(label, str | int) else tuple(map(str, label))
        self.label_names = None if labels is None else tuple(map(str, labels))
        self.regression = regression
        self.metric_names = tuple(metrics)
        self.max_length = max_length
        self.data_dir = None if data_dir is None else str(data_dir)
        self.dev_fraction = dev_fraction
        self.splits = SPLITS | {name: tuple(names) for name, names in (splits or {}).items()}
        self.hub_id = hub_id
        self.builtin = builtin
        self.train_examples = train_examples
        self.dev_examples = dev_examples

    @property
    def metric(self) -> str:
        """The metric that selects checkpoints, and that retention and the export's gate compare."""
        return self.metric_names[0]

    @property
    def answer(self) -> str:
        """What the logits say: `classes` or a `number`."""
        return "number" if self.regression else "classes"

    def collate(self, labels: Floats | Integers) -> dict[str, NDArray[Any]]:
        """The part of a batch that this kind of task adds: `labels [B]` and `items [B]`, all of which count."""
        return {"labels": labels, "items": np.ones(len(labels), dtype=bool)}

    def predictions(self, logits: Floats) -> Floats | Integers:
        """Class, or number, of every row of `logits [B, C]`."""
        return np.asarray(logits[:, 0] if self.regression else logits.argmax(axis=-1))

    def metrics(self, logits: Floats, labels: Floats | Integers) -> dict[str, float]:
        """The task's metrics of `logits [B, C]` against `labels [B]`; a correlation with a constant is 0."""
        functions = (self._regression_metrics if self.regression else self._classification_metrics)(logits, labels)
        return {name: float(functions[name]()) for name in self.metric_names}

    def split_metrics(self, logits: Mapping[str, Floats], labels: Mapping[str, Any]) -> dict[str, float]:
        """Metrics of dev under their own names, and those of every other split as `split/metric`."""
        found: dict[str, float] = {}
        for split, of_split in logits.items():
            prefix = "" if split == "dev" else f"{split}/"
            found |= {f"{prefix}{name}": value for name, value in self.metrics(of_split, labels[split]).items()}
        return found

    def agreement(self, logits: Floats, reference: Floats) -> float:
        """Share of the items that both `logits [B, C]` put into the same class.

        Numbers agree when they differ by less than 1% of the reference's range.
        """
        if self.regression:
            tolerance = 0.01 * max(float(np.ptp(reference)), 1e-6)
            return float((np.abs(logits - reference) < tolerance).mean())
        return float((self.predictions(logits) == self.predictions(reference)).mean())

    def _classification_metrics(self, logits: Floats, labels: Any) -> dict[str, Callable[[], float]]:
        # scikit-learn takes a second to import, and the command's help does without it.
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

        predicted = self.predictions(logits)
        average = "binary" if logits.shape[-1] == 2 else "macro"
        return {
            "accuracy": lambda: accuracy_score(labels, predicted),
            "f1": lambda: f1_score(labels, predicted, average=average, zero_division=0.0),
            "matthews": lambda: matthews_corrcoef(labels, predicted),
        }

    def _regression_metrics(self, logits: Floats, labels: Any) -> dict[str, Callable[[], float]]:
        from scipy.stats import pearsonr, spearmanr

        predicted = self.predictions(logits)
        constant = np.ptp(predicted) == 0 or np.ptp(labels) == 0
        return {
            "pearson": lambda: 0.0 if constant else pearsonr(predicted, labels).statistic,
            "spearman": lambda: 0.0 if constant else spearmanr(predicted, labels).statistic,
            "mae": lambda: np.abs(predicted - labels).mean(),
        }


class LanguageModelTask:
    """Masked language modelling on raw text: `logits [B, L, V]`, the items being the tokens chosen for prediction.

    Args:
        name: names the task in records and directories.
        data_dir: a file, or a folder of text files, JSONL (these also `.gz`) and Parquet; None asks the Hub for
            `hub_id`.
        text: the column of JSONL, Parquet and the Hub that holds the text.
        documents: what of a text file is a document: the `file`, a `paragraph` between blank lines, or a `line`.
        packing: how documents become sequences, one of `packing.PACKINGS`.
        pair: of `segment_pair`, what else is learned: `nsp`, `sop` or nothing.
        max_length: tokens of a sequence.
        masking: `dynamic` draws new masks in every epoch; `static` has `masks` fixed ones of every sequence, another
            one in each epoch until they are used up, so that a teacher need not be asked about them twice.
        mask: what is chosen, and what stands in its place, as `masking.Masking`.
        dev_fraction: share of the documents held out as dev.
        dev_examples: sequences of dev, always the same ones; None scores all.
        seed: decides which documents are held out, and draws masks and pairs.
        streaming: read, tokenize and mask on the way instead of once; `auto` does so with a data set of the Hub and
            with more than `keep_gb` of files.
    """

    kind = "language_model"
    answer = "vocabulary"
    metric_names = ("perplexity", "loss", "accuracy")
    metric = "perplexity"
    selects = "min"

    def __init__(
        self,
        *,
        name: str,
        mask: Any,
        data_dir: str | None = None,
        hub_id: str | None = None,
        builtin: bool = False,
        text: str = "text",
        documents: str = "file",
        packing: str = "full_sentences",
        pair: str | None = None,
        max_length: int = 128,
        masking: str = "dynamic",
        masks: int = 10,
        dev_fraction: float = 0.05,
        dev_examples: int | None = 1000,
        seed: int = 0,
        streaming: bool | str = "auto",
        keep_gb: float = 4.0,
    ) -> None:
        for option, value, known in (
            ("packing", packing, PACKINGS),
            ("pair", pair, (None, *PAIRS)),
            ("masking", masking, ("dynamic", "static")),
            ("streaming", streaming, ("auto", True, False)),
            ("documents", documents, DOCUMENTS),
        ):
            if value not in known:
                choices = ", ".join("null" if choice is None else str(choice) for choice in known)
                raise ValueError(f"got task.{option}={value}, expected one of {choices}")
        if pair is not None and packing != "segment_pair":
            raise ValueError(f"got task.pair={pair} and task.packing={packing}: pairs want task.packing=segment_pair")
        if not 0 < dev_fraction < 1:
            raise ValueError(f"got task.dev_fraction={dev_fraction}, expected a share between 0 and 1")
        if max_length < 8:
            raise ValueError(f"got task.max_length={max_length}, expected at least 8 tokens")
        for option, number in (("masks", masks), ("dev_examples", dev_examples)):
            if number is not None and number < 1:
                raise ValueError(f"got task.{option}={number}, expected at least 1")
        if streaming is True and masking == "static":
            raise ValueError("got task.masking=static and task.streaming=true: a stream shows a text once only")
        self.name, self.text, self.documents = name, str(text), documents
        self.data_dir, self.hub_id, self.builtin = None if data_dir is None else str(data_dir), hub_id, builtin
        self.packing, self.pair, self.max_length = packing, pair, max_length
        self.masking, self.masks, self.mask = masking, masks, mask
        self.dev_fraction, self.dev_examples, self.seed = dev_fraction, dev_examples, seed
        self.streaming, self.keep_gb = streaming, keep_gb
        check_span(mask, max_length)

    @property
    def auto_class(self) -> str:
        """A second head guesses at the segments of a pair."""
        return "AutoModelForPreTraining" if self.pair else "AutoModelForMaskedLM"

    @property
    def fixed_inputs(self) -> bool:
        return self.masking == "static"

    def metrics(self, scores: Floats, labels: Any) -> dict[str, float]:
        """Mean cross-entropy, its exponential, and accuracy, of the masked tokens' `scores [items, 2]`."""
        loss, accuracy = np.asarray(scores, dtype=np.float64).mean(axis=0)
        return {"perplexity": float(np.exp(loss)), "loss": float(loss), "accuracy": float(accuracy)}


Task = SequenceTask | LanguageModelTask
