"""Tests of students that are cut in width: which heads and neurons are copied, equal outputs, files, refused sizes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students.distilbert import from_teacher
from transformers import (
    AutoModelForSequenceClassification,
    DistilBertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from distill.core.errors import UserError
from distill.models import compatibility
from distill.models.architectures import modeling_narrow
from distill.models.forward import NAME, count_heads, run_model
from distill.models.surgery.initialization import Origins
from distill.models.surgery.layers import Importance, Sizes, list_readers, narrow, share_out, take_strongest
from tests.students.test_albert import BATCH, assert_close, count, logits, states, toy

ALL = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def bert() -> PreTrainedModel:
    return toy(head="ForSequenceClassification")


def reversed_importance(tokenizer: PreTrainedTokenizerBase) -> Origins:
    """Ranks the last heads and neurons first."""
    return Origins(tokenizer, importance=lambda: Importance([torch.arange(4.0)] * 4, [torch.arange(48.0)] * 4))


# The model


def test_a_narrow_model_with_every_head_and_neuron_is_a_distilbert(bert: PreTrainedModel) -> None:
    reference = from_teacher(bert, layers=ALL)
    sizes = Sizes.of(reference)
    assert (sizes.heads, sizes.neurons) == ([4] * 4, [48] * 4)
    config = {name: value for name, value in reference.config.to_diff_dict().items() if name != "model_type"}
    own_config = modeling_narrow.derive_family("distilbert")
    model = AutoModelForSequenceClassification.from_config(own_config(**config))
    model.load_state_dict(reference.state_dict())
    for one in (model, reference):
        one.set_attn_implementation("eager")
    needs = frozenset({"hidden_states", "attentions", NAME})
    outputs = [run_model(one.eval(), BATCH, needs) for one in (model, reference)]
    for name in ("hidden_states", "attentions"):
        assert len(outputs[0][name]) == len(outputs[1][name]) == 4 + (name == "hidden_states")
        for own, other in zip(outputs[0][name], outputs[1][name], strict=True):
            assert_close(own, other, tolerance=1e-6)
    for layer in (1, 2, 3, 4):
        for own, other in zip(outputs[0][NAME][layer], outputs[1][NAME][layer], strict=True):
            assert_close(own, other, tolerance=1e-6)


@pytest.mark.parametrize(
    "head", ["Model", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice", "ForMaskedLM"]
)
def test_every_head_of_a_distilbert_has_its_narrow_form(head: str, tmp_path: Path) -> None:
    teacher = toy(head=head)
    student = from_teacher(teacher, layers=[1, 3], heads=2, ffn=[7, 9])
    assert type(student).__name__ == f"NarrowDistilBert{head}"
    student.save_pretrained(tmp_path)
    auto = getattr(transformers, f"Auto{head}" if head == "Model" else f"AutoModel{head}")
    loaded = auto.from_pretrained(tmp_path, trust_remote_code=True)
    assert_close(logits(loaded), logits(student), tolerance=1e-6)


def test_the_order_of_heads_and_neurons_does_not_change_the_outputs(bert: PreTrainedModel) -> None:
    whole = from_teacher(bert, layers=ALL)
    permuted = narrow(whole, heads=[[3, 1, 0, 2]] * 4, neurons=[list(reversed(range(48)))] * 4)
    assert type(permuted) is DistilBertForSequenceClassification
    assert_close(states(permuted), states(whole), tolerance=1e-5)


@torch.no_grad()
def test_a_removed_head_or_neuron_is_one_whose_output_is_zero(
    bert: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    student = from_teacher(bert, layers=[0, 2], heads=[1, 3], ffn=[5, 48], origins=reversed_importance(tokenizer))
    masked = from_teacher(bert, layers=[0, 2])
    for layer, (heads, neurons) in zip(masked.distilbert.transformer.layer, [(1, 5), (3, 48)], strict=True):
        layer.attention.out_lin.weight[:, : 32 - 8 * heads] = 0
        layer.ffn.lin2.weight[:, : 48 - neurons] = 0
    assert type(student).__name__ == "NarrowDistilBertForSequenceClassification"
    assert_close(states(student), states(masked), tolerance=1e-5)
    assert_close(logits(student), logits(masked), tolerance=1e-5)
    assert count_heads(student.config) == 3
    assert (student.config.layer_heads, student.config.layer_ffn) == ([1, 3], [5, 48])


def test_the_most_important_heads_come_first_and_a_tie_keeps_the_order() -> None:
    scores = [torch.tensor([0.1, 0.7, 0.5, 0.7]), torch.tensor([0.0, 0.0, 0.0, 0.0])]
    assert take_strongest(scores, [3, 2]) == [[1, 3, 2], [0, 1]]


@pytest.mark.parametrize(("total", "counts"), [(2, [1, 1]), (3, [2, 1]), (4, [3, 1]), (5, [3, 2]), (6, [3, 3])])
def test_what_is_left_is_shared_out_over_the_layers_by_importance(total: int, counts: list[int]) -> None:
    assert share_out([torch.tensor([0.6, 0.5, 0.4]), torch.tensor([0.1, 0.2, 0.3])], total) == counts


@pytest.mark.parametrize("total", [1, 7])
def test_a_layer_keeps_one_head_and_has_no_more_than_there_are(total: int) -> None:
    with pytest.raises(ValueError, match=rf"got {total} of \[3, 3\], expected at least one of each layer"):
        share_out([torch.rand(3)] * 2, total)


def test_a_student_of_fewer_inner_neurons_alone_is_a_plain_model(bert: PreTrainedModel, tmp_path: Path) -> None:
    student = from_teacher(bert, ffn=12)
    assert type(student) is DistilBertForSequenceClassification
    student.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config.hidden_dim == 12
    assert_close(logits(loaded), logits(student), tolerance=1e-6)
    other = from_teacher(toy("Roberta"), ffn=12)
    assert (type(other).__name__, other.config.intermediate_size) == ("RobertaForSequenceClassification", 12)


# Embeddings


@torch.no_grad()
def test_a_table_of_this_rank_is_factorized_exactly(bert: PreTrainedModel) -> None:
    teacher = toy()
    table = teacher.get_input_embeddings().weight
    left, values, right = torch.linalg.svd(table, full_matrices=False)
    table.copy_(left[:, :6] * values[:6] @ right[:6])
    whole, student = from_teacher(teacher, layers=ALL), from_teacher(teacher, layers=ALL, embedding_dim=6)
    assert student.get_input_embeddings().weight.shape == (60, 6)
    assert_close(states(student), states(whole), tolerance=1e-4)


@torch.no_grad()
def test_the_table_is_the_best_of_its_rank(bert: PreTrainedModel) -> None:
    student = from_teacher(bert, embedding_dim=10)
    embeddings = student.distilbert.embeddings
    product = embeddings.word_embeddings.weight @ embeddings.word_embeddings.projection.weight.T
    table = bert.get_input_embeddings().weight
    least = torch.linalg.svdvals(table)[10:].square().sum()
    assert_close((product - table).square().sum(), least, tolerance=1e-4)
    assert count(student, "word_") == 10 * (60 + 32)


def test_inherited_names_the_teachers_tensors(bert: PreTrainedModel) -> None:
    student = from_teacher(bert, layers=[1, 3], heads=2, ffn=8, embedding_dim=5)
    inherited: dict[str, str] = student.inherited  # type: ignore[assignment]
    assert set(inherited) == {name for name, _ in student.named_parameters()}
    layer = "distilbert.transformer.layer.1"
    assert inherited[f"{layer}.attention.q_lin.weight"] == "bert.encoder.layer.3.attention.self.query.weight"
    assert (
        inherited["distilbert.embeddings.word_embeddings.projection.weight"] == "bert.embeddings.word_embeddings.weight"
    )
    assert from_teacher(bert, heads=2, embedding_dim=5, init="random").inherited == {}


def test_a_narrow_model_loads_with_its_code_and_can_teach(bert: PreTrainedModel, tmp_path: Path) -> None:
    student = from_teacher(bert, heads=[1, 3], ffn=9, embedding_dim=5)
    student.save_pretrained(tmp_path)
    assert (tmp_path / "modeling_narrow.py").is_file()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True)
    assert_close(logits(loaded), logits(student), tolerance=1e-6)
    own: Any = type(student).from_pretrained(tmp_path)
    shorter = from_teacher(own, layers=[1])
    assert (shorter.config.layer_heads, shorter.config.layer_ffn) == ([3], [9])


def test_a_new_process_loads_a_narrow_model_that_a_run_has_saved(bert: PreTrainedModel, tmp_path: Path) -> None:
    """Its classes are made when they are needed."""
    student = from_teacher(bert, heads=[1, 3], ffn=9)
    student.save_pretrained(tmp_path)
    code = (
        "import sys, torch; from pathlib import Path; from distill.models.loading import load_saved\n"
        "model = load_saved(Path(sys.argv[1]), 'AutoModelForSequenceClassification').eval()\n"
        "print(type(model).__name__, model(torch.tensor([[5, 6, 7]])).logits.tolist()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    expected = student.eval()(torch.tensor([[5, 6, 7]])).logits[0]
    name, _, shown = done.stdout.strip().partition(" ")
    assert name == "NarrowDistilBertForSequenceClassification"
    assert_close(torch.tensor(json.loads(shown)), expected, tolerance=1e-5)


# What a term can compare


def test_heads_that_differ_by_layer_have_no_attention_vectors_to_compare(bert: PreTrainedModel) -> None:
    even, uneven = from_teacher(bert, heads=2), from_teacher(bert, heads=[1, 2])
    assert (compatibility.encoder_size(even).heads, compatibility.encoder_size(even).attention_width) == (2, 16)
    assert (compatibility.encoder_size(uneven).heads, compatibility.encoder_size(uneven).attention_width) == (
        None,
        None,
    )
    assert run_model(even.eval(), BATCH, frozenset({NAME}))[NAME][1].queries.shape == (3, 2, 9, 8)
    assert run_model(uneven.eval(), BATCH, frozenset({NAME}))[NAME] == {}


# Refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "got student.heads=0, expected a whole number from 1 to 4"),
        ({"heads": 1.5}, "got student.heads=1.5, expected a whole number from 1 to 4"),
        ({"heads": "half"}, "got student.heads=half, expected a whole number from 1 to 4"),
        ({"heads": [2, 5]}, r"got student.heads=\[2, 5\], expected a whole number from 1 to 4"),
        ({"heads": [2]}, r"student.heads=\[2\] has 1 numbers, expected one for each of 2 layers"),
        ({"ffn": 49}, "got student.ffn=49, expected a whole number from 1 to 48: a layer of the teacher has 48 inner"),
        ({"embedding_dim": 32}, "got student.embedding_dim=32, expected a whole number from 1 to 31, below the width"),
        ({"embedding_dim": 0}, "got student.embedding_dim=0, expected a whole number from 1 to 31"),
        ({"heads": 2, "attention": "local"}, "student.heads, ffn, embedding_dim and prune cut no student for long"),
        ({"ffn": 8, "chunk": 16}, "student.heads, ffn, embedding_dim and prune cut no student for long"),
    ],
    ids=str,
)  # fmt: skip
def test_sizes_that_a_student_cannot_have_are_refused(bert: PreTrainedModel, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_teacher(bert, **options)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    model = from_teacher(toy())
    model.config.n_heads = 5
    with pytest.raises(
        UserError, match="has 5 heads, which do not divide the width 32 of its layers: its heads cannot"
    ):
        Sizes.of(model)


def test_embeddings_that_a_language_model_predicts_with_are_not_cut() -> None:
    with pytest.raises(UserError, match="student.embedding_dim is for students without a head over the vocabulary"):
        from_teacher(toy(head="ForMaskedLM"), embedding_dim=4)


def test_layers_of_other_families_are_not_cut() -> None:
    with pytest.raises(UserError, match="cut the layers of BERT, DistilBERT, .*, and this is a DebertaForSeq"):
        from_teacher(toy("Deberta"), ffn=2)
    with pytest.raises(UserError, match="factorizes a plain table, and a Gemma"):
        from_teacher(toy("Gemma", num_key_value_heads=2, head_dim=8), embedding_dim=2)


# Other families

POSITIONS = {"relative_attention": True, "position_buckets": 4, "norm_rel_ebd": "layer_norm", "pos_att_type": ["c2p"]}
GROUPS = {"num_key_value_heads": 2, "head_dim": 16, "num_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": {"layer_norm_eps": 1e-6}, "Roberta": {}, "XLMRoberta": {"max_position_embeddings": 24}, "Camembert": {},
    "Electra": {}, "MPNet": {"max_position_embeddings": 24}, "DebertaV2": POSITIONS | {"share_att_key": False},
    "ModernBert": {"global_attn_every_n_layers": 2, "local_attention": 4}, "Llama": GROUPS, "Qwen3": GROUPS,
    "EuroBert": GROUPS, "Gemma": GROUPS, "Mistral": GROUPS, "Qwen2": {"num_key_value_heads": 2},
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_of_each_family_computes_what_is_left_of_it(
    family: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    teacher = toy(family, **FAMILIES[family])
    whole = Sizes.of(teacher)
    rank = None if family == "Gemma" else teacher.get_input_embeddings().weight.shape[1] - 1
    if rank is not None:  # So that the factors are the table.
        table = teacher.get_input_embeddings().weight
        table[:, -1] = table[:, 0]
    origins = Origins(
        tokenizer,
        importance=lambda: Importance(
            [torch.arange(float(number)) for number in whole.heads], [torch.arange(float(n)) for n in whole.neurons]
        ),
    )
    sizes = {"heads": [whole.heads[0], 1], "ffn": [5, whole.neurons[0]]}
    student = from_teacher(teacher, layers=[0, 2], **sizes, embedding_dim=rank, origins=origins)
    masked = from_teacher(teacher, layers=[0, 2])
    readers = list_readers(masked)
    for reader, total, kept in zip(
        readers, [*(whole.heads[0], whole.neurons[0])] * 2, [whole.heads[0], 5, 1, whole.neurons[0]], strict=True
    ):
        reader.weight[:, : reader.in_features - reader.in_features // total * kept] = 0
    assert type(student).__name__ == f"Narrow{type(masked).__name__}"
    assert_close(logits(student), logits(masked), tolerance=1e-4)
    assert set(student.inherited) == {name for name, _ in student.named_parameters()}  # type: ignore[arg-type]
    student.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True)
    assert_close(logits(loaded), logits(student), tolerance=1e-6)
    again = from_teacher(loaded, layers=[0, 1], heads=1, ffn=4)
    assert Sizes.of(again) == Sizes([1, 1], [4, 4])


def test_heads_with_scores_from_outside_keep_their_order(tokenizer: PreTrainedTokenizerBase) -> None:
    teacher = toy("MPNet", **FAMILIES["MPNet"])
    student = from_teacher(teacher, layers=ALL, ffn=48 - 1, origins=reversed_importance(tokenizer))
    masked = from_teacher(teacher, layers=ALL)
    for reader in list_readers(masked)[1::2]:
        reader.weight.data[:, 0] = 0
    assert_close(logits(student), logits(masked), tolerance=1e-4)


def test_a_decoder_with_a_width_of_its_heads_stays_of_its_class() -> None:
    student = from_teacher(toy("Qwen3", **GROUPS), heads=1, ffn=8)
    assert (type(student).__name__, student.config.num_attention_heads) == ("Qwen3ForSequenceClassification", 2)
    other = from_teacher(toy("Qwen2", num_key_value_heads=2), heads=1)
    assert (type(other).__name__, count_heads(other.config)) == ("NarrowQwen2ForSequenceClassification", 2)
