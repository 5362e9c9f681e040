"""Metrics that a user writes: functions `(y_true, y_score) -> float`, beside the names of a task's own metrics.

>>> names, functions = read_metrics({"accuracy": "accuracy", "zero": lambda y_true, y_score: 0.0}, known=["accuracy"])
>>> names, list(functions)
(('accuracy', 'zero'), ['zero'])
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
from pydantic import Field, SkipValidation

from distill.errors import DistillError, OptionError, UserError, first_line
from distill.options import show_value

MetricFunction: TypeAlias = Callable[[np.ndarray, np.ndarray], float]
Functions: TypeAlias = Mapping[str, MetricFunction]
if TYPE_CHECKING:
    Metrics: TypeAlias = Sequence[str | MetricFunction] | Mapping[str, str | MetricFunction]
_NAME = re.compile(r"[A-Za-z][\w@.-]*")
_SHOWN = 60  # Characters of a value in a message.


class MetricError(UserError):
    """A function of a user that fails, or returns something else than a finite number."""


def annotate_metrics(known: str) -> Any:
    """Returns the annotation of the option `metrics`, which `read_metrics` checks; `known` are the names in words."""
    return Annotated[object, SkipValidation, Field(description=f"a list of some of {known}, or of functions")]


def read_metrics(given: "Metrics", known: Sequence[str]) -> tuple[tuple[str, ...], dict[str, MetricFunction]]:
    """Returns the names of the metrics in their order, and the functions among them by name.

    Args:
        given: names of `known` metrics and functions, which are called by their own names; or a mapping of names to
            functions, in which a metric of the task has its name as value.

    Raises:
        OptionError: for an unknown name, a function without a name, a name that is no word, and a name given twice.
    """
    expected = f"a list of some of {', '.join(known)}, or of functions (y_true, y_score)"
    entries = list(_list_entries(given, expected))
    names = [name for name, _ in entries]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise _refuse(given, f"metrics of different names, and {twice[0]} is there twice: name them in a mapping")
    functions = dict[str, MetricFunction]()
    for name, metric in entries:
        if not callable(metric):
            if metric != name or name not in known:
                raise _refuse(given, expected)
        elif name in known:
            raise _refuse(given, f"another name for the function {name}, because the task has a metric of this name")
        elif not _NAME.fullmatch(name):
            raise _refuse(
                given, "a name of letters, digits, _, - and @ for each function: name it in a mapping, as in "
                "metrics={'name': function}"
            )  # fmt: skip
        else:
            functions[name] = metric
    return tuple(names), functions


def _list_entries(given: object, expected: str) -> Iterable[tuple[str, object]]:
    """Yields each metric with its name."""
    if isinstance(given, Mapping):
        entries = [(str(name), metric) for name, metric in given.items()]
    elif isinstance(given, Iterable) and not isinstance(given, str):
        entries = [(getattr(metric, "__name__", "") if callable(metric) else str(metric), metric) for metric in given]
    else:
        raise _refuse(given, expected)
    if not entries:
        raise _refuse(given, expected)
    return entries


def _refuse(given: object, expected: str) -> OptionError:
    return OptionError("metrics", _show(given), expected)


def _show(value: object) -> str:
    """Returns the value of the option as it is typed, functions by their names."""
    if isinstance(value, Mapping):
        return show_value({name: _name(metric) for name, metric in value.items()})
    if isinstance(value, Iterable) and not isinstance(value, str):
        return show_value(list(map(_name, value)))
    return show_value(_name(value))


def _name(metric: object) -> object:
    return getattr(metric, "__name__", type(metric).__name__) if callable(metric) else metric


def compute_functions(functions: Functions, y_true: np.ndarray, y_score: np.ndarray, *, of: str) -> dict[str, float]:
    """Returns the values of the functions.

    Args:
        of: the predictions, in words of a message.

    Raises:
        MetricError: for a function that fails, or returns something else than a finite number.
    """
    return {name: _compute(name, function, y_true, y_score, of) for name, function in functions.items()}


def _compute(name: str, function: MetricFunction, y_true: np.ndarray, y_score: np.ndarray, of: str) -> float:
    try:
        value: Any = function(y_true.copy(), y_score.copy())  # It may change its arguments.
    except DistillError:
        raise
    except Exception as error:  # The function is the user's.
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise MetricError(
            f"the metric {name} failed for {of}, with y_true {list(y_true.shape)} and y_score {list(y_score.shape)}: "
            f"{reason}"
        ) from error
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        shown = repr(value)[:_SHOWN]
        raise MetricError(f"the metric {name} returned {shown} ({type(value).__name__}) for {of}, expected a number")
    if not math.isfinite(value):
        raise MetricError(f"the metric {name} returned {float(value)} for {of}, expected a finite number")
    return float(value)


def digest_function(function: MetricFunction) -> str:
    """Returns the name of a function and its code, so that a teacher that another one selected is another teacher."""
    code = getattr(function, "__code__", None)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    if code is None:
        return name
    constants = [value for value in code.co_consts if not hasattr(value, "co_code")]
    return f"{name} {code.co_code.hex()} {constants!r} {code.co_names!r}"
