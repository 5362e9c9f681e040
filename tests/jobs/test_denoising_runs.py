"""Tests of whole jobs of denoising at toy size: pre-trained T5 and BART, a student of both halves, and refusals."""

from functools import partial
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from distill.edge import Bundle
from tests.conftest import write_corpus
from tests.jobs.runs import Run, capture_runs, read_record, run_command

SMALL = (
    "task=denoising", "task.max_length=32", "task.dev_fraction=0.2", "trainer.batch_size=8", "trainer.max_epochs=null",
    "trainer.max_steps=6", "trainer.learning_rate=1e-2", "trainer.precision=32-true", "trainer.accelerator=cpu",
)  # fmt: skip
TINY = ("teacher.vocabulary=400", "teacher.hidden_size=32", "teacher.layers=2")


def run_options(work: Path, output: Path, *options: str) -> int:
    """Runs the command in this process."""
    return run_command(
        *SMALL, f"task.data_dir={work / 'corpus'}", f"cache_dir={work / 'cache'}", f"output_dir={output}", *options
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a cache."""
    root = tmp_path_factory.mktemp("work")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus")
    return root


@pytest.fixture
def run(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; returns its exit code, its output and the run's directory."""
    return capture_runs(partial(run_options, work), tmp_path, capsys)


@pytest.mark.parametrize(
    ("teacher", "corruption"),
    [
        ("t5_tiny", "t5_spans"),
    ],
)
def test_a_pretrained_model_teaches_a_student_of_half_its_layers(run: Run, teacher: str, corruption: str) -> None:
    code, text, directory = run("job=pretrain", f"+teacher={teacher}", f"task.corruption={corruption}", *TINY)
    assert code == 0, text
    record = read_record(directory)
    assert record["objective"]["name"] == "denoising"
    assert record["task"]["corruption"] == corruption.strip("[]").split(",")
    assert record["teacher"]["metrics"]["perplexity"] < 400  # Random weights have about the number of tokens.
    path = directory / "teacher" / "model"
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    batch = tokenizer("Good <extra_id_0> morning.", return_tensors="pt")
    assert model.generate(**batch, max_new_tokens=3, do_sample=False).shape[0] == 1
    code, text, distilled = run(
        "+teacher=pretrained", f"teacher.path={path}", "+student=distilbert", "objective=seq2seq",
        f"task.corruption={corruption}", "teacher.accept_weak=true", "export.recipes=[dynamic]",
        "benchmark.enabled=false", output="distilled",
    )  # fmt: skip
    assert code == 0, text
    assert read_record(distilled)["export"]["fp32"]["metrics"]["loss"] == pytest.approx(
        read_record(distilled)["student"]["metrics"]["loss"], abs=1e-4
    )
    [prediction] = Bundle(distilled / "bundle", model="fp32").generate_all(["Good <extra_id_0>."], max_new_tokens=3)
    assert prediction["finish"] in ("eos", "length")
    student = AutoModelForSeq2SeqLM.from_pretrained(distilled / "student")
    depths = {"num_layers", "num_decoder_layers"} if teacher == "t5_tiny" else {"encoder_layers", "decoder_layers"}
    assert {getattr(student.config, name) for name in depths} == {1}
    assert {"perplexity", "agreement_top1"} <= read_record(distilled)["student"]["metrics"].keys()
