"""The program of a run: prepares teacher and student, trains, exports and measures, without Hydra."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain import breakdowns, encoding, student_search
from distill.chain.parent import Parent, check_terms_across, choose_terms, fit_parent, is_same, load_parent
from distill.chain.plan import Plan, Student, check_plan
from distill.chain.student_setup import DepthSearch, OriginSource, PlanSummary, show_summary
from distill.chain.task_run import BASELINE, TaskRun, joint_record, task_record
from distill.chain.train import Prepared, create_model, make_student
from distill.core.console import console, in_notebook, print_line, print_notice, silence_libraries
from distill.core.contracts import Data, EncodedSplits, Examples, Loader, Scores, Task
from distill.core.errors import Overview, Shown, UserError
from distill.core.files import atomic_directory, replace_file, write_checksums, write_text
from distill.core.options import show_value
from distill.core.storage import open_cache
from distill.data.batches import streamed_pool
from distill.data.labelled_text import LabelledText
from distill.data.profile import print_rows_profile
from distill.data.shards import Shards
from distill.data.splits import LabelledData
from distill.edge import Bundle
from distill.export.bundle_writer import check_calibration, check_patterns
from distill.export.gate import check_dev, check_dimensions
from distill.export.graph import share_weights
from distill.export.rehearsal import rehearse_export
from distill.export.wheel import check_model2vec, write_wheel
from distill.kinds import multitask
from distill.kinds.kind import Kind
from distill.losses.term import supervised_objective
from distill.models import compatibility
from distill.models.decoding import list_notices
from distill.models.forward import choose_padding_side
from distill.models.surgery.embeddings import CutVocabulary, check_cut
from distill.models.surgery.initialization import Origins
from distill.models.surgery.long_texts import check_exportable
from distill.models.wrappers import check_encoder, heads_of
from distill.records import report
from distill.records.headline import describe_verdict
from distill.records.pages import draw_report, write_report
from distill.records.plots import Plots
from distill.records.report import summary_cells
from distill.records.run import Run
from distill.teachers import preparation as teaching
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.reading import match_splits
from distill.teachers.signal import check_size, check_teachers, join_scores, join_teachers
from distill.teachers.source import TeacherSource, locate

RANKED = ("heads", "ffn")  # Options of a student that copies the most important of the teacher's parts.


def prepare(source: TeacherSource, student: Student, plan: Plan, run: Run) -> Prepared:
    """Prepares the training of the first student: its data, its teachers, its weights and the choices left to `auto`.

    Raises:
        UserError: for options, data or models that do not fit, before anything is trained.
    """
    plan = (plan.for_fitted(student.name) if student.is_fitted else plan).choose_for(source)
    check_plan(source, plan)
    plan = choose_terms(plan, student, source)
    breakdowns.check_seeds(plan)
    silence_libraries()
    open_cache(plan.cache_dir)
    with run.timed("data"):
        readings = [
            _read(name, task, source.of_task(name), student, plan, run.section(name))
            for name, task in plan.tasks.items()
        ]
    if student.is_fitted:
        with run.timed("training"):
            readings = [replace(one, fitted=fit_parent(student, one.task, one.data)) for one in readings]
    if len(readings) > 1:
        multitask.report_shared_texts({reading.name: cast(LabelledData, reading.data).splits for reading in readings})
    check_teachers({reading.name: reading.source for reading in readings}, plan.objective)
    with run.timed("teacher"):
        students, tasks = zip(*(reading.prepare() for reading in readings), strict=True)
        student = student_search.start_generally(students[0], tasks[0], run)
    teacher = join_teachers({task_run.name: task_run.teacher for task_run in tasks}, plan.objective)
    examples = multitask.join_splits([task_run.examples for task_run in tasks], sampling=plan.tasks.sampling)
    rows = sum(task_run.data.sizes().get("train", 0) for task_run in tasks)
    model = create_model(student, tasks, plan)
    plan = plan.choose_batches(model, examples["train"], rows)
    loaders = _create_loaders(plan, examples)
    if isinstance(examples["train"], Examples):
        steps, scored = len(loaders["train"]), len(cast(Examples, examples["dev"]))
        plan = plan.choose_training(model, examples=rows, steps_per_epoch=steps, scored=scored)
    if not plan.dry_run:
        with run.timed("teacher"):
            for task_run in tasks:
                teaching.score(
                    task_run.teacher, task_run.task, task_run.scoring, task_run.examples,
                    source=source.of_task(task_run.name), directory=plan.cache_dir / "outputs",
                )  # fmt: skip
                encoding.compare_readings(task_run.teacher, task_run.scoring)
    ready = Prepared(plan, run, student, model, tasks, examples, loaders, teacher, source)
    if ready.fitted and not student.is_fitted and (source.labeller is not None or source.others):
        raise UserError(
            f"student {student.name} is one fine-tuned teacher, and these are other ones: take another student"
        )
    _record(ready)
    return encoding.choose_baseline(ready if plan.objective.needs_teacher else ready.without_unlabelled())


def prepare_seed(first: Prepared, plan: Plan, run: Run) -> Prepared:
    """Returns the training of the student of a further seed, with the data and the teachers of the first one."""
    model, loaders = create_model(first.student, first.tasks, plan), _create_loaders(plan, first.examples)
    tasks = []
    for task_run in first.tasks:
        section = run.section(task_run.name)
        section.record.update({name: task_run.run.record[name] for name in ("task", "teacher")})
        tasks.append(replace(task_run, plan=plan, run=section))
    return replace(first, plan=plan, run=run, model=model, tasks=tasks, loaders=loaders)


@dataclass(frozen=True)
class _Reading:
    """The data of one task, and everything that its teacher is prepared with.

    Args:
        fitted: a student that is fitted to the labels; None for one that is made from its teacher.
    """

    name: str
    task: Task
    plan: Plan
    run: Run
    source: TeacherSource
    data: Data
    encode: encoding.Encoding
    search: DepthSearch
    fitted: Parent | None = None

    def prepare(self) -> tuple[Student, TaskRun]:
        """Returns the student within the budget, and the task with its teacher."""
        plan, info = self.plan, self.task.info
        preparation = teaching.Preparation(
            task=self.teacher_task, splits=self.data, cache_dir=plan.cache_dir, run_directory=self.run.directory,
            device=plan.trainer.device(), resume=plan.resume, dry_run=plan.dry_run,
            rehearse=self._rehearse,
        )  # fmt: skip
        teacher = teaching.prepare(self.source, preparation)
        if (shards := _shards_of(self.data)) is not None and not plan.dry_run:
            shards.check_teacher(teacher.fingerprint)
        if info.writes:  # Notices of what no text is written with here, of the teacher's generation configuration.
            notices = list_notices(teacher.model, fills=not info.generates, max_target=info.max_target)
            for notice in notices:
                print_notice(notice)
            teacher.notices += notices
        if self.data.scoring.needs_teacher:
            assert isinstance(self.data, LabelledData)  # Other tasks have no rows that could lack a label.
            self.encode.given = teaching.label_scored(
                teacher, self.teacher_task, self.data, cache=self.source.cache, directory=plan.cache_dir,
                dry_run=plan.dry_run,
            )  # fmt: skip
        parent = self._load_parent(teacher.model, teacher.tokenizer)
        student, examples = self._choose_student(
            teacher.model, parent, lambda student: self.encode(teacher, student, parent.tokenizer)
        )
        examples = self._match(teacher, parent.tokenizer, examples)
        cut = None
        if plan.trains_pieces:
            teacher, examples, cut = self._cut_vocabulary(teacher, student, examples)
        data = self.encode.data.with_examples(examples)
        origins = OriginSource(self.source, self.data, plan.cache_dir, plan.trainer.device(), cut)
        task_run = TaskRun(
            self.name, self.task, plan, self.run, data, examples, teacher, origins, self.encode.notes,
            own_parent=parent if parent.is_own else None,
        )  # fmt: skip
        return student if plan.dry_run else student_search.search_layers(student, task_run), task_run

    @property
    def teacher_task(self) -> Task:
        """Returns the task as the teacher reads it, which may be more tokens of an example."""
        length = self.source.max_length
        if length in (None, self.task.info.max_length) or not isinstance(self.task, Kind):
            return self.task
        assert length is not None
        return self.task.with_max_length(length)

    def _load_parent(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Parent:
        return self.fitted or load_parent(self.search.student, self.task, self.data, model, tokenizer)

    def _rehearse(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: EncodedSplits) -> None:
        """Raises UserError for a student that cannot follow its teacher, before that one is fine-tuned."""
        parent = self._load_parent(model, tokenizer)
        if parent.tokenizer is not tokenizer:
            examples = self.task.encode(self.data, parent.tokenizer, self.plan.cache_dir)
        self._choose_student(model, parent, lambda student: self.encode.rehearse(parent.tokenizer, examples))

    def _match(
        self, teacher: PreparedTeacher, tokenizer: PreTrainedTokenizerBase, examples: EncodedSplits
    ) -> EncodedSplits:
        """Returns the examples of a student, and gives each teacher with another tokenizer its own reading of them."""
        for member in teacher.members:
            if member.known is not None:
                assert isinstance(self.task, Kind)
                assert isinstance(self.encode.data, LabelledData)
                examples, member.readings = member.known.match(self.task, self.encode.data, examples)
            elif self.teacher_task is not self.task or not is_same(tokenizer, member.tokenizer):
                check_terms_across(self.plan)
                assert isinstance(self.teacher_task, Kind)
                own = self.teacher_task.encode(self.encode.data, member.tokenizer, self.plan.cache_dir)
                examples, member.readings = match_splits(self.teacher_task, examples, own)
        return examples

    def _cut_vocabulary(
        self, teacher: PreparedTeacher, student: Student, examples: EncodedSplits
    ) -> tuple[PreparedTeacher, EncodedSplits, CutVocabulary]:
        """Returns the teacher and the tokenized splits with the pieces of the task's texts alone, and these pieces."""
        plan, task, data = self.plan, self.task, self.encode.data
        if not plan.dry_run:
            teaching.score(
                teacher, task, data.scoring, examples, source=self.source, directory=plan.cache_dir / "outputs"
            )
        smaller, cut = encoding.cut_teacher(teacher, data, plan.export)
        encoding.check_cut_student(student, smaller, task, data)
        return smaller, task.encode(data, smaller.tokenizer, plan.cache_dir), cut

    def _choose_student(
        self, teacher: PreTrainedModel, parent: Parent, encode: Callable[[PreTrainedModel], EncodedSplits]
    ) -> tuple[Student, EncodedSplits]:
        """Returns the student within the budget and the tokenized splits, which `encode` returns for its model.

        Raises:
            UserError: for a student that cannot follow the teacher. This is called before the teacher is fine-tuned
                too.
        """
        plan, task, is_first = self.plan, self.task, self.search.chosen is None
        tokenizer = parent.tokenizer
        student = self.search.choose(parent.model, tokenizer).within(teacher, plan.objective)
        model, _ = make_student(student, parent.model, task, self.data, Origins(tokenizer))
        lengthens = student.has_option("positions")
        compatibility.check_length(model, tokenizer, task.info.max_length, who="student", lengthens=lengthens)
        self._check_student(student.name, model, teacher, parent)
        student_search.check_pruning(student, model, teacher, plan, task, self.data)
        if tokenizer.padding_side == "left":  # RoBERTa's positions go with the tokens, those of other students do not.
            for notice in choose_padding_side(model.eval(), tokenizer):
                print_notice(notice)
        if is_first and plan.exports:
            rehearse_export(
                model, tokenizer, name=student.name, max_length=task.info.max_length, generates=task.info.writes
            )
        if self.name:
            check_encoder(model, student.name)
        examples = encode(model)
        if isinstance(examples["train"], Examples):
            compatibility.check_data(plan.objective, task, examples["train"])
            check_size(
                plan.objective, task, teacher, examples["train"], self.source.cache, student=model,
                epochs=plan.trainer.fixed_epochs,
            )  # fmt: skip
        return student, examples

    def _check_student(self, name: str, student: PreTrainedModel, teacher: PreTrainedModel, parent: Parent) -> None:
        """Raises UserError for a student that cannot follow the teacher."""
        export, objective, info, tokenizer = self.plan.export, self.plan.objective, self.task.info, parent.tokenizer
        compatibility.check_filling(student, info, name)
        compatibility.check_vocabulary(student if parent.is_own else parent.model, student, tokenizer)
        compatibility.check_target_length(student, tokenizer, info.max_target, who="student")
        compatibility.check_outputs(objective, teacher=teacher, student=student)
        compatibility.check_sizes(objective, teacher=teacher, student=student)
        compatibility.check_head(student, teacher, name=name, likelihood=info.likelihood)
        if export.model2vec:
            check_model2vec(student, name)
        if self.plan.exports:
            check_exportable(student, name)
            check_dimensions(export, student)
            if export.vocabulary != "full":
                check_cut(tokenizer, export.vocabulary)


def _read(name: str, task: Task, source: TeacherSource, student: Student, plan: Plan, run: Run) -> _Reading:
    """Reads the data of one task and finds the teacher's weights.

    Raises:
        UserError: for weights that are not available, and data that does not fit the options.
    """
    rows = getattr(task, "rows", None)
    if plan.dry_run and isinstance(rows, LabelledText) and rows.is_labelled and source.labeller is None:
        print_rows_profile(rows)
    data = task.read(plan.cache_dir)
    sizes = data.sizes()
    check_dev(sizes.get("dev", 0), plan.export.abstain)
    if plan.exports and "train" in sizes:
        check_calibration(sizes["train"], plan.export)
        check_patterns(data.labels, plan.export)
    if plan.wants_baseline:
        supervised_objective(data.terms, task=task.info.name)
    check_ranking(student, data, task)
    check_streamed(data, task, plan)
    found, length = locate(source, task), student.option("max_length") if student.is_fitted else None
    if length is not None:  # It reads more than its teacher.
        assert isinstance(task, Kind)
        found, task = replace(found, max_length=found.max_length or task.max_length), task.with_max_length(length)
    if student_search.is_searched(student) and name:
        raise UserError(f"student.init=search is for one task, and task={plan.tasks.name} has several: leave it out")
    encoding.check_pieces(student, found, plan)
    student_search.check_general(student, found, task, data, plan)
    encode = encoding.Encoding(plan, task, data, found)
    search = DepthSearch(student, plan, task, run, data)
    return _Reading(name, task, plan, run, found, data, encode, search)


def _shards_of(data: Data) -> Shards | None:
    """Returns the shards that the training streams."""
    return data.pool.shards if isinstance(data, LabelledData) else None


def check_streamed(data: Data, task: Task, plan: Plan) -> None:
    """Raises UserError for a training that cannot stream its shards, which have the teacher's outputs alone."""
    shards = _shards_of(data)
    if shards is None:
        return
    assert isinstance(task, Kind)
    shards.check(task.kind, task.known_columns, data.labels)
    named, needed = f"the shards in {shards.directory}", plan.objective.needs
    reading = [name for output in sorted(needed) for name in plan.objective.needing(output)]
    if len(plan.tasks) > 1:
        raise UserError(f"{named} are streamed for one task, and task={plan.tasks.name} has several")
    if reading:
        raise UserError(
            f"{named} have the teacher's outputs alone, and {', '.join(dict.fromkeys(reading))} of objective "
            f"{plan.objective.name} needs {', '.join(sorted(needed))}: take objective=hinton, or objective=embedding "
            "for vectors"
        )
    if plan.trains_pieces:
        raise UserError(f"{named} may have any pieces of the vocabulary: leave out export.vocabulary")
    if plan.trainer.max_steps is None:
        shown = sum(shards.rows) / cast(LabelledData, data).pool.share
        raise UserError(
            f"{named} are streamed: give trainer.max_steps; to show each of the {sum(shards.rows):,} texts once is to "
            f"show {shown:,.0f} examples, in batches of trainer.batch_size"
        )


def check_ranking(student: Student, data: Data, task: Task) -> None:
    """Raises UserError for a student whose heads or inner neurons would be ranked on data without labels."""
    given = [
        f"student.{name}={show_value(student.option(name))}" for name in RANKED if student.option(name) is not None
    ]
    if given and not data.terms and student.option("init") != "random":
        raise UserError(
            f"{' '.join(given)} ranks heads and inner neurons by the loss on labels, and the texts of task "
            f"{task.info.name} have none: leave it out, or set student.init=random"
        )


def _create_loaders(plan: Plan, examples: EncodedSplits) -> dict[str, Loader]:
    return multitask.all_task_loaders(examples, steps=plan.trainer.max_steps, **plan.trainer.batches())


def _record(prepared: Prepared) -> None:
    """Records the objective, and the data and the teacher of every task and of all together."""
    plan, run, teacher = prepared.plan, prepared.run, prepared.teacher
    for task_run in prepared.tasks:
        about = task_record(task_run.task, task_run.data, task_run.examples)
        if "unlabelled" in about:
            before = (task_run.run.record.get("task") or {}).get("unlabelled") or {}  # Of a run that is resumed.
            share = about["unlabelled"]["share"] if plan.objective.needs_teacher else 0.0  # They are left out.
            about["unlabelled"] |= {"share": share, "sureness": before.get("sureness")}
        task_run.run.update(task=about, teacher=task_run.teacher.record())
    if teacher.by_task:
        join_scores(teacher, prepared.scoring)
        run.update(task=joint_record(plan.tasks, prepared.scoring, prepared.tasks), teacher=teacher.record())
    run.update(objective=plan.objective.record())


def export(prepared: Prepared, student: PreTrainedModel, scores: Mapping[str, Scores]) -> None:
    """Exports, checks and times the heads of the student, and writes the bundle of each with its model card."""
    bundle, heads = prepared.run.directory / "bundle", heads_of(student)
    retrained = functools.cache(lambda: heads_of(prepared.retrain(student)))
    # A stream has no epoch that quantization-aware distillation could train for.
    train = prepared.examples["train"]
    can_retrain = isinstance(train, Examples) and streamed_pool(train) is None and prepared.fitted is None
    deliveries = []
    with prepared.run.timed("export"), atomic_directory(bundle) as directory:
        for task_run, task_scores in prepared.scores_of_tasks(scores):
            name, own = task_run.name, directory / task_run.name
            own.mkdir(exist_ok=True)
            retrain = functools.partial(lambda head: retrained()[head], name) if can_retrain else None
            deliveries.append(task_run.export(own, heads[name], task_scores, retrain))
        if prepared.is_joint:
            # The weights that all heads have move into files that they share.
            names = [task_run.name for task_run in prepared.tasks]
            prepared.run.update(shared=share_weights(directory, names), retention=_mean_retention(prepared))
            write_text(directory / "README.md", report.render_overview_card(prepared.run.record))
            for name in names:
                write_checksums(directory / name)
        write_wheel(prepared.run.directory)
    # The bundle is whole already, whatever becomes of the timing.
    within = prepared.plan.benchmark.limit(sum(prepared.run.record["seconds"].values())) / len(deliveries)
    with prepared.run.timed("benchmark"):
        for delivery in deliveries:
            delivery.measure(within=within)
    if prepared.is_joint:
        replace_file(bundle, "README.md", report.render_overview_card(prepared.run.record))


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
        student = prepared.load_baseline()
        scores, heads = prepared.evaluate(student), heads_of(student)
        for task_run, task_scores in prepared.scores_of_tasks(scores):
            if task_run.is_worse:
                task_run.publish_baseline(heads[task_run.name], task_scores)


def close_run(prepared: Prepared) -> None:
    """Writes the report and prints where everything is."""
    run, record = prepared.run, prepared.run.record
    page = write_report(run.directory, {**record, "status": "finished"})
    for task_run in prepared.tasks:
        # They were written before the baseline, the timing or further seeds.
        task_run.replace_cards()
    if not in_notebook():  # It shows the result, which has the table.
        console.print()
        console.print(report.summary_table(record))
    for sentence in (*describe_verdict(record), *report.seed_sentences(record), *report.transfer_sentences(record)):
        print_line(sentence)
    print_line(f"Report   {page}")
    for task_run in prepared.tasks:
        print_line(f"Student  {task_run.directory('student')}")
    for task_run in prepared.tasks:
        if task_run.run.record["export"]:
            task_run.print_bundle()
    for task_run in prepared.tasks:
        task_run.print_baseline()


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
        header, *rows = summary_cells(self.record)
        return Overview(title, rows, header=header, notes=notes)

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


def distill(source: TeacherSource, student: Student, plan: Plan, run: Run) -> None:
    """Distils a student in a run's directory, and keeps its record up to date after every stage.

    Raises:
        UserError: for options, data or models that do not fit, before anything is trained.
    """
    first = prepare(source, student, plan, run)
    further_plans = breakdowns.further_plans(first.plan)  # Before the first training, which fits the objective.
    finished = [entry["seed"] for entry in run.record.get("seeds") or []] if further_plans else []
    if plan.seed not in finished:
        _distill_student(first, shows=True)
        if further_plans and not plan.dry_run:
            breakdowns.add_seed(run, {**run.record, "seed": plan.seed})
    if plan.dry_run:
        return
    for seed_plan, seed_run in breakdowns.unfinished_seeds(run, further_plans):
        _distill_student(prepare_seed(first, seed_plan, seed_run))
    if further_plans:
        breakdowns.summarize_seeds(run)
    deliver_baselines(first)
    close_run(first)


def foresee(source: TeacherSource, student: Student, plan: Plan, run: Run) -> PlanSummary:
    """Checks and estimates everything as a dry run does, and returns the summary that is printed before training.

    Raises:
        UserError: for options, data or models that do not fit.
    """
    prepared = prepare(source, student, replace(plan, dry_run=True), run)
    rows = prepared.describe(prepared.prepare_training(prepared.model))
    prepared.warn()
    return PlanSummary(tuple((name, str(value)) for name, value in rows))


def _distill_student(prepared: Prepared, *, shows: bool = False) -> None:
    """Trains the student of one seed, and its baseline if there is one, compares them, and exports the student.

    A dry run trains nothing.

    Args:
        shows: prints the summary before training.
    """
    plan, run = prepared.plan, prepared.run
    baseline = prepared.untaught() if plan.baseline and not plan.dry_run else None
    with run.timed("teacher"):
        module = prepared.prepare_training(prepared.model)
    if shows:
        show_summary(prepared.describe(module))
        prepared.warn()
    if plan.dry_run:
        return
    signal = module.signal
    run.update(teacher_outputs={"cached": signal.bytes > 0, "reason": signal.reason})
    if signal.reason is None:
        prepared.teacher.release()  # Its outputs are cached; later stages load it again.
    scoring = prepared.scoring
    opened = plan.tracking.open(run.directory, metric=scoring.metric, selects=scoring.selects, steps=module.total_steps)
    with opened as loggers:
        with run.timed("training"):
            if student_search.Pruning.of(prepared.student):
                pruned = prepared.pruner(signal, prepared.tasks[0].importance).run()
                module = prepared.prepare_training(pruned, signal)
            scores = prepared.train_student(module, loggers.lightning)
        of_baseline: dict[str, Scores] = {}
        if baseline is not None:
            with run.timed("baseline"):
                of_baseline = prepared.train_baseline(baseline)
        by_task, untaught_by_task = (prepared.scores_of_tasks(of_model) for of_model in (scores, of_baseline))
        for (task_run, task_scores), (_, untaught) in zip(by_task, untaught_by_task, strict=True):
            task_run.compare(task_scores, untaught)
        if plan.exports:
            export(prepared, module.student, scores)
        loggers.log_results(run.record, run.directory / "bundle" if plan.exports else None)
