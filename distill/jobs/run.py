"""One job from its configuration to its end: a new run directory or the one to resume, and how it ended."""

import contextlib
import hashlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from distill.console import say
from distill.errors import Interrupted, UserError
from distill.files import write_text
from distill.jobs import rows, text
from distill.records.record import Run, create_run
from distill.training.checkpoints import handled

# By the kind of the task.
JOBS = {
    "sequence": {"distill": rows.run_distill, "finetune": rows.run_finetune},
    "language_model": {
        "distill": text.run_distill,
        "finetune": text.run_finetune,
        "pretrain": text.run_pretrain,
    },
}
# Options that a job never reads, by how they begin.
_WITHOUT_EFFECT = {
    ("language_model", "distill"): ("teacher.finetune", "export", "benchmark"),
    ("language_model", "finetune"): ("teacher.finetune", "teacher.cache", "export", "benchmark", "objective"),
    ("language_model", "pretrain"): ("teacher.finetune", "teacher.cache", "export", "benchmark", "objective"),
}
# What does not change a run's numbers.
_NO_PART_OF_A_RUN = ("resume", "output_dir", "cache_dir")


def run_job(config: DictConfig) -> Path:
    """Run the configured job, keep its record up to date to the end, and return its directory."""
    if config.resume:
        config, run = _resumed(config)
        job = _job(config)
        if run.record["status"] == "finished":
            say(f"{run.directory} is finished already: see {run.directory / 'report.md'}")
            return run.directory
        say(f"Resuming {run.directory}")
    else:
        job = _job(config)
        run = _new(config)
    try:
        run.update(status="running", error=None)
        with handled(signal.default_int_handler, signal.SIGTERM):  # A cluster's way to say Ctrl-C.
            job(config, run)
    except (KeyboardInterrupt, SystemExit) as error:  # Lightning turns the first into the second.
        run.update(status="failed", error="interrupted")
        raise Interrupted(_what_is_kept(run)) from error
    except BaseException as error:  # Whatever ends a run, its record says so; the error itself goes on.
        with contextlib.suppress(OSError):  # On a full disk the record cannot say so.
            run.update(status="failed", error=f"{type(error).__name__}: {error}".splitlines()[0])
        raise
    finally:
        if "wandb" in sys.modules:
            # Left open, the next run of a sweep would write into this one.
            sys.modules["wandb"].finish()
    run.update(status="finished")
    return run.directory


def _job(config: DictConfig) -> Callable[[DictConfig, Run], None]:
    """What does this job for a task of this kind."""
    kind = hydra.utils.get_class(config.task._target_).kind  # type: ignore[attr-defined]
    job = str(config.job.name)
    if job not in JOBS[kind]:
        raise UserError(f"job={job} is not for task={config.task.name}: take a task over text, task=mlm")
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() and not config.resume else []
    ignored = [option for option in given if option.startswith(_WITHOUT_EFFECT.get((kind, job), ()))]
    if ignored:
        raise UserError(
            f"{' and '.join(ignored)} would change nothing in job={job} task={config.task.name}: leave it out"
            + (", trainer.* is what trains here" if ignored[0].startswith("teacher.finetune") else "")
        )
    return JOBS[kind][job]


def _what_is_kept(run: Run) -> str:
    """What a run that was interrupted has saved, and how to go on with it."""
    go_on = f"python -m distill resume={run.directory}"
    for part in ("baseline", "", "teacher"):  # The latest first.
        last = run.directory / part / "checkpoints" / "last.ckpt"
        if last.is_file():
            return f"interrupted: {last} holds the training so far; {go_on} goes on from there"
    return f"interrupted before the first checkpoint; {go_on} begins again, with the teacher if it was ready"


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
        candidates = [_open(path.parent) for path in sorted(_parent(config).glob("*/run.json"))]
        unfinished = [
            run for run in candidates if run.record["config_sha256"] == wanted and run.record["status"] != "finished"
        ]
        if not unfinished:
            raise UserError(f"{_parent(config)} has no unfinished run of this configuration: leave out resume=true")
        return config, unfinished[-1]
    directory = Path(str(config.resume)).expanduser()
    run = _open(directory)
    kept = OmegaConf.load(directory / "config.yaml")
    assert isinstance(kept, DictConfig)
    kept.resume = True
    return kept, run


def _open(directory: Path) -> Run:
    for name in ("run.json", "config.yaml"):
        if not (directory / name).is_file():
            raise UserError(f"{directory} is no run: it has no {name}")
    try:
        return Run(directory, json.loads((directory / "run.json").read_text(encoding="utf-8")))
    except ValueError as error:
        raise UserError(f"{directory / 'run.json'} is damaged: {error}") from error
