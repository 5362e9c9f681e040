"""The delivery of a run: exported and measured students, the better baseline, the report, and what a caller gets."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel

from distill.chain.task_run import BASELINE
from distill.chain.train import Prepared, Trained
from distill.console import console, in_notebook, print_line
from distill.contracts import Examples, Scores
from distill.edge import Bundle
from distill.edge.overview import Overview, Shown
from distill.errors import UserError
from distill.export.sharing import share_weights
from distill.export.wheel import write_wheel
from distill.models.heads import heads_of
from distill.records import report
from distill.records.headline import describe_verdict
from distill.records.plots import Plots
from distill.records.run_report import draw_report, write_report
from distill.records.tables import summary_columns, summary_rows
from distill.storage.files import atomic_directory, replace_file, write_checksums, write_text
from distill.training import averaging


def deliver(trained: Trained) -> None:
    """Exports one student unless the plan excludes it, and logs the results."""
    prepared, bundle = trained.prepared, None
    if prepared.plan.exports:
        export(prepared, trained.student, trained.scores)
        bundle = prepared.run.directory / "bundle"
    trained.loggers.log_results(prepared.run.record, bundle)


def export(prepared: Prepared, student: PreTrainedModel, scores: Mapping[str, Scores]) -> None:
    """Exports, checks and times the heads of the student, and writes the bundle of each with its model card."""
    bundle, heads = prepared.run.directory / "bundle", heads_of(student)
    retrain = functools.cache(lambda: heads_of(prepared.retrain(student)))
    # A stream has no epoch that quantization-aware distillation could train for.
    can_retrain = isinstance(prepared.examples["train"], Examples)
    results = []
    with prepared.run.timed("export"), atomic_directory(bundle) as directory:
        for task_run, task_scores in prepared.scores_of_tasks(scores):
            own = directory / task_run.name
            own.mkdir(exist_ok=True)
            retrain_head = functools.partial(_pick, retrain, task_run.name) if can_retrain else None
            exported = task_run.export(own, heads[task_run.name], task_scores, retrain_head)
            results.append((task_run, task_scores, exported))
        if prepared.is_joint:
            _join(prepared, directory)
        write_wheel(prepared.run.directory)
    # The bundle is whole already, whatever becomes of the timing.
    within = prepared.plan.benchmark.limit(sum(prepared.run.record["seconds"].values())) / len(results)
    with prepared.run.timed("benchmark"):
        for task_run, task_scores, exported in results:
            task_run.measure(heads[task_run.name], task_scores, exported, within=within)
    if prepared.is_joint:
        replace_file(bundle, "README.md", report.render_overview_card(prepared.run.record))


def _join(prepared: Prepared, directory: Path) -> None:
    """Moves the weights that all heads have into files that they share, and records the sizes."""
    names = [task_run.name for task_run in prepared.tasks]
    prepared.run.update(shared=share_weights(directory, names), retention=_mean_retention(prepared))
    write_text(directory / "README.md", report.render_overview_card(prepared.run.record))
    for name in names:
        write_checksums(directory / name)


def _mean_retention(prepared: Prepared) -> dict[str, float | None]:
    """Returns the mean of the shares kept of all tasks, of each format that every task has."""
    shares = [task_run.run.record["retention"] for task_run in prepared.tasks]
    names = [name for name in shares[0] if all(name in row for row in shares)]
    columns = {name: [row[name] for row in shares] for name in names}
    return {name: None if None in values else sum(values) / len(values) for name, values in columns.items()}


def deliver_baselines(prepared: Prepared) -> None:
    """Saves and exports the baseline of each task whose student is worse than it, once all seeds are compared."""
    if not any(task_run.is_worse for task_run in prepared.tasks):
        return
    with prepared.run.timed("baseline"):
        _, module = prepared.supervise(prepared.load_baseline())
        averaging.load_best_weights(module, prepared.run.directory / BASELINE / "checkpoints")
        scores = prepared.evaluate(module.student.cpu().eval())
        heads = heads_of(module.student)
        for task_run, task_scores in prepared.scores_of_tasks(scores):
            if task_run.is_worse:
                task_run.publish_baseline(heads[task_run.name], task_scores)


def close(prepared: Prepared) -> None:
    """Writes the report and prints where everything is."""
    run = prepared.run
    page = write_report(run.directory, {**run.record, "status": "finished"})
    for task_run in prepared.tasks:
        # They were written before the baseline, the timing or further seeds.
        task_run.replace_cards()
    if not in_notebook():  # It shows the result, which has the table.
        console.print()
        console.print(report.summary_table(run.record))
    record = run.record
    for sentence in (*describe_verdict(record), *report.seed_sentences(record), *report.transfer_sentences(record)):
        print_line(sentence)
    print_line(f"Report   {page}")
    for task_run in prepared.tasks:
        print_line(f"Student  {task_run.student}")
    for task_run in prepared.tasks:
        if task_run.run.record["export"]:
            task_run.print_bundle()
    for task_run in prepared.tasks:
        task_run.print_baseline()


def _pick(models: Callable[[], Mapping[str, PreTrainedModel]], name: str) -> PreTrainedModel:
    return models()[name]


@dataclass(frozen=True, repr=False)
class Result(Shown):
    """A finished distillation, as plain values.

    Attributes:
        directory: of the run.
        record: the content of run.json.
    """

    directory: Path
    record: dict[str, Any]

    def __repr__(self) -> str:
        return str(self.overview())

    def overview(self) -> Overview:
        """Returns the table of models and files that the run prints at its end, with the verdict."""
        title = f"{self.record['student']['name']} for {self.record['task']['name']}: {self.directory}"
        notes = describe_verdict(self.record)
        return Overview(title, summary_rows(self.record), header=summary_columns(self.record), notes=notes)

    @property
    def metrics(self) -> dict[str, float]:
        """The student's metrics in torch."""
        return cast(dict[str, float], self.record["student"]["metrics"])

    @property
    def retention(self) -> dict[str, float | None] | None:
        """The student's metric over the teacher's, in torch and of each exported file."""
        return cast("dict[str, float | None] | None", self.record["retention"])

    @property
    def summary(self) -> dict[str, Any]:
        """Mean and standard deviation of every metric over the seeds; empty for one seed."""
        return cast(dict[str, Any], self.record["summary"])

    @property
    def comparison(self) -> dict[str, Any]:
        """The student's difference from its baseline and its teacher, with 95% interval and p."""
        return cast(dict[str, Any], self.record["comparison"])

    @property
    def verdict(self) -> str:
        """The verdict on the student in plain words, as the report and the model card have it."""
        return " ".join(describe_verdict(self.record))

    @property
    def bundle(self) -> Bundle:
        """The exported student, with the recommended model.

        Raises:
            UserError: for a student that was not exported, where no file passed its gate, and for a run on several
                tasks, which has `bundles`.
        """
        return Bundle(self.directory / "bundle")

    @property
    def baseline_bundle(self) -> Bundle:
        """The exported baseline, which is better than the student.

        Raises:
            UserError: if there is none.
        """
        baseline = self.record["baseline"]
        if not baseline:
            choice = self.record.get("baseline_choice") or {}
            reason = f" ({choice['reason']})" if choice.get("reason") else ""
            advice = "" if choice.get("possible") is False else ": set baseline=True"
            raise UserError(f"the run has no baseline{reason}{advice}")
        if self.record.get("tasks"):
            raise UserError("a run on several tasks has no baseline_bundle: see the directories in baseline/bundle")
        if not baseline.get("export"):
            raise UserError("the baseline was not exported, because the student is not worse: take bundle")
        return Bundle(self.directory / BASELINE / "bundle")

    @property
    def bundles(self) -> dict[str, Bundle]:
        """The exported student of each of several tasks by name, with the recommended model.

        Raises:
            UserError: for a task of which no file passed its gate.
        """
        return {name: Bundle(self.directory / "bundle" / name) for name in self.record.get("tasks") or {}}

    def plot(self) -> Plots:
        """The figures of the report as figures of matplotlib, which a notebook shows below each other.

        `result.plot()[0].savefig("models.pdf")` writes the first one to a file.
        """
        return Plots(draw_report(self.directory, self.record))

    def report(self) -> str:
        """The text of report.md."""
        return (self.directory / "report.md").read_text(encoding="utf-8")
