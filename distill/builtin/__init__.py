"""The students and teachers that come with distill, from the folders `students` and `teachers`.

A wheel has these folders inside this package. In a checkout they are beside `distill`, and `__path__` leads there, so
that `distill.builtin.students.bilstm` has one name everywhere and an installation puts `distill` alone among the
packages of others. All students are imported together, because a file registers an architecture that transformers does
not include with its auto classes.
"""

import importlib
import pkgutil

from distill.core.errors import PACKAGE, is_checkout

if is_checkout():
    __path__.append(str(PACKAGE.parent))


def import_modules(package: str) -> None:
    """Imports every module of a package."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")


import_modules(f"{__name__}.students")
