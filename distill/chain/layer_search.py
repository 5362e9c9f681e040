"""Chooses the teacher's layers that a student starts from, by students whose last linear layer is fitted, not trained.

The states of a candidate are computed for some training examples. A ridge regression from the inputs of its last linear
layer to the teacher's logits replaces the training, and the share of their variance that it explains on other examples
ranks the candidates. The regression of the best one is the head that its training starts from.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.chain.plan import Student
from distill.chain.task_run import TaskRun
from distill.console import print_line
from distill.contracts import Examples
from distill.data.mixing import labelled_only
from distill.data.several import all_loaders
from distill.errors import UserError
from distill.models.factorization import fit_ridge
from distill.models.loading import find_head
from distill.options import show_value
from distill.training.evaluate import evaluate_splits, split_metrics

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
    found = {usual: search.fit(usual).score}
    found |= (
        leave_out(total, len(usual), search.score)
        if is_greedy
        else {layers: search.score(layers) for layers in itertools.combinations(range(total), len(usual))}
    )
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
        teacher = task_run.teacher.model
        task = task_run.task
        items = [task.select(batch) for batch in batches]
        with torch.no_grad():
            logits = [
                task.run(teacher, batch, of, NOTHING).at(of).logits for batch, of in zip(batches, items, strict=True)
            ]
        order = {int(example): place for place, example in enumerate(torch.cat([of["example_id"] for of in batches]))}
        fitted = torch.tensor([order[int(example)] % 2 == 0 for of in items for example in of.example_id()])
        usual = student.make(teacher, task, task_run.data).config.teacher_layers
        targets = torch.cat([part for part in logits if part is not None])
        return cls(student, task_run, tuple(usual), batches, targets, fitted)

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
        loaders = all_loaders({name: run.examples[name] for name in ("train", "dev")}, **run.batches())
        scores = evaluate_splits(self._make(student), run.task, run.scoring, {"dev": loaders["dev"]})
        return float(split_metrics(run.scoring, scores)[run.scoring.metric])

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
            logits = task.run(model, batch, items, NOTHING).at(items).logits
            assert logits is not None
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


def _penalty(features: Tensor) -> float:
    """Returns the penalty of a ridge regression on `features [n, F]` that dropout of them amounts to.

    Dropout with probability p adds the variance `p / (1 - p) * x^2` to a feature x (arXiv 1307.1493, section 2).
    """
    spread = float(features.var(dim=0).mean().clamp_min(1e-12))
    return DROPOUT / (1 - DROPOUT) * float(features.square().mean()) / spread
