"""Tests that an invalid option is reported in one line: its name, its value as typed, and what was expected."""

import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, Unpack

import hydra
import pytest
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from distill.__main__ import _translate
from distill.core.errors import OptionError, UserError
from distill.core.options import STRICT, check_arguments, describe, raise_option_errors, show_value


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class Settings:
    rate: PositiveFloat
    steps: PositiveInt | None = None
    sizes: Annotated[Sequence[PositiveInt], Field(min_length=1)] = (1,)
    shares: Annotated[tuple[float, float], Field(strict=False, description="two shares")] = (0.5, 0.5)
    cache: Literal["auto"] | bool = "auto"
    unit: Literal["token", "word", "span"] = "token"

    def __post_init__(self) -> None:
        if self.unit == "span" and self.steps is None:
            raise ValueError("got unit=span without steps")
        if self.unit == "word" and self.cache is True:
            raise UserError("got unit=word and cache=true")


class Task:
    @check_arguments
    def __init__(self, name: str, *, settings: Settings | None = None, columns: Mapping[str, str] | None = None):
        if name == "other":
            raise ValueError("the body is no check of options")
        self.name, self.settings, self.columns = name, settings, columns


class Sizes(TypedDict, total=False):
    width: PositiveInt
    depth: int | None


class Sized:
    @check_arguments
    def __init__(self, name: str, **sizes: Unpack[Sizes]) -> None:
        self.name, self.sizes = name, sizes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0}, "got rate=0, expected a number above 0"),
        ({"rate": float("nan")}, "got rate=nan, expected a number above 0"),
        ({"rate": True}, "got rate=true, expected a number above 0"),
        ({"rate": "1"}, "got rate='1', expected a number above 0"),
        ({"steps": 2.0}, "got steps=2.0, expected a whole number of at least 1 or null"),
        ({"sizes": []}, "got sizes=[], expected a list of items, each a whole number of at least 1"),
        ({"sizes": [1, 0]}, "got sizes=[1, 0], expected a list of items, each a whole number of at least 1"),
        ({"sizes": 3}, "got sizes=3, expected a list of items, each a whole number of at least 1"),
        ({"shares": [0.5, True]}, "got shares=[0.5, true], expected two shares"),
        ({"cache": 1}, "got cache=1, expected auto, true or false"),
        ({"unit": "line"}, "got unit=line, expected one of token, word, span"),
        ({"unit": "span"}, "got unit=span without steps"),
        ({"rates": 1}, "got rates=1, expected one of the options rate, steps, sizes, shares, cache, unit"),
    ],
)
def test_an_invalid_value_is_reported_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$") as caught:
        Settings(**{"rate": 1.0} | options)
    assert caught.value.__cause__ is None
    with pytest.raises(UserError, match=r"^got no rate, expected a number above 0$"):
        Settings()  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"^got unit=word and cache=true$"):
        Settings(rate=1.0, unit="word", cache=True)
    error = OptionError("rate", "0", "a number above 0").with_prefix("trainer")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "got trainer.rate=0, expected a number above 0"


def test_values_from_yaml_are_accepted() -> None:
    settings = Settings(rate=1, steps=3, sizes=[1, 8], shares=[1, 0], cache=False)  # type: ignore[arg-type]
    assert settings == replace(settings)
    assert asdict(settings) == {
        "rate": 1.0, "steps": 3, "sizes": [1, 8], "shares": (1.0, 0.0), "cache": False, "unit": "token",
    }  # fmt: skip
    assert [type(share) for share in settings.shares] == [float, float]
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(AttributeError):
        settings.rate = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Task(3), "got name=3, expected a string"),  # type: ignore[arg-type]
        (lambda: Task(), "got no name, expected a string"),  # type: ignore[call-arg]
        (lambda: Task("a", settings=1), "got settings=1, expected a Settings or null"),  # type: ignore[arg-type]
        (lambda: Task("a", columns={"y": "b", "x": 1}), "got columns.x=1, expected a string (there are y)"),  # type: ignore[dict-item]
        (lambda: Task("a", colums=None), "got colums=null, expected one of the options name, settings, columns"),  # type: ignore[call-arg]
        (lambda: Task("other"), "the body is no check of options"),
        (lambda: Sized("a", width=0), "got width=0, expected a whole number of at least 1"),
        (lambda: Sized("a", depth="2"), "got depth='2', expected a whole number or null"),  # type: ignore[arg-type]
        (lambda: Sized("a", widht=1), "got widht=1, expected one of the options name, width, depth"),  # type: ignore[call-arg]
    ],
)
def test_arguments_of_functions_are_checked_too(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
    assert Sized("a", width=3).sizes == {"width": 3}
    settings = Settings(rate=1.0)
    assert Task("a", settings=settings).settings is settings


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (PositiveInt, "a whole number of at least 1"),
        (Annotated[float, Field(gt=0, le=1)], "a number above 0 and at most 1"),
        (Annotated[float, Field(ge=0, lt=1)], "a number of at least 0 and below 1"),
        (Annotated[int, Field(ge=0, lt=2**32)], "a whole number from 0 to 4294967295"),
        (Annotated[int, Field(ge=1, description="a count")] | None, "a count or null"),
        (str | Sequence[str], "a string or a list of items, each a string"),
        (tuple[float, float], "a list of 2 items, each a number"),
        (Literal["masked", "all"], "masked or all"),
        (Literal["a", "b", "c"] | None, "one of a, b, c or null"),
        (Literal["3"], "'3'"),
        (Any, "any value"),
    ],
)
def test_annotations_are_described(annotation: Any, words: str) -> None:
    assert describe(annotation) == words


def test_values_are_shown_as_they_are_typed() -> None:
    shown = [show_value(value) for value in ("a b", "", "1e3", "two\nlines", None, {"a": [True]}, 1e-9)]
    assert shown == ["a b", "''", "'1e3'", "'two\\nlines'", "null", "{a: [true]}", "1e-09"]


def test_the_option_is_named_as_the_user_typed_it() -> None:
    target = {"_target_": f"{__name__}.Settings", "rate": "${rate}", "steps": 0}
    config = OmegaConf.create({"rate": 1, "trainer": target, "task": {"_target_": f"{__name__}.Task", "name": 1}})

    def report(part: str) -> str:
        with pytest.raises(InstantiationException) as caught:
            hydra.utils.instantiate(config[part])
        return str(_translate(caught.value, config))

    assert report("trainer") == "got trainer.steps=0, expected a whole number of at least 1 or null"
    assert report("task") == "got task.name=1, expected a string"
    config.rate, config.trainer.steps = -1, None
    assert report("trainer") == "got rate=-1, expected a number above 0"
    config.rate, config.trainer.unit = 1, "span"
    assert report("trainer") == "trainer: got unit=span without steps"
    config.task.settings = config.trainer
    config.task.settings.rate = 0  # In a nested object.
    assert report("task") == "got task.settings.rate=0, expected a number above 0"
