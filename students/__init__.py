"""Student architectures, one per file, each built by `from_teacher(teacher, **options)`.

Importing the package imports all of them, because a file registers an architecture that transformers does not include
with its auto classes.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
