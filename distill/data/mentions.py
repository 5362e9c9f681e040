"""Changed copies of tagged sentences, whose mentions are replaced by others of the same type."""

from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from distill.contracts import TaskInfo
from distill.data.augmentation import Copy, Probability, check_rows
from distill.data.tables import LabelledData, compute_digest
from distill.edge.words import TagScheme
from distill.options import check_arguments


class MentionAugmentation:
    """Mention replacement of Dai and Adel, arXiv 2010.11683, section 2.

    A mention is a span of words with a type, read out of the tags by the rule of `TagScheme`. Each one is replaced with
    `p_replace` by another mention of its type from the training sentences, drawn from the different ones with the same
    probability, of any number of words. A mention that is the only one of its type stays. Unlike in the paper, the
    copies have no tags but those of the teacher.

    Args:
        copies: of each training sentence.
        p_replace: probability of replacing a mention.
        seed: of all random choices.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    name = "mentions"

    @check_arguments
    def __init__(self, *, copies: PositiveInt = 10, p_replace: Probability = 1.0, seed: NonNegativeInt = 0) -> None:
        self.copies, self.p_replace, self.seed = copies, p_replace, seed

    def check(self) -> None:
        """Raises nothing, because the method needs no further package and no model."""

    def check_task(self, task: TaskInfo) -> None:
        """Raises UserError for a task without mentions."""
        check_rows(self.name, task.has_mentions, "tagged spans of words", task)

    def options(self) -> dict[str, Any]:
        return dict(vars(self))

    def key(self, data: LabelledData) -> list[object]:
        train = data.splits["train"]
        tags = [of_sentence.tolist() for of_sentence in train["tags"]]
        return [self.options(), compute_digest([[list(data.labels), train["words"], tags]])]

    def prepare(self, data: LabelledData, mask_token: str | None, device: str) -> Copy:
        """Returns the function that makes the copies; the mask token and the device are not read."""
        train, scheme = data.splits["train"], TagScheme(data.labels)
        sentences: list[list[str]] = train["words"]
        entities = [list(zip(*map(np.ndarray.tolist, scheme.find(tags)), strict=True)) for tags in train["tags"]]
        numbers: list[dict[tuple[str, ...], int]] = [{} for _ in scheme.types]  # Of the mentions of each type.
        for words, of_sentence in zip(sentences, entities, strict=True):
            for first, last, kind in of_sentence:
                numbers[kind].setdefault(tuple(words[first:last]), len(numbers[kind]))
        mentions = [list(of_type) for of_type in numbers]

        def copy(row: int, number: int, random: np.random.Generator) -> tuple[str, ...]:
            words, changed, end = sentences[row], [], 0
            for first, last, kind in entities[row]:
                mention, others = tuple(words[first:last]), len(mentions[kind]) - 1
                if random.random() < self.p_replace and others:
                    chosen = int(random.integers(others))
                    mention = mentions[kind][chosen + (chosen >= numbers[kind][mention])]
                changed += [*words[end:first], *mention]
                end = last
            return (" ".join([*changed, *words[end:]]),)

        return copy
