"""Knowledge distillation for text encoders: from a large teacher to a small ONNX student, measured.

    import distill as d

Every public name is imported when it is first used, so that `import distill` and `distill.edge` need no torch.
"""

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import distill.kinds as tasks  # noqa: F401
    import distill.records.loggers as loggers  # noqa: F401
    from distill.api import Teacher as Teacher
    from distill.api import distill as distill
    from distill.api import inspect as inspect
    from distill.api import plan as plan
    from distill.api import students as students
    from distill.chain.distillation import Result as Result
    from distill.chain.plan import Student as Student
    from distill.chain.student_setup import PlanSummary as PlanSummary
    from distill.data.augmentation import AutoAugmentation as AutoAugmentation
    from distill.data.augmentation import MentionAugmentation as MentionAugmentation
    from distill.data.augmentation import TangAugmentation as TangAugmentation
    from distill.data.questions import QuestionAugmentation as QuestionAugmentation
    from distill.edge import Bundle as Bundle
    from distill.edge import Index as Index
    from distill.export.latency import BenchmarkSettings as BenchmarkSettings
    from distill.export.latency import Budget as Budget
    from distill.export.quantization import ExportSettings as ExportSettings
    from distill.losses import *  # noqa: F403
    from distill.models.generator import MaskedLMAugmentation as MaskedLMAugmentation
    from distill.records.verdict import RecordSettings as RecordSettings
    from distill.records.verdict import ReportSettings as ReportSettings
    from distill.teachers.output_cache import OutputCache as OutputCache
    from distill.teachers.source import Adaptation as Adaptation
    from distill.training.hyperparameters import TrainerSettings as TrainerSettings


__version__ = "0.2.0"


def _list_imports(file: Path) -> dict[str, tuple[str, str | None]]:
    """Returns the public names that a file imports, with the module of each and its name there, None for the module.

    The file is read and not run.
    """
    names: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.asname: (alias.name, None) for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if alias.name == "*":
                    names |= _list_imports(file.parent.joinpath(*node.module.split(".")[1:], "__init__.py"))
                elif alias.asname:
                    names[alias.asname] = (node.module, alias.name)
    return names


_PUBLIC = _list_imports(Path(__file__))
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'distill' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    if attribute is None:
        return importlib.import_module(module)
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        from distill.core.errors import install_command

        package = str(error.name).partition(".")[0]
        raise ImportError(
            f"distill.{name} needs {package}, which is not installed: {install_command('train')}"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
