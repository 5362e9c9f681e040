"""Everything a distillation is made of, as plain values, and the checks of values that exclude each other."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.callbacks import Callback
from torch import Tensor
from transformers import PreTrainedModel

from distill import losses
from distill.core.console import print_notice
from distill.core.contracts import VECTOR_SETTINGS, Data, Examples, Stream, Task, TaskInfo
from distill.core.errors import OptionError, Overview, Shown, UserError, describe_call, first_line
from distill.core.options import show_value
from distill.data.augmentation import Augmentation, AutoAugmentation
from distill.data.pool import check_texts
from distill.edge.bundle_files import needs_openvino
from distill.edge.decode import DECODERS
from distill.export.gate import check_abstention
from distill.export.latency import BenchmarkSettings, Budget
from distill.export.quantization import FORMATS, ExportSettings, check_formats
from distill.kinds.labelled_rows import TextRows
from distill.kinds.multitask import Tasks
from distill.losses import Objective, Term
from distill.models.decoding import adopt_decoding
from distill.models.forward import attention_width, configure
from distill.models.loading import change_encoder, replace_head, start_head
from distill.models.surgery.initialization import Origins
from distill.models.vectors import inherit_vectors, vector_settings, vector_width
from distill.records.loggers import Tracking
from distill.records.verdict import RecordSettings, ReportSettings
from distill.teachers.signal import check_cache
from distill.teachers.source import TeacherSource, check_source
from distill.teachers.stages import check_given_terms
from distill.teachers.writing import TargetSettings
from distill.training import hyperparameters
from distill.training.hyperparameters import AUTO, TrainerSettings, check_budget, check_processes

# Builds a student; `task` and `origins` are given to a function that has parameters of these names.
StudentFactory = Callable[..., PreTrainedModel]
SAME_START: Literal["same_start"] = "same_start"  # A value of `baseline`.


@dataclass(frozen=True)
class Plan:
    """Everything that a distillation is made of besides its teacher and student, as plain values.

    Args:
        tasks: the tasks of the student, one or several.
        seed: sets the student's fresh weights.
        seeds: number of students, with the seeds `seed`, `seed` + 1, ... of the weights and of the training.
        baseline: whether to train the same student from the pre-trained encoder without the teacher too; `auto` does on
            small data if it is a small share of the run, and `same_start` from the weights of the student.
        budget: limits of the exported student, which choose its depth.
        record: determines what the run's directory holds.
        report: determines what its report says.
        cache_dir: holds what runs share: tokens, fine-tuned teachers, teacher outputs.
        resume: goes on from the run's checkpoints.
        dry_run: checks and estimates everything and trains nothing.
        chosen: values of the trainer's options that were `auto`, with their reasons.
        tracking: the loggers of the training.
        augment: makes changed copies of the training texts, which the teacher labels; an `AutoAugmentation` where the
            task chooses its texts without labels, as many as suit the data.
        callbacks: those of Lightning that the training of the student has, and copies of them that of its baseline.
        has_default_objective: whether nobody has chosen the objective, so that it may lose terms.
    """

    tasks: Tasks
    objective: Objective
    trainer: TrainerSettings
    export: ExportSettings
    benchmark: BenchmarkSettings
    cache_dir: Path
    budget: Budget = field(default_factory=Budget)
    record: RecordSettings = field(default_factory=RecordSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    seed: int = 0
    seeds: int = 1
    baseline: bool | Literal["auto", "same_start"] = False
    resume: bool = False
    dry_run: bool = False
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    tracking: Tracking = field(default_factory=Tracking)
    augment: Augmentation | AutoAugmentation | None = None
    callbacks: tuple[Callback, ...] = ()
    has_default_objective: bool = False

    @property
    def exports(self) -> bool:
        """Returns whether the student is exported."""
        has_decoders = all(task.info.decoder in DECODERS for task in self.tasks.values())
        return self.export.enabled is not False and has_decoders

    @property
    def wants_baseline(self) -> bool:
        """Returns whether a baseline was asked for, and is not left to `auto`."""
        return self.baseline in (True, SAME_START)

    @property
    def trains_pieces(self) -> bool:
        """Returns whether teacher and student read the pieces of the task's texts alone."""
        return self.exports and self.export.vocabulary == "trained"

    def for_fitted(self, student: str) -> "Plan":
        """Returns the plan of a student of this name that is fitted to labels, without a teacher and a step.

        Raises:
            UserError: for another kind of task, and for options that need a teacher or a step.
        """
        [task, *others] = self.tasks.values()
        refused = {
            f"task={self.tasks.name} ({self.tasks.kind})": bool(others) or not isinstance(task, TextRows),
            f"objective={self.objective.name}": self.objective.needs_teacher and not self.has_default_objective,
            f"baseline={show_value(self.baseline)}": self.wants_baseline,
        }
        for option, is_refused in refused.items():
            if is_refused:
                raise UserError(
                    f"student {student} is fitted to the classes, labels or numbers of whole texts without a teacher, "
                    f"and is not for {option}: leave it out, or take +student=distilbert"
                )
        objective = Objective(name="supervised", terms={"hard": losses.HardLabels()})
        return replace(self, objective=objective, trainer=hyperparameters.for_text(self.trainer))

    def choose_for(self, source: TeacherSource) -> "Plan":
        """Returns the plan with the trainer of a task on raw text, and an automatic augmentation only where it has use.

        It needs a task that chooses its texts without labels, an objective that learns from the teacher, and a teacher
        that labels any text.
        """
        infos = [task.info for task in self.tasks.values()]
        is_text, is_automatic = any(info.raw_text for info in infos), isinstance(self.augment, AutoAugmentation)
        has_use = len(infos) == 1 and infos[0].can_augment and infos[0].unlabelled == AUTO
        has_use = has_use and (source.labeller is None or source.labeller.labels_any_text)
        return replace(
            self, trainer=hyperparameters.for_text(self.trainer) if is_text else self.trainer,
            augment=self.augment if not is_automatic or (has_use and self.objective.needs_teacher) else None,
        )  # fmt: skip

    def choose_batches(self, student: PreTrainedModel, train: Examples | Stream, rows: int) -> "Plan":
        """Returns the plan with a number for `batch_size=auto`, by `hyperparameters.choose_batch_size`.

        Args:
            rows: the number of labelled examples.
        """
        start, _ = hyperparameters.describe_student(student)
        has_layers = start == "inherited" and len(self.tasks) == 1
        if not self.trainer.chooses_batch_size or not isinstance(train, Examples) or not has_layers:
            return replace(self, trainer=hyperparameters.with_batch_size(self.trainer))
        compares = bool(self.objective.names_where(lambda term: term.across_examples))
        tokens = float(train.lengths.mean())
        size = hyperparameters.choose_batch_size(self.trainer, rows, tokens, compares=compares)
        reason = f"{rows:,} texts of {tokens:.0f} tokens on average are many and short"
        chosen = {"batch_size": {"value": size, "reason": reason}} if size != hyperparameters.BATCH_SIZE else {}
        return replace(self, trainer=hyperparameters.with_batch_size(self.trainer, size), chosen=chosen)

    def choose_training(self, student: PreTrainedModel, *, examples: int, steps_per_epoch: int, scored: int) -> "Plan":
        """Returns the plan with a value for each option of the trainer that is `auto`, from `hyperparameters.Facts`."""
        if not self.trainer.unresolved():
            return self
        infos = [task.info for task in self.tasks.values()]
        size = self.chosen.get("batch_size", {"value": hyperparameters.BATCH_SIZE})["value"]
        facts = hyperparameters.Facts(
            examples, steps_per_epoch, *hyperparameters.describe_student(student), scored=scored,
            sequences=infos[0].sequences, fewest_epochs=max(info.fewest_epochs for info in infos),
            has_table=hyperparameters.has_inherited_table(student), growth=size / hyperparameters.BATCH_SIZE,
        )  # fmt: skip
        trainer, chosen = hyperparameters.resolve(self.trainer, facts)
        return replace(self, trainer=trainer, chosen={**self.chosen, **chosen})


@dataclass(frozen=True, repr=False)
class Student(Shown):
    """A student and its name in records: a loaded model, or a function of the teacher.

    Args:
        name: names the student in records and directories.
        build: a model, of which a copy is trained, or a function `(teacher_model)`, perhaps with `task=` and
            `origins=`.
        head: weight `[C, F]` and bias `[C]` of the last linear layer before the training; None for those of `build`.
        encoder_changes: what is added to the tensors of its base model before the training, by name; None for those of
            `build`.
        projection: `auto` for a linear layer behind the pooling of vectors of texts, where their width is not that of
            `space`; None for vectors of its own width.
        space: width of the teacher's vectors, None where there are none to live among.
    """

    name: str
    build: StudentFactory | PreTrainedModel
    head: tuple[Tensor, Tensor] | None = None
    encoder_changes: Mapping[str, Tensor] | None = None
    projection: Literal["auto"] | None = "auto"
    space: int | None = None

    def __post_init__(self) -> None:
        if self.projection not in ("auto", None):
            raise OptionError("student.projection", show_value(self.projection), "auto or null")

    def __repr__(self) -> str:
        return describe_call("Student", self.name, **self._options())

    def overview(self) -> Overview:
        """Returns its name, and the options of the function that builds it or the class of the model."""
        model = {"model": type(self.build).__name__} if isinstance(self.build, PreTrainedModel) else {}
        options = {name: str(value) for name, value in self._options().items() if value is not None}
        return Overview("Student", list({"name": self.name, **model, **options}.items()))

    def _options(self) -> dict[str, Any]:
        return dict(getattr(self.build, "keywords", {}))

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return {} if isinstance(self.build, PreTrainedModel) else inspect.signature(self.build).parameters

    @property
    def is_fitted(self) -> bool:
        """Returns whether its function fits the weights to labelled rows, so that no step is left to train."""
        return self.has_option("rows")

    def fit(self, task: Task, data: Data) -> PreTrainedModel:
        """Returns the student, fitted to the data. It reads by its `tokenizer`, and `fitted` describes it in words."""
        model = self._make(None, {"task": task, "rows": data})
        configure(model, task.info.model_settings)
        return model.eval()

    def has_option(self, name: str) -> bool:
        """Returns whether its function has an option of this name."""
        return name in self._parameters()

    def option(self, name: str) -> Any:
        """Returns the value of an option of its function; None for a loaded model, and without this option."""
        known = self._parameters()
        value = known[name].default if name in known else None
        return None if value is inspect.Parameter.empty else value

    def make(self, teacher: PreTrainedModel, task: Task, data: Data, origins: Origins | None = None) -> PreTrainedModel:
        """Returns the student before its training on this data of the task; of a loaded model a copy.

        Args:
            origins: what its function may start it from besides the teacher.

        Raises:
            UserError: for options that its function does not accept.
        """
        if self.is_fitted:  # What stands in the place of its teacher is the student.
            return copy.deepcopy(teacher).train()
        model = self._make(teacher, {"task": task, "origins": origins})
        if self.encoder_changes is not None:
            change_encoder(model, self.encoder_changes)
        adopt_decoding(model, teacher)
        own = vector_settings(model.config)
        configure(model, task.info.model_settings)
        if task.info.likelihood == "vector":
            is_new = not isinstance(self.build, PreTrainedModel) and not self.has_option("path")
            follows = is_new and self.option("chunk") is None and attention_width(model) is not None
            follows = follows and own in (None, vector_settings(teacher.config))
            pooling = task.info.model_settings[VECTOR_SETTINGS]["pooling"]
            inherit_vectors(model, teacher, pooling, follows=follows, width=self.space)
        inherited = getattr(model, "inherited", None)  # Of a loaded model nothing is new.
        if data.head_bias is not None and inherited is not None:
            start_head(model, data.head_bias, inherited=inherited)
        if self.head is not None:
            replace_head(model, *self.head)
        return model

    def within(self, teacher: PreTrainedModel, objective: Objective) -> "Student":
        """Returns the student that lives among the vectors of its teacher, unless its objective keeps its own space."""
        if self.projection is None or vector_settings(teacher.config) is None or not objective.needs_teacher:
            return self
        keeps = objective.names_where(lambda term: term.keeps_space)
        return self if keeps else replace(self, space=vector_width(teacher.config))

    def build_from(self, encoder: PreTrainedModel, task: Task) -> PreTrainedModel:
        """Returns the student of an encoder without a head, with no more of the task than its function reads."""
        return self._make(encoder, {"task": task})

    def _make(self, teacher: PreTrainedModel | None, known: Mapping[str, Any]) -> PreTrainedModel:
        if isinstance(self.build, PreTrainedModel):
            return copy.deepcopy(self.build).float().train()
        taken = inspect.signature(self.build).parameters
        given = {name: value for name, value in known.items() if name in taken and value is not None}
        try:
            model = self.build(teacher, **given)
        except UserError:
            raise
        except (TypeError, ValueError) as error:
            raise UserError(f"student {self.name} cannot be built: {first_line(error)}") from error
        if not isinstance(model, PreTrainedModel):
            got = type(model).__name__
            raise UserError(f"the function of student {self.name} returned {got}, expected a PreTrainedModel")
        return model


def default_objective(task: Task | Tasks) -> Objective:
    """DistilBERT's triple loss (arXiv 1910.01108), with hard labels in place of masked tokens for other tasks.

    For vectors of texts it is the teacher's vectors and their similarities, and for targets with masks these and the
    lengths. Several tasks have that of the first one.
    """
    info = next(iter(Tasks.of(task).values())).info
    if info.likelihood == "vector":
        vectors: dict[str, Term] = {"embedding": losses.EmbeddingMSE(), "similarity": losses.PairwiseSimilarity()}
        return Objective(name="embedding", terms=vectors)
    if info.taught_by is not None:
        masks: dict[str, Term] = {"hard": losses.HardLabels(smoothing=0.1), "length": losses.TargetLength(weight=0.1)}
        return Objective(name="mask_predict", terms=masks)
    hard: dict[str, Any] = (
        {"mlm": losses.MaskedLanguageModelling(weight=2.0)}
        if info.classes_are_tokens
        else {"hard": losses.HardLabels(weight=2.0)}
    )
    terms = {"soft": losses.SoftTargets(temperature=2.0, weight=5.0), **hard, "cosine": losses.Cosine(weight=1.0)}
    return Objective(name="language_model" if info.classes_are_tokens else "distilbert", terms=terms)


def check_plan(source: TeacherSource, plan: Plan) -> None:
    """Raises UserError for options that contradict each other, before anything is read."""
    tasks = plan.tasks
    if plan.baseline not in (True, False, AUTO, SAME_START):
        raise OptionError("baseline", show_value(plan.baseline), "auto, true, false or same_start")
    if len(tasks) > 1:
        _check_several(plan)
    if source.by_task and source.by_task.keys() != tasks.keys():
        expected = ", ".join(tasks) if len(tasks) > 1 else f"one path, because task={tasks.name} is one task"
        raise OptionError("teacher.paths", show_value(list(source.by_task)), f"a directory for each task: {expected}")
    for name, task in tasks.items():
        _check_task(source.of_task(name), plan, task)
    check_processes(plan.trainer, "trainer")
    check_hooks(plan.objective, plan.trainer)


def _check_several(plan: Plan) -> None:
    """Raises UserError for options that a run on several tasks does not have."""
    strategy = plan.trainer.strategy
    refused = {
        "budget": (plan.budget.is_set, "chooses the depth of a student with one head"),
        "augment": (plan.augment is not None, "changes the texts of one task"),
        "export.vocabulary=trained": (plan.trains_pieces, "chooses the pieces of one task"),
        "bank": (any(task.info.bank is not None for task in plan.tasks.values()), "is for the texts of one task"),
        "trainer.devices": (plan.trainer.processes() > 1, "would give each process another head"),
        f"trainer.strategy={strategy}": (strategy in ("fsdp", "ray"), "is for several processes"),
    }
    for option, (is_set, reason) in refused.items():
        if is_set:
            raise UserError(f"{option} {reason}, and task={plan.tasks.name} has several: leave it out")


def _check_task(source: TeacherSource, plan: Plan, task: Task) -> None:
    """Raises UserError for options that contradict each other in a plan for one task."""
    if source.targets is not None:
        _check_targets(source.targets, plan, task.info)
    _check_learning(plan, task, is_ensemble=bool(source.others))
    _check_texts(source, plan, task.info)
    check_source(source, task)
    if source.labeller is not None:
        check_given_terms(plan.objective, source.weights.name)
    check_budget(plan.trainer.batch_tokens, task.info.max_length, "trainer")
    check_cache(source.cache, plan.objective, task, is_ensemble=bool(source.others))
    _check_files(plan, task.info)
    check_abstention(task.info, plan.export.abstain)
    check_export(plan.export, task)
    _check_measurements(plan, task.info)


def _check_targets(targets: TargetSettings, plan: Plan, info: TaskInfo) -> None:
    """Raises UserError for the texts of a teacher where there are no targets that they could replace."""
    has_targets = info.max_target is not None and not info.raw_text  # Those of a corruption are parts of its source.
    if not has_targets and info.prompt is None:
        raise UserError(
            f"{targets.option} replaces the targets of texts, and task={info.name} has none: take task=seq2seq or "
            "task=clm, or leave it out"
        )
    if info.prompt is not None and targets.keep == "nearest":
        raise UserError(
            f"teacher.keep=nearest chooses by the target, and a text of task={info.name} may go on in many ways: set "
            "teacher.keep=1"
        )
    if plan.wants_baseline:
        raise UserError(
            f"{targets.option} puts the teacher's texts in the place of the labels that "
            f"baseline={show_value(plan.baseline)} would learn from: train the baseline in a run without it"
        )


def _check_learning(plan: Plan, task: Task, *, is_ensemble: bool) -> None:
    """Raises UserError for a task that cannot be learned, or not by the objective or from several teachers."""
    info, objective = task.info, plan.objective
    if objective.writing is not None and info.max_target is None and info.prompt is None:
        raise UserError(
            f"student_share of objective {objective.name} has the student write targets, and task={info.name} has "
            "none: take task=seq2seq or task=clm, or student_share=0"
        )
    if objective.writing is not None and plan.trainer.strategy == "fsdp":
        raise UserError("student_share has the student write texts, which trainer.strategy=fsdp cannot: take ddp")
    if info.replaces_tokens:
        raise UserError(
            f"job=distill is not for task={info.name}, whose model is trained together with its generator: "
            f"job=finetune task={info.name} trains a model further, which then teaches another task by teacher.path"
        )
    check_text_baseline(plan.baseline, info)
    if is_ensemble and (info.classes_are_tokens or info.likelihood == "vector"):
        raise UserError(f"an ensemble is for other tasks than task={info.name}: give one teacher")
    if info.raw_text and info.pair:
        raise UserError(f"task.pair is for job=pretrain: a student of task={info.name} learns from tokens alone")
    # The two predict a token from different others.
    if info.taught_by is not None and (terms := objective.names_where(lambda term: term.needs_teacher)):
        raise UserError(
            f"objective {objective.name}: the term {terms[0]} compares outputs with those of the teacher, which writes "
            f"tokens one after another, and a student of task={info.name} fills them all at once: take "
            "objective=mask_predict, and teacher.beams=4 to learn from the teacher's texts"
        )
    check_terms(objective, info, alternative=f"take objective={default_objective(task).name} or another one")
    for name in set(info.further_teachers) - objective.targets:
        raise UserError(
            f"task.{name} is given, and no term of objective {objective.name} learns from it: raise the weight of a "
            f"term with targets={name}, or leave out task.{name}"
        )


def _check_texts(source: TeacherSource, plan: Plan, info: TaskInfo) -> None:
    """Raises UserError for texts beside the labelled ones that cannot be; prints a notice if they have no use."""
    augmentation = None if isinstance(plan.augment, AutoAugmentation) else plan.augment
    has_bank = info.bank is not None
    if (info.unlabelled == "given" or has_bank or augmentation) and not plan.objective.needs_teacher:
        given = f"augment={augmentation.name}" if augmentation else "task.bank" if has_bank else "task.unlabelled"
        print_notice(
            f"objective {plan.objective.name} learns from labels alone, and the texts of {given} have none: they are "
            "left out, in as many steps as with them"
        )
    if augmentation is not None:
        augmentation.check_task(info)
        augmentation.check()
    if source.labeller is None or source.labeller.labels_any_text:
        return
    for option, is_given in {"augment": plan.augment is not None, "task.bank": has_bank}.items():
        if is_given:
            raise UserError(
                f"{option} adds texts that teacher {source.weights.name} has no probabilities of: leave it out"
            )


def _check_files(plan: Plan, info: TaskInfo) -> None:
    """Raises UserError for options of exported files that there are not, or that no file can be measured for."""
    budget, lengths = plan.budget, plan.benchmark.max_lengths
    if info.decoder not in DECODERS and budget.is_set:
        raise UserError(f"{budget} is for exported students, and task={info.name} exports none: leave it out")
    if info.decoder not in DECODERS and plan.export.enabled == AUTO:
        print_notice(f"no bundle reads a model of task {info.name} ({info.kind}) yet: the student is not exported")
    if budget.is_set and DECODERS[info.decoder].targets:
        raise UserError(
            f"{budget} is of the time and the size of one file, and task={info.name} ({info.kind}) has an encoder and "
            "a decoder: leave it out, and give student.depth"
        )
    if budget.shares() and not budget.is_set:
        raise UserError(
            "budget.widths chooses a width within budget.mb or budget.ms: give one of them, or leave it out"
        )
    if plan.export.layout == "hub" and any(task.info.likelihood != "vector" for task in plan.tasks.values()):
        raise OptionError("export.layout", "hub", "bundle, because the other libraries read the files of vectors alone")
    if plan.export.layout == "hub" and plan.export.vocabulary == "task":
        raise OptionError(
            "export.layout", "hub", "bundle, because export.vocabulary=task renumbers the pieces of a file"
        )
    of_files = {str(budget): budget.is_set, "export.model2vec=true": plan.export.model2vec}
    of_files["export.layout=hub"] = plan.export.layout == "hub"
    of_files |= {_show_lengths(lengths): True} if lengths is not None else {}
    for option, is_given in of_files.items():
        if is_given and not plan.exports:
            raise UserError(f"{option} is for exported students, and export.enabled=false: leave one of them out")
    if budget.is_set and "int8" not in plan.export.formats:
        raise UserError(f"{budget} is of the int8 file, and export.formats has no int8: leave one of them out")


def _show_lengths(lengths: Sequence[int]) -> str:
    return f"benchmark.max_lengths={show_value(list(lengths))}"


def _check_measurements(plan: Plan, info: TaskInfo) -> None:
    """Raises UserError for lengths that texts are not cut to, and for a pass over dev that cannot be timed."""
    decoder, lengths = DECODERS.get(info.decoder), plan.benchmark.max_lengths
    if lengths is not None and DECODERS[info.decoder].classes_are_tokens:
        raise UserError(
            f"{_show_lengths(lengths)} is for tasks whose texts are cut, and task={info.name} ({info.kind}) loses no "
            "token: leave it out"
        )
    if lengths is not None and (longest := max(lengths)) >= info.max_length:
        raise UserError(
            f"got {_show_lengths(lengths)}, expected less than task.max_length={info.max_length}, which is scored "
            f"anyway: leave {longest} out, or raise task.max_length"
        )
    if not plan.benchmark.dev_pass:
        return
    if not plan.benchmark.enabled:
        raise UserError("benchmark.dev_pass=true is timed, and benchmark.enabled=false: leave one of them out")
    if info.raw_text or decoder is None or decoder.targets or decoder.input_axes != 2:
        raise UserError(
            f"benchmark.dev_pass=true is for tasks whose examples are texts, and task={info.name} is {info.kind}: "
            "leave it out"
        )


def check_text_baseline(baseline: object, info: TaskInfo) -> None:
    """Raises UserError for a baseline that was asked for, of a task on raw text."""
    if info.raw_text and baseline in (True, SAME_START):
        raise UserError(
            f"baseline={show_value(baseline)} is for other tasks than task={info.name}: +ablation=mlm_alone has no "
            "teacher"
        )


def check_terms(objective: Objective, info: TaskInfo, *, alternative: str) -> None:
    """Raises UserError if the objective has a term that cannot learn the task, or finds no labels in its batches.

    Args:
        alternative: an advice besides leaving out the term, in words.
    """
    unsuited = objective.unsuited(
        likelihood=info.likelihood, classes_are_tokens=info.classes_are_tokens, replaces_tokens=info.replaces_tokens
    )
    if unsuited:
        raise UserError(
            f"objective {objective.name} has the term {', '.join(unsuited)}, which cannot learn task {info.name} "
            f"({info.kind}): {alternative}, or set objective.terms.{unsuited[0]}.weight=0"
        )
    _check_dimensions("objective.dimensions", objective.dimensions, info)
    for name in objective.names_where(lambda term: not term.label_columns <= info.label_columns):
        raise UserError(
            f"objective {objective.name}: the term {name} learns from {objective.needing_data()[name]}, and task "
            f"{info.name} has none: {alternative}, or set objective.terms.{name}.weight=0"
        )


def _check_dimensions(option: str, dimensions: Sequence[int], info: TaskInfo) -> None:
    """Raises OptionError for numbers of dimensions of vectors that a task does not have."""
    if dimensions and info.likelihood != "vector":
        expected = f"[], because task {info.name} ({info.kind}) has no vectors of texts"
        raise OptionError(option, show_value(list(dimensions)), expected)


def check_export(export: ExportSettings, task: Task) -> None:
    """Raises UserError for settings of an export that a task excludes, or whose packages are missing."""
    info = task.info
    named = f"task {info.name} ({info.kind})"
    if info.decoder not in DECODERS:
        if export.enabled is True:
            raise OptionError(
                "export.enabled", "true", f"auto or false, because no bundle reads a model of {named} yet"
            )
        return
    if export.enabled is not False:
        check_formats(export.formats)
        unsuited = [name for name in export.formats if info.writes and needs_openvino(FORMATS[name].file)]
        if unsuited:
            expected = f"none of {', '.join(unsuited)}, because OpenVINO does not run the caches of a model of {named}"
            raise OptionError("export.formats", show_value(list(export.formats)), expected)
    if export.patterns and not DECODERS[info.decoder].finds_entities:
        raise OptionError("export.patterns", show_value(export.patterns), f"null, because {named} tags no words")
    check_texts(export.vocabulary_texts, "export.vocabulary_texts")
    _check_dimensions("export.dimensions", export.dimensions, info)
    # Chosen before the training, a smaller vocabulary changes every token of a text.
    trained = info.classes_are_tokens or info.writes or info.raw_text
    changes_classes = {"trained": trained, "task": DECODERS[info.decoder].classes_are_tokens}
    if changes_classes.get(export.vocabulary):
        expected = f"full, because the predictions of {named} are tokens of a text, which another vocabulary changes"
        raise OptionError("export.vocabulary", export.vocabulary, expected)


def check_hooks(objective: Objective, trainer: TrainerSettings) -> None:
    """Raises UserError if attention vectors, which hooks read inside the layers, are needed where hooks fail."""
    terms = ", ".join(objective.needing("attention_vectors"))
    if terms and trainer.compile:
        raise UserError(
            f"the term {terms} reads attention vectors, which torch.compile hides: set trainer.compile=false"
        )
    if terms and trainer.strategy == "fsdp" and trainer.processes() > 1:
        # The backward pass of a layer would begin before its weights are gathered.
        raise UserError(f"the term {terms} reads attention vectors inside of sharded layers: set trainer.strategy=ddp")
