"""Ends a trial of `hydra/sweeper=optuna` whose metric on dev is worse than that of the others so far.

The sweeper gives a run this logger, because a logger gets the metrics of every evaluation. The run tells
them to the study, which is a file in the directory of the sweep.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import Logger
from pydantic.dataclasses import dataclass

from distill.errors import Pruned
from distill.jobs.optuna_sweeper import PRUNED, STUDY_NAME
from distill.options import STRICT, raise_option_errors
from distill.records.loggers import Results, TrackerEntry

if TYPE_CHECKING:
    import optuna


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class Pruner:
    """Tells the metrics of a run to its trial.

    Args:
        storage: URL of the database with the study.
        trial: the id of the trial in the database.
    """

    storage: str
    trial: int

    def check(self) -> None:
        """Returns, because the sweeper has opened the study."""

    def open(self, entry: TrackerEntry) -> tuple[Logger, str | None]:
        """Returns the logger of a run."""
        import optuna

        # After five whole trials, as by default.
        study = optuna.load_study(study_name=STUDY_NAME, storage=self.storage, pruner=optuna.pruners.MedianPruner())
        sign = -1 if entry.selects == "min" else 1
        return _TrialLogger(optuna.Trial(study, self.trial), f"dev/{entry.metric}", sign), None

    def log_results(self, logger: Any, results: Results) -> None:
        """Returns, because the sweeper reads run.json."""

    def close(self, logger: Any, *, failed: bool) -> None:
        """Returns, because every value is written at once."""


class _TrialLogger(Logger):
    """Reports the metric of every evaluation, and ends the training if the study would prune its trial."""

    def __init__(self, trial: "optuna.Trial", metric: str, sign: int) -> None:
        super().__init__()
        self._trial, self._metric, self._sign = trial, metric, sign

    @property
    def name(self) -> str:
        """Returns the name of the study."""
        return STUDY_NAME

    @property
    def version(self) -> str:
        """Returns the number of the trial."""
        return str(self._trial.number)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Returns, because the trial has its options."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Reports the metric of the task if it is among the metrics.

        Raises:
            Pruned: if it is worse than the median of the other trials after as many evaluations.
        """
        value = metrics.get(self._metric)
        if value is None or not math.isfinite(value):
            return
        reported = self._trial.study.trials[self._trial.number].last_step  # Of a resumed run too.
        self._trial.report(self._sign * value, 0 if reported is None else reported + 1)
        if self._trial.should_prune():
            self._trial.set_user_attr(PRUNED, True)
            raise Pruned(
                f"{self._metric} is {value:.4f} at step {step}, worse than the median of the other trials by then"
            )
