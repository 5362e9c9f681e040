"""Tests that each kind of task, as bundle.json names it, leads to one class."""

import pytest

from distill import kinds as tasks
from distill.core.errors import UserError
from distill.kinds import CLASSES, MultiTask, find_auto_class


def test_every_class_names_its_kinds_and_no_two_classes_share_one() -> None:
    kinds = [kind for each in CLASSES for kind in each.kinds]
    assert len(set(kinds)) == len(kinds) >= len(CLASSES)
    assert all(find_auto_class(kind) == each.auto_class for each in CLASSES for kind in each.kinds)
    assert {getattr(tasks, name) for name in tasks.__all__} == {*CLASSES, MultiTask}


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(
        UserError, match="got the kind of task sequence, expected one of bidirectional_lm, causal_lm, cl"
    ):
        find_auto_class("sequence")
