"""Several tasks that one student learns with a head each; a batch holds examples of one of them.

>>> from distill.tasks import Classification, MultiTask
>>> task = MultiTask(tasks={"a": Classification(text="text"), "b": Classification(text=["one", "two"])})
>>> task.name, list(task.tasks)
('multi', ['a', 'b'])
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from distill.contracts import TASK_ID, Batch, Items, Outputs, Scores, Task
from distill.errors import OptionError, UserError
from distill.options import check_arguments, show_value
from distill.tasks.scoring import Scoring

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

MEAN = "mean"  # The metric of all tasks together.
SAMPLINGS = {"size": 1.0, "even": 0.0}
SEVERAL = "at least two tasks, as in [sst2,mrpc] without a sweep over it"
Tasks = Annotated[Mapping[str, Any], Field(description=SEVERAL)]
Sampling = Annotated[
    Literal["size", "even"] | Annotated[float, Field(ge=0, le=1)],
    Field(description="size, even, or a number from 0 to 1, the exponent of the tasks' sizes"),
]
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class MeanScores(Scoring):
    """The metrics of several tasks as `task/metric`, and `mean`, the mean of the tasks' own metrics.

    Args:
        tasks: the tasks by name.
    """

    names = (MEAN,)

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self.tasks = tasks

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """The columns of the task that the batch belongs to."""
        return task_of(self.tasks, items.batch)[1].scoring.score(outputs, items)

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """The values of the decoder of each task by its name."""
        return {name: task.scoring.fit_decoder(of_task) for name, task, of_task in self._parts(scores)}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The metrics of the tasks that have this split; without `mean` if one of them has not."""
        values = dict[str, dict[str, float]]()
        for name, task, of_task in self._parts(scores):
            values[name] = task.scoring.metrics(replace(of_task, decoding=scores.decoding.get(name, of_task.decoding)))
        metrics = {f"{name}/{metric}": value for name, of_task in values.items() for metric, value in of_task.items()}
        if len(values) < len(self.tasks):
            return metrics
        own = [values[name][task.scoring.metric] for name, task in self.tasks.items()]
        return {MEAN: float(np.mean(own)), **metrics}

    def _parts(self, scores: Scores) -> list[tuple[str, Task, Scores]]:
        """Returns the name, the task and the scores of each task that the scores have."""
        every = list(self.tasks.items())
        return [(*every[number], of_task) for number, of_task in sorted(scores.by_task.items())]


def task_of(tasks: Mapping[str, Task], batch: Batch) -> tuple[str, Task]:
    """Returns the task of a batch with its name."""
    return list(tasks.items())[int(batch[TASK_ID][0])]


class MultiTask:
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

    kind = "multi"
    over_vocabulary = False
    builtin = False

    @check_arguments
    def __init__(self, *, tasks: Tasks, sampling: Sampling = "size", name: str = "multi") -> None:
        if len(tasks) < 2:
            raise OptionError("tasks", show_value(list(tasks)), SEVERAL)
        for task_name, task in tasks.items():
            _check_part(task_name, task)
        self.tasks: dict[str, Task] = dict(tasks)
        self.scoring = MeanScores(self.tasks)
        self.sampling = SAMPLINGS[sampling] if isinstance(sampling, str) else sampling
        self.name = name

    def select(self, batch: Batch) -> Items:
        return task_of(self.tasks, batch)[1].select(batch)

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the batch's head of `model`, as `models.heads.SeveralHeads` has it."""
        from distill.models.heads import heads_of

        name, task = task_of(self.tasks, batch)
        return task.run(heads_of(model)[name], batch, items, needs)

    def supervised_terms(self) -> dict[str, Any]:
        """The terms of all tasks, which the items of a batch choose from by what they have."""
        return {key: term for task in self.tasks.values() for key, term in task.supervised_terms().items()}


def _check_part(name: str, task: Task) -> None:
    """Raises an error for a task that cannot be learned beside others."""
    if not NAME.fullmatch(name):
        raise OptionError("tasks", show_value(name), "names of letters, digits, _ and -")
    if task.over_vocabulary or task.likelihood == "vector":
        raise UserError(f"task {name} ({task.kind}) cannot be one of several: its students learn nothing else")
    if task.scoring.selects == "min":
        raise UserError(f"task {name} cannot be one of several: less of its metric {task.scoring.metric} is better")
