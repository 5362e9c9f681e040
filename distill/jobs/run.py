"""Runs one job in a new run directory or in the one to resume."""

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
# Prefixes of the options that a job on raw text ignores.
_WITHOUT_EFFECT = {
    "distill": ("teacher.finetune", "export", "benchmark"),
    "finetune": ("teacher.finetune", "teacher.cache", "export", "benchmark", "objective"),
    "pretrain": ("teacher.finetune", "teacher.cache", "export", "benchmark", "objective"),
}
# Options that do not change the results of a run.
_NOT_IN_DIGEST = ("resume", "output_dir", "cache_dir", "dry_run")


def run_job(config: DictConfig) -> Path | None:
    """Runs the configured job, records its status, and returns its directory, None for a dry run."""
    if config.dry_run:
        _dry_run(config)
        return None
    if config.resume:
        config, run = _find_run(config)
        job = _select_job(config)
        if run.record["status"] == "finished":
            print_line(f"{run.directory} is finished already: see {run.directory / 'report.md'}")
            return run.directory
        print_line(f"Resuming {run.directory}")
    else:
        job = _select_job(config)
        run = _create_run(config)
    with tracked(run, resume_with=f"python -m distill resume={run.directory}"):
        job(config, run)
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
    """Returns the SHA-256 of the options that can change the results of a run."""
    content = {key: value for key, value in _to_dict(config).items() if key not in _NOT_IN_DIGEST}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _to_dict(config: DictConfig) -> dict[str, object]:
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def _parent_directory(config: DictConfig) -> Path:
    """Returns the directory of the runs of this task, teacher and student."""
    names = [config.teacher.name]
    if config.job.name == "distill":
        names.append(config.student.name)
    return Path(str(config.output_dir)).expanduser() / str(config.task.name) / "-".join(names)


def _create_run(config: DictConfig) -> Run:
    run = create_run(
        _parent_directory(config), job=config.job.name, command=["python", "-m", "distill", *sys.argv[1:]],
        config_sha256=digest(config), seed=config.seed,
    )  # fmt: skip
    write_text(run.directory / "config.yaml", OmegaConf.to_yaml(config))
    return run


def _find_run(config: DictConfig) -> tuple[DictConfig, Run]:
    """Returns the configuration and the run to resume."""
    if config.resume is True:
        parent, expected = _parent_directory(config), digest(config)
        candidates = [open_run(path.parent, needs=RUN_FILES) for path in sorted(parent.glob("*/run.json"))]
        unfinished = [
            run
            for run in candidates
            if run.record["status"] != "finished" and digest(_load_config(run.directory)) == expected
        ]
        if not unfinished:
            raise UserError(f"{parent} has no unfinished run of this configuration: leave out resume=true")
        return config, unfinished[-1]
    directory = Path(str(config.resume)).expanduser()
    run = open_run(directory, needs=RUN_FILES)
    run_config = _load_config(directory)
    run_config.resume = True
    return run_config, run


def _load_config(directory: Path) -> DictConfig:
    """Returns the configuration of an earlier run, with today's names."""
    config = OmegaConf.load(directory / "config.yaml")
    assert isinstance(config, DictConfig)
    return upgrade(config)
