"""The Python door: teachers, students and `distill()` as plain objects, without Hydra.

    import distill as d

    task = d.tasks.Classification(text="sentence", label="label", data="data/sst2")
    teacher = d.Teacher.from_pretrained("google-bert/bert-base-uncased").fit(task, max_epochs=3)
    result = d.distill(teacher, d.students.distilbert(layers="alternate"), task, directory="runs/first")
    result.bundle.predict(["a lovely film"])

The command line builds the same objects from a configuration and calls the same chain. This is the only module
besides the configuration that joins `students/` and `teachers/` with the rest.
"""

import copy
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from lightning.pytorch.callbacks import Callback
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain import distillation as chain
from distill.chain.distillation import Result
from distill.chain.plan import Plan, Student, default_objective
from distill.chain.student_setup import PlanSummary
from distill.core import storage
from distill.core.console import silence_libraries
from distill.core.contracts import Task
from distill.core.errors import Interrupted, Overview, Shown, UserError, describe_call, hide_secrets
from distill.core.storage import open_cache
from distill.data.augmentation import Augmentation, AutoAugmentation
from distill.export.latency import BenchmarkSettings, Budget
from distill.export.quantization import ExportSettings
from distill.inspection.inspection import Inspection, Questions, inspect_models
from distill.inspection.inspection_report import write_inspection
from distill.inspection.subjects import open_subjects
from distill.kinds.multitask import Tasks
from distill.losses import Objective
from distill.models.surgery.long_texts import AttentionOptions, LongTextOptions
from distill.records.loggers import LoggerSettings, Tracking, tracked
from distill.records.run import Run, create_run, create_run_in, open_run
from distill.records.verdict import RecordSettings, ReportSettings
from distill.teachers import preparation as teaching
from distill.teachers.computation import BilstmSettings, Features
from distill.teachers.output_cache import OutputCache
from distill.teachers.source import Adaptation, TeacherSource, Weights, check_source, make_by_task, make_ensemble
from distill.training.hyperparameters import TrainerSettings
from distill.training.lightning_callbacks import describe_callback, read_callbacks

if TYPE_CHECKING:  # mypy reads the folders of the checkout, where Python finds distill.builtin.
    from students import albert as _albert
    from students import bilstm as _bilstm
    from students import cnn as _cnn
    from students import distilbert as _distilbert
    from students import encoder_decoder as _encoder_decoder
    from students import layers as _layers
    from students import mask_predict as _mask_predict
    from students import pretrained as _pretrained
    from students import static as _static
    from students import teacher as _teacher
    from students import tfidf as _tfidf
    from teachers.loaded import Loaded
    from teachers.new import NewModel
    from teachers.pretrained import Pretrained
else:
    from distill.builtin.students import albert as _albert
    from distill.builtin.students import bilstm as _bilstm
    from distill.builtin.students import cnn as _cnn
    from distill.builtin.students import distilbert as _distilbert
    from distill.builtin.students import encoder_decoder as _encoder_decoder
    from distill.builtin.students import layers as _layers
    from distill.builtin.students import mask_predict as _mask_predict
    from distill.builtin.students import pretrained as _pretrained
    from distill.builtin.students import static as _static
    from distill.builtin.students import teacher as _teacher
    from distill.builtin.students import tfidf as _tfidf
    from distill.builtin.teachers.loaded import Loaded
    from distill.builtin.teachers.new import NewModel
    from distill.builtin.teachers.pretrained import Pretrained

# The values of conf/trainer/finetune.yaml.
FINETUNE = TrainerSettings.auto(batch_size=32, ema=0.0, soup=1, frozen_embeddings=0.0)
# Those of conf/teacher/embedded.yaml.
FINETUNE_NEW = replace(FINETUNE, learning_rate=5e-4, max_epochs=3, evaluations=1, patience=None)
BENCHMARK = BenchmarkSettings(batches=[1, 8], lengths=[32, 128])


def default_cache_dir() -> Path:
    """The directory of everything that runs share: `DISTILL_CACHE`, or `~/.cache/distill`."""
    return storage.local_path(os.environ.get("DISTILL_CACHE", "~/.cache/distill"))


class Teacher(Shown):
    """A teacher: a loaded model of transformers with its tokenizer, or one by name or path (`from_pretrained`).

    A teacher whose head does not fit a task must be fine-tuned first (`fit`).

    Args:
        model: a model with or without a head for the task; it is not changed.
        tokenizer: that of the model.
        name: names the teacher in records and directories.
        precision: of its forward passes, `float32` or `bfloat16`.
        cache: the rules for caching its outputs.
        accept_weak: whether it may teach although it is not better on dev than a constant prediction.
        cache_dir: holds fine-tuned teachers and outputs; None takes `DISTILL_CACHE` or `~/.cache/distill`.

    Raises:
        UserError: for an unknown precision.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "loaded",
        precision: str = "float32",
        accept_weak: bool = False,
        cache: OutputCache | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        weights = Loaded(model, tokenizer, name=name, precision=precision)
        self._set(_source(weights, cache, accept_weak=accept_weak), cache_dir)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        name: str | None = None,
        revision: str | None = None,
        precision: str = "float32",
        trust_remote_code: bool = False,
        accept_weak: bool = False,
        prompts: Mapping[str, str] | None = None,
        cache: OutputCache | None = None,
        cache_dir: str | Path | None = None,
        **options: Unpack[AttentionOptions],
    ) -> "Teacher":
        """A teacher from a directory, the Hugging Face cache or the Hub; only safetensors are read.

        Args:
            name_or_path: a directory, or the name of a model on the Hub.
            name: names the teacher in records; by default the last part of `name_or_path`.
            revision: of the model on the Hub.
            precision: as in `Teacher`, like the arguments below except `trust_remote_code`.
            trust_remote_code: runs Python code that comes with the weights.
            accept_weak: whether it may teach although it is not better on dev than a constant prediction.
            prompts: beginnings of texts by their names, as in `teachers/pretrained.py`; None for those of its files.
            cache: the rules for caching its outputs.
            cache_dir: holds fine-tuned teachers and outputs.
            options: those of a model for long texts, `attention`, `window`, `global_tokens` and `positions`.
        """
        is_path = Path(name_or_path).expanduser().is_dir()
        where: dict[str, Any] = {"path": str(name_or_path)} if is_path else {"id": str(name_or_path)}
        weights = Pretrained(
            name=name or Path(name_or_path).name, revision=revision, precision=precision,
            trust_remote_code=trust_remote_code, prompts=prompts, **where, **options,
        )  # fmt: skip
        return cls._of(_source(weights, cache, accept_weak=accept_weak), cache_dir)

    @classmethod
    def embedded(
        cls,
        *,
        accept_weak: bool = False,
        cache: OutputCache | None = None,
        cache_dir: str | Path | None = None,
        **sizes: Any,
    ) -> "Teacher":
        """A small BERT with random weights and a vocabulary of the task's texts, which needs no download.

        `fit` trains it, by default for 3 epochs at a learning rate of 5e-4.

        Args:
            accept_weak: whether it may teach although it is not better on dev than a constant prediction.
            cache: the rules for caching its outputs.
            cache_dir: holds fine-tuned teachers and outputs.
            sizes: options of `teacher=embedded`, for example `layers=4` and `hidden_size=256`.

        Raises:
            TypeError: for another argument.
        """
        return cls._of(_source(NewModel(name="embedded", **sizes), cache, accept_weak=accept_weak), cache_dir)

    @classmethod
    def _of(cls, source: TeacherSource, cache_dir: str | Path | None) -> "Teacher":
        teacher = cls.__new__(cls)
        teacher._set(source, cache_dir)
        return teacher

    def _set(self, source: TeacherSource, cache_dir: str | Path | None) -> None:
        self.source = source
        self.cache_dir = default_cache_dir() if cache_dir is None else storage.local_path(cache_dir)
        self._fits: list[tuple[Task, TeacherSource]] = []

    def __repr__(self) -> str:
        return describe_call("Teacher", self.source.resolved(), fitted=[task.info.name for task, _ in self._fits])

    def overview(self) -> Overview:
        """Returns the names of its models, and the tasks to which it was fitted."""
        members = {"": self.source} | {f"of {name}": source for name, source in self.source.by_task.items()}
        rows = {
            **{f"model {name}".strip(): source.resolved() for name, source in members.items()},
            "with": ", ".join(other.resolved() for other in self.source.others),
            "shares": ", ".join(f"{share:.2f}" for share in self.source.shares if len(self.source.shares) > 1),
            "fitted to": ", ".join(task.info.name for task, _ in self._fits),
            "may be weak": "yes" if self.source.accept_weak else "",
            "cache": str(self.cache_dir),
        }
        return Overview("Teacher", [(name, value) for name, value in rows.items() if value])

    @classmethod
    def ensemble(cls, teachers: "Sequence[Teacher]", *, weights: Sequence[float] | None = None) -> "Teacher":
        """A teacher that is the mean of others: of their probabilities, or of their numbers.

        Args:
            teachers: at least two with one vocabulary; the first one gives hidden states and the student's layers.
            weights: of each teacher; the same for all by default.

        Raises:
            UserError: for fewer than two teachers, or weights that do not suit them.
        """
        return cls._of(make_ensemble([teacher.source for teacher in teachers], weights), teachers[0].cache_dir)

    @classmethod
    def by_task(cls, teachers: "Mapping[str, Teacher]") -> "Teacher":
        """A teacher for each of the tasks of a `tasks.MultiTask`, by the name of the task.

        Args:
            teachers: with one vocabulary; the first one gives the student's layers.

        Raises:
            UserError: for no teacher.
        """
        source = make_by_task({name: teacher.source for name, teacher in teachers.items()})
        return cls._of(source, next(iter(teachers.values())).cache_dir)

    def fit(
        self,
        task: Task | Tasks,
        *,
        features: str | None = None,
        bilstm: Mapping[str, int | float | str] | None = None,
        adaptation: Adaptation | None = None,
        callbacks: Callback | Sequence[Callback] = (),
        **settings: Any,
    ) -> "Teacher":
        """Fine-tunes the teacher where its head does not fit the task, once: the result is cached.

        Args:
            task: its data, its labels and its metrics; of several tasks each is fitted.
            features: trains a BiLSTM on these hidden states of the frozen encoder in place of the fine-tuning: `last`,
                `second_to_last`, `sum_last_4`, `concat_last_4`, `sum_all` or `input_embeddings`.
            bilstm: its `layers`, `hidden_dim`, `dropout` and `pooling`, 2 layers of 768 by default.
            adaptation: trains the encoder on a text as a language model first, once too.
            callbacks: one or several of Lightning's callbacks, which the fine-tuning has. One that is cached already is
                found again by the classes of its callbacks and their plain attributes, and calls none.
            settings: fields of `TrainerSettings`, for example `max_epochs=3`; the others are chosen from the data and
                the teacher's width.

        Raises:
            UserError: for data or a model that do not fit the task, and if a callback fails.
            Interrupted: for Ctrl-C.
            ValueError: for a setting that is out of range.
        """
        chosen: Features | None = None
        if features is None:
            finetune = replace(FINETUNE_NEW if self.source.weights.is_new else FINETUNE, **settings)
        else:
            finetune = TrainerSettings.auto(**{"batch_size": 64, **settings})
            sizes: dict[str, Any] = dict(bilstm or {})
            chosen = Features(features, BilstmSettings(trainer=finetune, **sizes))
        own = read_callbacks(callbacks)
        training: dict[str, Any] = {
            "finetune": finetune, "features": chosen, "adaptation": adaptation, "callbacks": own,
        }  # fmt: skip
        for name, one in Tasks.of(task).items():
            self._fit(name, one, **training, callback_key=tuple(map(describe_callback, own)))
        return self

    def _fit(self, name: str, task: Task, **training: Any) -> None:
        """Fine-tunes the teacher of one task with these settings of its source."""
        if task.info.raw_text:
            raise UserError(
                f"task {task.info.name} does not fine-tune a teacher: give one that has its head (job=finetune makes "
                "one)"
            )
        source = self.source.of_task(name).tuned(**training)
        check_source(source, task)
        is_shared = name not in self.source.by_task
        self.source = source if is_shared else replace(self.source, by_task={**self.source.by_task, name: source})
        silence_libraries()
        open_cache(self.cache_dir)
        splits = task.read(self.cache_dir)
        with tempfile.TemporaryDirectory() as directory:
            preparation = teaching.Preparation(
                task=task, splits=splits, cache_dir=self.cache_dir, run_directory=Path(directory),
                device=training["finetune"].device(),
            )  # fmt: skip
            try:
                teaching.prepare(source, preparation)
            except (KeyboardInterrupt, SystemExit) as error:  # Lightning converts the first into the second.
                raise Interrupted("interrupted: the teacher is not fine-tuned; fit begins again") from error
        self._fits = [(fitted, settings) for fitted, settings in self._fits if fitted is not task] + [(task, source)]

    def source_for(self, task: Task | Tasks) -> TeacherSource:
        """Returns the source with the settings by which the teacher was fitted to each task, and to no other one."""
        if not self._fits:
            return self.source
        sources = {name: self._fitted_source(name, one) for name, one in Tasks.of(task).items()}
        first = next(iter(sources.values()))
        return first if all(source == first for source in sources.values()) else make_by_task(sources)

    def _fitted_source(self, name: str, task: Task) -> TeacherSource:
        for fitted, source in self._fits:
            if fitted is task:
                return source
        source = self.source.of_task(name).tuned(
            finetune=None, features=None, adaptation=None, callbacks=(), callback_key=()
        )
        return replace(source, by_task={})


def _source(weights: Weights, cache: OutputCache | None, *, accept_weak: bool) -> TeacherSource:
    return TeacherSource(weights, finetune=None, cache=cache or OutputCache(), accept_weak=accept_weak)


class _DistilBertOptions(LongTextOptions, total=False):
    """The options of a general stage, of a narrower DistilBERT, and of one for long texts."""

    general: Mapping[str, Any] | None
    heads: int | Sequence[int] | None
    ffn: int | Sequence[int] | None
    embedding_dim: int | None
    prune: Literal["iterative"] | None
    prune_steps: int
    prune_share: float


def _distilbert_student(
    *,
    layers: str | Sequence[int] = "alternate",
    depth: int | None = None,
    init: str | Sequence[str] = "teacher",
    **options: Unpack[_DistilBertOptions],
) -> Student:
    """A student with some of the teacher's layers: a DistilBERT from a BERT, the teacher's own class otherwise.

    Args:
        layers: `alternate` (the first, the last and evenly spaced ones between them), `first`, `last`, or indices
            from 0.
        depth: number of layers for `alternate`, `first` and `last`; by default half of the teacher's.
        init: `teacher` copies every tensor of the same shape, `random` copies none, `search` copies the layers that
            suit the task best and fits the head, and `general` starts from a stage on plain text, which is trained once
            for all tasks; a list has names that combine.
        options: `general`, a mapping with the options of that stage (`corpus`, `documents`, `tokens`, `passes`,
            `learning_rate`, `batch_size` and `max_length`). Those of a narrower student: `heads` and `ffn` (numbers of
            heads and inner neurons of a layer, or one for each layer, of which the most important ones for the task are
            copied), `embedding_dim` (width of the embeddings of words, whose table is factorized), and `prune`
            (`iterative` removes heads, inner neurons and layers in `prune_steps` steps, between which the student is
            trained for `prune_share` of the steps of its training). Those of a student for long texts: `attention`,
            `window`, `global_tokens`, `positions`, `chunk`, `chunk_overlap` and `chunk_pooling`.
    """
    return Student("distilbert", partial(_distilbert.from_teacher, layers=layers, depth=depth, init=init, **options))


def _layers_student(
    *,
    layers: str | Sequence[int] = "alternate",
    depth: int | None = None,
    init: str | Sequence[str] = "teacher",
    general: Mapping[str, Any] | None = None,
) -> Student:
    """A student with some of the teacher's layers in the teacher's own class, of any family.

    Args:
        layers, depth, init, general: as those of `distilbert`.
    """
    return Student("layers", partial(_layers.from_teacher, layers=layers, depth=depth, init=init, general=general))


def _albert_student(**options: Any) -> Student:
    """An ALBERT of the teacher's width, with narrow embeddings and one set of weights for all layers.

    Args:
        options: `embedding_dim` (128), `groups` (1), `depth` (half of the teacher's layers), `share` (`all`,
            `attention`, `ffn` or `none`), `table` (`ridge` or `svd`), `layer` (`last`, `first`, `mean`, `random` or an
            index) and `init` (`teacher` or `random`), the options of `student=albert`.
    """
    return Student("albert", partial(_albert.from_teacher, **options))


def _bilstm_student(**options: Any) -> Student:
    """A BiLSTM over the teacher's word pieces, without attention.

    Args:
        options: `embedding_dim` (300), `hidden_dim` (150), `layers` (1), `classifier_dim` (200), `dropout` (0.1),
            `pooling` (`last`, `max` or `mean`) and `init` (`teacher` or `random`), the options of `student=bilstm`.
    """
    return Student("bilstm", partial(_bilstm.from_teacher, **options))


def _cnn_student(**options: Any) -> Student:
    """A CNN over the teacher's word pieces, for labels and numbers of texts and for tags.

    Args:
        options: `embedding_dim` (the teacher's, at most 200), `hidden_dim` (300), `widths` ([3, 4, 5]), `tag_width`
            (3), `dilations` ([1, 2, 4]), `classifier_dim` (200), `dropout` (0.1) and `init` (`teacher` or `random`),
            the options of `student=cnn`.
    """
    return Student("cnn", partial(_cnn.from_teacher, **options))


def _pretrained_student(path: str | Path, *, trust_remote_code: bool = False) -> Student:
    """A student that is loaded from a directory.

    Args:
        path: a directory written by `save_pretrained`, with weights in safetensors and the tokenizer's files.
        trust_remote_code: runs Python code that comes with the weights.
    """
    build = partial(_pretrained.from_teacher, path=str(path), trust_remote_code=trust_remote_code)
    return Student("pretrained", build)


def _static_student(**options: Any) -> Student:
    """The weighted mean of the vectors of a text's pieces, with a small head.

    Args:
        options: `dim` (256), `buckets` (131072), `bucket_dim` (64), `classifier_dim` (512), `dropout` (0.2),
            `token_dropout` (0.1), `smoothing` (1e-3) and `start` (`sentence`, `teacher` or `random`), the options of
            `student=static`.
    """
    return Student("static", partial(_static.from_teacher, **options))


def _tfidf_student(**options: Any) -> Student:
    """Logistic regression on the TF-IDF of words, which scikit-learn fits to the labels, without a teacher.

    Args:
        options: `max_length`, the option of `student=tfidf`.
    """
    return Student("tfidf", partial(_tfidf.from_teacher, **options))


def _teacher_student() -> Student:
    """The teacher itself, which is not trained further."""
    return Student("teacher", _teacher.from_teacher)


def _encoder_decoder_student(
    path: str | Path, *, depth: int | None = None, decoder_depth: int | None = None, trust_remote_code: bool = False
) -> Student:
    """A student that writes a text for a text, whose halves both begin with layers of one encoder.

    Args:
        path: the directory of the encoder, with weights in safetensors and the tokenizer's files.
        depth, decoder_depth: number of layers of each half; None for all of the encoder's.
        trust_remote_code: runs Python code that comes with the weights.
    """
    build = partial(
        _encoder_decoder.from_teacher, path=str(path), depth=depth, decoder_depth=decoder_depth,
        trust_remote_code=trust_remote_code,
    )  # fmt: skip
    return Student("encoder_decoder", build)


def _mask_predict_student(
    path: str | Path | None = None,
    *,
    depth: int | None = None,
    decoder_depth: int | None = None,
    init: Literal["teacher", "random"] = "teacher",
    trust_remote_code: bool = False,
) -> Student:
    """A student that fills all tokens of a target at once and predicts its length (arXiv 1904.09324).

    Args:
        path: the directory of an encoder that both halves begin with; None for the layers of the teacher, a BART.
        depth, decoder_depth: number of layers of each half; None for half of the teacher's, or all of the encoder's.
        init: whether it begins with the teacher's tensors, or with random ones.
        trust_remote_code: runs Python code that comes with the weights.
    """
    build = partial(
        _mask_predict.from_teacher, path=None if path is None else str(path), depth=depth,
        decoder_depth=decoder_depth, init=init, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    return Student("mask_predict", build)


students = SimpleNamespace(
    albert=_albert_student, bilstm=_bilstm_student, cnn=_cnn_student, distilbert=_distilbert_student,
    encoder_decoder=_encoder_decoder_student, layers=_layers_student, mask_predict=_mask_predict_student,
    pretrained=_pretrained_student, static=_static_student, teacher=_teacher_student, tfidf=_tfidf_student,
)  # fmt: skip
"""The students that `distill` can build: `.albert`, `.bilstm`, `.cnn`, `.distilbert`, `.encoder_decoder`, `.layers`,
`.mask_predict`, `.pretrained`, `.static`, `.teacher` and `.tfidf`."""


def distill(
    teacher: Teacher,
    student: Student | PreTrainedModel | Callable[..., PreTrainedModel],
    task: Task | Tasks,
    *,
    objective: Objective | None = None,
    trainer: TrainerSettings | None = None,
    export: ExportSettings | None = None,
    benchmark: BenchmarkSettings | None = None,
    budget: Budget | None = None,
    record: RecordSettings | None = None,
    report: ReportSettings | None = None,
    augment: Augmentation | AutoAugmentation | Literal["auto"] | None = "auto",
    logger: LoggerSettings | Sequence[LoggerSettings] = (),
    callbacks: Callback | Sequence[Callback] = (),
    seed: int | None = None,
    seeds: int = 1,
    baseline: bool | Literal["auto", "same_start"] = "auto",
    directory: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Distils a student, exports it, checks it, times it, and writes everything down.

    Args:
        teacher: has the task's head, or was fitted to the task.
        student: one of `students`, a model (a copy is trained), or a function `(teacher_model)`, perhaps with `task=`.
        task: the data, its labels and its metrics: one of `tasks`.
        objective: the loss terms; DistilBERT's triple loss by default.
        trainer: how to train; by default chosen from the data and the student as by `trainer=auto`.
        export, benchmark: how to export and when a file passes its gate; what to time.
        budget: limits of the exported student; its deepest version within them is trained.
        record, report: `RecordSettings(texts=False)` writes no texts; `ReportSettings(margin=2)` is of the verdict.
        augment: makes copies of the texts for the teacher, such as `TangAugmentation()`; `auto` suits small data.
        logger: one or several of `loggers`, beside metrics.csv, for example `loggers.TensorBoard()`.
        callbacks: one or several of Lightning's callbacks for the training of the student, copies for its baseline.
        seed: of the fresh weights, the order of the examples, and dropout; by default that of `trainer`, or 0.
        seeds: number of students, with `seed`, `seed` + 1, ...; the first one is the student of the result.
        baseline: trains the student from the pre-trained encoder without the teacher too; the others as in `Plan`.
        directory, resume: a new directory under `runs/` by default; with `resume`, that of the run to go on with.

    Raises:
        UserError: for options, data or models that do not fit, before anything is trained.
        Interrupted: for Ctrl-C.
    """
    planned = _create_plan(
        teacher, task, objective=objective, trainer=trainer, export=export, benchmark=benchmark, budget=budget,
        record=record, report=report, augment=augment, seed=seed, seeds=seeds, baseline=baseline,
    )  # fmt: skip
    planned = replace(planned, resume=resume, callbacks=read_callbacks(callbacks))
    return _run(planned, teacher, student, directory, logger)


class PlanOptions(TypedDict, total=False):
    """The arguments of `distill` that a plan depends on."""

    objective: Objective | None
    trainer: TrainerSettings | None
    export: ExportSettings | None
    benchmark: BenchmarkSettings | None
    budget: Budget | None
    record: RecordSettings | None
    report: ReportSettings | None
    augment: Augmentation | AutoAugmentation | Literal["auto"] | None
    seed: int | None
    seeds: int
    baseline: bool | Literal["auto", "same_start"]


def plan(
    teacher: Teacher,
    student: Student | PreTrainedModel | Callable[..., PreTrainedModel],
    task: Task | Tasks,
    **options: Unpack[PlanOptions],
) -> PlanSummary:
    """Checks and estimates a distillation as `dry_run=true` does on the command line; trains and writes nothing.

    Args:
        teacher, student, task: those of `distill`.
        options: its other arguments, with the same defaults; those of the run's directory, loggers and callbacks are no
            part of a plan.

    Returns:
        The summary that `distill` prints before training, which a notebook shows as a table.

    Raises:
        UserError: for options, data or models that do not fit.
    """
    planned = _create_plan(teacher, task, **options)
    with tempfile.TemporaryDirectory() as directory:
        run = create_run_in(Path(directory), job="distill", seed=planned.seed)
        return chain.foresee(teacher.source_for(planned.tasks), _name_student(student), planned, run)


def _create_plan(teacher: Teacher, task: Task | Tasks, **options: Unpack[PlanOptions]) -> Plan:
    """Returns the plan of a distillation, with the defaults of the options that are missing or None."""
    objective, augment = options.get("objective"), options.get("augment", "auto")
    seed, trainer = _join_seeds(options.get("seed"), options.get("trainer"))
    return Plan(
        tasks=Tasks.of(task), objective=default_objective(task) if objective is None else copy.deepcopy(objective),
        has_default_objective=objective is None,
        trainer=trainer, export=options.get("export") or ExportSettings(),
        benchmark=options.get("benchmark") or BENCHMARK, budget=options.get("budget") or Budget(),
        record=options.get("record") or RecordSettings(), report=options.get("report") or ReportSettings(),
        cache_dir=teacher.cache_dir, seed=seed, seeds=options.get("seeds", 1), baseline=options.get("baseline", "auto"),
        augment=AutoAugmentation() if augment == "auto" else augment,
    )  # fmt: skip


def _name_student(student: Student | PreTrainedModel | Callable[..., PreTrainedModel]) -> Student:
    return student if isinstance(student, Student) else Student(getattr(student, "__name__", "student"), student)


def _join_seeds(seed: int | None, trainer: TrainerSettings | None) -> tuple[int, TrainerSettings]:
    """Returns the one seed of the weights and of the training, and the settings with it.

    Raises:
        UserError: for two seeds.
    """
    if trainer is None:
        return seed or 0, TrainerSettings.auto(seed=seed or 0)
    if seed is None:
        return trainer.seed, trainer
    if trainer.seed not in (0, seed):
        raise UserError(f"got seed={seed} and a trainer with seed={trainer.seed}, expected one seed: leave out either")
    return seed, replace(trainer, seed=seed)


def _tracking(
    logger: LoggerSettings | Sequence[LoggerSettings], plan: Plan, teacher: Teacher, student: Student
) -> Tracking:
    """Returns the loggers of a run with its settings; raises UserError for one that cannot be used."""
    tracking = Tracking(
        settings=list(logger) if isinstance(logger, Sequence) else [logger],
        config={
            "teacher": teacher.source.weights.name, "student": student.name, "task": plan.tasks.name,
            "objective": plan.objective.record(), "trainer": asdict(plan.trainer), "export": asdict(plan.export),
            "seed": plan.seed, "seeds": plan.seeds, "baseline": plan.baseline,
        },
    )  # fmt: skip
    tracking.check()
    return tracking


def _run(
    plan: Plan,
    teacher: Teacher,
    student: Student | PreTrainedModel | Callable[..., PreTrainedModel],
    directory: str | Path | None,
    logger: LoggerSettings | Sequence[LoggerSettings],
) -> Result:
    student = _name_student(student)
    plan = replace(plan, tracking=_tracking(logger, plan, teacher, student))
    run = _open_run(plan, teacher, student, directory)
    if run.record["status"] != "finished":
        with tracked(run, resume_with="distill(..., resume=True)", texts=plan.record.texts):
            chain.distill(teacher.source_for(plan.tasks), student, plan, run)
    return Result(run.directory, run.record)


def inspect(
    model: str | Path,
    other: str | Path | None = None,
    *,
    task: Task,
    student: Student | None = None,
    directory: str | Path | None = None,
    **questions: Any,
) -> Inspection:
    """Looks inside a trained model, or a teacher and its student: attention, heads, probes, and what was lost.

        found = d.inspect("runs/teacher", "runs/student", task=task, directory="looked", probes=False)
        found.groups, found.similarity, found.models[0].seen.heads

    Args:
        model: the directory of a model, or of a run whose model it is; the teacher where there are two.
        other: its student, or another model of the same task.
        task: that both are trained for, with the data to look at.
        student: builds the student as it was before its training, to compare its layers then too.
        directory: gets `inspect.html`, its Markdown, and the tables as Parquet files; None writes nothing.
        questions: the options of `job=inspect`, as in `distill.inspection.inspection.Questions`.

    Raises:
        UserError: for a model, a split or a file that the questions cannot be asked of.
    """
    paths = [Path(path).expanduser() for path in (model, other) if path is not None]
    subjects = open_subjects(paths, task, default_cache_dir())
    before = None
    if student is not None and other is not None:
        before = subjects[1].before(student.make(subjects[0].model, task, subjects[0].data))
    found = inspect_models(subjects, Questions(**questions), before=before)
    if directory is not None:
        write_inspection(found, Path(directory))
    return found


def _describe_settings(plan: Plan, student: Student) -> dict[str, Any]:
    """Returns the options of a run that has no config.yaml, as JSON values."""
    settings = {
        "task": {"max_length": {task.info.name: task.info.max_length for task in plan.tasks.values()}},
        "student": getattr(student.build, "keywords", {}),
        "trainer": asdict(plan.trainer),
        "export": asdict(plan.export),
    }
    return cast(dict[str, Any], json.loads(json.dumps(settings, default=str)))


def _open_run(plan: Plan, teacher: Teacher, student: Student, directory: str | Path | None) -> Run:
    """A new run, or the one to go on with."""
    fields = {
        "job": "distill", "command": list(map(hide_secrets, sys.argv)), "config_sha256": None, "seed": plan.seed,
        "settings": _describe_settings(plan, student),
    }  # fmt: skip
    if directory is None:
        if plan.resume:
            raise UserError("got resume=True without a directory, expected the directory of the run to go on with")
        return create_run(Path("runs") / plan.tasks.name / f"{teacher.source.weights.name}-{student.name}", **fields)
    path = storage.local_path(directory)
    storage.fetch(path)
    return open_run(path) if plan.resume else create_run_in(path, **fields)
