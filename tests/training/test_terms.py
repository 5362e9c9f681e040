"""Tests of trainings whose terms read several layers and attention: alone, together, in two processes, and resumed."""

from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import from_teacher
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from distill.core.contracts import IGNORED
from distill.kinds import MaskedLM
from distill.losses import (
    AttentionScoreMSE,
    DecoupledKD,
    HiddenStateMSE,
    MiniLM,
    MiniLMv2,
    Objective,
    PatientKD,
    SoftTargets,
)
from distill.models import compatibility
from distill.models.forward import NAME, run_model
from distill.training.module import DistillationModule
from tests.conftest import MakeToy, Toy, last_state, live, weights


def all_terms() -> dict[str, Any]:
    return {
        "hidden": HiddenStateMSE(),
        "attention": AttentionScoreMSE(layers="last"),
        "minilm": MiniLM(),
        "minilmv2": MiniLMv2(relation_heads=8, teacher_layer=3),
        "pkd": PatientKD(),
        "dkd": DecoupledKD(),
    }


def with_terms(toy: Toy, *names: str) -> Toy:
    """Gives the toy's module an objective of these terms, or of all."""
    terms = {name: term for name, term in all_terms().items() if not names or name in names}
    objective = Objective(name="all", terms=terms)
    module = toy.module
    torch.manual_seed(0)
    objective.connect(compatibility.encoder_size(module.student), compatibility.encoder_size(module.signal.model))
    module.objective = module.signal.objective = objective
    return toy


@pytest.fixture(scope="module")
def whole(make_toy: MakeToy) -> Toy:
    """A training with all terms and a teacher of another width."""
    toy = with_terms(make_toy(teacher_width=48))
    toy.before = weights(toy.module)  # type: ignore[attr-defined]
    toy.fit()
    return toy


def test_all_terms_together_train_the_student_and_their_projections(whole: Toy) -> None:
    before: dict[str, Tensor] = whole.before  # type: ignore[attr-defined]
    projections = {f"objective.terms.{name}.projection.weight" for name in ("hidden", "pkd")}
    assert {name for name in before if name.startswith("objective.")} == projections
    saved = last_state(whole)
    for name in projections:
        assert tuple(saved[name].shape) == (48, 32)
        assert not torch.equal(saved[name], before[name])
    groups = whole.module.configure_optimizers()[0][0].param_groups
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    assert {id(parameter) for parameter in whole.module.objective.parameters()} <= trained


# Raw text

VOCABULARY = 40
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 20, "initializer_range": 0.3,
}  # fmt: skip


def masked_batch() -> dict[str, Tensor]:
    torch.manual_seed(0)
    ids, mask = torch.randint(5, VOCABULARY, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    labels = torch.full((2, 7), IGNORED)
    labels[0, [1, 4]], labels[1, 2] = ids[0, [1, 4]], ids[1, 2]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "example_id": torch.arange(2)}


def masked_module(objective: Objective) -> DistillationModule:
    torch.manual_seed(0)
    teacher = BertForMaskedLM(BertConfig(**SMALL)).eval()
    student = from_teacher(teacher)
    objective.connect(compatibility.encoder_size(student), compatibility.encoder_size(teacher))
    task = MaskedLM(data_dir="unused", max_length=16)
    module = DistillationModule(student=student, objective=objective, task=task, signal=live(teacher, objective, task))
    module.student.eval()
    return module


@pytest.mark.parametrize("tokens_at_once", [1, 1000])
def test_chunked_logits_leave_the_terms_on_attention_as_they_are(
    tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distill.models.decoding.CHUNK_LOGITS", tokens_at_once * VOCABULARY)
    module, batch = (
        masked_module(Objective(soft=SoftTargets(), minilm=MiniLM(), hidden=HiddenStateMSE())),
        masked_batch(),
    )
    items = module.task.select(batch)
    needs = frozenset({"hidden_states", NAME})
    outputs = []
    for model in (module.student, module.signal.model):
        output = run_model(model, batch, needs)
        outputs.append(
            type(module.task.run(model, batch, items, needs).whole())(
                logits=output.logits[batch["labels"] != IGNORED], hidden_states=output.hidden_states,
                attention_vectors=output[NAME],
            )
        )  # fmt: skip
    expected, sums = module.objective(*outputs, items)
    loss, totals = module.losses(batch)
    torch.testing.assert_close((loss, totals), (expected, sums))
    parameters = list(module.student.parameters())
    for gradient, wanted in zip(
        torch.autograd.grad(loss, parameters, allow_unused=True),
        torch.autograd.grad(expected, parameters, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-4)


def test_without_a_term_on_logits_the_head_is_not_computed() -> None:
    module = masked_module(Objective(hidden=HiddenStateMSE(), attention=AttentionScoreMSE()))
    module.student.vocab_projector.register_forward_hook(lambda *arguments: pytest.fail("the head is computed"))
    loss, _ = module.losses(masked_batch())
    loss.backward()
    assert module.student.base_model.transformer.layer[0].attention.q_lin.weight.grad is not None
