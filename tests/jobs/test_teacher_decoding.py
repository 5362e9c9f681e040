"""A teacher's generation configuration and the prefix of sources, in the student, its bundle and the scored texts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

from distill.core.files import write_json
from distill.edge import Bundle
from distill.export.onnx import describe_generation
from distill.models.decoding import adopt_decoding, describe_rules, list_notices
from distill.teachers.writing import BeamWriter
from tests.jobs.conftest import Run
from tests.jobs.runs import read_record

RULES: dict[str, Any] = {
    "eos_token_id": [2, 20], "num_beams": 2, "no_repeat_ngram_size": 2, "min_length": 6, "length_penalty": 2.0,
    "early_stopping": True, "forced_eos_token_id": 2, "repetition_penalty": 1.2, "suppress_tokens": [30],
}  # fmt: skip


@pytest.fixture(scope="module")
def bart(golden_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BART with a generation configuration of its own."""
    root = tmp_path_factory.mktemp("bart") / "bart"
    shutil.copytree(golden_root / "toys" / "bart", root)
    path = root / "generation_config.json"
    lost = {"exponential_decay_length_penalty": [3, 1.5], "max_length": 9}
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | RULES | lost)
    return root


def test_student_and_bundle_write_by_the_rules_of_the_teacher(bart: Path, run: Run) -> None:
    text, directory = run(
        f"+teacher=pretrained teacher.path={bart} teacher.finetune.max_steps=1 teacher.accept_weak=true "
        "+student=distilbert student.depth=1 student.decoder_depth=1 objective=supervised task=seq2seq "
        "task.data_dir=toys/targets task.max_length=32 task.max_target=12 task.scored_texts=8 task.prefix=sort: "
        "trainer.max_epochs=null trainer.max_steps=1 trainer.precision=32-true trainer.accelerator=cpu "
        "benchmark.enabled=false export.formats=[fp32] baseline=false"
    )
    notice = "exponential_decay_length_penalty=[3, 1.5] of the teacher's generation_config.json is for transformers"
    assert notice in text.split("Before training")[0]
    record = read_record(directory)
    assert record["texts"]["dev"]["decoding"] == {
        "beams": 2, "max_new_tokens": 12, **{name: value for name, value in RULES.items() if name != "num_beams"}
    }  # fmt: skip
    own = GenerationConfig.from_pretrained(directory / "student")
    assert {name: getattr(own, name) for name in RULES} == RULES
    bundle = Bundle(directory / "bundle")
    generation = bundle.manifest["generation"]
    assert (generation["eos"], generation["beams"], generation["max_new_tokens"]) == ([2, 20], 2, 8)
    assert bundle.manifest["decoding"]["prefix"] == "sort:"
    assert "begins with `sort:`" in (directory / "student" / "README.md").read_text(encoding="utf-8")
    assert 'generate "a sentence"' in text.split("Try it")[1]
    rows = pyarrow.parquet.read_table(directory / "predictions.parquet").to_pylist()
    [row] = [row for row in rows if row["split"] == "dev" and row["index"] == 0]
    student = AutoModelForSeq2SeqLM.from_pretrained(directory / "student")
    tokenizer = AutoTokenizer.from_pretrained(directory / "student")
    assert row["source"].startswith("sort:")
    source = tokenizer(row["source"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        ids = student.generate(source, exponential_decay_length_penalty=None)[0, 1:].tolist()
    [written] = bundle.generate_all([row["source"].removeprefix("sort:")])
    assert written["tokens"] == ids
    [scored] = bundle.generate_all([row["source"].removeprefix("sort:")], max_new_tokens=12)
    assert scored["text"] == row["fp32_written"]


def test_a_configuration_is_described_adopted_and_a_part_of_the_key_of_texts(bart: Path) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(bart)
    tokenizer = AutoTokenizer.from_pretrained(bart)
    assert describe_rules(model) == RULES
    student = AutoModelForSeq2SeqLM.from_pretrained(bart)
    student.generation_config = GenerationConfig(decoder_start_token_id=7, eos_token_id=9)
    student.config.decoder_start_token_id = 7
    adopt_decoding(student, model)
    assert describe_rules(student) == RULES
    assert student.generation_config.decoder_start_token_id == 7
    keys = {repr(BeamWriter(model, tokenizer, 2, 32, 12).options)}
    for name, value in {"min_length": 7, "eos_token_id": 2, "no_repeat_ngram_size": 3}.items():
        setattr(student.generation_config, name, value)
        keys.add(repr(BeamWriter(student, tokenizer, 2, 32, 12).options))
    assert len(keys) == 4
    student.generation_config = GenerationConfig(eos_token_id=2)
    described = describe_generation(student, tokenizer.backend_tokenizer, beams=3, max_target=12)
    assert (described["beams"], described["max_new_tokens"], described["eos"]) == (3, 12, [2])


def test_what_texts_are_not_written_with_is_named(bart: Path) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(bart)
    model.generation_config = GenerationConfig(eos_token_id=2, do_sample=True, top_p=0.8, min_length=14)
    sampling, least = list_notices(model, fills=False, max_target=13)
    assert sampling.startswith("do_sample=True, top_p=0.8 of the teacher's generation_config.json samples")
    assert "has texts of at least 13 tokens, and task.max_target=13" in least
    assert len(list_notices(model, fills=False, max_target=14)) == 1
    assert list_notices(model, fills=True, max_target=14)[1].startswith("min_length=14 of the teacher's")
