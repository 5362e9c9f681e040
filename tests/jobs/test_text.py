"""Tests of whole jobs over raw text at toy size: models from random weights, their objectives, and what they leave."""

import csv
import math
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from distill.core.errors import WHEEL
from distill.edge import Bundle
from tests.conftest import LOOSE_OPTIONS, run_here
from tests.jobs.conftest import Run
from tests.jobs.runs import read_record, stop_at

TRAINER = (
    "trainer.batch_size=16 trainer.max_epochs=null trainer.max_steps=3 trainer.learning_rate=3e-3 "
    "trainer.precision=32-true trainer.accelerator=cpu"
)
TEXT = f"task=mlm task.data_dir=toys/corpus task.max_length=32 task.dev_fraction=0.2 {TRAINER}"
NEW = f"job=pretrain teacher.vocabulary=400 {TEXT}"
PRETRAIN = f"{NEW} +teacher=bert_tiny teacher.hidden_size=32"


def read_losses(directory: Path, term: str) -> list[float]:
    with open(directory / "metrics.csv") as file:
        return [float(row[f"train/{term}"]) for row in csv.DictReader(file) if row[f"train/{term}"]]


def test_a_pretrained_model_is_exported_if_wanted(run: Run) -> None:
    options = ("task.streaming=true", "export.enabled=true", *LOOSE_OPTIONS)
    text, directory = run(PRETRAIN, " ".join(options))
    record = read_record(directory)
    assert record["export"].keys() == {"fp32", "int8"}
    assert "model int8" in text
    assert "streamed, " in text
    assert (record["training"]["steps"], record["training"]["epochs"]) == (3, None)
    assert record["teacher"]["origin"] == "from random weights"
    assert (directory / WHEEL).is_file()
    prediction = Bundle(directory / "bundle", model="fp32").predict(["a [MASK] film"])[0]
    assert len(prediction["masks"][0]["pieces"]) == 5


@pytest.mark.parametrize(
    ("options", "objective", "auto"),
    [
        ("+teacher=gpt2_tiny teacher.hidden_size=32 task=clm", "causal_language_modelling", AutoModelForCausalLM),
        ("+teacher=t5_tiny teacher.hidden_size=32 task=denoising", "denoising", AutoModelForSeq2SeqLM),
        ("+teacher=bilm teacher.hidden_dim=16 task=bilm", "bidirectional_language_modelling", AutoModelForPreTraining),
    ],
    ids=["causal", "denoising", "bidirectional"],
)
def test_a_model_from_random_weights_loads_with_the_auto_classes(
    run: Run, options: str, objective: str, auto: type
) -> None:
    _, directory = run(NEW, options)
    record = read_record(directory)
    assert record["objective"]["name"] == objective
    metrics = record["teacher"]["metrics"]
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]), rel=1e-4)
    model = auto.from_pretrained(directory / "teacher" / "model")  # type: ignore[attr-defined]
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(directory / "teacher" / "model"))


def test_the_discriminator_and_its_generator_load_and_go_on_with_another_objective(run: Run) -> None:
    common = f"{PRETRAIN} task=rtd".replace("task=mlm ", "")
    _, first = run(common)
    record = read_record(first)
    assert {name: term["weight"] for name, term in record["objective"]["terms"].items()} == {"mlm": 1, "replaced": 50}
    metrics = record["teacher"]["metrics"]
    assert 0.1 < metrics["replaced"] < 0.2
    assert 0.3 < metrics["prior"] < 0.51
    constant = record["teacher"]["constant"]
    assert constant["answer"] == "always the share of replaced tokens"
    assert constant["metrics"]["loss"] == pytest.approx(metrics["prior"], abs=1e-6)
    difference = record["teacher"]["against_constant"]["difference"]
    assert difference == pytest.approx(50 * (metrics["loss"] - metrics["prior"]), abs=1e-3)
    directory = first / "teacher" / "model"
    discriminator = AutoModelForTokenClassification.from_pretrained(directory)
    generator = AutoModelForMaskedLM.from_pretrained(directory / "generator")
    assert discriminator.config.id2label == {0: "original", 1: "replaced"}
    assert (generator.config.hidden_size, generator.config.embedding_size) == (8, 32)
    tables = [model.get_input_embeddings().weight for model in (discriminator, generator)]
    assert tables[0].equal(tables[1])
    assert record["teacher"]["parameters"] == sum(parameter.numel() for parameter in discriminator.parameters())
    text, again = run(
        f"job=finetune +teacher=pretrained task=rtd {TEXT}".replace("task=mlm ", ""),
        f"teacher.path={directory} objective=electra objective.terms.replaced.weight=20 "
        f"task.generator.path={directory}/generator trainer.max_steps=1 trainer.learning_rate=1e-9",
    )
    assert "random weights" not in text
    assert "it has not learned yet, train it longer" in text
    record = read_record(again)
    assert record["objective"]["terms"]["replaced"]["weight"] == 20
    # The same models draw the same tokens on dev.
    assert record["teacher"]["before"] == pytest.approx(metrics, abs=1e-6)
    assert record["teacher"]["metrics"] == pytest.approx(metrics, abs=1e-4)


def test_a_training_resumes_with_the_layers_of_its_terms(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "+experiment=spanbert_recipe objective.terms.boundary.weight=0.5 trainer.checkpoint_steps=1"
    text, whole = run(PRETRAIN, options)
    assert "spanbert: mlm, boundary" in text
    terms = {
        "mlm": {"weight": 1.0, "smoothing": 0.0},
        "boundary": {"weight": 0.5, "position_width": 200, "positions": 20},
    }
    assert read_record(whole)["objective"] == {"name": "spanbert", "terms": terms}
    losses = read_losses(whole, "boundary")
    assert 2 < losses[0] < math.log(400) + 0.5  # That of random weights, over the vocabulary.
    with monkeypatch.context() as patch:
        stop_at(2, patch)
        with pytest.raises(RuntimeError, match="stopped"):
            run(PRETRAIN, f"{options} output_dir=runs/stopped")
    [path] = (tmp_path / "runs" / "stopped").rglob("run.json")
    done = run_here(f"resume={path.parent}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_record(path.parent)["objective"]["terms"] == terms  # The command named none of them.
    one, other = (
        load_file(directory / "teacher" / "model" / "model.safetensors") for directory in (whole, path.parent)
    )
    assert all(tensor.equal(other[name]) for name, tensor in one.items())
    # The layers of the term are none of the model.
    assert AutoModelForMaskedLM.from_pretrained(path.parent / "teacher" / "model")


@pytest.mark.parametrize(
    ("options", "term"),
    [("+experiment=structbert_recipe", "order"), ("task.packing=segment_pair task.pair=nsp", "nsp")],
)
def test_the_order_of_segments_is_predicted(run: Run, options: str, term: str) -> None:
    _, directory = run(PRETRAIN, options)
    assert read_record(directory)["objective"]["terms"].keys() == {"mlm", term}
    assert 0.3 < read_losses(directory, term)[0] < 2.5  # Random weights have about ln 2 or ln 3.
    if term == "nsp":
        assert 0 <= read_record(directory)["teacher"]["metrics"]["nsp_accuracy"] <= 1
    AutoModelForMaskedLM.from_pretrained(directory / "teacher" / "model")


def test_a_model_stands_beside_the_frequencies_of_its_tokens(run: Run) -> None:
    text, directory = run(PRETRAIN, "objective=supervised")
    record = read_record(directory)
    assert re.search(r"unigram loss \d\.\d\d, perplexity \d+ on dev by the frequency of each token in train", text)
    teacher, losses = record["teacher"], record["training"]["dev_losses"]
    assert losses == {"hard": pytest.approx(teacher["metrics"]["loss"], rel=1e-5)}
    constant, difference = teacher["constant"], teacher["against_constant"]
    expected = teacher["metrics"]["perplexity"] - constant["metrics"]["perplexity"]
    assert difference["difference"] == pytest.approx(expected, rel=1e-5)
    assert f"Losses on dev: hard {losses['hard']:.3f}; by the frequency of each token in train" in text
    assert "the model is worse than a constant prediction on dev" in text  # After three steps.


def test_outputs_for_static_masks_are_cached(run: Run) -> None:
    common = (
        f"+teacher=pretrained teacher.path=toys/encoder +student=distilbert objective=language_model {TEXT} "
        "export.enabled=false task.masking=static task.masks=2 teacher.cache.hidden=true"
    )
    found = [read_record(run(common)[1]) for _ in range(2)]
    assert [record["training"]["teacher_cache"]["hit"] for record in found] == [False, True]
    assert found[0]["student"]["metrics"] == found[1]["student"]["metrics"]
    text, _ = run(common, "teacher.cache.draws=null teacher.cache.top_k=1 trainer.max_steps=1")
    assert "Notice: the 1 largest logits hold" in text
    assert "and the student learns nothing of the rest: raise teacher.cache.top_k" in text


def test_a_language_model_gets_a_head_and_words_of_its_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for path in (tmp_path / "toys" / "corpus").iterdir():
        text = f"Home | About\n{path.read_text()}\nThe coldness and the warmness of this long film."
        (tmp_path / "corpus" / path.name).write_text(text)
    before = AutoTokenizer.from_pretrained(tmp_path / "toys" / "encoder")
    common = f"job=finetune +teacher=pretrained teacher.path=toys/classifier1 {TEXT}"
    out, directory = run(
        common, "task.data_dir=corpus adapt.add_words=[coldness,warmness,film] task.clean=web trainer.max_steps=1"
    )
    assert "2 words become pieces" in out
    assert "film is a piece already" in out
    assert "gets a head with random weights" in out
    record = read_record(directory)
    assert record["teacher"]["origin"] == "adapted"
    vocabulary = record["teacher"]["vocabulary"]
    assert (vocabulary["words"], vocabulary["standing"]) == (2, 1)
    assert record["task"]["cleaning"]["dropped"]["no punctuation at the end"] == 30
    model = AutoModelForMaskedLM.from_pretrained(directory / "teacher" / "model")
    saved = AutoTokenizer.from_pretrained(directory / "teacher" / "model")
    assert model.config.vocab_size == len(saved) == len(before) + 2
    assert saved.tokenize("Coldness, warmness") == ["coldness", ",", "warmness"]


def test_an_encoder_teaches_to_write(run: Run) -> None:
    models = "+teacher=encoder_decoder teacher.path=toys/encoder +student=encoder_decoder student.path=toys/encoder"
    text, directory = run(
        f"{models} student.decoder_depth=1 teacher.accept_weak=true teacher.finetune.max_steps=1 task=seq2seq "
        f"task.data_dir=toys/targets task.max_length=16 task.max_target=16 objective=seq2seq export.enabled=false "
        f"{TRAINER}"
    )
    assert "its cross-attention is not trained" in text
    student = AutoModelForSeq2SeqLM.from_pretrained(directory / "student")
    assert (student.config.encoder_layers, student.config.decoder_layers) == (2, 1)
    saved = AutoTokenizer.from_pretrained(directory / "student")
    assert saved.eos_token_id == student.config.eos_token_id == saved.sep_token_id
    assert student.config.decoder_start_token_id == saved.cls_token_id
