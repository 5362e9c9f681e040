"""Tests of whole jobs of replaced-token detection at toy size: files, chains of jobs, resumption and refusals."""

from functools import partial
from pathlib import Path

import pytest
from distill.builtin.teachers.vocabulary import train_word_pieces
from safetensors.torch import load_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
)

from distill.edge import Bundle
from tests.conftest import LOOSE_OPTIONS, sentences, write_corpus
from tests.jobs.runs import Run, capture_runs, read_record, run_command, stop_at

SMALL = (
    "task=rtd", "task.max_length=32", "task.dev_fraction=0.2", "trainer.batch_size=8", "trainer.max_steps=6",
    "trainer.max_epochs=null", "trainer.learning_rate=3e-3", "trainer.precision=32-true", "trainer.accelerator=cpu",
    "trainer.checkpoint_steps=2",
)  # fmt: skip
PRETRAIN = ("job=pretrain", "+teacher=bert_tiny", "teacher.vocabulary=300", "teacher.hidden_size=32")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a cache."""
    root = tmp_path_factory.mktemp("work")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus")
    return root


def run_options(work: Path, output: Path, *options: str) -> int:
    """Runs the command in this process."""
    names = {option.partition("=")[0] for option in options}
    common = [*SMALL, f"task.data_dir={work / 'corpus'}", f"cache_dir={work / 'cache'}", f"output_dir={output}"]
    common = [option for option in common if option.partition("=")[0] not in names]
    if "task" in names:
        common = [option for option in common if not option.startswith("task.")]
    return run_command(*([] if "resume" in names else common), *options)


@pytest.fixture
def run(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; returns its exit code, its output and the run's directory."""
    return capture_runs(partial(run_options, work), tmp_path, capsys)


@pytest.fixture(scope="module")
def pretrained(work: Path) -> Path:
    """The run of a discriminator from random weights."""
    assert run_options(work, work / "teachers", *PRETRAIN) == 0
    [path] = (work / "teachers").rglob("run.json")
    return path.parent


def test_the_discriminator_and_its_generator_load_with_the_auto_classes(pretrained: Path) -> None:
    record = read_record(pretrained)
    assert record["objective"]["name"] == "replaced_token_detection"
    assert {name: term["weight"] for name, term in record["objective"]["terms"].items()} == {"mlm": 1, "replaced": 50}
    metrics = record["teacher"]["metrics"]
    assert 0.1 < metrics["replaced"] < 0.2
    assert 0.3 < metrics["prior"] < 0.51
    assert 1 < metrics["generator_perplexity"] < 1000
    constant = record["teacher"]["constant"]
    assert constant["answer"] == "always the share of replaced tokens"
    assert constant["metrics"]["loss"] == pytest.approx(metrics["prior"], abs=1e-6)
    difference = record["teacher"]["against_constant"]["difference"]
    assert difference == pytest.approx(50 * (metrics["loss"] - metrics["prior"]), abs=1e-3)
    directory = pretrained / "teacher" / "model"
    discriminator = AutoModelForTokenClassification.from_pretrained(directory)
    generator = AutoModelForMaskedLM.from_pretrained(directory / "generator")
    assert discriminator.config.id2label == {0: "original", 1: "replaced"}
    assert (generator.config.hidden_size, generator.config.embedding_size) == (8, 32)
    tables = [model.get_input_embeddings().weight for model in (discriminator, generator)]
    assert tables[0].equal(tables[1])
    assert record["teacher"]["parameters"] == sum(parameter.numel() for parameter in discriminator.parameters())
    for folder in (directory, directory / "generator"):
        assert AutoTokenizer.from_pretrained(folder).mask_token == "[MASK]"


def test_a_training_goes_on_from_its_files_with_the_objective_of_the_configuration(run: Run, pretrained: Path) -> None:
    directory = pretrained / "teacher" / "model"
    code, text, again = run(
        "job=finetune", "+teacher=pretrained", f"teacher.path={directory}", "objective=electra",
        "objective.terms.replaced.weight=20", f"task.generator.path={directory / 'generator'}", "trainer.max_steps=1",
        "trainer.learning_rate=1e-9",
    )  # fmt: skip
    assert code == 0, text
    assert "random weights" not in text
    assert "a constant prediction" in text  # Six steps are too few to beat it.
    assert "it has not learned yet, train it longer" in text
    record, first = read_record(again), read_record(pretrained)["teacher"]["metrics"]
    assert record["objective"]["terms"]["replaced"]["weight"] == 20
    # The same models draw the same tokens on dev.
    assert record["teacher"]["before"] == pytest.approx(first, abs=1e-6)
    assert record["teacher"]["metrics"] == pytest.approx(first, abs=1e-4)


@pytest.fixture
def films(pretrained: Path, tmp_path: Path) -> tuple[str, ...]:
    """The options of a distillation from the discriminator on labelled sentences."""
    for split, count in (("train", 64), ("dev", 16)):
        rows = "\n".join(f"{text}\t{label}" for text, label in sentences(count))
        (tmp_path / f"{split}.tsv").write_text(f"sentence\tlabel\n{rows}\n", encoding="utf-8")
    return (
        "task=classification", f"task.data_dir={tmp_path}", "task.text=[sentence]", "+teacher=pretrained",
        f"teacher.path={pretrained / 'teacher' / 'model'}", "+student=distilbert",
    )  # fmt: skip


def test_the_discriminator_teaches_another_task(run: Run, films: tuple[str, ...]) -> None:
    code, text, _ = run(*films, "dry_run=true")
    assert code == 0, text
    assert "is fine-tuned on classification first, its head is not trained" in text


@pytest.mark.slow
def test_a_student_of_the_discriminator_is_exported(run: Run, films: tuple[str, ...]) -> None:
    options = ("teacher.finetune.max_epochs=20", "teacher.accept_weak=true", "benchmark.enabled=false")
    code, text, directory = run(*films, *options, *LOOSE_OPTIONS, "baseline=false")
    assert code == 0, text
    files = read_record(directory)["export"]
    assert (files["fp32"]["gate"], files["fp32"]["agreement"]) == ("passed", 1.0)
    assert files["fp32"]["max_abs_diff"] < 1e-4
    predictions = Bundle(directory / "bundle").predict(["a lovely and moving film", "a dull and lifeless mess"])
    assert {prediction["label"] for prediction in predictions} <= {"0", "1"}


def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(
    run: Run, pretrained: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(5, patch)
        with pytest.raises(RuntimeError, match="stopped"):
            run(*PRETRAIN, output="stopped")
    [record] = (tmp_path / "stopped").rglob("run.json")
    code, text, _ = run(f"resume={record.parent}")
    assert code == 0, text
    for path in ("model.safetensors", "generator/model.safetensors"):
        one, other = (load_file(directory / "teacher" / "model" / path) for directory in (pretrained, record.parent))
        assert all(tensor.equal(other[name]) for name, tensor in one.items())


@pytest.fixture(scope="module")
def foreign(work: Path) -> Path:
    """A masked language model with another vocabulary."""
    tokenizer = train_word_pieces(["quick zebras jump", "six boxes"] * 20, 60)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained(work / "foreign")
    tokenizer.save_pretrained(work / "foreign")
    return work / "foreign"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            (*PRETRAIN, "export.enabled=true"),
            "got export.enabled=true, expected auto or false, because no bundle reads a model of task rtd (replaced_to",
        ),
        ((*PRETRAIN, "trainer.strategy=fsdp"), "got trainer.strategy=fsdp, expected ddp, because the models of task"),
        (
            (*PRETRAIN, "objective=language_model"),
            "has the term soft, mlm, cosine, which cannot learn task rtd (replaced_tokens): leave out objective=",
        ),
        (
            ("+teacher=bert_tiny", "+student=distilbert"),
            "job=distill is not for task=rtd, whose model is trained together with its generator: job=finetune",
        ),
    ],
    ids=["export", "fsdp", "terms", "distill"],
)
def test_bad_input_is_reported_in_one_line(run: Run, foreign: Path, options: tuple[str, ...], expected: str) -> None:
    code, text, _ = run(*(option.replace("FOREIGN", str(foreign)) for option in options))
    error = text.strip().splitlines()[-1]
    assert code == 2, text
    assert error.startswith("error: ")
    assert expected in error
