"""Tests of whole jobs over raw text at toy size: their files, chains of jobs, resumption and errors."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaForMaskedLM,
)

from distill import __main__ as command_line
from distill.core.errors import WHEEL
from distill.data.batches import evaluation_loader
from distill.edge import Bundle
from distill.kinds import MaskedLM
from distill.kinds.masked_lm import TokenScores
from distill.records import run as record
from distill.text.masking import Masking
from distill.text.packing import TokenSequence
from distill.text.sequences import Sequences, join_sequences
from distill.training.module import evaluate
from tests.conftest import LOOSE_OPTIONS, sentences, write_corpus
from tests.jobs.runs import Run, read_record, stop_at

SMALL = (
    "task=mlm", "task.max_length=32", "task.dev_fraction=0.2", "trainer.batch_size=16", "trainer.max_epochs=2",
    "trainer.learning_rate=3e-3", "trainer.precision=32-true", "trainer.accelerator=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty files of short sentences."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(
    corpus: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs the command in this process; returns its exit code, its output and the last run's directory."""

    def run_command(*options: str, output: Path = tmp_path / "runs") -> tuple[int, str, Path]:
        names = {option.partition("=")[0] for option in options}
        defaults = [option for option in SMALL if option.partition("=")[0] not in names]
        if "task" in names:
            defaults = [option for option in defaults if not option.startswith("task.")]
        if not {"task.data_dir", "resume"} & names:
            defaults.append(f"task.data_dir={corpus}")
        if "resume" in names:
            defaults = []
        else:
            defaults += [f"cache_dir={cache_dir}", f"output_dir={output}"]
        if "+student" in names and "task" not in names:
            defaults.append("export.enabled=false")
        monkeypatch.setattr("sys.argv", ["distill", *defaults, *options])
        code = command_line.main()
        printed = capsys.readouterr()
        runs = sorted(output.rglob("run.json"), key=lambda path: path.stat().st_mtime)
        return code, printed.out + printed.err, runs[-1].parent if runs else output

    return run_command


PRETRAIN = ("job=pretrain", "+teacher=bert_tiny", "teacher.vocabulary=300", "teacher.hidden_size=32")
NEW = ("job=pretrain", "+teacher=new", "teacher.layers=2", "teacher.heads=2", *PRETRAIN[2:])


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache_dir: Path) -> tuple[Path, dict[str, Any]]:
    """A four-layer teacher trained from random weights, and the record of its training."""
    root = tmp_path_factory.mktemp("pretrained")
    patch = pytest.MonkeyPatch()
    options = [*SMALL, *PRETRAIN, "teacher.layers=4", "trainer.max_epochs=8",
        "trainer.learning_rate=1e-2", f"task.data_dir={corpus}",
               f"cache_dir={cache_dir}", f"output_dir={root}"]  # fmt: skip
    for other in ("trainer.max_epochs=2", "trainer.learning_rate=3e-3"):
        options.remove(other)
    patch.setattr("sys.argv", ["distill", *options])
    assert command_line.main() == 0
    patch.undo()
    [path] = root.rglob("run.json")
    return path.parent / "teacher" / "model", read_record(path.parent)


# Chains


@pytest.fixture(scope="module")
def exported(pretrained: tuple[Path, dict[str, Any]], corpus: Path, cache_dir: Path) -> Path:
    """The run of a student that was distilled for a few steps and exported by one recipe."""
    root = cache_dir.parent / f"{cache_dir.name}-exported"
    options = [
        *SMALL, "+teacher=pretrained", f"teacher.path={pretrained[0]}", "+student=distilbert", *LOOSE_OPTIONS,
        "benchmark.enabled=false", "objective=language_model", "trainer.max_steps=4", f"task.data_dir={corpus}",
        f"cache_dir={cache_dir}", f"output_dir={root}",
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["distill", *options])
        assert command_line.main() == 0
    [path] = root.rglob("run.json")
    return path.parent


def test_the_bundle_of_a_language_model_fills_masks_as_torch_does(exported: Path) -> None:
    run_record = read_record(exported)
    files = run_record["export"]
    assert (files["fp32"]["gate"], files["fp32"]["agreement"]) == ("passed", 1.0)
    assert files["fp32"]["max_abs_diff"] < 1e-4 < files["int8"]["max_abs_diff"]
    metrics = run_record["student"]["metrics"]
    assert files["fp32"]["metrics"]["perplexity"] == pytest.approx(metrics["perplexity"], rel=1e-5)
    drop = files["int8"]["metrics"]["perplexity"] / metrics["perplexity"] - 1
    assert files["int8"]["drop"] == pytest.approx(drop, abs=1e-6)
    low, high = files["int8"]["interval"]
    assert low <= drop <= high
    teacher = run_record["teacher"]["metrics"]["perplexity"]
    assert run_record["retention"]["torch"] == pytest.approx(teacher / metrics["perplexity"])
    texts = ["a [MASK] and moving film", "i [MASK] every [MASK]"]
    tokenizer = AutoTokenizer.from_pretrained(exported / "student")
    model = AutoModelForMaskedLM.from_pretrained(exported / "student")
    for text, prediction in zip(texts, Bundle(exported / "bundle", model="fp32").predict(texts), strict=True):
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            probabilities = model(**encoded).logits.softmax(-1)[encoded["input_ids"] == tokenizer.mask_token_id]
        expected = probabilities.topk(5)
        for mask, values, ids in zip(prediction["masks"], expected.values, expected.indices, strict=True):
            assert [each["probability"] for each in mask["pieces"]] == pytest.approx(values.tolist(), abs=1e-5)
            assert [each["piece"] for each in mask["pieces"]] == tokenizer.convert_ids_to_tokens(ids.tolist())
    card = (exported / "bundle" / "README.md").read_text()
    assert "pipeline_tag: fill-mask" in card
    assert 'python -m distill.edge path/to/this/directory "a [MASK] sentence"' in card


def test_a_pretrained_model_is_exported_if_wanted(run: Run) -> None:
    options = ("trainer.max_steps=2", "task.streaming=true", "trainer.max_epochs=null")
    code, text, directory = run(*PRETRAIN, *options, "export.enabled=true", *LOOSE_OPTIONS)
    assert code == 0, text
    files = read_record(directory)["export"]
    assert files.keys() == {"fp32", "int8"}
    assert "model int8" in text
    assert (directory / WHEEL).is_file()
    prediction = Bundle(directory / "bundle", model="fp32").predict(["a [MASK] film"])[0]
    assert len(prediction["masks"][0]["pieces"]) == 5


def test_a_teacher_pretrained_from_random_weights_learns_and_loads_with_the_auto_classes(
    pretrained: tuple[Path, dict[str, Any]],
) -> None:
    directory, run_record = pretrained
    assert run_record["status"] == "finished"
    assert run_record["teacher"]["origin"] == "from random weights"
    assert run_record["teacher"]["metrics"]["perplexity"] < 40  # Of 300 tokens; untrained it is about 300.
    assert run_record["training"]["steps"] > 0
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    assert model.config.num_hidden_layers == 4
    assert model.config.vocab_size == len(tokenizer)
    assert "from random weights" not in (directory.parents[1] / "report.md").read_text()


def test_a_student_of_a_language_model_is_distilled_again_on_a_classification(
    run: Run, pretrained: tuple[Path, dict[str, Any]], data_dir: Path
) -> None:
    teacher = (f"teacher.path={pretrained[0]}", "+teacher=pretrained")
    code, text, directory = run(*teacher, "+student=distilbert", "objective=language_model")
    assert code == 0, text
    assert "layers 4 -> 2 (0, 3)" in text
    assert "computed in every step: the inputs change every epoch" in text
    run_record = read_record(directory)
    assert run_record["objective"]["terms"].keys() == {"soft", "mlm", "cosine"}
    metrics = run_record["student"]["metrics"]
    assert metrics["perplexity"] == pytest.approx(float(torch.tensor(metrics["loss"]).exp()), rel=1e-4)
    assert 0 < metrics["agreement_top1"] <= metrics["agreement_top5"] <= 1
    assert "agreement_top1" in (directory / "report.md").read_text()
    student = directory / "student"
    assert type(AutoModelForMaskedLM.from_pretrained(student)).__name__ == "DistilBertForMaskedLM"
    # The same student, distilled again on a classification.
    code, text, directory = run(
        *teacher, "+student=pretrained", f"student.path={student}", "task=sst2", f"task.data_dir={data_dir}",
        "teacher.finetune.max_epochs=1", "trainer.max_epochs=1", "export.enabled=false", "benchmark.enabled=false",
        "teacher.accept_weak=true",
    )  # fmt: skip
    assert code == 0, text
    assert "DistilBertForSequenceClassification" in text
    assert type(AutoModelForSequenceClassification.from_pretrained(directory / "student")).__name__ == (
        "DistilBertForSequenceClassification"
    )


def test_finetune_adds_a_language_model_head_to_an_encoder(run: Run, encoder_dir: Path) -> None:
    code, text, directory = run("job=finetune", "+teacher=pretrained", f"teacher.path={encoder_dir}")
    assert code == 0, text
    assert "gets a head with random weights" in text
    model = directory / "teacher" / "model"
    assert read_record(directory)["teacher"]["origin"] == "adapted"
    # A second fine-tuning records the score that it starts from.
    code, text, directory = run("job=finetune", "+teacher=pretrained", f"teacher.path={model}")
    assert code == 0, text
    before, after = (read_record(directory)["teacher"][name]["perplexity"] for name in ("before", "metrics"))
    assert after < before


@pytest.mark.parametrize(
    ("model", "pair"),
    [(PRETRAIN, "nsp"), ((*NEW, "teacher.family=albert"), "sop")],
    ids=["bert-nsp", "albert-sop"],
)
def test_pretraining_on_pairs_trains_and_scores_the_pair_term(run: Run, model: tuple[str, ...], pair: str) -> None:
    code, text, directory = run(*model, "task.packing=segment_pair", f"task.pair={pair}", "task.max_length=48")
    assert code == 0, text
    assert read_record(directory)["objective"]["terms"].keys() == {"mlm", pair}
    columns = (directory / "metrics.csv").read_text().splitlines()[0].split(",")
    assert f"train/{pair}" in columns
    assert 0 <= read_record(directory)["teacher"]["metrics"][f"{pair}_accuracy"] <= 1
    AutoModelForMaskedLM.from_pretrained(directory / "teacher" / "model")


def test_a_streamed_corpus_trains_for_max_steps(run: Run) -> None:
    code, text, directory = run(*PRETRAIN, "task.streaming=true", "trainer.max_steps=5", "trainer.max_epochs=null")
    assert code == 0, text
    assert "streamed, " in text
    training = read_record(directory)["training"]
    assert (training["steps"], training["epochs"]) == (5, None)


def test_outputs_for_static_masks_are_cached(run: Run, pretrained: tuple[Path, dict[str, Any]]) -> None:
    options = (
        "+teacher=pretrained", f"teacher.path={pretrained[0]}", "+student=distilbert", "objective=language_model",
        "task.masking=static", "task.masks=2", "teacher.cache.hidden=true", "trainer.precision=bf16-mixed",
    )  # fmt: skip
    code, text, first = run(*options)
    assert code == 0, text
    assert "50 tokens drawn at temperature 2" in " ".join(text.split())
    code, text, second = run(*options)
    assert code == 0, text
    cached = [read_record(directory)["training"]["teacher_cache"]["hit"] for directory in (first, second)]
    assert cached == [False, True]
    scores = [read_record(directory)["student"]["metrics"] for directory in (first, second)]
    assert scores[0] == scores[1]
    # A teacher that runs in every step gives nearly the same loss.
    code, text, uncached = run(*options, "teacher.cache.enabled=false")
    assert code == 0, text
    assert read_record(uncached)["student"]["metrics"]["loss"] == pytest.approx(scores[0]["loss"], abs=0.02)
    code, text, _ = run(*options, "teacher.cache.draws=null", "teacher.cache.top_k=1", "trainer.max_steps=1")
    assert code == 0, text
    assert "Notice: the 1 largest logits hold" in text
    assert "and the student learns nothing of the rest: raise teacher.cache.top_k" in text


# Resumption and several processes


@pytest.mark.parametrize(
    "options",
    [
        ("task.streaming=true", "trainer.max_steps=9", "trainer.max_epochs=null"),
        ("task.packing=segment_pair", "task.pair=nsp", "task.mask.unit=span"),
    ],
    ids=["stream", "pairs"],
)
def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(
    run: Run, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = (*PRETRAIN, "trainer.batch_size=8", "trainer.checkpoint_steps=2", *options)
    code, text, whole = run(*options, output=tmp_path / "whole")
    assert code == 0, text
    with monkeypatch.context() as patch:
        stop_at(5, patch)
        with pytest.raises(RuntimeError, match="stopped"):
            run(*options, output=tmp_path / "stopped")
    [path] = (tmp_path / "stopped").rglob("run.json")
    code, text, _ = run(f"resume={path.parent}")
    assert code == 0, text
    assert read_record(path.parent)["training"]["steps"] == read_record(whole)["training"]["steps"] > 5
    weights = [load_file(run / "teacher" / "model" / "model.safetensors") for run in (whole, path.parent)]
    assert all(tensor.equal(weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_with_twice_the_batch(
    run: Run, pretrained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Compares DDP and FSDP with one process, without dropout."""
    model = AutoModelForMaskedLM.from_pretrained(pretrained[0])
    model.config.hidden_dropout_prob = 0.0
    model.save_pretrained(tmp_path / "teacher")
    AutoTokenizer.from_pretrained(pretrained[0]).save_pretrained(tmp_path / "teacher")
    options = (
        "+teacher=pretrained", f"teacher.path={tmp_path / 'teacher'}", "+student=distilbert",
        "objective=language_model", "trainer.max_epochs=1", "trainer.learning_rate=3e-4", "student.depth=1",
    )  # fmt: skip
    losses: dict[str, list[float]] = {}
    for name, own in {"one": (), "ddp": ("trainer=ddp",), "fsdp": ("trainer=fsdp",)}.items():
        batch = "trainer.batch_size=6" if own else "trainer.batch_size=12"
        code, text, directory = run(*options, *own, batch, output=tmp_path / name)
        assert code == 0, text
        rows = list(csv.DictReader((directory / "metrics.csv").open()))
        losses[name] = [float(row["train/loss"]) for row in rows if row["train/loss"]]
        losses[name].append(read_record(directory)["student"]["metrics"]["loss"])
    assert len(losses["one"]) > 3
    assert losses["ddp"] == pytest.approx(losses["one"], rel=1e-5)
    assert losses["fsdp"] == pytest.approx(losses["one"], rel=1e-5)


# Scores


def test_a_model_compared_with_itself_has_full_agreement(pretrained: tuple[Path, dict[str, Any]]) -> None:
    model = AutoModelForMaskedLM.from_pretrained(pretrained[0]).eval()
    tokenizer = AutoTokenizer.from_pretrained(pretrained[0])
    task = MaskedLM(name="text", mask=Masking(), max_length=32)
    ids = [tokenizer(text)["input_ids"] for text, _ in sentences(20)]
    tokens = join_sequences([TokenSequence(torch.tensor(row).numpy()) for row in ids], task.settings)
    dev = evaluation_loader(Sequences(tokens, task.settings, tokenizer))
    scoring = TokenScores(task.settings)
    metrics = scoring.metrics(evaluate(model, task, scoring, dev, reference=model))
    assert (metrics["agreement_top1"], metrics["agreement_top5"]) == (1, 1)
    assert metrics["loss"] > 0


# Errors


def test_a_teacher_without_a_head_is_refused_with_the_finetune_command(run: Run, encoder_dir: Path) -> None:
    code, text, _ = run("+teacher=pretrained", f"teacher.path={encoder_dir}", "+student=distilbert")
    assert code == 2
    assert "is no language model: its head is not trained" in text
    assert "give it a head with python -m distill job=finetune task=mlm +teacher=pretrained" in text


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "an unknown packing": (("task.packing=lines",), "got task.packing=lines, expected one of full_sentences"),
    "pairs without segment_pair packing": (("task.pair=nsp",), "pairs need task.packing=segment_pair"),
    "options of an unused trainer": (
        ("teacher.finetune.max_epochs=1",),
        "teacher.finetune.max_epochs=1 would change nothing in job=pretrain task=mlm: leave it out, trainer.* is what",
    ),
    "options of an export that is not wanted": (
        ("export.recipes=[dynamic]",),
        "export.recipes=[dynamic] would change nothing in job=pretrain task=mlm: leave it out",
    ),
    "a bundle of pairs": (
        ("export.enabled=true", "task.packing=segment_pair", "task.pair=nsp"),
        "a bundle fills the masks of single texts: set task.pair=null, or export.enabled=auto",
    ),
    "a smaller vocabulary": (
        ("export.enabled=true", "export.vocabulary=task"),
        "export.vocabulary=task, expected full, because the predictions of task mlm (masked_lm) are tokens",
    ),
    "a baseline": (("baseline=true",), "baseline=true is for other tasks than task=mlm: +ablation=mlm_alone"),
    "sequences that are too long": (("task.max_length=4000",), "the teacher reads 512 tokens at most"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_input_is_reported_in_one_line(run: Run, mistake: str) -> None:
    options, expected = MISTAKES[mistake]
    given = list(options)
    teacher = [] if any("+teacher" in option for option in given) else list(PRETRAIN[1:])
    code, text, _ = run("job=pretrain", *teacher, *given)
    error = text.strip().splitlines()[-1]
    assert code == 2
    assert error.startswith("error: ")
    assert expected in error


def test_pretrain_refuses_a_classification(run: Run, data_dir: Path) -> None:
    code, text, _ = run("job=pretrain", "+teacher=bert_tiny", "task=sst2", f"task.data_dir={data_dir}")
    assert code == 2
    assert "job=pretrain is not for task=sst2: take a task over text, task=mlm" in text


def test_a_teacher_of_another_job_is_refused_with_the_right_job(
    run: Run, pretrained: tuple[Path, dict[str, Any]]
) -> None:
    code, text, _ = run("job=pretrain", "+teacher=pretrained", f"teacher.path={pretrained[0]}")
    assert code == 2
    assert "teacher pretrained is trained already: job=finetune trains it further" in text
    code, text, _ = run("job=finetune", *PRETRAIN[1:])
    assert code == 2
    assert "teacher bert_tiny has random weights: job=pretrain trains it" in text


def test_a_checkpoint_of_another_corpus_is_refused(run: Run, corpus: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(corpus, other)
    options = (*PRETRAIN, f"task.data_dir={other}", "trainer.max_epochs=1")
    code, text, directory = run(*options)
    assert code == 0, text
    run_record = read_record(directory)
    record.Run(directory, {**run_record, "status": "failed"}).save()
    (other / "00.txt").write_text("Something else altogether.\n" * 40)
    code, text, _ = run(f"resume={directory}")
    assert code == 2
    assert "last.ckpt belongs to another training with different data" in text


def test_distilling_from_random_weights_is_refused_with_the_pretrain_command(run: Run) -> None:
    code, text, _ = run(*PRETRAIN[1:], "+student=distilbert")
    assert code == 2
    assert "teacher bert_tiny begins with random weights: train it with python -m distill job=pretrain" in text


def test_pairs_are_refused_for_a_model_without_a_segment_head(
    run: Run, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    RobertaForMaskedLM(config).save_pretrained(tmp_path / "roberta")
    tokenizer.save_pretrained(tmp_path / "roberta")
    code, text, _ = run(
        "job=finetune", "+teacher=pretrained", f"teacher.path={tmp_path / 'roberta'}", "task.packing=segment_pair",
        "task.pair=sop",
    )  # fmt: skip
    assert code == 2
    assert "task.pair=sop needs a model with a head for two segments, such as BERT's, and a RobertaForMaskedLM" in text
