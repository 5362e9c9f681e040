"""Tests of averaged weights: the moving average, the soup of the last checkpoints, and their resumption."""

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from distill.core.errors import OptionError, UserError
from distill.training import fitting, lightning_callbacks
from distill.training.lightning_callbacks import average_checkpoints
from tests.conftest import SETTINGS, MakeToy, Toy, equal, fake_scores, last_state, weights
from tests.training.test_checkpoints import equal_trainings, stop_at

ALL: dict[str, Any] = {"ema": 0.7, "soup": 3, "patience": 5, "evaluations": 2, "max_epochs": 3}


def record_weights(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Returns a list that fills with the raw weights before every step."""
    seen: list[dict[str, Tensor]] = []
    original = toy.module.training_step

    def training_step(*arguments: Any) -> None:
        seen.append(weights(toy.module))
        original(*arguments)

    monkeypatch.setattr(toy.module, "training_step", training_step)
    return seen


def averages(raw: list[dict[str, Tensor]], decay: float) -> list[dict[str, Tensor]]:
    """Returns the moving averages after each step, from the weights before the first step on, in float64."""
    current = {name: tensor.double() for name, tensor in raw[0].items()}
    result = []
    for step, after in enumerate(raw[1:], start=1):
        d = min(decay, (1 + step) / (10 + step))
        current = {name: d * current[name] + (1 - d) * after[name].double() for name in current}
        result.append(current)
    return result


def checkpoint(toy: Toy, name: str) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(toy.directory / "checkpoints" / f"{name}.ckpt", weights_only=True)
    return content


# The moving average


def test_the_average_is_evaluated_and_saved_and_the_raw_weights_train_on(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
):
    """The decay is (1 + t) / (10 + t) until step 3, and 0.3 from then on."""
    plain, toy = make_toy(max_epochs=3), make_toy(max_epochs=3, ema=0.3)
    plain.fit()
    raw = record_weights(toy, monkeypatch)
    seen = fake_scores(toy, [0.1, 0.9, 0.5], monkeypatch)
    toy.fit()
    raw.append(last_state(toy))
    assert equal(last_state(toy), last_state(plain))
    expected = averages(raw, 0.3)
    assert [step for step, _ in seen] == [4, 8, 12]
    for step, evaluated in seen:
        for name, tensor in expected[step - 1].items():
            torch.testing.assert_close(evaluated[name], tensor.float(), rtol=0, atol=1e-6, msg=name)
        distance = max((evaluated[name] - raw[step][name]).abs().max() for name in evaluated)
        assert distance > 1e-4
    assert equal(weights(toy.module), seen[1][1])
    assert equal(checkpoint(toy, "best")["state_dict"], seen[1][1])


# The soup


@pytest.mark.parametrize(
    ("values", "taken"),
    [
        ([0.1, 0.9, 0.5, 0.6, 0.9], True),
        ([0.1, 0.725, 0.5, 0.6, 0.725], True),  # 0.9 is less in float32, and 0.725 is more.
        ([0.1, 0.9, 0.5, 0.6, 0.89], False),
    ],
    ids=["equal", "equal_and_rounded_up", "worse"],
)
def test_the_last_evaluations_are_averaged_if_that_is_at_least_as_good(
    make_toy: MakeToy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    values: list[float],
    taken: bool,
):
    """The last value is that of the average."""
    toy = make_toy(max_epochs=4, soup=3)
    seen = fake_scores(toy, values, monkeypatch)
    fit = toy.fit()
    steps, states = [step for step, _ in seen], [state for _, state in seen]
    assert steps == [4, 8, 12, 16, 16]
    for name, tensor in states[4].items():
        mean = sum(state[name].double() for state in states[1:4]) / 3
        torch.testing.assert_close(tensor, mean.float(), rtol=0, atol=1e-7, msg=name)
    assert equal(weights(toy.module), states[4 if taken else 1])
    best = pytest.approx(values[1])
    assert fit.soup == {"steps": [8, 12, 16], "metric": values[4], "best": best, "taken": taken}
    assert fit.best == best
    printed = " ".join(capsys.readouterr().out.split())
    numbers = f"which has dev/accuracy {values[4]:.4f}; the best one has {values[1]:.4f}"
    assert (f"toy: the average of the last 3 evaluations is taken, {numbers}" in printed) is taken
    assert ("average" in printed) is taken
    files = sorted(path.name for path in (toy.directory / "checkpoints").iterdir())
    assert files == ["best.ckpt", "last.ckpt", "soup.ckpt"]
    assert bool(checkpoint(toy, "soup")["state_dict"]) is taken


@pytest.mark.parametrize(("metric", "taken"), [(0.3, False), (0.2, True), (0.1, True)])
def test_a_soup_is_taken_where_less_is_better_if_it_has_at_most_the_least(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, metric: float, taken: bool
):
    toy, states = make_toy(soup=2), []
    monkeypatch.setattr(toy.module, "scoring", SimpleNamespace(selects="min"))
    monkeypatch.setattr(lightning_callbacks, "_score", lambda *_: metric)
    for step in (1, 2):
        states.append({name: torch.full_like(tensor, step) for name, tensor in weights(toy.module).items()})
        torch.save({"state_dict": states[-1]}, tmp_path / f"soup-{step}.ckpt")
    (tmp_path / "best.ckpt").write_bytes((tmp_path / "soup-2.ckpt").read_bytes())
    recent = lightning_callbacks.RecentCheckpoints(tmp_path, 2)
    recent.best_k_models = {str(tmp_path / f"soup-{step}.ckpt"): torch.tensor(step) for step in (1, 2)}
    best = SimpleNamespace(best_model_score=torch.tensor(0.2), best_model_path=str(tmp_path / "best.ckpt"))
    soup = lightning_callbacks.take_best_weights(toy.module, [], toy.settings, best=best, recent=recent)  # type: ignore[arg-type]
    assert soup == lightning_callbacks.Soup((1, 2), metric, pytest.approx(0.2), taken)
    assert set(weights(toy.module)["student.classifier.bias"].tolist()) == {1.5 if taken else 2.0}


def test_integers_of_a_soup_are_those_of_the_last_checkpoint(tmp_path: Path):
    states = [{"weight": torch.tensor([value]), "counter": torch.tensor(value).long()} for value in (1.0, 2.0, 6.0)]
    paths = [tmp_path / f"{index}.ckpt" for index in range(3)]
    for path, state in zip(paths, states, strict=True):
        torch.save({"state_dict": state}, path)
    assert equal(average_checkpoints(paths), {"weight": torch.tensor([3.0]), "counter": torch.tensor(6)})


def test_one_evaluation_makes_no_soup(make_toy: MakeToy, capsys: pytest.CaptureFixture[str]):
    toy = make_toy(max_epochs=1, soup=3)
    assert toy.fit().soup is None
    assert "toy: dev was evaluated once, so soup=3 averages nothing" in capsys.readouterr().out


# Patience


@pytest.mark.parametrize(
    ("values", "stopped"),
    [
        ([0.5, 0.4, 0.5, 0.9, 0.9, 0.9], 6),
        ([0.5, 0.6, 0.5, 0.6, 0.7, 0.8], 8),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 6),  # Dev is at its maximum, while the loss falls.
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], None),
        ([0.1, 0.2, 0.3, 0.4, 0.4, 0.4], None),  # The last evaluation ends the training anyway.
    ],
)
def test_the_training_stops_after_evaluations_without_a_better_metric(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch, values: list[float], stopped: int | None
):
    toy = make_toy(patience=2, evaluations=2, max_epochs=3)
    seen = fake_scores(toy, values, monkeypatch)
    fit = toy.fit()
    assert (fit.stopped_early, fit.steps) == (stopped, stopped or 12)
    assert [step for step, _ in seen] == list(range(2, fit.steps + 1, 2))
    assert fit.best == pytest.approx(max(values[: fit.steps // 2]))


def test_a_training_that_was_killed_after_its_early_stop_does_not_continue(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
):
    options = {"patience": 1, "evaluations": 2, "soup": 2}
    killed = make_toy(**options)
    fake_scores(killed, [0.5, 0.4], monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(lightning_callbacks, "average_checkpoints", raise_killed)
        with pytest.raises(RuntimeError, match="killed"):
            killed.fit()
    resumed, again = (make_toy(directory=killed.directory, **options) for _ in range(2))
    fake_scores(resumed, [0.6], monkeypatch)  # Of the average alone.
    fit = resumed.fit(resume=True)
    assert (fit.stopped_early, fit.steps, fit.soup) == (
        4, 4, {"steps": [2, 4], "metric": 0.6, "best": pytest.approx(0.5), "taken": True},
    )  # fmt: skip
    monkeypatch.undo()
    assert again.fit(resume=True).soup == fit.soup
    assert equal(weights(again.module), weights(resumed.module))


def raise_killed(paths: object) -> None:
    raise RuntimeError("killed")


def test_every_evaluation_is_saved_where_dev_is_scored_after_every_step(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
):
    """Lightning takes an interval of one step for one epoch."""
    toy = make_toy(max_epochs=1, evaluations=4)
    seen = fake_scores(toy, [0.1, 0.9, 0.2, 0.3], monkeypatch)
    assert toy.fit().best == pytest.approx(0.9)
    assert equal(weights(toy.module), seen[1][1])


# Resumed


@pytest.fixture(scope="module")
def whole(make_toy: MakeToy) -> Toy:
    toy = make_toy(**ALL)
    toy.fit()
    return toy


def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(
    make_toy: MakeToy, whole: Toy, monkeypatch: pytest.MonkeyPatch
):
    """It was stopped within an epoch, when the soup had lost a checkpoint."""
    stopped = make_toy(**ALL, checkpoint_steps=1)
    stop_at(stopped, 10, monkeypatch)
    resumed = make_toy(directory=stopped.directory, **ALL, checkpoint_steps=1)
    fit = resumed.fit(resume=True)
    assert fit.soup is not None
    assert fit.soup["steps"] == [8, 10, 12]
    assert equal_trainings(resumed, whole)
    assert equal_averages(resumed, whole)


@pytest.mark.parametrize("step", [6, 12])
def test_an_evaluation_that_was_interrupted_is_made_when_the_training_resumes(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch, step: int
):
    """Dev is scored after every sixth step, and an epoch has four."""
    options: dict[str, Any] = {"evaluations": 0.75, "soup": 3, "max_epochs": 4}
    whole, stopped = make_toy(**options), make_toy(**options, checkpoint_steps=1)
    expected = whole.fit()
    original = stopped.module.validation_step

    def validation_step(*arguments: Any) -> None:
        if stopped.module.global_step == step:
            raise RuntimeError("stopped")
        original(*arguments)

    monkeypatch.setattr(stopped.module, "validation_step", validation_step)
    with pytest.raises(RuntimeError, match="stopped"):
        stopped.fit()
    resumed = make_toy(directory=stopped.directory, **options, checkpoint_steps=1)
    fit = resumed.fit(resume=True)
    assert fit.soup == expected.soup
    assert fit.soup is not None
    assert fit.soup["steps"] == [6, 12, 16]
    assert equal_trainings(resumed, whole)


def equal_averages(left: Toy, right: Toy) -> bool:
    """Returns whether the moving averages in two checkpoints are equal."""
    states = [checkpoint(toy, "last")["callbacks"]["MovingAverage"]["averages"] for toy in (left, right)]
    return all(map(torch.equal, *states)) and len(states[0]) > 0


def test_a_resumed_training_without_a_checkpoint_of_its_soup_is_refused(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
):
    stopped = make_toy(**ALL)
    stop_at(stopped, 7, monkeypatch)
    (stopped.directory / "checkpoints" / "soup-6.ckpt").unlink()
    with pytest.raises(UserError, match=r"soup-6\.ckpt is missing: remove .*checkpoints to restart this training"):
        make_toy(directory=stopped.directory, **ALL).fit(resume=True)


@pytest.mark.parametrize("option", [{"ema": 0.5}, {"soup": 2}, {"patience": 1}, {"schedule": "cosine"}])
def test_a_training_is_not_resumed_with_other_options(make_toy: MakeToy, uninterrupted: Toy, option: dict[str, Any]):
    [name] = option
    with pytest.raises(UserError, match=f"another training with different {name}: run the command"):
        make_toy(directory=uninterrupted.directory, **option).fit(resume=True)
    other = make_toy(max_epochs=None, max_steps=1, **option)
    other.fit()
    with pytest.raises(UserError, match=f"another training with different {name}: run the command"):
        make_toy(directory=other.directory, max_epochs=None, max_steps=1).fit(resume=True)


# The schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0, 0.5, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0, 0.5, 1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4]),
        ("constant", [0, 0.5, 1, 1, 1, 1]),
    ],
)
def test_the_learning_rate_follows_the_schedule(make_toy: MakeToy, schedule: str, expected: list[float]):
    """Two of six steps are the warm-up."""
    toy = make_toy(max_epochs=None, max_steps=6, warmup=0.3, learning_rate=0.01, schedule=schedule)
    [optimizer], [course] = toy.module.configure_optimizers()
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"] / 0.01)
        optimizer.step()
        course.step()
    assert rates == pytest.approx(expected)


def test_min_steps_raises_the_epochs():
    assert replace(SETTINGS, min_steps=9).total_steps(4) == 12
    assert replace(SETTINGS, min_steps=8).total_steps(4) == 8
    assert replace(SETTINGS, min_steps=3).total_steps(4) == 8
    assert replace(SETTINGS, min_steps=9, max_steps=10).total_steps(4) == 10


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ema": 1.0}, r"got ema=1\.0, expected a number of at least 0 and below 1 or auto"),
        ({"ema": 0.9, "strategy": "fsdp"}, "got ema=0.9, expected 0 with strategy=fsdp because the average is not"),
        ({"soup": 0}, "got soup=0, expected a whole number of at least 1 or auto"),
        ({"patience": 0}, "got patience=0, expected a whole number of at least 1, auto or null"),
        ({"schedule": "step"}, "got schedule=step, expected one of linear, cosine, constant"),
        ({"min_steps": 0}, "got min_steps=0, expected a whole number of at least 1 or null"),
        ({"min_steps": 9, "max_steps": 8}, "got min_steps=9, expected at most max_steps=8: lower min_steps"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str):
    with pytest.raises((OptionError, ValueError), match=message):
        replace(SETTINGS, **options)


# The estimate


def test_an_estimate_counts_the_evaluation_of_the_average(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    """A step takes a second for the passes and one for the optimizer; a batch of dev takes a third of a second."""
    toy = make_toy(max_epochs=1, soup=3, ema=0.9)
    before = weights(toy.module)
    monkeypatch.setattr(fitting, "time", SimpleNamespace(perf_counter=partial(next, count())))
    seconds = fitting.estimate_seconds(toy.module, toy.loaders["train"], toy.loaders["dev"], toy.settings)
    assert seconds == pytest.approx(4 * (1 + 1) + 2 * 24 / 16 / 3)
    assert equal(weights(toy.module), before)
