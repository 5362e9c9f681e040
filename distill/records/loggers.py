"""Loggers of a training, the trackers of other programs, and the status of a run in run.json.

Loggers of a training: metrics.csv, and the trackers TensorBoard, MLflow and Weights & Biases. Settings name a logger
and are the keys of its YAML in `conf/logger`. `Tracking.open` opens all of them for one student:

    with tracking.open(run.directory, metric=data.scoring.metric, selects=data.scoring.selects) as loggers:
        trainer.fit(..., logger=loggers.lightning)
        loggers.log_results(run.record, bundle)

A tracker gets the configuration, the curves of every term, and at the end the metrics and the table of the results.
MLflow and Weights & Biases also get the bundle, and a resumed run continues their entry.
"""

import contextlib
import json
import logging
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from filelock import FileLock, Timeout
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from pydantic.dataclasses import dataclass

from distill.core import storage
from distill.core.console import events
from distill.core.errors import DistillError, Interrupted, UserError, find_cause, first_line, hide_secrets
from distill.core.files import JsonObject, sweep, write_json
from distill.core.options import STRICT, raise_option_errors, require_package
from distill.core.storage import leases
from distill.edge.bundle_files import timed_name
from distill.records.report import render_table, summary_cells
from distill.records.run import LOCK, Run
from distill.records.verdict import Results, task_sections
from distill.training.strategies import handle_signals

LEAVE_OUT = ", or leave it out"
WandbMode = Literal["online", "offline", "disabled"]
ENTRIES = "loggers.json"  # In the directory of a run: the id of its entry in each tracker.


@plain_dataclass(frozen=True)
class TrackerEntry:
    """The entry of one student in a tracker.

    Args:
        directory: of the run.
        group: the name of the sweep that the run belongs to; None for a single run.
        config: the whole configuration.
        id: of the entry that a resumed run continues; None for a new one.
        metric: of the task, which is logged as `dev/<metric>`.
        selects: `max` or `min`, the better values of the metric.
        steps: optimizer steps of the training; 0 where they are not known.
    """

    directory: Path
    name: str
    group: str | None
    config: Mapping[str, Any]
    id: str | None
    metric: str
    selects: str
    steps: int = 0


@plain_dataclass(frozen=True)
class FinalResults:
    """The results of a finished student.

    Args:
        metrics: by names such as `final/int8/accuracy`.
        table: the rows of the report's first table, the header first.
        bundle: its directory; None if nothing was exported.
        title: names the student and its task.
    """

    metrics: Mapping[str, float]
    table: Sequence[tuple[str, ...]]
    bundle: Path | None
    title: str


class LoggerSettings:
    """The options of a logger, and how it is used. One that only writes curves has `open` alone."""

    def check(self) -> None:
        """Raises UserError if the logger is not installed, or refuses this user."""

    def open(self, entry: TrackerEntry) -> tuple[Logger, str | None]:
        """Returns Lightning's logger of a training, and the id of the entry where a resumed run can continue it."""
        raise NotImplementedError

    def log_results(self, logger: Any, results: FinalResults) -> None:
        """Logs the results of a finished student."""

    def close(self, logger: Any, *, failed: bool) -> None:
        """Closes the entry."""


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class Csv(LoggerSettings):
    """Writes metrics.csv, which the report of a run reads. The results are in run.json beside it."""

    def open(self, entry: TrackerEntry) -> tuple[Logger, str | None]:
        """Returns the logger; renames the file of an interrupted training, which it would overwrite."""
        previous = entry.directory / "metrics.csv"
        if previous.exists():
            number = len(list(entry.directory.glob("metrics*.csv")))
            previous.rename(entry.directory / f"metrics.before-{number}.csv")
        return CSVLogger(str(entry.directory), name="", version=""), None


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class TensorBoard(LoggerSettings):
    """Writes event files into `tensorboard/` of the run, for `tensorboard --logdir runs`."""

    def check(self) -> None:
        """Raises UserError if tensorboard is not installed."""
        require_package("tensorboard", "logger=tensorboard", extra="tensorboard", advice=LEAVE_OUT)

    def open(self, entry: TrackerEntry) -> tuple[Logger, str | None]:
        """Returns the logger, with the configuration as a text."""
        logger = TensorBoardLogger(str(entry.directory / "tensorboard"), name="", version="", default_hp_metric=False)
        logger.experiment.add_text("configuration", f"```\n{json.dumps(entry.config, indent=2, default=str)}\n```")
        logger.hparams.update({**entry.config, "sweep": entry.group})
        return logger, None

    def log_results(self, logger: Any, results: FinalResults) -> None:
        """Logs the table as a text, and the metrics beside the configuration, as HPARAMS shows them."""
        logger.experiment.add_text("results", render_table(results.table))
        logger.log_hyperparams(dict(logger.hparams), dict(results.metrics))

    def close(self, logger: Any, *, failed: bool) -> None:
        """Closes the event file."""
        logger.experiment.close()


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class MLflow(LoggerSettings):
    """Logs to MLflow, into a database on this machine or to a server.

    Args:
        experiment: the name of the experiment that has the runs.
        tracking_uri: of a server or a database; None: MLFLOW_TRACKING_URI, or without it `mlflow.db` in `directory`.
        directory: of the database and its artifacts if there is no `tracking_uri`.
        bundle: whether the bundle is logged as an artifact.
    """

    experiment: str
    directory: str
    tracking_uri: str | None = None
    bundle: bool = True

    def check(self) -> None:
        """Raises UserError if mlflow is not installed, or its database would be behind a URL."""
        require_package("mlflow", "logger=mlflow", extra="mlflow", advice=LEAVE_OUT)
        if self._uri() is None and storage.is_url(self.directory):
            raise UserError(
                f"logger=mlflow cannot write its database to {self.directory}: set logger.mlflow.directory=DIR on this "
                "machine, or MLFLOW_TRACKING_URI to that of a server"
            )

    def open(self, entry: TrackerEntry) -> tuple[Logger, str | None]:
        """Returns the logger of a run of the experiment, with the name of its sweep in the tag `sweep`."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # It reports usage to its makers otherwise.
        uri = self._uri()
        from mlflow.exceptions import MlflowException

        directory = Path(self.directory).expanduser().absolute()
        directory.mkdir(parents=True, exist_ok=True)
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # It announces every table of a new database.
        try:
            with _unchanged_environment("MLFLOW_TRACKING_URI"):
                logger = MLFlowLogger(
                    experiment_name=self.experiment,
                    tracking_uri=uri or f"sqlite:///{directory / 'mlflow.db'}",
                    artifact_location=None if uri else (directory / "mlartifacts").as_uri(),
                    run_name=entry.name, tags={"sweep": entry.group} if entry.group else None, run_id=entry.id,
                )  # fmt: skip
                if entry.id is None:  # A parameter cannot be changed.
                    logger.log_hyperparams(dict(entry.config))
                return logger, logger.run_id
        except MlflowException as error:
            raise UserError(f"logger=mlflow cannot write to {uri or directory}: {first_line(error)}") from error

    def _uri(self) -> str | None:
        """Returns the URI of a server or a database. The variable may have a password, so that no file names it."""
        return self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")

    def log_results(self, logger: Any, results: FinalResults) -> None:
        """Logs the metrics, the table as `results.json`, and the bundle."""
        logger.log_metrics(dict(results.metrics))
        columns = zip(*results.table[1:], strict=True)
        names = [name or "model" for name in results.table[0]]
        logger.experiment.log_table(logger.run_id, dict(zip(names, map(list, columns), strict=True)), "results.json")
        if self.bundle and results.bundle is not None:
            logger.experiment.log_artifacts(logger.run_id, str(results.bundle), "bundle")

    def close(self, logger: Any, *, failed: bool) -> None:
        """Ends the entry, with its status."""
        logger.experiment.set_terminated(logger.run_id, "FAILED" if failed else "FINISHED")


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class Wandb(LoggerSettings):
    """Logs to Weights & Biases.

    Args:
        project: that has the runs.
        entity: the user or the team; None: the user's default.
        mode: `offline` writes files that `wandb sync` uploads; None: WANDB_MODE, or without it `offline`.
        bundle: whether the bundle is logged as an artifact.
    """

    project: str
    entity: str | None = None
    mode: WandbMode | None = None
    bundle: bool = True

    def check(self) -> None:
        """Raises UserError if wandb is not installed, or in the mode `online` without a key that it accepts."""
        require_package("wandb", "logger=wandb", extra="train", advice=LEAVE_OUT)
        if self._mode() != "online":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # Nothing leaves the machine.
            return
        import wandb

        advice = "run `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline"
        try:
            wandb.setup(wandb.Settings(mode="online"))  # WANDB_MODE may be another one.
            known = wandb.login(prompt=False)
        except wandb.errors.Error as error:
            raise UserError(
                f"Weights & Biases refuses the key or does not respond ({first_line(error)}): {advice}"
            ) from (error)
        if not known:
            raise UserError(f"logger.wandb.mode=online needs a key of Weights & Biases, and there is none: {advice}")

    def open(self, entry: TrackerEntry) -> tuple[Logger, str | None]:
        """Returns the logger of a run in the group of its sweep."""
        import wandb

        try:
            logger = WandbLogger(
                project=self.project, entity=self.entity, name=entry.name, group=entry.group, mode=self._mode(),
                save_dir=str(entry.directory), id=entry.id, config=dict(entry.config),
            )  # fmt: skip
            return logger, str(logger.experiment.id)
        except wandb.errors.Error as error:
            raise UserError(
                f"Weights & Biases does not start a run ({first_line(error)}): set WANDB_MODE=offline, or leave out "
                "logger=wandb"
            ) from error

    def _mode(self) -> WandbMode:
        """Returns the mode of this process, which may be another one when the run is resumed.

        Raises:
            UserError: for a value of WANDB_MODE that is no mode.
        """
        mode = self.mode or os.environ.get("WANDB_MODE") or "offline"
        if mode not in get_args(WandbMode):
            raise UserError(f"got WANDB_MODE={mode}, expected one of {', '.join(get_args(WandbMode))}")
        return cast(WandbMode, mode)

    def log_results(self, logger: Any, results: FinalResults) -> None:
        """Logs the metrics into the summary, the table, and the bundle, which stays where it is."""
        import wandb

        run = logger.experiment
        run.summary.update(dict(results.metrics))
        header = [name or "model" for name in results.table[0]]
        run.log({"results": wandb.Table(columns=header, data=[list(row) for row in results.table[1:]])})
        if self.bundle and results.bundle is not None:
            artifact = wandb.Artifact(re.sub(r"[^\w.-]+", "-", results.title), type="bundle")
            artifact.add_dir(str(results.bundle), skip_cache=True, policy="immutable")
            run.log_artifact(artifact)

    def close(self, logger: Any, *, failed: bool) -> None:
        """Ends the run, so that the next training of this process begins another one."""
        logger.experiment.finish(exit_code=int(failed))


@plain_dataclass(frozen=True)
class OpenLoggers:
    """The loggers of a student that is trained."""

    loggers: Sequence[tuple[LoggerSettings, Logger]]

    @property
    def lightning(self) -> list[Logger]:
        """Returns the loggers that a trainer takes."""
        return [logger for _, logger in self.loggers]

    def log_results(self, record: JsonObject, bundle: Path | None) -> None:
        """Logs the results of a student whose bundle, if it has one, is complete."""
        title = f"{record['student']['name'] if record['student'] else 'model'}-{record['task']['name']}"
        results = FinalResults(final_metrics(record), summary_cells(record), bundle, title)
        for settings, logger in self.loggers:
            settings.log_results(logger, results)


@plain_dataclass(frozen=True)
class Tracking:
    """The loggers of a run, and the name of its entries.

    Args:
        settings: of every logger beside metrics.csv.
        root: directory from which the path to a run is the name of its entry; None: the name of its directory alone.
        group: the name of the sweep; None for a single run.
        config: the whole configuration.
    """

    settings: Sequence[LoggerSettings] = ()
    root: Path | None = None
    group: str | None = None
    config: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Raises UserError if one of the loggers cannot be used."""
        for settings in self.settings:
            settings.check()

    @contextmanager
    def open(self, directory: Path, *, metric: str, selects: str, steps: int = 0) -> Iterator[OpenLoggers]:
        """Opens the loggers of a student, and closes them at the end, also after an error.

        Args:
            directory: of the run.
            metric: of the task.
            selects: `max` or `min`, the better values of the metric.
            steps: optimizer steps of the training.
        """
        opened: list[tuple[LoggerSettings, Logger]] = []
        failed = True
        try:
            for settings in (Csv(), *(each for each in self.settings if not isinstance(each, Csv))):
                opened.append((settings, self._open(settings, directory, metric, selects, steps)))
            yield OpenLoggers(opened)
            failed = False
        finally:
            for settings, logger in opened:
                settings.close(logger, failed=failed)

    def _open(self, settings: LoggerSettings, directory: Path, metric: str, selects: str, steps: int) -> Logger:
        tracker, path = type(settings).__name__.lower(), directory / ENTRIES
        entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        name = directory.name if self.root is None else os.path.relpath(directory, self.root)
        config, id = self.config or {}, entries.get(tracker)
        logger, id = settings.open(TrackerEntry(directory, name, self.group, config, id, metric, selects, steps))
        if id is not None and id != entries.get(tracker):
            write_json(path, {**entries, tracker: id})
        return logger


def final_metrics(record: JsonObject) -> dict[str, float]:
    """Returns the headline numbers of a record: metrics, shares kept, sizes and times of its models.

    Names are `final/MODEL/METRIC`, and of one of several tasks `final/TASK/MODEL/METRIC`.
    """
    found: dict[str, float | None] = {}
    for task, section in {"": record, **task_sections(record)}.items():
        prefix = f"final/{task}/" if task else "final/"
        for model in ("teacher", "student", "baseline"):
            metrics = (section[model] or {}).get("metrics") or {}
            found |= {f"{prefix}{model}/{name}": value for name, value in metrics.items()}
        for name, file in section["export"].items():
            timing = Results(section).timing("student", timed_name(name, file["file"])) or {}
            found |= {f"{prefix}{name}/{metric}": value for metric, value in file["metrics"].items()}
            found |= {f"{prefix}{name}/bytes": file["bytes"], f"{prefix}{name}/p50_ms": timing.get("p50_ms")}
        found |= {f"{prefix}{name}/retention": value for name, value in (section["retention"] or {}).items()}
    return {name: float(value) for name, value in found.items() if value is not None}


@contextmanager
def _unchanged_environment(name: str) -> Iterator[None]:
    """Restores a variable of the environment, which a library sets for its own later calls."""
    before = os.environ.get(name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextmanager
def tracked(run: Run, *, resume_with: str, texts: bool = True) -> Iterator[None]:
    """Locks the run's directory, and writes its status: running, then finished, or failed with the error.

    Args:
        resume_with: the command that resumes an interrupted run.
        texts: whether the record has the message of an error, which may quote a text of the data.

    Raises:
        UserError: if another process has locked the run, or the URL of its directory cannot be written.
        Interrupted: on Ctrl-C and SIGTERM.
    """
    try:
        lock = FileLock(run.directory / LOCK).acquire(timeout=0)  # Released when the process ends, however it ends.
    except Timeout as error:
        raise UserError(
            f"{run.directory} is in use by another process: wait until it ends, or end it, and run the command again"
        ) from error
    with lock, leases():
        sweep(run.directory)  # What was being written when the run was killed.
        with storage.sent(run.directory), _named(run):
            yield from _track(run, resume_with, texts=texts)


@contextmanager
def _named(run: Run) -> Iterator[None]:
    """Sends the run's directory as an event, and names it in those that follow."""
    events.name_run(run.directory)
    events.send("run", directory=str(events.run))
    try:
        yield
    finally:
        events.name_run(None)


def _track(run: Run, resume_with: str, *, texts: bool) -> Iterator[None]:
    try:
        run.update(status="running", error=None)
        with handle_signals(signal.default_int_handler, signal.SIGTERM), run.timed("total"):  # Sent by clusters.
            yield
    except (KeyboardInterrupt, SystemExit) as error:  # Lightning converts the first into the second.
        run.update(status="failed", error="interrupted")
        raise Interrupted(_describe_progress(run, resume_with)) from error
    except BaseException as error:  # Every error is recorded and raised again.
        with contextlib.suppress(OSError):  # A full disk has no room for the record.
            cause = find_cause(error)
            known = cause if isinstance(cause, DistillError) else error
            message = f"{type(known).__name__}: {known if texts else 'left out, because record.texts=false'}"
            run.update(status="failed", error=hide_secrets(message.splitlines()[0]))
        raise
    run.update(status="finished")


def _describe_progress(run: Run, resume_with: str) -> str:
    """Returns the message of an interrupted run: its checkpoint and the command that resumes it."""
    further = sorted(run.directory.glob("seeds/*"), key=lambda directory: int(directory.name), reverse=True)
    students = [stage for directory in (*further, run.directory) for stage in (directory / "baseline", directory)]
    for stage in (*students, run.directory / "teacher"):  # The latest first.
        last = stage / "checkpoints" / "last.ckpt"
        if last.is_file():
            return f"interrupted: {last} holds the training so far; {resume_with} goes on from there"
    return f"interrupted before the first checkpoint; {resume_with} begins again, with the teacher if it was ready"
