"""One job from its configuration to its end: a new run directory or the one to resume, and how it ended."""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from distill.console import print_line
from distill.errors import UserError
from distill.files import write_text
from distill.jobs.distill import run_distill
from distill.jobs.finetune import run_finetune
from distill.jobs.pretrain import run_pretrain
from distill.jobs.upgrade import upgrade
from distill.records.record import Run, create_run
from distill.records.tracking import open_run, tracked

RUN_FILES = ("run.json", "config.yaml")
JOBS: dict[str, Callable[[DictConfig, Run], None]] = {
    "distill": run_distill,
    "finetune": run_finetune,
    "pretrain": run_pretrain,
}
# Options that a job on raw text never reads, by how they begin.
_WITHOUT_EFFECT = {
    "distill": ("teacher.finetune", "export", "benchmark"),
    "finetune": ("teacher.finetune", "teacher.cache", "export", "benchmark", "objective"),
    "pretrain": ("teacher.finetune", "teacher.cache", "export", "benchmark", "objective"),
}
# What does not change a run's numbers.
_NO_PART_OF_A_RUN = ("resume", "output_dir", "cache_dir", "dry_run")


def run_job(config: DictConfig) -> Path | None:
    """Runs the configured job, keeps its record up to date to the end, and returns its directory; None of a dry run."""
    if config.dry_run:
        _dry_run(config)
        return None
    if config.resume:
        config, run = _resumed(config)
        job = _job(config)
        if run.record["status"] == "finished":
            print_line(f"{run.directory} is finished already: see {run.directory / 'report.md'}")
            return run.directory
        print_line(f"Resuming {run.directory}")
    else:
        job = _job(config)
        run = _new(config)
    with tracked(run, resume_with=f"python -m distill resume={run.directory}"):
        job(config, run)
    return run.directory


def _dry_run(config: DictConfig) -> None:
    """Checks everything and prints the plan; the run's directory is a temporary one."""
    if config.resume:
        raise UserError("dry_run=true plans a new run: leave out resume")
    with tempfile.TemporaryDirectory() as directory:
        job = _job(config)
        job(config, create_run(Path(directory), job=config.job.name, seed=config.seed))
    print_line("Nothing was trained (dry_run=true)")


def _job(config: DictConfig) -> Callable[[DictConfig, Run], None]:
    """The function of the configured job.

    Raises:
        UserError: for a job that the task has not, and for options that the job would ignore.
    """
    task = hydra.utils.get_class(config.task._target_)
    job = str(config.job.name)
    if job == "pretrain" and not task.over_vocabulary:  # type: ignore[attr-defined]
        raise UserError(f"job={job} is not for task={config.task.name}: take a task over text, task=mlm")
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() and not config.resume else []
    without_effect = _WITHOUT_EFFECT[job] if task.over_vocabulary else ()  # type: ignore[attr-defined]
    ignored = [option for option in given if option.startswith(without_effect)]
    if ignored:
        raise UserError(
            f"{' and '.join(ignored)} would change nothing in job={job} task={config.task.name}: leave it out"
            + (", trainer.* is what trains here" if ignored[0].startswith("teacher.finetune") else "")
        )
    return JOBS[job]


def digest(config: DictConfig) -> str:
    """SHA-256 of everything in the configuration that can change a run's numbers."""
    content = {key: value for key, value in _plain(config).items() if key not in _NO_PART_OF_A_RUN}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plain(config: DictConfig) -> dict[str, object]:
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def _parent(config: DictConfig) -> Path:
    """Where the runs of this task, teacher and student lie."""
    names = [config.teacher.name]
    if config.job.name == "distill":
        names.append(config.student.name)
    return Path(str(config.output_dir)).expanduser() / str(config.task.name) / "-".join(names)


def _new(config: DictConfig) -> Run:
    run = create_run(
        _parent(config), job=config.job.name, command=["python", "-m", "distill", *sys.argv[1:]],
        config_sha256=digest(config), seed=config.seed,
    )  # fmt: skip
    write_text(run.directory / "config.yaml", OmegaConf.to_yaml(config))
    return run


def _resumed(config: DictConfig) -> tuple[DictConfig, Run]:
    """The configuration and the run to go on with."""
    if config.resume is True:
        wanted = digest(config)
        candidates = [open_run(path.parent, needs=RUN_FILES) for path in sorted(_parent(config).glob("*/run.json"))]
        unfinished = [
            run for run in candidates if run.record["status"] != "finished" and digest(_kept(run.directory)) == wanted
        ]
        if not unfinished:
            raise UserError(f"{_parent(config)} has no unfinished run of this configuration: leave out resume=true")
        return config, unfinished[-1]
    directory = Path(str(config.resume)).expanduser()
    run = open_run(directory, needs=RUN_FILES)
    kept = _kept(directory)
    kept.resume = True
    return kept, run


def _kept(directory: Path) -> DictConfig:
    """The configuration of an earlier run."""
    config = OmegaConf.load(directory / "config.yaml")
    assert isinstance(config, DictConfig)
    return upgrade(config)
