"""A teacher that reads by another tokenizer than its student: its examples, and its outputs at the student's items."""

from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedModel

from distill.core.contracts import TAUGHT, Batch, EncodedSplits, Examples, Items, Outputs
from distill.data.batches import MixedExamples, TokenizedExamples
from distill.kinds.kind import Kind
from distill.models.forward import to_device


@dataclass(frozen=True, eq=False)
class Reading:
    """The examples of a split of a student as a teacher with another tokenizer reads them.

    Args:
        task: of the teacher, with the tokens that its examples are cut to.
        examples: those of the teacher.
        rows: the one of them that belongs to each of the student's, `[N]`; None if they are in the same order.
    """

    task: Kind
    examples: Examples
    rows: np.ndarray | None = None

    @property
    def digest(self) -> str:
        """Stands for the teacher's examples."""
        return self.examples.digest

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Returns the outputs of the teacher for a batch of the student's examples, at the student's items.

        Of what terms `need` besides there are pooled states alone, because the teacher's tokens are not the student's.
        """
        chosen = batch["example_id"].cpu().numpy()
        own = to_device(self.examples[(chosen if self.rows is None else self.rows[chosen]).tolist()], model.device)
        own_items = self.task.select(own)
        outputs = self.task.run(model, own, own_items, needs)
        return replace(self.task.align(outputs, own_items, items), pooled=outputs.pooled, hidden_states=None)


def match_splits(
    task: Kind, student: EncodedSplits, teacher: EncodedSplits
) -> tuple[EncodedSplits, dict[str, Reading]]:
    """Returns the examples of the student, with the items that the teacher has no outputs for, and how it reads them.

    Args:
        task: of the teacher.
        student, teacher: the same splits by the tokenizer of each.

    Returns:
        The second are the readings by the digest of the student's examples.
    """
    matched = dict(student)
    readings: dict[str, Reading] = {}
    for name, of_student in student.items():
        of_teacher = teacher[name]
        if isinstance(of_student, MixedExamples) and isinstance(of_teacher, MixedExamples):
            labelled, pool = (
                _match(task, getattr(of_student, part), getattr(of_teacher, part), readings)
                for part in ("labelled", "pool")
            )
            matched[name] = of_student.with_parts(*_mark_both(labelled, pool))
            rows = _join_rows(readings[labelled.digest], readings[pool.digest])
            readings[of_student.digest] = Reading(task, of_teacher, rows)
        else:
            assert isinstance(of_student, TokenizedExamples)
            assert isinstance(of_teacher, TokenizedExamples)
            matched[name] = _match(task, of_student, of_teacher, readings)
    return matched, readings


def _match(
    task: Kind, student: TokenizedExamples, teacher: TokenizedExamples, readings: dict[str, Reading]
) -> TokenizedExamples:
    """Returns the examples of the student, and adds how the teacher reads them."""
    match = task.match(student, teacher)
    readings[student.digest] = Reading(task, teacher, match.rows)
    return student if match.taught is None else student.with_column(TAUGHT, match.taught, of_tokens=True)


def _mark_both(*parts: TokenizedExamples) -> list[TokenizedExamples]:
    """Returns the parts of a split with the column of what is taught in all of them if one has it."""
    if not any(part.is_taught_in_part for part in parts):
        return list(parts)
    ones = [np.ones(len(part.column("input_ids")), dtype=np.int8) for part in parts]
    return [
        part if part.is_taught_in_part else part.with_column(TAUGHT, all_taught, of_tokens=True)
        for part, all_taught in zip(parts, ones, strict=True)
    ]


def _join_rows(labelled: Reading, pool: Reading) -> np.ndarray | None:
    """Returns the rows of both parts of a split, of which those of the pool follow the others."""
    if labelled.rows is None or pool.rows is None:
        return None
    return np.concatenate([labelled.rows, len(labelled.examples) + pool.rows])
