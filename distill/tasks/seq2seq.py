"""A text for a text: the items are the tokens of the target, each predicted from the source and the tokens before it.

>>> from distill.tasks import Seq2Seq
>>> train = [{"source": "3 1 2", "target": "1 2 3"}]
>>> task = Seq2Seq(train=train, dev=[{"source": "2 1", "target": ["1 2", "one two"]}])
>>> task.read(None).splits["dev"]["references"]
[['1 2', 'one two']]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on.

from distill.console import print_notice
from distill.contracts import DECODER_INPUTS, Batch, Examples, Items, Outputs, Scores, TaskInfo
from distill.data.in_memory import Table, TableSplits
from distill.data.sources import check_memory
from distill.data.tables import LabelledData, Split, text_split
from distill.data.text_pairs import ADVICE, MissingTarget, TextPairs
from distill.edge.generation_options import MOST_BEAMS
from distill.errors import UserError
from distill.losses import HardLabels
from distill.options import check_arguments
from distill.tasks import rows
from distill.tasks.masked_lm import TokenScores, select_labelled
from distill.tasks.overview import ShownTask
from distill.tasks.text_metrics import text_metrics
from distill.tasks.writing import TextMetric, Writing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.batching import TokenizedExamples
    from distill.data.token_cache import Tokens

LongTargets = Literal["cut", "error"]
DEFAULT_METRICS: tuple[TextMetric, ...] = ("exact_match", "rougeL", "chrf", "bleu")


class PairOptions(TypedDict, total=False):
    """The options that determine the rows of `Seq2Seq`.

    Attributes:
        data: a path as `data_dir`, a table, or split -> table, as in `rows.TableOptions`.
        train: the table of the training split, with `dev` and `test` in place of `data`.
        dev: the table of the split that selects the checkpoint.
        test: the table of a split that is scored at the end.
        data_dir: a directory with `train` and `dev`, or one file.
        dev_fraction: share of a single file or table, or of train, that is held out as dev, the same in every run.
        splits: names of each split on the Hub and in the files.
        hub_id: a data set of the Hub, `owner/name` or `owner/name:configuration`.
        train_examples: number of training rows that are used; None for all.
        dev_examples: number of dev rows that are used; None for all.
        transfer: further sets in the same columns by name. Every model is scored on them at the end.
    """

    data: Table | TableSplits | str | Path | None
    train: Table | None
    dev: Table | None
    test: Table | None
    data_dir: str | Path | None
    dev_fraction: rows.Share
    splits: Mapping[str, Sequence[str]] | None
    hub_id: str | None
    train_examples: rows.Amount | None
    dev_examples: rows.Amount | None
    transfer: rows.TransferSets | None


@dataclass(frozen=True)
class TargetScores(TokenScores):
    """The cross-entropies and the predictions of the tokens of the targets, each after the right ones before it.

    Args:
        settings: None, because targets are not packed.
        max_target: tokens of a target.
        writing: of the texts that are scored besides the tokens of targets; None for none.
        prefix: text before each source, which a bundle puts there too.
    """

    names = ("loss", "perplexity", "token_accuracy")

    settings: Any = None
    max_target: int | None = None
    writing: Writing | None = None
    prefix: str = ""

    def plain_texts(self, split: Split) -> list[str]:
        """The sources that texts are written for, without the prefix."""
        if self.writing is None:
            return []
        return [split["source"][row].removeprefix(self.prefix) for row in self.writing.rows(len(split))]

    def text_metrics(self, split: Split, predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The metrics of the texts that were written for `plain_texts`."""
        if self.writing is None:
            return {}
        references = [split["references"][row] for row in self.writing.rows(len(split))]
        return text_metrics([prediction["text"] for prediction in predictions], references, self.writing.metrics)

    def metrics(self, scores: Scores) -> dict[str, float]:
        """Mean cross-entropy of a token, its exponential, and the share of tokens that are the likeliest one.

        Further ones compare with a teacher, as in `TokenScores`.
        """
        values = super().metrics(scores)
        own = {"loss": values["loss"], "perplexity": values["perplexity"], "token_accuracy": values["accuracy"]}
        return own | {name: value for name, value in values.items() if name.startswith("agreement")}

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        return {}

    def describe(self, splits: Any) -> dict[str, Any]:
        return {
            "labels": [],
            "answer": "text",
            "pipeline_tag": "text2text-generation",
            "prediction": "Writes a text for a text." + describe_prefix(self.prefix),
            "example": 'generate "a sentence"',
            "max_target": self.max_target,
            "prefix": self.prefix,
        }

    def summary(self, splits: Any) -> str:
        references = splits.splits["dev"]["references"]
        several = sum(len(of_row) > 1 for of_row in references)
        return f"a text for a text; {several:,} of {len(references):,} examples of dev have several references"


class Seq2Seq(ShownTask):
    """A text for a text, such as a summary, a simplification or a translation.

    Models are encoder-decoders of `AutoModelForSeq2SeqLM`. A row of train with several references is a row for each of
    them. Of dev and test the first reference is the target, whose tokens have a log-likelihood.

    Args:
        source: the column of the text to read.
        target: the column of the text to write, or of a list of references.
        separator: text between several references in the column of targets; None for one.
        prefix: text that is put before each source, as T5 has it for several tasks.
        max_length: tokens that a source is cut to.
        max_target: tokens of a target, the last of which ends it.
        long_targets: whether longer targets are `cut`, or an `error`.
        missing: whether rows without a source or a target are an `error`, or left out (`drop`).
        text_metrics: of the texts that teacher and exported files write: `exact_match`, `rouge1`, `rouge2`, `rougeL`,
            `chrf`, `bleu`, `distinct1`, `distinct2` and `length_ratio`. They select nothing.
        scored_texts: sources of dev, and of each further split, that these texts are written for; None for all, 0 for
            none.
        beams: of the search for such a text; 1 takes the most probable token each time, and None has the number of the
            teacher's generation configuration.
        name: names the task in records and directories.
        options: those of `PairOptions`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("seq2seq",)
    auto_class = "AutoModelForSeq2SeqLM"

    @check_arguments
    def __init__(
        self,
        *,
        source: str | int = "source",
        target: str | int = "target",
        separator: Annotated[str, Field(min_length=1)] | None = None,
        prefix: str = "",
        max_length: rows.MaxLength = 128,
        max_target: rows.MaxLength = 128,
        long_targets: LongTargets = "cut",
        missing: MissingTarget = "error",
        text_metrics: Annotated[Sequence[TextMetric], Field(min_length=1)] = DEFAULT_METRICS,
        scored_texts: Annotated[int, Field(ge=0)] | None = 200,
        beams: Annotated[int, Field(ge=1, le=MOST_BEAMS)] | None = None,
        name: str = "seq2seq",
        **options: Unpack[PairOptions],
    ) -> None:
        source, target = str(source), str(target)
        self.source = rows.table_source(name=name, text=(source,), label=(target,), **options)
        check_memory(self.source, [(source,), (target,)], ADVICE)
        self.pairs = TextPairs(
            rows=self.source, source=source, target=target, separator=separator, prefix=prefix, missing=missing
        )
        self.max_target, self.long_targets = max_target, long_targets
        self.writing = (
            None if scored_texts == 0 else Writing(tuple(dict.fromkeys(text_metrics)), scored_texts, beams, max_target)
        )
        self.info = TaskInfo(
            name=name, kind=self.kinds[0], auto_class=self.auto_class, likelihood="softmax", decoder="seq2seq",
            max_length=max_length, classes_are_tokens=True, caches_outputs=False, generates=True,
            max_target=max_target,
        )  # fmt: skip

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split.

        Raises:
            UserError: for a file or column that is missing, a row without a source or a target, and a library of a
                metric that is not installed.
        """
        if self.writing is not None:
            text_metrics(["a"], [["a"]], self.writing.metrics)  # Before a training, at whose end it is needed.
        data = self.pairs.read(cache_dir).with_option(f"max_target={self.max_target} {self.long_targets}")
        return replace(data, scoring=self.create_scores(), terms={"hard": HardLabels()})

    def create_scores(self) -> TargetScores:
        """Returns the scoring of the data."""
        return TargetScores(max_target=self.max_target, writing=self.writing, prefix=self.pairs.prefix)

    def encode(
        self, data: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> dict[str, Examples]:
        """Tokenizes sources and targets, these with the token for the end of a text as their last one.

        Raises:
            UserError: for longer targets than `max_target` where they are an error.
        """

        def encode(name: str, split: Split) -> "TokenizedExamples":
            return self._encode(split, tokenizer, cache_dir, name=name)

        return rows.encode_splits(data, encode, lambda pool: pool)

    def _encode(
        self, split: Split, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None, *, name: str
    ) -> "TokenizedExamples":
        from distill.data import token_cache

        tokens = token_cache.tokenize_split(text_split(split["source"]), tokenizer, self.info.max_length, cache_dir)
        written = encode_targets(split["target"], tokenizer, self.max_target, cache_dir)
        if written.truncated:
            counted = f"{name}: {written.truncated:,} of {len(split):,} targets have more than {self.max_target} tokens"
            if self.long_targets == "error":
                raise UserError(f"{counted}: raise task.max_target, or set task.long_targets=cut")
            print_notice(f"{counted} and are cut: raise task.max_target to keep them whole")
        return self.join(tokens, written, tokenizer, name=name)

    def join(
        self, tokens: "Tokens", targets: "Tokens", tokenizer: "PreTrainedTokenizerBase", *, name: str
    ) -> "TokenizedExamples":
        """Returns the sources of the split `name` with their targets."""
        from distill.data.batching import TokenizedExamples

        return TokenizedExamples(tokens, tokenizer, targets=targets)

    def select(self, batch: Batch) -> Items:
        """The tokens of the targets, in the order of the batch."""
        return select_targets(batch)

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs both halves without the head, which computes logits at the items alone."""
        return run_halves(model, batch, items, needs)


def describe_prefix(prefix: str) -> str:
    """Returns a sentence about the prefix of sources; none for an empty one."""
    return f" Every source begins with `{prefix}`: a bundle puts it there, and transformers needs it." if prefix else ""


def select_targets(batch: Batch) -> Items:
    """Returns the tokens of the targets, in the order of the batch."""
    items = select_labelled(batch)
    return replace(items, labels=items.labels.long(), is_complete=True)


def run_halves(model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
    """Runs both halves without the head, which computes logits at the items alone."""
    from distill.models.chunked_logits import run_encoder_pass
    from distill.models.forward import shift_targets

    inputs = shift_targets(model, batch["labels"])
    return run_encoder_pass(model, {**batch, DECODER_INPUTS: inputs}, items, needs)


def encode_targets(
    texts: list[str], tokenizer: "PreTrainedTokenizerBase", max_target: int, cache_dir: Path | None
) -> "Tokens":
    """Returns the tokens of targets, cut to `max_target`, with the token for the end of a text as their last one."""
    from distill.data import token_cache
    from distill.models.tokenizer import for_targets

    tokenizer = for_targets(tokenizer)
    adds_end = ends_texts(tokenizer)
    tokens = token_cache.tokenize_split(text_split(texts), tokenizer, max_target - (not adds_end), cache_dir)
    return tokens if adds_end else _append_end(tokens, tokenizer.eos_token_id)


def ends_texts(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Returns whether the tokenizer itself puts the token for the end of a text behind each text.

    mBART puts the token of the language behind it.
    """
    tokens = tokenizer("a", return_special_tokens_mask=True)
    behind = zip(tokens["input_ids"][1:], tokens["special_tokens_mask"][1:], strict=True)
    return any(is_special and token == tokenizer.eos_token_id for token, is_special in behind)


def _append_end(tokens: "Tokens", end: int) -> "Tokens":
    """Returns the tokens of each example with the token for its end behind them."""
    ids = np.insert(tokens.columns["input_ids"], tokens.offsets[1:], end)
    offsets = tokens.offsets + np.arange(len(tokens.offsets))
    return replace(tokens, columns={"input_ids": ids}, offsets=offsets)
