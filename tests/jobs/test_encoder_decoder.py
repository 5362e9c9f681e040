"""A whole run of an encoder-decoder that begins with an encoder, from the command line."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerBase

from tests.conftest import run_here


@pytest.fixture
def encoder(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


def test_an_encoder_teaches_to_write(tmp_path: Path, encoder: Path) -> None:
    rows = [{"source": f"a lovely film {number}", "target": f"film {number}"} for number in range(24)]
    for name, part in (("train", rows[:16]), ("dev", rows[16:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))
    steps = ("max_epochs=null", "max_steps=2")
    done = run_here(
        "+teacher=encoder_decoder", f"teacher.path={encoder}", "teacher.accept_weak=true",
        "+student=encoder_decoder", f"student.path={encoder}", "student.decoder_depth=1",
        "task=seq2seq", f"task.data_dir={tmp_path}", "task.max_length=16", "task.max_target=16",
        "objective=seq2seq", "export.enabled=false",
        f"output_dir={tmp_path / 'runs'}", f"cache_dir={tmp_path / 'cache'}",
        *(f"trainer.{step}" for step in steps), *(f"teacher.finetune.{step}" for step in steps),
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [record] = (tmp_path / "runs").rglob("run.json")
    assert "its cross-attention is not trained" in done.stdout
    student = AutoModelForSeq2SeqLM.from_pretrained(record.parent / "student")
    assert (student.config.encoder_layers, student.config.decoder_layers) == (2, 1)
    saved = AutoTokenizer.from_pretrained(record.parent / "student")
    assert saved.eos_token_id == student.config.eos_token_id == saved.sep_token_id
    assert student.config.decoder_start_token_id == saved.cls_token_id
