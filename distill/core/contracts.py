"""The contracts between the rooms: what a task, a teacher's outputs and tokenized examples offer to the others.

Letters for shapes: B batch, L length, T length of a target, H hidden, N examples, n items, C classes, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    Unpack,
    runtime_checkable,
)

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.kinds.scoring import Scoring


VECTOR_SETTINGS = "sentence_vector"  # The entry of a model's configuration that says how vectors of texts are pooled.
ENCODER_FEATURES = "inputs_embeds"  # The column of batches with the features of tokens, `[S, L, F]`.
DECODER_INPUTS = "decoder_input_ids"  # The column `[B, T]` of the tokens that a decoder reads before each target.
TARGET_MASK = "decoder_attention_mask"  # The column `[B, T]` of batches with targets, 1 for their tokens.
PAIR_CLASSES = "pair_classes"  # The column of batches with the class of a pair of texts, NaN for examples without one.
CROSS_SCORES = "cross_scores"  # The column of batches with a cross-encoder's targets, NaN for examples without one.
TARGET_LENGTHS = "target_lengths"  # The column `[B]` of the tokens of targets with masks, without special ones.
SOURCE_VECTORS = "source_vectors"  # The column `[B, D]` of the source encoder's vectors, NaN for examples without one.
PROMPT_TOKENS = "prompt_tokens"  # The column `[B]` of the number of a text's first tokens, which a model continues.
IGNORED = -100  # The label of an item without one, as in torch's cross-entropy.
POOLED = "pooled_states"  # The output of a model with the mean of its last hidden states over each text, `[B, H]`.
TAUGHT = "taught"  # The column `[B]` or `[B, L]` of batches, 1 for the items that the teacher has outputs for.
TEACHER_LOGITS = "teacher_logits"  # The column `[B, C]` of batches with the teacher's outputs, of texts of shards.
TASK_ID = "task_id"  # The column `[B]` of batches of several tasks: the number of the task, the same in a whole batch.

# Tensors with the names of Hugging Face, `[B, L]` or `[B]`, and `example_id [B]`. Where examples have several sequences
# of tokens, these are the rows of `[S, L]`, in the order of the examples.
Batch = Mapping[str, "Tensor"]
# `softmax`: logits are unnormalized log-probabilities of classes. `sigmoid`: each logit is the log-odds of a label of
# its own. `gaussian`: the one logit is a number. `vector`: in the place of logits is the vector of a text, `[n, D]`.
Likelihood = Literal["softmax", "sigmoid", "gaussian", "vector"]
# Yields optimizer steps: lists of micro-batches.
Loader: TypeAlias = "DataLoader[list[dict[str, Tensor]]]"


class BatchOptions(TypedDict, total=False):
    """The size and the order of the batches of a training, as in `LengthBuckets` of `distill.data.batches`."""

    batch_size: int | None
    batch_tokens: int | None
    accumulate: int
    seed: int
    world: int


@dataclass(frozen=True)
class Items:
    """The items of a batch: everything that the models are to predict, one row each.

    An item is an example for classification, the first piece of a word for tagging, the start or the end of an answer
    in a window for question answering, a chosen token for masked language modelling, a text for vectors. Items follow
    from the batch alone.
    `items["attention_mask"]` is a tensor of the batch.

    Args:
        batch: the batch that the items belong to.
        row: `[n]`, the row of the batch that holds each item.
        labels: `[n]`, classes or numbers; `IGNORED` for an item without a class. Of a sigmoid `[n, C]`, 1 for the
            labels of the item and 0 for others; NaN for an item without labels.
        labelled: `[n]` (bool), whether an item has a label.
        likelihood: the meaning of the logits.
        index: `[n]`, the token of each item, counted over the whole batch `[B * L]`, of targets `[B * T]`; None where
            items are examples, or every token has several.
        weights: `[n]`, the weight of each item in losses on the labels; None weighs all alike.
        chosen: `[n]` (bool), the items that the task scores; None for all. The others are tokens that a term with
            `positions=all` reads besides.
        valid: `[n, C]` (bool), the classes that an item can have; None for all.
        classes_are_tokens: whether the classes are the tokens of a vocabulary.
        first: the position of the first item among all items of the batch.
        is_complete: whether the items are all tokens that a model can predict, so that no term reads others besides.
    """

    batch: Batch
    row: "Tensor"
    labels: "Tensor"
    labelled: "Tensor"
    likelihood: Likelihood = "softmax"
    index: "Tensor | None" = None
    chosen: "Tensor | None" = None
    weights: "Tensor | None" = None
    valid: "Tensor | None" = None
    classes_are_tokens: bool = False
    first: int = 0
    is_complete: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, name: str) -> "Tensor":
        return self.batch[name]

    def example_id(self) -> "Tensor":
        """The example that each item belongs to, `[n]`."""
        return self.batch["example_id"][self.row]

    @property
    def taught(self) -> "Tensor | None":
        """Whether the teacher has outputs for each item, `[n]` (bool); None if it has them for all."""
        if TAUGHT not in self.batch:
            return None
        column = self.batch[TAUGHT]
        return (column[self.row] if self.index is None or column.dim() == 1 else column.flatten()[self.index]) == 1

    @property
    def span(self) -> slice:
        """The positions of the items among all items of the batch."""
        return slice(self.first, self.first + len(self))

    def with_every_token(self) -> "Items":
        """Returns all tokens of the batch but the padding, of which these are `chosen`, in the order of the batch.

        Other items than the tokens of a vocabulary stay as they are, and so do complete ones.
        """
        if not self.classes_are_tokens or self.index is None or self.is_complete:
            return self
        mask = self.batch["attention_mask"]
        labels = self.labels.new_full((mask.numel(),), IGNORED)
        labels[self.index] = self.labels
        index = mask.flatten().nonzero().squeeze(-1)
        row, labels = index // mask.shape[1], labels[index]
        chosen = labels != IGNORED
        return replace(self, row=row, labels=labels, labelled=chosen, index=index, chosen=chosen)

    def masked_tokens(self) -> "Items":
        """Returns the items with a label alone, whose labels are tokens of a vocabulary."""
        chosen = self.labelled
        assert self.index is not None
        return replace(
            self, row=self.row[chosen], labels=self.labels[chosen], labelled=chosen[chosen], index=self.index[chosen],
            classes_are_tokens=True,
        )  # fmt: skip

    def without_labels(self) -> "Items":
        """Returns the same items, of which none has a label."""
        import torch

        return replace(
            self, labels=torch.full_like(self.labels, IGNORED), labelled=torch.zeros_like(self.labelled),
        )  # fmt: skip

    def part(self, first: int, last: int) -> "Items":
        """Returns the items from `first` to `last`, that one excluded."""
        return replace(self.where(slice(first, last)), first=self.first + first)

    def where(self, chosen: "slice | Tensor") -> "Items":
        """Returns the items at these places, or where `chosen [n]` (bool) is true."""
        names = ("row", "labels", "labelled", "index", "chosen", "weights", "valid")
        columns = {name: getattr(self, name) for name in names}
        cut: dict[str, Any] = {name: None if column is None else column[chosen] for name, column in columns.items()}
        return replace(self, **cut)

    def parts(self, size: int | None) -> "Iterator[Items]":
        """Yields the items, or where there are more than `size` of them parts of so many."""
        if size is None or len(self) <= size:
            yield self
            return
        for first in range(0, len(self), size):
            yield self.part(first, min(len(self), first + size))


class AttentionVectors(NamedTuple):
    """The projections that one layer of attention reads, `[B, A, L, D]` each, with D the width of a head."""

    queries: "Tensor"
    keys: "Tensor"
    values: "Tensor"


@dataclass(frozen=True)
class Outputs:
    """A model's outputs as the terms of an objective read them.

    Args:
        logits: `[n, C]` at the items; None if there are none, or `head` or `soften` computes them.
        hidden_states: of the embeddings and each layer, `[B, L, H]`.
        pooled: the mean of the last hidden states over the tokens of each text, `[B, H]`.
        attentions: of each layer, `[B, A, L, L]`.
        cross_attentions: of each layer of a decoder to the source, `[B, A, T, L]`.
        decoder: the hidden states and attentions of the decoder of an encoder-decoder, whose encoder has the others;
            `[B, T, H]` and `[B, A, T, T]`.
        segment_logits: `[B, 2]`, for models that predict the order of two segments.
        length_logits: `[B, M+1]`, for models that predict the length of a target, from 0.
        replaced: `[n]` (bool), whether the token of an item is another one than in the text, for models that detect it.
        generator: the outputs at the labelled items of the model that has sampled tokens in their place.
        last_hidden_state: `[B, L, H]`, of tasks whose classes are tokens; of a decoder `[B, T, H]`.
        decode: computes logits `[n, V]` from hidden states `[n, H]` with the model's head; of the same tasks.
        states: `[n, D]`, the hidden states from which `decode` computes the logits of the items; of the same tasks.
        attention_vectors: queries, keys and values by layer, counted from 1; only of the layers that are read.
        head: computes the logits of the items in a span, where those of all items take too much memory.
        chunk_size: items whose logits fit into memory at once; None for all.
        soften: computes, for the items in a span and a temperature, logits whose softmax at this temperature is the
            softened distribution. None where these are `logits` at every temperature.
        span: the items that `soften` computes: a part of the batch, or `[n]` (bool).
    """

    logits: "Tensor | None" = None
    hidden_states: "Sequence[Tensor] | None" = None
    pooled: "Tensor | None" = None
    attentions: "Sequence[Tensor] | None" = None
    cross_attentions: "Sequence[Tensor] | None" = None
    decoder: "Outputs | None" = None
    segment_logits: "Tensor | None" = None
    length_logits: "Tensor | None" = None
    replaced: "Tensor | None" = None
    generator: "Outputs | None" = None
    last_hidden_state: "Tensor | None" = None
    decode: "Callable[[Tensor], Tensor] | None" = None
    states: "Tensor | None" = None
    attention_vectors: "Mapping[int, AttentionVectors] | None" = None
    head: "Callable[[slice], Tensor] | None" = None
    chunk_size: int | None = None
    soften: "Callable[[Any, float], Tensor] | None" = None
    span: "slice | Tensor" = field(default_factory=lambda: slice(None))

    def whole(self) -> "Outputs":
        """Everything but the logits, and what belongs to them alone."""
        return replace(self, logits=None, head=None, states=None, chunk_size=None, soften=None, replaced=None)

    def at(self, items: Items) -> "Outputs":
        """Everything with the logits of these items."""
        if self.head is not None:
            return replace(self, logits=self.head(items.span), head=None, chunk_size=None)
        logits, replaced = (None if of is None else of[items.span] for of in (self.logits, self.replaced))
        return replace(self, logits=logits, replaced=replaced, span=items.span)

    def where(self, chosen: "Tensor") -> "Outputs":
        """Returns everything with the logits of the items of a whole batch where `chosen [n]` (bool) is true."""
        return replace(self, logits=None if self.logits is None else self.logits[chosen], span=chosen)

    def logits_at(self, temperature: float) -> "Tensor | None":
        """Logits `[n, C]` whose softmax at this temperature is the model's softened distribution."""
        return self.logits if self.soften is None else self.soften(self.span, temperature)


class Signal:
    """A teacher's outputs for every batch of a training: live or cached, or joined from several signals.

    An instance of this class is the signal of no teacher: its outputs are empty.

    Attributes:
        signals: those that this one is joined from.
        reason: the reason why the teacher runs in every step; None if its outputs are cached, or not needed.
    """

    signals: "Sequence[Signal]" = ()
    reason: str | None = None

    @property
    def bytes(self) -> int:
        """Size of the cached outputs; 0 if none are cached."""
        return sum(signal.bytes for signal in self.signals)

    @property
    def seconds(self) -> float:
        """Duration of the teacher's forward passes in this process."""
        return sum((signal.seconds for signal in self.signals), 0.0)

    def describe(self) -> str:
        """Describes the outputs that are cached and where; empty if none are."""
        return "; ".join(signal.describe() for signal in self.signals)

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        """Returns the outputs for a batch."""
        return Outputs()


@dataclass(frozen=True)
class Scores:
    """The results of evaluating a model: named columns `[n]` or `[n, C]` over the items of a split.

    Args:
        columns: as `Scoring.score` returns them, for example `logits [n, C]`.
        labels: `[n]`, or `[n, C]` of a sigmoid.
        example_id: `[n]`, the example that each item belongs to.
        decoding: as `Scoring.fit_decoder` returns it for the model's scores on dev.
        by_task: the scores of each of several tasks by its number; the other fields are then empty.
    """

    columns: Mapping[str, np.ndarray]
    labels: np.ndarray
    example_id: np.ndarray
    decoding: Mapping[str, Any] = field(default_factory=dict)
    by_task: "Mapping[int, Scores]" = field(default_factory=dict)

    @classmethod
    def of_tasks(cls, by_task: "Mapping[int, Scores]") -> "Scores":
        """Returns the scores of several tasks."""
        return cls({}, np.empty(0), np.empty(0, dtype=int), by_task=by_task)

    def of_task(self, number: int, name: str) -> "Scores | None":
        """Returns the scores of one of several tasks, None for a split that it does not have; those of one task alone.

        Args:
            number: of the task.
            name: of the task, by which its decoder has its values.
        """
        if not self.by_task:
            return self
        scores = self.by_task.get(number)
        return None if scores is None else replace(scores, decoding=self.decoding[name])

    def with_columns(self, **columns: np.ndarray) -> "Scores":
        """Returns the scores with further columns, or with others of the same names."""
        return replace(self, columns={**self.columns, **columns})

    def by_example(self) -> "Scores":
        """Returns the scores in the order of the examples, those of several tasks each by itself."""
        if self.by_task:
            return replace(self, by_task={number: scores.by_example() for number, scores in self.by_task.items()})
        order = self.example_id.argsort(kind="stable")
        columns = {name: column[order] for name, column in self.columns.items()}
        return replace(self, columns=columns, labels=self.labels[order], example_id=self.example_id[order])

    def select(self, chosen: np.ndarray) -> "Scores":
        """Returns the scores of the items where `chosen [n]` (bool) is true."""
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return replace(self, columns=columns, labels=self.labels[chosen], example_id=self.example_id[chosen])

    @classmethod
    def join(cls, parts: "Sequence[Scores]") -> "Scores":
        """Returns the scores of several parts of a split, in their order."""
        return replace(
            parts[0],
            columns={name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
            labels=np.concatenate([part.labels for part in parts]),
            example_id=np.concatenate([part.example_id for part in parts]),
        )


@dataclass(frozen=True)
class Constant:
    """A prediction that is the same for every example, which a model that has learned something is better than.

    Args:
        answer: the prediction in words: `always positive`.
        predict: returns the scores of the same items with this prediction in place of a model's.
    """

    answer: str
    predict: Callable[[Scores], Scores]


@runtime_checkable
class Examples(Protocol):
    """One tokenized split. An index is a list of examples, and a result a padded batch.

    Attributes:
        lengths: tokens that the examples take up in a batch, `[N]`.
        tokens: of the examples without padding, `[N]`.
        sequences: `[N]`, how often `lengths` counts the longest token sequence of an example.
        truncated: the number of token sequences that were longer than the task's limit.
        digest: stands for everything that the batches depend on.
        visits: ways in which an example is shown, one an epoch; None for a new one in each.
        items_per_example: the mean number of items.
        classes_per_item: the mean number of classes that an item can have; None for all outputs of the model's head.
    """

    @property
    def lengths(self) -> np.ndarray: ...

    @property
    def tokens(self) -> np.ndarray: ...

    @property
    def sequences(self) -> np.ndarray: ...

    @property
    def truncated(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def visits(self) -> int | None: ...

    @property
    def items_per_example(self) -> float: ...

    @property
    def classes_per_item(self) -> float | None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Sequence[int]) -> "dict[str, Tensor]": ...

    def pieces(self) -> np.ndarray | None:
        """Returns the ids of all tokens that batches have, ascending, `[n]`; None if they are not known before."""
        ...

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """A loader of optimizer steps; `steps` is `max_steps` of the training."""
        ...


class Stream(Protocol):
    """A training split that is read during the training, and tells nothing of itself before."""

    @property
    def digest(self) -> str: ...

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """A loader of optimizer steps; `steps` is `max_steps` of the training."""
        ...


# The tokenized splits of a task: `train`, then those that are scored, dev first.
EncodedSplits = Mapping[str, Examples | Stream]


class RawSplit(Protocol):
    """The examples of a split as an exported student reads them."""

    def __len__(self) -> int: ...

    def text_columns(self) -> Mapping[str, Any]:
        """The texts as columns of predictions.parquet by name."""
        ...

    def records(self) -> Sequence[Any]:
        """The examples in the form that `edge.Bundle` reads."""
        ...


class Data(Protocol):
    """The data of a task, and everything that is made from it.

    Attributes:
        labels: names of the classes in order; one name for a number, none where examples have classes of their own.
        sha256: a digest of the content.
        scoring: all that concerns scores.
        terms: the loss terms that learn from labels alone, those of a fine-tuned teacher and of a baseline; empty for
            data without labels.
        head_bias: the initial bias `[C]` of a new head; None for that of the model's class.
        choices: the usual number of choices of an example, for models whose inputs are `[B, K, L]`; else None.
    """

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def sha256(self) -> str: ...

    @property
    def scoring(self) -> "Scoring": ...

    @property
    def terms(self) -> Mapping[str, Any]: ...

    @property
    def head_bias(self) -> Sequence[float] | None: ...

    @property
    def choices(self) -> int | None: ...

    def with_examples(self, examples: EncodedSplits) -> Self:
        """Returns the data of a task whose students are scored on tokens with these tokenized splits, others as is."""
        ...

    def sizes(self) -> dict[str, int]:
        """Examples of each split, as far as they can be counted before tokenization."""
        ...

    def texts(self) -> Iterable[str]:
        """Training text, to learn a vocabulary from."""
        ...

    def labelled_texts(self) -> Iterable[str]:
        """The texts of the labelled rows that are trained on."""
        ...

    def unlabelled_texts(self) -> Iterable[str]:
        """The texts that only a teacher labels."""
        ...

    def training(self) -> RawSplit:
        """The labelled rows that are trained on."""
        ...

    def scored(self) -> Mapping[str, RawSplit]:
        """The splits that are scored, dev first."""
        ...


@dataclass(frozen=True)
class Match:
    """The examples of a teacher that reads by another tokenizer, beside those of its student.

    Args:
        rows: the example of the teacher for each of the student's, `[N]`; None if they are in the same order.
        taught: whether the teacher has outputs for each token, `[tokens]`; None if it has them for all items.
    """

    rows: np.ndarray | None = None
    taught: np.ndarray | None = None


class TaskInfo:
    """The facts of a task that its options determine, before its data is read; a kind of task has them as attributes.

    Attributes:
        name: names the task in records and directories.
        kind: names the kind of task in run.json and bundle.json; one of the `kinds` of its class.
        auto_class: the auto class of transformers whose models have the head for this task.
        likelihood: the meaning of the logits.
        decoder: the class of `distill.edge.decode` that reads the logits of an exported model.
        max_length: tokens that an example is cut to.
        pair: whether a sequence of tokens is made of two texts.
        builtin: whether the data comes with the program.
        raw_text: whether examples are packed from running text, which has no labels: what is trained on it is a
            language model, a teacher too.
        classes_are_tokens: whether the classes are the tokens of a vocabulary, so that logits are computed in chunks
            and the largest ones alone are cached.
        fixed_inputs: whether every epoch shows the same tokens, so that teacher outputs can be cached.
        caches_outputs: whether teacher outputs that can be cached are; False where they are large, for every token.
        replaces_tokens: whether a generator, which is trained together with the model, replaces tokens of its input.
        generates: whether the models of the task write text.
        max_target: the most tokens of a text that they write for a source; None for tasks without targets.
        prompt: the first tokens of each text that a model continues, as their number or as a share; None for tasks
            without prompts.
        taught_by: the kind of task that its teachers are trained for, which teach by the texts that they write alone;
            None for teachers of the same kind.
        can_abstain: whether a prediction has a confidence, below which an exported model may abstain.
        can_augment: whether changed copies of the training texts can be made, which only the teacher labels.
        has_mentions: whether the training texts have mentions, spans of words with a type, that copies can replace.
        has_contexts: whether an example is a question about a context, of which others of its title can be asked too.
        unlabelled: whether texts without labels are `given`, or chosen from the data (`auto`), or there are `none`.
        bank: a source of sentences, of which those near the training texts are labelled by the teacher; None without.
        further_teachers: the options that name other models to learn from, which are given.
        model_settings: entries of a model's configuration that its outputs depend on besides its weights.
        label_columns: the columns of batches with labels that a term may read by their name.
        sequences: how many sequences of tokens the model reads for an example of train, and for one that is scored.
        fewest_epochs: passes over the training rows that a student needs, however many rows there are.
    """

    name: str
    kind: str
    auto_class: str
    likelihood: Likelihood = "softmax"
    decoder: str
    max_length: int
    pair: bool = False
    builtin: bool = False
    raw_text: bool = False
    classes_are_tokens: bool = False
    fixed_inputs: bool = True
    caches_outputs: bool = True
    replaces_tokens: bool = False
    generates: bool = False
    max_target: int | None = None
    prompt: int | float | None = None
    taught_by: str | None = None
    can_abstain: bool = False
    can_augment: bool = False
    has_mentions: bool = False
    has_contexts: bool = False
    unlabelled: Literal["none", "given", "auto"] = "none"
    bank: Any = None
    further_teachers: Sequence[str] = ()
    model_settings: Mapping[str, Any] = MappingProxyType({})
    label_columns: frozenset[str] = frozenset()
    sequences: tuple[int, int] = (1, 1)
    fewest_epochs: int = 0

    @property
    def writes(self) -> bool:
        """Whether models of the task write text, token by token, or all tokens of a target at once."""
        return self.generates or self.taught_by is not None


class Learnable(Protocol):
    """A task, or several of which each batch belongs to one, as a training sees it."""

    def select(self, batch: Batch) -> Items:
        """The items of a batch."""
        ...

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the model with the outputs that the terms need besides logits."""
        ...


class Task(Learnable, Protocol):
    """A kind of task: the only place that knows the shape of a model's output.

    The `data` that its methods take is that which its own `read` returned, of a type that only the task knows.
    """

    @property
    def info(self) -> TaskInfo: ...

    def read(self, cache_dir: Path) -> Data:
        """Reads the data.

        Raises:
            UserError: for a file, column, text or label that is missing or unusable.
        """
        ...

    def encode(self, data: Any, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None) -> EncodedSplits:
        """Tokenizes all splits: `train`, then those that are scored, dev first."""
        ...
