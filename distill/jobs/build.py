"""Creates the objects of a job from the configuration."""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedModel

from distill.chain.plan import Plan, Student
from distill.errors import OptionError, UserError, first_line
from distill.installation import config_directory
from distill.losses import Objective
from distill.options import show_value
from distill.records.loggers import Tracking
from distill.records.settings import ReportSettings
from distill.storage import mirror
from distill.tasks.multi import Tasks
from distill.teaching.adaptation import Adaptation
from distill.teaching.contrastive import read_start
from distill.teaching.features import Features
from distill.teaching.output_cache import OutputCache
from distill.teaching.source import Labeller, SeveralWeights, TeacherSource, make_by_task, make_ensemble
from distill.teaching.targets import TargetSettings


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
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    if not path or not model or any(option.lstrip("+").startswith("teacher.name=") for option in given):
        return
    directory, name = Path(str(path)), str(model).rpartition("/")[2]
    if directory.name.lower() != name.lower() and f"models--{str(model).replace('/', '--')}" not in directory.parts:
        parts = directory.parts[-2 if _COMMON.fullmatch(directory.name) else -1 :]
        config.teacher.name = re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-") or config.teacher.name


def cache_dir(config: DictConfig) -> Path:
    """Returns the directory that all runs share."""
    return mirror.local_path(config.cache_dir)


def plan(config: DictConfig) -> Plan:
    """Returns everything that a distillation needs besides teacher and student."""
    return Plan(
        trainer=instantiate(config.trainer),
        objective=instantiate(config.objective),
        export=instantiate(config.export),
        benchmark=instantiate(config.benchmark),
        budget=instantiate(config.budget),
        record=instantiate(config.record),
        report=instantiate(config.report) if "report" in config else ReportSettings(),
        tasks=Tasks.of(instantiate(config.task)),
        cache_dir=cache_dir(config),
        seed=config.seed,
        seeds=config.seeds,
        baseline=config.baseline,
        resume=bool(config.resume),
        dry_run=config.dry_run,
        tracking=tracking(config),
        augment=instantiate(config.augment) if "_target_" in config.augment else None,
    )


def chosen_objective(config: DictConfig) -> Objective | None:
    """Returns the objective that the user chose; None for the default of `conf/config.yaml`, which is no choice.

    A command that resumes a run does not repeat its options, so that other content than the default's is a choice too.
    """
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    is_named = any(option.lstrip("+~").startswith(("objective=", "objective.")) for option in given)
    if not is_named and OmegaConf.to_container(config.objective, resolve=True) == _default("objective"):
        return None
    objective: Objective = instantiate(config.objective)
    return objective


def _default(group: str) -> Any:
    """Returns the content of the YAML that `conf/config.yaml` takes of a group."""
    defaults = OmegaConf.load(config_directory() / "config.yaml").defaults
    [name] = [entry[group] for entry in defaults if OmegaConf.is_dict(entry) and group in entry]
    return OmegaConf.to_container(OmegaConf.load(config_directory() / group / f"{name}.yaml"), resolve=True)


def source(config: DictConfig) -> TeacherSource:
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


def single_source(config: DictConfig) -> TeacherSource:
    """Returns the source of the teacher of a job that trains it.

    Raises:
        UserError: for an ensemble, and for a teacher of class probabilities.
    """
    found = source(config)
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


def _source(
    config: DictConfig,
    cache: OutputCache,
    *,
    substitute: Callable[[], TeacherSource] | None = None,
    adaptation: Adaptation | None = None,
) -> TeacherSource:
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    settings = values.pop("finetune", False)
    values.pop("cache", None)
    accept_weak = values.pop("accept_weak", False)
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
        finetune, substitute = features.bilstm.trainer, None  # The substitute has no pre-trained encoder.
    weights = _create("teacher", values)
    make = partial(
        TeacherSource, finetune=finetune, cache=cache, substitute=substitute, accept_weak=accept_weak,
        features=features, adaptation=adaptation, contrastive=contrastive, targets=targets,
    )  # fmt: skip
    if isinstance(weights, Labeller):
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
    try:
        settings = TargetSettings(
            beams=1 if beams is None else beams, keep=keep, sampling_temperature=temperature, sampling_seed=seed
        )
    except OptionError as error:
        raise error.with_prefix("teacher") from error
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


def student(config: DictConfig) -> Student:
    """Returns the function that creates the student, with its options."""
    values = OmegaConf.to_container(config.student, resolve=True)
    assert isinstance(values, dict)
    name = values.pop("name")
    create = _create("student", values, is_function=True)
    return Student(name, cast("type[PreTrainedModel]", create))


def _create(option: str, values: Mapping[Any, Any], *, is_function: bool = False) -> Any:
    """Returns the object that a node without references describes, which may be of the user's own module.

    Raises:
        UserError: if there is no such object.
    """
    try:
        return hydra.utils.instantiate(values, _partial_=is_function)
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


def tracking(config: DictConfig) -> Tracking:
    """Returns the loggers of a run; raises UserError for one that cannot be used."""
    sweep = HydraConfig.get() if HydraConfig.initialized() else None
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    nodes = config.get("logger") or {}
    loggers = Tracking(
        settings=[instantiate(node) for node in nodes.values()], root=mirror.local_path(config.output_dir),
        group=Path(str(sweep.sweep.dir)).name if sweep is not None and sweep.mode == RunMode.MULTIRUN else None,
        config=cast(dict[str, Any], content),
    )  # fmt: skip
    loggers.check()
    return loggers
