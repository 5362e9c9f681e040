"""Tests of the BiLSTM student: padding, pairs, initial embeddings, saving and export."""

from typing import Any

import pytest
import torch
from distill.builtin.students import bilstm
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.core.errors import UserError
from distill.kinds import Classification, MaskedLM
from distill.losses import HiddenStateMSE, Objective
from distill.models.architectures.modeling_bilstm import (
    BilstmConfig,
    BilstmForQuestionAnswering,
    BilstmForSequenceClassification,
    BilstmForTokenClassification,
    BilstmLayer,
    BilstmModel,
    BilstmPreTrainedModel,
)
from distill.models.compatibility import check_sizes
from distill.models.forward import output_logits

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
@pytest.mark.parametrize("pooling", ["last", "max", "mean"])
def test_padding_on_the_left_changes_neither_logits_nor_hidden_states(pair: bool, pooling: str) -> None:
    network, ids = model(pair=pair, pooling=pooling), tokens(3, 9)
    garbage = torch.full((3, 5), 7)
    mask = torch.cat([torch.zeros_like(garbage), torch.ones_like(ids)], dim=1)
    plain = network(ids, output_hidden_states=True)
    padded = network(torch.cat([garbage, ids], dim=1), mask, output_hidden_states=True)
    torch.testing.assert_close(plain.logits, padded.logits)
    for before, after in zip(plain.hidden_states, padded.hidden_states, strict=True):
        torch.testing.assert_close(before, after[mask.bool()].view_as(before))
        assert not after[~mask.bool()].any()


@pytest.mark.parametrize("head", [BilstmForTokenClassification, BilstmForQuestionAnswering, BilstmModel])
def test_padding_on_the_left_changes_no_logit_of_a_token(head: type[BilstmPreTrainedModel]) -> None:
    network, ids = model(head, pair=True), tokens(3, 9)
    garbage, real = torch.full((3, 5), 7), torch.ones_like(ids)
    padded, mask = torch.cat([garbage, ids], dim=1), torch.cat([0 * garbage, real], dim=1)
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
    for pooling in ("last", "max", "mean"):
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
        ({"pooling": "sum"}, "got student.pooling=sum, expected one of last, max, mean"),
        ({"init": "zero"}, "got student.init=zero, expected teacher or random"),
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


def test_states_of_several_widths_are_no_layers_to_map(teacher: PreTrainedModel) -> None:
    student = bilstm.from_teacher(teacher, task=SINGLE, hidden_dim=8)
    with pytest.raises(UserError, match=r"which the student \(BilstmForSequenceClassification\) does not give"):
        check_sizes(Objective(hidden=HiddenStateMSE()), teacher=teacher, student=student)
