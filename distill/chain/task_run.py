"""One task of a run: its data, its teacher, its section of run.json, and its exported student.

A run on one task has one of them, whose section is the whole record.
"""

import copy
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain import breakdowns, student_setup
from distill.chain.breakdowns import ModelScores, TeacherTexts
from distill.chain.parent import Parent
from distill.chain.plan import Plan
from distill.chain.student_setup import OriginSource, measure_delivered, warn_of_budget
from distill.core.console import print_line, print_notice
from distill.core.contracts import BatchOptions, Data, EncodedSplits, Examples, Scores, Signal, Task
from distill.core.errors import first_line
from distill.core.files import JsonObject, atomic_directory, is_full_disk, make_directory, replace_file, write_text
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data.batches import MixedExamples, labelled_only, streamed_pool
from distill.edge.bundle_files import session, weight_bits
from distill.edge.decode import DECODERS
from distill.export.bundle_writer import FILES, Exported, begin_texts, text_metrics, wrap_file, write_bundle
from distill.export.gate import UNDECIDED, describe_sensitivity, measure_forms
from distill.export.latency import compare_models, time_dev_pass
from distill.export.onnx import export_model, write_hub
from distill.export.quantization import RecipeInput, write_dynamic, write_with_encoder
from distill.export.recipe_search import closest, describe
from distill.export.wheel import write_model2vec
from distill.kinds.multitask import Tasks
from distill.kinds.scoring import Scoring
from distill.losses.term import supervised_objective
from distill.models import compatibility
from distill.models.architectures.modeling_static import StaticPreTrainedModel
from distill.models.forward import exported_inputs, input_names
from distill.models.sentence_files import prompts_of
from distill.models.surgery.initialization import Origins
from distill.models.surgery.layers import Importance
from distill.models.vectors import save_encoder, vector_settings, vector_width
from distill.records import report
from distill.records.headline import warn_of_text
from distill.records.prediction_analysis import write_predictions
from distill.records.run import Run, create_results, hide_paths
from distill.records.schema import ExportedFile, first_split, metric_name
from distill.records.verdict import BASELINE_BUNDLE, Results, recommend
from distill.teachers.computation import labelled_loader, measure_importance
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.signal import measure_sureness
from distill.training.hyperparameters import with_batch_size
from distill.training.module import split_metrics
from distill.training.statistics import is_worse

BASELINE = "baseline"  # The directory of the student that is trained without a teacher.
SURENESS_EXAMPLES = 1_000  # Texts without labels that the teacher's sureness is the mean over, at most.


@dataclass(frozen=True)
class TaskRun:
    """One task of a run.

    Args:
        name: of the task among several; empty for the only one.
        plan: of the run.
        run: the section of the record.
        data: with the tokenized splits, of a task whose students are scored on tokens.
        origins: what its students may start from besides the teacher.
        text: what is to know of the texts that only the teacher labels, besides their record.
        is_baseline: whether the student is the baseline, whose files are in a directory of their own.
        ranking: the importance of the teacher's heads and inner neurons once it is measured, for all seeds.
        own_parent: what the students are made from in the place of the teacher; None for the teacher.
    """

    name: str
    task: Task
    plan: Plan
    run: Run
    data: Data
    examples: EncodedSplits
    teacher: PreparedTeacher
    origins: OriginSource
    text: Sequence[str] = ()
    is_baseline: bool = False
    ranking: list[Importance] = field(default_factory=list)
    own_parent: Parent | None = None

    @property
    def parent(self) -> Parent:
        """Returns what its students are made from, and the tokenizer that they read by."""
        return self.own_parent or Parent(self.teacher.model, self.teacher.tokenizer)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the tokenizer of its students."""
        return self.teacher.tokenizer if self.own_parent is None else self.own_parent.tokenizer

    @property
    def scoring(self) -> Scoring:
        return self.data.scoring

    @property
    def start(self) -> Origins:
        """Returns what its students may start from besides the teacher."""
        return replace(self.origins.of(self.tokenizer), importance=self.importance)

    def batches(self) -> BatchOptions:
        """Returns the size and the order of batches before `trainer.batch_size=auto` is chosen for the training."""
        return with_batch_size(self.plan.trainer).batches()

    def importance(self) -> Importance:
        """Returns the importance of the teacher's heads and inner neurons for the task, measured in the first call.

        Raises:
            UserError: for data without labels.
        """
        if not self.ranking:
            print_line(f"Ranking the heads and inner neurons of {self.teacher.resolved} by the loss on labels")
            self.ranking.append(self.rank(self.teacher.model))
        return self.ranking[0]

    def rank(self, model: PreTrainedModel) -> Importance:
        """Returns the importance of the heads and inner neurons of a model with the task's head.

        Raises:
            UserError: for data without labels.
        """
        objective = supervised_objective(self.data.terms, task=self.task.info.name)
        size, device = compatibility.encoder_size(model), self.plan.trainer.device()
        objective.connect(size, size)
        loader = labelled_loader(labelled_only(self.examples)["train"], **self.batches())
        model = model if device.type == "cpu" else copy.deepcopy(model).to(device)
        with torch.random.fork_rng(devices=[]):  # The student's weights are drawn next.
            return measure_importance(model, self.task, objective, loader)

    def directory(self, kind: str) -> Path:
        """Returns the directory of the task's `student`, `bundle` or `model2vec`."""
        return (self.run.root / BASELINE if self.is_baseline else self.run.root) / kind / self.name

    @property
    def is_worse(self) -> bool:
        """Returns whether the student is worse than its baseline on the split that stands first."""
        difference = self.run.record["comparison"].get("baseline")
        return difference is not None and is_worse(difference, selects=self.scoring.selects)

    def untaught(self) -> "TaskRun":
        """Returns the task with the teacher as it was before its training, whose layers a baseline starts from."""
        teacher = self.teacher.untrained()
        return replace(
            self, teacher=teacher, own_parent=None if self.own_parent is None else self.own_parent.of(teacher.model)
        )

    def describe_vocabulary(self, student: PreTrainedModel) -> str:
        """Describes the tokens that teacher and student read."""
        members = [member for member in self.teacher.members if member.readings and member.known is None]
        if not members:
            return compatibility.check_vocabulary(self.parent.model, student, self.tokenizer)
        read = " and ".join(dict.fromkeys(f"{len(member.tokenizer):,}" for member in members))
        words = f"the student reads {len(self.tokenizer):,} pieces and the teacher {read}, each by its own tokenizer"
        longest = max(reading.task.info.max_length for member in members for reading in member.readings.values())
        if longest <= self.task.info.max_length:
            return words
        return f"{words}; of {longest:,} tokens that the teacher reads the student sees {self.task.info.max_length:,}"

    def describe_teacher(self) -> str:
        """Describes the teacher: its name, where its head comes from, and its metric on dev."""
        teacher, metric = self.teacher, self.scoring.metric
        score = f", {metric} {teacher.metrics[metric]:.4f} on dev" if teacher.metrics else ""
        return f"{teacher.resolved} ({teacher.origin}){score}" + (f", for {self.name}" if self.name else "")

    def describe_precision(self) -> list[tuple[str, str]]:
        """Returns the option and the precision of each teacher for which a probe chose it, with the reason."""
        members = self.teacher.members
        return [
            ("teacher.precision", f"{one.precision}{f' of {one.resolved}' if len(members) > 1 else ''}: {reason}")
            for one in members
            if (reason := one.precision_reason) is not None
        ]

    def describe_data(self) -> list[tuple[str, str | None]]:
        """Returns the rows of the summary before training that concern the task and its examples."""
        record, info, examples = self.run.record["task"], self.task.info, self.examples
        longest = compatibility.longest(self.parent.model, self.tokenizer)
        texts = self.teacher_texts if self.plan.exports else None
        return [
            ("task", student_setup.describe_task(self.task, record, self.data)),
            ("tokens", student_setup.describe_lengths(examples, info.max_length, max_target=info.max_target)),
            ("long texts", student_setup.describe_cut(examples, info.max_length, longest=longest)),
            ("text", student_setup.describe_text(record.get("unlabelled"), self.text)),
            ("written texts", None if texts is None else texts.describe()),
        ]

    @cached_property
    def teacher_texts(self) -> TeacherTexts | None:
        """Returns the texts of the teacher for the splits that are scored; None for a task without such texts."""
        return TeacherTexts.open(self.teacher, self.data, cache_dir=self.plan.cache_dir)

    def record_sureness(self, signal: Signal) -> None:
        """Records how sure the teacher is of the texts that only it labels, if its outputs for them are cached."""
        record = self.run.record["task"]
        unlabelled = record.get("unlabelled")
        if not signal.bytes or unlabelled is None or unlabelled["sureness"] is not None:
            return
        sureness = measure_sureness(self.teacher, self.task, self.examples["train"], signal, most=SURENESS_EXAMPLES)
        self.run.update(task={**record, "unlabelled": {**unlabelled, "sureness": sureness}})

    def record_student(self, model: PreTrainedModel, scores: Mapping[str, Scores], *, name: str) -> None:
        """Records the metrics of the trained student and saves it."""
        self.run.update(
            student={
                "name": name, "parameters": compatibility.count_parameters(model),
                "metrics": split_metrics(self.scoring, scores), "layers": getattr(model.config, "teacher_layers", None),
            },
        )  # fmt: skip
        save_model(model, self.tokenizer, self.directory("student"), card=self.card(self.task.info.auto_class))

    def compare(self, scores: Mapping[str, Scores], baseline: Mapping[str, Scores]) -> None:
        """Records the differences of the student from its baseline, if there are scores of it, and its teacher."""
        models = {"student": scores, "baseline": baseline, "teacher": self.teacher.scores}
        parts = breakdowns.record_parts(self.scoring, models)
        comparison = breakdowns.compare_models(
            self.scoring, models, parts, split=first_split(self.run.record["task"]), seeds=self.plan.seeds
        )
        (self.run.parent or self.run).record["margin"] = self.plan.report.margin
        self.run.update(parts=parts, comparison=comparison)

    def export(
        self,
        directory: Path,
        student: PreTrainedModel,
        scores: Mapping[str, Scores],
        retrain: Callable[[], PreTrainedModel] | None = None,
    ) -> "Delivery":
        """Writes the bundle with its model card to `directory`, checks its files, and records them."""
        run, tokenizer = self.run, self.tokenizer
        if self.teacher_texts is not None:
            metrics = {**run.record["teacher"]["metrics"], **text_metrics(self.data, self.teacher_texts.write())}
            run.update(teacher={**run.record["teacher"], "metrics": metrics})
        # The directory of a teacher means nothing where the bundle goes.
        is_directory = Path(self.teacher.resolved).expanduser().is_dir()
        name = self.teacher.requested if is_directory else hide_paths(run.record)["teacher"]["resolved"]
        names = ["the baseline"] * self.is_baseline + ["of " * self.is_baseline + self.name] * bool(self.name)
        print_line(
            f"{' '.join(['Exporting', *names])} to ONNX, and quantizing until a file passes its gate on "
            f"{', '.join(scores)}"
        )
        shown = None if self.is_baseline else {"name": name, "metrics": run.record["teacher"]["metrics"]}
        space = {"space": self.teacher.fingerprint} if self._lives_with_teacher(student) else {}
        exported = write_bundle(
            directory, model=student, tokenizer=tokenizer, task=self.task, splits=self.data, scores=scores,
            settings=self.plan.export, retrain=retrain, taught_by=self.teacher.scores,
            entries={"teacher": shown, **space},
        )  # fmt: skip
        if any(form["documents"] == "teacher" for row in exported.formats.values() for form in row.get("vectors", ())):
            run.update(teacher={**run.record["teacher"], "vectors": self._teacher_vectors()})
        retention = measure_retention(run.record, exported.formats)
        run.update(export=exported.formats, attempts=exported.attempts, retention=retention)
        write_text(directory / "README.md", self.card())
        if self.plan.export.layout == "hub":
            with atomic_directory(self.directory("hub")) as hub:
                write_model(student, tokenizer, hub, card=self.card(self.task.info.auto_class))
                write_hub(directory, hub, {name: row["file"] for name, row in exported.formats.items()})
        if self.plan.export.model2vec:
            assert isinstance(student, StaticPreTrainedModel)  # Others are refused before the training.
            with atomic_directory(self.directory("model2vec")) as vectors:
                write_model2vec(vectors, student, tokenizer, max_length=self.task.info.max_length)
        return Delivery(self, student, scores, exported)

    def publish_baseline(self, model: PreTrainedModel, scores: Mapping[str, Scores]) -> None:
        """Saves, exports and checks the baseline, which is better than the student, and records its files.

        Its files are not timed, because a student of the same architecture is.
        """
        record = self.run.record
        student = {
            **record["student"], "name": f"{record['student']['name']}-{BASELINE}",
            "metrics": record["baseline"]["metrics"], "untaught": record["comparison"]["baseline"],
        }  # fmt: skip
        results = create_results() | {"task": record["task"], "teacher": record["teacher"], "student": student}
        baseline = replace(self, run=Run(self.run.directory, results, parent=self.run), is_baseline=True)
        directory, auto_class = baseline.directory("student"), self.task.info.auto_class
        save_model(model, self.tokenizer, directory, card=baseline.card(auto_class))
        if self.plan.exports:
            with atomic_directory(baseline.directory("bundle")) as bundle:
                baseline.export(bundle, model, scores)
            self.run.update(baseline={**record["baseline"], "export": results["export"]})
            replace_file(directory, "README.md", baseline.card(auto_class))

    def _lives_with_teacher(self, student: PreTrainedModel) -> bool:
        """Returns whether the vectors of a student were taught to be among its teacher's."""
        if self.is_baseline or vector_settings(student.config) is None or len(self.teacher.members) > 1:
            return False
        objective = self.plan.objective
        is_taught = objective.names_where(lambda term: term.teaches_space)
        width = vector_width(self.teacher.model.config)
        return bool(is_taught) and width == vector_width(student.config) and not objective.dimensions

    def _teacher_vectors(self) -> list[dict[str, Any]]:
        """Returns the forms of the teacher's vectors with their metrics, whose documents the student searches too."""
        scoring, scores = self.data.scoring, self.teacher.scores
        forms = measure_forms(scoring, scores, self.plan.export.dimensions, {})
        return [
            {**form._asdict(), "metrics": split_metrics(scoring, {name: of[row][1] for name, of in forms.items()})}
            for row, (form, _) in enumerate(forms["dev"])
        ]

    def replace_cards(self) -> None:
        """Writes the model cards of the student and, if there is one, the bundle again, with what the record has."""
        if self.run.record["export"]:
            replace_file(self.directory("bundle"), "README.md", self.card())
        replace_file(self.directory("student"), "README.md", self.card(self.task.info.auto_class))

    def card(self, auto_class: str | None = None) -> str:
        """Returns the README.md of the bundle, or of the student as a Hugging Face model that this class loads."""
        return report.render_model_card(self.run.whole(), self.data.labels, auto_class=auto_class)

    def print_bundle(self) -> None:
        """Prints the bundle, its recommended file and what is to know of it."""
        record, bundle, of_task = self.run.record, self.directory("bundle"), f"of {self.name} " if self.name else ""
        formats = record["export"]
        chosen = recommend(formats)
        undecided = [file for file in formats.values() if file["gate"] == UNDECIDED]
        for file in undecided:
            print_notice(f"{file['file']} {of_task}is undecided: {file['reason']}")
        if chosen is None:
            print_notice(f"no exported file {of_task}passed its gate; report.md has the differences")
        elif not undecided and (attempt := closest(record["attempts"])) is not None:
            print_notice(f"no recipe of quantization {of_task}passed its gate; closest came {describe(attempt)}")
        warn_of_budget(self.plan.budget, (record.get("budget") or {}).get("delivered"))
        warn_of_text(record["task"], formats if chosen is None else {chosen: formats[chosen]})
        if chosen is not None and formats[chosen].get("batch_sensitivity"):
            file = formats[chosen]
            sentence = describe_sensitivity(file["file"], file["batch_sensitivity"], file["batch_size"])
            print_line(f"Batches  {sentence}")
        print_line(f"Bundle   {bundle}" + (f"  (recommended: {formats[chosen]['file']})" if chosen else ""))
        verdict = Results(self.run.whole()).decide()
        is_better = verdict is not None and verdict.bundle == BASELINE_BUNDLE
        preferred = self.run.root / BASELINE_BUNDLE / self.name if is_better else bundle
        print_line(f"Try it   python -m distill.edge {preferred} {report.example_argument(record['task'])}")

    def print_baseline(self) -> None:
        """Prints the directory of a baseline that is better than the student."""
        if not self.is_worse:
            return
        files = self.run.record["baseline"].get("export") or {}
        directory = replace(self, is_baseline=True).directory("bundle" if files else "student")
        chosen = recommend(files)
        ending = f"recommended: {files[chosen]['file']}; " if chosen else ""
        print_line(f"Baseline {directory}  ({ending}better than the student)")


@dataclass(frozen=True)
class Delivery:
    """The exported student of a task, whose files are timed and scored further in its whole bundle.

    Args:
        student: in torch.
        scores: of the student, by split.
    """

    task_run: TaskRun
    student: PreTrainedModel
    scores: Mapping[str, Scores]
    exported: Exported

    def measure(self, *, within: float) -> None:
        """Records the predictions and the latency, timed in `within` s."""
        task_run, run, plan = self.task_run, self.task_run.run, self.task_run.plan
        data, scoring, tokenizer = task_run.data, task_run.scoring, task_run.tokenizer
        models = {"teacher": task_run.teacher.scores, "student": self.scores, **self.exported.scores}
        breakdown = {
            split: {name: scoring.breakdown(scores[split]) for name, scores in models.items()} for split in self.scores
        }
        run.update(
            breakdown={split: of_models for split, of_models in breakdown.items() if of_models["student"]},
            lengths=breakdowns.break_down_scores_by_length(models, data, tokenizer),
        )
        written: dict[str, dict[str, list[Any]]] = {}
        if task_run.teacher_texts is not None:
            texts = {"teacher": task_run.teacher_texts.write(), **self.exported.texts}
            written = task_run.teacher_texts.list_columns(texts)
            run.update(texts=task_run.teacher_texts.compare(texts))
        make_directory(run.directory)
        write_predictions(run.directory, models, splits=data, settings=plan.record, written=written)
        run.update(benchmark=self._time(within))
        if run.record.get("budget"):
            delivered = measure_delivered(
                plan, run.record, task_run.directory("bundle"), inputs=exported_inputs(self.student, tokenizer),
                vocabulary=self.pieces, choices=data.choices,
            )  # fmt: skip
            run.update(budget={**run.record["budget"], "delivered": delivered})
        if plan.benchmark.enabled and plan.benchmark.dev_pass:
            dev, threads = task_run.examples["dev"], plan.benchmark.threads
            assert isinstance(dev, Examples)  # No split that is scored is a stream.
            timed = self._timed_models()
            passes = time_dev_pass(timed, dev, tokenizer=tokenizer, threads=threads, vocabulary=self.pieces)
            run.update(dev_pass=passes)
        if plan.benchmark.max_lengths is not None:
            run.update(cuts=self._score_cuts(models, plan.benchmark.max_lengths))
        task_run.replace_cards()

    @cached_property
    def pieces(self) -> int:
        """The number of pieces of the bundle, or of the teacher if it has fewer, by which both are timed."""
        tokenizer = Tokenizer.from_file(str(self.task_run.directory("bundle") / "tokenizer.json"))
        return min(len(self.task_run.tokenizer), len(self.task_run.teacher.tokenizer), tokenizer.get_vocab_size())

    def _time(self, within: float) -> list[dict[str, Any]]:
        """Latencies of student and, unless it is left out, teacher in torch and in ONNX, measured in turns."""
        task_run = self.task_run
        if not task_run.plan.benchmark.enabled:
            return []
        if DECODERS[task_run.task.info.decoder].targets:
            print_notice("the student is not timed, because the time of a text depends on its length: time its writing")
            return []
        start = time.perf_counter()
        models = self._timed_models()
        within -= time.perf_counter() - start  # The teacher's files may have been made.
        return compare_models(
            models, tokenizer=task_run.tokenizer, settings=task_run.plan.benchmark,
            choices=task_run.data.choices, vocabulary=self.pieces, within=within,
        )  # fmt: skip

    def _timed_models(self) -> dict[str, tuple[PreTrainedModel, dict[str, Path]]]:
        """The models that are timed with their files: the student and, unless it is left out, the teacher."""
        teacher = self.task_run.teacher
        is_timed = self.task_run.plan.benchmark.teacher and len(teacher.members) == 1 and teacher.has_head
        models = {"teacher": (teacher.model, self._teacher_files())} if is_timed else {}
        return {**models, "student": (self.student, self._files)}

    @property
    def _files(self) -> dict[str, Path]:
        """The files of the student by format."""
        bundle = self.task_run.directory("bundle")
        return {format: bundle / file["file"] for format, file in self.exported.formats.items()}

    def _score_cuts(self, models: ModelScores, lengths: Sequence[int]) -> breakdowns.Lengths:
        """The `cuts` of run.json: the metric of the exported files on texts that are cut to so many tokens."""
        task_run, teacher, files = self.task_run, self.task_run.teacher, self._files
        with tempfile.TemporaryDirectory() as directory:
            is_alike = task_run.task.info.taught_by is None  # Else no bundle of the task runs the teacher's file.
            if is_alike and len(teacher.members) == 1 and (of_teacher := self._teacher_files()):
                wrap_file(
                    Path(directory), of_teacher["fp32"], model=teacher.model, tokenizer=teacher.tokenizer,
                    task=task_run.task, splits=task_run.data,
                )  # fmt: skip
                files = {"teacher": Path(directory) / of_teacher["fp32"].name, **files}
            split = first_split(task_run.run.record["task"])
            data = begin_texts(task_run.task, task_run.data, task_run.tokenizer)
            return breakdowns.score_cuts(files, models, data, lengths, split=split)

    def _teacher_files(self) -> dict[str, Path]:
        """The teacher's own ONNX files, cached under its weights, its inputs and the recipe; none if they fail."""
        prepared, plan, generates = self.task_run.teacher, self.task_run.plan, self.task_run.task.info.generates
        bits = weight_bits(plan.export.targets()[0])
        teacher, tokenizer = prepared.model, prepared.tokenizer
        key = entry_key("onnx", 1, prepared.weights, exported_inputs(teacher, tokenizer))
        directory = plan.cache_dir / "onnx" / f"{key[:16]}-rows-{bits}"
        try:
            if not has_entry(directory):
                with new_entry(directory) as temporary:
                    fp32, int8 = (temporary / FILES[format] for format in ("fp32", "int8"))
                    export_model(teacher, fp32, tokenizer=tokenizer, generates=generates)
                    write_with_encoder(write_dynamic, RecipeInput(fp32, bits, ties=generates), int8)
                    for file in FILES.values():
                        session(temporary / file)
        except Exception as error:  # Of any library. The run needs these files for some rows of a table alone.
            if is_full_disk(error):
                raise
            reason = first_line(error)
            print_notice(f"the teacher is timed in torch alone, because its ONNX files cannot be made: {reason}")
            return {}
        return {format: directory / file for format, file in FILES.items()}


def measure_retention(record: JsonObject, formats: Mapping[str, ExportedFile]) -> dict[str, float | None]:
    """The share of the teacher's metric that each file keeps, as `share_kept`, on the split that stands first."""
    results = Results(record)
    metric = metric_name(results.task, results.split)
    teacher = record["teacher"]["metrics"][metric]
    values = {"torch": record["student"]["metrics"][metric]}
    values |= {name: row["metrics"][metric] for name, row in formats.items()}
    return {name: results.unit.share_kept(value, teacher) for name, value in values.items()}


def task_record(task: Task, data: Data, examples: EncodedSplits) -> dict[str, Any]:
    """The `task` of run.json."""
    sizes = data.sizes() or {name: len(split) for name, split in examples.items() if isinstance(split, Examples)}
    truncated = {name: split.truncated for name, split in examples.items() if isinstance(split, Examples)}
    train = examples["train"]
    unlabelled = {"unlabelled": dict(train.unlabelled)} if isinstance(train, MixedExamples) else {}
    if (streamed := streamed_pool(train)) is not None:
        unlabelled = {"unlabelled": streamed.record()}
    return {
        "name": task.info.name, "kind": task.info.kind, "metric": data.scoring.metric,
        "selects": data.scoring.selects, "pair": task.info.pair, **data.scoring.describe(data),
        "examples": {"train": 0, "dev": 0, "test": 0} | sizes, "truncated": truncated,
        "sha256": data_digest(task, data, examples), **unlabelled,
    }  # fmt: skip


def joint_record(together: Tasks, scoring: Scoring, tasks: Sequence[TaskRun]) -> dict[str, Any]:
    """The `task` of run.json for several tasks: their names, and the sums of their examples."""
    records = [task_run.run.record["task"] for task_run in tasks]
    sizes: dict[str, int] = {}
    for split, number in (item for record in records for item in record["examples"].items()):
        sizes[split] = sizes.get(split, 0) + number
    return {
        "name": together.name, "kind": together.kind, "metric": scoring.metric, "selects": scoring.selects,
        "tasks": [task_run.name for task_run in tasks], "examples": sizes,
        "has_test": all(first_split(record) == "test" for record in records),
        "sha256": "-".join(record["sha256"] for record in records),
    }  # fmt: skip


def data_digest(task: Task, data: Data, examples: EncodedSplits) -> str:
    """Stands for the data that a training depends on: of labelled rows the content, of raw text the sequences."""
    train = examples["train"]
    if not task.info.raw_text:
        if (streamed := streamed_pool(train)) is not None:
            return f"{data.sha256}-{streamed.shards.digest}"
        return f"{data.sha256}-{train.digest}" if isinstance(train, MixedExamples) else data.sha256
    return "-".join(split.digest for split in examples.values() if isinstance(split, Examples))


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path, *, card: str | None = None
) -> None:
    """Writes an ordinary checkpoint directory, whole or not at all; sentence-transformers loads that of an encoder.

    The tokenizer is saved with the longest input of this model, which may be less than that of the teacher.
    `card` is its model card.
    """
    with atomic_directory(directory) as temporary:
        write_model(model, tokenizer, temporary, card=card)


def write_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path, *, card: str | None
) -> None:
    """Writes the files of `save_model` into a directory."""
    own = copy.deepcopy(tokenizer)
    own.model_max_length = min(tokenizer.model_max_length, compatibility.longest(model, tokenizer))
    own.init_kwargs["model_input_names"] = own.model_input_names = input_names(model, own)
    save_encoder(model, directory, prompts_of(tokenizer))
    own.save_pretrained(directory)
    if card is not None:
        write_text(directory / "README.md", card)
