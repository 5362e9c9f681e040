"""Tests that each kind of task, as bundle.json names it, leads to one class."""

import pytest

from distill import kinds as tasks
from distill.core.errors import UserError
from distill.edge.decode import DECODERS
from distill.kinds import CLASSES, Classification, MultiTask, TokenClassification, find_auto_class


def test_every_class_names_its_kinds_and_no_two_classes_share_one() -> None:
    kinds = [kind for each in CLASSES for kind in each.kinds]
    assert len(set(kinds)) == len(kinds) >= len(CLASSES)
    assert all(find_auto_class(kind) == each.auto_class for each in CLASSES for kind in each.kinds)
    assert {getattr(tasks, name) for name in tasks.__all__} == {*CLASSES, MultiTask}


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (Classification(text="text"), "classification"),
        (Classification(text="text", multi_label=True), "multi_label_classification"),
        (TokenClassification(), "token_classification"),
    ],
)
def test_the_kind_of_a_task_is_one_of_its_class(task: Classification, kind: str) -> None:
    assert task.info.kind == kind
    assert kind in type(task).kinds
    assert task.info.decoder in DECODERS


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(
        UserError, match="got the kind of task sequence, expected one of bidirectional_lm, causal_lm, cl"
    ):
        find_auto_class("sequence")
