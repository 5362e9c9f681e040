"""The job `inspect`, which looks inside trained models and writes a page."""

from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from distill.console import print_line, print_notice, silence_libraries
from distill.contracts import Data, Task
from distill.errors import UserError
from distill.inspection.inspection import inspect_models
from distill.inspection.report import write_inspection
from distill.inspection.subjects import Subject, create_subject, open_subject, open_subjects
from distill.jobs import build
from distill.jobs.overrides import refuse_other_options
from distill.jobs.run import read_run
from distill.records.record import Run, create_run
from distill.records.saved_config import CONFIG
from distill.storage import mirror
from distill.tasks.multi import Tasks
from distill.teaching import preparation as teaching
from distill.teaching.source import locate


def run_inspect(config: DictConfig) -> None:
    """Looks inside `model`, and `other` beside it, and writes `inspect.html` with its tables below `output_dir`.

    Of a run it takes the task, if the command names none, and the teacher beside the student, if there is no `other`.

    Raises:
        UserError: for a model, a split or a file that the questions cannot be asked of.
    """
    refuse_other_options("inspect")
    if not config.model:
        raise UserError("job=inspect has no model to look inside: add model=DIR, and other=DIR for its student")
    questions = build.instantiate(config.inspect)
    paths = [Path(str(path)).expanduser() for path in (config.model, config.other) if path]
    silence_libraries()
    saved = None if _names_task() or not (paths[0] / CONFIG).is_file() else read_run(paths[0], config)
    if saved is None:
        subjects = open_subjects(paths, _only_task(config), build.cache_dir(config))
    else:
        subjects = _open_run(*saved, paths)
    inspection = inspect_models(subjects, questions, before=_build_student(config, subjects))
    run = create_run(mirror.local_path(config.output_dir) / "inspections", job="inspect", seed=0)
    page = write_inspection(inspection, run.directory)
    mirror.send(run.directory)
    print_line(f"Results  {mirror.address(page)}")


def _names_task() -> bool:
    """Returns whether the command has an option of the task."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    return any(option.lstrip("+~").startswith(("task=", "task.")) for option in given)


def _only_task(config: DictConfig) -> Task:
    [*tasks] = Tasks.of(build.instantiate(config.task)).values()
    if len(tasks) > 1:
        raise UserError(
            f"job=inspect looks at a model of one task, and task={config.task.name} has {len(tasks)}: take a model "
            "that was trained for one of them"
        )
    return tasks[0]


def _open_run(config: DictConfig, run: Run, paths: list[Path]) -> list[Subject]:
    """Returns the models of a run, or the first one and that of another directory, with the data of its task.

    Args:
        config: of the run.
    """
    task, cache_dir = _only_task(config), build.cache_dir(config)
    print_line(f"Task     {task.info.name}, as {run.directory} has it")
    if len(paths) == 2 or config.job.name != "distill":
        return open_subjects(paths, task, cache_dir)
    data = task.read(cache_dir)
    student = open_subject("student", paths[0], task, data, cache_dir)
    try:
        return [_open_teacher(config, run, task, data), student]
    except UserError as error:
        print_notice(f"the student is shown without its teacher: {error}")
        return [student]


def _open_teacher(config: DictConfig, run: Run, task: Task, data: Data) -> Subject:
    """Returns the teacher of a run.

    Raises:
        UserError: if it is no single model, or its fine-tuned weights are not in the cache any more.
    """
    source, cache_dir = build.source(config), build.cache_dir(config)
    if source.others or source.by_task or source.labeller is not None:
        raise UserError(f"the teacher of {run.directory} is no single model with a head for the task")

    def refuse_training(*_: object) -> None:
        raise UserError(
            f"the teacher of {run.directory} was fine-tuned, and is not in the cache {cache_dir} any more: train it "
            "with job=finetune, and take model=TEACHER other=RUN"
        )

    located, substituted = locate(source, task)
    preparation = teaching.Preparation(
        task=task, splits=data, cache_dir=cache_dir, run_directory=run.directory, device=torch.device("cpu"),
        dry_run=True, rehearse=refuse_training,
    )  # fmt: skip
    teacher = teaching.prepare(located, preparation, requested=source.weights.name, substituted=substituted)
    origin = (run.record["teacher"] or {}).get("origin", teacher.origin)
    path = Path(f"{teacher.resolved} ({origin})")
    return create_subject("teacher", path, teacher.model, teacher.tokenizer, task, data, cache_dir)


def _build_student(config: DictConfig, subjects: list[Subject]) -> Subject | None:
    """Returns the student as it is before its training, from the teacher; None where the command names no student."""
    if OmegaConf.is_missing(config, "student"):
        return None
    if len(subjects) < 2:
        raise UserError("+student=NAME shows the layers of other=DIR before its training: add other, or leave it out")
    teacher, student = subjects
    return student.before(build.student(config).make(teacher.model, teacher.task, teacher.data))
