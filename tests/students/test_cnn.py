"""Tests of the CNN student: its convolutions, padding, pairs, refusals, saving and export."""

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from distill.builtin.students import bilstm, cnn
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.export import graph
from distill.export.onnx import export_onnx
from distill.export.quantization import RecipeInput, write_dynamic
from distill.kinds import Classification, MaskedLM, QuestionAnswering, TokenClassification
from distill.models.architectures.modeling_cnn import (
    CnnConfig,
    CnnForSequenceClassification,
    CnnForTokenClassification,
    CnnPreTrainedModel,
    DilatedLayer,
    Windows,
)

SINGLE, PAIR = Classification(text="sentence"), Classification(text=["a", "b"])
SEPARATOR = 3
VOCABULARY = 100


def model(head: type[Any] = CnnForSequenceClassification, *, pair: bool = False) -> Any:
    """Returns a CNN with weights large enough for differences to show."""
    torch.manual_seed(0)
    layers = {"widths": [2, 3, 4]} if head is CnnForSequenceClassification else {"dilations": [1, 2]}
    config = CnnConfig(
        vocab_size=VOCABULARY, embedding_dim=8, hidden_dim=12, classifier_dim=10, pair=pair, sep_token_id=SEPARATOR,
        num_labels=3, **layers,
    )  # fmt: skip
    built = head(config).eval()
    for parameter in built.parameters():
        parameter.data.mul_(2)
    return built


def tokens(batch: int, length: int, *, seed: int = 0) -> Tensor:
    """Returns ids `[B, L]` with a separator in the middle and one at the end."""
    ids = torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
    ids[:, length // 2] = ids[:, -1] = SEPARATOR
    return ids


HEADS = [
    (CnnForSequenceClassification, False),
    (CnnForSequenceClassification, True),
    (CnnForTokenClassification, False),
]


def test_windows_are_convolutions_of_each_width() -> None:
    torch.manual_seed(0)
    windows, states = Windows(5, 6, [2, 3, 5]), torch.randn(2, 9, 5)
    padded = nn.functional.pad(states.mT, (0, 4))  # [B, D, W]
    expected = [
        nn.functional.conv1d(padded, layer.weight.unflatten(1, (-1, 5)).mT, layer.bias)[..., :9].mT
        for layer in windows.filters
    ]
    torch.testing.assert_close(windows(states), torch.cat(expected, dim=-1))


@pytest.mark.parametrize(("width", "dilation"), [(1, 1), (3, 1), (3, 4), (5, 2)])
def test_a_layer_for_tokens_is_a_dilated_convolution_of_the_same_length(width: int, dilation: int) -> None:
    torch.manual_seed(0)
    layer, states = DilatedLayer(4, 6, width=width, dilation=dilation), torch.randn(2, 7, 4)
    weight = layer.filters.weight.unflatten(1, (width, 4)).mT
    output = nn.functional.conv1d(states.mT, weight, layer.filters.bias, padding="same", dilation=dilation).mT.relu()
    torch.testing.assert_close(layer(states), output)
    wide = DilatedLayer(6, 6, width=width, dilation=dilation)
    weight = wide.filters.weight.unflatten(1, (width, 6)).mT
    added = nn.functional.conv1d(output.mT, weight, wide.filters.bias, padding="same", dilation=dilation).mT.relu()
    torch.testing.assert_close(wide(output), output + added)


@pytest.mark.parametrize(("head", "pair"), HEADS)
def test_padding_on_the_left_changes_no_logit(head: type[CnnPreTrainedModel], pair: bool) -> None:
    network, ids = model(head, pair=pair), tokens(3, 9)
    garbage, real = torch.full((3, 5), 7), torch.ones_like(ids)
    padded, mask = torch.cat([garbage, ids], dim=1), torch.cat([0 * garbage, real], dim=1)
    plain, result = network(ids).logits, network(padded, mask).logits
    if head is CnnForTokenClassification:
        result = result[mask.bool()].view_as(plain)
    torch.testing.assert_close(plain, result)


def pooled(network: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the inputs of the head for a batch of texts."""
    seen: list[Tensor] = []
    handle = network.pre_classifier.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    network(ids, mask)
    handle.remove()
    return seen[0]


def reads_one(network: Any) -> Any:
    """Returns a model of single texts with the windows of this one."""
    alone = model()
    alone.embeddings, alone.windows = network.embeddings, network.windows
    return alone


def test_no_window_reads_both_texts_of_a_pair() -> None:
    network = model(pair=True)
    first, second = torch.tensor([[9, 8, SEPARATOR]]), torch.tensor([[7, 6, 5, SEPARATOR]])
    u, v, product, difference = pooled(network, torch.cat([first, second], dim=1)).chunk(4, dim=-1)
    torch.testing.assert_close(product, u * v)
    torch.testing.assert_close(difference, (u - v).abs())
    alone = reads_one(network)
    torch.testing.assert_close(u, pooled(alone, first))
    torch.testing.assert_close(v, pooled(alone, second))
    # In a batch with a longer pair, padded on the left.
    ids = torch.tensor([[7, 7, 9, 8, SEPARATOR, 7, 6, 5, SEPARATOR], [9, SEPARATOR, 4, 5, 6, 7, 8, 9, SEPARATOR]])
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    torch.testing.assert_close(pooled(network, ids, mask)[:1], torch.cat([u, v, product, difference], dim=-1))


def test_a_missing_second_text_has_features_of_zero() -> None:
    network, first = model(pair=True), torch.tensor([[9, 8, 7]])
    u, v, product, difference = pooled(network, first).chunk(4, dim=-1)
    torch.testing.assert_close(u, pooled(reads_one(network), first))
    assert not v.any()
    assert not product.any()
    torch.testing.assert_close(difference, u)


def test_the_embeddings_are_those_of_a_bilstm(teacher: PreTrainedModel) -> None:
    width = teacher.config.hidden_size
    for given, expected in ((None, width), (width, width), (width // 2, width // 2)):
        student = cnn.from_teacher(teacher, task=SINGLE, embedding_dim=given)
        reference = bilstm.from_teacher(teacher, task=SINGLE, embedding_dim=expected)
        torch.testing.assert_close(student.embeddings.weight, reference.embeddings.weight)
        assert student.inherited == {"embeddings.weight": "bert.embeddings.word_embeddings.weight"}
    assert student.training
    assert student.config.id2label == teacher.config.id2label
    assert cnn.from_teacher(teacher, task=SINGLE, init="random").inherited == {}


def test_the_layers_are_those_of_the_kind_of_task(teacher: PreTrainedModel) -> None:
    texts = cnn.from_teacher(teacher, task=SINGLE, widths=[1, 2], hidden_dim=8)
    assert [layer.weight.shape for layer in texts.windows.filters] == [(4, 32), (4, 64)]
    assert (texts.config.num_hidden_layers, texts.config.hidden_size) == (1, 8)
    tags = cnn.from_teacher(teacher, task=TokenClassification(), dilations=[1, 2, 4, 8], hidden_dim=8)
    assert [layer.dilation for layer in tags.layers] == [1, 2, 4, 8]
    assert (tags.config.num_hidden_layers, tags.config.widths) == (4, [])


TAGS = TokenClassification(max_length=16)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"hidden_dim": 0}, "got student.hidden_dim=0, expected a whole number of at least 1"),
        ({"classifier_dim": 1.5}, "got student.classifier_dim=1.5, expected a whole number of at least 1"),
        ({"embedding_dim": 0}, "got student.embedding_dim=0, expected a whole number of at least 1"),
        (
            {"embedding_dim": 33},
            "got student.embedding_dim=33, expected at most 32, the width of the teacher's embeddings",
        ),
        ({"widths": [3, 0]}, r"got student.widths=\[3, 0\], expected a list of whole numbers of at least 1"),
        ({"widths": 3}, "got student.widths=3, expected a list of whole numbers of at least 1"),
        ({"dilations": [1, -2]}, r"got student.dilations=\[1, -2\], expected a list of whole numbers of at least 1"),
        ({"tag_width": 0}, "got student.tag_width=0, expected a whole number of at least 1"),
        (
            {"tag_width": 4},
            "got student.tag_width=4, expected an odd number, because a tag belongs to the token in the middle: take 5",
        ),
        (
            {"hidden_dim": 100},
            r"got student.hidden_dim=100 for 3 widths \(student.widths=\[3, 4, 5\]\), expected a multiple of 3",
        ),
        (
            {"task": TAGS, "tag_width": 5, "dilations": [1, 8]},
            r"got student.tag_width=5 and student.dilations=\[1, 8\], which reach 16 tokens far, expected less than "
            "task.max_length=16: take smaller ones, or raise task.max_length",
        ),
        ({"dropout": 1}, "got student.dropout=1, expected a share from 0 to below 1"),
        ({"init": "zero"}, "got student.init=zero, expected teacher or random"),
        ({"task": PAIR}, "has no separator between two texts"),
    ],
)
def test_invalid_options_are_refused(teacher: PreTrainedModel, options: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        cnn.from_teacher(teacher, **({"task": SINGLE} | options))


def test_a_size_that_the_task_does_not_read_is_not_compared_with_its_length(teacher: PreTrainedModel) -> None:
    assert cnn.from_teacher(teacher, task=TAGS, widths=[20]).config.widths == []
    short = Classification(text="sentence", max_length=5)
    assert cnn.from_teacher(teacher, task=short, dilations=[20]).config.dilations == []


@pytest.mark.parametrize(
    ("task", "kind"),
    [(MaskedLM(), "mlm (masked_lm)"), (QuestionAnswering(), "question_answering")],
    ids=["mlm", "answers"],
)
def test_other_tasks_are_refused_by_name(teacher: PreTrainedModel, task: Task, kind: str) -> None:
    with pytest.raises(UserError) as refused:
        cnn.from_teacher(teacher, task=task)
    assert str(refused.value).startswith("student cnn has no head for task ")
    assert kind in str(refused.value)
    assert str(refused.value).endswith(", only for labels and numbers of texts and for tags: take +student=distilbert")


@pytest.mark.parametrize(("head", "products"), [(CnnForTokenClassification, 3)])
def test_every_product_is_computed_in_int8(tmp_path: Path, head: type[CnnPreTrainedModel], products: int) -> None:
    export_onnx(model(head), tmp_path / "model.onnx")
    assert len(graph.find_products(graph.load(tmp_path / "model.onnx"))) == products
    write_dynamic(RecipeInput(tmp_path / "model.onnx", 7), tmp_path / "model.int8.onnx")
    counts = Counter(node.op_type for node in onnx.load(str(tmp_path / "model.int8.onnx")).graph.node)
    assert counts["MatMulInteger"] == products
    assert not {"MatMul", "Gemm", "Conv", "ConvInteger"} & counts.keys()
