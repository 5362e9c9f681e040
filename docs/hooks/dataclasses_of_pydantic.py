"""Shows the fields of a dataclass of pydantic as its arguments, as griffe does for those of `dataclasses`."""

from typing import Any

import griffe


class DataclassesOfPydantic(griffe.Extension):
    """Reads the decorator of pydantic as that of `dataclasses`, before griffe looks for it."""

    def on_class(self, *, cls: griffe.Class, **options: Any) -> None:
        for decorator in cls.decorators:
            value = decorator.value
            if isinstance(value, griffe.Expr) and value.canonical_path == "pydantic.dataclasses.dataclass":
                decorator.value = griffe.ExprName("dataclasses.dataclass")
