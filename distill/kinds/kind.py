"""The base of the kinds of tasks: a kind is one class, which replaces the defaults that are different for it."""

import copy
from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import ModelOutput

from distill.core.contracts import IGNORED, Batch, Items, Match, Outputs, TaskInfo
from distill.core.errors import Overview, Shown, UserError, describe_call
from distill.data.batches import MixedExamples, TokenizedExamples
from distill.data.pool import BankSource, clean_pool
from distill.data.sources import TableSource
from distill.data.splits import SHARE, LabelledData, Pool, Split, text_split
from distill.data.streams import ShardedPool
from distill.data.tokenization import Tokens, tokenize_split
from distill.kinds.known import Found, Key, KnownTable, normalize
from distill.labelling.forms import Form
from distill.models.forward import collect_outputs, run_model

WEIGHTS = "class_weights"  # The column of batches with the weights of the items.
UNLABELLED = "task.unlabelled"  # Names the rows of the pool, which are encoded as a split.


# Returns the data with the rows of a source that are in none of its splits as its pool.
AddRows = Callable[[LabelledData], LabelledData]


@dataclass(frozen=True)
class PoolSource:
    """The source of the rows without labels, and their share of every step.

    Args:
        rows: adds the rows to the data, None without any.
        is_auto: whether texts are chosen once the data is read.
        bank: a source of sentences to choose from, None without one.
    """

    rows: AddRows | None = None
    share: float = SHARE
    is_auto: bool = False
    bank: BankSource | None = None

    @property
    def unlabelled(self) -> Literal["none", "given", "auto"]:
        """The origin of the rows, as `TaskInfo` has it."""
        return "auto" if self.is_auto else "none" if self.rows is None else "given"

    def add_to(self, data: LabelledData) -> LabelledData:
        """Returns the data with the rows, if there are any, and their share as its pool.

        They follow the rows of the task's own tables without a label.
        """
        data = clean_pool(data)
        data = replace(data, pool=replace(data.pool, share=self.share))
        return data if self.rows is None else self.rows(data)


@dataclass(frozen=True)
class Encoder:
    """Tokenizes the texts of splits.

    Args:
        max_length: tokens that a text, or a pair of texts, is cut to.
        cache_dir: of the tokens; None for no cache.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    cache_dir: Path | None

    def tokenize(self, texts: Split) -> Tokens:
        """Returns the tokens of texts or pairs of texts, cached or computed."""
        return tokenize_split(texts, self.tokenizer, self.max_length, self.cache_dir)

    def encode(self, texts: Split, **columns: np.ndarray) -> TokenizedExamples:
        """Returns examples of one sequence each, with further columns `[N, ...]`."""
        return TokenizedExamples(self.tokenize(texts), self.tokenizer, per_example=columns)

    def encode_lists(
        self,
        texts: list[str],
        pairs: list[str] | None,
        counts: list[int],
        most: int,
        *,
        items_per_example: float = 1.0,
        classes_per_item: float | None = None,
        **columns: np.ndarray,
    ) -> TokenizedExamples:
        """Returns examples of `counts [N]` sequences each, and at most `most`, with further columns `[N, ...]`."""
        return TokenizedExamples(
            self.tokenize(text_split(texts, pairs)), self.tokenizer, per_example=columns,
            valid=np.arange(most) < np.array(counts)[:, None], items_per_example=items_per_example,
            classes_per_item=classes_per_item,
        )  # fmt: skip


class Kind(TaskInfo, Shown):
    """A kind of task, whose attributes are its facts.

    The defaults are those of examples of one sequence each that are the items. A kind writes `read`, and `encode_split`
    unless it reads raw text, and replaces what is different for it.

    Args:
        name: names the task in records and directories.
        max_length: tokens that an example is cut to.
        builtin: whether the data comes with the program.
        pool: the source of rows without labels.

    Attributes:
        kinds: the names of the kind in run.json and bundle.json, one for most.
        no_label: the label of an example without one.
        source: of the rows of a task that reads tables.
    """

    kinds: ClassVar[tuple[str, ...]]
    no_label: float = IGNORED
    source: TableSource
    # The columns of texts in a table with outputs of a teacher; empty for a kind that has no such table.
    known_columns: tuple[str, ...] = ()
    # Whether an example of those texts is one item, so that shards of them can be streamed.
    can_stream = False
    # The question about an example to a language model; None for a kind that has none.
    answer_form: type[Form[Any]] | None = None

    def __init__(self, name: str, max_length: int, *, builtin: bool = False, pool: PoolSource | None = None) -> None:
        self.name, self.max_length, self.builtin, self.kind = name, max_length, builtin, self.kinds[0]
        self.pool = pool or PoolSource()
        self.unlabelled, self.bank = self.pool.unlabelled, self.pool.bank

    @property
    def info(self) -> TaskInfo:
        """The facts alone, for code that neither reads nor runs the task."""
        return self

    def read(self, cache_dir: Path) -> Any:
        """Reads every split."""
        raise TypeError(f"{type(self).__name__} has no read(cache_dir)")

    def prompted(self, data: Any, tokenizer: PreTrainedTokenizerBase) -> Any:
        """Returns the data whose texts begin with the prompts of a tokenizer, for a kind whose texts have roles."""
        return data

    def encode(self, data: Any, tokenizer: PreTrainedTokenizerBase, cache_dir: Path | None) -> dict[str, Any]:
        """Tokenizes `train`, mixed with the pool if there is one, and the splits that are scored, dev first.

        Raises:
            UserError: for texts that cannot be tokenized as the task needs them.
        """
        encoder = Encoder(tokenizer, self.max_length, cache_dir)
        train = self.encode_split(encoder, data, "train", data.splits["train"])
        if data.pool.shards is not None:
            if others := [f"{of['examples']:,} {of['name']}" for of in data.pool.sources]:
                raise UserError(
                    f"{UNLABELLED} has shards, which are mixed with labelled rows alone, and there are also "
                    f"{' and '.join(others)}: set task.missing=drop and augment=none"
                )
            train = train.mixed_with(self.stream(data, tokenizer))
        scored = {name: self.encode_split(encoder, data, name, split) for name, split in data.scored().items()}
        pool = data.pool.fit_share(len(data.splits["train"]))
        if not len(pool):
            return {"train": train, **scored}
        rows = self.encode_unlabelled(encoder, data, pool.shuffled())
        return {"train": MixedExamples(train, rows, share=pool.share, record=pool.record()), **scored}

    def encode_split(self, encoder: Encoder, data: LabelledData, name: str, split: Split) -> TokenizedExamples:
        """Tokenizes one split; `name` is `UNLABELLED` for the pool."""
        raise TypeError(f"{type(self).__name__} has no encode_split(encoder, data, name, split)")

    def stream(self, data: LabelledData, tokenizer: PreTrainedTokenizerBase) -> ShardedPool:
        """Returns the texts of shards that only the teacher labels."""
        shards = data.pool.shards
        assert shards is not None
        without = replace(data, pool=Pool())
        encode = partial(self.encode_texts, Encoder(tokenizer, self.max_length, None), without)
        return ShardedPool(shards, data.pool.share, encode, self.create_rows)

    def create_rows(self, columns: list[list[str]]) -> Split:
        """Returns texts by column, those of `known_columns`, as a split."""
        return text_split(*columns)

    def encode_texts(self, encoder: Encoder, data: LabelledData, rows: Split) -> TokenizedExamples:
        """Tokenizes rows of `create_rows`, with the prompts that texts of the task begin with."""
        return self.encode_unlabelled(encoder, data, rows)

    def encode_unlabelled(self, encoder: Encoder, data: LabelledData, pool: Split) -> TokenizedExamples:
        """Tokenizes rows without labels."""
        return self.encode_split(encoder, data, UNLABELLED, self.create_unlabelled(pool, data))

    def create_unlabelled(self, pool: Split, data: LabelledData) -> Split:
        """Returns the rows of the pool as a split without labels."""
        labels = data.splits["train"].labels
        return pool.with_columns(labels=np.full((len(pool), *labels.shape[1:]), self.no_label, dtype=labels.dtype))

    def select(self, batch: Batch) -> Items:
        """The examples, whose classes are those that `valid` has."""
        labels = batch["labels"]
        # A softmax has classes; numbers and the 0 and 1 of several labels are NaN where there are none.
        is_class = self.likelihood == "softmax"
        labelled = labels != IGNORED if is_class else ~labels.reshape(len(labels), -1).isnan().any(dim=-1)
        return Items(
            batch=batch, row=torch.arange(len(labels), device=labels.device), labels=labels, labelled=labelled,
            likelihood=self.likelihood, weights=batch.get(WEIGHTS), valid=batch.get("valid"),
        )  # fmt: skip

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the whole model, on all sequences `[S, L]` of the examples."""
        output = run_model(model, batch, needs)
        return collect_outputs(output, self.select_logits(output, batch, items))

    def select_logits(self, output: ModelOutput, batch: Batch, items: Items) -> Tensor:
        """Returns the logits `[n, C]` of the items, or vectors `[n, D]` in their place."""
        logits: Tensor = output.logits
        return logits

    def with_max_length(self, max_length: int) -> Self:
        """Returns the task of a teacher that reads so many tokens of an example."""
        other = copy.copy(self)
        other.max_length = max_length
        return other

    def match(self, student: TokenizedExamples, teacher: TokenizedExamples) -> Match:
        """Finds the examples of a teacher with another tokenizer: they are the same ones in the same order."""
        return Match()

    def align(self, outputs: Outputs, own: Items, items: Items) -> Outputs:
        """Returns a teacher's outputs at the student's items, as `Task`: what it says of an example needs no token."""
        if len(own) != len(items):
            raise ValueError(f"the teacher has {len(own)} items and the student {len(items)}, expected the same")
        return outputs

    def read_known(self, known: KnownTable, data: LabelledData) -> Found:
        """Yields the row, the texts and the outputs `[k, C]` of every item of a table with outputs of a teacher.

        Raises:
            UserError: for outputs that are none of this kind of task.
        """
        raise NotImplementedError

    def known_keys(self, split: Split) -> list[list[Key]]:
        """Returns the texts by which the outputs of each example are found."""
        pairs = [()] * len(split) if split.pairs is None else [(pair,) for pair in split.pairs]
        return [[normalize((text, *pair))] for text, pair in zip(split.texts, pairs, strict=True)]

    def join_known(self, found: list[np.ndarray]) -> np.ndarray:
        """Returns the outputs `[k, C]` of the items of an example from those that were found by its texts."""
        return np.concatenate(found)

    def place(self, items: Items) -> Tensor:
        """Returns the number of each item among those of its example, `[n]`."""
        number = torch.arange(len(items), device=items.row.device)
        return number - torch.searchsorted(items.row, items.row)

    def __repr__(self) -> str:
        return describe_call(type(self).__name__, name=self.name, data=self._describe_origin())

    def overview(self) -> Overview:
        """Returns the name and the kind of the task, the columns that it reads, and the source of its rows."""
        rows = {
            "name": self.name, "kind": self.kind, "data": self._describe_origin(),
            "columns": ", ".join(getattr(self._origin(), "wanted", ())),
            "longest input": f"{self.max_length} tokens" + (" of two texts" if self.pair else ""),
            "texts without labels": {"none": "", "given": "given", "auto": "chosen from the data"}[self.unlabelled],
        }  # fmt: skip
        return Overview(type(self).__name__, [(name, value) for name, value in rows.items() if value])

    def _origin(self) -> object:
        """Returns the source of the rows, or the settings of raw text."""
        return getattr(self, "source", None) or getattr(self, "settings", None)

    def _describe_origin(self) -> str:
        """Returns the path, the Hub's name or the sizes of the tables that the task reads."""
        tables: dict[str, Sized] | None = getattr(self._origin(), "tables", None)
        if tables is not None:
            return ", ".join(f"{name} {len(table):,} rows" for name, table in tables.items())
        names = (getattr(self._origin(), name, None) for name in ("data_dir", "hub_id"))
        return next((str(name) for name in names if name), "built in" if self.builtin else "")
