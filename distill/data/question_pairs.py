"""Pairs of a question of train and another context of the same title, which the teacher answers."""

from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from distill.contracts import TaskInfo
from distill.data.augmentation import Copy, check_rows
from distill.data.questions import TITLE
from distill.data.tables import LabelledData, compute_digest
from distill.errors import UserError
from distill.options import check_arguments


class QuestionAugmentation:
    """Asks the questions of train of other contexts: those of the same title, such as the paragraphs of one article.

    Such a context is about the same things and rarely has the answer. The teacher says where it would be, and how sure
    it is that there is none. Each copy has one of the other contexts of its title, drawn with the same probability. The
    question of a title with one context has none.

    Args:
        copies: of each training question.
        seed: of all random choices.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    name = "questions"

    @check_arguments
    def __init__(self, *, copies: PositiveInt = 2, seed: NonNegativeInt = 0) -> None:
        self.copies, self.seed = copies, seed

    def check(self) -> None:
        """Raises nothing, because the method needs no further package and no model."""

    def check_task(self, task: TaskInfo) -> None:
        """Raises UserError for a task without questions about contexts."""
        check_rows(self.name, task.has_contexts, "questions about contexts", task)

    def options(self) -> dict[str, Any]:
        return dict(vars(self))

    def key(self, data: LabelledData) -> list[object]:
        return [self.options(), compute_digest([self._titles(data)])]

    def prepare(self, data: LabelledData, mask_token: str | None, device: str) -> Copy:
        """Returns the function that makes the copies; the mask token and the device are not read.

        Raises:
            UserError: for questions without titles.
        """
        train, titles = data.splits["train"], self._titles(data)
        contexts: dict[str | None, dict[str, int]] = {}  # The number of each context of a title.
        for title, context in zip(titles, train["context"], strict=True):
            of_title = contexts.setdefault(title, {})
            of_title.setdefault(context, len(of_title))
        listed = {title: list(numbers) for title, numbers in contexts.items()}

        def copy(row: int, number: int, random: np.random.Generator) -> tuple[str, ...]:
            title, context = titles[row], train["context"][row]
            others = len(listed[title]) - 1
            if title is not None and others:
                chosen = int(random.integers(others))
                context = listed[title][chosen + (chosen >= contexts[title][context])]
            return train["question"][row], context

        return copy

    def _titles(self, data: LabelledData) -> list[str | None]:
        """Returns the title of each training question, None for one without."""
        titles: list[str | None] = data.splits["train"].columns.get(TITLE, [])  # type: ignore[assignment]
        if not any(title is not None for title in titles):
            raise UserError(
                "augment=questions needs the titles of the contexts of train, by which it knows those of one article: "
                "give SQuAD's JSON with a title for each article, or rows with the column title"
            )
        return titles
