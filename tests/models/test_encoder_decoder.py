"""Tests of an encoder-decoder that begins with an encoder: equal tensors, and outputs and losses of transformers."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students import encoder_decoder as student_file
from distill.builtin.students.distilbert import from_teacher
from distill.builtin.teachers.encoder_decoder import EncoderDecoder
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import UserError
from distill.models.surgery.initialization import build_encoder_decoder

SIZES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40, "initializer_range": 0.5,
}  # fmt: skip
# Family -> its own sizes.
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {"pad_token_id": 0, "max_position_embeddings": 41, "type_vocab_size": 1},
    "DistilBert": {"dim": 16, "n_layers": 4, "n_heads": 2, "hidden_dim": 24},
    "Electra": {"embedding_size": 16},
}


def build(family: str, tokenizer: PreTrainedTokenizerBase, **options: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id} | options
    config = getattr(transformers, f"{family}Config")(**sizes)
    return getattr(transformers, f"{family}Model")(config).eval()


@pytest.fixture(name="tokenizer")
def copy_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer of this test alone, which is given the tokens at the ends of a text."""
    return copy.deepcopy(tokenizer)


@pytest.fixture
def encoder(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return build("Bert", tokenizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_half_that_reads_has_the_outputs_of_the_encoder(family: str, tokenizer: PreTrainedTokenizerBase) -> None:
    encoder = build(family, tokenizer, **FAMILIES[family])
    model = build_encoder_decoder(encoder, tokenizer, "teacher")
    inputs = tokenizer(["a lovely film", "a dull and lifeless mess"], padding=True, return_tensors="pt")
    kept = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = encoder(**kept).last_hidden_state
        states = model.get_encoder()(**kept).last_hidden_state
    is_token = kept["attention_mask"].bool()
    torch.testing.assert_close(states[is_token], expected[is_token], atol=2e-4, rtol=0)


def test_the_tensors_of_both_halves_are_those_of_the_encoder(
    encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = build_encoder_decoder(encoder, tokenizer, "teacher", depth=3, decoder_depth=2)
    inherited: dict[str, str] = model.inherited  # type: ignore[assignment]
    for name, source in inherited.items():
        torch.testing.assert_close(model.get_parameter(name), encoder.get_parameter(source), rtol=0, atol=0)
    new = {name for name, _ in model.named_parameters()} - inherited.keys()
    assert {name.split(".layers.")[-1].split(".", 1)[-1].rsplit(".", 1)[0] for name in new} == {
        "encoder.embed_positions", "decoder.embed_positions",
        *(f"encoder_attn.{name}" for name in ("k_proj", "v_proj", "q_proj", "out_proj")), "encoder_attn_layer_norm",
    }  # fmt: skip
    used = {name: source.split(".")[2] for name, source in inherited.items() if name.endswith("fc1.weight")}
    assert used == {
        "model.encoder.layers.0.fc1.weight": "0", "model.encoder.layers.1.fc1.weight": "1",
        "model.encoder.layers.2.fc1.weight": "3", "model.decoder.layers.0.fc1.weight": "0",
        "model.decoder.layers.1.fc1.weight": "3",
    }  # fmt: skip
    assert model.lm_head.weight is model.model.shared.weight


def test_the_loss_is_that_of_a_bert_which_attends_to_an_encoder(
    encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The decoder of transformers' EncoderDecoderModel, with the cross-attention of the BART."""
    model = build_encoder_decoder(encoder, tokenizer, "teacher")
    torch.manual_seed(1)
    for name, tensor in model.named_parameters():
        if ".encoder_attn" in name:
            torch.nn.init.normal_(tensor, std=0.3)
    decoder = BertModel(BertConfig(**{**encoder.config.to_dict(), "is_decoder": True, "add_cross_attention": True}))
    decoder.eval().load_state_dict(encoder.state_dict(), strict=False)
    for number, layer in enumerate(decoder.encoder.layer):
        own = model.get_submodule(f"model.decoder.layers.{number}")
        cross = layer.crossattention
        for name, target in (("q_proj", cross.self.query), ("k_proj", cross.self.key), ("v_proj", cross.self.value)):
            target.load_state_dict(getattr(own.encoder_attn, name).state_dict())
        cross.output.dense.load_state_dict(own.encoder_attn.out_proj.state_dict())
        cross.output.LayerNorm.load_state_dict(own.encoder_attn_layer_norm.state_dict())
    inputs = tokenizer(["a lovely film", "a dull and lifeless mess"], padding=True, return_tensors="pt")
    labels = torch.tensor([[7, 8, 9, tokenizer.sep_token_id], [10, tokenizer.sep_token_id, -100, -100]])
    begun = model.prepare_decoder_input_ids_from_labels(labels)
    assert begun[:, 0].tolist() == [tokenizer.cls_token_id] * 2
    with torch.no_grad():
        output = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=labels)
        states = decoder(
            input_ids=begun,
            encoder_hidden_states=encoder(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state,
            encoder_attention_mask=inputs["attention_mask"],
        ).last_hidden_state
        logits = states @ encoder.embeddings.word_embeddings.weight.T
    is_token = labels >= 0
    torch.testing.assert_close(output.logits[is_token], logits[is_token], atol=2e-3, rtol=0)
    assert output.loss.item() == pytest.approx(cross_entropy(logits.flatten(0, 1), labels.flatten()).item(), rel=1e-4)


def test_texts_begin_with_cls_and_end_with_sep(
    encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    assert tokenizer.eos_token is None
    model = build_encoder_decoder(encoder, tokenizer, "teacher")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("[CLS]", "[SEP]")
    for config in (model.config, model.generation_config):
        assert config.decoder_start_token_id == config.bos_token_id == tokenizer.cls_token_id
        assert (config.eos_token_id, config.pad_token_id) == (tokenizer.sep_token_id, tokenizer.pad_token_id)
        assert config.forced_eos_token_id is None
    tokenizer.save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    assert (saved.bos_token, saved.eos_token) == ("[CLS]", "[SEP]")
    written = model.generate(**saved("a film", return_tensors="pt"), max_new_tokens=3)
    assert written[0, 0] == tokenizer.cls_token_id


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("Electra", {"embedding_size": 8}, "the embeddings of a ElectraModel are not those of a BERT"),
        (
            "MPNet",
            {},
            "the embeddings of a MPNetModel are not those of a BERT (encoder.relative_attention_bias.weight)",
        ),
        ("Albert", {"embedding_size": 16}, "of an encoder-decoder|has no 4 separate layers"),
        ("ModernBert", {}, "the layers of a ModernBertModel do not fit the halves of an encoder-decoder"),
    ],
)
def test_an_encoder_with_other_layers_is_refused(
    family: str, options: dict[str, Any], message: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(UserError) as caught:
        build_encoder_decoder(build(family, tokenizer, **options), tokenizer, "teacher")
    assert any(part in str(caught.value) for part in message.split("|"))


@pytest.mark.parametrize("sizes", [{"heads": 1}, {"ffn": [8, 16], "depth": 2}, {"embedding_dim": 8}])
def test_a_narrowed_encoder_is_refused(
    encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sizes: dict[str, Any]
) -> None:
    narrow = from_teacher(encoder, **sizes)
    with pytest.raises(UserError, match=r"the (embeddings|layers) of (a|this) \w+ (were narrowed|are not those of)"):
        build_encoder_decoder(narrow, tokenizer, "teacher")


@pytest.mark.parametrize("depth", [0, 5, True])
def test_a_number_of_layers_that_the_encoder_lacks_is_refused(
    encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, depth: int
) -> None:
    message = f"got student.decoder_depth={depth}, expected a whole number from 1 to 4, the layers of the encoder"
    with pytest.raises(UserError, match=message):
        build_encoder_decoder(encoder, tokenizer, "student", decoder_depth=depth)


def test_a_tokenizer_without_ends_is_refused(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.sep_token = None
    with pytest.raises(UserError, match=r"begins with \[CLS\] and ends with \[SEP\], and the tokenizer has no such"):
        build_encoder_decoder(encoder, tokenizer, "teacher")


@pytest.fixture
def directory(tmp_path: Path, encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    encoder.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_teacher_is_an_encoder_in_both_halves(directory: Path) -> None:
    teachers = [EncoderDecoder(name="both", path=str(directory), decoder_depth=depth) for depth in (None, 1)]
    whole, shallow = (teacher.load("AutoModelForSeq2SeqLM", None, []) for teacher in teachers)
    assert (whole.fits, whole.reason) == (False, "its cross-attention is not trained")
    assert (whole.model.config.decoder_layers, shallow.model.config.decoder_layers) == (4, 1)
    assert whole.tokenizer.eos_token == "[SEP]"
    assert len({teacher.fingerprint() for teacher in teachers}) == 2
    assert teachers[0].width() == 16
    assert {name.split(".")[4] for name in whole.fresh} == {"encoder_attn", "encoder_attn_layer_norm"}
    assert len(whole.fresh) == 4 * 10
    with pytest.raises(UserError, match="teacher both writes a text for a text, and the task needs an AutoModelForMas"):
        teachers[0].load("AutoModelForMaskedLM", None, [])


def test_a_student_begins_with_an_encoder_of_its_own(
    directory: Path, encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    teacher = build_encoder_decoder(encoder, tokenizer, "teacher")
    student = student_file.from_teacher(teacher, path=str(directory), depth=2, decoder_depth=1)
    assert (student.config.encoder_layers, student.config.decoder_layers) == (2, 1)
    assert student.training
    assert student.vocabulary == tokenizer.get_vocab()
    with pytest.raises(UserError, match="writes a text for a text, and the teacher is a BertModel: take task=seq2seq"):
        student_file.from_teacher(encoder, path=str(directory))
    with pytest.raises(UserError, match="student encoder_decoder begins with an encoder: give student.path=DIR"):
        student_file.from_teacher(teacher, path=None)
