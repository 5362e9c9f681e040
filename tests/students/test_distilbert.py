"""Tests of what a student copies from its teacher: the right layers, equal outputs, and a file that loads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from distill.builtin.students.distilbert import choose_layers, from_teacher
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForSequenceClassification,
    BertForTokenClassification,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    LongformerConfig,
    LongformerForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

from distill.core.errors import UserError
from tests.conftest import LABELS, randomize, toy_bert

VOCABULARY = 40
ALL = [0, 1, 2, 3]
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 80,
    "initializer_range": 0.3,
}


def toy(model_class: type[PreTrainedModel], config: Any = None) -> PreTrainedModel:
    """Returns a model of four layers with random tensors."""
    config = toy_bert(VOCABULARY, layers=1).config if config is None else config
    config.num_hidden_layers = 4
    torch.manual_seed(1)
    return randomize(model_class(config))


@pytest.fixture(scope="module")
def bert() -> PreTrainedModel:
    return toy(type(toy_bert(VOCABULARY, layers=1)))


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    """Three texts, one of them padded; no token is a RoBERTa's padding."""
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 5:] = 0
    ids = torch.randint(5, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def run(model: PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns logits, and hidden states of all tokens but padding `[layers + 1, tokens, H]`, in eval mode."""
    output = model.eval()(**inputs, output_hidden_states=True)
    return output.logits, torch.stack(output.hidden_states)[:, inputs["attention_mask"].bool()]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


# Choice of layers


@pytest.mark.parametrize(
    ("total", "layers", "depth", "chosen"),
    [
        (12, "alternate", None, [0, 2, 4, 7, 9, 11]),  # the choice of DistilBERT's authors
        (6, "alternate", None, [0, 2, 5]),
        (12, "alternate", 3, [0, 5, 11]),
        (12, "alternate", 12, list(range(12))),
        (4, "alternate", 1, [0]),
        (1, "alternate", None, [0]),
        (12, "first", None, [0, 1, 2, 3, 4, 5]),
        (12, "first", 2, [0, 1]),
        (12, "last", None, [6, 7, 8, 9, 10, 11]),
        (12, "last", 2, [10, 11]),
        (4, [3, 0], None, [3, 0]),
        (4, (1,), None, [1]),
    ],
)
def test_layers_are_chosen_by_rule_depth_or_index(total: int, layers: Any, depth: int | None, chosen: list[int]):
    assert choose_layers(total, layers, depth) == chosen


def test_alternate_keeps_the_ends_and_repeats_no_layer():
    for total in range(1, 25):
        for depth in range(1, total + 1):
            chosen = choose_layers(total, "alternate", depth)
            assert len(chosen) == depth
            assert chosen == sorted(set(chosen))
            assert chosen[0] == 0
            assert depth == 1 or chosen[-1] == total - 1


@pytest.mark.parametrize(
    ("layers", "depth", "message"),
    [
        ("every", None, r"student.layers=every is unknown, expected alternate, first, last or indices like \[0,2,4\]"),
        ("first", 0, "student.depth=0 is out of range: the teacher has 4 layers"),
        ("last", 5, "student.depth=5 is out of range: the teacher has 4 layers"),
        ([0, 1], 2, r"student.depth=2 and student.layers=\[0, 1\] both choose layers: give one of them"),
        ([], None, r"student.layers=\[\] keeps no layer, expected indices from 0 to 3"),
        ([-1], None, "student.layers has -1, expected indices from 0 to 3"),
        ([0, 1.5], None, "student.layers has 1.5, expected whole numbers from 0 to 3"),
        ([True], None, "student.layers has True, expected whole numbers"),
        (["0"], None, "student.layers has '0', expected whole numbers"),
    ],
)
def test_invalid_layers_are_refused(layers: Any, depth: int | None, message: str):
    with pytest.raises(UserError, match=message):
        choose_layers(4, layers, depth)


# From BERT to DistilBERT


def test_a_student_with_all_layers_of_a_bert_has_its_hidden_states(bert: PreTrainedModel, inputs: dict[str, Tensor]):
    student = from_teacher(bert, layers=ALL)
    assert type(student) is DistilBertForSequenceClassification
    assert_close(
        run(student, inputs)[1], run(bert, inputs | {"token_type_ids": torch.zeros_like(inputs["input_ids"])})[1]
    )
    assert_close(student.pre_classifier.weight, bert.bert.pooler.dense.weight)
    assert_close(student.classifier.weight, bert.classifier.weight)


def test_the_chosen_layers_are_copied(bert: PreTrainedModel):
    student = from_teacher(bert, layers=[1, 3])
    assert student.config.n_layers == 2
    assert student.config.teacher_layers == [1, 3]
    for own, theirs in enumerate((1, 3)):
        copied, original = student.distilbert.transformer.layer[own], bert.bert.encoder.layer[theirs]
        for name, tensor in (
            ("attention.q_lin", original.attention.self.query),
            ("attention.k_lin", original.attention.self.key),
            ("attention.v_lin", original.attention.self.value),
            ("attention.out_lin", original.attention.output.dense),
            ("sa_layer_norm", original.attention.output.LayerNorm),
            ("ffn.lin1", original.intermediate.dense),
            ("ffn.lin2", original.output.dense),
            ("output_layer_norm", original.output.LayerNorm),
        ):
            assert torch.equal(copied.get_submodule(name).weight, tensor.weight), name
            assert torch.equal(copied.get_submodule(name).bias, tensor.bias), name


def test_a_student_keeps_its_teachers_dropout():
    config = toy_bert(VOCABULARY, layers=1).config
    config.hidden_dropout_prob, config.attention_probs_dropout_prob = 0.2, 0.3
    student = from_teacher(toy(BertForMaskedLM, config))
    assert (student.config.dropout, student.config.attention_dropout) == (0.2, 0.3)
    assert from_teacher(toy(BertForTokenClassification, config)).dropout.p == 0.2


def test_inherited_names_every_tensor_that_was_copied(bert: PreTrainedModel):
    student = from_teacher(bert)
    assert student.config.teacher_layers == [0, 3]
    own, theirs = dict(student.named_parameters()), dict(bert.named_parameters())
    assert set(student.inherited) == set(own)
    positions = "distilbert.embeddings.position_embeddings.weight"
    for name, source in student.inherited.items():
        added = theirs["bert.embeddings.token_type_embeddings.weight"][0] if name == positions else 0
        assert torch.equal(own[name], theirs[source] + added), name


def test_the_student_shares_no_memory_with_its_teacher(bert: PreTrainedModel):
    before = {name: tensor.clone() for name, tensor in bert.state_dict().items()}
    with torch.no_grad():
        for parameter in from_teacher(bert).parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in bert.state_dict().items())


def test_a_masked_language_model_stays_tied_on_disk(tmp_path: Path, inputs: dict[str, Tensor]):
    student = from_teacher(toy(BertForMaskedLM))
    student.save_pretrained(tmp_path)
    loaded = DistilBertForMaskedLM.from_pretrained(tmp_path)
    assert loaded.vocab_projector.weight is loaded.distilbert.embeddings.word_embeddings.weight
    assert torch.equal(run(loaded, inputs)[0], run(student, inputs)[0])


def test_the_student_of_a_token_classifier_is_a_token_classifier(inputs: dict[str, Tensor]):
    teacher = toy(BertForTokenClassification)
    student = from_teacher(teacher, layers=ALL)
    assert type(student) is DistilBertForTokenClassification
    assert_close(run(student, inputs)[0], run(teacher, inputs)[0])


def test_a_bert_with_an_unsupported_head_is_refused():
    message = "the head of a BertForNextSentencePrediction is of no known kind: expected a model of an auto class"
    with pytest.raises(UserError, match=message):
        from_teacher(toy(BertForNextSentencePrediction))


def bert_config(**options: Any) -> BertConfig:
    return BertConfig(**(SIZES | options), id2label=dict(enumerate(LABELS)))


def reload(model: PreTrainedModel, directory: Path) -> PreTrainedModel:
    model.save_pretrained(directory)
    return type(model).from_pretrained(directory, dtype=torch.float32)


@pytest.mark.parametrize(
    ("options", "student_class"),
    [
        ({"tie_word_embeddings": False}, DistilBertForMaskedLM),
        ({"hidden_act": "relu"}, DistilBertForMaskedLM),
        ({"hidden_act": "gelu_new", "tie_word_embeddings": False}, DistilBertForMaskedLM),
        ({"type_vocab_size": 1}, DistilBertForMaskedLM),
        ({"type_vocab_size": 3}, DistilBertForMaskedLM),
        ({"classifier_dropout": 0.4}, DistilBertForMaskedLM),
        ({"pad_token_id": None}, DistilBertForMaskedLM),
        # A DistilBERT cannot have it.
        ({"layer_norm_eps": 1e-3, "tie_word_embeddings": False}, BertForMaskedLM),
    ],
    ids=str,
)
def test_a_student_with_all_layers_of_an_unusual_bert_equals_it_before_and_after_saving(
    options: dict[str, Any], student_class: type[PreTrainedModel], inputs: dict[str, Tensor], tmp_path: Path
):
    teacher = toy(BertForMaskedLM, bert_config(**options))
    expected = run(teacher, inputs)
    student = from_teacher(teacher, layers=ALL)
    assert type(student) is student_class
    assert set(student.inherited) == {name for name, _ in student.named_parameters()}
    for model in (student, reload(student, tmp_path)):
        for actual, wanted in zip(run(model, inputs), expected, strict=True):
            assert_close(actual, wanted)


def test_the_student_of_a_bert_with_another_epsilon_has_its_logits_and_pooler(
    inputs: dict[str, Tensor], tmp_path: Path
):
    teacher = toy(BertForSequenceClassification, bert_config(layer_norm_eps=1e-4))
    student = from_teacher(teacher, layers=ALL)
    assert type(student) is BertForSequenceClassification
    for model in (student, reload(student, tmp_path)):
        assert_close(run(model, inputs)[0], run(teacher, inputs)[0])
        assert {m.eps for m in model.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-4}


def test_a_student_has_the_dropout_of_its_teachers_head(tmp_path: Path):
    config = bert_config(classifier_dropout=0.4, hidden_dropout_prob=0.2)
    classifier = from_teacher(toy(BertForSequenceClassification, config))
    assert type(classifier) is DistilBertForSequenceClassification
    tagger = from_teacher(toy(BertForTokenClassification, config))
    assert type(tagger) is BertForTokenClassification  # A DistilBERT's is that of its layers.
    for number, student in enumerate((classifier, tagger)):
        for model in (student, reload(student, tmp_path / str(number))):
            assert model.dropout.p == 0.4
    same = bert_config(classifier_dropout=0.2, hidden_dropout_prob=0.2)
    assert type(from_teacher(toy(BertForTokenClassification, same))) is DistilBertForTokenClassification


# Other families


def modernbert() -> PreTrainedModel:
    sizes = {name: value for name, value in SIZES.items() if name != "initializer_range"}
    config = ModernBertConfig(**sizes, global_attn_every_n_layers=3, local_attention=4, pad_token_id=0, num_labels=3)
    return toy(ModernBertForSequenceClassification, config)


@pytest.mark.parametrize("layers", ["last", [1, 2], [3, 0], [0, 2, 1, 3]], ids=str)
def test_a_layer_that_differs_from_the_one_in_its_place_is_refused(layers: Any, inputs: dict[str, Tensor]):
    teacher = modernbert()
    if layers == [0, 2, 1, 3]:  # Only layer 0 is another one: it has no norm before its attention.
        assert len(run(from_teacher(teacher, layers=layers), inputs)[1]) == 5
        return
    first = {"last": 2, "[1, 2]": 1, "[3, 0]": 3}[str(layers)]
    message = rf"puts layer {first} of a ModernBertFor\w+ in the place of layer 0, and only one of them has attn_norm"
    with pytest.raises(UserError, match=message):
        from_teacher(teacher, layers=layers)
    assert from_teacher(teacher, layers=layers, init="random").inherited == {}


@pytest.mark.parametrize("layers", ["alternate", "first", ALL], ids=str)
def test_a_student_of_a_modernbert_keeps_the_attention_of_each_layer(
    layers: Any, inputs: dict[str, Tensor], tmp_path: Path
):
    teacher = modernbert()
    student = from_teacher(teacher, layers=layers)
    kinds = [teacher.config.layer_types[index] for index in student.config.teacher_layers]
    for model in (student, reload(student, tmp_path)):
        assert [layer.attention_type for layer in model.model.layers] == kinds
    if layers == ALL:
        assert_close(run(student, inputs)[0], run(teacher, inputs)[0])


def test_a_student_of_a_longformer_keeps_the_window_of_each_layer(inputs: dict[str, Tensor], tmp_path: Path):
    config = LongformerConfig(**SIZES, attention_window=[2, 4, 6, 8], pad_token_id=1)
    student = from_teacher(toy(LongformerForSequenceClassification, config), layers=[1, 3])
    for model in (student, reload(student, tmp_path)):
        assert model.config.attention_window == [4, 8]
        assert run(model, inputs)[0].shape == (3, 2)


FAMILIES = {
    "roberta": (RobertaForSequenceClassification, RobertaConfig),
    "roberta-mlm": (RobertaForMaskedLM, RobertaConfig),
    "electra": (ElectraForSequenceClassification, ElectraConfig),
}


@pytest.fixture(params=FAMILIES)
def other(request: pytest.FixtureRequest) -> PreTrainedModel:
    model_class, config_class = FAMILIES[request.param]
    options = {"embedding_size": 16} if config_class is ElectraConfig else {}
    return toy(model_class, config_class(**SIZES, **options, num_labels=3))


def test_a_student_of_another_family_has_the_class_of_its_teacher(other: PreTrainedModel, inputs: dict[str, Tensor]):
    half = from_teacher(other)
    assert type(half) is type(other)
    assert half.config.num_hidden_layers == 2
    assert other.config.num_hidden_layers == 4
    assert len(run(half, inputs)[1]) == 1 + 2
    prefix = next(name for name, _ in other.named_parameters() if ".layer.3." in name).partition(".layer.")[0]
    own, theirs = half.get_submodule(f"{prefix}.layer.1"), other.get_submodule(f"{prefix}.layer.3")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in own.state_dict().items())
    assert set(half.inherited) == {name for name, _ in half.named_parameters()}


def test_a_student_with_all_layers_of_another_family_has_its_logits(other: PreTrainedModel, inputs: dict[str, Tensor]):
    assert_close(run(from_teacher(other, layers=ALL), inputs)[0], run(other, inputs)[0])


# Every student


def test_random_init_copies_only_the_shapes(bert: PreTrainedModel):
    student = from_teacher(bert, init="random")
    assert student.inherited == {}
    assert student.config.teacher_layers == [0, 3]
    copied = from_teacher(bert)
    assert {name: p.shape for name, p in student.named_parameters()} == {
        name: p.shape for name, p in copied.named_parameters()
    }
    same = [name for name, p in student.named_parameters() if torch.equal(p, dict(copied.named_parameters())[name])]
    assert same == []


def test_an_unknown_init_is_refused(bert: PreTrainedModel):
    with pytest.raises(UserError, match=r"student\.init=zeros is unknown, expected teacher, random, search, "):
        from_teacher(bert, init="zeros")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=str)
@pytest.mark.parametrize("init", ["teacher", "random"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_student_is_in_float32_and_training_mode_for_any_teacher(family: str, init: Any, dtype: torch.dtype):
    config = RobertaConfig(**SIZES) if family == "roberta" else None
    model_class = RobertaForSequenceClassification if family == "roberta" else type(toy_bert(VOCABULARY, layers=1))
    teacher = toy(model_class, config).to(dtype)
    student = from_teacher(teacher, init=init)
    assert {parameter.dtype for parameter in student.parameters()} == {torch.float32}
    assert all(module.training for module in student.modules())
    assert all(parameter.requires_grad for parameter in student.parameters())
    assert not teacher.training
    assert {parameter.dtype for parameter in teacher.parameters()} == {dtype}


def test_a_student_of_a_frozen_teacher_is_trainable(bert: PreTrainedModel):
    bert.requires_grad_(False)
    assert all(parameter.requires_grad for parameter in from_teacher(bert).parameters())
    bert.requires_grad_(True)
