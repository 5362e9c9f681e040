"""Tests of the bidirectional language model: both directions by themselves, padding, saving, students and export."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students import bilstm, distilbert
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification

from distill.core.errors import UserError
from distill.edge.bundle_files import session
from distill.export.onnx import export_onnx
from distill.kinds import TokenClassification
from distill.losses import HiddenStateMSE, MiniLMv2, Objective, Term
from distill.models import compatibility
from distill.models.architectures.modeling_bilm import (
    BilmConfig,
    BilmForPreTraining,
    BilmForQuestionAnswering,
    BilmForSequenceClassification,
    BilmForTokenClassification,
    BilmModel,
    BilmPreTrainedModel,
    ScalarMix,
)
from distill.models.architectures.modeling_bilstm import (
    BilstmConfig,
    FeatureBilstmConfig,
    FeatureBilstmForTokenClassification,
)
from distill.models.forward import output_logits
from distill.models.loading import auto_class_of

VOCABULARY, DIM = 60, 6
HEADS = (
    BilmModel, BilmForPreTraining, BilmForSequenceClassification, BilmForTokenClassification, BilmForQuestionAnswering,
)  # fmt: skip


def model(head: type[Any] = BilmForPreTraining, *, layers: int = 3) -> Any:
    """Returns a model with weights large enough for differences to show."""
    torch.manual_seed(0)
    built = head(BilmConfig(vocab_size=VOCABULARY, hidden_dim=DIM, num_hidden_layers=layers, num_labels=3)).eval()
    for parameter in built.parameters():
        parameter.data.mul_(2)
    return built


def tokens(batch: int, length: int, *, seed: int = 0) -> Tensor:
    return torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("position", [0, 3, 6])
def test_a_changed_token_moves_only_forward_states_from_it_on_and_backward_states_up_to_it(position: int) -> None:
    network, ids = model(BilmModel), tokens(2, 7)
    other = ids.clone()
    other[:, position] = 2
    before, after = (network(given, output_hidden_states=True) for given in (ids, other))
    place = torch.arange(7)
    for layer, changed in zip(before.hidden_states[1:], after.hidden_states[1:], strict=True):
        moved = (layer != changed).unflatten(-1, (2, DIM)).all(dim=-1)  # [B, L, 2]
        same = (layer == changed).unflatten(-1, (2, DIM)).all(dim=-1)
        assert torch.equal(moved, torch.stack([place >= position, place <= position], dim=-1).expand(2, -1, -1))
        assert torch.equal(same, ~moved)
    moved = (before.direction_states != after.direction_states).all(dim=-1)
    assert torch.equal(moved, torch.stack([place >= position, place <= position], dim=-1).expand(2, -1, -1))


def test_no_logit_of_a_token_depends_on_the_token() -> None:
    network, ids = model(), tokens(1, 6)
    for position in range(6):
        other = ids.clone()
        other[:, position] = 3
        logits, changed = network(ids).logits[0], network(other).logits[0]  # [L, 2, V]
        if position > 0:
            assert torch.equal(logits[position - 1, 0], changed[position - 1, 0])
        if position < 5:
            assert torch.equal(logits[position + 1, 1], changed[position + 1, 1])
        assert not torch.equal(logits[position], changed[position])


def test_each_direction_is_a_stack_of_lstms_over_the_text_or_the_reversed_text() -> None:
    network, ids = model(BilmModel, layers=2), tokens(2, 5)
    expected = []
    for name, reverse in (("forwards", False), ("backwards", True)):
        embedded = network.embeddings(ids.flip(1) if reverse else ids) * DIM**0.5
        first, _ = getattr(network.layers[0], name)(embedded)
        second, _ = getattr(network.layers[1], name)(first)
        states = first + second
        expected.append(states.flip(1) if reverse else states)
    output = network(ids, output_hidden_states=True)
    torch.testing.assert_close(output.direction_states, torch.stack(expected, dim=2))
    torch.testing.assert_close(output.last_hidden_state, torch.cat(expected, dim=-1))
    embeddings = network.embeddings(ids) * DIM**0.5
    torch.testing.assert_close(output.hidden_states[0], torch.cat([embeddings, embeddings], dim=-1))
    assert [tuple(states.shape) for states in output.hidden_states] == [(2, 5, 2 * DIM)] * 3


def test_layers_are_mixed_with_the_softmax_of_their_weights_and_a_scale() -> None:
    mix = ScalarMix(3)
    states = tuple(torch.full((1, 2, 4), value) for value in (1.0, 10.0, 100.0))
    torch.testing.assert_close(mix(states), torch.full((1, 2, 4), 37.0))
    mix.weights.data = torch.tensor([0.0, 0.0, 1.0]) * torch.tensor(2.0).log()  # 1/4, 1/4, 1/2
    mix.gamma.data.fill_(2.0)
    torch.testing.assert_close(mix(states), torch.full((1, 2, 4), 2 * (0.25 + 2.5 + 50)))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_neither_logits_nor_hidden_states(head: type[BilmPreTrainedModel], side: str) -> None:
    network, ids = model(head), tokens(3, 6)
    garbage, real = torch.full((3, 4), 7), torch.ones_like(ids)
    parts = [(garbage, 0 * garbage), (ids, real)] if side == "left" else [(ids, real), (garbage, 0 * garbage)]
    padded, mask = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    plain, result = network(ids, output_hidden_states=True), network(padded, mask, output_hidden_states=True)
    for before, after in zip(plain.hidden_states, result.hidden_states, strict=True):
        torch.testing.assert_close(before, after[mask.bool()].view_as(before))
    logits, of_padded = output_logits(network, plain, real), output_logits(network, result, mask)
    of_texts = head is BilmForSequenceClassification
    torch.testing.assert_close(logits, of_padded if of_texts else of_padded[mask.bool()].view_as(logits))


def test_the_table_of_the_embeddings_stands_once_in_the_file(tmp_path: Path) -> None:
    network, ids = model(), tokens(1, 4)
    assert network.decoder.weight is network.bilm.embeddings.weight
    network.save_pretrained(tmp_path)
    tables = [name for name, t in load_file(tmp_path / "model.safetensors").items() if t.shape == (VOCABULARY, DIM)]
    assert len(tables) == 1
    again = BilmForPreTraining.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(ids).logits, network(ids).logits)
    assert auto_class_of(again) == "AutoModelForPreTraining"
    tagger = AutoModelForTokenClassification.from_pretrained(tmp_path, num_labels=3)
    assert torch.equal(tagger.bilm.embeddings.weight, network.decoder.weight)


def test_added_tokens_have_rows_in_the_table_of_both_ends() -> None:
    network, ids = model(), tokens(1, 4)
    before = network(ids).logits
    network.resize_token_embeddings(VOCABULARY + 3, mean_resizing=False)
    assert network.decoder.weight is network.bilm.embeddings.weight
    after = network(ids).logits
    assert after.shape == (1, 4, 2, VOCABULARY + 3)
    torch.testing.assert_close(after[..., :VOCABULARY], before)
    assert network(ids + 3).logits.isfinite().all()


def test_a_student_has_some_of_the_layers_and_a_bilstm_begins_with_the_embeddings() -> None:
    teacher = model(BilmForTokenClassification, layers=4)
    student = distilbert.from_teacher(teacher)
    assert type(student) is BilmForTokenClassification
    for place, index in enumerate((0, 3)):
        expected = teacher.bilm.layers[index].state_dict()
        assert all(torch.equal(t, expected[name]) for name, t in student.bilm.layers[place].state_dict().items())
    assert student.inherited["classifier.weight"] == "classifier.weight"
    assert "mix.weights" not in student.inherited
    small = bilstm.from_teacher(teacher, task=TokenClassification())
    assert small.embeddings.weight.shape == (VOCABULARY, DIM)
    assert small.inherited == {"embeddings.weight": "bilm.embeddings.weight"}


@pytest.mark.parametrize("term", [MiniLMv2(relation_heads=2)])
def test_attention_is_refused(term: Term) -> None:
    teacher, student = model(BilmForTokenClassification, layers=4), model(BilmForTokenClassification, layers=2)
    expected = (
        r"objective given: the term asked needs attention.*, which the teacher \(BilmForTokenClassification\) does"
    )
    with pytest.raises(UserError, match=expected):
        compatibility.check_outputs(Objective(name="given", terms={"asked": term}), teacher=teacher, student=student)


def test_hidden_states_of_all_layers_have_one_width() -> None:
    teacher, student = model(BilmForTokenClassification, layers=4), model(BilmForTokenClassification, layers=2)
    objective = Objective(name="given", terms={"hidden": HiddenStateMSE()})
    compatibility.check_outputs(objective, teacher=teacher, student=student)
    compatibility.check_sizes(objective, teacher=teacher, student=student)


def tagger_on_features() -> FeatureBilstmForTokenClassification:
    torch.manual_seed(0)
    encoder = BilmConfig(vocab_size=VOCABULARY, hidden_dim=DIM, num_hidden_layers=2)
    head = BilstmConfig(vocab_size=None, embedding_dim=2 * DIM, summed_layers=2, hidden_dim=4, num_labels=3)
    config = FeatureBilstmConfig(encoder=encoder, bilstm=head, features="sum_all", num_labels=3)
    return FeatureBilstmForTokenClassification(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize("head", [BilmForSequenceClassification, BilmForTokenClassification, None])
def test_the_exported_file_equals_torch(tmp_path: Path, head: type[BilmPreTrainedModel] | None) -> None:
    network: nn.Module = tagger_on_features() if head is None else model(head)
    export_onnx(network, tmp_path / "model.onnx")
    exported = session(tmp_path / "model.onnx")
    for batch in (1, 3):
        for length in (1, 7, 64, 300):
            for padded in (False, True):
                ids = tokens(batch, length, seed=length)
                mask = torch.ones_like(ids)
                if padded:
                    mask[-1, (length + 1) // 2 :] = 0
                with torch.no_grad():
                    expected = network(ids, mask).logits.numpy()
                feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
                if head is None:  # For encoders that read token types.
                    feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
                visible = mask.bool().numpy() if expected.shape[:2] == mask.shape else slice(None)
                result = exported.run(["logits"], feed)[0]
                np.testing.assert_allclose(result[visible], expected[visible], atol=2e-5)
