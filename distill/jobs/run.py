"""Runs one job in a new run directory or in the one to resume."""

import copy
import hashlib
import inspect
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from distill.console import print_line, print_notice
from distill.data.auto_text import AUTO
from distill.edge import cores
from distill.errors import UserError, first_line
from distill.jobs import build
from distill.jobs.registry import JOBS, find_job
from distill.jobs.trust import check_targets, read_trust, targets
from distill.records.collection import UNREAD, add_run, find_launched
from distill.records.record import RECORD, Run, create_run, open_run
from distill.records.saved_config import CONFIG, read_config, write_config
from distill.records.tracking import tracked
from distill.storage import mirror
from distill.storage.files import make_directory

RUN_FILES = (RECORD, CONFIG)
_GROUPS = ("job", "task", "teacher", "substitute", "objective", "trainer", "export", "benchmark")
PRUNER = "pruner"  # The logger that a search by Optuna adds.
# Options that do not change the results of a run. Earlier versions had `paper` in place of `experiment`.
_NOT_IN_DIGEST = ("resume", "trust", "output_dir", "cache_dir", "dry_run", "experiment", "paper", "logger", "report")
_PATHS = (
    "task.data_dir", "adapt.data_dir", "teacher.path", "teacher.tokenizer", "teacher.encoder", "teacher.texts",
    "student.path", "student.general.corpus", "cache_dir",
)  # fmt: skip
_PATHS_OR_IDS = ("task.unlabelled", "task.bank", "augment.model")  # An id of the Hub is no path that can be missing.
_TEXTS = "export.vocabulary_texts"  # A list of paths.
# Mappings with options of several tasks, and the names of those that are paths; empty for the values themselves.
_PATHS_BY_TASK = {"task.tasks": ("data_dir", "unlabelled", "bank"), "teacher.paths": ("",), "task.transfer": ("",)}


def limit_threads() -> None:
    """Gives torch at most as many threads as the process may use cores, unless the environment names their number.

    Torch does not read the quota of a container, and would begin as many threads as its machine has cores.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores.count_cores()))


def run_job(config: DictConfig, *, launch: str = "") -> Path | None:
    """Runs the configured job, records its status, and returns its directory, None for a dry run.

    Args:
        launch: identifies the run among all of its sweep, also when a launcher starts it again after a lost worker.
    """
    limit_threads()
    build.name_classes(config)
    build.name_teacher(config)
    for place in (config.cache_dir, config.output_dir):
        mirror.check(mirror.local_path(place))
    if config.dry_run:
        _dry_run(config)
        return None
    resumed = _find_begun(config, launch) or (_find_run(config) if config.resume else None)
    if resumed is not None:
        config, run = resumed
        job = _select_job(config)
        _list_in_sweep(run, launch)
        if run.record["status"] == "finished":
            mirror.send(run.directory)
            print_line(f"{run.directory} is finished already: see {run.directory / 'report.html'}")
            return run.directory
        _check_paths(config, run)
        mirror.fetch(run.directory)
        print_line(f"Resuming {mirror.address(run.directory)}")
    else:
        job = _select_job(config)
        run = _create_run(config)
        _list_in_sweep(run, launch)
    record = build.instantiate(config.record)
    with tracked(run, resume_with=_describe_resume(run), texts=record.texts):
        job(config, run)
    if mirror.is_copy(run.directory):
        print_line(f"Sent     {mirror.address(run.directory)}")
    return run.directory


def _dry_run(config: DictConfig) -> None:
    """Checks everything and prints the plan, with a temporary run directory."""
    if config.resume:
        raise UserError("dry_run=true plans a new run: leave out resume")
    with tempfile.TemporaryDirectory() as directory:
        job = _select_job(config)
        job(config, create_run(Path(directory), job=config.job.name, seed=config.seed))
    print_line("Nothing was trained (dry_run=true)")


def _select_job(config: DictConfig) -> Callable[[DictConfig, Run], None]:
    """Returns the function of the configured job.

    Raises:
        UserError: if the job is not for the task, or would ignore an option.
    """
    task = hydra.utils.get_class(config.task._target_)
    job = str(config.job.name)
    is_text = getattr(task, "raw_text", False)
    if job == "pretrain" and not is_text:
        raise UserError(f"job={job} is not for task={config.task.name}: take a task over text, task=mlm")
    if "tasks" in config.task and "tasks" not in inspect.signature(task).parameters:
        raise UserError(
            f"task.tasks is for task=multi and task=text_labels, and this run has task={config.task.name}: leave it out"
        )
    _check_options(config, job, on_text=is_text)
    return find_job(job).load()


def _check_options(config: DictConfig, job: str, *, on_text: bool) -> None:
    """Raises UserError for options on the command line that the job would ignore."""
    if HydraConfig.initialized() and config.resume in (False, True):
        refuse_ignored(config, job, HydraConfig.get().overrides.task, on_text=on_text)


def refuse_ignored(config: DictConfig, job: str, options: Sequence[str], *, on_text: bool) -> None:
    """Raises UserError for options of a run that its job would ignore."""
    prefixes = find_job(job).ignored(on_text=on_text)
    if on_text and config.export.enabled is True:
        prefixes = tuple(prefix for prefix in prefixes if prefix != "export")
    trains = {"trainer": "teacher.finetune.*", "seed": "teacher.finetune.*", "teacher.finetune": "trainer.*"}
    if OmegaConf.select(config, "teacher.features"):
        prefixes = (*prefixes, "teacher.finetune")
        trains["teacher.finetune"] = "teacher.bilstm.trainer.*"
    if OmegaConf.select(config, "teacher.start"):
        prefixes = (*prefixes, "teacher.finetune")
        trains["teacher.finetune"] = "teacher.contrastive.*"
    names = {option: option.lstrip("+~").partition("=")[0] for option in options}
    ignored = [
        option
        for option, name in names.items()
        if any(name == prefix or name.startswith((f"{prefix}.", f"{prefix}@")) for prefix in prefixes)
    ]
    if not ignored:
        return
    hint = next((there for prefix, there in trains.items() if names[ignored[0]].startswith(prefix)), None)
    raise UserError(
        f"{' and '.join(ignored)} would change nothing in job={job} task={config.task.name}: leave it out"
        + (f", {hint} is what trains here" if hint else "")
    )


def digest(config: DictConfig) -> str:
    """Returns the SHA-256 of the options that can change the results of a run."""
    content = {key: value for key, value in _to_dict(_with_absolute_paths(config)).items() if key not in _NOT_IN_DIGEST}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _to_dict(config: DictConfig) -> dict[str, object]:
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def _with_absolute_paths(config: DictConfig) -> DictConfig:
    """Returns the configuration with absolute paths, so that a run can be resumed from another directory."""
    absolute = copy.deepcopy(config)
    for option in _path_options(config):
        value = OmegaConf.select(config, option)
        path = Path(str(value)).expanduser()
        if (
            value is not None
            and value != AUTO
            and not mirror.is_url(value)
            and (path.exists() or option == "cache_dir")
        ):
            OmegaConf.update(absolute, option, str(path.absolute()))
    return absolute


def _path_options(config: DictConfig) -> list[str]:
    """Returns the options that may be paths."""
    options = [*_PATHS, *_PATHS_OR_IDS]
    for group, names in _PATHS_BY_TASK.items():
        tasks = OmegaConf.select(config, group)
        if OmegaConf.is_dict(tasks):
            options += [".".join(filter(None, (group, str(task), name))) for task in tasks for name in names]
    texts = OmegaConf.select(config, _TEXTS) or ()
    return [*options, *(f"{_TEXTS}[{place}]" for place in range(len(texts)))]


def _parent_directory(config: DictConfig) -> Path:
    """Returns the directory of the runs of this task, teacher and student."""
    names = [config.teacher.name]
    if config.job.name == "distill":
        names.append(config.student.name)
    return mirror.local_path(config.output_dir) / str(config.task.name) / "-".join(names)


def _create_run(config: DictConfig) -> Run:
    run = create_run(
        _parent_directory(config), job=config.job.name, command=["python", "-m", "distill", *sys.argv[1:]],
        config_sha256=digest(config), seed=config.seed,
    )  # fmt: skip
    saved = _with_absolute_paths(config)
    OmegaConf.set_struct(saved, False)
    for name in ("trust", "experiment"):  # Of the command alone, as the pruner of a search is.
        saved.pop(name, None)
    (saved.get("logger") or {}).pop(PRUNER, None)
    write_config(run.directory, saved)
    return run


def _sweep_directory() -> Path | None:
    """Returns the directory of the sweep that this run belongs to."""
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        return Path(str(HydraConfig.get().sweep.dir))
    return None


def _describe_resume(run: Run) -> str:
    """Returns the command that goes on with a run, and with all of its sweep."""
    if _sweep_directory() is None:
        return f"python -m distill resume={mirror.address(run.directory)}"
    options = [option for option in sys.argv[1:] if not option.startswith("resume=")]
    return shlex.join(["python", "-m", "distill", *options, "resume=true"])


def _list_in_sweep(run: Run, launch: str) -> None:
    """Adds the run to the list of its sweep, which job=report reads."""
    sweep = _sweep_directory()
    if sweep is not None:
        make_directory(sweep)
        add_run(sweep, run.directory, launch)


def _find_begun(config: DictConfig, launch: str) -> tuple[DictConfig, Run] | None:
    """Returns the configuration and the run of a worker that was lost, if the launcher starts its run again.

    The configuration is that of the command, which created the run.
    """
    sweep = _sweep_directory()
    directory = find_launched(sweep, launch) if sweep is not None else None
    if directory is None:
        return None
    mirror.fetch(directory, skip=UNREAD)
    if not (directory / RECORD).is_file():
        return None
    run_config = copy.deepcopy(config)
    run_config.resume = True
    return run_config, open_run(directory, needs=RUN_FILES)


def _open_to_resume(directory: Path, config: DictConfig) -> tuple[DictConfig, Run]:
    """Returns the configuration and the run of a directory.

    Raises:
        UserError: if it is no run, or would create objects that the command does not trust.
    """
    run = open_run(directory, needs=RUN_FILES)
    run_config = _load_config(run)
    check_targets(run_config, source=directory / CONFIG, trust=read_trust(config), own=targets(config))
    run_config.resume = True
    return run_config, run


def read_run(directory: Path, config: DictConfig) -> tuple[DictConfig, Run]:
    """Returns the configuration and the run of a directory, for a job that looks at it.

    Raises:
        UserError: if it is no run, would create objects that the command does not trust, or its data are gone.
    """
    run_config, run = _open_to_resume(directory, config)
    _check_paths(run_config, run)
    return run_config, run


def _find_run(config: DictConfig) -> tuple[DictConfig, Run] | None:
    """Returns the configuration and the run to resume; None for a run of a sweep that was not started yet."""
    if config.resume is not True:
        directory = mirror.local_path(config.resume)
        mirror.fetch(directory, skip=UNREAD)
        return _open_to_resume(directory, config)
    runs = _runs_of(config)
    unfinished = [run for run in runs if run.record["status"] != "finished"]
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        finished = [run for run in runs if run.record["status"] == "finished"]
        chosen = (finished or unfinished)[-1:]
        return (config, chosen[0]) if chosen else None
    if not unfinished:
        raise UserError(
            f"{_parent_directory(config)} has no unfinished run of this configuration: leave out resume=true"
        )
    return config, unfinished[-1]


def _runs_of(config: DictConfig) -> list[Run]:
    """Returns the runs of this configuration, oldest first."""
    expected, runs = digest(config), []
    mirror.fetch_holders(_parent_directory(config), RECORD, skip=UNREAD)
    for path in sorted(_parent_directory(config).glob("*/run.json")):
        try:
            run = open_run(path.parent, needs=RUN_FILES)
            if run.record.get("config_sha256") == expected and digest(_load_config(run)) == expected:
                runs.append(run)
        except UserError as error:
            print_notice(f"{error}; it is left alone")
    return runs


def _check_paths(run_config: DictConfig, run: Run) -> None:
    """Raises UserError for data or models that the run was started with and that are gone."""
    for option in _path_options(run_config):
        value = OmegaConf.select(run_config, option)
        if option == "cache_dir" or value is None or Path(str(value)).expanduser().exists():
            continue
        if option.endswith((".unlabelled", ".bank", "augment.model")) and not Path(str(value)).is_absolute():
            continue
        typed = next((given for given in run.record["command"] if given.startswith(f"{option}=")), option)
        raise UserError(
            f"{run.directory} was started with {typed}, which is {Path(str(value)).expanduser().absolute()} and does "
            "not exist: put it back, or start a new run"
        )


def _load_config(run: Run) -> DictConfig:
    """Returns the configuration that a run was started with.

    Raises:
        UserError: for a file that is damaged or was edited.
    """
    path = run.directory / CONFIG
    config = read_config(path)
    unusable = [name for name in _GROUPS if not OmegaConf.is_dict(config.get(name))]
    if unusable or config.job.get("name") not in [name for name, job in JOBS.items() if job.creates_run]:
        raise UserError(f"{path} is damaged: {unusable[0] if unusable else 'job'} is not that of a run")
    try:
        known = run.record.get("config_sha256") == digest(config)
    except (OSError, ValueError, OmegaConfBaseException) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    if not known:
        raise UserError(f"{path} is damaged or was edited after the run began: start a new run with other options")
    return config
