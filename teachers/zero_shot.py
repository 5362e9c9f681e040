"""A model of natural language inference as a teacher of classes that it was never trained on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import Data, Task
from distill.core.errors import OptionError, UserError
from distill.core.options import show_value
from distill.models.loading import list_labels, read_config
from distill.models.wrappers import EntailmentLogits, find_entailment, tokenize_hypotheses
from distill.rows.formats import show_names
from distill.rows.labels import simplify

from .pretrained import Pretrained

AUTO_CLASS = "AutoModelForSequenceClassification"


class ZeroShot:
    """Weights of natural language inference, which is run once for each class.

    Args:
        name: name of the teacher in records and directories.
        labels: the classes, or a mapping of classes to the words for them in the hypothesis.
        hypothesis: a sentence about a text with `{}` in the place of the words for a class.
        path, id, revision, precision, trust_remote_code: as in `Pretrained`.

    Raises:
        OptionError: for fewer than two labels, the same label or words twice, and a hypothesis without `{}`.
    """

    origin = "zero-shot"
    labels_any_text = True

    def __init__(
        self,
        *,
        name: str,
        labels: Sequence[str] | Mapping[str, str],
        hypothesis: str = "This text is about {}.",
        path: str | None = None,
        id: str | None = None,
        revision: str | None = None,
        precision: str = "float32",
        trust_remote_code: bool = False,
    ) -> None:
        self.words = _read_words(labels)
        if not isinstance(hypothesis, str) or hypothesis.count("{}") != 1:
            expected = "a sentence with {} once, in the place of the label, as in 'This text is about {}.'"
            raise OptionError("teacher.hypothesis", show_value(hypothesis), expected)
        self.hypothesis = hypothesis
        self.encoder = Pretrained(
            name=name, path=path, id=id, revision=revision, precision=precision, trust_remote_code=trust_remote_code
        )

    def check(self, task: Task) -> None:
        """Raises UserError for a task without classes of single texts."""
        info = task.info
        if info.auto_class != AUTO_CLASS or info.likelihood not in ("softmax", "sigmoid"):
            raise UserError(
                f"teacher {self.encoder.name} gives probabilities of classes of texts, and task {info.name} is "
                f"{info.kind}: take task=classification, or another teacher"
            )
        if info.pair:
            raise UserError(
                f"teacher {self.encoder.name} compares a text with a hypothesis, and an example of task {info.name} is "
                "a pair of texts: give one column as task.text, or another teacher"
            )

    def resolved(self) -> str:
        """Returns the name in records."""
        return self.encoder.resolved()

    def fingerprint(self) -> str:
        """Returns a digest of weights, labels and hypothesis."""
        parts = [self.encoder.fingerprint(), list(self.words.items()), self.hypothesis]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def load(self, task: Task, data: Data, tokenizer: PreTrainedTokenizerBase, cache_dir: Path) -> nn.Module:
        """Returns the module that gives the logits of the classes in the order of the task's.

        Raises:
            UserError: for labels that are not the task's, a model without a class of entailment, and texts that are too
                long with a hypothesis.
        """
        words = _order_words(self.words, data.labels)
        model = self._load_inference()
        hypotheses = tokenize_hypotheses(
            [self.hypothesis.replace("{}", word) for word in words], model, tokenizer, max_length=task.info.max_length
        )
        return EntailmentLogits(
            model, hypotheses, independent=task.info.likelihood == "sigmoid", padding=int(tokenizer.pad_token_id)
        )

    def _load_inference(self) -> PreTrainedModel:
        directory = self.encoder.locate()
        own = list_labels(read_config(directory, trust_remote_code=self.encoder.trust_remote_code))
        find_entailment(dict(enumerate(own)), str(directory))
        start = self.encoder.load(AUTO_CLASS, own, [])
        if not start.fits:
            raise UserError(f"teacher {self.encoder.resolved()} cannot infer anything: {start.reason}")
        return start.model.requires_grad_(False).eval()


def _read_words(labels: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Returns the words for each class in the hypothesis.

    Raises:
        OptionError: for fewer than two classes, and for classes or words that are the same.
    """
    expected = "at least two labels, each once, as in [sport,politics], or their words, as in {1: sport, 2: politics}"
    if isinstance(labels, str) or not isinstance(labels, Sequence | Mapping):
        raise OptionError("teacher.labels", show_value(labels), expected)
    labels = dict(labels) if isinstance(labels, Mapping) else list(labels)  # Plain values, for messages.
    pairs = labels.items() if isinstance(labels, dict) else zip(labels, labels, strict=True)
    words = [(simplify(str(label)), simplify(str(word))) for label, word in pairs]
    several = all(len({_fold(of) for of in column}) == len(words) for column in zip(*words, strict=True))
    if len(words) < 2 or not several or not all(map(all, words)):
        raise OptionError("teacher.labels", show_value(labels), expected)
    return dict(words)


def _order_words(words: Mapping[str, str], labels: Sequence[str]) -> list[str]:
    """Returns the words for each of the task's classes in their order.

    Raises:
        UserError: for other classes.
    """
    folded = {_fold(label): word for label, word in words.items()}
    if folded.keys() != {_fold(label) for label in labels}:
        raise UserError(
            f"teacher.labels has {show_names(list(words))}, and the classes of the task are "
            f"{show_names(list(labels))}: name these in teacher.labels, with words of your own as in "
            f"{{{labels[0]}: words for {labels[0]}}}"
        )
    return [folded[_fold(label)] for label in labels]


def _fold(label: str) -> str:
    return simplify(label).casefold()
