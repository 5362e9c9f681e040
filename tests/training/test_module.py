"""Tests of training: a frozen teacher, gradient accumulation, the best weights, and reproducible runs."""

import csv
import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from transformers import BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import NumericalError, UserError
from distill.data import batches
from distill.kinds import MaskedLM
from distill.losses import Cosine, HardLabels, MaskedLanguageModelling, Objective, SoftTargets
from distill.models.forward import run_model
from distill.training import fitting, hyperparameters, processes
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import NOTHING, DistillationModule, parameter_groups
from tests.conftest import (
    SETTINGS,
    MakeToy,
    Toy,
    equal,
    fake_scores,
    last_state,
    live,
    outputs_at_items,
    record_steps,
    toy_bert,
    weights,
)
from tests.training.test_checkpoints import equal_trainings, stop_at


def use_plain_sgd(module: DistillationModule, monkeypatch: pytest.MonkeyPatch, learning_rate: float) -> None:
    """Replaces AdamW, which divides by the gradient's own size and so hides differences in scale."""

    def optimizers() -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
        return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)]

    monkeypatch.setattr(module, "configure_optimizers", optimizers)


# The teacher


@dataclass
class RecordedFit:
    """A finished fit of a student narrower than its teacher, with recorded modes, examples and log rows."""

    toy: Toy
    before: dict[str, Tensor]
    teacher_before: dict[str, Tensor]
    teacher_modes: list[bool]
    student_modes: list[bool]
    examples: list[list[int]]
    rows: list[dict[str, str]]

    def checkpoint(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = torch.load(self.toy.directory / "checkpoints" / f"{name}.ckpt", weights_only=True)
        return content


@pytest.fixture(scope="module")
def recorded_fit(make_toy: MakeToy) -> RecordedFit:
    toy = make_toy(teacher_width=48)
    modes: dict[str, list[bool]] = {"teacher": [], "student": []}

    def watch(name: str, model: PreTrainedModel) -> None:
        dropouts = [part for part in model.modules() if isinstance(part, nn.Dropout)]
        model.register_forward_pre_hook(lambda *_: modes[name].append(any(part.training for part in dropouts)))

    watch("teacher", toy.module.signal.model)
    watch("student", toy.module.student)
    examples = record_steps(toy)
    before, teacher_before = weights(toy.module), weights(toy.module.signal.model)
    toy.module.signal.model.train()
    toy.fit(logger=CSVLogger(str(toy.directory), name="", version=""))
    with open(toy.directory / "metrics.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return RecordedFit(toy, before, teacher_before, modes["teacher"], modes["student"], examples, rows)


def test_the_teacher_stays_as_it_is_and_the_student_trains_in_steps_and_not_on_dev(recorded_fit: RecordedFit):
    teacher = recorded_fit.toy.module.signal.model
    assert recorded_fit.teacher_modes == [False] * 8  # One forward pass per step, none for dev.
    assert recorded_fit.student_modes == ([True] * 4 + [False]) * 2
    recorded_fit.toy.module.train()
    teacher.train()
    assert not any(part.training for part in teacher.modules())
    assert equal(weights(teacher), recorded_fit.teacher_before)
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in teacher.parameters())


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_checkpoint_contains_only_the_student_and_the_projection(recorded_fit: RecordedFit, name: str):
    state_dict = recorded_fit.checkpoint(name)["state_dict"]
    assert state_dict.keys() == recorded_fit.toy.module.state_dict().keys()
    assert "objective.terms.cosine.projection.weight" in state_dict
    assert all(key.startswith("student.") for key in state_dict if not key.startswith("objective.terms.cosine."))


def test_every_parameter_changes_in_training(recorded_fit: RecordedFit):
    after = recorded_fit.checkpoint("last")["state_dict"]
    unchanged = [name for name, tensor in recorded_fit.before.items() if torch.equal(tensor, after[name])]
    assert unchanged == []


def test_every_epoch_has_all_examples_in_another_order(recorded_fit: RecordedFit):
    first, second = ([*chain(*recorded_fit.examples[start : start + 4])] for start in (0, 4))
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second


def test_logged_terms_sum_to_the_logged_loss(recorded_fit: RecordedFit):
    rows = [{k: float(v) for k, v in row.items() if v} for row in recorded_fit.rows if row["train/loss"]]
    assert len(rows) == 8
    for row in rows:
        parts = 5 * row["train/soft"] + 2 * row["train/hard"] + 1 * row["train/cosine"]
        assert row["train/loss"] == pytest.approx(parts, rel=1e-4)
    assert sum(bool(row["dev/accuracy"]) for row in recorded_fit.rows) == 2


def test_gradient_clipping_includes_the_projection(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    toy = make_toy(teacher_width=48, cosine=100, max_epochs=None, max_steps=1, clip=0.1)
    use_plain_sgd(toy.module, monkeypatch, learning_rate=1)
    before = weights(toy.module)
    toy.fit()
    moved = {name: tensor - before[name] for name, tensor in weights(toy.module).items()}
    assert moved["objective.terms.cosine.projection.weight"].norm() > 0.01
    assert torch.cat([change.flatten() for change in moved.values()]).norm().item() == pytest.approx(0.1, rel=1e-3)


def test_a_missing_teacher_is_refused_if_the_objective_needs_one(make_toy: MakeToy):
    toy = make_toy()
    with pytest.raises(ValueError, match="objective distilbert learns from a teacher, and there is none"):
        DistillationModule(student=toy.module.student, objective=toy.module.objective, task=toy.module.task)


def test_the_teacher_is_dropped_if_the_objective_needs_none(make_toy: MakeToy):
    toy = make_toy()
    supervised = Objective(name="supervised", terms={"hard": HardLabels(), "soft": SoftTargets(weight=0)})
    module = DistillationModule(
        student=toy.module.student, objective=supervised, task=toy.module.task, signal=toy.module.signal
    )
    assert module.signal is NOTHING


# AdamW


def test_the_optimizer_has_the_betas_and_the_eps_of_the_settings(make_toy: MakeToy):
    settings = TrainerSettings(learning_rate=1e-3, batch_size=8, max_steps=4, betas=(0.8, 0.98), eps=1e-6)
    toy = make_toy()
    module = DistillationModule(
        student=toy.module.student, objective=toy.module.objective, task=toy.module.task, signal=toy.module.signal,
        settings=settings, steps_per_epoch=4,
    )  # fmt: skip
    [optimizer], _ = module.configure_optimizers()
    assert {(group["betas"], group["eps"]) for group in optimizer.param_groups} == {((0.8, 0.98), 1e-6)}


def test_biases_and_layer_norms_have_no_weight_decay(make_toy: MakeToy):
    module = make_toy(teacher_width=48).module
    decayed, free = parameter_groups(module, 0.01)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.01, 0)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    without = {names[id(parameter)] for parameter in free["params"]}
    expected = {
        f"{owner}.{name}"
        for owner, part in module.named_modules()
        for name, _ in part.named_parameters(recurse=False)
        if isinstance(part, nn.LayerNorm) or name == "bias"
    }
    assert without == expected
    assert "student.distilbert.transformer.layer.1.sa_layer_norm.weight" in without
    assert "objective.terms.cosine.projection.weight" not in without


def test_tied_parameters_are_in_one_group_once(tokenizer: PreTrainedTokenizerBase):
    student = from_teacher(BertForMaskedLM(toy_bert(len(tokenizer)).config))
    assert student.vocab_projector.weight is student.distilbert.embeddings.word_embeddings.weight
    grouped = [id(parameter) for group in parameter_groups(student, 0.01) for parameter in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(parameter) for parameter in student.parameters()}


def test_tables_of_embeddings_have_a_learning_rate_of_their_own_and_no_weight_decay(make_toy: MakeToy):
    student = make_toy().module.student
    *others, tables = parameter_groups(student, 0.01, embeddings_learning_rate=0.5)
    assert (tables["lr"], tables["weight_decay"]) == (0.5, 0)
    expected = [module.weight for module in student.modules() if isinstance(module, nn.Embedding)]
    assert {id(parameter) for parameter in tables["params"]} == {id(parameter) for parameter in expected}
    assert not any("lr" in group for group in others)
    assert len(parameter_groups(nn.Linear(2, 2), 0.01, embeddings_learning_rate=0.5)) == 2


@pytest.mark.parametrize("compact", ["auto", False])
def test_embeddings_stay_as_they_are_in_a_share_of_the_steps(make_toy: MakeToy, compact: Any):
    toy = make_toy(frozen_embeddings=0.3, compact_embeddings=compact, weight_decay=3.0)
    student, seen = toy.module.student, []
    start = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    original = toy.module.training_step

    def training_step(*arguments: Any) -> None:
        original(*arguments)
        seen.append({name for name, tensor in student.state_dict().items() if not tensor.equal(start[name])})

    toy.module.training_step = training_step  # type: ignore[method-assign]
    toy.fit()
    table = "distilbert.embeddings.word_embeddings.weight"
    assert len(seen) > 4
    first = [table in changed for changed in seen].index(True)
    assert first == math.ceil(0.3 * len(seen))
    assert all(changed == start.keys() - {table} for changed in seen[1:first])
    assert all(changed == start.keys() for changed in seen[first:])


def test_a_training_with_frozen_embeddings_is_resumed_as_it_was(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    options: dict[str, Any] = {"frozen_embeddings": 0.3, "checkpoint_steps": 1}
    whole, stopped = make_toy(**options), make_toy(**options)
    whole.fit()
    stop_at(stopped, 1, monkeypatch)
    resumed = make_toy(directory=stopped.directory, **options)
    resumed.fit(resume=True)
    assert equal_trainings(resumed, whole)
    other = make_toy(directory=stopped.directory, checkpoint_steps=1)
    with pytest.raises(UserError, match="belongs to another training with different frozen_steps: run"):
        other.fit(resume=True)


def test_frozen_parameters_are_in_no_group(tokenizer: PreTrainedTokenizerBase):
    student = from_teacher(toy_bert(len(tokenizer)))
    student.distilbert.embeddings.requires_grad_(False)
    grouped = {id(parameter) for group in parameter_groups(student, 0.01) for parameter in group["params"]}
    assert grouped == {id(parameter) for parameter in student.parameters() if parameter.requires_grad}


# Steps


class OneStep(list[list[list[int]]]):
    """The steps of an epoch with one optimizer step."""

    def indices(self) -> np.ndarray:
        return np.concatenate(self[0])


def train_one_step(toy: Toy, micro_batches: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    use_plain_sgd(toy.module, monkeypatch, learning_rate=0.5)
    examples = toy.loaders["train"].dataset
    toy.loaders["train"] = batches.loader(examples, OneStep([micro_batches]))
    toy.fit()
    return weights(toy.module)


def test_unequal_micro_batches_give_the_weights_of_one_large_batch(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    # Without clipping, which would give gradients of any size the same norm.
    options: dict[str, Any] = {"dropout": 0.0, "max_epochs": None, "max_steps": 1, "clip": 0.0}
    toys = [make_toy(teacher_width=48, **options) for _ in range(3)]
    start = weights(toys[0].module)
    lengths = toys[0].loaders["train"].dataset.lengths
    by_length = np.argsort(lengths, kind="stable").tolist()
    short, middle, long = by_length[:4], by_length[30:32], by_length[-1:]
    assert lengths[short].max() < lengths[middle].max() < lengths[long].max()  # Each is padded to its own length.
    large = train_one_step(toys[0], [short + middle + long], monkeypatch)
    parts = train_one_step(toys[1], [short, middle, long], monkeypatch)
    other = train_one_step(toys[2], [short, middle], monkeypatch)
    for name, tensor in large.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    for different in (start, other):
        assert max((tensor - different[name]).abs().max() for name, tensor in large.items()) > 1e-3
    assert toys[0].module.global_step == toys[1].module.global_step == 1


class Stopped(Exception):
    """Ends a step after its random state was set."""


def test_every_rank_drops_other_units(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    toy = make_toy()
    monkeypatch.setattr(toy.module, "optimizers", lambda: None)
    drawn = []

    def losses(*arguments: object) -> Any:
        drawn.append(tuple(torch.rand(4).tolist()))
        raise Stopped

    monkeypatch.setattr(toy.module, "losses", losses)
    batch = next(iter(toy.loaders["train"]))
    for rank in (0, 1, 1, 2):
        monkeypatch.setattr(processes, "get_rank", lambda rank=rank: rank)
        with pytest.raises(Stopped):
            toy.module.training_step(batch, 0)
    assert drawn[1] == drawn[2]
    assert len(set(drawn)) == 3


def test_losses_are_divided_by_the_items_of_all_processes(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    """Each of three processes has as many items as this one."""
    toy, divided_by = make_toy(), list[Tensor]()

    def losses(batch: object, counts: Tensor) -> Any:
        divided_by.append(counts)
        raise Stopped

    monkeypatch.setattr(toy.module, "optimizers", lambda: None)
    monkeypatch.setattr(toy.module, "losses", losses)
    monkeypatch.setattr(processes, "all_reduce", lambda tensor: 3 * tensor)
    [batch] = next(iter(toy.loaders["train"]))
    with pytest.raises(Stopped):
        toy.module.training_step([batch], 0)
    assert set(divided_by[0].tolist()) == {3 * len(batch["labels"]), 3 * int(batch["attention_mask"].sum())}


def test_a_nan_loss_stops_the_training(make_toy: MakeToy):
    toy = make_toy()
    with torch.no_grad():
        toy.module.student.classifier.bias[0] = torch.nan
    before = weights(toy.module)
    with pytest.raises(NumericalError, match=r"step 0: the term soft is nan; try a smaller learning_rate") as caught:
        toy.fit()
    assert caught.value.exit_code == 3
    assert torch.equal(toy.module.student.pre_classifier.weight, before["student.pre_classifier.weight"])


def test_steps_examples_tokens_and_padding_are_counted(make_toy: MakeToy):
    toy = make_toy(max_epochs=1)
    fit = toy.fit()
    lengths = toy.loaders["train"].dataset.lengths
    assert (fit.steps, fit.epochs, toy.module.examples_seen) == (4, 1, 64)
    assert toy.module.tokens_seen == lengths.sum()
    assert fit.padding == pytest.approx(1 - lengths.sum() / toy.module.tokens_computed)
    assert 0 <= fit.padding < 0.5
    assert fit.examples_per_second == pytest.approx(64 / fit.seconds)


# Inputs and outputs of a model


def capture_inputs(model: PreTrainedModel, batch: dict[str, Tensor]) -> set[str]:
    seen: list[dict[str, Any]] = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    run_model(model, batch)
    return {name for name, value in seen[0].items() if isinstance(value, Tensor)}


def test_the_teacher_computes_in_its_own_precision_and_the_loss_in_float32(make_toy: MakeToy):
    toy = make_toy(teacher_width=48)
    dtypes = {}
    toy.module.signal.model.register_forward_hook(lambda *seen: dtypes.update(teacher=seen[-1].logits.dtype))
    toy.module.student.register_forward_hook(lambda *seen: dtypes.update(student=seen[-1].logits.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = toy.module.losses(next(iter(toy.loaders["train"]))[0])
    assert dtypes == {"teacher": torch.float32, "student": torch.bfloat16}
    assert loss.dtype == torch.float32


# Best weights


@pytest.mark.parametrize(("values", "best"), [([-1.0, -0.5, -2.0], 1), ([0.0, 0.0, -0.1], 0)])
def test_the_best_weights_are_kept_even_at_negative_scores(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch, values: list[float], best: int
):
    toy = make_toy(max_epochs=3)
    seen = fake_scores(toy, values, monkeypatch)
    assert toy.fit().best == pytest.approx(values[best])
    assert [step for step, _ in seen] == [4, 8, 12]
    assert [equal(weights(toy.module), evaluated) for _, evaluated in seen] == [index == best for index in range(3)]


@pytest.mark.parametrize(("max_steps", "evaluated"), [(2, [2]), (6, [4, 6])])
def test_the_last_step_is_always_evaluated(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch, max_steps: int, evaluated: list[int]
):
    toy = make_toy(max_epochs=None, max_steps=max_steps)
    seen = fake_scores(toy, [0.1, 0.2], monkeypatch)
    assert toy.fit().steps == max_steps
    assert [step for step, _ in seen] == evaluated
    assert equal(weights(toy.module), seen[-1][1])


def test_an_evaluation_in_several_epochs_is_followed_by_one_at_the_end(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch
):
    toy = make_toy(evaluations=0.5, max_epochs=3)
    seen = fake_scores(toy, [0.1, 0.2], monkeypatch)
    toy.fit()
    assert [step for step, _ in seen] == [8, 12]


# Reproducibility


def test_the_seed_determines_the_weights(make_toy: MakeToy, uninterrupted: Toy):
    again, other = make_toy(), make_toy(seed=2)
    again.fit()
    other.fit()
    assert equal(last_state(again), last_state(uninterrupted))
    assert not equal(last_state(other), last_state(uninterrupted))


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_epochs": None}, "got neither max_epochs nor max_steps, expected a number for one of them"),
        ({"batch_size": 0}, "got batch_size=0, expected a whole number of at least 1"),
        ({"accumulate": 1.5}, r"got accumulate=1\.5, expected a whole number"),
        ({"max_epochs": True}, "got max_epochs=true, expected a whole number of at least 1, auto or null"),
        ({"evaluations": 0}, "got evaluations=0, expected a number above 0 or auto"),
        ({"learning_rate": 0.0}, r"got learning_rate=0\.0, expected a number above 0"),
        ({"clip": -1}, "got clip=-1, expected a number of at least 0"),
        ({"compile": "perhaps"}, "got compile=perhaps, expected true or false"),
        ({"seed": 2**32}, "got seed=4294967296, expected a whole number from 0 to 4294967295"),
        ({"accelerator": "tpu"}, "got accelerator=tpu, expected one of auto, cpu, gpu, cuda, mps"),
        ({"warmup": 1.5}, r"got warmup=1\.5, expected a share of the steps from 0 to 1"),
        ({"warmup": -0.1}, r"got warmup=-0\.1, expected a share"),
        ({"precision": "16-mixed"}, "got precision=16-mixed, expected one of auto, 32-true, bf16-mixed"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused():
    with pytest.raises(UserError, match="got accelerator=gpu, expected auto or cpu because torch finds no GPU"):
        replace(SETTINGS, accelerator="gpu")


def test_total_steps_is_limited_by_max_epochs_and_max_steps():
    assert SETTINGS.total_steps(4) == 8
    assert replace(SETTINGS, max_epochs=None, max_steps=5).total_steps(4) == 5
    assert replace(SETTINGS, max_steps=5).total_steps(4) == 5
    assert replace(SETTINGS, max_steps=9).total_steps(4) == 8


# Items that are tokens


@pytest.mark.parametrize("chosen", ["some", "none"])
def test_vocabulary_logits_are_computed_only_at_the_items(tokenizer: PreTrainedTokenizerBase, chosen: str):
    """The loss equals that over all logits, and the head runs only on the chosen tokens."""
    teacher = BertForMaskedLM(toy_bert(len(tokenizer)).config).eval()
    student = from_teacher(teacher).eval()
    terms = {"soft": SoftTargets(weight=5), "mlm": MaskedLanguageModelling(weight=2), "cosine": Cosine()}
    objective = Objective(name="language_model", terms=terms)
    module = DistillationModule(
        student=student, objective=objective, task=MaskedLM(), signal=live(teacher, objective, MaskedLM())
    )
    student.eval()
    torch.manual_seed(0)
    ids = torch.randint(5, len(tokenizer), (3, 7))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    predicted = (torch.rand(ids.shape) < 0.4) & mask.bool() & torch.tensor(chosen == "some")
    batch = {
        "input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(~predicted, -100),
        "example_id": torch.arange(3),
    }  # fmt: skip
    items, needs = MaskedLM().select(batch), frozenset({"hidden_states"})
    with torch.no_grad():
        student_outputs, teacher_outputs = (
            outputs_at_items(run_model(model, batch, needs), items) for model in (student, teacher)
        )
        whole = objective(student_outputs, teacher_outputs, items)
    seen: list[torch.Size] = []
    student.vocab_projector.register_forward_hook(lambda layer, inputs, output: seen.append(output.shape))
    loss, sums = module.losses(batch)
    assert seen == [(1, int(predicted.sum()), len(tokenizer))]
    torch.testing.assert_close((loss, sums), whole)
    loss.backward()
    assert student.distilbert.embeddings.word_embeddings.weight.grad.isfinite().all()
    assert type(student.distilbert).__name__ == "DistilBertModel"


# torch.compile


def test_compilation_of_the_student_is_undone_after_fitting(make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch):
    toy = make_toy(compile=True, max_epochs=1)
    encoder, calls = toy.module.student.base_model, []

    def compiled(*, dynamic: bool) -> None:
        encoder._compiled_call_impl = lambda *inputs, **named: (
            calls.append(dynamic) or encoder._call_impl(*inputs, **named)
        )

    monkeypatch.setattr(encoder, "compile", compiled)
    toy.fit()
    assert len(calls) >= 4  # Every step, and dev.
    assert all(calls)  # Dynamic shapes, because the lengths of batches differ.
    assert encoder._compiled_call_impl is None


def test_compile_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hyperparameters.shutil, "which", lambda name: None)
    with pytest.raises(
        ValueError, match=r"got compile=true, expected false because torch\.compile needs g\+\+ or clang"
    ):
        replace(SETTINGS, compile=True)


# The estimate


def test_an_estimate_changes_neither_weights_nor_counters(make_toy: MakeToy):
    toy = make_toy()
    before = weights(toy.module)
    seconds = fitting.estimate_seconds(toy.module, toy.loaders["train"], toy.loaders["dev"], toy.settings)
    assert seconds > 0
    assert equal(weights(toy.module), before)
    assert all(parameter.grad is None for parameter in toy.module.parameters())
    assert toy.module.teacher_seconds == 0


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_a_model_that_fails_in_mixed_precision_alone_is_named_with_what_to_set(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch, precision: Any
):
    toy = make_toy()
    losses = toy.module.losses

    def fail(batch: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("Index put requires the source and destination dtypes match")
        return losses(batch)

    monkeypatch.setattr(toy.module, "losses", fail)
    settings = replace(toy.settings, precision=precision)
    if precision == "32-true":
        assert fitting.estimate_seconds(toy.module, toy.loaders["train"], toy.loaders["dev"], settings) > 0
        return
    expected = r"cannot be trained in bf16-mixed \(Index put .*\): set trainer.precision=32-true"
    with pytest.raises(UserError, match=expected):
        fitting.estimate_seconds(toy.module, toy.loaders["train"], toy.loaders["dev"], settings)


@pytest.mark.parametrize(
    ("epochs", "estimate"), [(1, 4 * (1 + 1) + 24 / 16 / 3), (400, 1600 * (1 + 1) + 9600 / 16 / 3)]
)
def test_an_estimate_counts_steps_and_evaluations(
    make_toy: MakeToy, monkeypatch: pytest.MonkeyPatch, epochs: int, estimate: float
):
    """A step takes a second for the passes and one for the optimizer; a batch of dev takes a third of a second."""
    toy = make_toy(max_epochs=epochs)
    monkeypatch.setattr(fitting, "time", SimpleNamespace(perf_counter=partial(next, count())))
    seconds = fitting.estimate_seconds(toy.module, toy.loaders["train"], toy.loaders["dev"], toy.settings)
    assert seconds == pytest.approx(estimate)
