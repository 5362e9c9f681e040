"""Tests that gradients of a loss over a vocabulary, computed a chunk at a time, are those of the whole."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.students.layers import from_teacher
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from distill.data import batches
from distill.kinds import CausalLM
from distill.losses import Cosine, HardLabels, Objective, SoftTargets
from distill.models import compatibility
from distill.models.forward import run_model
from distill.text.vocabulary import train_bytes
from distill.training.module import DistillationModule, sum_with_gradient
from tests.conftest import SETTINGS, Toy, last_state, live, outputs_at_items, write_corpus

VOCABULARY = 300
TASK = CausalLM()
NEEDS = frozenset({"hidden_states"})
MODELS: dict[str, Any] = {
    "tied": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=32, initializer_range=0.1,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )
    ),
    "untied": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            initializer_range=0.1,
        )
    ),
}  # fmt: skip


def triple_loss() -> Objective:
    return Objective(soft=SoftTargets(weight=5), hard=HardLabels(weight=2), cosine=Cosine())


def make_module(name: str) -> DistillationModule:
    torch.manual_seed(0)
    teacher: PreTrainedModel = MODELS[name]().eval()
    objective = triple_loss()
    student = from_teacher(teacher, depth=1)
    objective.connect(compatibility.encoder_size(student), compatibility.encoder_size(teacher))
    return DistillationModule(student=student, objective=objective, task=TASK, signal=live(teacher, objective, TASK))


def batch_of(rows: int = 3) -> dict[str, Tensor]:
    ids = torch.randint(1, VOCABULARY, (rows, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask, "example_id": torch.arange(rows)}


def whole_loss(module: DistillationModule, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the loss and the sums of the terms from the logits of all tokens at once."""
    items = TASK.select(batch)
    with torch.no_grad():
        teacher = outputs_at_items(run_model(module.signal.model, batch, NEEDS), items)
    return module.objective(outputs_at_items(run_model(module.student, batch, NEEDS), items), teacher, items)


def gradients_of(module: DistillationModule, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tokens_at_once", [1, 5, 1000])
@pytest.mark.parametrize("model", MODELS)
def test_loss_and_gradients_are_those_of_the_whole(
    model: str, tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, batch = make_module(model).double(), batch_of()  # Float32 rounds differently on each processor.
    module.signal.model.double()
    expected, expected_sums = whole_loss(module, batch)
    wanted = gradients_of(module, 3 * expected)
    monkeypatch.setattr("distill.models.decoding.CHUNK_LOGITS", tokens_at_once * VOCABULARY)
    seen: list[int] = []
    module.student.lm_head.register_forward_hook(lambda layer, inputs, output: seen.append(output.shape[1]))
    loss, sums = module.losses(batch)
    assert max(seen) == min(tokens_at_once, 21)
    gradients = gradients_of(module, 3 * loss)
    assert sum(seen) == 21  # Every token but the first of a sequence, once.
    torch.testing.assert_close((loss, sums), (expected, expected_sums), atol=1e-6, rtol=1e-6)
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-6, rtol=1e-5, msg=name)


def test_bf16_has_the_gradients_of_the_whole_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = make_module("tied"), batch_of()
    monkeypatch.setattr("distill.models.decoding.CHUNK_LOGITS", 5 * VOCABULARY)
    with torch.autocast("cpu", torch.bfloat16):
        expected, loss = whole_loss(module, batch)[0], module.losses(batch)[0]
    wanted, gradients = gradients_of(module, expected), gradients_of(module, loss)
    assert float(loss) == pytest.approx(float(expected), rel=1e-2)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32
        assert float((gradient - wanted[name]).norm()) < 0.05 * float(wanted[name].norm()) + 1e-6, name


def test_a_parameter_and_an_output_that_share_a_gradient_have_it_once() -> None:
    """The gradient of a sum is one tensor for both summands."""
    module, batch = make_module("tied"), batch_of()
    items = TASK.select(batch)
    outputs = replace(TASK.run(module.student, batch, items, NEEDS), chunk_size=5)
    offset = torch.zeros(32, requires_grad=True)

    def compute(of: Any, part: Any) -> tuple[Tensor, Tensor]:
        return (of.last_hidden_state.flatten(0, 1)[part.index] + offset).square().sum(), torch.ones(1)

    loss, counts = sum_with_gradient(compute, outputs, items, [offset])
    assert float(counts) == 5  # Of 21 items, 5 at a time.
    states = outputs.last_hidden_state
    assert states is not None
    expected = states.flatten(0, 1)[items.index].square().sum()
    of_states, of_offset = torch.autograd.grad(2 * loss, [states, offset], retain_graph=False)
    torch.testing.assert_close(loss, expected)
    wanted = torch.zeros_like(states).flatten(0, 1)
    wanted[items.index] = 4 * states.detach().flatten(0, 1)[items.index]
    torch.testing.assert_close(of_states.flatten(0, 1), wanted)
    torch.testing.assert_close(of_offset, wanted.sum(dim=0), atol=1e-4, rtol=1e-5)


def test_evaluation_computes_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distill.models.decoding.CHUNK_LOGITS", 5 * VOCABULARY)
    module, batch = make_module("tied"), batch_of()
    expected, _ = whole_loss(module, batch)
    with torch.no_grad():
        loss, _ = module.losses(batch)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected.detach())


def fit_toy(directory: Path, corpus: Path, **options: Any) -> Toy:
    """Trains a student for two steps without a random element."""
    settings = replace(SETTINGS, max_epochs=None, max_steps=2, learning_rate=1e-3, **options)
    task = CausalLM(data_dir=corpus, max_length=16, dev_fraction=0.2)
    data = task.read(directory)
    tokenizer = train_bytes(data.texts(), VOCABULARY, 32)
    examples = task.encode(data, tokenizer, directory)
    loaders = batches.all_loaders(examples, **settings.batches())
    module = make_module("tied")
    toy = DistillationModule(
        student=module.student, objective=module.objective, task=task, scoring=data.with_examples(examples).scoring,
        signal=module.signal, settings=settings, steps_per_epoch=len(loaders["train"]),
    )  # fmt: skip
    fitted = Toy(toy, loaders, settings, tokenizer, directory)
    fitted.fit()
    return fitted


def test_shards_of_two_processes_have_the_weights_of_one_with_twice_the_batch(tmp_path: Path) -> None:
    """With two micro-batches a step, of which only the last one synchronizes the gradients."""
    (tmp_path / "corpus").mkdir()
    write_corpus(tmp_path / "corpus")
    states = [
        last_state(
            fit_toy(
                tmp_path / str(devices), tmp_path / "corpus", batch_size=4 // devices, devices=devices, accumulate=2,
                strategy="fsdp",
            )
        )
        for devices in (1, 2)
    ]  # fmt: skip
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=2e-5, msg=name)
