"""Tests of the BiLSTM student: padding, pairs, initial embeddings, saving and export."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill.builtin.students import bilstm
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from distill.core.errors import UserError
from distill.edge.bundle_files import session
from distill.export.onnx import export_onnx
from distill.export.quantization import RecipeInput, write_dynamic
from distill.kinds import Classification, MaskedLM
from distill.models.architectures.modeling_bilstm import (
    BilstmConfig,
    BilstmForQuestionAnswering,
    BilstmForSequenceClassification,
    BilstmForTokenClassification,
    BilstmLayer,
    BilstmModel,
    BilstmPreTrainedModel,
)
from distill.models.forward import output_logits
from tests.models.elsewhere import check_loads_without_distill

SINGLE, PAIR = Classification(text="sentence"), Classification(text=["a", "b"])
SEPARATOR = 3
VOCABULARY = 100


def model(
    head: type[Any] = BilstmForSequenceClassification, *, layers: int = 2, pair: bool = False, pooling: str = "last"
) -> Any:
    """Returns a BiLSTM with weights large enough for differences to show."""
    torch.manual_seed(0)
    config = BilstmConfig(
        vocab_size=VOCABULARY, embedding_dim=16, hidden_dim=8, num_hidden_layers=layers, classifier_dim=12,
        pair=pair, pooling=pooling, sep_token_id=SEPARATOR, num_labels=3,
        sentence_vector={"pooling": "mean", "normalize": True} if head is BilstmModel else None,
    )  # fmt: skip
    built = head(config).eval()
    for parameter in built.parameters():
        parameter.data.mul_(3)
    return built


def tokens(batch: int, length: int, *, seed: int = 0) -> Tensor:
    """Returns ids `[B, L]` with a separator in the middle and one at the end."""
    ids = torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
    ids[:, length // 2] = ids[:, -1] = SEPARATOR
    return ids


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("pooling", bilstm.POOLINGS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_neither_logits_nor_hidden_states(pair: bool, pooling: str, side: str) -> None:
    network, ids = model(pair=pair, pooling=pooling), tokens(3, 9)
    garbage = torch.full((3, 5), 7)
    parts = (garbage, ids) if side == "left" else (ids, garbage)
    mask = torch.cat([torch.zeros_like(garbage), torch.ones_like(ids)], dim=1)
    mask = mask if side == "left" else mask.flip(1)
    plain = network(ids, output_hidden_states=True)
    padded = network(torch.cat(parts, dim=1), mask, output_hidden_states=True)
    torch.testing.assert_close(plain.logits, padded.logits)
    for before, after in zip(plain.hidden_states, padded.hidden_states, strict=True):
        torch.testing.assert_close(before, after[mask.bool()].view_as(before))
        assert not after[~mask.bool()].any()


@pytest.mark.parametrize("head", [BilstmForTokenClassification, BilstmForQuestionAnswering, BilstmModel])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_logit_of_a_token(head: type[BilstmPreTrainedModel], side: str) -> None:
    network, ids = model(head, pair=True), tokens(3, 9)
    garbage, real = torch.full((3, 5), 7), torch.ones_like(ids)
    parts = [(garbage, 0 * garbage), (ids, real)] if side == "left" else [(ids, real), (garbage, 0 * garbage)]
    padded, mask = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    plain = output_logits(network, network(ids), real)
    result = output_logits(network, network(padded, mask), mask)
    if head is not BilstmModel:
        result = result[mask.bool()].view_as(plain)
    torch.testing.assert_close(plain, result)


def test_the_first_hidden_states_are_the_embeddings() -> None:
    network, ids = model(BilstmForTokenClassification), tokens(2, 5)
    states = network(ids, output_hidden_states=True).hidden_states
    assert [tuple(layer.shape) for layer in states] == [(2, 5, 16)] * 3
    torch.testing.assert_close(states[0], network.embeddings(ids))


def test_a_layer_is_a_bidirectional_lstm_over_packed_sequences() -> None:
    torch.manual_seed(0)
    layer, reference = BilstmLayer(4, 3), nn.LSTM(4, 3, batch_first=True, bidirectional=True)
    for name, parameter in reference.named_parameters():
        own = layer.backwards if name.endswith("_reverse") else layer.forwards
        own.get_parameter(name.removesuffix("_reverse")).data.copy_(parameter)
    lengths = torch.tensor([5, 2, 3])
    states = torch.randn(3, 5, 4)
    packed = nn.utils.rnn.pack_padded_sequence(states, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
    result = layer(states, lengths)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(result[row, :length], expected[row, :length])


def test_both_texts_of_a_pair_are_encoded_alike_and_compared() -> None:
    network = model(pair=True, pooling="max", layers=1)
    seen: list[Tensor] = []
    network.pre_classifier.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    first, second = torch.tensor([[9, 8, SEPARATOR]]), torch.tensor([[7, 6, 5, SEPARATOR]])
    network(torch.cat([first, second], dim=1))
    network(torch.cat([first, first], dim=1))
    u, v, product, difference = seen[0].chunk(4, dim=-1)
    torch.testing.assert_close(product, u * v)
    torch.testing.assert_close(difference, (u - v).abs())
    u_again, same, _, nothing = seen[1].chunk(4, dim=-1)
    torch.testing.assert_close(u_again, u)
    torch.testing.assert_close(same, u)
    assert not nothing.any()


def test_a_missing_second_text_gives_finite_logits() -> None:
    for pooling in bilstm.POOLINGS:
        output = model(pair=True, pooling=pooling)(torch.tensor([[9, 8, 7]]), output_hidden_states=True)
        assert torch.isfinite(output.logits).all()
        assert output.hidden_states[-1].shape == (1, 3, 16)


def test_the_embeddings_start_from_the_teachers(teacher: PreTrainedModel) -> None:
    width = teacher.config.hidden_size
    whole = bilstm.from_teacher(teacher, task=SINGLE, embedding_dim=None)
    source = teacher.get_input_embeddings().weight
    scale = bilstm.EMBEDDING_RMS / source.square().mean().sqrt()
    torch.testing.assert_close(whole.embeddings.weight, source * scale)
    assert whole.inherited == {"embeddings.weight": "bert.embeddings.word_embeddings.weight"}
    assert whole.training
    assert whole.config.id2label == teacher.config.id2label
    half = bilstm.from_teacher(teacher, task=SINGLE, embedding_dim=width // 2)
    assert half.embeddings.weight.shape == (teacher.config.vocab_size, width // 2)
    # The largest singular values of the teacher's, up to their scale.
    expected = torch.linalg.svdvals(source)[: width // 2]
    singular_values = torch.linalg.svdvals(half.embeddings.weight.detach())
    torch.testing.assert_close(singular_values / singular_values[0], expected / expected[0], rtol=1e-3, atol=1e-3)
    random = bilstm.from_teacher(teacher, task=SINGLE, init="random")
    assert random.inherited == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"hidden_dim": 0}, "got student.hidden_dim=0, expected a whole number of at least 1"),
        ({"layers": 1.5}, "got student.layers=1.5, expected a whole number"),
        ({"dropout": 1}, "got student.dropout=1, expected a share"),
        ({"pooling": "sum"}, "student.pooling=sum is unknown, expected one of last, max, mean"),
        ({"init": "zero"}, "student.init=zero is unknown, expected one of teacher, random"),
        ({"task": PAIR}, "has no separator between two texts"),
    ],
)
def test_invalid_options_are_refused(teacher: PreTrainedModel, options: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        bilstm.from_teacher(teacher, **({"task": SINGLE} | options))


def test_masked_lm_is_refused(teacher: PreTrainedModel) -> None:
    with pytest.raises(
        UserError, match=r"student bilstm has no head for task mlm \(masked_lm\): take \+student=distilbert"
    ):
        bilstm.from_teacher(teacher, task=MaskedLM())


def test_a_saved_student_loads_without_distill(tmp_path: Path) -> None:
    network, ids = model(pair=True), tokens(2, 9)
    check_loads_without_distill(network, ids, tmp_path, auto="AutoModelForSequenceClassification")
    here = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    torch.testing.assert_close(here(ids).logits, network(ids).logits)


@pytest.mark.parametrize(
    ("head", "pair"),
    [
        (BilstmForSequenceClassification, True),
        (BilstmForQuestionAnswering, True),
        (BilstmModel, False),
    ],
)
def test_the_exported_files_equal_torch(tmp_path: Path, head: type[BilstmPreTrainedModel], pair: bool) -> None:
    network = model(head, pair=pair, pooling="max")
    fp32, int8 = tmp_path / "model.onnx", tmp_path / "model.int8.onnx"
    export_onnx(model(layers=1, pair=pair), tmp_path / "another.onnx")  # The first export must not fix this one.
    export_onnx(network, fp32)
    write_dynamic(RecipeInput(fp32, 7), int8)
    sessions = {path: session(path) for path in (fp32, int8)}
    for batch in (1, 3):
        for length in (1, 7, 64, 300):
            for padded in (False, True):
                ids = tokens(batch, length, seed=length)
                mask = torch.ones_like(ids)
                if padded:
                    mask[-1, (length + 1) // 2 :] = 0
                with torch.no_grad():
                    expected = output_logits(network, network(ids, mask), mask).numpy()
                feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
                visible = mask.bool().numpy() if expected.shape[:2] == mask.shape else slice(None)
                np.testing.assert_allclose(
                    sessions[fp32].run(["logits"], feed)[0][visible], expected[visible], atol=2e-5
                )
                np.testing.assert_allclose(
                    sessions[int8].run(["logits"], feed)[0][visible], expected[visible], atol=0.2
                )
