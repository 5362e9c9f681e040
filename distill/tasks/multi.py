"""Several tasks that one student learns with a head each; a batch holds examples of one of them.

>>> from distill.tasks import Classification, MultiTask
>>> task = MultiTask(tasks={"a": Classification(text="text"), "b": Classification(text=["one", "two"])})
>>> task.name, list(task.tasks)
('multi', ['a', 'b'])
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from distill.contracts import TASK_ID, Batch, Items, Outputs, Scores, Task
from distill.edge.overview import Overview, Shown, describe_call
from distill.errors import OptionError, UserError
from distill.options import check_arguments, show_value
from distill.tasks.scoring import Scoring

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
        from distill.models.heads import heads_of

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
