"""A text for a text: the items are the tokens of the target, predicted one after the other or all at once.

Pairs of a source and a target text, from rows with a column of each. The target of a row is a text, or several
references: a list of texts, or one text with a separator between them.

A text for a text: the items are the tokens of the target, each predicted from the source and the tokens before it.

>>> from distill.kinds import Seq2Seq
>>> train = [{"source": "3 1 2", "target": "1 2 3"}]
>>> task = Seq2Seq(train=train, dev=[{"source": "2 1", "target": ["1 2", "one two"]}])
>>> task.read(None).splits["dev"]["references"]
[['1 2', 'one two']]

A text for a text, all of whose tokens are predicted at once: the items are the masked tokens of the target.

>>> from distill.kinds import MaskPredict
>>> pairs = [{"source": "3 1 2", "target": "1 2 3"}]
>>> MaskPredict(train=pairs, dev=pairs, rounds=4, lengths=3).info.taught_by
'seq2seq'
"""

import hashlib
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Unpack

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.console import print_notice
from distill.core.contracts import DECODER_INPUTS, IGNORED, TARGET_LENGTHS, TARGET_MASK, Batch, Items, Outputs, Scores
from distill.core.errors import UserError
from distill.core.options import check_arguments
from distill.data.batches import CollatedBatch, TokenizedExamples
from distill.data.labelled_text import read_text_column
from distill.data.sources import TableSource, check_columns, check_memory, text_keys
from distill.data.splits import LabelledData, Split, create_data, text_split
from distill.data.tokenization import Tokens, tokenize_split
from distill.edge.bundle import Bundle
from distill.edge.sampling import MOST_BEAMS
from distill.edge.text_decoders import TargetFrame, choose_masked
from distill.kinds import labelled_rows
from distill.kinds.kind import Encoder, Kind
from distill.kinds.masked_lm import TokenScores, select_labelled
from distill.kinds.scoring import TextMetric, WritingSettings, text_metrics
from distill.losses import HardLabels, TargetLength
from distill.models.decoding import run_encoder_pass
from distill.models.forward import fills_targets, shift_targets
from distill.models.sentence_files import for_targets
from distill.rows.columns import Table
from distill.rows.formats import check_surrogates, is_missing

MissingTarget = Literal["error", "drop"]
ADVICE = "name other columns with task.source=... and task.target=..."


@dataclass(frozen=True, kw_only=True)
class TextPairs:
    """The source of the rows, and how their targets are read.

    Args:
        rows: the tables of the splits.
        source, target: the columns.
        separator: text between the references of a target; None for one reference, or lists of them.
        prefix: text that is put before each source.
        missing: error refuses rows without a source or a target, drop leaves them out.
    """

    rows: TableSource
    source: str
    target: str
    separator: str | None = None
    prefix: str = ""
    missing: MissingTarget = "error"

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads `train`, `dev` and the other splits with targets.

        A row of train with several references becomes a row for each of them.

        Raises:
            UserError: if a file or column is missing, for values that are no texts, and for rows without a source or a
                target.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        tables = self.rows.read(cache_dir, self._hold_out, self._has_targets)
        splits = {name: self._read(table) for name, table in tables.items()}
        splits = self.rows.sample(splits)
        splits["train"] = _spread_references(splits["train"], self.prefix)
        data = create_data(replace(self.rows, train_examples=None), (), splits, _list_content)
        return data.with_option(f"prefix={self.prefix!r}") if self.prefix else data

    def _hold_out(self, table: Table) -> dict[str, Table]:
        check_columns(table, [(self.source,), (self.target,)], ADVICE)
        return self.rows.hold_out_dev(table, together=[text_keys(table.columns[self.source])])

    def _has_targets(self, table: Table) -> bool:
        """Returns whether a split has targets at all: those of a test split may be hidden, which a notice says."""
        found = not all(map(self._is_empty, table.columns.get(self.target, ())))
        if not found:
            print_notice(f"{table.source} has no targets and is left out")
        return found

    def _read(self, table: Table) -> Split:
        check_columns(table, [(self.source,), (self.target,)], ADVICE)
        table = self._leave_out(table)
        sources = read_text_column(table, self.source, may_be_empty=False)
        references = [self._read_target(table, row) for row in range(len(table))]
        return pair_split([self.prefix + source for source in sources], references, prefix=self.prefix)

    def _leave_out(self, table: Table) -> Table:
        """Returns the table without the rows that lack a source or a target; raises UserError if they must not."""
        columns = (self.source, self.target)
        values = zip(*(table.columns[name] for name in columns), strict=True)
        lacking = {
            row: name
            for row, of_row in enumerate(values)
            for name, value in zip(columns, of_row, strict=True)
            if self._is_empty(value)
        }
        if not lacking:
            return table
        if self.missing == "error":
            row, name = next(iter(lacking.items()))
            raise UserError(
                f"{table.place(row)}: column {name} is {reprlib.repr(table.columns[name][row])}, expected text, and "
                f"{len(lacking):,} of {len(table):,} rows lack a source or a target: task.missing=drop leaves them out"
            )
        rows = [row for row in range(len(table)) if row not in lacking]
        if not rows:
            raise UserError(f"{table.source} has no row with a source and a target: {ADVICE}")
        print_notice(
            f"{table.source}: {len(lacking):,} of {len(table):,} rows have no source or no target and are left out"
        )
        return table.select(rows)

    def _is_empty(self, value: object) -> bool:
        return is_missing(value) or (isinstance(value, list | tuple | np.ndarray) and all(map(is_missing, value)))

    def _read_target(self, table: Table, row: int) -> list[str]:
        """Returns the references of a row, at least one; raises UserError for a value that is none."""
        value: Any = table.columns[self.target][row]
        references: list[Any]
        if isinstance(value, str) and self.separator is not None:
            references = [part.strip() for part in value.split(self.separator)]
        elif isinstance(value, list | tuple | np.ndarray):
            references = list(value)
        else:
            references = [value]
        references = [reference for reference in references if not is_missing(reference)]
        if not references or not all(isinstance(reference, str) for reference in references):
            raise UserError(
                f"{table.place(row)}: column {self.target} is {reprlib.repr(value)}, expected text, or a list of texts"
            )
        for reference in references:
            check_surrogates(reference, f"{table.place(row)}: column {self.target}")
        return references


def pair_split(sources: list[str], references: list[list[str]], *, prefix: str = "") -> Split:
    """Returns sources with the references of each, of which the first one is the target.

    Args:
        prefix: with which each source begins, and which its record does not have, because a bundle puts it there.
    """
    targets = [of_row[0] for of_row in references]
    whole = [f"{source} {target}" for source, target in zip(sources, targets, strict=True)]
    columns: dict[str, list[Any]] = {"source": sources, "target": targets, "references": references, "text": whole}
    return Split(columns, ("source",), partial(_create_record, prefix), whole="text")


def _create_record(prefix: str, row: Mapping[str, Any]) -> dict[str, str]:
    return {"source": row["source"].removeprefix(prefix), "target": row["target"]}


def _spread_references(split: Split, prefix: str) -> Split:
    """Returns a row for each reference."""
    pairs = [
        (source, reference)
        for source, references in zip(split["source"], split["references"], strict=True)
        for reference in references
    ]
    return pair_split([source for source, _ in pairs], [[reference] for _, reference in pairs], prefix=prefix)


def _list_content(splits: Mapping[str, Split]) -> Iterator[object]:
    """Yields the content of the splits, of which a digest is computed."""
    for name, split in splits.items():
        yield [name, split["source"], split["references"]]


LongTargets = Literal["cut", "error"]
DEFAULT_METRICS: tuple[TextMetric, ...] = ("exact_match", "rougeL", "chrf", "bleu")


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
    writing: WritingSettings | None = None
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


class TargetTask(Kind):
    """A kind of task whose models write a text for a text; the items are the tokens of the targets."""

    auto_class = "AutoModelForSeq2SeqLM"
    decoder = "seq2seq"
    classes_are_tokens = generates = True
    caches_outputs = False
    max_target: int

    def select(self, batch: Batch) -> Items:
        """The tokens of the targets, in the order of the batch."""
        items = select_labelled(batch)
        return replace(items, labels=items.labels.long(), is_complete=True)

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs both halves without the head, which computes logits at the items alone."""
        inputs = shift_targets(model, batch["labels"])
        return run_encoder_pass(model, {**batch, DECODER_INPUTS: inputs}, items, needs)


class Seq2Seq(TargetTask):
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
        options: those of `labelled_rows.RowOptions`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("seq2seq",)
    scores: ClassVar[type[TargetScores]] = TargetScores

    @check_arguments
    def __init__(
        self,
        *,
        source: str | int = "source",
        target: str | int = "target",
        separator: Annotated[str, Field(min_length=1)] | None = None,
        prefix: str = "",
        max_length: labelled_rows.MaxLength = 128,
        max_target: labelled_rows.MaxLength = 128,
        long_targets: LongTargets = "cut",
        missing: MissingTarget = "error",
        text_metrics: Annotated[Sequence[TextMetric], Field(min_length=1)] = DEFAULT_METRICS,
        scored_texts: Annotated[int, Field(ge=0)] | None = 200,
        beams: Annotated[int, Field(ge=1, le=MOST_BEAMS)] | None = None,
        name: str = "seq2seq",
        **options: Unpack[labelled_rows.RowOptions],
    ) -> None:
        super().__init__(name, max_length)
        source, target = str(source), str(target)
        self.source = labelled_rows.table_source(name=name, text=(source,), label=(target,), options=options)
        check_memory(self.source, [(source,), (target,)], ADVICE)
        self.pairs = TextPairs(
            rows=self.source, source=source, target=target, separator=separator, prefix=prefix, missing=missing
        )
        self.max_target, self.long_targets = max_target, long_targets
        self.writing = (
            None
            if scored_texts == 0
            else WritingSettings(tuple(dict.fromkeys(text_metrics)), scored_texts, beams, max_target)
        )

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split.

        Raises:
            UserError: for a file or column that is missing, a row without a source or a target, and a library of a
                metric that is not installed.
        """
        if self.writing is not None:
            text_metrics(["a"], [["a"]], self.writing.metrics)  # Before a training, at whose end it is needed.
        data = self.pairs.read(cache_dir).with_option(f"max_target={self.max_target} {self.long_targets}")
        scoring = self.scores(max_target=self.max_target, writing=self.writing, prefix=self.pairs.prefix)
        return replace(data, scoring=scoring, terms={"hard": HardLabels()})

    def encode_split(self, encoder: Encoder, data: LabelledData, name: str, split: Split) -> TokenizedExamples:
        """Tokenizes sources and targets, these with the token for the end of a text as their last one.

        Raises:
            UserError: for longer targets than `max_target` where they are an error.
        """
        tokens = encoder.tokenize(text_split(split["source"]))
        written = encode_targets(split["target"], encoder.tokenizer, self.max_target, encoder.cache_dir)
        if written.truncated:
            counted = f"{name}: {written.truncated:,} of {len(split):,} targets have more than {self.max_target} tokens"
            if self.long_targets == "error":
                raise UserError(f"{counted}: raise task.max_target, or set task.long_targets=cut")
            print_notice(f"{counted} and are cut: raise task.max_target to keep them whole")
        return self.join(tokens, written, encoder.tokenizer, name=name)

    def join(
        self, tokens: Tokens, targets: Tokens, tokenizer: PreTrainedTokenizerBase, *, name: str
    ) -> TokenizedExamples:
        """Returns the sources of the split `name` with their targets."""
        return TokenizedExamples(tokens, tokenizer, targets=targets)


def describe_prefix(prefix: str) -> str:
    """Returns a sentence about the prefix of sources; none for an empty one."""
    return f" Every source begins with `{prefix}`: a bundle puts it there, and transformers needs it." if prefix else ""


def encode_targets(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, max_target: int, cache_dir: Path | None
) -> Tokens:
    """Returns the tokens of targets, cut to `max_target`, with the token for the end of a text as their last one."""
    tokenizer = for_targets(tokenizer)
    adds_end = ends_texts(tokenizer)
    tokens = tokenize_split(text_split(texts), tokenizer, max_target - (not adds_end), cache_dir)
    return tokens if adds_end else _append_end(tokens, tokenizer.eos_token_id)


def ends_texts(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Returns whether the tokenizer itself puts the token for the end of a text behind each text.

    mBART puts the token of the language behind it.
    """
    tokens = tokenizer("a", return_special_tokens_mask=True)
    behind = zip(tokens["input_ids"][1:], tokens["special_tokens_mask"][1:], strict=True)
    return any(is_special and token == tokenizer.eos_token_id for token, is_special in behind)


def _append_end(tokens: Tokens, end: int) -> Tokens:
    """Returns the tokens of each example with the token for its end behind them."""
    ids = np.insert(tokens.columns["input_ids"], tokens.offsets[1:], end)
    offsets = tokens.offsets + np.arange(len(tokens.offsets))
    return replace(tokens, columns={"input_ids": ids}, offsets=offsets)


class MaskedTargets(TokenizedExamples):
    """Sources and targets with masks. Batches have `labels [B, T]` at these alone, and `decoder_input_ids [B, T]`.

    Args:
        frame: of the targets.
        visits: ways in which a target is masked, as in `Examples`; None for new masks in each epoch.
        options: those of `TokenizedExamples`.
    """

    def __init__(
        self,
        encoded: Tokens,
        tokenizer: PreTrainedTokenizerBase,
        *,
        frame: TargetFrame,
        visits: int | None,
        **options: Any,
    ) -> None:
        super().__init__(encoded, tokenizer, **options)
        self.frame, self.visits = frame, visits
        self.digest = hashlib.sha256(f"masked {visits} {self.digest}".encode()).hexdigest()

    def __getitem__(self, indices: Sequence[int]) -> CollatedBatch:
        example_id = np.asarray(indices)
        visits, rows = np.divmod(example_id, len(self))
        batch = super().__getitem__(rows.tolist())
        mask = batch[TARGET_MASK] == 1
        inputs = batch["labels"].masked_fill(~mask, self.padding["input_ids"])
        labels, first = torch.full_like(inputs, IGNORED), len(self.frame.before)
        lengths = mask.sum(dim=1) - first - len(self.frame.after)
        for row, (length, visit) in enumerate(zip(lengths.tolist(), visits.tolist(), strict=True)):
            tokens = inputs[row, first : first + length].tolist()
            chosen = torch.tensor(choose_masked(tokens, visit), dtype=torch.long) + first
            labels[row, chosen], inputs[row, chosen] = inputs[row, chosen], self.frame.mask
        own = {"labels": labels, DECODER_INPUTS: inputs, TARGET_LENGTHS: lengths}
        return {**batch, **own, "example_id": torch.from_numpy(example_id)}


class TargetOptions(labelled_rows.RowOptions, total=False):
    """The options of `Seq2Seq` besides its name, with their meanings there."""

    source: str | int
    target: str | int
    separator: str | None
    prefix: str
    max_length: labelled_rows.MaxLength
    max_target: labelled_rows.MaxLength
    long_targets: LongTargets
    missing: MissingTarget
    text_metrics: Sequence[TextMetric]
    scored_texts: int | None
    beams: int | None


@dataclass(frozen=True)
class RefinedWriting(WritingSettings):
    """How texts are written whose masks are filled in `rounds`, for each of so many `lengths`."""

    rounds: int = 1
    lengths: int = 1

    def write(self, bundle: Bundle, sources: Sequence[str]) -> list[Mapping[str, Any]]:
        return list(bundle.predict(sources, rounds=self.rounds, lengths=self.lengths))


@dataclass(frozen=True)
class MaskedTargetScores(TargetScores):
    """The cross-entropies and the predictions of masked tokens, each from the source and the tokens that are shown.

    A model that writes tokens one after another predicts the same ones, each after the right tokens before it.
    """

    def score(self, outputs: Outputs, items: Items) -> dict[str, Tensor]:
        """The columns of tokens, and the distance of the predicted from the right length of their target."""
        columns = super().score(outputs, items)
        if outputs.length_logits is not None:
            distance = (outputs.length_logits.argmax(dim=-1) - items[TARGET_LENGTHS]).abs()
            columns["length_error"] = distance.float()[items.row]
        return columns

    def metrics(self, scores: Scores) -> dict[str, float]:
        """Those of `TargetScores`, and of a model that predicts lengths the share of right ones and the mean error.

        `length_error` is in tokens.
        """
        values = super().metrics(scores)
        if "length_error" in scores.columns:
            _, first = np.unique(scores.example_id, return_index=True)
            errors = scores.columns["length_error"][first]
            values |= {"length_accuracy": float((errors == 0).mean()), "length_error": float(errors.mean())}
        return values

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """The numbers of rounds and lengths of a bundle."""
        writing = self.writing
        return {"rounds": writing.rounds, "lengths": writing.lengths} if isinstance(writing, RefinedWriting) else {}

    def describe(self, splits: Any) -> dict[str, Any]:
        return {**super().describe(splits), "example": '"a sentence"'}  # It fills masks, and takes no `generate`.


class MaskPredict(Seq2Seq):
    """A text for a text by Mask-Predict (Ghazvininejad et al., arXiv 1904.09324).

    Students are encoder-decoders that fill all masks of a target at once, and predict its length. A target of train has
    other masks in every epoch, a number of them that is uniform from 1 to all tokens (section 3.1); those of dev and
    test are always the same. Teachers are models of `Seq2Seq`, which teach by the texts that they write.

    Args:
        rounds: in which exported files fill the masks of a text.
        lengths: likeliest lengths for which they do so, to take the best text of them.
        name: names the task in records and directories.
        options: those of `Seq2Seq`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("mask_predict",)
    scores = MaskedTargetScores
    decoder = "mask_predict"
    generates = fixed_inputs = False
    taught_by = "seq2seq"
    label_columns = frozenset({"labels", TARGET_LENGTHS})

    @check_arguments
    def __init__(
        self,
        *,
        rounds: Annotated[int, Field(ge=1)] = 10,
        lengths: Annotated[int, Field(ge=1)] = 5,
        name: str = "mask_predict",
        **options: Unpack[TargetOptions],
    ) -> None:
        super().__init__(name=name, **options)
        self.rounds, self.lengths = rounds, lengths
        if self.writing is not None:
            self.writing = RefinedWriting(**vars(self.writing), rounds=rounds, lengths=lengths)

    def read(self, cache_dir: Path) -> LabelledData:
        return replace(super().read(cache_dir), terms={"hard": HardLabels(), "length": TargetLength()})

    def join(self, tokens: Tokens, targets: Tokens, tokenizer: PreTrainedTokenizerBase, *, name: str) -> MaskedTargets:
        """Returns sources with their targets, whose masks are new in each epoch of train.

        Raises:
            UserError: for a tokenizer without a token for masks.
        """
        frame = find_frame(tokenizer, self.max_target)
        return MaskedTargets(tokens, tokenizer, targets=targets, frame=frame, visits=None if name == "train" else 1)

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs both halves without the head, which computes logits at the items alone."""
        if not fills_targets(model):
            shown = batch[DECODER_INPUTS].masked_fill(batch[TARGET_MASK] == 0, IGNORED)
            whole = batch["labels"].where(batch["labels"] != IGNORED, shown)
            batch = {**batch, DECODER_INPUTS: shift_targets(model, whole)}
        return run_encoder_pass(model, batch, items, needs)


def find_frame(tokenizer: PreTrainedTokenizerBase, max_target: int) -> TargetFrame:
    """Returns the tokens around a target.

    Raises:
        UserError: for a tokenizer without a token for masks, and targets without room for a token.
    """
    if tokenizer.mask_token_id is None:
        raise UserError(
            f"the tokenizer ({type(tokenizer).__name__}) has no token for masks (mask_token), which task=mask_predict "
            "fills: take a teacher such as a BART, or one that begins with a BERT"
        )
    alone: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole: list[int] = tokenizer("a")["input_ids"]
    begin = next(place for place in range(len(whole)) if whole[place : place + len(alone)] == alone)
    after = [*whole[begin + len(alone) :], *([] if ends_texts(tokenizer) else [tokenizer.eos_token_id])]
    frame = TargetFrame(tuple(whole[:begin]), tuple(after), int(tokenizer.mask_token_id), max_target)
    if frame.most < 1:
        special = max_target - frame.most
        raise UserError(f"got task.max_target={max_target}, expected more than the {special} special tokens of a text")
    return frame
