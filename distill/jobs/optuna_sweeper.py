"""Hydra's sweeper `optuna`, and the registration of all our plugins with Hydra.

Hydra's sweeper `optuna`: searches for the options with the best metric on dev, latency or size. The command line gives
the space in Hydra's own syntax: `a=1,2,4` and `a=choice(1,2,4)` are choices, `a=range(1,6)` are whole numbers below 6,
`a=interval(1,8)` numbers, and `a=tag(log,interval(1e-5,1e-3))` numbers on a log scale.

A trial is a run, whose record gives the values. The study is in the directory of the sweep, `optuna.db`. With the same
`hydra.sweep.dir` a search continues: finished trials count, and those that a killed process left are tried again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from distill.core.console import print_line, print_notice, stages
from distill.core.errors import OptionError, UserError, first_line
from distill.core.files import JsonObject, make_directory
from distill.core.options import require_package, show_value
from distill.core.storage import fetch, fetch_files, try_send
from distill.jobs import command_line, sweepers
from distill.jobs.auto_sweeper import AutoSweeper
from distill.jobs.command_line import quote_overrides
from distill.jobs.sweepers import PRUNED, STUDY_NAME

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


OBJECTIVES = {"metric": "maximize", "p50_ms": "minimize", "bytes": "minimize"}
STUDY = "optuna.db"  # In the directory of the sweep.
_OPTION = "hydra.sweeper"
_LOST = "lost"  # Number of trials that killed processes left, an attribute of the study.
_DIRECTORY = "directory"  # Of a trial's run, an attribute of the trial.


@dataclass(eq=False)
class OptunaSweeper(Sweeper):
    """Runs the trials of a study, in the order that Optuna's TPE sampler suggests.

    Args:
        trials: number of runs of the whole search.
        objectives: one or two of `OBJECTIVES`.
        parallel: number of runs that the launcher gets at once.
        pruning: whether a run ends when its metric on dev is worse than the median of the others; for `metric` alone.
        seed: of the sampler.
        params: the space, besides the one on the command line.

    Raises:
        UserError: from `setup`, if Optuna is not installed or an option is out of range.
    """

    trials: int
    objectives: Sequence[str]
    parallel: int
    pruning: bool
    seed: int
    params: Mapping[str, str] | None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receives the sweep from Hydra."""
        require_package("optuna", "hydra/sweeper=optuna", extra="optuna")
        self.objectives = list(self.objectives)  # Of a list of the configuration.
        for name in ("trials", "parallel"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise OptionError(f"{_OPTION}.{name}", show_value(value), "a whole number of at least 1")
        if not 1 <= len(set(self.objectives) & set(OBJECTIVES)) == len(self.objectives) <= 2:
            expected = f"one or two of {', '.join(OBJECTIVES)}, in a list like [metric,p50_ms]"
            raise OptionError(f"{_OPTION}.objectives", show_value(self.objectives), expected)
        if self.pruning and self.objectives != ["metric"]:
            raise OptionError(f"{_OPTION}.pruning", "true", "false with other objectives than [metric]")
        sweepers.check_directory(config)
        command_line.prepare_slurm(config)
        self._config, self._context, self._job = config, hydra_context, cast(sweepers.FailureCollector, task_function)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Runs the trials that are left, and prints the best ones.

        Raises:
            UserError: for a space that cannot be searched, or another one than that of the study.
        """
        from filelock import FileLock, Timeout

        fixed, space = self._read_space(arguments)
        directory = Path(str(self._config.hydra.sweep.dir))
        make_directory(directory)
        fetch_files(directory, STUDY)
        try:
            with FileLock(directory / ".optuna.lock", timeout=0):
                OmegaConf.save(self._config, directory / "multirun.yaml")
                study = self._open_study(directory, space)
                if not self._config.dry_run:  # A plan has the time of each run.
                    stages.expect_runs(max(1, self.trials - _count(study)))
                while (left := self.trials - _count(study)) > 0:
                    self._run(study, fixed, space, min(left, self.parallel))
                    try_send(directory)
                self._show(study)
        except Timeout as error:
            advice = "wait for it, or give another hydra.sweep.dir"
            raise UserError(f"another search works in {directory}: {advice}") from error

    def _read_space(self, arguments: Sequence[str]) -> tuple[list[str], dict[str, "BaseDistribution"]]:
        """Returns the overrides of every run, and the distribution of each option that is searched over."""
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        given = quote_overrides([f"{name}={value}" for name, value in (self.params or {}).items()], ())
        overrides = {each.get_key_element(): each for each in parser.parse_overrides([*given, *arguments])}
        space = {name: _distribution(each) for name, each in overrides.items() if each.is_sweep_override()}
        if not space:
            raise UserError(
                "hydra/sweeper=optuna has no option to search over: give one as a=1,2,4, a=range(1,6) or "
                "a=interval(1,8)"
            )
        return [f"{n}={each.get_value_element_as_str()}" for n, each in overrides.items() if n not in space], space

    def _open_study(self, directory: Path, space: Mapping[str, "BaseDistribution"]) -> "optuna.Study":
        """Returns the study of the directory, a new one or that of an earlier search."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directions = [OBJECTIVES[name] for name in self.objectives]
        study = optuna.create_study(
            storage=_storage(directory), study_name=STUDY_NAME, directions=directions, load_if_exists=True
        )
        known = study.user_attrs.get("search")
        search = {"objectives": self.objectives, "space": {name: repr(of) for name, of in sorted(space.items())}}
        if known not in (None, search):
            raise UserError(
                f"{directory / STUDY} is the study of other objectives or another space: give those, or another "
                "hydra.sweep.dir"
            )
        study.set_user_attr("search", search)
        # A resumed sampler with the same seed would suggest the same values once more.
        study.sampler = optuna.samplers.TPESampler(
            seed=self.seed + len(study.trials), constant_liar=self.parallel > 1, multivariate=False
        )
        lost = study.get_trials(states=[optuna.trial.TrialState.RUNNING])  # Of a killed process.
        study.set_user_attr(_LOST, study.user_attrs.get(_LOST, 0) + len(lost))
        for trial in lost:
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(trial.params)
        return study

    def _run(
        self, study: "optuna.Study", fixed: Sequence[str], space: Mapping[str, "BaseDistribution"], number: int
    ) -> None:
        """Runs the next trials and tells the study their values."""
        from optuna.trial import TrialState

        new = []
        for trial in [study.ask(dict(space)) for _ in range(number)]:
            finished = study.get_trials(states=[TrialState.COMPLETE])
            same = next((of for of in finished if of.params == trial.params), None)
            if same is None:
                new.append(trial)
            else:  # The same run would have the same values.
                _tell(study, trial, same.values, same.user_attrs.get(_DIRECTORY))
        if not new:
            return
        batch = [[*fixed, *self._overrides(trial)] for trial in new]
        with sweepers.lost_workers():
            results = self._launcher.launch(batch, initial_job_idx=new[0].number)
        for trial, result in zip(new, results, strict=True):
            value = result.return_value if result.status == JobStatus.COMPLETED else None
            directory = value if isinstance(value, Path) else None
            _tell(study, trial, self._read_values(directory), None if directory is None else str(directory))
        sweepers.report_failures(self._job, results)
        for result in results:
            if result.status == JobStatus.FAILED:
                _ = result.return_value  # Raises the error.

    def _overrides(self, trial: "optuna.Trial") -> list[str]:
        """Returns the options of a trial, with the logger that may end it."""
        options = [f"{name}={value}" for name, value in trial.params.items()]
        if self.pruning:
            storage = _storage(Path(str(self._config.hydra.sweep.dir)))
            target = "distill.jobs.pruning.TrialPruner"
            options.append(f"+logger.pruner={{_target_:{target},storage:'{storage}',trial:{trial._trial_id}}}")
        return options

    def _read_values(self, directory: Path | None) -> list[float] | None:
        """Returns the objectives of a finished run; None for one that failed or has a value that is no number."""
        from distill.records.schema import UNREAD, read_record

        if directory is None:
            return None
        try:
            fetch(directory, skip=UNREAD)
            record = read_record(directory)
        except UserError:
            return None
        values = [read_objective(record, name) for name in self.objectives] if record["status"] == "finished" else []
        return [float(value) for value in values if value is not None and math.isfinite(value)] or None

    def _show(self, study: "optuna.Study") -> None:
        """Prints the best trials, with two objectives those that no other one dominates."""
        import optuna

        failed = len(study.get_trials(states=[optuna.trial.TrialState.FAIL])) - study.user_attrs[_LOST]
        if failed:
            print_notice(f"{failed} of {_count(study)} trials of the search failed or have no number to compare")
        pruned = len(study.get_trials(states=[optuna.trial.TrialState.PRUNED]))
        if pruned:
            print_line(f"Pruned   {pruned} of {_count(study)} trials")
        if not study.get_trials(states=[optuna.trial.TrialState.COMPLETE]):
            return
        best = {tuple(trial.params.items()): trial for trial in study.best_trials}.values()
        for trial in sorted(best, key=lambda trial: trial.values[0]):
            values = ", ".join(f"{name} {value:.5g}" for name, value in zip(self.objectives, trial.values, strict=True))
            options = " ".join(f"{name}={value}" for name, value in trial.params.items())
            print_line(f"Best     {values}: {options}  {trial.user_attrs.get(_DIRECTORY, '')}")


def _distribution(override: Override) -> "BaseDistribution":
    """Returns the distribution of an option."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value: Any = override.value()
    log = "log" in getattr(value, "tags", ())
    try:
        if override.is_interval_sweep():
            if "int" in value.tags:
                return IntDistribution(int(value.start), int(value.end), log=log)
            return FloatDistribution(float(value.start), float(value.end), log=log)
        if isinstance(value, RangeSweep):
            start, stop, step = value.start, value.stop, value.step
            if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
                return IntDistribution(start, stop - 1, log=log, step=step)
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    except ValueError as error:
        raise UserError(f"{override.input_line} cannot be searched over: {first_line(error)}") from error


def _storage(directory: Path) -> str:
    return f"sqlite:///{(directory / STUDY).absolute()}"


def _count(study: "optuna.Study") -> int:
    """Returns the number of trials that are finished, without those that a killed process left."""
    finished = [trial for trial in study.trials if trial.state.is_finished()]
    return len(finished) - int(study.user_attrs[_LOST])


def _tell(study: "optuna.Study", trial: "optuna.Trial", values: Sequence[float] | None, directory: str | None) -> None:
    from optuna.trial import TrialState

    if directory is not None:
        trial.set_user_attr(_DIRECTORY, directory)
    complete = values is not None and len(values) == len(study.directions)
    pruned = study.trials[trial.number].user_attrs.get(PRUNED, False)
    otherwise = TrialState.PRUNED if pruned else TrialState.FAIL
    study.tell(trial, values=values if complete else None, state=None if complete else otherwise)


def read_objective(record: JsonObject, name: str) -> float | None:
    """Returns the value of one of `OBJECTIVES` of a run; None where it has none.

    The metric on dev is the student's, over several seeds the mean, and negative where less is better. Latency and size
    are those of the recommended file.
    """
    from distill.edge.bundle_files import timed_name
    from distill.records.verdict import Results, recommend

    if name == "metric":
        metric = record["task"]["metric"]
        mean: float | None = (record.get("summary") or {}).get(metric, {}).get("mean")
        value: float | None = record["student"]["metrics"].get(metric) if mean is None else mean
        return -value if value is not None and record["task"].get("selects") == "min" else value
    if (chosen := recommend(record["export"])) is None:
        return None
    file = record["export"][chosen]
    if name == "bytes":
        return float(file["bytes"])
    timing = Results(record).timing("student", timed_name(chosen, file["file"]))
    return None if timing is None else float(timing["p50_ms"])


# Hydra creates plugins of these names alone, wherever their classes are.
_PREFIX = "hydra_plugins.distill."


def register_plugins() -> None:
    """Makes our plugins known to Hydra. Their YAMLs are in `conf/hydra`."""
    for plugin in (AutoSweeper, sweepers.GridSweeper, OptunaSweeper, sweepers.RayLauncher, sweepers.TableSweeper):
        Plugins.instance().class_name_to_class[_PREFIX + plugin.__name__] = plugin
