"""Scores of pairs by a cross-encoder, which reads both texts together and teaches an encoder of single texts.

Its scores of pairs are targets of cosines (Augmented SBERT, arXiv 2010.08240), and its margins between a positive and a
negative text those of the student's margins (arXiv 2010.02666).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedConfig

from distill.console import print_notice
from distill.data.tables import text_split
from distill.errors import UserError
from distill.models.forward import count_outputs
from distill.models.loading import check_directory, load_directory
from distill.models.sentence_files import head_activation
from distill.tasks.frozen_outputs import cached_outputs
from distill.tasks.overview import ShownTask

AUTO_CLASS = "AutoModelForSequenceClassification"
MOST_OUTSIDE = 0.5  # Of the numbers of pairs, which are not in the range of the data's scores.
# Names of the class of other texts without their marks, and the beginnings that turn a name into that of its opposite.
_NEGATIVE = ("label0", "0", "no", "false", "negative", "different", "contradiction")
_NO = ("not", "non", "no", "un", "dis", "ir")
Groups = Sequence[Sequence[str]]


@dataclass(frozen=True)
class CrossEncoder(ShownTask):
    """A classifier of two classes, or a model of one number, for pairs of texts.

    Args:
        directory: a directory that `save_pretrained` or sentence-transformers wrote.
        max_length: tokens that a pair is cut to, if the model can read as many.
    """

    directory: Path
    max_length: int

    def check(self, groups: Groups) -> None:
        """Raises UserError for a directory without a model, and for groups that it cannot score."""
        check_directory(self.directory, f"task.cross_encoder={self.directory}")
        sizes = sorted(set(map(len, groups)))
        if sizes not in ([2], [3]):
            found = " and ".join(map(str, sizes))
            raise UserError(
                f"train has groups of {found} texts, and task.cross_encoder scores pairs, or a text with a positive "
                "and a negative one: give train two columns of texts, or three"
            )

    def score(self, groups: Groups, low: float, high: float, cache_dir: Path | None) -> np.ndarray:
        """Returns the targets of groups of two or three texts, `[N]` (float32), cached or computed.

        That of a pair is from 0 to 1: a probability, or a number as its share of the range from `low` to `high`. That
        of three texts is the first pair's number or log-odds minus the second's, on the model's own scale. A single
        logit with a sigmoid, as in sentence-transformers, is the log-odds of a probability.

        Raises:
            UserError: if the model cannot be loaded or has other outputs, if nothing says what its output means, and
                if most numbers of pairs are not in the range of the scores.
        """
        start = load_directory(self.directory, AUTO_CLASS, None, trust_remote_code=False)
        outputs = count_outputs(start.model)
        if not start.fits or outputs > 2:
            reason = start.reason if not start.fits else f"it has {outputs} outputs"
            raise UserError(
                f"task.cross_encoder={self.directory} does not score pairs: {reason}, expected a trained head with one "
                "number or two classes"
            )
        for notice in start.notices:
            print_notice(notice)
        positive = self._positive_class(start.model.config) if outputs == 2 else 0
        pairs = [(group[0], text) for group in groups for text in group[1:]]
        first, second = (list(texts) for texts in zip(*pairs, strict=True))
        texts = text_split(first, second)
        logits = cached_outputs(start, self.directory, texts, self.max_length, cache_dir, "Cross-encoder")
        numbers = logits[:, 0] if outputs == 1 else logits[:, positive] - logits[:, 1 - positive]
        numbers = numbers.reshape(len(groups), -1)
        if numbers.shape[1] == 2:
            return np.asarray(numbers[:, 0] - numbers[:, 1])
        if outputs == 2 or self._is_probability(start.model.config):
            return np.asarray(1 / (1 + np.exp(-numbers[:, 0])))
        return self._to_shares(numbers[:, 0], low, high)

    def _positive_class(self, config: PreTrainedConfig) -> int:
        """Returns the index of the class of similar texts, by the names of the classes.

        Raises:
            UserError: for names that do not tell.
        """
        names = [str(config.id2label[index]) for index in range(2)]
        short = [re.sub(r"[\W_]", "", name.lower()) for name in names]
        negative = [name in _NEGATIVE or any(name == no + short[1 - i] for no in _NO) for i, name in enumerate(short)]
        if sum(negative) != 1:
            raise UserError(
                f"task.cross_encoder={self.directory} has the classes {' and '.join(names)}, which do not say which of "
                "them means similar texts: name them not_similar and similar in id2label of its config.json"
            )
        if names == ["LABEL_0", "LABEL_1"]:
            print_notice(f"the classes of task.cross_encoder={self.directory} have no names: LABEL_1 is similar texts")
        return negative.index(False)

    def _is_probability(self, config: PreTrainedConfig) -> bool:
        """Returns whether the single output is the logit of a probability.

        Raises:
            UserError: if the model's files do not tell.
        """
        activation = head_activation(config, self.directory)
        if activation in ("Sigmoid", "Identity"):
            return activation == "Sigmoid"
        if activation is None and config.problem_type == "regression":
            return False
        found = "neither problem_type nor activation_fn" if activation is None else f"activation_fn {activation}"
        raise UserError(
            f"task.cross_encoder={self.directory} has one output and {found} in its config.json, so that it may be a "
            'number or the logit of a probability: write "problem_type": "regression" there for a number, or '
            '"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"} for a logit'
        )

    def _to_shares(self, numbers: np.ndarray, low: float, high: float) -> np.ndarray:
        """Returns numbers as shares of a range; those outside of it are 0 or 1."""
        if (outside := float(((numbers < low) | (numbers > high)).mean())) > MOST_OUTSIDE:
            raise UserError(
                f"task.cross_encoder={self.directory} gives {outside:.0%} of the pairs of train numbers outside of the "
                f"data's scores, {low:g} to {high:g} (they are {numbers.min():.3g} to {numbers.max():.3g}): take a "
                "model that was trained on such scores, or a classifier of two classes"
            )
        return np.asarray(((numbers - low) / (high - low)).clip(0, 1))
