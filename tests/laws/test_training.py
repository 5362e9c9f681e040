"""Laws of a training: resumed or not, in one process or two, by cached outputs or a live teacher, it ends the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from distill.kinds.multitask import all_task_loaders
from distill.teachers.output_cache import OutputCache
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.signal import outputs_for_training
from distill.training import fitting
from distill.training.processes import run_in_ranks
from tests.conftest import SETTINGS, Toy
from tests.laws.conftest import MakeCell
from tests.laws.test_batches import CHOSEN, gradients
from tests.laws.toys import CELLS, STUDENTS, Cell
from tests.training.test_checkpoints import equal_trainings, stop_at

# Each kind with the first of its students, and each student with the first of its kinds.
TRAINED = list(
    dict.fromkeys(
        [
            *{kind: (kind, name) for kind, name in reversed(CELLS)}.values(),
            *((kinds[0], name) for name, (_, kinds) in STUDENTS.items()),
        ]
    )
)
# In one pair of processes, which takes seconds to start. Each has a loss, a head or a gradient of its own. Left out are
# vectors, whose similarities are those of one rank's texts, and several heads, which are not sent to other processes.
PARALLEL = [
    ("classes", "distilbert"), ("labels", "bilstm"), ("numbers", "static"), ("tags", "cnn"), ("answers", "distilbert"),
    ("rankings", "distilbert"), ("segments", "layers"), ("next token", "layers"), ("targets", "halves"),
    ("filled", "filling"),
]  # fmt: skip
# Where the teacher can give the outputs of a training before it begins.
CACHED = [(kind, name) for kind, name in TRAINED if kind not in ("replaced", "filled", "multi")]


def make_toy(cell: Cell, directory: Path, **options: Any) -> Toy:
    """Returns two steps of training with dropout, each of two micro-batches."""
    settings = replace(
        SETTINGS,
        **{"batch_size": 4, "accumulate": 2, "max_epochs": None, "max_steps": 2, "checkpoint_steps": 1, "clip": 0.0}
        | options,
    )
    loaders = all_task_loaders(cell.examples, steps=2, **settings.batches())
    # With this epsilon a step is not enlarged where the gradient is a rounding error, because softmax cancels a bias.
    module = cell.module(cell.build(), settings=replace(settings, eps=1e-2), steps_per_epoch=len(loaders["train"]))
    return Toy(module, loaders, settings, cell.tokenizer, directory)


@pytest.mark.parametrize(("kind", "name"), TRAINED)
def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(
    cell: MakeCell, kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = cell(kind, name)
    whole = make_toy(of, tmp_path / "whole")
    whole.fit()
    stop_at(make_toy(of, tmp_path / "stopped"), 1, monkeypatch)
    resumed = make_toy(of, tmp_path / "stopped")
    assert resumed.fit(resume=True).steps == 2
    assert equal_trainings(resumed, whole)


@pytest.mark.parametrize(("kind", "name"), CACHED)
def test_cached_outputs_give_the_losses_and_gradients_of_a_live_teacher(
    cell: MakeCell, kind: str, name: str, tmp_path: Path
) -> None:
    of = cell(kind, name)
    reads_states = name != "halves"  # The states of an encoder-decoder are not cached.
    objective = of.objective(of.student, reads_states=reads_states)
    prepared = PreparedTeacher(
        requested="", resolved="", origin="", tokenizer=of.tokenizer, load=lambda: of.teacher, precision="float32",
        weights=kind, device=torch.device("cpu"),
    )  # fmt: skip
    cached = outputs_for_training(
        prepared, objective, of.task, of.examples["train"], student=of.student, directory=tmp_path,
        cache=OutputCache(enabled=True, hidden=True, draws=None, top_k=1000), epochs=1,
    )  # fmt: skip
    assert cached.reason is None
    results = []
    for signal in (cached, None):
        module = of.module(of.student, signal, reads_states=reads_states)
        module.student.eval()
        results.append(gradients(module, of.examples["train"][CHOSEN]))
    torch.testing.assert_close(results[0], results[1], atol=1e-3, rtol=1e-2)


def fit_all(toys: list[Toy]) -> None:
    for toy in toys:
        fitting.RankTraining(
            toy.module, toy.loaders["train"], toy.loaders["dev"], toy.settings, toy.directory, "toy"
        ).run()


def without_dropout(toy: Toy) -> Toy:
    student = toy.module.student
    for part in (*student.modules(), *(each.config for each in student.modules() if hasattr(each, "config"))):
        for option, value in vars(part).items():
            if isinstance(value, float) and (option == "p" or "dropout" in option):
                setattr(part, option, 0.0)
    return toy


@pytest.fixture(scope="module")
def parallel(cell: MakeCell, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Toy]]:
    """Trainings of one process, and of two with half of the batch each."""
    root = tmp_path_factory.mktemp("parallel")
    toys = {
        ranks: [
            without_dropout(
                make_toy(
                    cell(kind, name), root / f"{kind} {ranks}", batch_size=4 // ranks, devices=ranks,
                    strategy="ddp" if ranks > 1 else "auto",
                )
            )
            for kind, name in PARALLEL
        ]
        for ranks in (1, 2)
    }  # fmt: skip
    fit_all(toys[1])
    run_in_ranks(fit_all, toys[2], world_size=2, device=torch.device("cpu"))
    return toys


@pytest.mark.xdist_group("laws.parallel")
@pytest.mark.parametrize("number", range(len(PARALLEL)), ids=[kind for kind, _ in PARALLEL])
def test_two_ranks_end_with_the_weights_of_one_with_twice_the_batch(
    parallel: dict[int, list[Toy]], number: int
) -> None:
    one, two = parallel[1][number], parallel[2][number]
    assert one.module.tokens_seen == two.module.tokens_seen
    for name, tensor in one.module.state_dict().items():
        torch.testing.assert_close(two.module.state_dict()[name], tensor, rtol=0, atol=1e-5, msg=name)
