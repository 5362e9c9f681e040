"""A toy of each kind of task with its teacher and its students, of one small structure, built once a session."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import distill as d
from distill.chain.plan import Student, default_objective
from distill.chain.train import make_student
from distill.core.contracts import Data, Signal, Task
from distill.kinds import (
    BidirectionalLM,
    CausalLM,
    Classification,
    Denoising,
    Embedding,
    MaskedLM,
    MaskPredict,
    MultipleChoice,
    QuestionAnswering,
    Regression,
    ReplacedTokenDetection,
    Reranking,
    Seq2Seq,
    TextLabels,
    TokenClassification,
)
from distill.kinds.multitask import MultiTask, join_scorings, join_splits
from distill.kinds.scoring import Scoring
from distill.losses import GeneratorLoss, HardLabels, Objective, ReplacedTokens, SoftTargets
from distill.models.architectures.modeling_bilm import BilmConfig, BilmForPreTraining
from distill.models.compatibility import encoder_size
from distill.models.forward import configure, model_class
from distill.models.generator import GeneratorOptions
from distill.models.sentence_files import adopt_special_tokens
from distill.models.surgery.initialization import Origins
from distill.models.wrappers import share_encoder
from distill.text.masking import Masking
from distill.text.vocabulary import train_sentinels
from distill.training.module import DistillationModule
from tests.conftest import live, sentences, toy_bert

_LENGTH: dict[str, Any] = {"max_length": 32}
_CORPUS: dict[str, Any] = {"dev_fraction": 0.2, **_LENGTH}
_MASKS: dict[str, Any] = {"masking": "static", "masks": 2, **_CORPUS}
_TWO_TEXTS = {
    "one": [text for text, _ in sentences(24)], "two": [text for text, _ in sentences(26)[2:]],
    "label": ["same" if number % 3 else "other" for number in range(24)],
}  # fmt: skip

# A function of the directory of the golden toys.
TASKS: dict[str, Callable[[Path], Any]] = {
    "classes": lambda toys: Classification(text="sentence", data_dir=toys / "classes", **_LENGTH),
    "two texts": lambda _: Classification(text=["one", "two"], train=_TWO_TEXTS, dev=_TWO_TEXTS, **_LENGTH),
    "labels": lambda toys: Classification(text="text", data_dir=toys / "labels", multi_label=True, **_LENGTH),
    "numbers": lambda toys: Regression(
        text=["sentence1", "sentence2"], label="score", data_dir=toys / "pairs", **_LENGTH
    ),
    "tags": lambda toys: TokenClassification(data_dir=toys / "tags", **_LENGTH),
    "answers": lambda toys: QuestionAnswering(data_dir=toys / "questions", doc_stride=8, max_length=20),
    "choices": lambda toys: MultipleChoice(data_dir=toys / "choices", **_LENGTH),
    "vectors": lambda toys: Embedding(
        text=["sentence1", "sentence2"], label="score", data_dir=toys / "pairs", **_LENGTH
    ),
    "retrieval": lambda toys: Embedding(data_dir=toys / "retrieval", metrics=["ndcg@10"], **_LENGTH),
    "rankings": lambda toys: Reranking(data_dir=toys / "retrieval", top=6, negatives=2, **_LENGTH),
    "multi": lambda toys: MultiTask(tasks={"sst2": TASKS["classes"](toys), "stsb": TASKS["numbers"](toys)}),
    "masks": lambda toys: MaskedLM(mask=Masking(), data_dir=str(toys / "corpus"), **_MASKS),
    "segments": lambda toys: MaskedLM(
        mask=Masking(), data_dir=str(toys / "corpus"), packing="segment_pair", pair="nsp", **_MASKS
    ),
    "replaced": lambda toys: ReplacedTokenDetection(
        mask=Masking(replace=(1.0, 0.0, 0.0)), data_dir=str(toys / "corpus"), **_MASKS
    ),
    "next token": lambda toys: CausalLM(data_dir=toys / "corpus", **_CORPUS),
    "both sides": lambda toys: BidirectionalLM(data_dir=toys / "corpus", **_CORPUS),
    "denoising": lambda toys: Denoising(data=toys / "corpus", **_MASKS),
    "targets": lambda toys: Seq2Seq(data_dir=toys / "targets", max_target=16, scored_texts=6, **_LENGTH),
    "words": lambda toys: TextLabels(tasks={"sst2": TASKS["classes"](toys)}, scored_texts=0, **_LENGTH),
    "filled": lambda toys: MaskPredict(data_dir=toys / "targets", max_target=16, scored_texts=0, **_LENGTH),
}
LABELLED = (
    "classes",
    "two texts",
    "labels",
    "numbers",
    "tags",
    "answers",
    "choices",
    "vectors",
    "retrieval",
    "rankings",
)
ENCODERS = (*LABELLED, "multi", "masks", "segments")
WRITERS = ("next token", "denoising", "targets", "words")

# The kinds that each student is for. Left out are heads that a student does not have, and refuses.
STUDENTS: dict[str, tuple[Student, tuple[str, ...]]] = {
    "distilbert": (d.students.distilbert(depth=1), (*ENCODERS, "replaced")),
    "layers": (d.students.layers(depth=1), (*ENCODERS, "next token", "both sides")),
    "albert": (d.students.albert(embedding_dim=16, depth=2), (*LABELLED, "masks")),
    "bilstm": (
        d.students.bilstm(embedding_dim=16, hidden_dim=8, classifier_dim=8),
        ("classes", "two texts", "labels", "numbers", "tags", "answers", "vectors"),
    ),
    "cnn": (
        d.students.cnn(embedding_dim=16, hidden_dim=12, classifier_dim=8, widths=[2, 3], dilations=[1, 2]),
        ("classes", "two texts", "labels", "numbers", "tags"),
    ),
    "static": (
        d.students.static(dim=16, classifier_dim=8, buckets=64, bucket_dim=8),
        ("classes", "two texts", "labels", "numbers", "vectors"),
    ),
    "narrow": (d.students.distilbert(depth=1, embedding_dim=16), ("classes", "tags", "vectors")),
    "local": (
        d.students.distilbert(depth=1, attention="local", window=8, global_tokens=1),
        ("classes", "tags", "answers", "vectors"),
    ),
    "chunked": (d.students.distilbert(depth=1, chunk=16, chunk_overlap=4), ("classes", "labels", "vectors")),
    "halves": (d.students.distilbert(depth=1, decoder_depth=1), ("denoising", "targets", "words")),
    "filling": (d.students.mask_predict(depth=1, decoder_depth=1), ("filled",)),
}
CELLS = [(kind, name) for name, (_, kinds) in STUDENTS.items() for kind in kinds]


@dataclass(frozen=True)
class Cell:
    """A kind of task with its data, a teacher and a function that builds the student before its training."""

    kind: str
    name: str
    task: Any
    data: Data | None
    scoring: Scoring
    examples: Any
    tokenizer: PreTrainedTokenizerBase
    teacher: PreTrainedModel
    build: Callable[[], PreTrainedModel]

    @functools.cached_property
    def student(self) -> PreTrainedModel:
        """The student in evaluation mode, which no test changes."""
        return self.build().eval()

    def objective(self, student: PreTrainedModel, *, reads_states: bool = True) -> Objective:
        """Returns the default objective for the models, with a projection where they have other widths."""
        if self.kind == "replaced":
            return Objective(mlm=GeneratorLoss(), replaced=ReplacedTokens(weight=50.0))
        objective = default_objective(self.task)
        if self.name == "cnn" or not reads_states:
            objective = Objective(soft=SoftTargets(temperature=2.0, weight=5.0), hard=HardLabels(weight=2.0))
        torch.manual_seed(0)
        objective.connect(encoder_size(student), encoder_size(self.teacher))
        return objective

    def module(
        self, student: PreTrainedModel, signal: Signal | None = None, *, reads_states: bool = True, **options: Any
    ) -> DistillationModule:
        """Returns a training of the student, by default with a teacher that runs in every step."""
        objective = self.objective(student, reads_states=reads_states)
        signal = live(self.teacher, objective, self.task) if signal is None else signal
        return DistillationModule(
            student=student, objective=objective, task=self.task, scoring=self.scoring, signal=signal, **options
        )


@functools.cache
def make_cell(toys: Path, cache: Path, kind: str, name: str) -> Cell:
    """Returns the cell of a kind and the student of this name.

    Args:
        toys: the directory of the golden toys.
        cache: a directory for what the tasks cache.
    """
    task = TASKS[kind](toys)
    if kind == "multi":
        parts = {part: _make_part(toys, cache, part_task, STUDENTS[name][0]) for part, part_task in task.items()}
        return Cell(
            kind, name, task, None, join_scorings({part: cell.scoring for part, cell in parts.items()}),
            join_splits([cell.examples for cell in parts.values()], sampling=1.0),
            next(iter(parts.values())).tokenizer,
            share_encoder({part: cell.teacher for part, cell in parts.items()}, name=name).eval(),
            lambda: share_encoder({part: cell.build() for part, cell in parts.items()}, name=name),
        )  # fmt: skip
    return _make_part(toys, cache, task, STUDENTS[name][0], kind)


def _make_part(toys: Path, cache: Path, task: Any, student: Student, kind: str = "") -> Cell:
    tokenizer = _load_tokenizer(toys, kind)
    data = task.read(cache)
    examples = task.encode(data, tokenizer, cache)
    teacher = _make_teacher(toys, kind, task, data, tokenizer)

    def build() -> PreTrainedModel:
        torch.manual_seed(1)
        if kind == "replaced":
            return _join_generator(teacher, task, tokenizer)
        model, _ = make_student(student, teacher, task, data, Origins(tokenizer))
        return model

    data = data.with_examples(examples)
    return Cell(kind, student.name, task, data, data.scoring, examples, tokenizer, teacher, build)


def _load_tokenizer(toys: Path, kind: str) -> PreTrainedTokenizerBase:
    if kind in ("denoising", "filled"):
        return train_sentinels([text for text, _ in sentences(64)], 400)
    return AutoTokenizer.from_pretrained(toys / ("bart" if kind in WRITERS else "encoder"))


def _make_teacher(toys: Path, kind: str, task: Task, data: Data, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Returns a teacher with random weights and a head for the task."""
    torch.manual_seed(0)
    if kind == "next token":
        return GPT2LMHeadModel.from_pretrained(toys / "gpt2").eval()
    if kind == "both sides":
        return BilmForPreTraining(BilmConfig(vocab_size=len(tokenizer), hidden_dim=16, num_hidden_layers=2)).eval()
    if task.info.max_target or kind == "denoising":
        config: Any = BartConfig.from_pretrained(toys / "bart")
        ids = {f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in ("pad", "bos", "eos")}
        end = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        config.update({**ids, "vocab_size": len(tokenizer), "eos_token_id": end, "decoder_start_token_id": end})
        return BartForConditionalGeneration(config).eval()
    config = toy_bert(len(tokenizer), layers=2).config
    labels = tuple(data.labels) or ("0",)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    chosen = model_class(task.info.auto_class, type(config))
    assert chosen is not None
    model = chosen(config).eval()
    adopt_special_tokens(model, tokenizer)
    configure(model, task.info.model_settings)
    return model


def _join_generator(teacher: PreTrainedModel, task: Any, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Returns a new model with its generator, as a teacher on replaced tokens is trained; it has no student."""
    model = type(teacher)(teacher.config)
    return GeneratorOptions().join(model, tokenizer)
