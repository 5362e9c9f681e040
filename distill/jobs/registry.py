"""The jobs of `python -m distill job=NAME`: the function of each, and the options that it reads."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distill.errors import UserError

# Prefixes of the options that a job which creates a run may read or ignore.
OPTIONS = (
    "student", "seed", "seeds", "baseline", "teacher.finetune", "teacher.cache", "trainer", "export", "benchmark",
    "objective", "logger", "budget", "augment", "adapt", "report", "task.unlabelled", "task.unlabelled_share",
    "task.bank",
)  # fmt: skip
_TEXT_TRAINING = (
    "seed", "baseline", "trainer", "objective", "logger", "task.unlabelled", "task.unlabelled_share", "task.bank",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        function: its module and its name there, imported when the job is run.
        reads: of a job that creates a run, those of `OPTIONS` that it reads. Of another job, the beginnings of all
            options that it reads.
        reads_on_text: those of `OPTIONS` that it reads for a task over raw text; None for `reads`.
        words: `reads` as in a message; None for these themselves.
        creates_run: whether its function takes a run, besides the configuration.
        model: the directory of the trained model within that of the run; None without one.
    """

    function: str
    reads: tuple[str, ...]
    reads_on_text: tuple[str, ...] | None = None
    words: str | None = None
    creates_run: bool = True
    model: str | None = None

    def ignored(self, *, on_text: bool) -> tuple[str, ...]:
        """Returns those of `OPTIONS` that change nothing in the job."""
        reads = self.reads if not on_text or self.reads_on_text is None else self.reads_on_text
        return tuple(option for option in OPTIONS if option not in reads)

    def load(self) -> Callable[..., Any]:
        """Imports and returns the function."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


JOBS: dict[str, Job] = {
    "distill": Job(
        "distill.jobs.distill:run_distill", OPTIONS,
        tuple(name for name in OPTIONS if name not in ("teacher.finetune", "adapt")), model="student",
    ),
    "finetune": Job(
        "distill.jobs.finetune:run_finetune", ("teacher.finetune", "teacher.cache", "adapt"),
        (*_TEXT_TRAINING, "adapt"), model="teacher/model",
    ),
    "pretrain": Job("distill.jobs.pretrain:run_pretrain", _TEXT_TRAINING, model="teacher/model"),
    # Imports neither torch nor transformers.
    "cache": Job(
        "distill.jobs.cache:run_cache", ("job=", "job.", "cache_dir="), words="cache_dir and job.*", creates_run=False
    ),
    # Imports neither torch nor pandas.
    "check": Job(
        "distill.jobs.check:run_check", ("job=", "data=", "text=", "label=", "json="),
        words="data, text, label and json", creates_run=False,
    ),
    "report": Job(
        "distill.jobs.report:run_report", ("job=", "runs=", "report_dir=", "refresh="),
        words="runs, report_dir and refresh", creates_run=False,
    ),
    "glue_test": Job(
        "distill.jobs.glue_files:run_glue_test", ("job=", "runs=", "data="), words="runs and data", creates_run=False
    ),
    "benchmark": Job(
        "distill.jobs.benchmark:run_benchmark",
        ("job=", "job.", "bundles=", "benchmark.", "output_dir=", "trust=", "+teacher=", "teacher."),
        creates_run=False,
    ),
    "inspect": Job(
        "distill.jobs.inspection:run_inspect",
        (
            "job=", "model=", "other=", "inspect.", "task=", "task.", "+student=", "student.", "output_dir=",
            "cache_dir=", "trust=",
        ),
        words="model, other, inspect.*, task, student, trust, output_dir and cache_dir", creates_run=False,
    ),
    "publish": Job(
        "distill.jobs.publish:run_publish", ("job=", "job.", "run=", "repo=", "private=", "dry_run="), creates_run=False
    ),
}  # fmt: skip


def find_job(name: str) -> Job:
    """Returns a job by its name.

    Raises:
        UserError: if there is none.
    """
    if name not in JOBS:
        raise UserError(f"there is no job {name}, expected one of {', '.join(JOBS)}")
    return JOBS[name]
