"""A distillation whose student stays as it was started, for tests of starts."""

import json
from pathlib import Path
from typing import Any

import distill as d
from tests.conftest import sentences

TEXTS, CLASSES = (list(column) for column in zip(*sentences(40), strict=True))
TASK = d.tasks.Classification(text="text", train=(TEXTS, CLASSES), dev=(TEXTS[:8], CLASSES[:8]), max_length=24)


def distil_one_step(teacher: d.Teacher, student: Any, task: Any, directory: Path) -> dict[str, Any]:
    """Returns run.json of one step, whose learning rate is so small that it changes nothing."""
    d.distill(
        teacher, student, task,
        trainer=d.TrainerSettings(learning_rate=1e-9, batch_size=8, max_steps=1, precision="32-true"),
        export=d.ExportSettings(enabled=False), directory=directory, baseline=False, augment=None,
        benchmark=d.BenchmarkSettings(enabled=False),
    )  # fmt: skip
    record: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return record
