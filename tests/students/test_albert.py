"""Tests of the ALBERT student: its tables and layers, what it shares, equal outputs, files and refused options."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students import albert, distilbert
from torch import Tensor
from transformers import AlbertForSequenceClassification, PreTrainedModel

from distill.core.errors import UserError
from distill.models import compatibility
from distill.models.architectures.modeling_shared_albert import (
    SharedAlbertConfig,
    SharedAlbertForSequenceClassification,
)
from distill.models.forward import NAME, choose_padding_side, run_encoder, run_model
from distill.models.surgery.layers import list_parts
from distill.training.lightning_callbacks import fake_quantized
from tests.conftest import randomize

VOCABULARY = 60
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 40, "initializer_range": 0.3, "pad_token_id": 0,
}  # fmt: skip
ROBERTA = {"pad_token_id": 1, "max_position_embeddings": 42, "type_vocab_size": 1}
BATCH = {
    "input_ids": torch.randint(5, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(0)),
    "attention_mask": torch.tensor([[1] * 9, [1] * 5 + [0] * 4, [1] * 9]),
}


def toy(family: str = "Bert", head: str = "ForSequenceClassification", **options: Any) -> PreTrainedModel:
    """Returns a model of four layers with random tensors."""
    extra = {"Roberta": ROBERTA, "Electra": {"embedding_size": 16}, "Albert": {"embedding_size": 16}}
    config = getattr(transformers, f"{family}Config")(**(SIZES | extra.get(family, {}) | options))
    torch.manual_seed(1)
    return randomize(getattr(transformers, f"{family}{head}")(config))


@pytest.fixture(scope="module")
def bert() -> PreTrainedModel:
    return toy()


@torch.no_grad()
def states(model: PreTrainedModel) -> Tensor:
    """Returns the hidden states of all tokens but padding, `[layers + 1, tokens, H]`."""
    hidden = run_encoder(model.eval(), BATCH, frozenset({"hidden_states"})).hidden_states
    return torch.stack(hidden)[:, BATCH["attention_mask"].bool()]


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    found: Tensor = run_model(model.eval(), BATCH).logits
    return found


def assert_close(actual: Tensor, expected: Tensor, *, tolerance: float = 1e-3) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def count(model: PreTrainedModel, part: str = "") -> int:
    return sum(parameter.numel() for name, parameter in model.named_parameters() if part in name)


# The model


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_parts_that_are_shared_alike_are_an_albert(groups: int) -> None:
    reference = toy("Albert", num_hidden_groups=groups, num_hidden_layers=3)
    sizes = reference.config.to_diff_dict() | {"attention_groups": groups, "ffn_groups": groups}
    model = SharedAlbertForSequenceClassification(SharedAlbertConfig(**sizes | {"model_type": None}))
    assert count(model) == count(reference)
    for own, other in zip(list_parts(model), list_parts(reference), strict=True):
        for name, module in own.items():
            module.load_state_dict(other[name].state_dict())
    outside = {name: tensor for name, tensor in reference.state_dict().items() if "albert_layer_groups" not in name}
    missing, unexpected = model.load_state_dict(outside, strict=False)
    assert not unexpected
    assert all(name.startswith(("albert.encoder.attention.", "albert.encoder.ffn.")) for name in missing)
    for one in (model, reference):
        one.set_attn_implementation("eager")
    needs = frozenset({"hidden_states", "attentions", NAME})
    outputs = [run_model(one.eval(), BATCH, needs) for one in (model, reference)]
    for name in ("hidden_states", "attentions"):
        assert len(outputs[0][name]) == len(outputs[1][name]) == 3 + (name == "hidden_states")
        for own, other in zip(outputs[0][name], outputs[1][name], strict=True):
            assert_close(own, other, tolerance=1e-6)
    for layer in (1, 2, 3):
        for own, other in zip(outputs[0][NAME][layer], outputs[1][NAME][layer], strict=True):
            assert_close(own, other, tolerance=1e-6)


@pytest.mark.parametrize(
    ("options", "attentions", "networks"),
    [
        ({}, 1, 1),
        ({"groups": 3}, 3, 3),
        ({"groups": 2}, 2, 2),
        ({"share": "attention"}, 1, 3),
        ({"share": "attention", "groups": 2}, 2, 3),
        ({"share": "ffn"}, 3, 1),
        ({"share": "none"}, 3, 3),
    ],
    ids=str,
)
def test_shared_weights_count_once_and_stand_once_in_the_file(
    bert: PreTrainedModel, options: dict[str, Any], attentions: int, networks: int, tmp_path: Path
) -> None:
    student = albert.from_teacher(bert, embedding_dim=8, depth=3, **options)
    is_albert = attentions == networks
    assert type(student) is (AlbertForSequenceClassification if is_albert else SharedAlbertForSequenceClassification)
    embeddings = (VOCABULARY + 40 + 2 + 2) * 8
    head = 2 * 33 + 32 * 33
    attention = 4 * 32 * 33 + 2 * 32
    network = (32 * 48 + 48) + (48 * 32 + 32) + 2 * 32
    total = embeddings + 9 * 32 + attentions * attention + networks * network + head
    assert compatibility.count_parameters(student) == total
    student.save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert 4 * total < size < 4 * total + 8000  # The names.
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(loaded) is type(student)
    assert compatibility.count_parameters(loaded) == total
    torch.testing.assert_close(logits(loaded), logits(student), rtol=0, atol=0)
    assert (tmp_path / "modeling_shared_albert.py").is_file() is not is_albert


# The tables


def low_rank_bert(rank: int, **options: Any) -> PreTrainedModel:
    """Returns a BERT of one layer whose rows of embeddings, without their means, are of this rank."""
    teacher = toy(num_hidden_layers=1, **options)
    basis = torch.randn(rank, 32, generator=torch.Generator().manual_seed(2))
    embeddings = teacher.bert.embeddings
    with torch.no_grad():
        for table in (embeddings.word_embeddings, embeddings.position_embeddings, embeddings.token_type_embeddings):
            table.weight.copy_(table.weight[:, :rank] @ (basis - basis.mean(dim=1, keepdim=True)) + 0.3)
    return teacher


@pytest.mark.parametrize("table", ["ridge", "svd"])
def test_a_table_of_low_rank_is_factorized_exactly(table: Any) -> None:
    teacher = low_rank_bert(7)
    if table == "svd":  # One scale for all dimensions.
        teacher.bert.embeddings.LayerNorm.reset_parameters()
    student = albert.from_teacher(teacher, embedding_dim=8, table=table)
    assert student.config.teacher_layers == [0]
    assert_close(states(student), states(teacher))
    assert_close(logits(student), logits(teacher))


def test_both_tables_are_closer_to_the_teachers_embeddings_than_random_ones(bert: PreTrainedModel) -> None:
    wanted = states(bert)[0]
    distances = {
        name: (states(albert.from_teacher(bert, embedding_dim=16, **options))[0] - wanted).square().mean().item()
        for name, options in {"ridge": {}, "svd": {"table": "svd"}, "random": {"init": "random"}}.items()
    }
    spread = (wanted - wanted.mean(dim=0)).square().mean().item()
    assert distances["ridge"] < 0.5 * spread
    assert distances["svd"] < 0.5 * spread
    assert distances["random"] > spread


EXACT = ["Bert", "Roberta", "Electra", "Albert", "XLMRoberta", "Longformer"]


@pytest.mark.parametrize("family", EXACT)
def test_a_student_that_leaves_nothing_out_has_its_teachers_states(family: str) -> None:
    options = ROBERTA if family in ("XLMRoberta", "Longformer") else {}
    teacher = toy(family, **options, **({"attention_window": 20} if family == "Longformer" else {}))
    shared = {"groups": 1} if family == "Albert" else {"share": "none"}
    student = albert.from_teacher(teacher, embedding_dim=None, depth=4, **shared)
    assert compatibility.longest(student, toy_tokenizer()) == 40
    assert_close(states(student), states(teacher))
    if family not in ("Electra", "Longformer"):  # Heads without tanh, and with attention of its own to the first token.
        assert_close(logits(student), logits(teacher))


def toy_tokenizer(side: str = "right") -> Any:
    """Returns a tokenizer of words `[CLS] a b [SEP]`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]
    built = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=built, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        padding_side=side,
    )  # fmt: skip


@pytest.mark.parametrize("share", ["all", "attention"])
def test_padding_on_the_right_changes_no_logits_and_is_chosen(bert: PreTrainedModel, share: Any) -> None:
    student = albert.from_teacher(bert, embedding_dim=8, share=share).eval()
    garbage = torch.full((3, 5), 7)
    batch = {
        "input_ids": torch.cat([BATCH["input_ids"], garbage], dim=1),
        "attention_mask": torch.cat([BATCH["attention_mask"], torch.zeros_like(garbage)], dim=1),
    }
    assert_close(run_model(student, batch).logits, logits(student), tolerance=1e-5)
    tokenizer = toy_tokenizer("left")
    [notice] = choose_padding_side(student, tokenizer)
    assert "batches are padded on the right" in notice
    assert choose_padding_side(student, toy_tokenizer()) == []


# The layers


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({"layer": "last"}, [[3]]),
        ({"layer": "first"}, [[0]]),
        ({"layer": "mean"}, [[0, 1, 2, 3]]),
        ({"layer": 2}, [[2]]),
        ({"groups": 2, "layer": "last"}, [[1], [3]]),
        ({"groups": 2, "layer": "first"}, [[0], [2]]),
        ({"groups": 2, "layer": "mean"}, [[0, 1], [2, 3]]),
        ({"groups": 2, "depth": 3}, [[1], [3]]),  # Layers 0 and 1 of three, which are as deep as 0 and 1 of four.
        ({"share": "none", "depth": 3}, [[0], [1], [3]]),
    ],
    ids=str,
)
def test_each_set_of_weights_is_copied_from_the_layers_as_deep_as_its_own(
    bert: PreTrainedModel, options: dict[str, Any], layers: list[list[int]]
) -> None:
    student = albert.from_teacher(bert, embedding_dim=8, **options)
    assert student.config.teacher_layers == sorted({index for chosen in layers for index in chosen})
    sources, sets = list_parts(bert), list({id(parts["ffn"]): parts for parts in list_parts(student)}.values())
    assert len(sets) == len(layers)
    for parts, chosen in zip(sets, layers, strict=True):
        for name, module in parts.items():
            for kind in ("weight", "bias"):
                wanted = torch.stack([getattr(sources[index][name], kind) for index in chosen]).mean(dim=0)
                torch.testing.assert_close(getattr(module, kind), wanted)


def test_layers_that_share_their_attention_have_the_networks_of_the_teacher(bert: PreTrainedModel) -> None:
    student, sources = albert.from_teacher(bert, embedding_dim=8, share="attention", depth=4), list_parts(bert)
    for layer, parts in enumerate(list_parts(student)):
        assert torch.equal(parts["ffn"].weight, sources[layer]["ffn"].weight)
        assert torch.equal(parts["attention.query"].weight, sources[3]["attention.query"].weight)


@pytest.mark.parametrize("share", ["all", "attention", "ffn"])
def test_an_albert_teaches_and_gives_its_one_set_of_layers(share: Any, bert: PreTrainedModel) -> None:
    teacher = albert.from_teacher(bert, embedding_dim=16, share=share, depth=4)
    student = albert.from_teacher(teacher, embedding_dim=16, share=share, depth=4)
    assert type(student) is type(teacher)
    assert_close(states(student), states(teacher))
    assert_close(logits(student), logits(teacher))
    half = albert.from_teacher(teacher, embedding_dim=8, share=share)
    assert half.config.num_hidden_layers == 2
    assert torch.equal(list_parts(half)[0]["attention.query"].weight, list_parts(teacher)[1]["attention.query"].weight)


def test_a_distilbert_student_of_an_albert_is_refused_with_the_student_to_take() -> None:
    with pytest.raises(UserError, match=r"no 4 separate layers to choose from .* take \+student=albert"):
        distilbert.from_teacher(toy("Albert"))


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("ModernBert", {"local_attention": 8}),
        ("DebertaV2", {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}),
    ],
)
def test_layers_of_another_layout_are_refused_and_their_embeddings_are_not(
    family: str, options: dict[str, Any]
) -> None:
    teacher = toy(family, **options)
    with pytest.raises(UserError, match=rf"cannot copy the layers of a {family}\w+, which are none of BERT's layout"):
        albert.from_teacher(teacher)
    student = albert.from_teacher(teacher, layer="random", embedding_dim=16)
    assert not [name for name in student.inherited if "layer_groups" in name]
    assert {"albert.embeddings.word_embeddings.weight", "albert.encoder.embedding_hidden_mapping_in.weight"} <= set(
        student.inherited
    )
    spread = (states(teacher)[0] - states(teacher)[0].mean(dim=0)).square().mean()
    assert (states(student)[0] - states(teacher)[0]).square().mean() < 0.6 * spread


# The heads

HEADS: dict[str, tuple[str, ...]] = {
    "ForSequenceClassification": ("classifier", "albert.pooler"),
    "ForTokenClassification": ("classifier",),
    "ForQuestionAnswering": ("qa_outputs",),
    "ForMultipleChoice": ("classifier", "albert.pooler"),
    "ForMaskedLM": ("predictions.decoder",),
    "ForPreTraining": ("predictions.decoder", "sop_classifier.classifier", "albert.pooler"),
    "Model": ("pooler",),
}


@pytest.mark.parametrize("share", ["all", "ffn"])
@pytest.mark.parametrize("head", HEADS)
def test_the_student_has_its_teachers_head(head: str, share: Any, tmp_path: Path) -> None:
    teacher = toy(head=head)
    student = albert.from_teacher(teacher, embedding_dim=8, share=share)
    assert type(student).__name__ == ("Shared" if share == "ffn" else "") + f"Albert{head}"
    assert logits(student).shape == logits(teacher).shape
    own = dict(student.named_parameters(remove_duplicate=False))
    theirs = dict(teacher.named_parameters(remove_duplicate=False))
    for name in HEADS[head]:
        source = student.inherited.get(f"{name}.bias") or student.inherited["predictions.bias"]
        assert torch.equal(own[f"{name}.bias"], theirs[source]), name
    assert set(student.inherited) <= set(own)
    assert set(student.inherited.values()) <= set(theirs)
    student.save_pretrained(tmp_path)
    loaded = type(student).from_pretrained(tmp_path)
    assert_close(logits(loaded), logits(student), tolerance=1e-6)
    if "predictions.decoder" in HEADS[head]:
        assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


def test_a_head_that_no_albert_has_is_refused() -> None:
    with pytest.raises(UserError, match="student albert cannot follow a GPT2LMHeadModel: no ALBERT has its head"):
        albert.from_teacher(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1)))


# Training


@pytest.mark.parametrize("share", ["all", "attention", "ffn"])
def test_attention_vectors_are_those_of_every_call_of_a_shared_layer(bert: PreTrainedModel, share: Any) -> None:
    student = albert.from_teacher(bert, embedding_dim=8, depth=3, share=share).eval()
    output = run_model(student, BATCH, frozenset({NAME, "hidden_states"}))
    assert sorted(output[NAME]) == [1, 2, 3]
    for layer, parts in enumerate(list_parts(student)):
        queries = parts["attention.query"](output.hidden_states[layer]).unflatten(-1, (4, 8)).transpose(1, 2)
        torch.testing.assert_close(output[NAME][layer + 1].queries, queries)


def test_rounded_weights_of_shared_layers_are_restored(bert: PreTrainedModel) -> None:
    student = albert.from_teacher(bert, embedding_dim=8, depth=3)
    before, expected = {name: tensor.clone() for name, tensor in student.state_dict().items()}, logits(student)
    with fake_quantized(student, bits=8):
        assert not torch.equal(logits(student), expected)
    assert student.state_dict().keys() == before.keys()
    assert torch.equal(logits(student), expected)


# Every student


@pytest.mark.parametrize("init", ["teacher", "random"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_student_is_in_float32_and_training_mode_and_leaves_its_teacher_alone(init: Any, dtype: torch.dtype) -> None:
    teacher = toy().to(dtype)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = albert.from_teacher(teacher, init=init)
    assert {parameter.dtype for parameter in student.parameters()} == {torch.float32}
    assert all(module.training for module in student.modules())
    assert not teacher.training
    assert (student.inherited == {}) is (init == "random")
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    assert not [hook for module in teacher.modules() for hook in module._forward_pre_hooks]


def test_the_same_teacher_gives_the_same_start(bert: PreTrainedModel) -> None:
    first, second = (albert.from_teacher(bert, embedding_dim=8).state_dict() for _ in range(2))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def bilstm() -> PreTrainedModel:
    from distill.models.architectures.modeling_bilstm import BilstmConfig, BilstmForSequenceClassification

    return BilstmForSequenceClassification(BilstmConfig(vocab_size=20, embedding_dim=8, hidden_dim=8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 3}, "student.groups=3 is above the student's layers: expected 1 to 2, or more depth"),
        ({"groups": 5, "depth": 4}, "student.groups=5 is above the student's layers: expected 1 to 4"),
        ({"groups": 0}, "got student.groups=0, expected a whole number of at least 1"),
        ({"embedding_dim": 1}, "got student.embedding_dim=1, expected a whole number of at least 2"),
        ({"embedding_dim": 1.5}, "got student.embedding_dim=1.5, expected a whole number of at least 2"),
        ({"depth": 5}, "student.depth=5 is out of range: the teacher has 4 layers"),
        ({"depth": 0}, "got student.depth=0, expected a whole number of at least 1"),
        ({"share": "most"}, "got student.share=most, expected one of all, attention, ffn, none"),
        ({"share": "none", "groups": 2}, "student.share=none shares nothing in groups: leave out student.groups=2"),
        ({"table": "pca"}, "got student.table=pca, expected svd or ridge"),
        ({"init": "zeros"}, "got student.init=zeros, expected teacher or random"),
        ({"layer": "middle"}, "student.layer=middle is unknown, expected first, last, mean, random or an index"),
        ({"layer": 4}, "student.layer=4 is out of range, expected an index from 0 to 3"),
        ({"layer": 1, "groups": 2}, "student.layer=1 is one layer, and the student has several sets of weights"),
    ],
    ids=str,
)
def test_invalid_options_are_refused_in_one_line(bert: PreTrainedModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        albert.from_teacher(bert, **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_teacher_without_attention_is_refused() -> None:
    with pytest.raises(UserError, match=r"has no attention: take \+student=bilstm"):
        albert.from_teacher(bilstm())
