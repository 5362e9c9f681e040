"""Checks of options with pydantic, reported in one line: what was got and what was expected.

The annotation of an option determines the values it takes. A dataclass of options is a pydantic dataclass:

    @raise_option_errors
    @dataclass(frozen=True, config=STRICT)  # pydantic.dataclasses.dataclass
    class TrainerSettings:
        learning_rate: PositiveFloat
        max_steps: PositiveInt | None = None
        precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"

A class with an `__init__` of its own, or a function, has its arguments checked:

    class Classification:
        @check_arguments
        def __init__(self, *, name: str, max_length: Annotated[int, Field(ge=3)] = 128) -> None: ...

Options that several functions share are a TypedDict, `**options: Unpack[TableOptions]`.

Both raise OptionError, which is a UserError and a ValueError. A value that Hydra instantiates is named in full by
`distill.__main__`:

    got trainer.max_steps=0, expected a whole number of at least 1 or null

What has one place in the configuration names it itself, by `@check_options("student")`.

`describe` derives the second half from the annotation. `Field(description="...")` inside `Annotated` replaces it where
other words are clearer. Constraints belong into `Annotated` because defaults are not read. A list from YAML becomes a
tuple only with `Annotated[tuple[...], Field(strict=False)]`, and `Sequence[...]` takes both. For a choice of words,
true and false write `Literal["auto"] | bool`, because `Literal["auto", True]` takes 1 for true.

A check of several options stays in `__post_init__`, in a `model_validator` or in the body of `__init__`. Its
ValueError or UserError is raised unchanged.
"""

import functools
import importlib.util
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, ConfigDict, Field, PositiveInt, ValidationError, validate_call
from pydantic.fields import FieldInfo

from distill.core.errors import OptionError, UserError, install_command

# Types are exact: true is not 1, 2.0 is not 2, and "3" is not 3. An integer is a valid float.
STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


def _check_increasing(values: tuple[int, ...]) -> tuple[int, ...]:
    if any(later <= earlier for earlier, later in itertools.pairwise(values)):
        raise ValueError("expected numbers that increase")
    return values


# Numbers of first dimensions of a vector.
Dimensions = Annotated[
    tuple[PositiveInt, ...],
    Field(strict=False, description="a list of whole numbers of at least 1 that increase"),
    AfterValidator(_check_increasing),
]

# A share of the activations that is dropped.
Dropout = Annotated[float, Field(ge=0, lt=1, description="a share from 0 to below 1")]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])


def raise_option_errors(cls: type[T], *, prefix: str = "") -> type[T]:
    """Makes a pydantic dataclass raise OptionError in place of pydantic's ValidationError.

    Args:
        prefix: of the names of the options in messages.
    """
    validate: Callable[..., None] = cls.__init__

    @functools.wraps(validate)
    def init(self: T, *args: object, **kwargs: object) -> None:
        try:
            validate(self, *args, **kwargs)
        except ValidationError as error:
            raise _to_option_error(error, cls, args, kwargs, prefix) from None

    cls.__init__ = init  # type: ignore[method-assign, assignment]
    return cls


def check_arguments(function: Callable[P, R], *, prefix: str = "") -> Callable[P, R]:
    """Checks the arguments of a function or an `__init__` against its annotations; raises OptionError.

    Args:
        prefix: of the names of the options in messages.
    """
    validated = validate_call(config=STRICT)(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return validated(*args, **kwargs)
        except ValidationError as error:
            raise _to_option_error(error, function, args, kwargs, prefix) from None

    return call


def check_options(section: str) -> Callable[[C], C]:
    """Returns the decorator of a pydantic dataclass or a function whose errors name options in full: `student.depth`.

    Args:
        section: of the configuration, such as `student`.
    """

    def decorate(target: C) -> C:
        check: Any = raise_option_errors if isinstance(target, type) else check_arguments
        checked: C = check(target, prefix=f"{section}.")
        return checked

    return decorate


def list_annotations(target: Callable[..., object]) -> dict[str, object]:
    """Returns the annotation of each argument of a function or a class; `Unpack[...]` counts as its keys."""
    annotated = target.__init__ if inspect.isclass(target) and not is_dataclass(target) else target
    hints, annotations = get_type_hints(annotated, include_extras=True), dict[str, object]()
    for name in inspect.signature(target).parameters:
        annotation = hints.get(name)
        if get_origin(annotation) is Unpack:
            annotations |= get_type_hints(get_args(annotation)[0], include_extras=True)
        else:
            annotations[name] = annotation
    return annotations


def describe(annotation: object) -> str:
    """Returns the values that an annotation allows, in words: `a whole number of at least 1 or null`."""
    *others, last = dict.fromkeys(_alternatives(annotation, ()))
    return f"{', '.join(others)} or {last}" if others else last


def show_value(value: object) -> str:
    """Returns a value as it is typed on the command line and in YAML."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(show_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {show_value(item)}' for key, item in value.items())}}}"
    return value if isinstance(value, str) and not _needs_quotes(value) else " ".join(repr(value).split("\n"))


def _needs_quotes(text: str) -> bool:
    """Returns whether YAML would read the text as a number or a constant, or it is not printable."""
    try:
        float(text)
    except ValueError:
        return not text or not text.isprintable() or text in ("true", "false", "null")
    return True


def _to_option_error(
    error: ValidationError,
    target: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, Any],
    prefix: str,
) -> Exception:
    """Returns the first of pydantic's errors as an OptionError, or what a check of several options raised."""
    annotations = list_annotations(target)
    names = list(annotations)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    first = error.errors(include_url=False)[0]
    location = first["loc"]
    if not location or (isinstance(location[0], int) and location[0] >= len(names)):
        raised = first.get("ctx", {}).get("error")
        return raised if isinstance(raised, Exception) else TypeError(first["msg"])
    name = names[location[0]] if isinstance(location[0], int) else location[0]
    if name not in names:
        known = ", ".join(known for known in names if known != "self")
        return OptionError(prefix + name, show_value(given[name]), f"one of the options {known}")
    if (item := _find_item(prefix + name, given.get(name), annotations[name], location[1:])) is not None:
        return item
    expected = describe(annotations[name])
    return OptionError(prefix + name, show_value(given[name]) if name in given else None, expected)


def _find_item(name: str, value: object, annotation: object, location: Sequence[object]) -> OptionError | None:
    """Returns the error about the wrong value of a mapping; None where the whole option is wrong."""
    kinds = [get_args(kind)[1] for kind in (annotation, *get_args(annotation)) if get_origin(kind) is Mapping]
    key = next(iter(location), None)
    if not kinds or not isinstance(value, Mapping) or key not in value:
        return None
    others = [str(other) for other, given in value.items() if other != key and given is not None]
    known = f" (there are {', '.join(others)})" if others else ""
    return OptionError(f"{name}.{key}", show_value(value[key]), f"{describe(kinds[0])}{known}")


def _alternatives(annotation: object, metadata: tuple[object, ...]) -> list[str]:
    """Returns the kinds of values that an annotation allows, one entry each; `metadata` is that of its `Annotated`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _alternatives(arguments[0], (*metadata, *arguments[1:]))
    for item in metadata:
        if isinstance(item, FieldInfo) and item.description:
            return [item.description]
    if origin in (Union, UnionType):
        return [words for member in arguments for words in _alternatives(member, metadata)]
    if origin is Literal:
        values = [show_value(value) for value in arguments]
        return values if len(values) < 3 else [f"one of {', '.join(values)}"]
    if isinstance(origin, type):
        return [_describe_container(origin, arguments)]
    simple = {bool: ["true", "false"], NoneType: ["null"], str: ["a string"], Any: ["any value"]}
    if annotation in simple:
        return simple[annotation]
    if annotation in (int, float):
        noun = "a whole number" if annotation is int else "a number"
        return [f"{noun}{_describe_range(metadata, whole=annotation is int)}"]
    return [f"a {getattr(annotation, '__name__', annotation)}"]


def _describe_container(origin: type, arguments: tuple[object, ...]) -> str:
    if issubclass(origin, Mapping):
        return f"a mapping, each value {describe(arguments[1])}"
    if not issubclass(origin, Sequence):
        return f"a {origin.__name__}"
    number = f"{len(arguments)} items" if origin is tuple and Ellipsis not in arguments else "items"
    return f"a list of {number}, each {describe(arguments[0])}"


def _describe_range(metadata: tuple[object, ...], *, whole: bool) -> str:
    constraints = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
    limits = {
        name: getattr(part, name)
        for part in constraints
        for name in ("gt", "ge", "lt", "le")
        if getattr(part, name, None) is not None
    }
    if whole and "gt" in limits:
        limits["ge"] = limits.pop("gt") + 1
    if whole and "lt" in limits:
        limits["le"] = limits.pop("lt") - 1
    if {"ge", "le"} <= set(limits):
        return f" from {limits['ge']} to {limits['le']}"
    words = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most" if "gt" in limits else "of at most"}
    parts = [f"{words[name]} {limits[name]}" for name in ("gt", "ge", "lt", "le") if name in limits]
    return f" {' and '.join(parts)}" if parts else ""


def require_package(package: str, option: str, *, extra: str, name: str | None = None, advice: str = "") -> None:
    """Raises UserError if a package that an option needs is not installed.

    Args:
        extra: of distill, which installs it.
        name: of the package in the message, where it is another one.
        advice: the end of the message.
    """
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{option} needs {name or package}, which is not installed: {install_command(extra)}{advice}")
