"""Tests of checkpoints whose tensors are not those of the model that their configuration names."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.models.loading import Start, load_directory
from tests.conftest import LABELS, toy_bert

AUTO_CLASS = "AutoModelForSequenceClassification"
Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Tensors]
QUERY = "bert.encoder.layer.0.attention.self.query"


def load(directory: Path, labels: tuple[str, ...] | None = LABELS, auto_class: str = AUTO_CLASS) -> Start:
    return load_directory(directory, auto_class, labels, trust_remote_code=False)


@pytest.fixture
def bert(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return toy_bert(len(tokenizer), layers=2)


@pytest.fixture
def save(bert: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Callable[..., Path]:
    """Saves a classifier with changed tensors and keys of its config.json."""

    def write(change: Change = lambda tensors: tensors, **keys: Any) -> Path:
        bert.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        save_file(change(load_file(tmp_path / "model.safetensors")), tmp_path / "model.safetensors", {"format": "pt"})
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | keys))
        return tmp_path

    return write


@pytest.mark.parametrize("labels", [LABELS, ("a", "b", "c")], ids=["fitting", "new head"])
@pytest.mark.parametrize(
    ("change", "keys", "message"),
    [
        (lambda tensors: tensors, {"num_hidden_layers": 4}, "its weights lack 32 tensors of the encoder of a BertFor"),
        (lambda tensors: {f"model.{name}": tensor for name, tensor in tensors.items()}, {}, "its weights lack 37 tens"),
        (lambda tensors: tensors, {"vocab_size": 20}, r"word_embeddings.weight is of shape \[\d+, 32\] in its weights"),
        (lambda tensors: tensors, {"hidden_size": 64}, r"of shape \[32\] in its weights and \[64\] by its config.json"),
        (
            lambda tensors: tensors | {f"{QUERY.rpartition('.')[0]}.distance_embedding.weight": torch.zeros(9, 8)},
            {"position_embedding_type": "relative_key"},
            r"it has relative positions \(position_embedding_type in config.json\), and a BertForS",
        ),
    ],
    ids=["layers", "prefix", "vocabulary", "width", "positions"],
)
def test_an_encoder_that_is_not_that_of_the_configuration_is_refused(
    change: Change, keys: dict[str, Any], message: str, labels: tuple[str, ...], save: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match=f"cannot be loaded: .*{message}"):
        load(save(change, **keys), labels)


@pytest.mark.parametrize("is_encoder", [False, True], ids=["classifier", "encoder"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("position_embeddings", r"lack 1 tensors of the encoder of a Bert\w+, such as (bert.)?embeddings.position_emb"),
        ("embeddings.LayerNorm", r"lack 2 tensors of the encoder of a Bert\w+, such as (bert.)?embeddings.LayerNorm.b"),
        ("token_type_embeddings", r"lack 1 tensors of the encoder of a Bert\w+, such as (bert.)?embeddings.token_type"),
    ],
)
def test_embeddings_that_the_weights_lack_are_no_new_head(
    name: str, message: str, is_encoder: bool, save: Callable[..., Path], bert: PreTrainedModel
) -> None:
    def drop(tensors: Tensors) -> Tensors:
        left = {key: tensor for key, tensor in tensors.items() if name not in key}
        return {key.removeprefix("bert."): tensor for key, tensor in left.items()} if is_encoder else left

    with pytest.raises(UserError, match=message):
        load(save(drop), *((None, "AutoModel") if is_encoder else ()))


def test_a_pooler_may_be_new_as_a_head_may(save: Callable[..., Path]) -> None:
    directory = save(lambda tensors: {key: tensor for key, tensor in tensors.items() if "pooler" not in key})
    assert load(directory).reason == "its head is not trained (bert.pooler.dense.bias, bert.pooler.dense.weight)"


def test_a_head_of_another_size_than_its_labels_is_refused(save: Callable[..., Path]) -> None:
    directory = save(id2label={"0": "a", "1": "b", "2": "c"})
    with pytest.raises(
        UserError, match=r"classifier.bias is of shape \[2\] in its weights and \[3\] by its config.json"
    ):
        load(directory, ("a", "b", "c"))
    assert load(directory, LABELS).reason == "it has 3 labels and the task 2"


@pytest.mark.parametrize(
    ("change", "keys", "number"),
    [
        (lambda tensors: tensors, {"num_hidden_layers": 1}, 16),
        (lambda tensors: tensors | {f"{QUERY}.lora_A": torch.zeros(2, 32)}, {}, 1),
    ],
    ids=["fewer layers", "adapter"],
)
def test_tensors_of_the_layers_that_are_not_read_are_noticed(
    change: Change, keys: dict[str, Any], number: int, save: Callable[..., Path]
) -> None:
    directory = save(change, **keys)
    for labels in (LABELS, ("a", "b", "c")):
        [notice] = load(directory, labels).notices
        assert f"a BertForSequenceClassification has no place for {number} tensors in the layers" in notice


def test_tensors_of_other_heads_are_not_noticed(save: Callable[..., Path]) -> None:
    start = load(save(), None, "AutoModelForMaskedLM")
    assert not start.fits
    assert "its head is not trained (cls.predictions.bias" in start.reason
    assert start.notices == []
    assert load(save(lambda tensors: {name.removeprefix("bert."): tensor for name, tensor in tensors.items()})).fits


def test_a_tokenizer_with_tokens_beyond_the_embeddings_is_refused(
    save: Callable[..., Path], tokenizer: PreTrainedTokenizerBase
) -> None:
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens(["zeugma", "syllepsis"])
    directory = save()
    larger.save_pretrained(directory)
    size = len(tokenizer)
    with pytest.raises(UserError, match=f"has {size + 2:,} tokens and the model embeds {size:,} only: save both again"):
        load(directory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_checkpoint_in_several_files_and_any_precision_is_loaded(
    dtype: torch.dtype, bert: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    bert.to(dtype).save_pretrained(tmp_path, max_shard_size="20KB")
    tokenizer.save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    start = load(tmp_path)
    assert start.fits
    assert all(torch.equal(p, bert.state_dict()[name].float()) for name, p in start.model.state_dict().items())
    shards[1].unlink()
    with pytest.raises(UserError, match="cannot be loaded: No such file"):
        load(tmp_path)


def test_labels_are_read_in_the_order_of_their_indices(save: Callable[..., Path], bert: PreTrainedModel) -> None:
    for id2label in ({"1": "positive", "0": "negative"}, {"2": "negative", "7": "positive"}):
        start = load(save(id2label=id2label, label2id=None, pad_token_id=None), LABELS[::-1])
        assert start.fits
        assert torch.equal(start.model.classifier.weight, bert.classifier.weight.flip(0))
        assert start.model.config.label2id == {"positive": 0, "negative": 1}
