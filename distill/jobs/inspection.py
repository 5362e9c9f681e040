"""The job `inspect`, which looks inside trained models and writes a page."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from distill.console import print_line, silence_libraries
from distill.errors import UserError
from distill.inspection.inspection import inspect_models
from distill.inspection.report import write_inspection
from distill.inspection.subjects import Subject, open_subjects
from distill.jobs import build
from distill.jobs.overrides import refuse_other_options
from distill.records.record import create_run
from distill.storage import mirror


def run_inspect(config: DictConfig) -> None:
    """Looks inside `model`, and `other` beside it, and writes `inspect.html` with its tables below `output_dir`.

    Raises:
        UserError: for a model, a split or a file that the questions cannot be asked of.
    """
    refuse_other_options("inspect")
    if not config.model:
        raise UserError("job=inspect has no model to look inside: add model=DIR, and other=DIR for its student")
    questions, task, cache_dir = (
        build.instantiate(config.inspect),
        build.instantiate(config.task),
        build.cache_dir(config),
    )
    silence_libraries()
    paths = [Path(str(path)).expanduser() for path in (config.model, config.other) if path]
    subjects = open_subjects(paths, task, cache_dir)
    inspection = inspect_models(subjects, questions, before=_build_student(config, subjects))
    run = create_run(mirror.local_path(config.output_dir) / "inspections", job="inspect", seed=0)
    page = write_inspection(inspection, run.directory)
    mirror.send(run.directory)
    print_line(f"Results  {mirror.address(page)}")


def _build_student(config: DictConfig, subjects: list[Subject]) -> Subject | None:
    """Returns the student as it is before its training, from the teacher; None where the command names no student."""
    if OmegaConf.is_missing(config, "student"):
        return None
    if len(subjects) < 2:
        raise UserError("+student=NAME shows the layers of other=DIR before its training: add other, or leave it out")
    teacher, student = subjects
    return student.before(build.student(config).make(teacher.model, teacher.task, teacher.data))
