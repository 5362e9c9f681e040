"""The models that are looked at, and one pass of each over a split: scores, states of the items, and heads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.console import ProgressMeter, print_notice
from distill.contracts import Batch, Data, EncodedSplits, Examples, Items, Loader, Outputs, Scores, Task
from distill.data.batching import loader, scoring_steps
from distill.data.mixing import labelled_only
from distill.errors import UserError
from distill.inspection.heads import Head, HeadStatistics
from distill.models.checks import check_length
from distill.models.loading import check_directory, load_directory
from distill.models.pooling import configure
from distill.training.evaluate import concatenate, score_items

_PLACES = ("student", "teacher/model")  # Of the model in the directory of a run.
_NEEDS = frozenset(("hidden_states", "attentions"))


@dataclass(frozen=True)
class Subject:
    """A model that is looked at.

    Attributes:
        name: in tables and plots, such as `teacher`.
        path: its directory.
        examples: the tokenized splits.
    """

    name: str
    path: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task
    data: Data
    examples: EncodedSplits

    @property
    def has_attention(self) -> bool:
        """Whether its layers return weights of attention, which a BiLSTM has not."""
        return bool(getattr(self.model.config, "num_attention_heads", 0))

    @property
    def has_classes(self) -> bool:
        """Whether each item has one class of the task, which a probe can learn."""
        items = self.task.select(self.split("train")[[0]])
        is_class = items.likelihood == "softmax" and items.valid is None and not items.classes_are_tokens
        return is_class and len(self.data.labels) > 1

    def texts(self, split: str) -> list[str]:
        """Returns the text of each example of a split, with the texts of one joined by a bar."""
        columns = self.data.scored()[split].text_columns().values()
        if columns:
            return [" | ".join(map(_join, row)) for row in zip(*columns, strict=True)]
        examples = self.split(split)  # Of tokens of several texts.
        return [self.tokenizer.decode(of["input_ids"][of["attention_mask"].bool()]) for of in _each(examples)]

    def answer(self, value: object) -> object:
        """Returns a label or a prediction as it is read, of tokens their text."""
        return self.tokenizer.decode(value) if self.task.info.classes_are_tokens else value  # type: ignore[arg-type]

    def before(self, model: PreTrainedModel) -> "Subject":
        """Returns the same with a model as it was before its training."""
        return replace(self, name=f"{self.name} before training", model=model.eval())

    @property
    def labels_words(self) -> bool:
        """Whether each word of a text has a label."""
        return self.task.select(self.split("train")[[0]]).index is not None and not self.task.info.classes_are_tokens

    def items_of_train(self) -> int:
        """Returns about how many items the examples of train have."""
        train = self.split("train")
        return round(len(train) * train.items_per_example)

    def train_rows(self, items: int) -> np.ndarray:
        """Returns evenly spaced examples of train with about so many items."""
        train = self.split("train")
        return spaced_rows(len(train), max(1, round(items / train.items_per_example)))

    def split(self, name: str) -> Examples:
        """Returns a tokenized split.

        Raises:
            UserError: for a split that the task does not have.
        """
        found = self.examples.get(name)
        if not isinstance(found, Examples):
            raise UserError(
                f"inspect.split={name} is no split of task={self.task.info.name}, expected one of "
                f"{', '.join(self.examples)}"
            )
        return found


def _join(value: object) -> str:
    return value if isinstance(value, str) else " ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def _each(examples: Examples) -> Iterator[Batch]:
    """Yields the tensors of each example."""
    for row in range(len(examples)):
        yield {name: tensor[0] for name, tensor in examples[[row]].items()}


def open_subject(name: str, path: Path, task: Task, data: Data, cache_dir: Path) -> Subject:
    """Opens a model with a trained head for the task, with attention that returns its weights.

    Args:
        path: the directory of a model, or of a run, whose student or fine-tuned teacher is taken.

    Raises:
        UserError: if there is no such model, or its head is not trained for the task.
    """
    directory = next((path / place for place in _PLACES if (path / place / "config.json").is_file()), path)
    check_directory(directory, str(path))
    settings = task.info.model_settings
    start = load_directory(
        directory, task.info.auto_class, data.labels or None, trust_remote_code=False,
        problem_type=settings.get("problem_type"),
    )  # fmt: skip
    if not start.fits:
        raise UserError(f"{directory} has no trained head for task={task.info.name}: {start.reason}")
    for notice in [*start.notices, *configure(start.model, settings)]:
        print_notice(notice)
    return create_subject(name, directory, start.model, start.tokenizer, task, data, cache_dir)


def create_subject(
    name: str, path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, data: Data,
    cache_dir: Path,
) -> Subject:  # fmt: skip
    """Returns a loaded model with the data that it is looked at on, with attention that returns its weights.

    Raises:
        UserError: for texts that are longer than it reads.
    """
    check_length(model, tokenizer, task.info.max_length, who=name)
    if getattr(model.config, "num_attention_heads", 0):
        model.set_attn_implementation("eager")  # The only one that returns weights.
    examples = labelled_only(task.encode(data, tokenizer, cache_dir))
    return Subject(name, path, model.eval(), tokenizer, task, data.with_examples(examples), examples)


def open_subjects(paths: Sequence[Path], task: Task, cache_dir: Path) -> list[Subject]:
    """Opens one model, or a teacher and its student, with the data of their task.

    Args:
        paths: one or two directories, as those of `open_subject`.

    Raises:
        UserError: if the data cannot be read, or a model has no trained head for the task.
    """
    data = task.read(cache_dir)
    names = ("model",) if len(paths) == 1 else ("teacher", "student")
    return [open_subject(name, path, task, data, cache_dir) for name, path in zip(names, paths, strict=True)]


@dataclass(frozen=True)
class Seen:
    """What one pass of a model over a split has shown.

    Attributes:
        scores: in the order of the examples.
        states: the states of the items by layer, that of the embeddings first, `[n, H]` float32. That of an item which
            is an example is the mean of its tokens.
        groups: of the items, those of the same word in one, `[n]`; that of an example is its number, and so is that of
            a token to be predicted.
        heads: the statistics of all heads; empty for a model without attention.
    """

    scores: Scores
    states: Sequence[np.ndarray]
    groups: np.ndarray
    heads: Sequence[Head]


def spaced_rows(total: int, most: int | None) -> np.ndarray:
    """Returns at most so many evenly spaced rows of a table; None takes all."""
    return np.arange(total) if most is None else np.unique(np.linspace(0, total - 1, min(most, total)).astype(int))


def rows_loader(examples: Examples, rows: np.ndarray) -> Loader:
    """Returns the loader of these examples, the longest first."""
    return loader(examples, [[rows[batch].tolist()] for batch in scoring_steps(examples.lengths[rows])])


def batches(subject: Subject, split: str, rows: np.ndarray) -> Iterator[Batch]:
    """Yields the batches of these examples of a split."""
    for step in rows_loader(subject.split(split), rows):
        yield from step


@torch.inference_mode()
def look(subject: Subject, split: str, rows: np.ndarray, *, heads: bool = True) -> Seen:
    """Runs the model over these examples of a split.

    Args:
        heads: whether the statistics of heads are computed.
    """
    task, scoring = subject.task, subject.data.scoring
    statistics = HeadStatistics(_count_tokens(subject, split, rows)) if heads and subject.has_attention else None
    scores, states, groups = [], [], []
    special = torch.tensor(subject.tokenizer.all_special_ids)
    with ProgressMeter(f"{subject.name} on {split}", len(rows), unit="examples", transient=True) as meter:
        for batch in batches(subject, split, rows):
            items = task.select(batch)
            outputs = task.run(subject.model, batch, items, _NEEDS if statistics else _NEEDS - {"attentions"})
            scores.append(score_items(scoring, outputs, items))
            states.append((items.example_id(), item_states(outputs, items)))
            is_word = items.index is not None and not items.classes_are_tokens
            groups.append(batch["input_ids"].flatten()[items.index] if is_word else items.example_id())
            if statistics is not None and outputs.attentions is not None:
                words = batch["attention_mask"].bool() & ~torch.isin(batch["input_ids"], special)
                statistics.add(outputs.attentions, batch["input_ids"], words)
            meter.advance(len(batch["example_id"]))
    order = torch.cat([ids for ids, _ in states]).argsort(stable=True)
    by_layer = [torch.cat(of)[order].numpy() for of in zip(*(layers for _, layers in states), strict=True)]
    found = statistics.heads() if statistics is not None else []
    return Seen(concatenate(scores).by_example(), by_layer, torch.cat(groups)[order].numpy(), found)


def item_states(outputs: Outputs, items: Items) -> list[Tensor]:
    """Returns the states `[n, H]` of the items by layer, of an item that is an example the mean of its tokens."""
    if items.index is not None:  # Tokens, of an encoder-decoder those of its targets.
        layers = (outputs.decoder or outputs).hidden_states or ()
        return [states.flatten(0, 1)[items.index].float() for states in layers]
    mask = items["attention_mask"].unsqueeze(-1)
    means = [
        (states.float() * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1) for states in outputs.hidden_states or ()
    ]
    return [states[items.row] for states in means]


def _count_tokens(subject: Subject, split: str, rows: np.ndarray) -> Tensor:
    """Returns how often each token occurs in the examples, `[V]`."""
    counts = torch.zeros(int(subject.model.config.vocab_size), dtype=torch.long)
    for batch in batches(subject, split, rows):
        tokens = batch["input_ids"][batch["attention_mask"].bool()]
        counts += torch.bincount(tokens, minlength=len(counts))
    return counts
