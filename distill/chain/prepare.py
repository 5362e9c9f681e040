"""The preparation of a run: its data, its teachers, and a student that can follow them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain import seeds
from distill.chain.baseline import choose_baseline
from distill.chain.depth_search import DepthSearch
from distill.chain.encoding import Encoding
from distill.chain.general import check_general, start_generally
from distill.chain.layer_search import is_searched, search_layers
from distill.chain.origins import OriginSource
from distill.chain.pieces import check_cut_student, check_pieces, compare_readings, cut_teacher
from distill.chain.plan import (
    Plan,
    Student,
    check_plan,
    choose_augmentation,
    choose_batches,
    choose_for_text,
    choose_training,
)
from distill.chain.pruning import check_pruning
from distill.chain.task_run import TaskRun, joint_record, joint_scoring, task_record
from distill.chain.train import Prepared
from distill.chain.untrained import create_model, make_student
from distill.console import print_notice, silence_libraries
from distill.contracts import Data, EncodedSplits, Examples, Loader, Task
from distill.data import several
from distill.data.labelled_text import LabelledText
from distill.data.profile import print_rows_profile
from distill.data.tables import LabelledData
from distill.errors import UserError
from distill.export.abstention import check_dev
from distill.export.bundle import check_calibration
from distill.export.model2vec import check_model2vec
from distill.export.rehearsal import rehearse_export
from distill.export.vectors import check_dimensions
from distill.export.vocabulary import Cut, check_cut
from distill.losses.objective import supervised_objective
from distill.models import checks
from distill.models.decoding import list_notices
from distill.models.heads import check_encoder
from distill.models.long_texts import check_exportable
from distill.models.origins import Origins
from distill.models.padding import choose_padding_side
from distill.options import show_value
from distill.records.record import Run
from distill.storage.cache import open_cache
from distill.tasks.scoring import Scoring
from distill.teaching import preparation as teaching
from distill.teaching.outputs import check_size
from distill.teaching.prepared import PreparedTeacher
from distill.teaching.several import check_teachers, join_scores, join_teachers
from distill.teaching.source import TeacherSource, locate

RANKED = ("heads", "ffn")  # Options of a student that copies the most important of the teacher's parts.


def prepare(source: TeacherSource, student: Student, plan: Plan, run: Run) -> Prepared:
    """Prepares the training of the first student: its data, its teachers, its weights and the choices left to `auto`.

    Raises:
        UserError: for options, data or models that do not fit, before anything is trained.
    """
    plan = choose_augmentation(choose_for_text(plan), source)
    check_plan(source, plan)
    seeds.check(plan)
    silence_libraries()
    open_cache(plan.cache_dir)
    with run.timed("data"):
        readings = [
            _read(name, task, source.of_task(name), student, plan, run.section(name))
            for name, task in plan.tasks.items()
        ]
    if len(readings) > 1:
        several.report_shared_texts({reading.name: cast(LabelledData, reading.data).splits for reading in readings})
    check_teachers({reading.name: reading.source for reading in readings}, plan.objective)
    with run.timed("teacher"):
        prepared = [reading.prepare() for reading in readings]
        tasks = [task_run for _, task_run in prepared]
        student = start_generally(prepared[0][0], tasks[0], run)
    teacher = join_teachers({task_run.name: task_run.teacher for task_run in tasks}, plan.objective)
    examples = several.join_splits([task_run.examples for task_run in tasks], sampling=plan.tasks.sampling)
    rows = sum(task_run.data.sizes().get("train", 0) for task_run in tasks)
    model = create_model(student, tasks, plan)
    plan = choose_batches(plan, model, examples["train"], rows)
    loaders = _create_loaders(plan, examples)
    if isinstance(examples["train"], Examples):
        steps, scored = len(loaders["train"]), len(cast(Examples, examples["dev"]))
        plan = choose_training(plan, model, examples=rows, steps_per_epoch=steps, scored=scored)
    if not plan.dry_run:
        with run.timed("teacher"):
            for task_run in tasks:
                own, scoring = task_run.teacher, task_run.data.scoring
                _score(own, task_run.task, scoring, task_run.examples, source.of_task(task_run.name), plan)
                compare_readings(own, scoring)
    _record(run, plan, tasks, teacher)
    ready = Prepared(plan, run, student, model, tasks, examples, loaders, teacher, source)
    return choose_baseline(ready if plan.objective.needs_teacher else ready.without_unlabelled())


def prepare_seed(first: Prepared, plan: Plan, run: Run) -> Prepared:
    """Returns the training of the student of a further seed, with the data and the teachers of the first one."""
    model, loaders = create_student(first.student, first.tasks, plan, first.examples)
    tasks = [task_run.of_seed(plan, run) for task_run in first.tasks]
    return replace(first, plan=plan, run=run, model=model, tasks=tasks, loaders=loaders)


@dataclass(frozen=True)
class _Reading:
    """The data of one task, and everything that its teacher is prepared with."""

    name: str
    task: Task
    plan: Plan
    run: Run
    source: TeacherSource
    requested: str
    substituted: bool
    data: Data
    encode: Encoding
    search: DepthSearch

    def prepare(self) -> tuple[Student, TaskRun]:
        """Returns the student within the budget, and the task with its teacher."""
        plan = self.plan
        preparation = teaching.Preparation(
            task=self.task, splits=self.data, cache_dir=plan.cache_dir, run_directory=self.run.directory,
            device=plan.trainer.device(), resume=plan.resume, dry_run=plan.dry_run,
            rehearse=lambda model, tokenizer, examples: self._choose_student(
                model, tokenizer, lambda student: self.encode.rehearse(tokenizer, examples)
            ),
        )  # fmt: skip
        teacher = teaching.prepare(self.source, preparation, requested=self.requested, substituted=self.substituted)
        if self.task.info.writes:
            _note_decoding(teacher, self.task)
        if self.data.scoring.needs_teacher:
            assert isinstance(self.data, LabelledData)  # Other tasks have no rows that could lack a label.
            self.encode.given = teaching.label_scored(
                teacher, self.task, self.data, cache=self.source.cache, directory=plan.cache_dir, dry_run=plan.dry_run
            )
        student, examples = self._choose_student(
            teacher.model, teacher.tokenizer, lambda student: self.encode(teacher, student)
        )
        cut = None
        if plan.trains_pieces:
            teacher, examples, cut = self._cut_vocabulary(teacher, student, examples)
        data = self.encode.data.with_examples(examples)
        origins = OriginSource(self.source, self.data, plan.cache_dir, plan.trainer.device(), cut)
        task_run = TaskRun(self.name, self.task, plan, self.run, data, examples, teacher, origins, self.encode.notes)
        return student if plan.dry_run else search_layers(student, task_run), task_run

    def _cut_vocabulary(
        self, teacher: PreparedTeacher, student: Student, examples: EncodedSplits
    ) -> tuple[PreparedTeacher, EncodedSplits, Cut]:
        """Returns the teacher and the tokenized splits with the pieces of the task's texts alone, and these pieces."""
        plan, task, data = self.plan, self.task, self.encode.data
        if not plan.dry_run:
            _score(teacher, task, data.scoring, examples, self.source, plan)
        smaller, cut = cut_teacher(teacher, data, plan.export)
        check_cut_student(student, smaller, task, data)
        return smaller, task.encode(data, smaller.tokenizer, plan.cache_dir), cut

    def _choose_student(
        self,
        teacher: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        encode: Callable[[PreTrainedModel], EncodedSplits],
    ) -> tuple[Student, EncodedSplits]:
        """Returns the student within the budget and the tokenized splits, which `encode` returns for its model.

        Raises:
            UserError: for a student that cannot follow the teacher. This is called before the teacher is fine-tuned
                too.
        """
        plan, task, is_first = self.plan, self.task, self.search.chosen is None
        student = self.search.choose(teacher, tokenizer)
        model, _ = make_student(student, teacher, task, self.data, tokenizer, Origins(tokenizer))
        checks.check_length(
            model, tokenizer, task.info.max_length, who="student", lengthens=student.has_option("positions")
        )
        _check_student(model, student.name, plan, task, teacher, tokenizer)
        check_pruning(student, model, teacher, plan, task, self.data)
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
            checks.check_data(plan.objective, task, examples["train"])
            check_size(
                plan.objective, task, teacher, examples["train"], self.source.cache, student=model,
                epochs=plan.trainer.fixed_epochs,
            )  # fmt: skip
        return student, examples


def _note_decoding(teacher: PreparedTeacher, task: Task) -> None:
    """Prints and records notices of what no text is written with here, of the teacher's generation configuration."""
    for notice in list_notices(teacher.model, fills=not task.info.generates, max_target=task.info.max_target):
        print_notice(notice)
        teacher.notices.append(notice)


def _score(
    teacher: PreparedTeacher, task: Task, scoring: Scoring, examples: EncodedSplits, source: TeacherSource, plan: Plan
) -> None:
    """Sets the teacher's scores and metrics; raises UserError for a weak teacher that must not be."""
    teaching.score(teacher, task, scoring, examples, source=source, directory=plan.cache_dir / "outputs")


def _read(name: str, task: Task, source: TeacherSource, student: Student, plan: Plan, run: Run) -> _Reading:
    """Reads the data of one task and finds the teacher's weights.

    Raises:
        UserError: for weights that are not available, and data that does not fit the options.
    """
    rows = getattr(task, "rows", None)
    if plan.dry_run and isinstance(rows, LabelledText) and rows.is_labelled and source.labeller is None:
        print_rows_profile(rows)
    data = task.read(plan.cache_dir)
    _check_data(data, plan, task)
    check_ranking(student, data, task)
    found, substituted = locate(source, task)
    if is_searched(student) and name:
        raise UserError(f"student.init=search is for one task, and task={plan.tasks.name} has several: leave it out")
    check_pieces(student, found, plan)
    check_general(student, found, task, data, plan)
    encode = Encoding(plan, task, data, found)
    search = DepthSearch(student, plan, task, run, data)
    return _Reading(name, task, plan, run, found, source.weights.name, substituted, data, encode, search)


def _check_data(data: Data, plan: Plan, task: Task) -> None:
    """Raises UserError for data that is too little for an option, or that a baseline cannot learn from."""
    sizes = data.sizes()
    check_dev(sizes.get("dev", 0), plan.export.abstain)
    if plan.exports and "train" in sizes:
        check_calibration(sizes["train"], plan.export)
    if plan.wants_baseline:
        supervised_objective(data.terms, task=task.info.name)


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


def create_student(
    student: Student, tasks: Sequence[TaskRun], plan: Plan, examples: EncodedSplits
) -> tuple[PreTrainedModel, dict[str, Loader]]:
    """Returns a student with the weights of the plan's seed, and the loaders of its training."""
    return create_model(student, tasks, plan), _create_loaders(plan, examples)


def _create_loaders(plan: Plan, examples: EncodedSplits) -> dict[str, Loader]:
    return several.all_loaders(examples, steps=plan.trainer.max_steps, **plan.trainer.batches())


def _record(run: Run, plan: Plan, tasks: Sequence[TaskRun], teacher: PreparedTeacher) -> None:
    """Records the objective, and the data and the teacher of every task and of all together."""
    for task_run in tasks:
        about = task_record(task_run.task, task_run.data, task_run.examples)
        if "unlabelled" in about:
            before = (task_run.run.record.get("task") or {}).get("unlabelled") or {}  # Of a run that is resumed.
            share = about["unlabelled"]["share"] if plan.objective.needs_teacher else 0.0  # They are left out.
            about["unlabelled"] |= {"share": share, "sureness": before.get("sureness")}
        task_run.run.update(task=about, teacher=task_run.teacher.record())
    if teacher.by_task:
        scoring = joint_scoring(tasks)
        join_scores(teacher, scoring)
        run.update(task=joint_record(plan.tasks, scoring, tasks), teacher=teacher.record())
    run.update(objective=plan.objective.record())


def _check_student(
    student: PreTrainedModel,
    name: str,
    plan: Plan,
    task: Task,
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Raises UserError for a student that cannot follow the teacher."""
    checks.check_filling(student, task.info, name)
    checks.check_vocabulary(teacher, student, tokenizer)
    checks.check_target_length(student, tokenizer, task.info.max_target, who="student")
    checks.check_outputs(plan.objective, teacher=teacher, student=student)
    checks.check_sizes(plan.objective, teacher=teacher, student=student)
    checks.check_head(student, teacher, name=name, likelihood=task.info.likelihood)
    if plan.export.model2vec:
        check_model2vec(student, name)
    if plan.exports:
        check_exportable(student, name)
        check_dimensions(plan.export, student)
    if plan.export.vocabulary != "full" and plan.exports:
        check_cut(tokenizer, plan.export.vocabulary)
