"""Tests of the tokens of targets: what a decoder reads before each, its first token, and the token of a language."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import MBartTokenizer, NllbTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.contracts import IGNORED
from distill.core.errors import UserError
from distill.kinds import Seq2Seq
from distill.kinds.seq2seq import encode_targets
from distill.models.forward import shift_targets
from distill.models.loading import load_directory
from distill.models.sentence_files import read_attributes

PAIRS = [{"source": "three one two", "target": "one two three"}, {"source": "two one", "target": "one two"}]
TASK = Seq2Seq(train=PAIRS, dev=PAIRS)
SEQ2SEQ = "AutoModelForSeq2SeqLM"
PAD, END = 0, 3
BART: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 40,
}  # fmt: skip
T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "bart": BART, "blenderbot": BART, "longt5": T5, "m2m_100": BART, "marian": BART, "mt5": T5,
    "nllb-moe": BART | {"num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2}, "pegasus": BART,
    "prophetnet": {
        "hidden_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 40,
    },
}  # fmt: skip


def build(family: str, vocabulary: int = 60, **options: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    special = {"pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": END, "decoder_start_token_id": 2}
    config = transformers.AutoConfig.for_model(family, vocab_size=vocabulary, **FAMILIES[family] | special | options)
    model: PreTrainedModel = transformers.AutoModelForSeq2SeqLM.from_config(config)
    return model.eval()


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "prophetnet"])
def test_the_loss_of_an_encoder_decoder_is_that_of_transformers(family: str) -> None:
    model, random = build(family), torch.Generator().manual_seed(1)
    if family == "bart":
        model.final_logits_bias.normal_()  # Zero in a new BART, and not in its relatives.
    ids, labels = (torch.randint(4, 60, (3, length), generator=random) for length in (7, 5))
    labels[2, 3:] = IGNORED
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    items = TASK.select({**batch, "example_id": torch.arange(3)})
    with torch.no_grad():
        logits = TASK.run(model, batch, items, frozenset()).at(items).logits
        expected = model(**batch).loss
    assert logits is not None
    assert float(cross_entropy(logits, items.labels)) == pytest.approx(float(expected), abs=1e-5)


def test_a_decoder_reads_its_first_token_and_all_labels_but_the_last() -> None:
    labels = torch.tensor([[5, 6, END], [7, END, IGNORED]])
    assert shift_targets(build("m2m_100"), labels).tolist() == [[2, 5, 6], [2, 7, END]]
    assert labels.tolist() == [[5, 6, END], [7, END, IGNORED]]
    longer = torch.tensor([[7, END, IGNORED, IGNORED]])
    assert shift_targets(build("m2m_100"), longer).tolist() == [[2, 7, END, PAD]]


LANGUAGES: dict[str, tuple[type[PreTrainedTokenizerBase], str, str]] = {
    "m2m_100": (NllbTokenizer, "eng_Latn", "fra_Latn"),  # The type of NLLB's models.
    "bart": (MBartTokenizer, "en_XX", "ro_RO"),
}


def make_tokenizer(family: str, *, target: bool = True) -> PreTrainedTokenizerBase:
    create, source, written = LANGUAGES[family]
    return create(src_lang=source, tgt_lang=written if target else None)


def save(family: str, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    build(family, len(tokenizer), **special).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@pytest.mark.parametrize("family", LANGUAGES)
def test_targets_have_the_token_of_their_own_language(family: str, tmp_path: Path) -> None:
    save(family, make_tokenizer(family), tmp_path)
    start = load_directory(tmp_path, SEQ2SEQ, None, trust_remote_code=False)
    before = start.tokenizer.backend_tokenizer.to_str()
    targets = encode_targets(["a"], start.tokenizer, 8, None)
    expected = make_tokenizer(family)(text_target="a")["input_ids"]
    assert targets.columns["input_ids"].tolist() == expected
    assert start.tokenizer.backend_tokenizer.to_str() == before
    language = start.tokenizer.convert_tokens_to_ids(LANGUAGES[family][2])
    assert language in expected
    begins = expected[0] == language
    assert start.model.generation_config.forced_bos_token_id == (language if begins else None)
    assert not any("tgt_lang" in notice for notice in start.notices)
    assert read_attributes(start.tokenizer)["tgt_lang"] == LANGUAGES[family][2]


def test_a_tokenizer_without_a_language_of_targets_has_a_notice(tmp_path: Path) -> None:
    save("m2m_100", make_tokenizer("m2m_100", target=False), tmp_path)
    start = load_directory(tmp_path, SEQ2SEQ, None, trust_remote_code=False)
    [notice] = [text for text in start.notices if "tgt_lang" in text]
    assert "which are taken to be in eng_Latn: for another one load it with" in notice


def test_a_decoder_of_several_tokens_at_once_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("bart")
    build("prophetnet", len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"whose decoder predicts the next 2 tokens at once \(ngram in its config.json"):
        load_directory(tmp_path, SEQ2SEQ, None, trust_remote_code=False)
