"""Knowledge distillation for text encoders: from a large teacher to a small ONNX student, measured.

    import distill as d

Every public name is imported when it is first used, so that `import distill` and `distill.edge` need no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from distill import tasks
    from distill.api import Result, Student, Teacher, distill, students
    from distill.benchmark.budget import Budget
    from distill.benchmark.settings import BenchmarkSettings
    from distill.data.augmentation import AutoAugmentation, TangAugmentation
    from distill.edge import Bundle
    from distill.export.settings import ExportSettings
    from distill.losses import (
        AttentionScoreMSE,
        Cosine,
        CosineRegression,
        DecoupledKD,
        EmbeddingMSE,
        HardLabels,
        HiddenStateMSE,
        LogitMSE,
        MarginMSE,
        MaskedLanguageModelling,
        MiniLM,
        MiniLMv2,
        MultipleNegatives,
        Objective,
        PairClassification,
        PairwiseSimilarity,
        PatientKD,
        PseudoLabels,
        SoftTargets,
        Term,
        Triplet,
    )
    from distill.models.word_replacement import MaskedLMAugmentation
    from distill.records import loggers
    from distill.records.settings import RecordSettings
    from distill.teaching.output_cache import OutputCache
    from distill.training.settings import TrainerSettings

# Public name -> its module, and its name there.
_PUBLIC = {
    **{name: ("distill.api", name) for name in ("Result", "Student", "Teacher", "distill", "students")},
    **{
        name: ("distill.losses", name)
        for name in (
            "AttentionScoreMSE", "Cosine", "CosineRegression", "DecoupledKD", "EmbeddingMSE", "HardLabels",
            "HiddenStateMSE", "LogitMSE", "MarginMSE", "MaskedLanguageModelling", "MiniLM", "MiniLMv2",
            "MultipleNegatives", "Objective", "PairClassification", "PairwiseSimilarity", "PatientKD", "PseudoLabels",
            "SoftTargets", "Term", "Triplet",
        )
    },
    "AutoAugmentation": ("distill.data.augmentation", "AutoAugmentation"),
    "BenchmarkSettings": ("distill.benchmark.settings", "BenchmarkSettings"),
    "Budget": ("distill.benchmark.budget", "Budget"),
    "Bundle": ("distill.edge", "Bundle"),
    "ExportSettings": ("distill.export.settings", "ExportSettings"),
    "MaskedLMAugmentation": ("distill.models.word_replacement", "MaskedLMAugmentation"),
    "OutputCache": ("distill.teaching.output_cache", "OutputCache"),
    "RecordSettings": ("distill.records.settings", "RecordSettings"),
    "TangAugmentation": ("distill.data.augmentation", "TangAugmentation"),
    "TrainerSettings": ("distill.training.settings", "TrainerSettings"),
}  # fmt: skip

_MODULES = {"loggers": "distill.records.loggers", "tasks": "distill.tasks"}

__all__ = [
    "AttentionScoreMSE",
    "AutoAugmentation",
    "BenchmarkSettings",
    "Budget",
    "Bundle",
    "Cosine",
    "CosineRegression",
    "DecoupledKD",
    "EmbeddingMSE",
    "ExportSettings",
    "HardLabels",
    "HiddenStateMSE",
    "LogitMSE",
    "MarginMSE",
    "MaskedLMAugmentation",
    "MaskedLanguageModelling",
    "MiniLM",
    "MiniLMv2",
    "MultipleNegatives",
    "Objective",
    "OutputCache",
    "PairClassification",
    "PairwiseSimilarity",
    "PatientKD",
    "PseudoLabels",
    "RecordSettings",
    "Result",
    "SoftTargets",
    "Student",
    "TangAugmentation",
    "Teacher",
    "Term",
    "TrainerSettings",
    "Triplet",
    "distill",
    "loggers",
    "students",
    "tasks",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _PUBLIC:
        raise AttributeError(f"module 'distill' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"distill.{name} needs {error.name}, which is not installed: pip install 'distill[train]'"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
