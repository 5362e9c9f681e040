"""Sequence-level distillation: texts that a teacher writes, or continues, for every training text, cached.

Sequence-level distillation: a teacher's texts for every training source, written once and cached. Each file has the
texts for some dozen sources and is written atomically with its checksum. A writing that was killed goes on with the
missing files. The batches of a file depend on its sources alone, so that its texts are those of a writing without a
break. Two processes that write the same directory at once may write a file twice, with the same content.

Sequence-level distillation of a decoder: a teacher continues the beginning of every training text. The idea is that of
arXiv 1606.07947 for a language model. Prompts are tokens of the text, so that a prompt may begin and end within a word,
and a continuation needs no second tokenization. In the files of `WrittenTexts` tokens are numbers with spaces between
them.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass

from distill.core import storage
from distill.core.console import ProgressMeter, format_duration, print_line, print_notice
from distill.core.contracts import EncodedSplits, TaskInfo
from distill.core.errors import UserError
from distill.core.files import atomic_file, make_directory
from distill.core.options import STRICT, check_options
from distill.core.storage import check_writable, entry_key, lease
from distill.data.splits import LabelledData
from distill.data.tokenization import Tokens
from distill.kinds.masked_lm import TextData
from distill.kinds.scoring import score_sentences
from distill.models.decoding import before_end, choose_tokens, continue_prompts, describe_rules
from distill.teachers.output_cache import library_versions
from distill.text.sequences import Sequences, count_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.teachers.prepared import PreparedTeacher


FORMAT = 1  # Of the files of texts.
SOURCES = 32  # Of a file, which is what a kill can lose; those of a file are one batch.
Write = Callable[[Sequence[str]], list[list[str]]]  # Returns the texts for each source, the best one first.
Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number above 0")]


class Writer(Protocol):
    """Writes texts with a teacher.

    Attributes:
        options: everything that the texts depend on besides the teacher and the sources.
    """

    @property
    def model(self) -> "PreTrainedModel": ...

    @property
    def options(self) -> tuple[object, ...]: ...

    def __call__(self, sources: Sequence[str]) -> list[list[str]]:
        """Returns the texts for each source, the best one first."""
        ...


@check_options("teacher")
@checked_dataclass(frozen=True, config=STRICT, kw_only=True)
class TargetSettings:
    """The texts of a teacher that take the place of those of train (Kim and Rush, arXiv 1606.07947, section 3.2).

    Args:
        beams: of the search for them, each of which is kept in the cache; 1 for the most probable token each time.
        keep: 1 keeps the most likely text, `nearest` of all beams the one that is nearest to the target by `nearest_by`
            (section 3.3).
        nearest_by: the sentence's `chrf` or `bleu`.
        sampling_temperature: draws each text from the teacher's distributions at this temperature in place of a search;
            None for the search.
        sampling_seed: of the drawn texts.

    Raises:
        OptionError: for an option that got a value it cannot take.
    """

    beams: PositiveInt = 4
    keep: Literal[1, "nearest"] = 1
    nearest_by: Literal["chrf", "bleu"] = "chrf"
    sampling_temperature: Temperature | None = None
    sampling_seed: NonNegativeInt = 0

    @property
    def option(self) -> str:
        """Returns the option of the command that asks for the texts."""
        if self.sampling_temperature is not None:
            return f"teacher.sampling_temperature={self.sampling_temperature:g}"
        return f"teacher.beams={self.beams}"

    def choose(self, beams: Sequence[Sequence[str]], references: Sequence[str]) -> list[str]:
        """Returns one text for each source.

        Args:
            beams: the texts for each source, the most likely one first.
            references: the target of each source.
        """
        if self.keep == 1:
            return [texts[0] for texts in beams]
        chosen = []
        for texts, reference in zip(beams, references, strict=True):
            scores = score_sentences(texts, [[reference]] * len(texts), self.nearest_by)
            chosen.append(texts[int(scores.argmax())])
        return chosen


class WrittenTexts:
    """The texts of a teacher for different sources, in the files of one directory.

    Attributes:
        damaged: the files that did not match their checksum, which are written again.
    """

    def __init__(self, directory: Path, sources: Sequence[str]) -> None:
        """Opens the directory.

        Args:
            sources: different ones. Files have those of similar length, which fill a batch without much padding.
        """
        self.directory = directory
        order = np.argsort([len(source) for source in sources], kind="stable")
        self._files = [
            [sources[row] for row in order[first : first + SOURCES]] for first in range(0, len(sources), SOURCES)
        ]
        self.damaged: list[Path] = []
        self._texts = [self._read(number) for number in range(len(self._files))]

    def missing(self) -> list[int]:
        """Returns the numbers of the files that are not written."""
        return [number for number, texts in enumerate(self._texts) if texts is None]

    @property
    def missing_sources(self) -> int:
        return sum(len(self._files[number]) for number in self.missing())

    @property
    def sources(self) -> int:
        return sum(map(len, self._files))

    def write(self, write: Write) -> None:
        """Writes the missing files, shows the progress, and sends them to the mirror of the cache."""
        check_writable(self.directory)
        make_directory(self.directory)
        lease(self.directory)
        done = self.sources - self.missing_sources
        with ProgressMeter("the teacher's texts", self.sources, done=done, unit="sources") as meter:
            for number in self.missing():
                self._add(number, write(self._files[number]))
                meter.advance(len(self._files[number]))
        storage.try_send(self.directory)

    def by_source(self) -> dict[str, list[str]]:
        """Returns the texts for each source; raises ValueError if files are missing."""
        if missing := self.missing():
            raise ValueError(f"{len(missing)} files of {self.directory} are missing: write them first")
        pairs: Iterator[tuple[str, list[str]]] = (
            pair
            for sources, texts in zip(self._files, self._texts, strict=True)
            for pair in zip(sources, texts or [], strict=True)
        )
        return dict(pairs)

    def estimate_seconds(self, write: Write) -> float:
        """Returns the duration of writing what is missing, by that of the texts for the longest sources among them."""
        missing = self.missing()
        if not missing:
            return 0.0
        few = self._files[missing[-1]][-4:]
        begin = time.perf_counter()
        write(few)
        return (time.perf_counter() - begin) / len(few) * self.missing_sources

    def _add(self, number: int, texts: list[list[str]]) -> None:
        content = {"sources": self._files[number], "texts": texts}
        with atomic_file(self._path(number)) as temporary:
            temporary.write_text(json.dumps({"sha256": _digest(content), **content}, ensure_ascii=False), "utf-8")
        self._texts[number] = texts

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:05}.json"

    def _read(self, number: int) -> list[list[str]] | None:
        """Returns the texts of a file, None if it is missing or damaged."""
        path = self._path(number)
        if not path.is_file():
            return None
        try:
            content: dict[str, Any] = json.loads(path.read_text("utf-8"))
            digest = content.pop("sha256")
            if digest == _digest(content) and content["sources"] == self._files[number]:
                texts: list[list[str]] = content["texts"]
                return texts
        except (OSError, ValueError, KeyError, AttributeError):
            pass
        self.damaged.append(path)
        return None


@dataclass(frozen=True)
class BeamWriter:
    """Writes texts with a model of transformers by beam search, or by sampling.

    A decoder alone continues the source, and its texts are the continuations.

    Args:
        max_source: tokens that a source is cut to.
        max_target: the most tokens of a text.
        temperature: of the sampling; None for the search.
        seed: of the sampling.
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    beams: int
    max_source: int
    max_target: int
    temperature: float | None = None
    seed: int = 0

    @property
    def options(self) -> tuple[object, ...]:
        sampling = () if self.temperature is None else (self.temperature, self.seed)
        return (self.beams, self.max_source, self.max_target, *sampling, describe_rules(self.model))

    @torch.inference_mode()
    def __call__(self, sources: Sequence[str]) -> list[list[str]]:
        """Returns the texts for each source, the most likely one first."""
        inputs = encode_sources(self.model, self.tokenizer, sources, self.max_source)
        with seeded(self.seed, sources):
            ids = self.model.generate(
                **inputs, num_beams=self.beams, num_return_sequences=self.beams, max_new_tokens=self.max_target,
                pad_token_id=pad_token(self.tokenizer), **choose_tokens(self.temperature),
            )  # fmt: skip
        # A decoder behind an encoder starts with one token.
        ids = ids[:, 1 if self.model.config.is_encoder_decoder else inputs["input_ids"].shape[1] :]
        is_text = before_end(ids, self.model.generation_config.eos_token_id)
        rows = [row[kept] for row, kept in zip(ids, is_text, strict=True)]
        texts = [text.strip() for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]
        return [texts[first : first + self.beams] for first in range(0, len(texts), self.beams)]


@contextmanager
def seeded(seed: int, sources: Sequence[str]) -> Iterator[None]:
    """Draws random numbers by a seed and the sources of a file, and restores torch's own afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(int(entry_key("sampling", FORMAT, seed, list(sources))[:15], 16))
        yield


def encode_sources(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", sources: Sequence[str], max_length: int
) -> dict[str, torch.Tensor]:
    """Returns `input_ids` and `attention_mask` `[B, L]` on the model's device; a decoder's padding is on the left."""
    rows = [tokenizer(source, truncation=True, max_length=max_length)["input_ids"] for source in sources]
    width, is_decoder = max(map(len, rows)), not model.config.is_encoder_decoder
    ids = torch.full((len(rows), width), pad_token(tokenizer))
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        span = slice(width - len(tokens), width) if is_decoder else slice(0, len(tokens))
        ids[row, span] = torch.tensor(tokens, dtype=torch.long)
        mask[row, span] = 1
    return {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}


def pad_token(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Returns the id of the token for padding, or that for the end of a text in its place."""
    pad: int = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return pad


def check_writes(model: "PreTrainedModel", name: str, option: str) -> None:
    """Raises UserError for a model that cannot write texts.

    Args:
        name: of the model in the message.
        option: that asks for texts.
    """
    if not model.can_generate():
        raise UserError(
            f"{option} needs a model that writes text, and {name} is a {type(model).__name__}, which does not: take a "
            "decoder or an encoder-decoder, or leave the option out"
        )


def open_texts(sources: Sequence[str], writer: Writer, *, fingerprint: str, cache_dir: Path) -> WrittenTexts:
    """Opens the texts of a teacher for these sources.

    Args:
        fingerprint: digest of everything that the teacher's outputs depend on.
    """
    different = list(dict.fromkeys(sources))
    device = writer.model.device.type
    key = entry_key("targets", FORMAT, fingerprint, library_versions(), device, writer.options, different)
    directory = cache_dir / "targets" / key[:20]
    storage.try_fetch(directory)
    lease(directory)
    texts = WrittenTexts(directory, different)
    if texts.damaged:
        print_notice(f"{directory}: {len(texts.damaged):,} files are damaged and are written again")
    return texts


def write_targets(
    data: LabelledData,
    teacher: "PreparedTeacher",
    settings: TargetSettings,
    *,
    info: TaskInfo,
    cache_dir: Path,
    dry_run: bool,
) -> LabelledData:
    """Returns the data with the teacher's texts as the targets of train, cached or written.

    A dry run plans with the targets of the data, and prints the estimate of the writing.

    Raises:
        UserError: for a teacher that cannot write.
    """
    model, train = teacher.running(), data.splits["train"]
    check_writes(model, f"teacher {teacher.resolved}", settings.option)
    assert info.max_target is not None
    writer = BeamWriter(
        model, teacher.tokenizer, settings.beams, info.max_length, info.max_target,
        temperature=settings.sampling_temperature, seed=settings.sampling_seed,
    )  # fmt: skip
    texts = open_texts(train["source"], writer, fingerprint=teacher.fingerprint, cache_dir=cache_dir)
    if not complete(texts, writer, f"writes {settings.beams} texts for each", "sources", dry_run=dry_run):
        return data
    beams = texts.by_source()
    chosen = settings.choose([beams[source] for source in train["source"]], train["target"])
    return replace_targets(data, chosen).with_option(f"targets={settings} {teacher.fingerprint}")


def complete(texts: WrittenTexts, writer: Writer, work: str, unit: str, *, dry_run: bool) -> bool:
    """Writes the texts that are missing, after a line with their number and duration; returns whether all are there.

    A dry run writes none.

    Args:
        work: of the teacher for each source, in words.
        unit: names the sources.
    """
    if texts.missing():
        duration = format_duration(texts.estimate_seconds(writer))
        print_line(
            f"Targets  the teacher {work} of {texts.missing_sources:,} of {texts.sources:,} {unit} once, about "
            f"{duration}: {texts.directory}"
        )
        if dry_run:
            return False
        texts.write(writer)
    return True


def replace_targets(data: LabelledData, targets: Sequence[str]) -> LabelledData:
    """Returns the data with other targets of train; a row whose target is empty is left out.

    Raises:
        UserError: if all are empty.
    """
    train = data.splits["train"]
    rows = [row for row, target in enumerate(targets) if target]
    if not rows:
        raise UserError("the teacher's texts are all empty: train it first, or learn from the targets of the data")
    if len(rows) < len(train):
        print_notice(f"{len(train) - len(rows):,} of {len(train):,} texts of the teacher are empty and are left out")
    replaced = train.with_columns(target=list(targets)).select(np.array(rows))
    return replace(data, splits={**data.splits, "train": replaced})


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class ContinuationWriter:
    """Continues the first tokens of sequences with a decoder. A continuation is at most as long as what it replaces.

    Args:
        prompt: the first tokens, as in `SequenceSettings`.
        settings: of the search or of the sampling.
    """

    model: "PreTrainedModel"
    prompt: int | float
    settings: TargetSettings

    @property
    def options(self) -> tuple[object, ...]:
        """Everything that the texts depend on besides the teacher and the sources."""
        settings = self.settings
        sampling = (settings.sampling_temperature, settings.sampling_seed)
        drawn = () if sampling[0] is None else sampling
        return ("continuation", self.prompt, settings.beams, *drawn, describe_rules(self.model))

    @torch.inference_mode()
    def __call__(self, sources: Sequence[str]) -> list[list[str]]:
        """Returns the continuations of each sequence, the most likely one first, all as tokens in a file."""
        sequences = [read_tokens(source) for source in sources]
        lengths = np.array([len(tokens) for tokens in sequences])
        sizes = count_prompt(lengths, self.prompt)
        prompts = [tokens[:size] for tokens, size in zip(sequences, sizes.tolist(), strict=True)]
        with seeded(self.settings.sampling_seed, sources):
            written = continue_prompts(
                self.model, prompts, (lengths - sizes).tolist(), beams=self.settings.beams,
                temperature=self.settings.sampling_temperature,
            )  # fmt: skip
        return [[show_tokens(tokens) for tokens in texts] for texts in written]


def continue_texts(
    data: TextData,
    examples: EncodedSplits,
    teacher: "PreparedTeacher",
    settings: TargetSettings,
    *,
    cache_dir: Path,
    dry_run: bool,
) -> EncodedSplits:
    """Returns the splits with the teacher's continuations in the texts of train, cached or written.

    The prompts stay in the texts. They are the corpus's own, and every token of a text teaches, because dev scores all
    of them. Sequences that are not longer than their prompt are left out. A dry run plans with the texts of the corpus,
    and prints the estimate of the writing.

    Raises:
        UserError: for a teacher that cannot write, a corpus that is streamed, and one without a sequence that is longer
            than its prompt.
    """
    train, prompt, model = examples["train"], data.settings.prompt, teacher.running()
    check_writes(model, f"teacher {teacher.resolved}", settings.option)
    assert prompt is not None  # `check_plan` has checked the task.
    if not isinstance(train, Sequences):
        raise UserError(
            f"{settings.option} writes every text once before the training, and {data.corpus.describe()} is streamed: "
            "set task.streaming=false, or objective=on_policy"
        )
    sequences = train.list_tokens()
    lengths = np.array([len(tokens) for tokens in sequences])
    sizes = count_prompt(lengths, prompt)
    rows = np.flatnonzero(lengths > sizes)
    if not len(rows):
        raise UserError(f"no sequence has more tokens than task.prompt={prompt}: give a smaller number, or a share")
    if len(rows) < len(lengths):
        print_notice(
            f"{len(lengths) - len(rows):,} of {len(lengths):,} sequences have no more tokens than task.prompt={prompt} "
            "and are left out"
        )
    sources, writer = [show_tokens(sequences[row]) for row in rows], ContinuationWriter(model, prompt, settings)
    texts = open_texts(sources, writer, fingerprint=teacher.fingerprint, cache_dir=cache_dir)
    if not complete(texts, writer, "continues each", "texts", dry_run=dry_run):
        return examples
    written = texts.by_source()
    replaced = [
        np.concatenate([sequences[row][: sizes[row]], read_tokens(written[source][0])])
        for row, source in zip(rows, sources, strict=True)
    ]
    digest = entry_key("continued", FORMAT, texts.directory.name)
    return {**examples, "train": Sequences(_join(replaced, digest), data.settings, teacher.tokenizer)}


def _join(sequences: Sequence[np.ndarray], digest: str) -> Tokens:
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in sequences])])
    return Tokens({"input_ids": np.concatenate(sequences).astype(np.int32)}, offsets, truncated=0, digest=digest)


def show_tokens(tokens: Sequence[int] | np.ndarray) -> str:
    """Returns tokens in the form of a file."""
    return " ".join(map(str, tokens))


def read_tokens(text: str) -> list[int]:
    """Returns the tokens of `show_tokens`."""
    return list(map(int, text.split()))
