"""Hydra's sweepers `grid` and `table`, its launcher `ray`, and the report at the end of a sweep.

Hydra's launcher `ray`: every run of a sweep is a task of a Ray cluster. Ray starts a task again when its worker is
lost. The run then resumes from its checkpoint, because run.py finds the directory that the lost worker had begun.

Hydra's sweeper `table`: the runs of an experiment, each row on each task with each seed, of which none is run twice.
rows x tasks x seeds -> the run of a cell: the options of its step, its task, its row, the cut and the command finetune:
teacher.path={pretrain} -> the model of the row's run in the earlier step `pretrain`
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from distill.core import storage
from distill.core.console import print_notice, stages
from distill.core.errors import DistillError, Failure, Interrupted, OptionError, UserError, first_line
from distill.core.files import JsonObject, make_directory
from distill.jobs import command_line
from distill.jobs.command_line import find_job, quote_overrides
from distill.records.experiment import (
    MEAN,
    RUN,
    SEED,
    Outcome,
    Place,
    TableRuns,
    fill_models,
    option_name,
    read_experiment,
    replace_options,
    write_runs,
)
from distill.records.run import RECORD
from distill.records.schema import read_record
from distill.training.ray_cluster import check_ray, connect

_OPTION = "hydra.launcher"


class RayLauncher(Launcher):
    """Runs the jobs of a sweep as tasks of a Ray cluster.

    Args:
        address: `HOST:PORT` of a Ray head, or `auto`; None starts a cluster of this machine for the sweep.
        num_cpus: cores of a run, which are its threads.
        num_gpus: GPUs of a run.
        max_retries: how often a run is started again after its worker was lost.

    Raises:
        UserError: from `setup`, if Ray is not installed or an option is out of range.
    """

    def __init__(self, *, address: str | None, num_cpus: int, num_gpus: float, max_retries: int) -> None:
        self.address, self.num_cpus, self.num_gpus, self.max_retries = address, num_cpus, num_gpus, max_retries

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receives the sweep from Hydra."""
        check_ray("hydra/launcher=ray")
        if type(self.num_cpus) is not int or self.num_cpus < 1:
            raise OptionError(f"{_OPTION}.num_cpus", str(self.num_cpus), "a whole number of cores of at least 1")
        if type(self.num_gpus) not in (int, float) or self.num_gpus < 0:
            raise OptionError(f"{_OPTION}.num_gpus", str(self.num_gpus), "a number of GPUs of at least 0")
        if type(self.max_retries) is not int or self.max_retries < 0:
            raise OptionError(f"{_OPTION}.max_retries", str(self.max_retries), "a whole number of at least 0")
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs and returns their results in the same order.

        Raises:
            Interrupted: on Ctrl-C and SIGTERM, after the runs have written their checkpoints.
            UserError: if there is no cluster, or it is too small for a run.
        """
        import ray

        setup_globals()
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        with connect(self.address, option=f"{_OPTION}.address", label_lines=True):
            self.check_resources()
            shared = ray.put((self, Singleton.get_state(), os.getcwd()))
            remote = ray.remote(_run)
            resources = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "max_retries": self.max_retries}
            names = name_runs(job_overrides)
            tasks = [
                remote.options(name=name, **resources).remote(shared, list(overrides), initial_job_idx + number)
                for number, (name, overrides) in enumerate(zip(names, job_overrides, strict=True))
            ]
            _wait(tasks)
            return [_result(task, overrides) for task, overrides in zip(tasks, job_overrides, strict=True)]

    def check_resources(self) -> None:
        """Raises OptionError if no machine of the cluster can run a task; it would wait forever."""
        import ray

        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for option, name, number in (("num_cpus", "CPU", self.num_cpus), ("num_gpus", "GPU", self.num_gpus)):
            most = max((machine.get(name, 0) for machine in machines), default=0)
            if number > most:
                raise OptionError(
                    f"{_OPTION}.{option}", str(number), f"at most {most:g}, what the largest machine of the cluster has"
                )


def name_runs(job_overrides: Sequence[Sequence[str]]) -> list[str]:
    """Returns the options of each run that not all runs share; `run` for a run without any."""
    common = set.intersection(*(set(overrides) for overrides in job_overrides))
    return [" ".join(option for option in overrides if option not in common) or "run" for overrides in job_overrides]


def _wait(tasks: Sequence[Any]) -> None:
    """Waits until all tasks have ended. On Ctrl-C it stops them, and a second Ctrl-C does not wait for them."""
    import ray

    pending = list(tasks)
    try:
        while pending:
            _, pending = ray.wait(pending)
    except (KeyboardInterrupt, SystemExit) as error:  # Ray makes the second of SIGTERM.
        print(
            f"\nStopping {len(pending)} of {len(tasks)} runs with a checkpoint. A second Ctrl-C stops them at once.",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        for task in pending:
            ray.cancel(task)
        with contextlib.suppress(KeyboardInterrupt):
            ray.wait(pending, num_returns=len(pending))
        raise Interrupted(
            f"interrupted: {len(tasks) - len(pending)} of {len(tasks)} runs ended before; the same command with "
            "resume=true goes on"
        ) from error


def _result(task: Any, overrides: Sequence[str]) -> JobReturn:
    """Returns the result of a task, a Failure if all of its workers were lost."""
    import ray

    try:
        result: JobReturn = ray.get(task)
    except ray.exceptions.RayError as error:
        result = JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED)
        result.return_value = Failure(1, f"the worker of a run was lost ({first_line(error)}): run the command again "
                                         "with resume=true")  # fmt: skip
    return result


def _run(sweep: tuple[RayLauncher, dict[Any, Any], str], overrides: list[str], number: int) -> JobReturn:
    """Runs one job in a worker of Ray, with the singletons of Hydra and the directory of the command."""
    launcher, singletons, directory = sweep
    os.chdir(directory)  # Paths of the command are relative to it.
    package = str(Path(__file__).resolve().parents[1])
    sys.path[:] = [path for path in sys.path if path != package]  # Ray adds the directory of `python -m distill`.
    os.environ["OMP_NUM_THREADS"] = str(launcher.num_cpus)
    import torch

    torch.set_num_threads(launcher.num_cpus)
    setup_globals()
    Singleton.set_state(singletons)
    config = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, overrides)
    with open_dict(config):
        config.hydra.job.id = config.hydra.job.num = number
    return run_job(
        hydra_context=launcher.hydra_context, task_function=launcher.task_function, config=config,
        job_dir_key="hydra.sweep.dir", job_subdir_key="hydra.sweep.subdir",
    )  # fmt: skip


STUDY_NAME = "distill"  # In the database of a search.
PRUNED = "pruned"  # Attribute of a trial that ended itself.
_GOES_ON = "the same command with resume=true goes on"


class FailureCollector(Protocol):
    """The runner of a sweep, which reports the errors that launchers bring back from other processes."""

    def collect(self, failures: Iterable[tuple[str, Failure]]) -> None:
        """Reports the errors, each with the options of its run."""


class GridSweeper(BasicSweeper):
    """Hydra's basic sweeper, every combination of the values, which reports the runs that failed in other processes."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receives the sweep from Hydra."""
        check_directory(config)
        command_line.prepare_slurm(config)
        self._job = cast(FailureCollector, task_function)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def _parse_config(self) -> list[str]:
        """Returns the options that a YAML file sweeps, with quotes around texts as on the command line."""
        return quote_overrides(super()._parse_config(), ())

    def sweep(self, arguments: list[str]) -> Any:
        """Runs all combinations and returns their results in batches.

        Raises:
            Interrupted: on Ctrl-C while runs of other processes were waited for.
            DistillError: if a launcher lost a worker and does not start its run again.
        """
        with lost_workers():
            batches = super().sweep(arguments)
        report_failures(self._job, [result for batch in batches for result in batch])
        return batches

    def get_job_batch(self) -> Sequence[Sequence[str]]:
        """Returns the options of the next runs; the first time, announces how many runs there are."""
        assert self.config is not None
        assert self.overrides is not None
        if self.batch_index == 0 and not self.config.dry_run:  # A plan has the time of each run.
            stages.expect_runs(sum(map(len, self.overrides)))
        return super().get_job_batch()


def check_directory(config: DictConfig) -> None:
    """Raises UserError for a URL of a YAML file, which Hydra would take for a path."""
    if storage.is_url(config.hydra.sweep.dir):
        raise UserError(
            f"hydra.sweep.dir={config.hydra.sweep.dir} of a YAML file is no path: give the URL on the command line"
        )


@contextmanager
def lost_workers() -> Iterator[None]:
    """Raises what happens to a launcher that waits for runs in other processes as an error of one line.

    Raises:
        Interrupted: on Ctrl-C.
        DistillError: if the launcher lost a worker and does not start its run again.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted while runs were going on; {_GOES_ON}") from error
    except _errors_of_lost_workers() as error:
        raise DistillError(f"a launcher lost the worker of a run ({first_line(error)}); {_GOES_ON}") from error


def report_failures(job: FailureCollector, results: Sequence[JobReturn]) -> None:
    """Reports the runs that failed in other processes, each by the options that not all runs share."""
    names = name_runs([result.overrides or [] for result in results])
    values = [(name, result.return_value) for name, result in zip(names, results, strict=True)]
    job.collect((name, value) for name, value in values if isinstance(value, Failure))


def _errors_of_lost_workers() -> tuple[type[Exception], ...]:
    """Returns the errors that joblib and submitit raise for a worker that died."""
    if "submitit" not in sys.modules:
        return (BrokenProcessPool,)
    from submitit.core.utils import FailedJobError, UncompletedJobError

    return BrokenProcessPool, FailedJobError, UncompletedJobError


Overrides = tuple[str, ...]
_DATA = "task.data_dir"
_NOT_TRAINED = Failure(0, "nothing was trained (dry_run=true)")


class TableSweeper(GridSweeper):
    """Runs what is missing of an experiment, and writes the runs of its cells into the directory of the sweep.

    A cell whose data are missing, or whose run fails, says so, and the others are run.

    Raises:
        UserError: from `setup`, for an experiment whose parts do not fit together.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Receives the sweep from Hydra."""
        if "experiment" not in config:
            raise UserError("hydra/sweeper=table has no experiment: choose one with +experiment=NAME")
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        given = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
        assert isinstance(given, list)
        self._content, self._given = self._read([str(option) for option in given])
        self._experiment = read_experiment(self._content)
        self._results: dict[Overrides, Path | Failure] = {}
        self._number = 0

    def sweep(self, arguments: list[str]) -> None:
        """Runs the steps one after the other, each for all cells at once.

        Raises:
            UserError: for options of a row or a task that cannot be.
            Interrupted: on Ctrl-C while runs of other processes were waited for.
            DistillError: if a launcher lost a worker and does not start its run again.
        """
        assert self.config is not None
        directory = Path(str(self.config.hydra.sweep.dir))
        make_directory(directory)
        OmegaConf.save(self.config, directory / "multirun.yaml")
        self._check_options()
        models: dict[Place, dict[str, Path | Failure]] = {place: {} for place in self._experiment.places()}
        missing = self._find_missing_data()
        if not self.config.dry_run:  # A plan has the time of each run.
            stages.expect_runs(sum(len(self._experiment.needed(place)) for place in models))  # Some places share runs.
        for step in self._experiment.steps:
            chosen: dict[Place, Overrides] = {}
            for place in models:
                if place.column in missing or step not in self._experiment.needed(place):
                    continue
                if not any(isinstance(of, Failure) for of in models[place].values()):
                    chosen[place] = self._options(step, place, models[place])
            self._launch(list(dict.fromkeys(chosen.values())))
            for place, overrides in chosen.items():
                models[place][step] = self._results[overrides]
        if not self.config.dry_run:
            self._write(directory, models, missing)

    def _read(self, given: Sequence[str]) -> tuple[JsonObject, list[str]]:
        """Returns the `experiment` of the configuration, and the options of the command for every run.

        Raises:
            UserError: for an experiment without its data, and an option that has no place in it.
        """
        assert self.config is not None
        assert self.hydra_context is not None
        if OmegaConf.is_missing(self.config.experiment, "data"):
            name = self.config.experiment.get("name")
            raise UserError(f"experiment {name} has no data: add experiment.data=DIR, the directory of its data sets")
        content: Any = OmegaConf.to_container(self.config.experiment, resolve=True)
        has_tasks, fixed = content.get("tasks") is not None, []
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        for override in parser.parse_overrides([*given]):
            if not _replace_part(content, override, has_tasks=has_tasks):
                fixed.append(str(override.input_line))
        if content.get("tasks") is None:
            content["tasks"] = {str(self.config.task.name): []}
        if not has_tasks:
            content["published"] = _select_tasks(content.get("published") or [], content["tasks"])
        return content, fixed

    def _options(self, step: str, place: Place, models: Mapping[str, Path | Failure]) -> Overrides:
        """Returns the overrides of the run of a cell in a step."""
        known = {name: str(_find_model(of)) for name, of in models.items() if isinstance(of, Path)}
        given = self._experiment.options(step, place)
        filled = fill_models(given, known)
        # The command replaces other options than the models of earlier steps.
        inputs = [option for option, before in zip(filled, given, strict=True) if option != before]
        resume = [] if self.config is None or self.config.dry_run else ["resume=true"]
        return tuple(quote_overrides(replace_options([*resume, *filled, *self._given, *inputs]), ()))

    def _check_options(self) -> None:
        """Composes the configuration of a run of each row and of each task, so that no typo is found hours later."""
        first: dict[tuple[str, str], Overrides] = {}
        for place in self._experiment.places():
            for step in self._experiment.needed(place):
                overrides = self._options(step, place, {name: Path(name) for name in self._experiment.steps})
                for name in (place.row, place.column):
                    first.setdefault((step, name), overrides)
        self.validate_batch_is_legal([list(overrides) for overrides in dict.fromkeys(first.values())])

    def _find_missing_data(self) -> dict[str, str]:
        """Returns the columns whose data are not there, each with its reason, which is printed."""
        found = {}
        for name, column in self._experiment.columns.items():
            paths = [option.partition("=")[2] for option in column.options if option.startswith(f"{_DATA}=")]
            for path in paths:
                if not storage.is_url(path) and not Path(path).expanduser().exists():
                    found[name] = f"{_DATA}={path} does not exist"
        self._job.collect(
            (f"task {name} of experiment {self._experiment.name}, whose cells say that it is missing", Failure(2, why))
            for name, why in found.items()
        )
        return found

    def _launch(self, batch: Sequence[Overrides]) -> None:
        """Runs those of a batch that have no result yet."""
        assert self.launcher is not None
        new = [overrides for overrides in batch if overrides not in self._results]
        size = self.max_batch_size or len(new) or 1
        for start in range(0, len(new), size):
            part = new[start : start + size]
            with lost_workers():
                results = self.launcher.launch([list(of) for of in part], initial_job_idx=self._number)
            self._number += len(part)
            report_failures(self._job, results)
            for overrides, result in zip(part, results, strict=True):
                value: Path | Failure | None = result.return_value  # Raises the error of a run that was none of ours.
                self._results[overrides] = _NOT_TRAINED if value is None else value

    def _write(
        self, directory: Path, models: Mapping[Place, Mapping[str, Path | Failure]], missing: Mapping[str, str]
    ) -> None:
        """Writes the run of each cell, or the reason why it has none."""
        outcomes = []
        for place, of in models.items():
            result = of.get(self._experiment.step_of(place))
            failure = next((each for each in of.values() if isinstance(each, Failure)), None)
            error = missing.get(place.column, None if failure is None else failure.message)
            outcomes.append(Outcome(place, result if isinstance(result, Path) else None, error))
        write_runs(directory, TableRuns(self._content, outcomes, ["python", "-m", "distill", *sys.argv[1:]]))
        storage.try_send(directory)


def _replace_part(content: dict[str, Any], override: Override, *, has_tasks: bool) -> bool:
    """Puts the values of an option of the command into the place of the seeds, the tasks or the rows of an experiment.

    Returns whether it has such a place. Otherwise it is an option of every run.

    Raises:
        UserError: for tasks that an experiment has itself, and a swept option that the rows do not differ in.
    """
    key, name = override.get_key_element(), content.get("name")
    is_swept = override.is_sweep_override()
    values = override.sweep_string_iterator() if is_swept else [str(override.get_value_element_as_str())]
    options = {value.strip("'\""): f"{key}={value}" for value in values}
    if key == "task" and has_tasks:
        raise UserError(
            f"{override.input_line}: experiment {name} has tasks of its own, and ++experiment.cut.tasks="
            f"[{','.join(options)}] chooses from them"
        )
    rows = content.get("rows") or {}
    if key == "seed" and (is_swept or SEED in str(content)):
        if SEED not in str(content):
            steps = content.get("steps") or {RUN: []}
            content["steps"] = {**steps, list(steps)[-1]: [*list(steps.values())[-1], f"seed={SEED}"]}
        content["seeds"] = [int(seed) if seed.isdecimal() else seed for seed in options]
    elif not is_swept:
        return False
    elif key == "task":
        content["tasks"] = {task: [option] for task, option in options.items()}
    elif rows and all(  # Each row has this option and no other one.
        isinstance(given, list) and [*map(option_name, given)] == [option_name(key)] for given in rows.values()
    ):
        content.update(_replace_rows(content, options))
    else:
        raise UserError(
            f"{override.input_line} is no option of the rows of experiment {name}: give it one value, or set "
            "experiment.rows"
        )
    return True


def _select_tasks(published: Sequence[Mapping[str, Any]], tasks: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the published figures of the tasks of the command, because an experiment may have those of others."""
    blocks = list[Mapping[str, Any]]()
    for block in published:
        values = dict(block.get("values") or {})
        for row, of in values.items():
            if isinstance(of, dict):
                values[row] = {task: value for task, value in of.items() if task in (*tasks, MEAN)}
        blocks.append({**block, "values": values})
    return blocks


def _replace_rows(content: JsonObject, rows: Mapping[str, str]) -> JsonObject:
    """Returns the rows of a swept option of the command, with the published figures of those that are there."""
    published = []
    for block in content.get("published") or []:
        values = {row: of for row, of in (block.get("values") or {}).items() if row in rows}
        if values and block.get("reference") in (None, *rows):
            published.append({**block, "values": values})
    return {
        "rows": {row: [option] for row, option in rows.items()}, "published": published,
        "reference": content.get("reference") if content.get("reference") in rows else None,
    }  # fmt: skip


def _find_model(run: Path) -> Path:
    """Returns the directory of the model that a run has trained."""
    if not (run / RECORD).is_file():
        return run
    return run.absolute() / str(find_job(read_record(run)["job"]).model)


class SweepReport(Callback):
    """Writes the report into the sweep's directory. Hydra creates it for every command, so it imports no report."""

    def on_multirun_end(self, config: DictConfig, **kwargs: object) -> None:
        """Writes the report of the runs of this sweep."""
        from distill.jobs.publishing_jobs import read_settings, write

        if config.get("dry_run"):
            return  # No run has written anything.
        directory = Path(str(config.hydra.sweep.dir))
        try:
            write(directory, directory, read_settings(config))
        except UserError as error:  # Of a sweep whose every run was refused.
            print_notice(f"there is no report: {error}")
