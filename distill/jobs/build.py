"""What a job is made of, as its configuration names it: the objects, the directories, the logger."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import hydra
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.files import whole_directory
from distill.losses import Objective
from distill.models import checks
from distill.tasks import Task
from distill.teaching import finetune
from distill.teaching.outputs import Answers
from distill.training import fitting
from distill.training.module import DistillationModule
from distill.training.settings import Settings


def instantiate(config: DictConfig) -> Any:
    """The object that a part of the configuration describes."""
    return hydra.utils.instantiate(config, _convert_="all")


def cache(config: DictConfig) -> Any:
    """What is kept of the teacher's outputs, whoever teaches in the end."""
    if not config.teacher.get("cache"):
        raise UserError("the teacher's YAML has no cache: add /cache@cache: default to its defaults list")
    return instantiate(config.teacher.cache)


def cache_dir(config: DictConfig) -> Path:
    """Where what runs share is kept."""
    return Path(str(config.cache_dir)).expanduser()


def source(config: DictConfig) -> finetune.Source:
    """The teacher's class with its plain values, and how to fine-tune it."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    settings = values.pop("finetune", False)
    values.pop("cache", None)
    # From the configuration, which knows the full names of the options.
    return finetune.Source(
        weights=hydra.utils.instantiate(values), settings=instantiate(config.finetune) if settings else None
    )


def student(config: DictConfig, teacher: PreTrainedModel) -> PreTrainedModel:
    """The student of this teacher, before its training.

    Raises:
        UserError: for options that its function does not take.
    """
    values = OmegaConf.to_container(config.student, resolve=True)
    assert isinstance(values, dict)
    values.pop("name")
    build = hydra.utils.instantiate(values, _partial_=True)
    try:
        built: PreTrainedModel = build(teacher)
    except (TypeError, ValueError) as error:  # Of a value that its function did not expect.
        raise UserError(f"student {config.student.name} cannot be built: {str(error).splitlines()[0]}") from error
    return built


def logger(config: DictConfig, directory: Path) -> Logger:
    """The logger of a run; what an earlier attempt has logged stays."""
    before = directory / "metrics.csv"
    if before.exists():  # Of the run that is resumed; the logger would start an empty one in its place.
        number = len(list(directory.glob("metrics*.csv")))
        before.rename(directory / f"metrics.before-{number}.csv")
    made: Logger = hydra.utils.instantiate(config.logger, save_dir=str(directory))
    made.log_hyperparams(cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)))
    return made


def save(model: PreTrainedModel, tokenizer: Any, directory: Path) -> None:
    """An ordinary checkpoint directory, whole or not at all."""
    with whole_directory(directory) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def objective_record(config: DictConfig, objective: Objective) -> dict[str, Any]:
    """The `objective` of run.json."""
    terms = OmegaConf.to_container(config.objective.terms, resolve=True)
    assert isinstance(terms, dict)
    return {"name": objective.name, "terms": {name: terms[name] for name in objective.names}}


def module(
    student: PreTrainedModel,
    objective: Objective,
    task: Task,
    settings: Settings,
    loaders: dict[str, Any],
    teacher: finetune.Teacher | None,
    answers: Answers | None,
) -> DistillationModule:
    """The student under its objective; the teacher is asked in every step unless its answers are kept."""
    if teacher is not None:
        objective.connect(student.config.hidden_size, teacher.model.config.hidden_size)
    asked = teacher.answering() if teacher is not None and objective.needs_teacher and answers is None else None
    return DistillationModule(
        student=student, objective=objective, task=task, teacher=asked, kept=answers.kept if answers else None,
        **settings.optimization(len(loaders["train"])),
    )  # fmt: skip


def student_record(config: DictConfig, student: PreTrainedModel, metrics: dict[str, float]) -> dict[str, Any]:
    """The `student` of run.json."""
    return {
        "name": config.student.name, "parameters": checks.count_parameters(student), "metrics": metrics,
        "layers": getattr(student.config, "teacher_layers", None),
    }  # fmt: skip


def training_record(fit: fitting.Fit, module: DistillationModule, answers: Answers | None) -> dict[str, Any]:
    """The `training` of run.json."""
    return {
        **asdict(fit),
        "teacher_seconds": module.teacher_seconds + (answers.seconds if answers else 0.0),
        "teacher_cache": answers.record() if answers else None,
    }
