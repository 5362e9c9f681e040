"""Masked language modelling on raw text, and the detection of tokens that a generator replaced.

Masked language modelling on raw text: the items are the tokens chosen for prediction, the classes the vocabulary.

>>> from distill.kinds import MaskedLM
>>> MaskedLM(data="path/to/text", max_length=64).info.fixed_inputs
False

Replaced-token detection on raw text: the items are all tokens, the classes original and replaced.

>>> from distill.kinds import ReplacedTokenDetection
>>> ReplacedTokenDetection(data="path/to/text", max_length=64).info.replaces_tokens
True
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast, overload

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import (
    IGNORED,
    TARGET_MASK,
    Batch,
    Constant,
    EncodedSplits,
    Examples,
    Items,
    Outputs,
    Scores,
)
from distill.core.errors import OptionError
from distill.core.options import show_value
from distill.edge.decoder import MaskedTokens, SourceTokens
from distill.kinds.kind import Kind
from distill.kinds.scoring import Scoring, expected_calibration_error, list_by_example
from distill.losses import (
    GeneratorLoss,
    HardLabels,
    MaskedLanguageModelling,
    ReplacedTokens,
    SegmentOrder,
    Term,
    ThreeWayOrder,
)
from distill.losses.logits import WEIGHT
from distill.losses.term import in_chunks
from distill.models.compatibility import check_length
from distill.models.decoding import run_encoder_pass
from distill.models.forward import collect_outputs, run_model
from distill.models.generator import DISCRIMINATOR, GENERATOR, GeneratorOptions, sample_tokens
from distill.models.wrappers import heads_of
from distill.text.corpus import Corpus
from distill.text.masking import Masking
from distill.text.sequences import (
    PAIR_COLUMNS,
    PackedText,
    Sequences,
    SequenceSettings,
    held_out_of,
    is_streamed,
    open_corpus,
)
from distill.text.streaming import StreamedText

UNIGRAM = "the frequency of each token in train"
TOP_K = 5  # Pieces of a mask that a bundle names.
VOCABULARY_TEXT = 50_000_000  # Characters that a new vocabulary is learned from.


@dataclass(frozen=True)
class TextData:
    """A corpus of raw text, which is split by document, and its sequences, masked or not.

    Students are scored on these, because a text would not give the same tokens again that they were packed of.

    Args:
        create_scoring: returns the scoring of this data, which is packed, or is not yet.
        labels, terms: as in `contracts.Data`.
        objective: names the objective of a model that is trained on the text alone.
        examples: the sequences of each split, none before they are packed.
    """

    corpus: Corpus
    settings: SequenceSettings
    create_scoring: "Callable[[TextData], Scoring]"
    labels: tuple[str, ...]
    terms: Mapping[str, Term]
    objective: str
    examples: EncodedSplits = field(default_factory=dict)
    head_bias = None
    choices = None

    def with_examples(self, examples: EncodedSplits) -> Self:
        return replace(self, examples=examples)

    @property
    def scoring(self) -> Scoring:
        """The scores of tokens; before they are packed it knows no tokenizer."""
        return self.create_scoring(self)

    @property
    def sha256(self) -> str:
        """A digest of the corpus."""
        return self.corpus.compute_fingerprint()

    def describe_cleaning(self) -> dict[str, Any]:
        """The counts of the cleaning for run.json; none of a corpus that is streamed or kept as it is."""
        cleaned = getattr(self.examples.get("train"), "cleaned", None)
        return {} if cleaned is None else {"cleaning": {"rules": self.settings.clean, **cleaned}}

    def sizes(self) -> dict[str, int]:
        """The sequences of each split, which can only be counted after tokenization."""
        return {name: len(split) for name, split in self.examples.items() if isinstance(split, Examples)}

    def texts(self) -> Iterator[str]:
        """The beginning of the training text, line by line."""
        size, held_out = 0, held_out_of(self.corpus, self.settings)
        for document in self.corpus.read_documents(select=lambda key: not held_out(key)):
            yield from document.text.splitlines()
            size += len(document.text)
            if size > VOCABULARY_TEXT:
                return

    def labelled_texts(self) -> Iterator[str]:
        return self.texts()

    def unlabelled_texts(self) -> Iterator[str]:
        return iter(())

    def training(self) -> "TextSplit":
        """The sequences that are trained on, the first ones of a stream."""
        train = self.examples["train"]
        return TextSplit(train.sample() if isinstance(train, StreamedText) else cast(Sequences, train))

    def scored(self) -> "dict[str, TextSplit]":
        return {name: TextSplit(cast(Sequences, split)) for name, split in self.examples.items() if name != "train"}


@dataclass(frozen=True)
class TokenScores(Scoring):
    """The cross-entropies and the predictions of chosen tokens.

    Args:
        settings: of the sequences.
        mask_token: of the tokenizer, None before the text is packed; so is `tokens`.
        tokens: of the tokenizer. A model may have more rows, which no metric counts.
        counts: `[V]`, as in `Sequences.token_counts`, of train.
    """

    names = ("perplexity", "loss", "accuracy")
    selects = "min"
    compared_column = "loss"
    compares_with_teacher = True
    weak_may_teach = True

    settings: SequenceSettings
    mask_token: str | None = None
    tokens: int | None = None
    counts: np.ndarray | None = field(default=None, compare=False, repr=False)

    def score(self, outputs: Outputs, items: Items) -> dict[str, Tensor]:
        """Cross-entropy, prediction and correctness of every item."""
        if outputs.logits is None:
            raise ValueError("got outputs without logits, expected [n, V] at the items")
        columns = _score_logits(outputs.logits[:, : self.tokens].float(), items.labels)
        if outputs.segment_logits is not None:
            in_order = outputs.segment_logits.argmax(dim=-1) == items["pair_labels"]
            columns["pair_correct"] = in_order[items.row]
        return columns

    def compare(self, columns: Mapping[str, Tensor], reference: Outputs) -> dict[str, Tensor]:
        """Whether each prediction is the reference's first choice, and one of the first five."""
        if reference.logits is None:
            return {}
        best, first = columns["prediction"], reference.logits[:, : self.tokens].float().topk(5, dim=-1).indices
        teacher_best = first.to(best.device) == best.unsqueeze(-1)
        return {"agreement_top1": teacher_best[:, 0], "agreement_top5": teacher_best.any(dim=-1)}

    def rescore(self, scores: Scores, logits: Sequence[np.ndarray]) -> Scores:
        values = torch.from_numpy(np.concatenate(logits))[:, : self.tokens].float()
        columns = _score_logits(values, torch.from_numpy(scores.labels))
        return replace(scores, columns={name: column.numpy() for name, column in columns.items()})

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        return {"mask_token": self.mask_token, "top_k": TOP_K}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """Mean cross-entropy, its exponential, accuracy, and the further columns that were scored.

        `agreement_top1` is the share of the items at which the student's first choice is the teacher's too,
        `agreement_top5` at which it is among the teacher's first five.
        """
        columns = scores.columns
        means = np.stack([columns["loss"], columns["correct"]], axis=1).astype(np.float64).mean(axis=0)
        loss, accuracy = map(float, means)
        metrics = {"perplexity": float(np.exp(loss)), "loss": loss, "accuracy": accuracy}
        if "pair_correct" in columns:
            _, first = np.unique(scores.example_id, return_index=True)
            metrics[f"{self.settings.pair}_accuracy"] = float(columns["pair_correct"][first].mean())
        for name in ("agreement_top1", "agreement_top5"):
            if name in columns:
                metrics[name] = float(columns[name].mean())
        return metrics

    def tabulate(self, scores: Scores, splits: TextData, *, examples: int) -> dict[str, list[Any]]:
        """The ids of the right tokens and of the predicted ones, in the order of their positions."""
        values = {"label": scores.labels, "prediction": scores.columns["prediction"]}
        values["probability"] = scores.columns["probability"]
        return list_by_example(values, scores.example_id, examples)

    def predictions(self, scores: Scores) -> np.ndarray:
        """The likeliest token of every item, `[n]`."""
        return scores.columns["prediction"]

    def probability_diffs(self, scores: Scores, reference: Scores) -> np.ndarray:
        """The differences of the probabilities that both give to the right token, `[n]`."""
        probabilities, expected = (np.exp(-of.columns["loss"].astype(np.float64)) for of in (scores, reference))
        return np.asarray(np.abs(probabilities - expected))

    def calibration_error(self, scores: Scores) -> float | None:
        """The expected calibration error of the predicted tokens."""
        confidences = scores.columns["probability"].astype(np.float64)
        return expected_calibration_error(confidences, scores.columns["correct"] == 1)

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The frequencies of the tokens in train, whatever the text: the loss is the unigram entropy."""
        return [] if self.counts is None else [Constant(UNIGRAM, partial(_predict_frequencies, self.counts))]

    def describe(self, splits: TextData) -> dict[str, Any]:
        settings = self.settings
        return {
            "labels": [],
            "answer": "vocabulary",
            "packing": settings.packing,
            "masking": settings.masking,
            "max_length": settings.max_length,
            "pipeline_tag": "fill-mask",
            "prediction": "Fills the masks of a text.",
            **splits.describe_cleaning(),
            **({} if self.mask_token is None else {"example": f'"a {self.mask_token} sentence"'}),
        }

    def summary(self, splits: TextData) -> str:
        return "the tokens of the vocabulary"


class TextTask(Kind):
    """A kind of task on raw text, whose items are tokens.

    Args:
        name: names the task in records and directories.
        data: a file or a folder, as `data_dir`.
        data_dir: a folder or a file of text; None for `hub_id`, or the built-in sentences.
        options: the other fields of `SequenceSettings`.

    Attributes:
        objective: names the objective of a model that is trained on the text alone.
        scores: the scoring.
        labels: names of the classes; none of the tokens of a vocabulary.
    """

    raw_text = classes_are_tokens = True
    objective: ClassVar[str]
    scores: ClassVar[type[TokenScores]] = TokenScores
    labels: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, data: str | Path | None, data_dir: str | Path | None, **options: Any) -> None:
        data_dir = data_dir if data is None else data
        self.settings = SequenceSettings(data_dir=None if data_dir is None else str(data_dir), **options)
        super().__init__(name, self.settings.max_length, builtin=self.settings.builtin)

    def read(self, cache_dir: Path) -> TextData:
        corpus, terms = open_corpus(self.settings, cache_dir), self.create_terms()
        return TextData(corpus, self.settings, self.create_scoring, self.labels, terms, self.objective)

    def create_scoring(self, data: TextData) -> Scoring:
        """Returns the scoring of data that is packed, or is not yet."""
        if not data.examples:
            return self.scores(data.settings)
        dev, train = cast(Sequences, data.examples["dev"]), cast(Sequences | StreamedText, data.examples["train"])
        return self.scores(data.settings, dev.mask_token, dev.vocabulary, train.token_counts)

    def create_terms(self) -> dict[str, Term]:
        """Returns the loss terms that learn from the text alone."""
        return {"hard": HardLabels()}

    def encode(
        self, data: TextData, tokenizer: PreTrainedTokenizerBase, cache_dir: Path | None
    ) -> dict[str, Sequences | StreamedText]:
        """Packs the corpus into sequences, once; of a corpus that is streamed only dev is read now."""
        if cache_dir is None:
            raise ValueError("got no cache_dir, expected a directory for the tokens of the corpus")
        text = PackedText(data.corpus, data.settings, tokenizer)
        if is_streamed(data.settings, data.corpus):
            dev, texts = text.read_dev()
            return {"train": StreamedText(data.corpus, data.settings, tokenizer, texts), "dev": dev}
        return dict(text.keep(cache_dir))

    def assemble(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """Returns the model that is trained on the text: the loaded one, or together with a further one."""
        return model

    def select(self, batch: Batch) -> Items:
        """The tokens with a label of `labels [B, L]`, in the order of the batch."""
        return select_labelled(batch)

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the model without its head, which computes logits at the items alone."""
        return run_encoder_pass(model, batch, items, needs, segments="pair_labels" in batch)


class MaskedLM(TextTask):
    """Masked language modelling (arXiv 1810.04805, section 3.1), with an objective on two segments if `pair` names one.

    Args:
        name: names the task in records and directories.
        data: a file or a folder, as `data_dir`.
        data_dir: a folder or a file of text; None for `hub_id`, or the built-in sentences.
        mask: the tokens that are chosen, and their replacement.
        options: the other fields of `SequenceSettings`.

    Raises:
        ValueError: for an option that is out of range.
    """

    kinds = ("masked_lm",)
    auto_class = "AutoModelForMaskedLM"
    decoder = "masks"
    objective = "masked_language_modelling"

    def __init__(
        self,
        *,
        name: str = "mlm",
        mask: Masking | None = None,
        data: str | Path | None = None,
        data_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, data, data_dir, mask=mask or Masking(), **options)
        self.fixed_inputs = self.settings.masking == "static"
        column = PAIR_COLUMNS.get(self.settings.pair or "")
        self.pair, self.label_columns = column is not None, frozenset({"labels", *([column] if column else [])})
        if column == "pair_labels":  # A second head predicts the order of the two segments, of which there are two.
            self.auto_class = "AutoModelForPreTraining"

    def create_terms(self) -> dict[str, Term]:
        """Returns the prediction of masked tokens and, for pairs, of the order of two segments."""
        pair = self.settings.pair
        order: Term = ThreeWayOrder() if pair == "three_way" else SegmentOrder()
        return {"mlm": MaskedLanguageModelling(), **({} if pair is None else {pair: order})}


def select_labelled(batch: Batch) -> Items:
    """Returns the tokens with a label of `labels [B, L]`, in the order of the batch."""
    labels = batch["labels"].flatten()
    index = (labels != IGNORED).nonzero().squeeze(-1)
    chosen = labels[index]
    return Items(
        batch=batch, row=index // batch["labels"].shape[1], labels=chosen, labelled=chosen != IGNORED, index=index,
        classes_are_tokens=True,
    )  # fmt: skip


def _score_logits(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Returns the columns of items from their logits `[n, V]` (float32) and the right tokens `[n]`."""
    best = logits.argmax(dim=-1)
    log_sum = logits.logsumexp(dim=-1)
    return {
        "loss": F.cross_entropy(logits, labels, reduction="none"),
        "prediction": best,
        "probability": (logits.gather(-1, best.unsqueeze(-1)).squeeze(-1) - log_sum).exp(),
        "correct": (best == labels).float(),
    }


def _predict_frequencies(counts: np.ndarray, scores: Scores) -> Scores:
    """Returns the scores of a model that gives every token its share of the counts `[V]`, each one more than it is."""
    probabilities = (counts + 1) / (counts + 1).sum()  # A token that never has to be predicted has none.
    best = int(probabilities.argmax())
    columns = {
        "loss": -np.log(probabilities[scores.labels]),
        "prediction": np.full(len(scores.labels), best),
        "probability": np.full(len(scores.labels), probabilities[best]),
        "correct": scores.labels == best,
    }
    return replace(scores, columns={name: column.astype(np.float32) for name, column in columns.items()})


class SequenceRecords(Sequence[MaskedTokens | SourceTokens]):
    """Sequences as an exported student reads them, made when they are read."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.sequences)

    @overload
    def __getitem__(self, index: int) -> MaskedTokens | SourceTokens: ...

    @overload
    def __getitem__(self, index: slice) -> list[MaskedTokens | SourceTokens]: ...

    def __getitem__(self, index: int | slice) -> MaskedTokens | SourceTokens | list[MaskedTokens | SourceTokens]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        batch = {name: column[0].numpy() for name, column in self.sequences[[index]].items()}
        text = batch["attention_mask"] == 1
        ids = batch["input_ids"][text]
        types = batch["token_type_ids"][text] if "token_type_ids" in batch else np.zeros_like(ids)
        if TARGET_MASK in batch:
            target = batch["labels"][batch[TARGET_MASK] == 1]
            return SourceTokens(ids, types, np.ones_like(ids), target)  # type: ignore[arg-type]
        # A causal model has no labels of its own: it predicts the token behind each one.
        labels = batch["labels"][text] if "labels" in batch else ids[1:]
        positions = np.flatnonzero(labels != IGNORED)
        return MaskedTokens(ids, types, np.ones_like(ids), positions)  # type: ignore[arg-type]  # Arrays are sequences.


@dataclass(frozen=True)
class TextSplit:
    """The sequences of one split, masked or not."""

    sequences: Sequences

    def __len__(self) -> int:
        return len(self.sequences)

    def records(self) -> SequenceRecords:
        return SequenceRecords(self.sequences)

    def text_columns(self) -> dict[str, Sequence[object]]:
        """No texts, because a sequence is made of tokens of several."""
        return {}


LABELS = ("original", "replaced")
MASK = Masking(replace=(1.0, 0.0, 0.0))


class DetectionScores(Scoring):
    """The detection of every token and, at the masked ones, the cross-entropy of the generator.

    Checkpoints are selected by `joint_loss`, the sum that the training minimizes: the loss of the detection alone rises
    again where the generator becomes better, and would select a model that has only seen easy replacements.

    Args:
        settings: of the sequences.
    """

    names = ("joint_loss", "loss", "prior", "accuracy", "recall", "precision", "replaced", "generator_perplexity")
    selects = "min"

    def __init__(self, settings: SequenceSettings) -> None:
        self.settings = settings

    def score(self, outputs: Outputs, items: Items) -> dict[str, Tensor]:
        """The logits of every item, whether its token is replaced, and the loss of the generator, NaN without one."""
        if outputs.logits is None or outputs.replaced is None or outputs.generator is None:
            raise ValueError("got outputs without replaced tokens, expected those of ReplacedTokenDetection.run")
        generator, loss = outputs.generator, outputs.logits.new_full((len(items),), torch.nan, dtype=torch.float32)

        def losses(masked: Items) -> Tensor:
            logits = generator.at(masked).logits
            assert logits is not None
            return F.cross_entropy(logits.float(), masked.labels, reduction="none")

        masked = items.masked_tokens()
        loss[items.labelled] = torch.cat(list(in_chunks(losses, masked, generator.chunk_size)))
        return {"logits": outputs.logits.float(), "replaced": outputs.replaced, "generator_loss": loss}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The mean losses, shares of the tokens, and the perplexity of the generator at masked ones.

        `joint_loss` is the generator's loss and 50 times `loss`, that of the detection (arXiv 2003.10555). `prior` is
        the entropy of the share `replaced`: the loss of a model that knows this share alone. `recall` and `precision`
        are those of the replaced tokens, 0 where there are none.
        """
        replaced, predicted = scores.columns["replaced"], self.predictions(scores) == 1
        logits = scores.columns["logits"].astype(np.float64)
        right = np.where(replaced, logits[:, 1], logits[:, 0])
        loss = float((np.logaddexp(logits[:, 0], logits[:, 1]) - right).mean())
        found, share = float((predicted & replaced).sum()), float(replaced.mean())
        of_generator = scores.columns["generator_loss"].astype(np.float64)
        generator_loss = float(of_generator[~np.isnan(of_generator)].mean())
        return {
            "joint_loss": generator_loss + WEIGHT * loss,
            "loss": loss,
            "prior": _entropy(share),
            "accuracy": float((predicted == replaced).mean()),
            "recall": found / max(1, int(replaced.sum())),
            "precision": found / max(1, int(predicted.sum())),
            "replaced": share,
            "generator_perplexity": float(np.exp(generator_loss)),
        }

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The share of the replaced tokens, as the probability of every token; none before a model drew tokens."""
        share = float(scores.columns["replaced"].mean()) if "replaced" in scores.columns else 0.0
        if not 0 < share < 1:
            return []

        def predict(scores: Scores) -> Scores:
            logits = np.tile(np.log([1 - share, share]).astype(np.float32), (len(scores.labels), 1))
            return scores.with_columns(logits=logits)

        return [Constant("always the share of replaced tokens", predict)]

    def tabulate(self, scores: Scores, splits: TextData, *, examples: int) -> dict[str, list[Any]]:
        """The names of the right classes and of the predicted ones, in the order of the tokens."""
        names = np.array(LABELS, dtype=object)
        values = {
            "label": names[scores.columns["replaced"].astype(int)], "prediction": names[self.predictions(scores)],
            "probability": self.probabilities(scores).max(axis=-1),
        }  # fmt: skip
        return list_by_example(values, scores.example_id, examples)

    def calibration_error(self, scores: Scores) -> float | None:
        """The expected calibration error of the detection."""
        return super().calibration_error(replace(scores, labels=scores.columns["replaced"].astype(int)))

    def describe(self, splits: TextData) -> dict[str, Any]:
        settings = self.settings
        return {
            "labels": list(LABELS), "answer": "replaced", "packing": settings.packing, "masking": settings.masking,
            "max_length": settings.max_length, "pipeline_tag": "token-classification",
            "prediction": "Finds the tokens of a text that another model has replaced.", **splits.describe_cleaning(),
        }  # fmt: skip

    def summary(self, splits: TextData) -> str:
        return "original or replaced"


class ReplacedTokenDetection(TextTask):
    """Replaced-token detection (ELECTRA, arXiv 2003.10555): a discriminator finds the tokens that a generator sampled.

    Tokens are masked as for masked language modelling. The generator predicts them, and a token that is drawn from each
    of its predictions takes the place of the mask. The discriminator, a classifier of tokens, reads this text. It is
    the model that is trained for further tasks. The generator is trained together with it, and is saved beside it.

    The labels of the items, all tokens but padding, are the tokens of the text at the masked ones, which the generator
    learns. Which tokens are replaced depends on its samples and is therefore a part of the outputs.

    Args:
        name: names the task in records and directories.
        data: a file or a folder, as `data_dir`.
        data_dir: a folder or a file of text; None for `hub_id`, or the built-in sentences.
        mask: the tokens that are chosen; their replacement is what the generator reads.
        generator: the size and the start of the generator.
        options: the other fields of `SequenceSettings`, without `pair`.

    Raises:
        ValueError: for an option that is out of range.
    """

    kinds = ("replaced_tokens",)
    auto_class = "AutoModelForTokenClassification"
    decoder = "detection"
    classes_are_tokens = fixed_inputs = False
    replaces_tokens = True
    objective = "replaced_token_detection"
    labels = LABELS

    def __init__(
        self,
        *,
        name: str = "rtd",
        mask: Masking | None = None,
        generator: GeneratorOptions | None = None,
        data: str | Path | None = None,
        data_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        if options.get("pair") is not None:
            raise OptionError("pair", show_value(options["pair"]), "null, because a discriminator has one head")
        if mask is not None and mask.shuffle:
            raise OptionError("mask.shuffle", show_value(mask.shuffle), "0, because a generator fills masks alone")
        super().__init__(name, data, data_dir, mask=mask or MASK, **options)
        self.generator = generator or GeneratorOptions()

    def create_scoring(self, data: TextData) -> DetectionScores:
        return DetectionScores(data.settings)

    def create_terms(self) -> dict[str, Term]:
        """Returns the generator's masked language modelling, and the detection of its tokens."""
        return {"mlm": GeneratorLoss(), "replaced": ReplacedTokens()}

    def assemble(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """Returns the discriminator and its generator as one model.

        Raises:
            UserError: for a generator that does not suit the discriminator or the text.
        """
        joint = self.generator.join(model, tokenizer)
        check_length(joint.head(GENERATOR), tokenizer, self.max_length, who="generator")
        return joint

    def select(self, batch: Batch) -> Items:
        """All tokens but padding, in the order of the batch, labelled with the tokens of the text at masked ones."""
        mask, labels = batch["attention_mask"], batch["labels"].flatten()
        index = mask.flatten().nonzero().squeeze(-1)
        return Items(
            batch=batch, row=index // mask.shape[1], labels=labels[index], labelled=labels[index] != IGNORED,
            index=index,
        )  # fmt: skip

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the generator on the masked tokens, and the discriminator on those that are drawn in their place."""
        models, masked = heads_of(model), items.masked_tokens()
        generated = run_encoder_pass(models[GENERATOR], batch, masked)
        if len(masked) <= (generated.chunk_size or 0):
            generated = generated.at(masked)
        ids = torch.where(batch["labels"] != IGNORED, batch["labels"], batch["input_ids"]).flatten()
        sampled = ids.index_put((masked.index,), self._sample(generated, masked))
        output = run_model(models[DISCRIMINATOR], {**batch, "input_ids": sampled.view_as(batch["input_ids"])}, needs)
        outputs = collect_outputs(output, output.logits.flatten(0, 1)[items.index])
        return replace(outputs, replaced=(sampled != ids)[items.index], generator=generated)

    @torch.no_grad()
    def _sample(self, generated: Outputs, masked: Items) -> Tensor:
        """Returns a token for each masked one.

        The noise of a sequence depends on the seed and on its tokens alone: not on the batch that it is in, so that
        dev is always scored on the same noise, and not on the step, so that a resumed training draws the same.
        """
        rows, counts = masked.row.unique_consecutive(return_counts=True)
        ids, attention = masked["input_ids"].cpu(), masked["attention_mask"].cpu().bool()
        samples, first = [masked.labels[:0]], 0
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            logits = generated.at(masked.part(first, first + count)).logits
            assert logits is not None
            tokens = ids[row][attention[row]].numpy().astype(np.int64)
            samples.append(sample_tokens(logits, zlib.crc32(tokens.tobytes(), self.settings.seed)))
            first += count
        return torch.cat(samples)


def _entropy(share: float) -> float:
    """Returns the entropy of a share in nats, 0 for none and all."""
    return -sum(part * float(np.log(part)) for part in (share, 1 - share) if part > 0)
