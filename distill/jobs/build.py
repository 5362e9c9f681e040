"""From the configuration to the objects that a job is made of."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import hydra
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.plan import Plan, Student
from distill.teaching.output_cache import OutputCache
from distill.teaching.teacher import TeacherSource


def instantiate(config: DictConfig) -> Any:
    """The object that a part of the configuration describes."""
    return hydra.utils.instantiate(config, _convert_="all")


def cache_dir(config: DictConfig) -> Path:
    """The directory of everything that runs share."""
    return Path(str(config.cache_dir)).expanduser()


def plan(config: DictConfig) -> Plan:
    """Everything that a distillation is made of besides its teacher and student."""
    return Plan(
        trainer=instantiate(config.trainer),
        objective=instantiate(config.objective),
        export=instantiate(config.export),
        benchmark=instantiate(config.benchmark),
        task=instantiate(config.task),
        cache_dir=cache_dir(config),
        seed=config.seed,
        baseline=config.baseline,
        resume=bool(config.resume),
        dry_run=config.dry_run,
        logger=partial(logger, config),
    )


def source(config: DictConfig) -> TeacherSource:
    """The teacher's weights, with the built-in one as their substitute."""
    if not config.teacher.get("cache"):
        raise UserError("the teacher's YAML has no cache: add /cache@cache: default to its defaults list")
    cache = instantiate(config.teacher.cache)
    substitute = lambda: _source(config.substitute, cache)  # noqa: E731
    return _source(config.teacher, cache, substitute=substitute)


def _source(
    config: DictConfig, cache: OutputCache, *, substitute: Callable[[], TeacherSource] | None = None
) -> TeacherSource:
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    settings = values.pop("finetune", False)
    values.pop("cache", None)
    # From the configuration, which knows the full names of the options.
    finetune = instantiate(config.finetune) if settings else None
    weights = hydra.utils.instantiate(values)
    return TeacherSource(weights=weights, finetune=finetune, cache=cache, substitute=substitute)


def student(config: DictConfig) -> Student:
    """The student's function with its options."""
    values = OmegaConf.to_container(config.student, resolve=True)
    assert isinstance(values, dict)
    name = values.pop("name")
    build: Any = hydra.utils.instantiate(values, _partial_=True)
    return Student(name, cast("type[PreTrainedModel]", build))


def logger(config: DictConfig, directory: Path) -> Logger:
    """The logger of a run; the file of an earlier attempt is renamed."""
    before = directory / "metrics.csv"
    if before.exists():  # The logger would start an empty one in its place.
        number = len(list(directory.glob("metrics*.csv")))
        before.rename(directory / f"metrics.before-{number}.csv")
    made: Logger = hydra.utils.instantiate(config.logger, save_dir=str(directory))
    made.log_hyperparams(cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)))
    return made
