"""Tests of every teacher family that has a YAML, at toy size, in a directory laid out as the Hub's cache."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students import bilstm, distilbert
from distill.builtin.teachers.pretrained import Pretrained
from huggingface_hub import constants
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distill.__main__ import config_directory
from distill.core.errors import UserError
from distill.kinds import Classification
from distill.models import compatibility, cpu_kernels
from distill.models.forward import input_names
from distill.models.sentence_files import adopt_special_tokens
from tests.conftest import LABELS, sentences
from tests.teachers.test_teacher import write_model_cache

AUTO_CLASS = "AutoModelForSequenceClassification"
SIZES = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
# Teacher's YAML -> its configuration at toy size, and the layers that a half-depth student takes.
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "bert_large": (transformers.BertConfig, {}),
    "roberta_base": (transformers.RobertaConfig, {"max_position_embeddings": 82, "type_vocab_size": 1}),
    "xlm_roberta_base": (transformers.XLMRobertaConfig, {"max_position_embeddings": 82, "type_vocab_size": 1}),
    "mpnet_base": (transformers.MPNetConfig, {"max_position_embeddings": 82}),
    "electra_base": (transformers.ElectraConfig, {"embedding_size": 16}),
    "albert_base": (transformers.AlbertConfig, {"embedding_size": 16}),
    "deberta_v3_small": (
        transformers.DebertaV2Config,
        {
            "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
            "max_relative_positions": -1,
        },
    ),
    "modernbert_base": (transformers.ModernBertConfig, {"global_attn_every_n_layers": 3, "local_attention": 8}),
}  # fmt: skip


COUNTED = ("roberta_base", "xlm_roberta_base", "mpnet_base")  # Their positions begin behind that of the padding.
UNLIMITED = ("deberta_v3_small", "modernbert_base")  # Their positions are relative.


def family_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Returns the family's tokenizer: `<s> a </s></s> b </s>` for RoBERTa's relatives, else `[CLS] a [SEP] b [SEP]`."""
    counted = name in COUNTED
    pad, unknown, start, end = ("<pad>", "<unk>", "<s>", "</s>") if counted else ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    special = [start, pad, end, unknown] if counted else [pad, unknown, start, end]
    tokenizer = Tokenizer(models.BPE(unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(
        [text for text, _ in sentences(64)],
        trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False),
    )
    ids = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    middle = f"{end} {end}" if counted else end
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", pair=f"{start} $A {middle} $B {end}", special_tokens=ids
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, unk_token=unknown, cls_token=start, sep_token=end,
        model_max_length=80,
    )  # fmt: skip


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Name, untrained teacher with a head for two labels, and tokenizer, as `+teacher=NAME` loads them."""
    name: str = request.param
    config_class, options = FAMILIES[name]
    tokenizer = family_tokenizer(name)
    torch.manual_seed(0)
    config = config_class(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id,
        **(SIZES | {"max_position_embeddings": 80} | options),
    )  # fmt: skip
    encoder = transformers.AutoModel.from_config(config)
    for parameter in encoder.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)  # Large enough for differences to show.
    encoder.save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    values = OmegaConf.load(config_directory() / "teacher" / f"{name}.yaml")
    write_model_cache(tmp_path / "hub", values.id, tmp_path / "source")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    start = Pretrained(name=name, id=values.id).load(AUTO_CLASS, LABELS, [])
    assert not start.fits
    adopt_special_tokens(start.model, start.tokenizer)
    return name, start.model.eval(), start.tokenizer


def compute_logits(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**{name: batch[name] for name in input_names(model) if name in batch}).logits


def test_a_student_of_the_family_is_built_and_reloaded(family: Any, tmp_path: Path) -> None:
    name, teacher, tokenizer = family
    batch = dict(tokenizer(["a lovely film", "dull"], padding=True, return_tensors="pt"))
    if name == "albert_base":
        with pytest.raises(UserError, match=r"take \+student=albert, whose layers share theirs"):
            distilbert.from_teacher(teacher)
        student: PreTrainedModel = bilstm.from_teacher(teacher, task=Classification(text="sentence"))
    else:
        student = distilbert.from_teacher(teacher)
        assert student.config.num_hidden_layers == 2
        copied = [tensor for tensor in student.inherited if "layer" in tensor]
        assert copied, "no tensor of a layer was copied"
        whole = distilbert.from_teacher(teacher, layers=[0, 1, 2, 3])
        if name != "bert_large":  # A DistilBERT has another head.
            torch.testing.assert_close(
                compute_logits(whole, batch), compute_logits(teacher, batch), atol=1e-5, rtol=1e-4
            )
    assert compute_logits(student, batch).shape == (2, 2)
    student.save_pretrained(tmp_path / "student")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "student", dtype=torch.float32)
    torch.testing.assert_close(compute_logits(again, batch), compute_logits(student, batch))


@pytest.mark.parametrize("family", ["bert_large", "roberta_base"], indirect=True)  # One and two separators.
def test_a_bilstm_separates_the_texts_of_a_pair_of_the_family(family: Any) -> None:
    _, teacher, tokenizer = family
    student = bilstm.from_teacher(teacher, task=Classification(text=["one", "two"]), hidden_dim=8, classifier_dim=8)
    first, second = "a lovely film", "dull and stale"
    batch = tokenizer([first], [second], return_tensors="pt")
    starts, lengths = student._locate_texts(batch["input_ids"], batch["attention_mask"], pair=True)
    boundary = len(tokenizer(first)["input_ids"])  # With both special tokens around it.
    assert starts.tolist() == [[0, boundary]]
    assert lengths.sum().item() == batch["input_ids"].shape[1]


@pytest.mark.parametrize("auto_class", [AUTO_CLASS, "AutoModelForTokenClassification"])
@pytest.mark.parametrize("side", ["left"])
def test_the_logits_of_a_text_do_not_depend_on_its_padding(
    family: Any, side: str, auto_class: str, tmp_path: Path
) -> None:
    name, teacher, tokenizer = family
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = side
    for part in (teacher, tokenizer):
        part.save_pretrained(tmp_path / "saved")
    start = Pretrained(name=name, path=str(tmp_path / "saved")).load(auto_class, LABELS, [])
    model = start.model.eval()
    # RoBERTa and relative positions go with the tokens, so that only the pooled first token is lost.
    is_wrong = side == "left" and (auto_class == AUTO_CLASS or name not in (*COUNTED, *UNLIMITED))
    assert start.tokenizer.padding_side == ("right" if is_wrong else side)
    assert sum("batches are padded on the right" in notice for notice in start.notices) == is_wrong
    start.tokenizer.save_pretrained(tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again.padding_side == start.tokenizer.padding_side
    texts = ["dull", "a lovely and moving film , funny , warm and clever"]
    batch = start.tokenizer(texts, padding=True, return_tensors="pt")
    alone = compute_logits(model, start.tokenizer(texts[:1], return_tensors="pt"))
    logits = compute_logits(model, batch)[:1]
    if auto_class != AUTO_CLASS:
        logits = logits[:, batch["attention_mask"][0].bool()]
    torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)


# Relatives of RoBERTa, whose positions begin behind that of the padding, and a family that reads any length.
OTHERS: dict[str, Callable[[dict[str, Any]], PreTrainedModel]] = {
    "xlm-roberta": lambda options: transformers.XLMRobertaForSequenceClassification(
        transformers.XLMRobertaConfig(**options)
    ),
    "camembert": lambda options: transformers.CamembertForSequenceClassification(
        transformers.CamembertConfig(**options)
    ),
    "mpnet": lambda options: transformers.MPNetForSequenceClassification(transformers.MPNetConfig(**options)),
    "longformer": lambda options: transformers.LongformerForSequenceClassification(
        transformers.LongformerConfig(**options, attention_window=4)
    ),
    "bert": lambda options: transformers.BertForSequenceClassification(transformers.BertConfig(**options)),
    "distilbert": lambda options: transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(
            vocab_size=90, dim=32, n_layers=1, n_heads=4, hidden_dim=64, max_position_embeddings=42
        )
    ),
}


def run_length(model: PreTrainedModel, length: int) -> torch.Size:
    tokens = torch.full((1, length), 5)
    with torch.no_grad():
        return model.eval()(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.shape


@pytest.mark.parametrize("name", OTHERS)
def test_the_longest_text_that_a_family_reads_is_the_one_that_is_stated(name: str) -> None:
    options = {"vocab_size": 90, "max_position_embeddings": 42, "pad_token_id": 1}
    model = OTHERS[name](options | SIZES | {"num_hidden_layers": 1})
    tokenizer = family_tokenizer("roberta_base")
    tokenizer.model_max_length = 1_000_000  # As many tokenizers say.
    limit = compatibility.longest(model, tokenizer)
    assert limit == (42 if name in ("bert", "distilbert") else 40)
    assert run_length(model, limit) == (1, 2)
    with pytest.raises((IndexError, RuntimeError)):
        run_length(model, limit + 1)


def test_the_longest_text_of_a_family_is_read_and_no_longer_one(family: Any) -> None:
    name, teacher, tokenizer = family
    tokenizer.model_max_length = 1_000_000
    limit = compatibility.longest(teacher, tokenizer)
    assert limit == 80
    student = teacher if name == "albert_base" else distilbert.from_teacher(teacher)
    assert compatibility.longest(student, tokenizer) == limit
    for model in (teacher, student):
        assert run_length(model, limit) == (1, 2)
        if name not in UNLIMITED:
            with pytest.raises((IndexError, RuntimeError)):
                run_length(model, limit + 1)
        with pytest.raises(UserError, match="task.max_length=81, but the teacher reads 80 tokens at most"):
            compatibility.check_length(model, tokenizer, 81, who="teacher")


def test_cpu_kernels_give_the_logits_of_torch(family: Any) -> None:
    """Without dropout, the logits with our attention equal those with the family's own."""
    _, teacher, tokenizer = family
    model = copy.deepcopy(teacher).train()
    for name, value in vars(model.config).items():
        if "dropout" in name and isinstance(value, float):
            setattr(model.config, name, 0.0)
    model = type(model)(model.config).train()
    model.load_state_dict(teacher.state_dict())
    batch = tokenizer(["a film", "a lovely and moving film"], padding=True, return_tensors="pt")
    inputs = {name: batch[name] for name in input_names(model) if name in batch}
    expected = model(**inputs).logits
    with cpu_kernels.use_cpu_kernels(model):
        result = model(**inputs).logits
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)
