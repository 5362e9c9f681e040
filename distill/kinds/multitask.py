"""Several tasks that one student learns with a head each, and batches that hold examples of one of them.

Several tasks that one student learns with a head each; a batch holds examples of one of them.

>>> from distill.kinds import Classification, MultiTask
>>> task = MultiTask(tasks={"a": Classification(text="text"), "b": Classification(text=["one", "two"])})
>>> task.name, list(task.tasks)
('multi', ['a', 'b'])
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack, cast

import numpy as np
import torch
from pydantic import Field
from torch.utils.data import Sampler

from distill.core.console import print_notice
from distill.core.contracts import (
    TASK_ID,
    Batch,
    BatchOptions,
    EncodedSplits,
    Examples,
    Items,
    Loader,
    Outputs,
    Scores,
    Task,
)
from distill.core.errors import OptionError, Overview, Shown, UserError, describe_call
from distill.core.options import check_arguments, show_value
from distill.data import batches as batching
from distill.data.batches import CollatedBatch, LengthBuckets, MixedBuckets, Step, labelled_only
from distill.data.sources import text_key
from distill.data.splits import Split
from distill.kinds.scoring import Scoring

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


MEAN = "mean"  # The metric of all tasks together.
SAMPLINGS = {"size": 1.0, "even": 0.0}
SEVERAL = "at least two tasks, as in [sst2,mrpc] without a sweep over it"
NamedTasks = Annotated[Mapping[str, Any], Field(description=SEVERAL)]
Sampling = Annotated[
    Literal["size", "even"] | Annotated[float, Field(ge=0, le=1)],
    Field(description="size, even, or a number from 0 to 1, the exponent of the tasks' sizes"),
]
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class MeanScores(Scoring):
    """The metrics of several tasks as `task/metric`, and `mean`, the mean of the tasks' own metrics.

    Args:
        scorings: those of the tasks by name, in the order of the tasks' numbers.
    """

    names = (MEAN,)

    def __init__(self, scorings: Mapping[str, Scoring]) -> None:
        self.scorings = scorings

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """The columns of the task that the batch belongs to."""
        return list(self.scorings.values())[task_number(items.batch)].score(outputs, items)

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """The values of the decoder of each task by its name."""
        return {name: scoring.fit_decoder(of_task) for name, scoring, of_task in self._parts(scores)}

    def held_out(self, scores: Scores) -> Scores:
        """The scores of each task, none of whose examples is decoded with values that it chose."""
        every = list(self.scorings.values())
        by_task = {number: every[number].held_out(of_task) for number, of_task in scores.by_task.items()}
        return replace(scores, by_task=by_task)

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The metrics of the tasks that have this split; without `mean` if one of them has not."""
        values = dict[str, dict[str, float]]()
        for name, scoring, of_task in self._parts(scores):
            values[name] = scoring.metrics(replace(of_task, decoding=scores.decoding.get(name, of_task.decoding)))
        metrics = {f"{name}/{metric}": value for name, of_task in values.items() for metric, value in of_task.items()}
        if len(values) < len(self.scorings):
            return metrics
        own = [values[name][scoring.metric] for name, scoring in self.scorings.items()]
        return {MEAN: float(np.mean(own)), **metrics}

    def _parts(self, scores: Scores) -> list[tuple[str, Scoring, Scores]]:
        """Returns the name, the scoring and the scores of each task that the scores have."""
        every = list(self.scorings.items())
        return [(*every[number], of_task) for number, of_task in sorted(scores.by_task.items())]


def join_scorings(scorings: Mapping[str, Scoring]) -> Scoring:
    """Returns the scoring of these tasks together, that of a single one as it is."""
    return MeanScores(scorings) if len(scorings) > 1 else next(iter(scorings.values()))


def task_number(batch: Batch) -> int:
    """Returns the number of the task that a batch belongs to, 0 where there is one."""
    return int(batch[TASK_ID][0]) if TASK_ID in batch else 0


class Tasks(Mapping[str, Task]):
    """The tasks of a run by name. A batch holds examples of one of them.

    Args:
        tasks: in the order of their numbers. A single one has the empty name.
        name: names the tasks together in records and directories.
        kind: names them in run.json.
        sampling: exponent of the tasks' sizes in their shares of an epoch's steps, as in `data.several`.
    """

    def __init__(self, tasks: Mapping[str, Task], *, name: str, kind: str, sampling: float = 1.0) -> None:
        self.tasks, self.name, self.kind, self.sampling = dict(tasks), name, kind, sampling

    @classmethod
    def of(cls, task: "Task | Tasks") -> "Tasks":
        """Returns the tasks of a run on several, or on this one."""
        if isinstance(task, Tasks):
            return task
        return Tasks({"": task}, name=task.info.name, kind=task.info.kind)

    def __getitem__(self, name: str) -> Task:
        return self.tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def select(self, batch: Batch) -> Items:
        return list(self.values())[task_number(batch)].select(batch)

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the batch's head of `model`, as `models.heads` has it."""
        from distill.models.wrappers import heads_of

        name, task = list(self.items())[task_number(batch)]
        return task.run(heads_of(model)[name], batch, items, needs)


class MultiTask(Shown, Tasks):
    """Several tasks with a head each on one encoder. What concerns one task alone is asked of that task.

    Args:
        tasks: at least two tasks by name. Models, bundles and records of a task are named after it.
        sampling: the steps of an epoch that each task gets: `size` for one pass over the examples of all tasks, `even`
            for as many steps of each task, or the exponent of the tasks' sizes, 1 for `size` and 0 for `even`.
        name: names the tasks together in records and directories.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for a task that cannot be learned beside others.
    """

    @check_arguments
    def __init__(self, *, tasks: NamedTasks, sampling: Sampling = "size", name: str = "multi") -> None:
        if len(tasks) < 2:
            raise OptionError("tasks", show_value(list(tasks)), SEVERAL)
        for task_name, task in tasks.items():
            _check_part(task_name, task)
        exponent = SAMPLINGS[sampling] if isinstance(sampling, str) else sampling
        super().__init__(tasks, name=name, kind="multi", sampling=exponent)

    def __repr__(self) -> str:
        return describe_call("MultiTask", self.tasks, name=self.name)

    def overview(self) -> Overview:
        """Returns a row for each task, with its kind and its longest input."""
        rows = [(name, task.info.kind, f"{task.info.max_length} tokens") for name, task in self.items()]
        return Overview(f"MultiTask {self.name}", rows, header=("task", "kind", "longest input"))


def _check_part(name: str, task: Task) -> None:
    """Raises an error for a task that cannot be learned beside others."""
    if not NAME.fullmatch(name):
        raise OptionError("tasks", show_value(name), "names of letters, digits, _ and -")
    if task.info.raw_text or task.info.likelihood == "vector":
        raise UserError(f"task {name} ({task.info.kind}) cannot be one of several: its students learn nothing else")


class SeveralExamples:
    """One split of several tasks. An index is a list of examples of one task, and a result a batch of it.

    The examples of a task have consecutive indices, in the order of the tasks' numbers. In a batch `example_id` is
    counted within the task, and `TASK_ID` is its number.

    Args:
        parts: the examples of each task that has the split, by its number.
        sampling: exponent of the tasks' sizes in their shares of an epoch's steps: with 1 an epoch shows every example
            once, and with 0 every task has as many steps as the others.
    """

    visits: int | None = 1
    classes_per_item: float | None = None

    def __init__(self, parts: Mapping[int, Examples], *, sampling: float = 1.0) -> None:
        self.parts, self.sampling = dict(sorted(parts.items())), sampling
        every = list(self.parts.values())
        self.lengths, self.tokens, self.sequences = (
            np.concatenate([getattr(part, name) for part in every]) for name in ("lengths", "tokens", "sequences")
        )
        self.starts = np.cumsum([0, *map(len, every)])  # Of each part, and the end of the last one.
        self.truncated = sum(part.truncated for part in every)
        self.digest = hashlib.sha256(json.dumps([part.digest for part in every]).encode()).hexdigest()
        self.items_per_example = sum(part.items_per_example * len(part) for part in every) / len(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, indices: Sequence[int]) -> CollatedBatch:
        chosen = np.asarray(indices)
        place = int(np.searchsorted(self.starts, chosen[0], side="right")) - 1
        number, part = list(self.parts.items())[place]
        batch = dict(part[(chosen - self.starts[place]).tolist()])
        return {**batch, TASK_ID: torch.full((len(chosen),), number)}

    def pieces(self) -> np.ndarray | None:
        """Returns the ids of all tokens of the batches of all tasks, as `Examples`."""
        return batching.join_pieces(self.parts.values())

    def training_loader(self, *, steps: int | None, **batches: Unpack[BatchOptions]) -> Loader:
        """Returns a loader of optimizer steps of one task each; `batches` are arguments of `LengthBuckets`."""
        samplers = [part.training_loader(steps=steps, **batches).batch_sampler for part in self.parts.values()]
        buckets = cast("list[LengthBuckets | MixedBuckets]", samplers)
        steps_of_tasks = SeveralBuckets(
            buckets, self.starts.tolist(), lengths=self.lengths, sampling=self.sampling, seed=batches.get("seed", 0)
        )
        return batching.loader(self, steps_of_tasks)

    def evaluation_loader(self) -> Loader:
        """Returns a loader of the whole split, task by task, the longest examples of each first."""
        every = zip(self.starts.tolist(), self.parts.values(), strict=False)
        steps = [
            [[start + index for index in micro_batch]]
            for start, part in every
            for micro_batch in batching.scoring_steps(part.lengths)
        ]
        return batching.loader(self, steps)

    def labelled(self) -> "SeveralExamples":
        """Returns the examples without those that only a teacher labels."""
        parts = {number: cast(Examples, labelled_only({"train": part})["train"]) for number, part in self.parts.items()}
        return SeveralExamples(parts, sampling=self.sampling)


class SeveralBuckets(Sampler[Step]):
    """Samples the steps of an epoch, each of which is a step of one task, in random order.

    An epoch has as many steps as one pass over all tasks. Each task gets its share of them, and goes on in the next
    epoch where it stopped. The steps follow from the seed and the epoch alone.

    Args:
        samplers: the steps of each task.
        starts: the index of the first example of each task.
        lengths: of all examples in tokens, `[N]`.
        sampling: as in `SeveralExamples`.
    """

    def __init__(
        self,
        samplers: "Sequence[LengthBuckets | MixedBuckets]",
        starts: Sequence[int],
        *,
        lengths: np.ndarray,
        sampling: float,
        seed: int = 0,
    ) -> None:
        self.samplers, self.starts, self.lengths, self.seed = samplers, starts, lengths, seed
        self.quotas = share_steps([len(steps) for steps in samplers], sampling)
        self.rank, self.skip, self.epoch = 0, 0, 0
        self.sampler = self  # Lightning calls its `set_epoch`.

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(self.quotas)

    def __iter__(self) -> Iterator[Step]:
        steps = self._sample_epoch()
        first, self.skip = self.skip, 0
        yield from (step for _, step in steps[first:])

    def indices(self) -> np.ndarray:
        """Returns the examples of the epoch; one that is shown twice occurs twice."""
        return np.concatenate([micro_batch for _, step in self._sample_epoch() for micro_batch in step])

    def padding(self) -> float:
        """Returns the share of padding among the tokens of an epoch."""
        tokens = computed = 0
        for task, step in self._sample_epoch():
            for lengths in (self.lengths[micro_batch] for micro_batch in step):
                tokens += int(lengths.sum())
                computed += len(lengths) * batching.padded_length(lengths.max(), self.samplers[task].longest)
        return 1 - tokens / computed

    def median_batch(self, size: int) -> list[int]:
        """Returns `size` examples of median length of the task with the most steps."""
        task = int(np.argmax(self.quotas))
        return [self.starts[task] + index for index in self.samplers[task].median_batch(size)]

    def epochs(self, steps: int) -> list[float]:
        """Returns the number of passes over the examples of each task in so many steps."""
        return [
            steps * quota / (len(self) * len(sampler))
            for quota, sampler in zip(self.quotas, self.samplers, strict=True)
        ]

    def _sample_epoch(self) -> list[tuple[int, Step]]:
        """Returns the steps of the epoch, each with the place of its task."""
        queues = [iter(self._sample_task(task)) for task in range(len(self.samplers))]
        order = np.repeat(np.arange(len(queues)), self.quotas)
        order = np.random.default_rng([self.seed, 3, self.epoch]).permutation(order)
        return [(task, next(queues[task])) for task in order.tolist()]

    def _sample_task(self, task: int) -> list[Step]:
        """Returns the steps of a task in the epoch, from as many passes over its examples as they take."""
        sampler, quota, steps = self.samplers[task], self.quotas[task], list[Step]()
        while len(steps) < quota:
            number, begin = divmod(self.epoch * quota + len(steps), len(sampler))
            sampler.set_epoch(number)
            steps += list(sampler)[begin : begin + quota - len(steps)]
        start = self.starts[task]
        return [[[start + index for index in micro_batch] for micro_batch in step] for step in steps]


def share_steps(steps: Sequence[int], sampling: float) -> list[int]:
    """Returns the steps of each task in an epoch, whose sum is that of `steps`, one pass over each task.

    They are in proportion to `steps ** sampling`, rounded by the largest remainders. With an exponent of at most 1 the
    smallest task has at least as many as in one pass.

    >>> share_steps([90, 10], 1.0), share_steps([90, 10], 0.0), share_steps([90, 10], 0.5)
    ([90, 10], [50, 50], [75, 25])
    """
    weights = np.asarray(steps, dtype=np.float64) ** sampling
    exact = sum(steps) * weights / weights.sum()
    quotas = np.floor(exact + 1e-9).astype(int)
    remaining = sum(steps) - int(quotas.sum())
    quotas[np.argsort(quotas - exact, kind="stable")[:remaining]] += 1
    return [int(quota) for quota in quotas]


def join_splits(parts: Sequence[EncodedSplits], *, sampling: float) -> EncodedSplits:
    """Returns the splits of several tasks as one mapping, `train` and dev first; those of one task as they are."""
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(["train", "dev", *(name for part in parts for name in part)])
    return {
        name: SeveralExamples(
            {number: cast(Examples, part[name]) for number, part in enumerate(parts) if name in part}, sampling=sampling
        )
        for name in names
    }


def report_shared_texts(splits: Mapping[str, Mapping[str, Split]]) -> None:
    """Prints how many rows of dev of a task have the text of a row that another task trains on.

    Args:
        splits: of each task by its name.
    """
    keys = {
        name: {split: list(map(text_key, of[split].compared_texts())) for split in ("train", "dev")}
        for name, of in splits.items()
    }
    for name, of_task in keys.items():
        for other, of_other in keys.items():
            if other == name:
                continue
            trained = set(of_other["train"])
            if shared := sum(key in trained for key in of_task["dev"]):
                print_notice(
                    f"{shared:,} of {len(of_task['dev']):,} rows of dev of task {name} have the text of a row that "
                    f"task {other} trains on, so that the scores of {name} may be too high: give train and dev of "
                    "both tasks as files that divide the texts alike"
                )


def all_task_loaders(
    examples: EncodedSplits, *, steps: int | None = None, **batches: Unpack[BatchOptions]
) -> dict[str, Loader]:
    """Returns the loaders of `batches.all_loaders`, also for the splits of several tasks."""
    if not isinstance(examples["train"], SeveralExamples):
        return batching.all_loaders(examples, steps=steps, **batches)
    scored = {name: split for name, split in examples.items() if isinstance(split, SeveralExamples) and name != "train"}
    train = {"train": examples["train"].training_loader(steps=steps, **batches)}
    return {**train, **{name: split.evaluation_loader() for name, split in scored.items()}}


def without_unlabelled(examples: EncodedSplits) -> EncodedSplits:
    """Returns the splits of one task or several without the texts that only a teacher labels."""
    train = examples["train"]
    if not isinstance(train, SeveralExamples):
        return labelled_only(examples)
    labelled = train.labelled()
    return examples if labelled.parts == train.parts else {**examples, "train": labelled}


def epochs_of_tasks(train: Loader, steps: int) -> list[float]:
    """Returns the number of passes of a training of so many steps over the examples of each of its tasks."""
    sampler = train.batch_sampler
    return sampler.epochs(steps) if isinstance(sampler, SeveralBuckets) else [steps / len(train)]
