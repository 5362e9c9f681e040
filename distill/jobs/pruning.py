"""The early end of a run of a sweep, by a logger, because a logger gets the metrics of every evaluation.

A trial of `hydra/sweeper=optuna` ends where its metric on dev is worse than that of the others so far. Its run tells
them to the study, which is a file in the directory of the sweep. A student of `hydra/sweeper=auto` ends where it is
behind another one at a third of its steps.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import Logger
from pydantic.dataclasses import dataclass

from distill.core.errors import Pruned
from distill.core.options import STRICT, raise_option_errors
from distill.jobs.sweepers import PRUNED, STUDY_NAME
from distill.records.loggers import LoggerSettings, TrackerEntry
from distill.records.plots import read_curves
from distill.records.schema import DEV, read_record
from distill.records.verdict import recommend
from distill.training.statistics import count_share_examples, wilson_interval

if TYPE_CHECKING:
    import optuna


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class TrialPruner(LoggerSettings):
    """Tells the metrics of a run to its trial.

    Args:
        storage: URL of the database with the study.
        trial: the id of the trial in the database.
    """

    storage: str
    trial: int

    def open(self, entry: TrackerEntry) -> tuple[Logger, str | None]:
        """Returns the logger of a run."""
        import optuna

        # After five whole trials, as by default.
        study = optuna.load_study(study_name=STUDY_NAME, storage=self.storage, pruner=optuna.pruners.MedianPruner())
        sign = -1 if entry.selects == "min" else 1
        return _TrialLogger(optuna.Trial(study, self.trial), f"dev/{entry.metric}", sign), None


class _Observer(Logger):
    """Observes one metric of every evaluation."""

    def __init__(self, metric: str) -> None:
        super().__init__()
        self._metric = metric

    @property
    def name(self) -> str:
        """Returns that it is no tracker."""
        return "observer"

    @property
    def version(self) -> str:
        """Returns nothing, because there is one of a run."""
        return ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Returns, because the run has its options."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Observes the metric if it is among the metrics."""
        value = metrics.get(self._metric)
        if value is not None and math.isfinite(value):
            self.observe(value, step or 0)

    def observe(self, value: float, step: int) -> None:
        """Reads the metric of an evaluation after so many steps."""
        raise NotImplementedError


class _TrialLogger(_Observer):
    """Reports the metric of every evaluation, and ends the training if the study would prune its trial."""

    def __init__(self, trial: "optuna.Trial", metric: str, sign: int) -> None:
        super().__init__(metric)
        self._trial, self._sign = trial, sign

    def observe(self, value: float, step: int) -> None:
        """Raises Pruned if the metric is worse than the median of the other trials after as many evaluations."""
        reported = self._trial.study.trials[self._trial.number].last_step  # Of a resumed run too.
        self._trial.report(self._sign * value, 0 if reported is None else reported + 1)
        if self._trial.should_prune():
            self._trial.set_user_attr(PRUNED, True)
            raise Pruned(
                f"{self._metric} is {value:.4f} at step {step}, worse than the median of the other trials by then"
            )


RUNG = 1 / 3  # Share of the steps of a student at which it is compared with others.


def find_least(finished: Sequence[Path], *, mb: float | None) -> float | None:
    """Returns the lower end of the 95% interval of the best student's metric on dev at a third of its steps.

    Args:
        finished: the runs of other students.
        mb: the largest file of a student that others are compared with; None for any.

    Returns:
        None where no student was trained, and for a metric that is no share of the examples or of which less is better.
    """
    best, interval = 0.0, None
    for directory in finished:
        record = read_record(directory)
        task, training, chosen = record["task"], record["training"], recommend(record["export"])
        examples = count_share_examples(task, DEV)
        if not examples or not training.get("steps") or chosen is None:
            continue
        if mb is not None and record["export"][chosen]["bytes"] > mb * 1e6:
            continue
        curve = read_curves(directory).get(f"dev/{task['metric']}", [])
        reached = next((value for step, value in curve if step >= RUNG * training["steps"]), None)
        if reached is not None and reached > best:
            best, interval = reached, wilson_interval(reached, examples)
    return None if interval is None else interval[0]


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class StudentPruner(LoggerSettings):
    """Ends the training of a student that is behind another one.

    Args:
        least: metric on dev that it has from a third of its steps on.
    """

    least: float

    def open(self, entry: TrackerEntry) -> tuple[Logger, str | None]:
        """Returns the logger of a run."""
        return _RungLogger(f"dev/{entry.metric}", self.least, entry.steps), None


class _RungLogger(_Observer):
    """Ends the training if the metric of an evaluation is below the least one."""

    def __init__(self, metric: str, least: float, steps: int) -> None:
        super().__init__(metric)
        self._least, self._steps = least, steps

    def observe(self, value: float, step: int) -> None:
        """Raises Pruned for a student that is behind another one."""
        if step >= RUNG * self._steps and value < self._least:
            raise Pruned(
                f"it was behind another student: {self._metric} {value:.4f} at step {step:,} of {self._steps:,}, and "
                f"the interval of that one's metric began at {self._least:.4f} at a third of its steps"
            )
