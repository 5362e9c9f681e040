"""Iterative pruning: heads, inner neurons and layers are removed in steps, with distillation between them.

The importance of what is left is measured anew before each step, on the student that the steps before have trained
(arXiv 1905.10650, equation 2; there the heads are pruned without any training).
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DistilBertConfig, PreTrainedModel

from distill.chain.plan import Plan, Student
from distill.chain.task_run import TaskRun
from distill.contracts import Data, Loader, Task
from distill.errors import UserError
from distill.losses.term import EncoderSize
from distill.models import checks
from distill.models.layers import list_layers
from distill.models.loading import without_warnings
from distill.models.narrowing import Importance, Sizes, narrow, share_out, take_strongest
from distill.records.record import Run
from distill.storage.files import atomic_directory
from distill.training.evaluate import evaluate_splits, split_metrics

# Of the students of the steps, in that of the run, and in it those of each step.
DIRECTORY, STUDENT, CHECKPOINTS = "pruning", "student", "checkpoints"


@dataclass(frozen=True)
class Pruning:
    """The options of iterative pruning.

    Args:
        steps: number of removals.
        share: of the training's steps, in each training between two removals.
    """

    steps: int
    share: float

    @classmethod
    def of(cls, student: Student) -> "Pruning | None":
        """Returns the options of a student; None for one that is not pruned in steps."""
        if student.option("prune") is None:
            return None
        return cls(student.option("prune_steps"), student.option("prune_share"))

    @property
    def extra(self) -> float:
        """The steps of all trainings between removals, as a share of those of the student's training."""
        return (self.steps - 1) * self.share

    def describe(self) -> str:
        """Describes the pruning in the summary before training."""
        return f"in {self.steps} steps, with {self.share:.0%} of the training between two of them"


@dataclass(frozen=True)
class Schedule:
    """What is left after each step, from the sizes of the whole student and of the last one.

    Heads and inner neurons of an average layer, and the number of layers, fall evenly. The layers of the last student
    stay in every step; of the others, evenly spaced ones.

    Args:
        layers: those of the teacher that the last student has.
        whole: the sizes of the student with every layer.
        last: heads and inner neurons of all layers of the last student.
        steps: number of removals.
    """

    layers: Sequence[int]
    whole: Sizes
    last: tuple[int, int]
    steps: int

    def depth(self, step: int) -> int:
        """Returns the number of layers after a step, counted from 1."""
        total, depth = len(self.whole.heads), len(self.layers)
        return round(total - (total - depth) * step / self.steps)

    def keep_layers(self, current: Sequence[int], step: int) -> list[int]:
        """Returns those of the teacher's layers `current` that are left after a step."""
        others = [layer for layer in current if layer not in self.layers]
        number = self.depth(step) - len(self.layers)
        kept = {others[index * len(others) // number] for index in range(number)}
        return [layer for layer in current if layer in self.layers or layer in kept]

    def count(self, scores: Sequence[Any], layers: Sequence[int], step: int, *, kind: int) -> list[int]:
        """Returns how many heads (`kind` 0) or inner neurons (1) each layer has after a step.

        Args:
            scores: the importance of those of each layer.
            layers: those of the teacher that the student then has.
        """
        whole = sum((self.whole.heads, self.whole.neurons)[kind]) / len(self.whole.heads)
        mean = whole + (self.last[kind] / len(self.layers) - whole) * step / self.steps
        counts: dict[int, int] = {}
        for group in ([layer in self.layers for layer in layers], [layer not in self.layers for layer in layers]):
            places = [place for place, is_in in enumerate(group) if is_in]
            if places:
                of_group = [scores[place] for place in places]
                total = min(round(mean * len(places)), sum(map(len, of_group)))
                counts |= dict(zip(places, share_out(of_group, max(total, len(places))), strict=True))
        return [counts[place] for place in range(len(layers))]

    def remove(self, student: PreTrainedModel, importance: Importance, step: int) -> PreTrainedModel:
        """Returns the student after a step."""
        current: list[int] = student.config.teacher_layers
        layers = self.keep_layers(current, step)
        places = [current.index(layer) for layer in layers]
        left = importance.of_layers(places)
        heads = self.count(left.heads, layers, step, kind=0)
        neurons = self.count(left.neurons, layers, step, kind=1)
        smaller = narrow(
            student, layers=places, heads=take_strongest(left.heads, heads),
            neurons=take_strongest(left.neurons, neurons),
        )  # fmt: skip
        smaller.config.teacher_layers = layers
        return smaller


def create_schedule(
    student: Student, last: PreTrainedModel, teacher: PreTrainedModel, task: Task, data: Data
) -> tuple[Schedule, PreTrainedModel]:
    """Returns the schedule that ends with the sizes of the student `last`, and the student that it begins with.

    Raises:
        UserError: for a student that is not pruned in steps, because it is no DistilBERT or loses nothing.
    """
    pruning = Pruning.of(student)
    assert pruning is not None
    everything = {"layers": list(range(teacher.config.num_hidden_layers)), "depth": None, "heads": None, "ffn": None}
    whole = Student(student.name, partial(student.build, **everything)).make(teacher, task, data)
    if not isinstance(whole.config, DistilBertConfig):
        raise UserError(
            "student.prune=iterative is for a DistilBERT, and the student of this teacher is a "
            f"{type(whole).__name__}: leave it out, or take a BERT as teacher"
        )
    sizes, whole_sizes = Sizes.of(last), Sizes.of(whole)
    if sizes == whole_sizes:
        raise UserError("student.prune=iterative removes nothing: give student.heads, student.ffn or fewer layers")
    totals = (sum(sizes.heads), sum(sizes.neurons))
    return Schedule(sorted(last.config.teacher_layers), whole_sizes, totals, pruning.steps), whole


def check_pruning(
    student: Student, last: PreTrainedModel, teacher: PreTrainedModel, plan: Plan, task: Task, data: Data
) -> None:
    """Raises UserError for a pruning that cannot be, or whose students a term of the objective cannot teach."""
    if Pruning.of(student) is None:
        return
    if len(plan.tasks) > 1:
        raise UserError(f"student.prune is for one task, and task={plan.tasks.name} has several: leave it out")
    if not data.terms:
        raise UserError(
            f"student.prune=iterative ranks heads and inner neurons by the loss on labels, and the texts of task "
            f"{task.info.name} have none: leave it out"
        )
    schedule, _ = create_schedule(student, last, teacher, task, data)
    width = int(last.config.hidden_size)
    for step in range(1, schedule.steps + 1):  # Heads differ by layer, so that none can be compared.
        plan.objective.check_sizes(EncoderSize(width, schedule.depth(step)), checks.encoder_size(teacher))


@dataclass(frozen=True)
class Pruner:
    """Prunes the student of one seed, and records the size and the metric of every step in run.json.

    Args:
        student: names the student and its options.
        last: a student of the sizes at the end.
        dev: the loader of dev.
        train: trains a student between two removals, in a directory and with a title.
        importance: that of the teacher's heads and inner neurons, by which the first ones are removed.
    """

    student: Student
    last: PreTrainedModel
    task_run: TaskRun
    dev: Loader
    train: Callable[[PreTrainedModel, Path, str], None]
    importance: Callable[[], Importance]

    def run(self) -> PreTrainedModel:
        """Returns the student after the last removal, before the training that follows it.

        A resumed run goes on with the last student that was saved.
        """
        task_run = self.task_run
        teacher = task_run.teacher.model
        schedule, student = create_schedule(self.student, self.last, teacher, task_run.task, task_run.data)
        size = _count_in_layers(student)
        rows: list[dict[str, Any]] = list(task_run.run.record.get("pruning") or []) or [self._describe_teacher(teacher)]
        importance = self.importance
        for step in range(1, schedule.steps + 1):
            directory = task_run.run.directory / DIRECTORY / str(step)
            if step < len(rows):
                student = self._load(directory)
            else:
                student = schedule.remove(student, importance(), step)
                with atomic_directory(directory / STUDENT) as temporary:
                    student.save_pretrained(temporary)
                rows.append(_describe(student, step, whole=size) | {"before": self._score(student), "after": None})
                task_run.run.update(pruning=rows)
            if step < schedule.steps and rows[step]["after"] is None:
                self.train(student, directory, f"pruning {step}/{schedule.steps}")
                rows[step]["after"] = self._score(student)
                with atomic_directory(directory / STUDENT) as temporary:
                    student.save_pretrained(temporary)
                task_run.run.update(pruning=rows)
                shutil.rmtree(directory / CHECKPOINTS, ignore_errors=True)
            importance = partial(task_run.rank, student)
        return student.train()

    def load_last(self) -> PreTrainedModel:
        """Returns the student after the last removal of an earlier `run`."""
        pruning = Pruning.of(self.student)
        assert pruning is not None
        return self._load(self.task_run.run.directory / DIRECTORY / str(pruning.steps))

    def _describe_teacher(self, teacher: PreTrainedModel) -> dict[str, Any]:
        sizes, metric = Sizes.of(teacher), self.task_run.teacher.metrics.get(self.task_run.scoring.metric)
        return {
            "step": 0, "layers": list(range(len(sizes.heads))), "heads": sizes.heads, "neurons": sizes.neurons,
            "removed": 0.0, "before": None, "after": metric,
        }  # fmt: skip

    def _load(self, directory: Path) -> PreTrainedModel:
        auto_class = getattr(transformers, self.task_run.task.info.auto_class)
        with without_warnings():
            student: PreTrainedModel = auto_class.from_pretrained(directory / STUDENT, dtype=torch.float32)
        return student

    def _score(self, student: PreTrainedModel) -> float:
        """Returns the metric on dev."""
        scoring = self.task_run.scoring
        scores = evaluate_splits(student.cpu(), self.task_run.task, scoring, {"dev": self.dev})
        return float(split_metrics(scoring, scores)[scoring.metric])


def record_end(run: Run, metric: float) -> None:
    """Records the metric on dev of the trained student after the last removal."""
    rows = run.record.get("pruning")
    if rows:
        run.update(pruning=[*rows[:-1], rows[-1] | {"after": metric}])


def _describe(student: PreTrainedModel, step: int, *, whole: int) -> dict[str, Any]:
    """Returns the sizes of a student, and the share of the weights in the layers that was removed."""
    sizes, removed = Sizes.of(student), 1 - _count_in_layers(student) / whole
    return {
        "step": step, "layers": student.config.teacher_layers, "heads": sizes.heads, "neurons": sizes.neurons,
        "removed": removed,
    }  # fmt: skip


def _count_in_layers(student: PreTrainedModel) -> int:
    return sum(parameter.numel() for layer in list_layers(student) for parameter in layer.parameters())
