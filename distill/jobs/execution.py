"""Runs one job in a new run directory or in the one to resume, with objects created from the configuration."""

import copy
import hashlib
import importlib
import inspect
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from transformers import PreTrainedModel

from distill.chain.plan import Plan, Student
from distill.core import storage
from distill.core.console import print_line, print_notice
from distill.core.errors import OptionError, Pruned, UserError, config_directory, first_line
from distill.core.files import make_directory
from distill.core.options import show_value
from distill.data.splits import AUTO
from distill.edge import bundle_files
from distill.jobs.command_line import JOBS, find_job
from distill.jobs.preflight import check_targets, given_options, read_trust, targets
from distill.kinds.multitask import Tasks
from distill.losses import Objective
from distill.records.loggers import Tracking, tracked
from distill.records.run import CONFIG, RECORD, Run, create_run, open_run, read_config, write_config
from distill.records.schema import UNREAD, add_run, find_launched
from distill.records.verdict import ReportSettings
from distill.teachers.computation import Features
from distill.teachers.output_cache import OutputCache
from distill.teachers.source import (
    Adaptation,
    KnownSource,
    Labeller,
    SeveralWeights,
    TeacherSource,
    make_by_task,
    make_ensemble,
    read_start,
)
from distill.teachers.writing import TargetSettings


def instantiate(config: DictConfig) -> Any:
    """Returns the object that a node of the configuration describes."""
    return hydra.utils.instantiate(config, _convert_="all")


# Names that many directories have.
_COMMON = re.compile(r"student|teacher|model|encoder|best|final|checkpoint.*|\d+")


def name_classes(config: DictConfig) -> None:
    """Gives a task that names no classes those of `teacher.labels`, because data without labels does not name them.

    Labels that are no classes are left to the teacher, which refuses them.
    """
    labels = OmegaConf.select(config, "teacher.labels")  # None without a teacher, as in a run that is resumed.
    if not (OmegaConf.is_list(labels) or OmegaConf.is_dict(labels)) or len(set(map(str, labels))) < max(2, len(labels)):
        return
    if "labels" in config.task and config.task.labels is None:
        OmegaConf.update(config, "task.labels", list(labels), force_add=True)


def name_teacher(config: DictConfig) -> None:
    """Names a teacher after the directory of its weights if they are not those that its YAML is named after.

    `+teacher=bert_base teacher.path=models/my_encoder` is filed as `my_encoder`. A directory with a common name,
    such as `student`, has that of the one above it too. A `teacher.name` of the command stays, and so does the name
    where the directory is called like the model, as `bert-base-uncased`, or is its cache.
    """
    path, model = (OmegaConf.select(config, f"teacher.{name}") for name in ("path", "id"))
    if not path or not model or any(option.lstrip("+").startswith("teacher.name=") for option in given_options()):
        return
    directory, name = Path(str(path)), str(model).rpartition("/")[2]
    if directory.name.lower() != name.lower() and f"models--{str(model).replace('/', '--')}" not in directory.parts:
        parts = directory.parts[-2 if _COMMON.fullmatch(directory.name) else -1 :]
        config.teacher.name = re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-") or config.teacher.name


def cache_dir(config: DictConfig) -> Path:
    """Returns the directory that all runs share."""
    return storage.local_path(config.cache_dir)


def build_plan(config: DictConfig) -> Plan:
    """Returns everything that a distillation needs besides teacher and student."""
    groups = ("trainer", "objective", "export", "benchmark", "budget", "record")
    return Plan(
        **{name: instantiate(config[name]) for name in groups},
        has_default_objective=chosen_objective(config) is None,
        report=instantiate(config.report) if "report" in config else ReportSettings(),
        tasks=Tasks.of(instantiate(config.task)),
        cache_dir=cache_dir(config),
        seed=config.seed,
        seeds=config.seeds,
        baseline=config.baseline,
        resume=bool(config.resume),
        dry_run=config.dry_run,
        tracking=build_tracking(config),
        augment=instantiate(config.augment) if "_target_" in config.augment else None,
    )


def chosen_objective(config: DictConfig) -> Objective | None:
    """Returns the objective that the user chose; None for the default of `conf/config.yaml`, which is no choice.

    A command that resumes a run does not repeat its options, so that other content than the default's is a choice too.
    """
    defaults = OmegaConf.load(config_directory() / "config.yaml").defaults
    [name] = [entry["objective"] for entry in defaults if OmegaConf.is_dict(entry) and "objective" in entry]
    default = OmegaConf.load(config_directory() / "objective" / f"{name}.yaml")
    is_named = any(option.lstrip("+~").startswith(("objective=", "objective.")) for option in given_options())
    if not is_named and _to_dict(config.objective) == _to_dict(default):
        return None
    objective: Objective = instantiate(config.objective)
    return objective


def build_source(config: DictConfig) -> TeacherSource:
    """Returns the source of the teacher, with the built-in teacher as its substitute."""
    if not config.teacher.get("cache"):
        raise UserError("the teacher's YAML has no cache: add /cache@cache: default to its defaults list")
    cache = instantiate(config.teacher.cache)
    substitute = lambda: _source(config.substitute, cache)  # noqa: E731
    return _source(config.teacher, cache, substitute=substitute, adaptation=_adaptation(config))


def _adaptation(config: DictConfig) -> Adaptation | None:
    """Returns the adaptation of the teacher to a text, None for none.

    Raises:
        UserError: for words to add that no training would read.
    """
    if "_target_" not in config.adapt:
        is_text = getattr(hydra.utils.get_class(config.task._target_), "raw_text", False)
        if added_words(config) and not is_text:
            raise UserError(
                f"adapt.add_words={show_value(added_words(config))} would change nothing with adapt=none: set "
                "adapt=domain adapt.data_dir=DIR, or adapt=task"
            )
        return None
    found: Adaptation = instantiate(config.adapt)
    return found


def added_words(config: DictConfig) -> Any:
    """Returns the words that become pieces of the vocabulary of a language model."""
    words = config.adapt.add_words
    return list(words) if OmegaConf.is_list(words) else words


def build_single_source(config: DictConfig) -> TeacherSource:
    """Returns the source of the teacher of a job that trains it.

    Raises:
        UserError: for an ensemble, and for a teacher of class probabilities.
    """
    found = build_source(config)
    if found.labeller is not None:
        raise UserError(
            f"job={config.job.name} trains a model, and teacher {found.weights.name} has class "
            "probabilities without a training: take job=distill"
        )
    if found.others:
        raise UserError(f"job={config.job.name} trains one model: an ensemble is for job=distill")
    if found.targets is not None:
        raise UserError(
            f"{found.targets.option} has a teacher write the texts of a student, and job={config.job.name} trains one "
            "model: take job=distill, or leave it out"
        )
    return found


def _source(config: DictConfig, cache: OutputCache, **options: Any) -> TeacherSource:
    """Returns the source that a node describes; `options` are `substitute` and `adaptation` of `TeacherSource`."""
    values = _to_dict(config)
    settings = values.pop("finetune", False)
    values.pop("cache", None)
    accept_weak, max_length = values.pop("accept_weak", False), values.pop("max_length", None)
    name, sizes = values.pop("features", None), values.pop("bilstm", None)
    targets = _read_targets(values)
    start, contrastive = values.pop("start", None), None
    if values.pop("contrastive", None) is not None:
        contrastive = read_start(start, instantiate(config.contrastive))
    # Instantiated from the configuration, so that errors have the full names of the options.
    finetune = instantiate(config.finetune) if settings else None
    features: Features | None = None
    if name is not None:
        if sizes is None:
            raise UserError("the teacher's YAML has no bilstm: add /features@_here_: default to its defaults list")
        features = Features(name, instantiate(config.bilstm))
        finetune = features.bilstm.trainer
        options["substitute"] = None  # The substitute has no pre-trained encoder.
    weights = _create("teacher", values)
    make = partial(
        TeacherSource, finetune=finetune, cache=cache, accept_weak=accept_weak, max_length=max_length,
        features=features, contrastive=contrastive, targets=targets, **options,
    )  # fmt: skip
    if isinstance(weights, Labeller | KnownSource):
        return make(weights=weights.encoder, labeller=weights)
    if not isinstance(weights, SeveralWeights):
        return make(weights=weights)
    if isinstance(weights.members, Mapping):
        return make_by_task({task: make(weights=member) for task, member in weights.members.items()})
    return make_ensemble([make(weights=member) for member in weights.members], weights.weights)


def _read_targets(values: dict[Any, Any]) -> TargetSettings | None:
    """Takes the options of the texts that a teacher writes out of `values`; returns None if it writes none.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """
    beams, keep = values.pop("beams", None), values.pop("keep", 1)
    temperature, seed = values.pop("sampling_temperature", None), values.pop("sampling_seed", 0)
    settings = TargetSettings(
        beams=1 if beams is None else beams, keep=keep, sampling_temperature=temperature, sampling_seed=seed
    )
    if beams is not None and temperature is not None:
        raise UserError(
            f"got teacher.beams={beams} and teacher.sampling_temperature={temperature}, expected a search or a "
            "sampling: leave one out"
        )
    if temperature is None and seed != 0:
        raise OptionError("teacher.sampling_seed", show_value(seed), "0 without teacher.sampling_temperature")
    if beams is None and keep != 1:
        raise OptionError("teacher.keep", show_value(keep), "1 without teacher.beams, which it chooses from")
    return None if beams is None and temperature is None else settings


def build_student(config: DictConfig) -> Student:
    """Returns the function that creates the student, with its options."""
    values = _to_dict(config.student)
    name, projection = values.pop("name"), values.pop("projection", "auto")
    create = _create("student", values, is_function=True)
    return Student(name, cast("type[PreTrainedModel]", create), projection=projection)


def _create(option: str, values: Mapping[Any, Any], *, is_function: bool = False) -> Any:
    """Returns the object that a node without references describes, which may be of the user's own module.

    Raises:
        UserError: if there is no such object.
    """
    try:
        return hydra.utils.instantiate(values, _partial_=is_function, _convert_="all")
    except InstantiationException as error:
        reason = _explain_missing(str(values.get("_target_")))
        if reason is None:
            raise
        raise UserError(f"{option}._target_={values['_target_']}: {reason}") from error


def _explain_missing(target: str) -> str | None:
    """Returns the reason why Python does not find an object, None if it does."""
    module, _, name = target.rpartition(".")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            return f"{module} needs {error.name}, which is not installed"
        package, file = module.partition(".")[0], Path(f"{module.replace('.', '/')}.py")
        if not file.is_file():
            return f"there is no module {error.name}, expected {file} in {Path.cwd()}"
        other = sys.modules.get(package)
        if other is None:
            return f"Python does not search {Path.cwd()}, where {file} is: add it to PYTHONPATH"
        source = getattr(other, "__file__", None) or ", ".join(other.__path__)
        return f"Python finds another {package} first ({source}): add an empty {package}/__init__.py to {Path.cwd()}"
    except Exception as error:  # Whatever the user's module raises.
        return f"{module} cannot be imported ({type(error).__name__}: {first_line(error)})"
    return None if hasattr(found, name) else f"{getattr(found, '__file__', None) or module} has no {name}"


def build_tracking(config: DictConfig) -> Tracking:
    """Returns the loggers of a run; raises UserError for one that cannot be used."""
    sweep, nodes = _sweep_directory(), config.get("logger") or {}
    loggers = Tracking(
        settings=[instantiate(node) for node in nodes.values()], root=storage.local_path(config.output_dir),
        group=None if sweep is None else sweep.name, config=_to_dict(config),
    )  # fmt: skip
    loggers.check()
    return loggers


RUN_FILES = (RECORD, CONFIG)
_GROUPS = ("job", "task", "teacher", "substitute", "objective", "trainer", "export", "benchmark")
PRUNER = "pruner"  # The logger that a search by Optuna adds.
# Options that do not change the results of a run. Earlier versions had `paper` in place of `experiment`.
_NOT_IN_DIGEST = ("resume", "trust", "output_dir", "cache_dir", "dry_run", "experiment", "paper", "logger", "report")
_PATHS = (
    "task.data_dir", "adapt.data_dir", "teacher.path", "teacher.tokenizer", "teacher.encoder", "teacher.texts",
    "student.path", "student.start", "student.general.corpus", "cache_dir",
)  # fmt: skip
# Another value, such as an id of the Hub, is no path that can be missing.
_PATHS_OR_IDS = ("task.unlabelled", "task.bank", "augment.model", "student.tokenizer", "data", "teach.output")
_TEXTS = "export.vocabulary_texts"  # A list of paths.
# Mappings with options of several tasks, and the names of those that are paths; empty for the values themselves.
_PATHS_BY_TASK = {"task.tasks": ("data_dir", "unlabelled", "bank"), "teacher.paths": ("",), "task.transfer": ("",)}


def limit_threads() -> None:
    """Gives torch at most as many threads as the process may use cores, unless the environment names their number.

    Torch does not read the quota of a container, and would begin as many threads as its machine has cores.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), bundle_files.count_cores()))


def run_job(config: DictConfig, *, launch: str = "") -> Path | None:
    """Runs the configured job, records its status, and returns its directory, None for a dry run.

    Args:
        launch: identifies the run among all of its sweep, also when a launcher starts it again after a lost worker.
    """
    limit_threads()
    name_classes(config)
    name_teacher(config)
    for place in (config.cache_dir, config.output_dir):
        storage.check(storage.local_path(place))
    if config.dry_run:  # Checks everything and prints the plan, with a temporary run directory.
        if config.resume:
            raise UserError("dry_run=true plans a new run: leave out resume")
        with tempfile.TemporaryDirectory() as directory:
            job = _select_job(config)
            job(config, create_run(Path(directory), job=config.job.name, seed=config.seed))
        print_line("Nothing was trained (dry_run=true)")
        return None
    resumed = _find_begun(config, launch) or (_find_run(config) if config.resume else None)
    config, found = resumed or (config, None)
    job = _select_job(config)
    run = found or _create_run(config)
    _list_in_sweep(run, launch)
    if found is not None:
        pruned, _, reason = str(run.record["error"]).partition(": ")
        if pruned == Pruned.__name__ and config.resume is True:
            raise Pruned(reason)  # As before, with the same others.
        if run.record["status"] == "finished":
            storage.send(run.directory)
            print_line(f"{run.directory} is finished already: see {run.directory / 'report.html'}")
            return run.directory
        _check_paths(config, run)
        storage.fetch(run.directory)
        print_line(f"Resuming {storage.address(run.directory)}")
    record = instantiate(config.record)
    with tracked(run, resume_with=_describe_resume(run), texts=record.texts):
        job(config, run)
    if storage.is_copy(run.directory):
        print_line(f"Sent     {storage.address(run.directory)}")
    return run.directory


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
    if config.resume in (False, True):
        refuse_ignored(config, job, given_options(), on_text=is_text)
    return find_job(job).load()


def refuse_ignored(config: DictConfig, job: str, options: Sequence[str], *, on_text: bool) -> None:
    """Raises UserError for options of a run that its job would ignore."""
    prefixes = find_job(job).ignored(on_text=on_text)
    if on_text and config.export.enabled is True:
        prefixes = tuple(prefix for prefix in prefixes if prefix != "export")
    trains = {"trainer": "teacher.finetune.*", "seed": "teacher.finetune.*", "teacher.finetune": "trainer.*"}
    for option, instead in {"features": "teacher.bilstm.trainer.*", "start": "teacher.contrastive.*"}.items():
        if OmegaConf.select(config, f"teacher.{option}"):
            prefixes, trains["teacher.finetune"] = (*prefixes, "teacher.finetune"), instead
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


def _to_dict(config: Any) -> dict[str, Any]:
    """Returns the content of a configuration, without references."""
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def _with_absolute_paths(config: DictConfig) -> DictConfig:
    """Returns the configuration with absolute paths, so that a run can be resumed from another directory."""
    absolute = copy.deepcopy(config)
    for option in _path_options(config):
        value = OmegaConf.select(config, option)
        path = Path(str(value)).expanduser()
        is_path = value not in (None, AUTO) and not storage.is_url(value)
        if is_path and (path.exists() or option == "cache_dir"):
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
    return storage.local_path(config.output_dir) / str(config.task.name) / "-".join(names)


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
        return f"python -m distill resume={storage.address(run.directory)}"
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
    storage.fetch(directory, skip=UNREAD)
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
        directory = storage.local_path(config.resume)
        storage.fetch(directory, skip=UNREAD)
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
    storage.fetch_holders(_parent_directory(config), RECORD, skip=UNREAD)
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
        if option.endswith((".unlabelled", ".bank", *_PATHS_OR_IDS)) and not Path(str(value)).is_absolute():
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
