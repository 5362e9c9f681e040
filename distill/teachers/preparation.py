"""Prepares a teacher for a task: loads it, fine-tunes and caches it if its head does not fit, and scores it."""

import gc
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from lightning.pytorch.loggers import CSVLogger
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import print_line, print_notice, stages
from distill.core.contracts import Data, EncodedSplits, Examples, Scores, Task, TaskInfo
from distill.core.errors import UserError
from distill.core.files import CHECKSUMS, hash_file, write_json
from distill.core.storage import entry_key, has_intact_entry, new_entry
from distill.data import batches
from distill.data.batches import labelled_only
from distill.data.splits import LabelledData
from distill.kinds.kind import Kind
from distill.kinds.scoring import Scoring
from distill.losses.term import supervised_objective
from distill.models.compatibility import check_length, check_target_length, encoder_size
from distill.models.forward import configure, fills_targets
from distill.models.loading import Start, load_saved, start_head
from distill.models.sentence_files import adopt_special_tokens, keep_prompts, prompts_of
from distill.models.vectors import save_encoder, set_known_width
from distill.teachers.computation import cached_scores, computed_scores
from distill.teachers.language_modeling import Training
from distill.teachers.output_cache import OutputCache, library_versions
from distill.teachers.prepared import PreparedTeacher, compare_with_constant, digest_parts, join_prepared
from distill.teachers.signal import computation_of
from distill.teachers.source import KnownSource, Labeller, TeacherSource, mix_scores, tune
from distill.teachers.stages import (
    AdaptedWeights,
    Calibrated,
    Rescaling,
    choose_precision,
    fit_known,
    fit_scale,
    fit_temperature,
)
from distill.training import fitting, hyperparameters, strategies
from distill.training.hyperparameters import AUTO, check_budget, check_processes
from distill.training.module import DistillationModule, evaluate, fit_decoding, split_metrics

AS_IT_IS, RESCALED = "as it is", "rescaled"  # Origins of a teacher that needs no training.
FORMAT = 2  # Of a fine-tuned teacher in the cache, with the rules by which its checkpoint is chosen.
_METADATA = "distill.json"  # Beside its weights.
TRAINED_FOR = "trained_for"  # The entry of the configuration of a model that writes text: the kind of its task.
# Called with model, tokenizer and examples before the fine-tuning; raises an error if the student does not suit them.
Rehearsal = Callable[[PreTrainedModel, PreTrainedTokenizerBase, EncodedSplits], object]


@dataclass(frozen=True)
class Preparation:
    """Everything that the preparation of a teacher needs.

    Args:
        task: the teacher's task.
        splits: the task's data.
        cache_dir: directory of fine-tuned teachers, outputs and tokens.
        run_directory: directory of the checkpoints of a fine-tuning.
        device: device of the teacher.
        resume: whether to resume a fine-tuning in `run_directory`.
        dry_run: whether to return the teacher without the fine-tuning.
        rehearse: called before the fine-tuning, so that errors of later stages occur early.
    """

    task: Task
    splits: Data
    cache_dir: Path
    run_directory: Path
    device: torch.device
    resume: bool = False
    dry_run: bool = False
    rehearse: Rehearsal = lambda model, tokenizer, examples: None

    def encode(self, tokenizer: PreTrainedTokenizerBase) -> EncodedSplits:
        """Returns the tokenized splits."""
        return self.task.encode(self.splits, tokenizer, self.cache_dir)

    def labelled(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Examples:
        """Returns the examples of a split without those that only the teacher labels."""
        examples = labelled_only(self.encode(tokenizer))[split]
        assert isinstance(examples, Examples)  # A stream has no labels.
        return examples


def prepare(source: TeacherSource, preparation: Preparation) -> PreparedTeacher:
    """Loads the teacher, or those of an ensemble, and fine-tunes each whose head does not fit the task.

    A fine-tuned teacher is cached under a fingerprint of weights, data and settings.

    Raises:
        UserError: if a teacher does not fit and must not be fine-tuned.
    """
    members = [_prepare(one, preparation) for one in source.members]
    for member in members:
        if member.precision == AUTO:
            dev = preparation.labelled(member.tokenizer, "dev")
            member.precision, member.precision_reason = choose_precision(
                member.model, preparation.task, dev, preparation.device
            )
    if len(members) == 1:
        return members[0]
    names = ", ".join(member.resolved for member in members)
    return join_prepared(
        members, *source.shares, resolved=f"the mean of {names}", ensemble=members, shares=source.shares,
        load_untrained=members[0].load_untrained,
    )  # fmt: skip


class Tuning:
    """A teacher that is trained on the labels of its task if its head does not fit: the whole model is fine-tuned.

    The result is cached under a digest of weights, data and settings.

    Attributes:
        source: with the adapted weights, and with a value for every option of the training that is `auto`.
        directory: of the trained teacher in the cache.
    """

    verb, past, origin = "is fine-tuned", "fine-tuned", "fine-tuned"

    def __init__(self, source: TeacherSource, preparation: Preparation) -> None:
        self.preparation, self.task, self.splits = preparation, preparation.task, preparation.splits
        self.adapted: AdaptedWeights | None = None
        if source.adaptation is not None:
            self.adapted = AdaptedWeights(source.weights, source.adaptation, self.splits, preparation.cache_dir)
            source = replace(source, weights=self.adapted)
        self.is_possible = source.finetune is not None and not self.task.info.raw_text
        self.chosen = dict[str, dict[str, Any]]()
        if self.is_possible:
            source, self.chosen = choose_finetuning(source, self.splits, self.task.info)
        self.source = source
        key = "" if self.task.info.raw_text else self.fingerprint()[:16]
        self.directory = preparation.cache_dir / "teachers" / f"{source.weights.name}-{self.task.info.name}-{key}"

    def key(self) -> list[object]:
        """Returns what the trained teacher depends on besides the settings of every training."""
        return []

    def fingerprint(self) -> str:
        """Returns a digest of everything that the trained teacher depends on."""
        source, splits, info = self.source, self.splits, self.task.info
        settings = None if source.finetune is None else source.finetune.key()
        parts = [source.weights.fingerprint(), splits.sha256, splits.scoring.metric, info.max_length, settings]
        parts += [list(source.callback_key)] if source.callback_key else []
        parts += [dict(info.model_settings)] if info.model_settings else []
        parts += [] if splits.head_bias is None else [{"head_bias": splits.head_bias}]
        return entry_key("teachers", FORMAT, library_versions(), *parts, *self.key())

    def prepare(self) -> PreparedTeacher:
        """Returns the teacher as it is if it fits, and otherwise the trained one, from the cache or trained now."""
        if self.is_possible and has_intact_entry(self.directory, "the fine-tuned teacher"):
            print_line(f"Teacher: {self.past} before, read from {self.directory}")
            return self._load_trained("kept")
        start, rescaling = self._load_fitting()
        _check(start, self.source, self.task, self.splits)
        if start.fits:
            return self._take(start, AS_IT_IS if rescaling is None else RESCALED, rescaling)
        preparation, examples = self.preparation, self.preparation.encode(start.tokenizer)
        preparation.rehearse(start.model, start.tokenizer, examples)
        if self.adapted is not None:
            self.adapted.train(preparation.run_directory, resume=preparation.resume, dry_run=preparation.dry_run)
            start = load_start(self.source, self.task, self.splits)
        weights, name = self.source.weights.resolved(), self.task.info.name
        print_line(f"Teacher: {weights} {self.verb} on {name} first, {start.reason}")
        seconds = self._run(start, labelled_only(examples))
        if preparation.dry_run:
            return self._take(start, f"not {self.past} in a dry run", rescaling)
        return self._load_trained(self.origin, start.notices, seconds)

    def _take(self, start: Start, origin: str, rescaling: Rescaling | None) -> PreparedTeacher:
        """Returns the teacher that was loaded and not trained."""
        info, splits = self.task.info, self.splits
        parts: list[object] = [self.source.weights.fingerprint(), info.auto_class, splits.labels]
        parts += [dict(info.model_settings)] if info.model_settings else []
        parts += [] if rescaling is None else ["rescaled", splits.sha256, info.max_length]
        return self._create(
            origin=origin, weights=digest_parts(parts), tokenizer=start.tokenizer, loaded=start.model,
            load=partial(_reload, self.source, self.task, splits, rescaling), notices=start.notices,
        )  # fmt: skip

    def _load_trained(self, origin: str, notices: Sequence[str] = (), seconds: float = 0.0) -> PreparedTeacher:
        """Returns the trained teacher, whose model is loaded when it is read, and prints the notices of its training.

        Args:
            notices: earlier ones.
        """
        trust = self.source.weights.trust_remote_code  # The fine-tuned copy has the code too.
        metadata: dict[str, Any] = json.loads((self.directory / _METADATA).read_text(encoding="utf-8"))
        for text in metadata["notices"]:
            print_notice(text)
        return self._create(
            origin=origin, weights=hash_file(self.directory / CHECKSUMS),
            tokenizer=keep_prompts(
                transformers.AutoTokenizer.from_pretrained(self.directory, trust_remote_code=trust), self.directory
            ),
            load=partial(_load, self.directory, self.task, trust_remote_code=trust),
            notices=[*notices, *metadata["notices"]], seconds=seconds, adapted=metadata.get("adapted"),
        )  # fmt: skip

    def _create(
        self, *, origin: str, seconds: float = 0.0, adapted: dict[str, Any] | None = None, **about: Any
    ) -> PreparedTeacher:
        """Returns the teacher with what is true of it whether it was trained or not."""
        source = self.source
        if self.adapted is not None:
            seconds, adapted = seconds + self.adapted.seconds, adapted or self.adapted.record()
        if origin not in (AS_IT_IS, RESCALED):
            about["trained_by"] = source.finetune
            about["load_untrained"] = partial(_reload, source, self.task, self.splits, None)
        return PreparedTeacher(
            requested=source.requested, resolved=source.resolved(), substituted=source.stands_for is not None,
            origin=origin, precision=source.weights.precision, device=self.preparation.device, seconds=seconds,
            adapted=adapted, features=None if source.features is None else source.features.record(), **about,
        )  # fmt: skip

    def _load_fitting(self) -> tuple[Start, Rescaling | None]:
        """Loads the teacher before any training, and puts its numbers on the scale of the labels if its head fits."""
        info, start = self.task.info, load_start(self.source, self.task, self.splits)
        check_length(start.model, start.tokenizer, info.max_length, who="teacher", lengthens=start.lengthens)
        check_target_length(start.model, start.tokenizer, info.max_target, who="teacher")
        if not start.fits or info.likelihood != "gaussian":
            return start, None
        train = self.preparation.labelled(start.tokenizer, "train")
        return fit_scale(start, self.task, self.splits.scoring, train, self.preparation.device)

    def _run(self, start: Start, examples: EncodedSplits) -> float:
        """Trains and caches the teacher, and returns the duration in seconds, 0 in a dry run."""
        started = time.perf_counter()
        about = {"task": self.task.info.name, "data": self.splits.sha256}
        metadata = about | self._train(start.model, examples)
        if self.preparation.dry_run:
            return 0.0
        if self.adapted is not None:
            metadata["adapted"] = self.adapted.record()
        if self.task.info.generates:
            setattr(start.model.config, TRAINED_FOR, self.task.info.kind)
        with new_entry(self.directory) as temporary:
            save_encoder(start.model, temporary, prompts_of(start.tokenizer))
            start.tokenizer.save_pretrained(temporary)
            write_json(temporary / _METADATA, metadata)
        if self._checkpoints.is_dir():
            strategies.remove_checkpoints(self._checkpoints)  # The result is in the cache.
        gc.collect()  # Module and trainer refer to each other and to the optimizer's state.
        return time.perf_counter() - started

    @property
    def _checkpoints(self) -> Path:
        return self.preparation.run_directory / "teacher" / "checkpoints"

    def _inputs(self, model: PreTrainedModel, examples: EncodedSplits) -> tuple[PreTrainedModel, EncodedSplits] | None:
        """Returns the model that is trained and its examples, None where a dry run has none."""
        return model, examples

    def _train(self, model: PreTrainedModel, examples: EncodedSplits) -> dict[str, Any]:
        """Trains on the hard labels, and returns the settings and the notices; a dry run prints the duration alone."""
        source, splits, settings = self.source, self.splits, self.source.finetune
        assert settings is not None
        for name, choice in hyperparameters.describe_choices(self.chosen):
            print_line(f"         {name}={choice}")
        inputs = self._inputs(model, examples)
        if inputs is None:
            return {}
        trained, examples = inputs
        loaders = batches.all_loaders(examples, steps=settings.max_steps, **settings.batches())
        objective = supervised_objective(splits.terms, task=self.task.info.name)
        objective.connect(encoder_size(trained), encoder_size(trained))
        steps = len(loaders["train"])
        module = DistillationModule(
            student=trained, objective=objective, task=self.task, scoring=splits.scoring,
            settings=settings, steps_per_epoch=steps,
        )  # fmt: skip
        training = Training(module, loaders, settings)
        estimate = training.estimate_seconds()
        stages.expect(teacher=estimate + (0.0 if self.adapted is None else self.adapted.seconds))
        print_line(f"         {training.describe(estimate)}")
        if self.preparation.dry_run:
            return {}
        fit = training.fit(
            self._checkpoints, logger=CSVLogger(str(self._checkpoints.parent), name="", version=""), title="teacher",
            identity={"data": splits.sha256, "start": source.weights.fingerprint()},
            resume=self.preparation.resume, callbacks=source.callbacks,
        )  # fmt: skip
        notices = [_describe_rise(source, splits.scoring.metric, fit, steps=steps)] if fit.rise is not None else []
        return {"settings": asdict(settings), "notices": notices}


class FeatureTuning(Tuning):
    """A teacher whose encoder stays frozen: a BiLSTM is trained on its features."""

    verb = "stays frozen, and a BiLSTM on its features is trained"
    past, origin = "trained", "trained on features"

    def key(self) -> list[object]:
        assert self.source.features is not None
        return [self.source.features.record()]

    def _inputs(self, model: PreTrainedModel, examples: EncodedSplits) -> tuple[PreTrainedModel, EncodedSplits] | None:
        if self.preparation.dry_run:  # Nothing can be estimated without the features.
            return None
        source, preparation = self.source, self.preparation
        assert source.features is not None
        return source.features.prepare_training(
            model, self.task, examples, fingerprint=source.weights.fingerprint(), precision=source.weights.precision,
            device=preparation.device, cache=source.cache, directory=preparation.cache_dir / "outputs",
        )  # fmt: skip


class PairTuning(Tuning):
    """A teacher that is tuned on pairs of labelled rows, before a head is fitted to them."""

    verb = "is tuned on pairs of labelled rows, and its head is fitted to them,"
    origin = "tuned on pairs"

    def key(self) -> list[object]:
        assert self.source.contrastive is not None
        return [{"contrastive": asdict(self.source.contrastive)}]

    def _train(self, model: PreTrainedModel, examples: EncodedSplits) -> dict[str, Any]:
        train, settings = examples["train"], self.source.contrastive
        assert settings is not None
        assert isinstance(train, Examples)  # A stream has no classes.
        if not self.preparation.dry_run:
            tune(model, self.task, train, settings, device=self.preparation.device)
        return {"settings": asdict(settings), "notices": []}


def _prepare(source: TeacherSource, preparation: Preparation) -> PreparedTeacher:
    if isinstance(source.labeller, KnownSource):
        return _prepare_known(source, source.labeller, preparation)
    if isinstance(source.labeller, Labeller):
        return _prepare_labeller(source, source.labeller, preparation)
    tuning = PairTuning if source.contrastive is not None else Tuning if source.features is None else FeatureTuning
    return tuning(source, preparation).prepare()


def choose_finetuning(
    source: TeacherSource, splits: Data, task: TaskInfo
) -> tuple[TeacherSource, dict[str, dict[str, Any]]]:
    """Returns the source with a value for every option of its fine-tuning that is `auto`, and these values."""
    assert source.finetune is not None
    if not source.finetune.unresolved():
        return replace(source, finetune=hyperparameters.with_batch_size(source.finetune)), {}
    start = "no_attention" if source.features is not None else "fresh" if source.weights.is_new else "whole"
    sizes = splits.sizes()
    settings, chosen = hyperparameters.resolve_finetuning(
        source.finetune, sizes["train"], width=source.weights.width(), scored=sizes["dev"], option=source.trainer,
        start=start, sequences=task.sequences,
    )  # fmt: skip
    return replace(source, finetune=settings), chosen


def _reload(source: TeacherSource, task: Task, splits: Data, rescaling: Rescaling | None) -> PreTrainedModel:
    """Loads the teacher that was prepared without a fine-tuning once more."""
    model = load_start(source, task, splits).model
    return model if rescaling is None else rescaling.apply(model)


def _check(start: Start, source: TeacherSource, task: Task, splits: Data) -> None:
    """Raises UserError if the teacher does not suit the task, and prints its notices."""
    name = source.weights.resolved()
    if task.info.raw_text:
        if source.weights.is_new:
            raise UserError(
                f"teacher {source.weights.name} begins with random weights: train it with python -m distill "
                f"job=pretrain task={task.info.name} +teacher={source.weights.name} ..., and give the result as "
                "teacher.path"
            )
        if not start.fits:
            raise UserError(
                f"teacher {name} is no language model: {start.reason}; give it a head with python -m distill "
                f"job=finetune task={task.info.name} +teacher={source.weights.name} ..., and give the result as "
                "teacher.path"
            )
    elif task.info.max_target is not None and fills_targets(start.model):
        raise UserError(
            f"teacher {name} fills all tokens of a target at once, and teaches no model: take one that writes them one "
            "after another, of task=seq2seq"
        )
    elif task.info.taught_by is not None and not start.fits:
        raise UserError(
            f"teacher {name} does not fit task {task.info.name}: {start.reason}; train it with python -m distill "
            f"job=finetune task={task.info.taught_by} +teacher={source.weights.name} ..., and give the result as "
            "teacher.path"
        )
    elif source.finetune is None and not start.fits:
        raise UserError(
            f"teacher {name} does not fit task {task.info.name}: {start.reason}; to have it fine-tuned first, leave "
            "out teacher.finetune=false, or in Python call fit(task) of the teacher"
        )
    elif not start.fits and splits.scoring.needs_teacher:
        raise UserError(
            f"train has no labels, and teacher {name} must be fine-tuned on some because {start.reason}: take a "
            "teacher that knows the classes, as +teacher=zero_shot or +teacher=file does, or add labels"
        )
    elif source.finetune is not None:
        check_budget(source.finetune.batch_tokens, task.info.max_length, source.trainer)
        check_processes(source.finetune, source.trainer)
    for text in start.notices:
        print_notice(text)


def _describe_rise(source: TeacherSource, metric: str, fit: fitting.Fit, *, steps: int) -> str:
    """Returns the notice of a fine-tuning that ended too early; `steps` are those of an epoch."""
    settings = source.finetune
    assert settings is not None
    assert fit.rise is not None
    epochs = settings.total_steps(steps) / steps
    is_cut = settings.max_steps is not None and settings.max_steps <= fit.steps
    length = f"max_steps={2 * fit.steps}" if is_cut else f"max_epochs={2 * math.ceil(epochs)}"
    return (
        f"teacher {source.weights.name}: {metric} on dev was still improving at the end of its training, "
        f"by {fit.rise:.3f} to {fit.best:.3f} in the last third: set {source.trainer}.{length} to train it for longer"
    )


def _prepare_labeller(source: TeacherSource, labeller: Labeller, preparation: Preparation) -> PreparedTeacher:
    """Returns the teacher of class probabilities, with a temperature that suits the labelled rows if there are any."""
    task, splits, cache_dir = preparation.task, preparation.splits, preparation.cache_dir
    start = load_start(source, task, splits)
    check_length(start.model, start.tokenizer, task.info.max_length, who="teacher")
    for text in start.notices:
        print_notice(text)
    load = partial(labeller.load, task, splits, start.tokenizer, cache_dir)
    labels = load()
    examples = task.encode(splits, start.tokenizer, cache_dir)
    preparation.rehearse(start.model, start.tokenizer, examples)
    create = partial(
        PreparedTeacher,
        requested=source.requested, resolved=source.resolved(), origin=labeller.origin,
        tokenizer=start.tokenizer, load=partial(_reload, source, task, splits, None),
        precision=source.weights.precision, device=preparation.device, loaded=start.model,
        notices=start.notices, has_size=labeller.labels_any_text,
    )  # fmt: skip
    parts = [source.weights.fingerprint(), labeller.fingerprint(), task.info.auto_class, splits.labels]
    teacher: PreparedTeacher = create(weights=digest_parts(parts), load_labels=lambda: labels)
    train = labelled_only(examples)["train"]
    assert isinstance(train, Examples)  # A stream has no classes.
    temperature = None if preparation.dry_run else fit_temperature(teacher.running(), task, train)
    if temperature is None:
        return teacher
    print_line(f"Teacher: its logits are divided by {temperature:.3g}, which suits the labelled rows best")
    return create(
        weights=digest_parts([*parts, temperature]), load_labels=lambda: Calibrated(load(), temperature),
    )  # fmt: skip


def _prepare_known(source: TeacherSource, table: KnownSource, preparation: Preparation) -> PreparedTeacher:
    """Returns the teacher of a table, with a temperature that suits the labelled rows if there are any."""
    task, splits = preparation.task, preparation.splits
    start = load_start(source, task, splits)
    check_length(start.model, start.tokenizer, task.info.max_length, who="teacher")
    for text in start.notices:
        print_notice(text)
    known = table.read(task, splits)
    if task.info.likelihood == "vector":
        set_known_width(start.model, next(iter(known.found.values())).shape[-1])
    preparation.rehearse(start.model, start.tokenizer, preparation.encode(start.tokenizer))
    if isinstance(splits, LabelledData) and isinstance(task, Kind) and not preparation.dry_run:
        known = fit_known(known, task, splits)
    parts = [source.weights.fingerprint(), table.fingerprint(), task.info.auto_class, splits.labels, known.temperature]
    return PreparedTeacher(
        requested=source.requested, resolved=source.resolved(), origin=table.origin, tokenizer=start.tokenizer,
        load=partial(_reload, source, task, splits, None), precision=source.weights.precision,
        device=preparation.device, loaded=start.model, notices=start.notices, has_size=False,
        weights=digest_parts(parts), known=known,
    )  # fmt: skip


def load_start(source: TeacherSource, task: Task, splits: Data) -> Start:
    """Loads the teacher before any training. A new head is initialized from a fixed seed."""
    torch.manual_seed(0 if source.finetune is None else source.finetune.seed)
    start = source.weights.load(
        task.info.auto_class,
        splits.labels or None,
        splits.texts(),
        problem_type=task.info.model_settings.get("problem_type"),
    )
    notices = configure(start.model, task.info.model_settings)
    if source.features is not None:
        start = source.features.wrap(start, task, source.weights.resolved())
    if not start.fits and splits.head_bias is not None:
        start_head(start.model, splits.head_bias)
    adopt_special_tokens(start.model, start.tokenizer)
    start = replace(start, notices=[*start.notices, *notices])
    if source.finetune is not None:
        return _check_training(start, task)
    return _take_encoder(start, task) if source.accept_weak else start


def _take_encoder(start: Start, task: Task) -> Start:
    """Returns a teacher of vectors that may be weak and is not fine-tuned, whatever head stands on its encoder.

    A task of vectors has no head, so that the encoder of a language model is whole without its own.
    """
    if task.info.likelihood != "vector" or start.fits or start.fresh:
        return start
    return replace(start, fits=True, notices=[*start.notices, f"the teacher is taken as it is: {start.reason}"])


def _check_training(start: Start, task: Task) -> Start:
    """Returns the teacher as one to be fine-tuned if it has a head that may have been trained for something else.

    A head over a vocabulary has no labels by which a task would know it, so that a fine-tuning notes its task.
    """
    if not task.info.writes or task.info.raw_text or not start.fits:
        return start
    trained_for = getattr(start.model.config, TRAINED_FOR, None)
    if trained_for == (task.info.taught_by or task.info.kind):
        return start
    return replace(start, fits=False, reason="as its config.json names no such task (teacher.finetune=false: as it is)")


def score(
    teacher: PreparedTeacher,
    task: Task,
    scoring: Scoring,
    examples: EncodedSplits,
    *,
    source: TeacherSource,
    directory: Path,
) -> None:
    """Sets the teacher's scores and metrics on the splits that are scored, and caches its outputs for them.

    The teacher is compared with the best constant prediction. A weak one that `source` accepts gets a notice.

    Raises:
        UserError: if the teacher is weak and must not be.
    """
    of_members = [_score(member, task, scoring, examples, source.cache, directory) for member in teacher.members]
    scored = [(teacher, _mix(teacher, of_members, task)), *zip(teacher.ensemble, of_members, strict=False)]
    for one, scores in scored:
        one.scores = fit_decoding(scoring, scores)
        one.metrics = split_metrics(scoring, one.scores)
    teacher.comparison = compare_with_constant(scoring, teacher.scores)
    if teacher.comparison is None or teacher.comparison.weakness is None:
        return
    weakness = f"teacher {source.weights.name} {teacher.comparison.weakness}"
    if scoring.weak_may_teach:
        teacher.notices.append(weakness)
        print_notice(weakness)
        return
    if not source.accept_weak:
        longer = "" if source.finetune is None else f"train it for longer ({source.trainer}.max_epochs=N), "
        raise UserError(
            f"{weakness}: {longer}check that its labels mean the task's, give it more labels or dev more rows, or set "
            "teacher.accept_weak=true to learn from it all the same"
        )
    teacher.notices.append(f"{weakness}; it teaches because of teacher.accept_weak=true")
    print_notice(teacher.notices[-1])


def label_scored(
    teacher: PreparedTeacher, task: Task, data: LabelledData, *, cache: OutputCache, directory: Path, dry_run: bool
) -> LabelledData:
    """Returns the data with the teacher's class of each example that is scored, and no class of one in a dry run.

    Args:
        cache: the rules for caching the teacher's outputs.
        directory: of what runs share.
    """
    if dry_run:
        unknown: LabelledData = data.scoring.with_teacher(data, None)
        return unknown
    of_members = []
    for member in teacher.members:
        examples = task.encode(data, member.tokenizer, directory)
        if member.known is not None:
            assert isinstance(task, Kind)
            examples, member.readings = member.known.match(task, data, examples)
        of_members.append(_score(member, task, data.scoring, examples, cache, directory / "outputs"))
    labelled: LabelledData = data.scoring.with_teacher(data, _mix(teacher, of_members, task))
    return labelled


def _score(
    teacher: PreparedTeacher, task: Task, scoring: Scoring, examples: EncodedSplits, cache: OutputCache, directory: Path
) -> dict[str, Scores]:
    """Returns the scores of one teacher on the splits that are scored, by example."""
    if cache.enabled is not False and not task.info.classes_are_tokens:
        return cached_scores(computation_of(teacher, task, cache, directory), scoring, examples)
    if teacher.readings:
        return computed_scores(computation_of(teacher, task, cache, directory), scoring, examples)
    loaders = batches.evaluation_loaders(examples)
    return {name: evaluate(teacher.running(), task, scoring, loader).by_example() for name, loader in loaders.items()}


def _mix(teacher: PreparedTeacher, of_members: Sequence[dict[str, Scores]], task: Task) -> dict[str, Scores]:
    """Returns the scores of the mean of an ensemble, those of one teacher as they are."""
    if len(of_members) == 1:
        return of_members[0]
    return {
        name: mix_scores([scores[name] for scores in of_members], teacher.shares, task.info.likelihood)
        for name in of_members[0]
    }


def _load(directory: Path, task: Task, *, trust_remote_code: bool) -> PreTrainedModel:
    model = load_saved(directory, task.info.auto_class, trust_remote_code=trust_remote_code)
    configure(model, task.info.model_settings)
    return model
