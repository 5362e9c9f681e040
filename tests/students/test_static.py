"""Tests of the static student: its mean, pairs of pieces, initial vectors, refused options, saving and export."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from distill.builtin.students import static
from onnx import numpy_helper
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import distill as d
from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.edge.bundle_files import session
from distill.export.onnx import export_onnx
from distill.export.quantization import RecipeInput, write_rows
from distill.kinds import Classification, MaskedLM
from distill.models.architectures.modeling_static import StaticConfig, StaticForSequenceClassification, StaticModel
from distill.models.architectures.modeling_texts import mark_texts
from distill.models.surgery.initialization import Origins, encode_pieces
from tests.conftest import cut_vocabulary, toy_bert

SINGLE, PAIR = Classification(text="sentence"), Classification(text=["a", "b"])
CLS, SEPARATOR, VOCABULARY = 2, 3, 100


def model(head: type[Any] = StaticForSequenceClassification, *, buckets: int = 50, pair: bool = False) -> Any:
    """Returns a static model whose tables and weights are random, and whose tokens below 5 are special."""
    torch.manual_seed(0)
    config = StaticConfig(
        vocab_size=VOCABULARY, embedding_dim=16, buckets=buckets, bucket_dim=8, classifier_dim=12, pair=pair,
        sep_token_id=SEPARATOR, num_labels=3,
        sentence_vector={"pooling": "mean", "normalize": True} if head is StaticModel else None,
    )  # fmt: skip
    built = head(config).eval()
    with torch.no_grad():
        built.weights.weight.uniform_(0.1, 1)
        built.counted[:5] = 0
        if buckets:
            built.pairs.weight.normal_()
    return built


def tokens(batch: int, length: int, *, seed: int = 0) -> Tensor:
    """Returns ids `[B, L]` with a separator in the middle and one at the end."""
    ids = torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
    ids[:, length // 2] = ids[:, -1] = SEPARATOR
    return ids


def test_tokens_of_both_texts_are_marked_on_either_side_of_padding() -> None:
    ids = torch.tensor([[CLS, 9, SEPARATOR, 8, SEPARATOR, 0], [0, 0, CLS, 9, SEPARATOR, 8]])
    mask = (ids != 0).long()
    first, second = mark_texts(ids, mask, separator=SEPARATOR).int().unbind(dim=1)
    assert first.tolist() == [[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 0]]
    assert second.tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]]
    assert mark_texts(ids, mask)[:, 0].int().tolist() == mask.tolist()
    assert mark_texts(ids).all()


def test_a_text_is_the_weighted_mean_of_its_pieces_and_of_its_pairs_of_pieces() -> None:
    network = model()
    v, w, g = network.embeddings.weight, network.weights.weight, network.pairs.weight
    [[vector]] = network.encode(torch.tensor([[CLS, 9, 7, 8, SEPARATOR]]), None)
    torch.testing.assert_close(vector[:16], (w[9] * v[9] + w[7] * v[7] + w[8] * v[8]) / 3)
    buckets = [(9 * 1_000_003 + 7) % 50, (7 * 1_000_003 + 8) % 50]
    torch.testing.assert_close(vector[16:], (g[buckets[0]] + g[buckets[1]]) / 3)
    [[alone]] = network.encode(torch.tensor([[CLS, 9, SEPARATOR]]), None)
    torch.testing.assert_close(alone, torch.cat([w[9] * v[9], torch.zeros(8)]))
    [[empty]] = network.encode(torch.tensor([[CLS, SEPARATOR]]), None)
    assert not empty.any()


def test_the_order_of_words_changes_a_text_only_with_pairs_of_pieces() -> None:
    for buckets in (0, 50):
        network = model(buckets=buckets)
        logits = [network(torch.tensor([[CLS, *ids, SEPARATOR]])).logits for ids in ([9, 7, 8], [8, 7, 9])]
        assert torch.allclose(*logits, atol=1e-6) is (buckets == 0)


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_neither_logits_nor_hidden_states(pair: bool, side: str) -> None:
    network, ids = model(pair=pair), tokens(3, 9)
    garbage = torch.full((3, 5), 7)
    parts = (garbage, ids) if side == "left" else (ids, garbage)
    mask = torch.cat([torch.zeros_like(garbage), torch.ones_like(ids)], dim=1)
    mask = mask if side == "left" else mask.flip(1)
    plain = network(ids, output_hidden_states=True)
    padded = network(torch.cat(parts, dim=1), mask, output_hidden_states=True)
    torch.testing.assert_close(plain.logits, padded.logits)
    [before], [after] = plain.hidden_states, padded.hidden_states
    torch.testing.assert_close(before, after[mask.bool()].view_as(before))
    assert not after[~mask.bool()].any()


def test_both_texts_of_a_pair_are_compared() -> None:
    network = model(pair=True)
    seen: list[Tensor] = []
    network.pre_classifier.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    network(torch.tensor([[CLS, 9, 8, SEPARATOR, 7, 6, 5, SEPARATOR]]))
    u, v, difference, product = seen[0].chunk(4, dim=-1)
    torch.testing.assert_close(u, network.encode(torch.tensor([[9, 8]]), None)[:, 0])
    torch.testing.assert_close(v, network.encode(torch.tensor([[7, 6, 5]]), None)[:, 0])
    torch.testing.assert_close(difference, (u - v).abs())
    torch.testing.assert_close(product, u * v)


def test_states_sum_to_the_vector_of_a_text() -> None:
    network, ids = model(StaticModel), torch.tensor([[CLS, 9, 7, 8, SEPARATOR]])
    output = network(ids)
    torch.testing.assert_close(output.logits, torch.nn.functional.normalize(output.last_hidden_state.sum(dim=1)))


def test_training_leaves_out_pieces() -> None:
    network, ids = model(), tokens(2, 40)
    network.config.token_dropout = 0.5
    whole = network.encode(ids, None)
    torch.testing.assert_close(whole, network.encode(ids, None))
    assert not torch.allclose(whole, network.train().encode(ids, None))


def origins(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Origins:
    shares = torch.zeros(len(tokenizer))
    shares[7], shares[9] = 0.75, 0.25
    return Origins(tokenizer, lambda: encode_pieces(teacher.base_model, tokenizer) * 2, lambda: shares)


def make(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task = SINGLE, **options: Any) -> Any:
    return static.from_teacher(teacher, task=task, origins=origins(teacher, tokenizer), **{"buckets": 8} | options)


def test_pieces_are_encoded_as_texts_of_their_own(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    vectors = encode_pieces(teacher, tokenizer)
    piece = tokenizer("film", return_tensors="pt")
    assert piece["input_ids"].shape == (1, 3)
    expected = teacher.base_model(**piece).last_hidden_state.mean(dim=1)[0]
    torch.testing.assert_close(vectors[piece["input_ids"][0, 1]], expected)
    assert not vectors[tokenizer.all_special_ids].any()


def test_the_vectors_start_from_principal_components_and_the_weights_from_shares(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    width, special = teacher.config.hidden_size, tokenizer.all_special_ids
    student = make(teacher, tokenizer, dim=None)
    source = encode_pieces(teacher, tokenizer)
    is_piece = torch.ones(len(source), dtype=torch.bool)
    is_piece[special] = False
    source, table = source[is_piece], student.embeddings.weight[is_piece]
    ratio = torch.cdist(table, table) / torch.cdist(source, source)  # A rotation and a scale keep all distances.
    ratio = ratio[~torch.eye(len(table), dtype=torch.bool)]
    torch.testing.assert_close(ratio, ratio.median().expand_as(ratio), rtol=2e-3, atol=0)
    half = make(teacher, tokenizer, dim=width // 2).embeddings.weight
    assert half.shape == (len(tokenizer), width // 2)
    centered = source - source.mean(dim=0)
    expected, values = (torch.linalg.svdvals(tensor)[: width // 2] for tensor in (centered, half.detach()))
    torch.testing.assert_close(values / values[0], expected / expected[0], rtol=1e-3, atol=1e-3)
    assert student.weights.weight[[7, 8], 0].tolist() == pytest.approx([1e-3 / (1e-3 + 0.75), 1])
    assert student.counted.nonzero().squeeze(-1).tolist() == is_piece.nonzero().squeeze(-1).tolist()
    weighted = (student.weights.weight * student.embeddings.weight).detach()[[7, 9]].square().mean(dim=1)
    assert float(weighted @ torch.tensor([0.75, 0.25])) == pytest.approx(1, rel=1e-4)
    assert student.training


def test_the_start_is_the_sentence_encoder_the_teacher_or_random(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    other = toy_bert(len(tokenizer))
    with torch.no_grad():
        other.bert.encoder.layer[0].output.dense.weight.normal_(generator=torch.Generator().manual_seed(1))
    source = Origins(tokenizer, lambda: encode_pieces(other.base_model, tokenizer), origins(teacher, tokenizer).shares)
    tables = {
        start: static.from_teacher(teacher, task=SINGLE, origins=source, start=start, buckets=0).embeddings.weight
        for start in ("sentence", "teacher", "random")
    }
    same = static.from_teacher(other, task=SINGLE, origins=source, start="teacher", buckets=0).embeddings.weight
    lengths = {start: table.norm(dim=1) for start, table in tables.items()}
    torch.testing.assert_close(lengths["sentence"], same.norm(dim=1), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(lengths["sentence"], lengths["teacher"], rtol=0.1)
    assert not torch.allclose(lengths["random"], lengths["teacher"], rtol=0.1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dim": 0, "buckets": 0}, "got student.dim=0, expected a whole number of at least 1"),
        ({"dim": 0}, "student.buckets=8 has vectors of two pieces beside a table of single ones, and student.dim=0"),
        ({"buckets": -1}, "got student.buckets=-1, expected a whole number of at least 0"),
        ({"bucket_dim": 0}, "got student.bucket_dim=0, expected a whole number of at least 1"),
        ({"classifier_dim": 1.5}, "got student.classifier_dim=1.5, expected a whole number"),
        ({"dropout": 1}, "got student.dropout=1, expected a share"),
        ({"token_dropout": -0.1}, "got student.token_dropout=-0.1, expected a share"),
        ({"smoothing": 0}, "got student.smoothing=0, expected a number above 0, such as 0.001"),
        ({"start": "zero"}, "got student.start=zero, expected one of sentence, teacher, random"),
        ({"task": PAIR}, "has no separator between two texts"),
        ({"task": MaskedLM()}, r"student static has no head for task mlm \(masked_lm\), because it reads a text with"),
        ({"task": d.tasks.TokenClassification(tokens="tokens", tags="tags")}, r"\(token_classification\), because"),
        ({"task": d.tasks.Embedding(pooling="max")}, "and task.pooling=max: set task.pooling=mean"),
    ],
)
def test_invalid_options_are_refused(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        make(teacher, tokenizer, **options)


def test_tables_are_quantized_by_rows_and_matrices_are_not(tmp_path: Path) -> None:
    config = StaticConfig(vocab_size=2000, embedding_dim=64, buckets=2000, bucket_dim=64, num_labels=2)
    network = StaticForSequenceClassification(config).eval()
    torch.nn.init.normal_(network.pairs.weight)
    export_onnx(network, tmp_path / "model.onnx")
    write_rows(RecipeInput(tmp_path / "model.onnx", 7), tmp_path / "int8.onnx")
    tables, rest = 2 * 2000 * (64 + 4), 512 * 129 + 513 * 2 + 3 * 2000
    constants = onnx.load(str(tmp_path / "int8.onnx")).graph.initializer
    assert sum(numpy_helper.to_array(constant).nbytes for constant in constants) == pytest.approx(
        tables + 4 * rest, rel=1e-3
    )
    ids = torch.randint(0, 2000, (4, 20), generator=torch.Generator().manual_seed(0))
    feed = {"input_ids": ids.numpy(), "attention_mask": np.ones_like(ids.numpy())}
    logits = session(tmp_path / "int8.onnx").run(["logits"], feed)[0]
    np.testing.assert_allclose(logits, network(ids).logits.detach().numpy(), atol=0.01)


def test_weights_of_many_pieces_stay_in_float(tmp_path: Path) -> None:
    export_onnx(StaticModel(StaticConfig(vocab_size=60_000, embedding_dim=2)), tmp_path / "model.onnx")
    write_rows(RecipeInput(tmp_path / "model.onnx", 7), tmp_path / "int8.onnx")
    constants = onnx.load(str(tmp_path / "int8.onnx")).graph.initializer
    shapes = {tuple(tensor.dims) for tensor in constants if tensor.data_type == onnx.TensorProto.INT8}
    assert shapes == {(60_000, 2)}


def test_a_smaller_vocabulary_keeps_weights_and_buckets_of_pieces(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    student = make(teacher, tokenizer).eval()
    torch.nn.init.normal_(student.pairs.weight)
    text = "a dull and lifeless mess"
    smaller, reader = cut_vocabulary(student, tokenizer, [text])
    assert len(reader) < len(tokenizer)
    logits = [m(**_read(t, text)).logits for m, t in ((student, tokenizer), (smaller, reader))]
    torch.testing.assert_close(*logits)


def _read(tokenizer: PreTrainedTokenizerBase, text: str) -> dict[str, Tensor]:
    inputs = tokenizer(text, return_tensors="pt")
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}
