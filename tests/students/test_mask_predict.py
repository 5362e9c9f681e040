"""Tests of the student that fills targets: equal tensors of a BART or an encoder, and what it cannot begin with."""

from pathlib import Path

import pytest
import torch
from distill.builtin.students.mask_predict import from_teacher
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
)

from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.kinds import MaskedLM, MaskPredict, Seq2Seq
from distill.models.architectures.modeling_mask_predict import MaskPredictForConditionalGeneration
from distill.models.compatibility import check_filling
from tests.mask_predict import SIZES

PAIRS = [{"source": "w1", "target": "w2"}, {"source": "w3", "target": "w4"}]
TASK: Task = MaskPredict(train=PAIRS, dev=PAIRS, max_length=8, max_target=9)


def bart() -> BartForConditionalGeneration:
    torch.manual_seed(0)
    config = BartConfig(**SIZES | {"encoder_layers": 4, "trained_for": "seq2seq"})
    return BartForConditionalGeneration(config).eval()


def test_it_begins_with_layers_of_the_teacher() -> None:
    teacher = bart()
    student = from_teacher(teacher, task=TASK, depth=2, decoder_depth=1)
    assert isinstance(student, MaskPredictForConditionalGeneration)
    assert student.training
    assert (student.config.encoder_layers, student.config.decoder_layers, student.config.most_tokens) == (2, 1, 9)
    assert student.config.model_type == "distill_mask_predict"
    assert student.config.trained_for == "mask_predict"
    inherited: dict[str, str] = student.inherited  # type: ignore[assignment]
    for name, source in inherited.items():
        torch.testing.assert_close(student.get_parameter(name), teacher.get_parameter(source), rtol=0, atol=0)
    new = {name for name, _ in student.named_parameters()} - inherited.keys()
    assert new == {"model.length_head.weight", "model.length_head.bias"}
    assert student.model.length_head.weight.shape == (10, 32)
    assert student.lm_head.weight is student.model.shared.weight


def test_half_of_the_layers_by_default_and_random_weights() -> None:
    teacher = bart()
    student = from_teacher(teacher, task=TASK, init="random")
    assert (student.config.encoder_layers, student.config.decoder_layers) == (2, 1)
    assert student.inherited == {}
    assert not torch.equal(student.model.shared.weight, teacher.model.shared.weight)


def test_it_begins_with_an_encoder(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32,
    )  # fmt: skip
    encoder = BertModel(config)
    encoder.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    student = from_teacher(bart(), task=TASK, path=str(tmp_path), decoder_depth=2)
    assert (student.config.encoder_layers, student.config.decoder_layers) == (3, 2)
    torch.testing.assert_close(
        student.model.decoder.layers[1].fc1.weight, encoder.encoder.layer[2].intermediate.dense.weight
    )
    assert student.vocabulary == tokenizer.get_vocab()
    assert student.inherited == {}


def test_other_starts_are_refused() -> None:
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=35, d_model=16, d_kv=8, num_heads=2, d_ff=24, num_layers=1))
    with pytest.raises(
        UserError, match="begins with the layers of a BART, and the teacher is a T5ForCondit.*student.path"
    ):
        from_teacher(t5, task=TASK)
    with pytest.raises(UserError, match="student mask_predict writes a text for a text, and task=mlm has none"):
        from_teacher(bart(), task=MaskedLM())


def test_students_and_tasks_of_other_kinds_do_not_fit() -> None:
    plain = Seq2Seq(train=PAIRS, dev=PAIRS, max_length=8, max_target=9)
    student = from_teacher(bart(), task=TASK)
    check_filling(student, TASK.info, "mask_predict")
    check_filling(bart(), plain.info, "distilbert")
    with pytest.raises(UserError, match="student mask_predict fills all tokens .* take task=mask_predict, or"):
        check_filling(student, plain.info, "mask_predict")
    with pytest.raises(
        UserError, match=r"student distilbert \(Bart.*\) writes no targets by .* \+student=mask_predict"
    ):
        check_filling(bart(), TASK.info, "distilbert")
