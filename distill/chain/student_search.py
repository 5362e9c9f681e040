"""Searches over the parts of a student: a general stage, the teacher's layers, and iterative pruning.

Chooses the teacher's layers that a student starts from, by students whose last linear layer is fitted, not trained. The
states of a candidate are computed for some training examples. A ridge regression from the inputs of its last linear
layer to the teacher's logits replaces the training, and the share of their variance that it explains on other examples
ranks the candidates. The regression of the best one is the head that its training starts from.

Iterative pruning: heads, inner neurons and layers are removed in steps, with distillation between them. The importance
of what is left is measured anew before each step, on the student that the steps before have trained (arXiv 1905.10650,
equation 2; there the heads are pruned without any training).
"""

import itertools
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.chain.plan import Plan, Student
from distill.chain.task_run import TaskRun
from distill.core.console import print_line
from distill.core.contracts import Batch, Data, Examples, Items, Loader, Task
from distill.core.errors import OptionError, UserError
from distill.core.files import JsonObject, atomic_directory
from distill.core.options import show_value
from distill.data.batches import labelled_only
from distill.kinds.multitask import all_task_loaders
from distill.losses.term import EncoderSize
from distill.models import compatibility
from distill.models.loading import find_head, load_saved
from distill.models.surgery.embeddings import fit_ridge
from distill.models.surgery.initialization import GeneralSettings, names_general
from distill.models.surgery.layers import Importance, Sizes, list_layers, narrow, share_out, take_strongest
from distill.models.vectors import save_encoder
from distill.records.run import Run
from distill.teachers.language_modeling import GeneralStage
from distill.teachers.source import TeacherSource
from distill.training.hyperparameters import AUTO
from distill.training.module import evaluate_splits, split_metrics


def starts_generally(student: Student) -> bool:
    """Returns whether a student starts from a general stage.

    Raises:
        UserError: for a student without layers that could learn in one.
    """
    if not names_general(student.option("init")):
        return False
    if not student.has_option("general"):
        raise UserError(
            f"student.init=general trains the layers of a student on plain text, and student {student.name} has none "
            "of the teacher's: take +student=distilbert or +student=layers"
        )
    return True


def check_general(student: Student, source: TeacherSource, task: Task, data: Data, plan: Plan) -> None:
    """Raises UserError for a general stage that cannot be, before anything is trained."""
    if starts_generally(student):
        _open(student, source, task, data, plan)


def start_generally(student: Student, task_run: TaskRun, run: Run) -> Student:
    """Returns the student with the changes of its general stage, which is trained unless it is in the cache.

    They are added to the layers of the teacher that has been fine-tuned, so that the student has what that one learned
    for its task too: the sum of two changes of the same weights (arXiv 2212.04089).

    The field `general` of run.json has the record of the training; in a dry run, which trains nothing, what is planned.
    """
    if not starts_generally(student):
        return student
    plan = task_run.plan
    stage = _open(student, task_run.origins.source, task_run.task, task_run.data, plan)
    if plan.dry_run:
        run.update(general={"plan": stage.plan()})
        return student
    stage.train()
    run.update(general=stage.record() | {"entry": stage.directory.name})
    return replace(student, encoder_changes=stage.load_changes())


def describe_general(record: JsonObject) -> str:
    """Describes the stage in the summary before training."""
    if "plan" in record:
        return str(record["plan"])
    before, after = (record["distance"][name] for name in ("before", "after"))
    return (
        f"{record['steps']:,} steps on {record['text']}, once: its distance from the teacher on other text fell from "
        f"{before:.3g} to {after:.3g}; {record['entry']} in the cache"
    )


def _open(student: Student, source: TeacherSource, task: Task, data: Data, plan: Plan) -> GeneralStage:
    """Returns the stage of a student.

    Raises:
        UserError: for a teacher whose weights before its fine-tuning are others, and as `GeneralStage`.
    """
    if source.adaptation is not None:
        raise UserError(
            f"student.init=general learns from the teacher before its fine-tuning, and adapt={source.adaptation.name} "
            "changes that one for its task: leave out one of them"
        )

    if source.weights.precision == AUTO:
        raise OptionError("teacher.precision", AUTO, "float32 or bfloat16 with student.init=general")
    build, settings = partial(student.build_from, task=task), GeneralSettings.of(student.option("general"))
    return GeneralStage(
        source.weights, build, settings, data, accelerator=plan.trainer.accelerator, cache_dir=plan.cache_dir
    )


SEARCH = "search"  # Among the names of the option `init`.
MOST = 100  # Candidates that are all tried; of more, layers are left out one after another.
EXAMPLES = 1_000  # Of train, at most; the regression is fitted to every second one.
BATCH = 50
NOTHING = frozenset[str]()  # Outputs besides logits.
DROPOUT = 0.2  # Of the features in the training that follows, whose noise large weights would multiply.

Layers = tuple[int, ...]


class Fitted(NamedTuple):
    """The head of a candidate, and its quality.

    Attributes:
        score: share of the variance of the teacher's logits that it explains on other examples.
        head: weight `[C, F]` and bias `[C]`, None for vectors, which have no head.
    """

    score: float
    head: tuple[Tensor, Tensor] | None


def is_searched(student: Student) -> bool:
    """Returns whether the student's layers are chosen by this search.

    Raises:
        UserError: for layers that the user has chosen.
    """
    names = student.option("init")
    if names is None or SEARCH not in ([names] if isinstance(names, str) else names):
        return False
    layers = student.option("layers")
    if layers != "alternate":
        raise UserError(
            f"student.init=search chooses the layers, and student.layers={show_value(layers)} gives them: leave out one"
        )
    return True


def search_layers(student: Student, task_run: TaskRun) -> Student:
    """Returns the student that starts from the best layers, with a fitted head, or the student itself without a search.

    The result stands in the `layer_search` of run.json, so that a resumed run does not choose again.

    Raises:
        UserError: for a task whose outputs are not those of one linear layer at its items.
    """
    if not is_searched(student):
        return student
    search = _Search.begin(student, task_run)
    earlier = task_run.run.record.get("layer_search")
    if earlier is not None:
        return search.start_from(tuple(earlier["chosen"]))
    total, usual = task_run.teacher.model.config.num_hidden_layers, search.usual
    is_greedy = math.comb(total, len(usual)) > MOST
    print_line(f"Trying {'' if is_greedy else f'all {math.comb(total, len(usual))} '}subsets of {len(usual)} layers")
    found = {usual: search.score(usual)}
    if is_greedy:
        found |= leave_out(total, len(usual), search.score)
    else:
        found |= {layers: search.score(layers) for layers in itertools.combinations(range(total), len(usual))}
    of_depth = {layers: score for layers, score in found.items() if len(layers) == len(usual)}
    chosen = max(of_depth, key=lambda layers: of_depth[layers])
    best = search.start_from(chosen)
    starts = {"chosen": best, "alternate": student, "alternate_fitted": search.start_from(usual)}
    task_run.run.update(layer_search={
        "chosen": list(chosen), "score": found[chosen], "alternate": list(usual), "alternate_score": found[usual],
        "tried": len(found), "greedy": is_greedy, "examples": len(search.targets),
        "dev": {name: search.evaluate(start) for name, start in starts.items()},
    })  # fmt: skip
    return best


def leave_out(total: int, depth: int, score: Callable[[Layers], float]) -> dict[Layers, float]:
    """Leaves out the layer whose loss costs least until `depth` are left, and returns the scores of all candidates."""
    current, found = tuple(range(total)), dict[Layers, float]()
    while len(current) > depth:
        shorter = {layers: score(layers) for layers in itertools.combinations(current, len(current) - 1)}
        current = max(shorter, key=lambda layers: shorter[layers])
        found |= shorter
    return found


def describe_search(record: Any) -> str:
    """Describes the result in the summary before training."""
    layers = ", ".join(map(str, record["chosen"]))
    kind = "the best found of" if record["greedy"] else "the best of"
    return (
        f"{layers}, {kind} {record['tried']} subsets: a fitted head explains {record['score']:.1%} of the teacher's "
        f"outputs on other examples, that of alternate layers ({', '.join(map(str, record['alternate']))}) "
        f"{record['alternate_score']:.1%}"
    )


@dataclass(frozen=True)
class _Search:
    """The examples and the teacher's logits `targets [n, C]`, with which candidates are fitted.

    Args:
        usual: the layers without a search.
        fitted: whether an item is of the half of the examples to which candidates are fitted, `[n]` (bool). The words
            of one example are alike, so that they are all in one half.
    """

    student: Student
    task_run: TaskRun
    usual: Layers
    batches: Sequence[Any]
    targets: Tensor
    fitted: Tensor

    @classmethod
    def begin(cls, student: Student, task_run: TaskRun) -> "_Search":
        """Computes the teacher's logits."""
        examples = labelled_only(task_run.examples)["train"]
        if not isinstance(examples, Examples):
            raise UserError("student.init=search needs the examples of train, and this task streams them: leave it out")
        number = min(EXAMPLES, len(examples))
        indices = np.linspace(0, len(examples) - 1, number).astype(int)
        indices = indices[examples.lengths[indices].argsort(kind="stable")]  # Little padding.
        batches = [examples[part.tolist()] for part in np.array_split(indices, math.ceil(number / BATCH))]
        task, teacher = task_run.task, task_run.teacher.model
        items = [task.select(batch) for batch in batches]
        with torch.no_grad():
            logits = [_run(task, teacher, batch, of) for batch, of in zip(batches, items, strict=True)]
        order = {int(example): place for place, example in enumerate(torch.cat([of["example_id"] for of in batches]))}
        fitted = torch.tensor([order[int(example)] % 2 == 0 for of in items for example in of.example_id()])
        usual = student.make(teacher, task, task_run.data).config.teacher_layers
        return cls(student, task_run, tuple(usual), batches, torch.cat(logits), fitted)

    def start_from(self, layers: Layers) -> Student:
        """Returns the student with these layers and the head that is fitted to them."""
        return replace(self.of(layers), head=self.fit(layers).head)

    def of(self, layers: Layers) -> Student:
        """Returns the student with these layers."""
        return replace(self.student, build=partial(self.student.build, layers=list(layers), depth=None))

    def score(self, layers: Layers) -> float:
        """Returns the score of a student with these layers."""
        return self.fit(layers).score

    def evaluate(self, student: Student) -> float:
        """Returns the metric of a student on dev before any training."""
        run = self.task_run
        loaders = all_task_loaders({name: run.examples[name] for name in ("train", "dev")}, **run.batches())
        return _score(run, self._make(student), loaders["dev"])

    def _make(self, student: Student) -> PreTrainedModel:
        run = self.task_run
        return student.make(run.teacher.model, run.task, run.data, run.start).eval()

    def fit(self, layers: Layers) -> Fitted:
        """Fits the head of a student with these layers."""
        model, has_head = self._make(self.of(layers)), self.task_run.task.info.likelihood != "vector"
        features = torch.cat(list(self._features(model, has_head=has_head)))
        weight, bias = fit_ridge(features[self.fitted], self.targets[self.fitted], penalty=_penalty(features))
        errors = (features @ weight + bias - self.targets)[~self.fitted]
        spread = self.targets[~self.fitted] - self.targets[self.fitted].mean(dim=0)
        score = 1 - float(errors.square().sum() / spread.square().sum())
        if not has_head:
            return Fitted(score, None)
        weight, bias = fit_ridge(features, self.targets, penalty=_penalty(features))
        return Fitted(score, (weight.T.contiguous(), bias))

    @torch.no_grad()
    def _features(self, model: PreTrainedModel, *, has_head: bool) -> Iterator[Tensor]:
        """Yields the inputs `[n, F]` of the last linear layer at the items of each batch, or vectors without a head."""
        task, head = self.task_run.task, find_head(model, self.targets.shape[1]) if has_head else None
        inputs: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, given: inputs.append(given[0])) if head is not None else None
        for batch in self.batches:
            items = task.select(batch)
            logits = _run(task, model, batch, items)
            if head is None:
                yield logits
                continue
            states = inputs.pop()
            features = states if items.index is None else states.flatten(0, 1)[items.index]
            outputs = head(features)
            inputs.clear()
            if outputs.shape != logits.shape or not torch.allclose(outputs, logits, atol=1e-4):
                raise UserError(
                    f"student.init=search fits the last linear layer to classes, numbers, tags or vectors, and the "
                    f"outputs of task {self.task_run.task.info.name} are others: leave it out"
                )
            yield features
        if handle is not None:
            handle.remove()


def _run(task: Task, model: PreTrainedModel, batch: Batch, items: Items) -> Tensor:
    """Returns the logits `[n, C]` of a model at the items of a batch."""
    logits = task.run(model, batch, items, NOTHING).at(items).logits
    assert logits is not None  # They are all that is read.
    return logits


def _penalty(features: Tensor) -> float:
    """Returns the penalty of a ridge regression on `features [n, F]` that dropout of them amounts to.

    Dropout with probability p adds the variance `p / (1 - p) * x^2` to a feature x (arXiv 1307.1493, section 2).
    """
    spread = float(features.var(dim=0).mean().clamp_min(1e-12))
    return DROPOUT / (1 - DROPOUT) * float(features.square().mean()) / spread


# Of the students of the steps, in that of the run, and in it those of each step.
DIRECTORY, STUDENT, CHECKPOINTS = "pruning", "student", "checkpoints"


@dataclass(frozen=True)
class Pruning:
    """The options of iterative pruning.

    Args:
        steps: number of removals; 0 for a student that is not pruned in steps.
        share: of the training's steps, in each training between two removals.
    """

    steps: int
    share: float

    @classmethod
    def of(cls, student: Student) -> "Pruning":
        """Returns the options of a student."""
        if student.option("prune") is None:
            return cls(0, 0.0)
        return cls(student.option("prune_steps"), student.option("prune_share"))

    def __bool__(self) -> bool:
        return self.steps > 0

    @property
    def trainings(self) -> float:
        """The steps of the student's training and of all trainings between removals, as a share of the former."""
        return 1 + (self.steps - 1) * self.share

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
        UserError: for a student that is not pruned in steps, because its layers are not cut or it loses nothing.
    """
    everything = {"layers": list(range(teacher.config.num_hidden_layers)), "depth": None, "heads": None, "ffn": None}
    whole = Student(student.name, partial(student.build, **everything)).make(teacher, task, data)
    sizes, whole_sizes = Sizes.of(last), Sizes.of(whole)
    if sizes == whole_sizes:
        raise UserError("student.prune=iterative removes nothing: give student.heads, student.ffn or fewer layers")
    totals = (sum(sizes.heads), sum(sizes.neurons))
    return Schedule(sorted(last.config.teacher_layers), whole_sizes, totals, Pruning.of(student).steps), whole


def check_pruning(
    student: Student, last: PreTrainedModel, teacher: PreTrainedModel, plan: Plan, task: Task, data: Data
) -> None:
    """Raises UserError for a pruning that cannot be, or whose students a term of the objective cannot teach."""
    if not Pruning.of(student):
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
        plan.objective.check_sizes(EncoderSize(width, schedule.depth(step)), compatibility.encoder_size(teacher))


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
        size, metric = _count_in_layers(student), task_run.teacher.metrics.get(task_run.scoring.metric)
        rows: list[dict[str, Any]] = list(task_run.run.record.get("pruning") or [])
        if not rows:
            layers = range(teacher.config.num_hidden_layers)
            rows.append(_describe(teacher, 0, layers, removed=0.0) | {"before": None, "after": metric})
        importance = self.importance
        for step in range(1, schedule.steps + 1):
            directory = task_run.run.directory / DIRECTORY / str(step)
            if step < len(rows):
                student = self._load(directory)
            else:
                student = schedule.remove(student, importance(), step)
                _save(student, directory)
                removed = 1 - _count_in_layers(student) / size
                row = _describe(student, step, student.config.teacher_layers, removed=removed)
                rows.append(row | {"before": _score(task_run, student.cpu(), self.dev), "after": None})
                task_run.run.update(pruning=rows)
            if step < schedule.steps and rows[step]["after"] is None:
                self.train(student, directory, f"pruning {step}/{schedule.steps}")
                rows[step]["after"] = _score(task_run, student.cpu(), self.dev)
                _save(student, directory)
                task_run.run.update(pruning=rows)
                shutil.rmtree(directory / CHECKPOINTS, ignore_errors=True)
            importance = partial(task_run.rank, student)
        return student.train()

    def load_last(self) -> PreTrainedModel:
        """Returns the student after the last removal of an earlier `run`."""
        return self._load(self.task_run.run.directory / DIRECTORY / str(Pruning.of(self.student).steps))

    def _load(self, directory: Path) -> PreTrainedModel:
        return load_saved(directory / STUDENT, self.task_run.task.info.auto_class)


def _score(task_run: TaskRun, student: PreTrainedModel, dev: Loader) -> float:
    """Returns the metric of a student on dev."""
    scoring = task_run.scoring
    scores = evaluate_splits(student, task_run.task, scoring, {"dev": dev})
    return float(split_metrics(scoring, scores)[scoring.metric])


def record_end(run: Run, metric: float) -> None:
    """Records the metric on dev of the trained student after the last removal."""
    rows = run.record.get("pruning")
    if rows:
        run.update(pruning=[*rows[:-1], rows[-1] | {"after": metric}])


def _describe(model: PreTrainedModel, step: int, layers: Sequence[int], *, removed: float) -> dict[str, Any]:
    """Returns the sizes of a model after a step, with the share of the weights in the layers that was removed."""
    sizes = Sizes.of(model)
    return {
        "step": step, "layers": list(layers), "heads": sizes.heads, "neurons": sizes.neurons, "removed": removed,
    }  # fmt: skip


def _save(student: PreTrainedModel, directory: Path) -> None:
    with atomic_directory(directory / STUDENT) as temporary:
        save_encoder(student, temporary)


def _count_in_layers(student: PreTrainedModel) -> int:
    return sum(parameter.numel() for layer in list_layers(student) for parameter in layer.parameters())
