"""Tests of the queries, keys and values that hooks read out of models."""

from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students import distilbert
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain.plan import check_hooks
from distill.core.contracts import AttentionVectors
from distill.core.errors import UserError
from distill.losses import AttentionScoreMSE, MiniLM, MiniLMv2, Objective, PatientKD, SoftTargets
from distill.losses.term import EncoderSize
from distill.models import compatibility, cpu_kernels
from distill.models.forward import (
    NAME,
    attention_width,
    find_projections,
    layers_of,
    record_attention,
    run_encoder,
    run_model,
)
from distill.training.hyperparameters import TrainerSettings
from tests.conftest import toy_bert

SIZES: dict[str, Any] = {
    "vocab_size": 60, "num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 40, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip
BATCH = {
    "input_ids": torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
}
# Name -> the model, and whether its attention scores are products of queries and keys.
FAMILIES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "bert": ("Bert", {}, True),
    "roberta": ("Roberta", {}, True),
    "electra": ("Electra", {"embedding_size": 8}, True),
    "albert": ("Albert", {"embedding_size": 8}, True),
    "distilbert": ("DistilBert", {"n_layers": 3, "dim": 16, "n_heads": 2, "hidden_dim": 32}, True),
    "mpnet": ("MPNet", {}, False),  # Relative positions.
    "deberta": (
        "DebertaV2",
        {
            "relative_attention": True, "position_buckets": 8, "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False, "type_vocab_size": 0,
        },
        False,
    ),
    "modernbert": ("ModernBert", {"local_attention": 8, "initializer_cutoff_factor": 30.0}, False),  # Rotary.
}  # fmt: skip
every_family = pytest.mark.parametrize("name", FAMILIES)


def build(name: str, **options: Any) -> PreTrainedModel:
    family, extra, _ = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**(SIZES | extra | options))
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, f"{family}ForSequenceClassification")(config)
    return model.eval()


def read(model: PreTrainedModel, *needs: str, encoder: bool = False) -> dict[int, AttentionVectors]:
    output = (run_encoder if encoder else run_model)(model, BATCH, frozenset(needs or (NAME,)))
    vectors: dict[int, AttentionVectors] = output[NAME]
    return vectors


def count_hooks(model: nn.Module) -> int:
    """Returns the number of hooks of this project; transformers has some of its own, which remain."""
    hooks = [hook for m in model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    return sum(hook.__module__.startswith("distill.") for hook in hooks)


# The vectors


@every_family
def test_every_layer_gives_its_queries_keys_and_values(name: str) -> None:
    model = build(name)
    vectors = read(model)
    assert set(vectors) == {1, 2, 3}
    for layer in vectors.values():
        assert {tuple(tensor.shape) for tensor in layer} == {(2, 2, 5, 8)}  # [B, A, L, D]
    assert attention_width(model) == 16


@every_family
def test_vectors_are_the_projections_of_the_layers_input(name: str) -> None:
    """The second layer's projections of its input, which is the first layer's output, computed by hand."""
    model = build(name)
    output = run_model(model, BATCH, frozenset({"hidden_states", NAME}))
    _, linear = find_projections(model)[-1 if name == "albert" else 1]
    states = output.hidden_states[1]
    if name == "modernbert":  # It normalizes before the attention.
        states = model.base_model.layers[1].attn_norm(states)
    with torch.no_grad():
        projected = [projection(states) for projection in linear]
    if len(projected) == 1:
        projected = [projected[0][..., 16 * part : 16 * part + 16] for part in range(3)]
    for vectors, expected in zip(output[NAME][2], projected, strict=True):
        for head in range(2):
            torch.testing.assert_close(vectors[:, head], expected[..., 8 * head : 8 * head + 8])


@pytest.mark.parametrize("name", [name for name, (_, _, is_plain) in FAMILIES.items() if is_plain])
def test_the_softmax_of_their_products_is_the_attention_of_the_model(name: str) -> None:
    model = build(name)
    vectors = read(model)
    model.set_attn_implementation("eager")
    attentions = run_model(model, BATCH, frozenset({"attentions"})).attentions
    assert len(attentions) == 3
    padding = BATCH["attention_mask"][:, None, None, :] == 0
    for layer, probabilities in enumerate(attentions, start=1):
        queries, keys, _ = vectors[layer]
        scores = (queries @ keys.transpose(-1, -2) / 8**0.5).masked_fill(padding, -1e9)
        torch.testing.assert_close(scores.softmax(-1), probabilities, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "cpu_kernels"])
def test_every_kernel_of_attention_gives_the_same_vectors(kernel: str) -> None:
    model = build("bert", attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    expected = read(model)
    model.train()
    if kernel == "cpu_kernels":
        with cpu_kernels.use_cpu_kernels(model):
            vectors = read(model)
    else:
        model.set_attn_implementation(kernel)
        vectors = read(model)
    torch.testing.assert_close(vectors, expected)


def test_the_encoder_alone_gives_the_same_vectors_as_the_whole_model() -> None:
    model = build("distilbert")
    torch.testing.assert_close(read(model, encoder=True), read(model))


def test_autocast_gives_vectors_of_its_type_with_a_gradient() -> None:
    model = build("bert")
    with torch.autocast("cpu", torch.bfloat16):
        queries, _, _ = read(model, f"{NAME}.2")[2]
    assert queries.dtype == torch.bfloat16
    queries.float().square().sum().backward()
    layers = model.bert.encoder.layer
    assert layers[1].attention.self.query.weight.grad is not None
    assert layers[2].attention.self.query.weight.grad is None


# Only what is read


def test_only_the_named_layers_are_read_and_no_hook_remains() -> None:
    model = build("bert")
    with record_attention(model, {3}) as vectors:
        assert count_hooks(model) == 4  # The layer, its queries, keys and values.
        model(**BATCH)
    assert set(vectors()) == {3}
    assert count_hooks(model) == 0
    assert set(read(build("albert"), f"{NAME}.1", f"{NAME}.3")) == {1, 3}  # All layers share one module.


def test_a_run_that_needs_no_vectors_installs_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("bert")
    monkeypatch.setattr("distill.models.forward.record_attention", lambda *arguments: pytest.fail("it is recorded"))
    output = run_model(model, BATCH, frozenset({"hidden_states"}))
    assert NAME not in output
    assert layers_of(frozenset({"hidden_states"}), 3) is None


def test_hooks_are_removed_if_the_forward_pass_fails() -> None:
    model = build("bert")
    with pytest.raises(IndexError):
        run_model(model, {"input_ids": torch.tensor([[999]])}, frozenset({NAME}))
    assert count_hooks(model) == 0


def test_a_connected_objective_names_the_layers_of_each_model() -> None:
    objective = Objective(one=MiniLMv2(relation_heads=4, teacher_layer=5), two=AttentionScoreMSE(), hidden=PatientKD())
    assert objective.student_needs == objective.teacher_needs == {"hidden_states", NAME}
    objective.connect(EncoderSize(16, 3, 2, 16), EncoderSize(16, 6, 2, 16))
    assert objective.student_needs == {"hidden_states", f"{NAME}.1", f"{NAME}.2", f"{NAME}.3"}
    assert objective.teacher_needs == {"hidden_states", *(f"{NAME}.{layer}" for layer in (2, 4, 5, 6))}
    assert objective.teacher_layers(3, 6) == (2, 4)


# What is refused before training


def check(objective: Objective, teacher: PreTrainedModel, student: PreTrainedModel) -> None:
    compatibility.check_outputs(objective, teacher=teacher, student=student)
    compatibility.check_sizes(objective, teacher=teacher, student=student)


@every_family
def test_scores_are_compared_only_where_they_are_products_of_queries_and_keys(name: str) -> None:
    model, (_, _, is_plain) = build(name), FAMILIES[name]
    implementation = model.config._attn_implementation
    check(Objective(v2=MiniLMv2(relation_heads=4)), model, model)
    for term in (MiniLM(), AttentionScoreMSE()):
        if is_plain:
            check(Objective(term=term), model, model)
        else:
            with pytest.raises(
                UserError, match=r"the term term compares attention scores .* and the attention of the "
            ):
                check(Objective(term=term), model, model)
    assert (model.config._attn_implementation, model.training, count_hooks(model)) == (implementation, False, 0)


def test_the_check_leaves_a_student_in_training_mode(tokenizer: PreTrainedTokenizerBase) -> None:
    student = build("bert").train()
    check(Objective(minilm=MiniLM()), build("bert"), student)
    assert all(module.training for module in student.modules())


class _Fused(nn.Module):
    """A layer's attention with one projection in an unknown order."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(16, 48)


def test_a_fused_projection_of_unknown_order_is_refused() -> None:
    model = build("bert")
    for layer in model.bert.encoder.layer:
        attention = layer.attention.self
        fused = _Fused()
        del attention.query, attention.key, attention.value
        attention.add_module("fused", fused)
        attention.forward = lambda states, *arguments, **options: (states, None)
    with pytest.raises(UserError, match=r"needs attention vectors, which the teacher \(BertForSequence"):
        check(Objective(v2=MiniLMv2(relation_heads=4)), model, build("bert"))


def test_sliding_windows_of_another_layout_are_refused() -> None:
    config = transformers.LongformerConfig(**SIZES, attention_window=4)
    model = transformers.LongformerForSequenceClassification(config).eval()
    with pytest.raises(UserError, match=r"the teacher \(Longformer\w+\) attends to those nearby alone"):
        check(Objective(v2=MiniLMv2(relation_heads=4)), model, build("bert"))


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (
            MiniLM(),
            "the term one compares attention heads one by one, and the teacher has 2 of them and the student 4: take "
            "objective=minilmv2",
        ),
        (AttentionScoreMSE(), "the term one compares attention heads one by one, and the teacher has 2 of them"),
        (
            MiniLMv2(relation_heads=8, teacher_layer=4),
            "got teacher_layer=4, expected one of the teacher's layers 1 to 3",
        ),
    ],
)
def test_options_that_do_not_suit_the_sizes_are_refused(term: Any, message: str) -> None:
    student = build("bert", hidden_size=24, num_attention_heads=4)
    with pytest.raises(UserError) as caught:
        check(Objective(one=term), build("bert"), student)
    assert message in str(caught.value)


def test_a_compiled_student_is_refused_for_terms_on_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distill.training.hyperparameters._has_compiler", lambda: True)
    settings = TrainerSettings(learning_rate=1e-3, batch_size=8, max_steps=1, compile=True)
    check_hooks(Objective(soft=SoftTargets(), pkd=PatientKD()), settings)
    with pytest.raises(UserError, match="the term v2 reads attention vectors, which torch.compile hides: set trainer"):
        check_hooks(Objective(soft=SoftTargets(), v2=MiniLMv2()), settings)


def test_relations_join_teacher_and_student_of_other_families_widths_and_heads() -> None:
    teacher, student = build("modernbert"), build("bert", hidden_size=24, num_attention_heads=4)
    objective = Objective(v2=MiniLMv2(relation_heads=8))
    check(objective, teacher, student)
    objective.connect(compatibility.encoder_size(student), compatibility.encoder_size(teacher))
    assert objective.terms["v2"].attention_layers(3, 3) == ((3, 3),)


def test_the_student_of_a_teacher_is_read_as_the_teacher(tokenizer: PreTrainedTokenizerBase) -> None:
    """A DistilBERT with all layers of a BERT has its queries, keys and values."""
    teacher = toy_bert(len(tokenizer)).eval()
    student = distilbert.from_teacher(teacher, layers=[0, 1, 2, 3]).eval()
    vectors: list[Tensor] = []
    for model in (teacher, student):
        vectors += read(model, f"{NAME}.4")[4]
    for one, other in zip(vectors[:3], vectors[3:], strict=True):
        mask = BATCH["attention_mask"].bool()
        torch.testing.assert_close(one.transpose(1, 2)[mask], other.transpose(1, 2)[mask], atol=1e-4, rtol=1e-4)
