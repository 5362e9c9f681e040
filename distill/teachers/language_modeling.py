"""Training on plain text: of a language model, and of a student in a general stage that all tasks share.

A general stage: a student learns its teacher's states on plain text, once for each teacher and architecture. It learns
the hidden states of matched layers (arXiv 1909.10351, equations 8 and 9) and the relations of queries, of keys and of
values in the last layers (arXiv 2012.15828), from the teacher as it was before its fine-tuning. The result is in the
cache, and every task starts from it.
"""

import gc
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core import files
from distill.core.console import format_duration, print_line, print_notice, stages
from distill.core.contracts import IGNORED, Batch, Data, EncodedSplits, Examples, Items, Loader, Outputs, Scores, Signal
from distill.core.errors import UserError
from distill.core.files import make_directory, write_json
from distill.core.storage import entry_key, has_entry, has_intact_entry, lease, new_entry
from distill.data import batches
from distill.kinds import CausalLM, MaskedLM
from distill.kinds.masked_lm import TextData
from distill.kinds.scoring import Scoring
from distill.losses import HiddenStateMSE, MiniLMv2, Objective
from distill.models import compatibility
from distill.models.forward import check_causal, collect_outputs, is_decoder, run_encoder, segment_logits
from distill.models.loading import CAUSAL, ENCODER, Start
from distill.models.sentence_files import adopt_special_tokens
from distill.models.surgery.embeddings import AUTO_WORDS, AddWords, Growth, can_grow, plan_growth
from distill.models.surgery.initialization import OPTION, GeneralSettings
from distill.models.surgery.layers import count_decoder_layers
from distill.models.wrappers import heads_of
from distill.teachers.output_cache import library_versions
from distill.teachers.signal import Live
from distill.teachers.source import Weights, keep_texts, renamed
from distill.text.masking import Masking
from distill.text.sequences import Sequences
from distill.text.streaming import StreamedText
from distill.training import fitting
from distill.training.hyperparameters import Accelerator, TrainerSettings
from distill.training.module import DistillationModule, evaluate

MOST_UNKNOWN = 0.5  # Share of the unknown piece in a text, above which a vocabulary is of another script.
TOLD_UNKNOWN = 0.01  # Above which the share gets a notice.


@dataclass(frozen=True)
class Training:
    """A module, the loaders of its splits, and the settings of its training."""

    module: DistillationModule
    loaders: Mapping[str, Loader]
    settings: TrainerSettings

    def estimate_seconds(self) -> float:
        """Estimates the duration, as `fitting.estimate_seconds`."""
        return fitting.estimate_seconds(self.module, self.loaders["train"], self.loaders["dev"], self.settings)

    def describe(self, seconds: float) -> str:
        """Describes the number of steps, their size and the estimated duration of a training whose result is cached."""
        steps, size = f"{self.module.total_steps:,} steps", self.settings.step_size()
        return f"{steps} of {size}, {self.settings.resolved_precision()}, about {format_duration(seconds)}, once"

    def fit(self, checkpoints: Path, **options: Any) -> fitting.Fit:
        """Trains the module with the further arguments of `fitting.fit`."""
        splits = self.loaders["train"], self.loaders["dev"]
        return fitting.fit(self.module, *splits, settings=self.settings, checkpoints=checkpoints, **options)

    def evaluate(self) -> Scores:
        """Returns the scores of the student on dev."""
        module = self.module.to(self.settings.device())
        return evaluate(module.student, module.task, module.scoring, self.loaders["dev"])


@dataclass(frozen=True)
class TextTraining(Training):
    """A training on raw text: the model, its tokenized text, and the module that trains it.

    Args:
        data: with the tokenized splits.
    """

    start: Start
    data: TextData
    examples: EncodedSplits

    @classmethod
    def prepare(
        cls,
        task: MaskedLM | CausalLM,
        data: TextData,
        start: Start,
        *,
        objective: Objective | None,
        settings: TrainerSettings,
        cache_dir: Path,
    ) -> "TextTraining":
        """Tokenizes the text and creates the module; without an objective it has the terms of the text.

        The model is trained together with those that the task adds, such as a generator.
        """
        model = task.assemble(start.model, start.tokenizer)
        chosen = objective or Objective(name=data.objective, terms=data.terms)
        size = compatibility.encoder_size(trained_model(start.model))
        chosen.connect(size, size)
        examples = task.encode(data, start.tokenizer, cache_dir)
        _check_script(examples, start.tokenizer)
        data = data.with_examples(examples)
        loaders = batches.all_loaders(examples, steps=settings.max_steps, **settings.batches())
        module = DistillationModule(
            student=model, objective=chosen, task=task, scoring=data.scoring,
            settings=settings, steps_per_epoch=len(loaders["train"]),
        )  # fmt: skip
        return cls(module, loaders, settings, start, data, examples)

    def measure(self) -> dict[str, float]:
        """Returns the metrics of the model on dev."""
        return self.data.scoring.metrics(self.evaluate())


def load_language_model(weights: Weights, task: MaskedLM | CausalLM, data: TextData, *, seed: int) -> Start:
    """Loads the model with a head over its vocabulary, and if needed one for two segments."""
    weights.locate()
    torch.manual_seed(seed)  # For a new head.
    start = weights.load(task.info.auto_class, data.labels or None, data.texts())
    if task.info.auto_class == CAUSAL:
        check_causal(start.model, f"teacher {weights.name}")
    adopt_special_tokens(start.model, start.tokenizer)
    for text in start.notices:
        print_notice(text)
    if not weights.is_new and not start.fits:
        print_notice(f"teacher {weights.resolved()} gets a head with random weights")
    compatibility.check_length(
        start.model, start.tokenizer, task.info.max_length, who="teacher", lengthens=start.lengthens
    )
    if "pair_labels" in task.info.label_columns and segment_logits(compatibility.run_sample(start.model)) is None:
        raise UserError(
            f"task.pair={task.settings.pair} needs a model with a head for two segments, such as BERT's, and a "
            f"{type(start.model).__name__} has none: set task.pair=null, or three_way"
        )
    return start


def trained_model(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the model itself, without a further one that is trained together with it."""
    return next(iter(heads_of(model).values()))


def choose_growth(tokenizer: PreTrainedTokenizerBase, data: TextData, add_words: AddWords) -> Growth | None:
    """Returns the words of a text that the vocabulary gets, and prints them; None for none.

    Raises:
        UserError: for words and a vocabulary that cannot grow.
    """
    if not add_words:
        return None
    if add_words == AUTO_WORDS and not can_grow(tokenizer):
        print_line("Words: no word becomes a piece, because the vocabulary is no WordPiece (adapt.add_words=auto)")
        return None
    growth = plan_growth(data.texts(), tokenizer, add_words)
    print_line(f"Words: {growth}")
    return growth


def _check_script(examples: EncodedSplits, tokenizer: PreTrainedTokenizerBase) -> None:
    """Prints a notice of unknown pieces.

    Raises:
        UserError: for a text in another script than the vocabulary.
    """
    train = examples["train"]
    sequences = train.sample() if isinstance(train, StreamedText) else train
    if tokenizer.unk_token_id is None or not isinstance(sequences, Sequences):
        return
    unknown = sequences.share_of(tokenizer.unk_token_id)
    if unknown > MOST_UNKNOWN:
        raise UserError(
            f"{unknown:.0%} of the pieces of the text are unknown to the vocabulary, expected at most "
            f"{MOST_UNKNOWN:.0%}: give a text in the script of the vocabulary, or a multilingual teacher"
        )
    if unknown > TOLD_UNKNOWN:
        print_notice(f"{unknown:.1%} of the pieces of the text are unknown to the vocabulary")


FORMAT = 1  # Of the trained encoders in the cache.
RELATION_WIDTH = 16  # Of a relation head of the teacher: 48 heads of BERT-base and 64 of BERT-large, as in the paper.
DEV_SEQUENCES = 256
EVALUATIONS = 6  # In the whole training.
CHECKPOINT_STEPS = 200  # Optimizer steps that are lost when the process is killed, at most.
LEAST_STEPS = 10  # Of a text.
CHARACTERS = 4  # Of a token, about.
CHANGES_NOTHING = Masking(replace=(0.0, 0.0, 1.0))  # Of the tokens of a text.
_WEIGHTS, _METADATA, _LOCK = "model.safetensors", "distill.json", "training.lock"


class PlainText:
    """Plain text as a training sees it: items are all tokens but padding, and models have states and no logits.

    Args:
        needs: outputs of the student where none are named, as in an evaluation.
    """

    def __init__(self, needs: frozenset[str]) -> None:
        self.needs = needs

    def select(self, batch: Batch) -> Items:
        """Returns the tokens of a batch but the padding."""
        mask = batch["attention_mask"]
        index = mask.flatten().nonzero().squeeze(-1)
        labels = torch.full_like(index, IGNORED)
        return Items(batch, index // mask.shape[1], labels, torch.zeros_like(index, dtype=torch.bool), index=index)

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the encoder."""
        return collect_outputs(run_encoder(model, batch, needs or self.needs))


class Distance(Scoring):
    """The value of an objective on dev, without labels: the distance from the teacher.

    Args:
        objective: connects both models.
        signal: the teacher's outputs.
    """

    names = ("distance",)
    selects = "min"

    def __init__(self, objective: Objective, signal: Signal) -> None:
        self.objective, self.signal = objective, signal

    def score(self, outputs: Outputs, items: Items) -> dict[str, Tensor]:
        """Returns the mean of the batch at each of its tokens, `[n]`."""
        loss, _ = self.objective(outputs, self.signal(items.batch, items), items)
        return {"distance": loss.float().expand(len(items))}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """Returns the mean over all tokens."""
        return {"distance": float(scores.columns["distance"].astype(np.float64).mean())}


class GeneralStage:
    """The encoder of a student after a general stage, trained once and cached.

    Args:
        weights: those of the teacher before its fine-tuning.
        build: creates the student of an encoder without a head.
        settings: of the text and the training.
        data: of the task, whose texts without labels are the text without a corpus.
        accelerator: that of the trainings of the run. The precision is the one that suits it.

    Raises:
        UserError: without text, and for text that is not one step.
    """

    def __init__(
        self,
        weights: Weights,
        build: Callable[[PreTrainedModel], PreTrainedModel],
        settings: GeneralSettings,
        data: Data,
        *,
        accelerator: Accelerator,
        cache_dir: Path,
    ) -> None:
        self.weights, self.settings, self.accelerator = weights, settings, accelerator
        self.seconds = 0.0
        corpus = _find_corpus(settings, data, cache_dir)
        with renamed(OPTION, data_dir="corpus"):
            task = MaskedLM(
                name="general", data_dir=corpus, documents=settings.documents, max_length=settings.max_length,
                mask=CHANGES_NOTHING, dev_examples=DEV_SEQUENCES, streaming=False,
            )  # fmt: skip
            self.text = task.read(cache_dir)
            _check_amount(self.text, settings)
            with torch.random.fork_rng(devices=[]):  # The weights of an encoder depend on no seed of a run.
                torch.manual_seed(0)
                self.start = _load_teacher(weights, self.text)
                self.student = build(self.start.model)
            for who, model in {"teacher": self.start.model, "student": self.student}.items():
                compatibility.check_length(model, self.start.tokenizer, settings.max_length, who=who)
            self._before = {name: tensor.clone() for name, tensor in self.student.base_model.state_dict().items()}
            self._objective = _create_objective(self.student, self.start.model)
            self._examples = task.encode(self.text, self.start.tokenizer, cache_dir)
        training = {name: value for name, value in self._trainer(1).key().items() if name != "accelerator"}
        key = entry_key(
            "general", FORMAT, library_versions(), weights.fingerprint(), self._describe_student(), self.text.sha256,
            {name: value for name, value in asdict(settings).items() if name != "corpus"}, training,
        )  # fmt: skip
        self.directory = cache_dir / "general" / f"{weights.name}-{key[:16]}"

    def _describe_student(self) -> dict[str, Any]:
        """Returns everything that the student depends on besides the teacher's weights."""
        config = self.student.config.to_dict()
        for name in ("_name_or_path", "transformers_version", "id2label", "label2id"):
            config.pop(name, None)  # No part of an encoder.
        inherited = getattr(self.student, "inherited", {})
        return {"class": type(self.student).__name__, "config": config, "inherited": dict(inherited)}

    def _trainer(self, steps: int, evaluations: float = 1.0) -> TrainerSettings:
        """Returns the settings of a training of so many steps."""
        settings = self.settings
        return TrainerSettings(
            learning_rate=settings.learning_rate,
            batch_size=settings.batch_size,
            max_steps=steps,
            evaluations=evaluations,
            checkpoint_steps=CHECKPOINT_STEPS,
            accelerator=self.accelerator,
        )

    def is_trained(self) -> bool:
        """Returns whether the encoder is in the cache and intact."""
        return has_intact_entry(self.directory, "the general stage")

    def plan(self) -> str:
        """Describes where the encoder is, or how long its training takes."""
        if self.is_trained():
            return f"trained before on {self._name_text()}, in {self.directory}"
        return f"to be trained on {self._name_text()}: {_describe(self._prepare())}"

    def _name_text(self) -> str:
        corpus = self.settings.corpus
        return "the texts without labels" if corpus is None else Path(corpus).expanduser().resolve().name

    def train(self) -> None:
        """Trains and caches the encoder, once for all processes; one that was stopped goes on from its checkpoint."""
        if self.is_trained():
            print_line(f"Student: starts from the general stage {self.directory}, trained before")
            return
        working = self.directory.with_name(f"{self.directory.name}-training")
        make_directory(working)
        lock = files.acquire_lock(working / _LOCK)
        if lock is None:
            print_notice(f"another process trains the general stage {self.directory}: waiting for it")
            lock = files.acquire_lock(working / _LOCK, wait=True)
        try:
            if not has_entry(self.directory):  # Another process may have trained it meanwhile.
                lease(working)
                self._train(working)
        finally:
            files.release_lock(lock)

    def _train(self, working: Path) -> None:
        started, training = time.perf_counter(), self._prepare()
        print_line(f"Student: learns {self.weights.resolved()} on {self._name_text()} first, for every task")
        print_line(f"         {_describe(training)}")
        before = training.module.scoring.metrics(training.evaluate())["distance"]
        fit = training.fit(
            working / "checkpoints", logger=None, title="general", resume=True,
            identity={"text": self.text.sha256, "teacher": self.weights.fingerprint()},
        )  # fmt: skip
        self.seconds = time.perf_counter() - started
        record = {
            "text": self._name_text(), "sha256": self.text.sha256, "options": asdict(self.settings) | {"corpus": None},
            "distance": {"before": before, "after": fit.best}, "steps": fit.steps,
            "tokens": training.module.tokens_seen, "seconds": self.seconds,
        }  # fmt: skip
        tensors = self.student.cpu().eval().base_model.state_dict()
        with new_entry(self.directory) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary / _WEIGHTS)
            write_json(temporary / _METADATA, record)
        shutil.rmtree(working, ignore_errors=True)  # The result is in the cache.
        gc.collect()  # Module and trainer refer to each other and to the optimizer's state.

    def _prepare(self) -> Training:
        """Returns the module with its loaders."""
        settings, objective, train = self.settings, self._objective, self._examples["train"]
        trainer = self._trainer(1)
        loaders = batches.all_loaders(self._examples, **trainer.batches())
        assert isinstance(train, Examples)  # Nothing is streamed.
        in_epoch, size = len(loaders["train"]), float(train.lengths.mean()) * settings.batch_size * trainer.processes()
        in_pass = min(in_epoch, max(1, round(settings.tokens / size)))
        steps = in_pass * settings.passes
        trainer = self._trainer(steps, EVALUATIONS * in_epoch / steps)
        task = PlainText(objective.student_needs)
        teacher = self.start.model.to(getattr(torch, self.weights.precision))
        signal = Live(teacher, task, objective, reason="a general stage shows much text a few times")
        module = DistillationModule(
            student=self.student, objective=objective, task=task, scoring=Distance(objective, signal), signal=signal,
            settings=trainer, steps_per_epoch=in_epoch,
        )  # fmt: skip
        return Training(module, loaders, trainer)

    def load(self) -> dict[str, Tensor]:
        """Returns the tensors of the trained encoder by name."""
        return load_file(self.directory / _WEIGHTS)

    def load_changes(self) -> dict[str, Tensor]:
        """Returns by how much the training has changed each tensor of the encoder."""
        return {name: tensor - self._before[name] for name, tensor in self.load().items()}

    def record(self) -> dict[str, Any]:
        """Returns the training for run.json."""
        record: dict[str, Any] = json.loads((self.directory / _METADATA).read_text(encoding="utf-8"))
        return record


def _describe(training: Training) -> str:
    """Describes a training and its estimated time, which the stage of the command is given."""
    seconds = training.estimate_seconds()
    stages.expect(teacher=seconds)
    stages.expect_left(seconds)
    return training.describe(seconds)


def _find_corpus(settings: GeneralSettings, data: Data, cache_dir: Path) -> str:
    """Returns the path of the text.

    Raises:
        UserError: for no text.
    """
    if settings.corpus is not None:
        return settings.corpus
    file = keep_texts(data.unlabelled_texts(), cache_dir)
    if not file.stat().st_size:
        raise UserError(
            "student.init=general learns from plain text, and the task has no texts without labels: set "
            f"{OPTION}.corpus=PATH to a text file or a folder of them, or give task.unlabelled=FILE"
        )
    return str(file)


def _check_amount(text: TextData, settings: GeneralSettings) -> None:
    """Raises UserError for too little text."""
    least = LEAST_STEPS * settings.batch_size * settings.max_length
    size = 0
    for document in text.corpus.read_documents():
        size += len(document.text)
        if size >= least * CHARACTERS:
            return
    given = "the texts without labels have" if settings.corpus is None else f"{OPTION}.corpus={settings.corpus} has"
    raise UserError(
        f"{given} about {size // CHARACTERS:,} tokens, expected at least {least:,}, which are {LEAST_STEPS} steps of "
        f"{settings.batch_size} sequences: give more text, or another student.init"
    )


def _load_teacher(weights: Weights, text: TextData) -> Start:
    """Returns the teacher before its fine-tuning, without a head.

    Raises:
        UserError: for a teacher with random weights, and one that is no encoder.
    """
    if weights.is_new:
        raise UserError(
            "student.init=general learns the states of a trained teacher, and this one has random weights: take "
            "another one, or another student.init"
        )
    start = weights.load(ENCODER, None, text.texts())
    if count_decoder_layers(start.model.config) is not None or is_decoder(start.model.config):
        raise UserError(
            f"student.init=general is for students of encoders, and teacher {weights.name} is a "
            f"{type(start.model).__name__}, which writes text: take another student.init"
        )
    return start


def _create_objective(student: PreTrainedModel, teacher: PreTrainedModel) -> Objective:
    """Returns the distance of a student from its teacher, with a projection where their widths differ.

    Raises:
        UserError: for a model without hidden states of every layer, or without queries, keys and values.
    """
    widths = [compatibility.encoder_size(model).attention_width or 1 for model in (student, teacher)]
    heads = math.gcd(max(1, widths[1] // RELATION_WIDTH), *widths)
    objective = Objective(name="general", hidden=HiddenStateMSE(), relations=MiniLMv2(relation_heads=heads))
    for model in (student, teacher):
        model.eval()  # The checks run both.
    compatibility.check_outputs(objective, teacher=teacher, student=student)
    compatibility.check_sizes(objective, teacher=teacher, student=student)
    objective.connect(compatibility.encoder_size(student), compatibility.encoder_size(teacher))
    return objective
