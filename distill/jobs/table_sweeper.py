"""Hydra's sweeper `table`: the runs of an experiment, each row on each task with each seed, of which none is run twice.

rows x tasks x seeds -> the run of a cell: the options of its step, its task, its row, the cut and the command
finetune: teacher.path={pretrain} -> the model of the row's run in the earlier step `pretrain`
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from distill.errors import Failure, UserError
from distill.jobs.grid_sweeper import GridSweeper, lost_workers, report_failures
from distill.jobs.quoting import quote_overrides
from distill.jobs.registry import find_job
from distill.records.collection import read_record
from distill.records.experiment import (
    MEAN,
    RUN,
    SEED,
    Place,
    fill_models,
    option_name,
    read_experiment,
    replace_options,
)
from distill.records.experiment_runs import Outcome, TableRuns, write_runs
from distill.records.record import RECORD
from distill.stages import stages
from distill.storage import mirror
from distill.storage.files import JsonObject, make_directory

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
                if not mirror.is_url(path) and not Path(path).expanduser().exists():
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
            self._results |= dict(zip(part, map(_read_result, results), strict=True))

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
        mirror.try_send(directory)


def _replace_part(content: dict[str, Any], override: Override, *, has_tasks: bool) -> bool:
    """Puts the values of an option of the command into the place of the seeds, the tasks or the rows of an experiment.

    Returns whether it has such a place. Otherwise it is an option of every run.

    Raises:
        UserError: for tasks that an experiment has itself, and a swept option that the rows do not differ in.
    """
    key, name = override.get_key_element(), content.get("name")
    options = {value.strip("'\""): f"{key}={value}" for value in _values(override)}
    if key == "task" and has_tasks:
        raise UserError(
            f"{override.input_line}: experiment {name} has tasks of its own, and ++experiment.cut.tasks="
            f"[{','.join(options)}] chooses from them"
        )
    if key == "seed" and (override.is_sweep_override() or SEED in str(content)):
        if SEED not in str(content):
            steps = content.get("steps") or {RUN: []}
            content["steps"] = {**steps, list(steps)[-1]: [*list(steps.values())[-1], f"seed={SEED}"]}
        content["seeds"] = [int(seed) if seed.isdecimal() else seed for seed in options]
    elif not override.is_sweep_override():
        return False
    elif key == "task":
        content["tasks"] = {task: [option] for task, option in options.items()}
    elif _is_option_of_rows(key, content.get("rows") or {}):
        content.update(_replace_rows(content, options))
    else:
        raise UserError(
            f"{override.input_line} is no option of the rows of experiment {name}: give it one value, or set "
            "experiment.rows"
        )
    return True


def _values(override: Override) -> list[str]:
    """Returns the values of an option of the command, swept or not."""
    if override.is_sweep_override():
        return list(override.sweep_string_iterator())
    return [str(override.get_value_element_as_str())]


def _is_option_of_rows(key: str, rows: Mapping[str, Any]) -> bool:
    """Returns whether each row has this option and no other one."""
    return bool(rows) and all(
        isinstance(options, list) and [option_name(option) for option in options] == [option_name(key)]
        for options in rows.values()
    )


def _select_tasks(published: Sequence[Mapping[str, Any]], tasks: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the published figures of the tasks of the command, because an experiment may have those of others."""
    return [
        {
            **block,
            "values": {
                row: {task: value for task, value in of.items() if task in (*tasks, MEAN)}
                if isinstance(of, dict)
                else of
                for row, of in (block.get("values") or {}).items()
            },
        }
        for block in published
    ]


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


def _read_result(result: JobReturn) -> Path | Failure:
    """Returns the directory of a run, or its error."""
    value: Path | Failure | None = result.return_value  # Raises the error of a run that was none of ours.
    return _NOT_TRAINED if value is None else value
