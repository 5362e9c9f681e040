"""Sequence-level distillation of a decoder: a teacher continues the beginning of every training text.

The idea is that of arXiv 1606.07947 for a language model. Prompts are tokens of the text, so that a prompt may begin
and end within a word, and a continuation needs no second tokenization. In the files of `WrittenTexts` tokens are
numbers with spaces between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from distill.console import print_notice
from distill.contracts import EncodedSplits
from distill.data.token_cache import Tokens
from distill.errors import UserError
from distill.models.continuation import continue_prompts
from distill.models.decoding import describe_rules
from distill.storage.cache import entry_key
from distill.tasks.masked_lm import TextData
from distill.teaching.targets import FORMAT, TargetSettings, check_writes, complete, open_texts, seeded
from distill.text.sequences import Sequences, count_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from distill.teaching.prepared import PreparedTeacher


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
