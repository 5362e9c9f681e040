"""Tests of whole jobs at toy size in which a teacher writes the targets of train, or the student does."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from distill.builtin.teachers.vocabulary import train_bytes
from transformers import T5Config, T5ForConditionalGeneration

from tests.jobs.runs import Run, capture_runs, read_record, run_command

WORDS = ("one", "two", "three", "four", "five")
TRAINER = ("trainer.max_steps=4", "trainer.max_epochs=null", "trainer.batch_size=8", "trainer.precision=32-true",
           "trainer.accelerator=cpu", "export.enabled=false")  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs of words in the other order, a T5 and a cache."""
    root = tmp_path_factory.mktemp("work")
    (root / "data").mkdir()
    for split, number in (("train", 24), ("dev", 8)):
        rows = [f"{WORDS[i % 5]} {WORDS[(i * 3 + 1) % 5]} {i}\t{i} {WORDS[i % 5]}" for i in range(number)]
        (root / "data" / f"{split}.tsv").write_text("\n".join(["source\ttarget", *rows]), encoding="utf-8")
    tokenizer = train_bytes([" ".join(WORDS)] * 3, 270, 64)
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=2, num_decoder_layers=2,
        decoder_start_token_id=pad, pad_token_id=pad, eos_token_id=end,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(root / "t5")
    tokenizer.save_pretrained(root / "t5")
    return root


@pytest.fixture
def run(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; returns its exit code, its output and the run's directory."""

    def run_options(output: Path, *options: str) -> int:
        return run_command(
            "task=seq2seq", "task.max_length=32", "task.max_target=8", f"task.data_dir={work / 'data'}",
            "+teacher=pretrained", "+student=distilbert", f"teacher.path={work / 't5'}", "teacher.finetune=false",
            f"cache_dir={work / 'cache'}", f"output_dir={output}", *TRAINER, *options,
        )  # fmt: skip

    return capture_runs(partial(run_options), tmp_path, capsys)


def test_the_teachers_texts_are_written_once_and_planned_before(run: Run, work: Path) -> None:
    options = ("objective=hinton", "teacher.beams=2", "teacher.keep=nearest", "task.scored_texts=0")
    code, text, _ = run(*options, "dry_run=true")
    assert code == 0, text
    assert "the teacher writes 2 texts for each of 24 of 24 sources once, about " in text
    assert not list((work / "cache").glob("targets/*/*.json"))
    code, text, directory = run(*options)
    assert code == 0, text
    (path,) = (work / "cache").glob("targets/*/*.json")
    assert "the teacher's texts are in the place of the labels" in read_record(directory)["baseline_choice"]["reason"]
    assert len(json.loads(path.read_text(encoding="utf-8"))["texts"]) == 24


def test_texts_may_be_sampled_with_a_seed(run: Run, work: Path) -> None:
    options = ("objective=supervised", "teacher.sampling_temperature=2.0", "task.scored_texts=0", "trainer.max_steps=1")
    earlier = set((work / "cache").glob("targets/*/*.json"))
    for seed in (0, 1):
        code, text, _ = run(*options, f"teacher.sampling_seed={seed}", output=f"seed{seed}")
        assert code == 0, text
    first, second = sorted(set((work / "cache").glob("targets/*/*.json")) - earlier)
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in (first, second)]
    assert contents[0]["sources"] == contents[1]["sources"]
    assert contents[0]["texts"] != contents[1]["texts"]
    assert {len(texts) for texts in contents[0]["texts"]} == {1}


def test_a_job_without_a_student_refuses_texts_of_the_teacher(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_command(
        "job=finetune", "task=seq2seq", f"task.data_dir={work / 'data'}", "+teacher=pretrained",
        f"teacher.path={work / 't5'}", f"cache_dir={tmp_path}", f"output_dir={tmp_path}", "teacher.beams=4",
    )  # fmt: skip
    printed = capsys.readouterr()
    assert code == 2
    assert "teacher.beams=4 has a teacher write the texts of a student, and job=finetune" in printed.out + printed.err


def test_a_student_learns_on_its_own_texts_from_a_teacher_that_runs(run: Run) -> None:
    code, text, directory = run("objective=on_policy", "objective.terms.gkd.student_share=1", "baseline=false")
    assert code == 0, text
    record = read_record(directory)
    assert record["teacher_outputs"]["cached"] is False
    assert record["teacher_outputs"]["reason"] == "the student writes some of the texts"


OF_CLASSES = ("task=sst2", "task.text=[source]", "task.label=target")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("teacher.beams=4", "teacher.keep=all"), "got teacher.keep=all, expected 1 or nearest"),
        (("teacher.keep=nearest",), "got teacher.keep=nearest, expected 1 without teacher.beams"),
        (("teacher.beams=4", "baseline=true"), "teacher.beams=4 puts the teacher's texts in the place of the labels"),
        (("teacher.sampling_seed=3",), "got teacher.sampling_seed=3, expected 0 without teacher.sampling_temperature"),
        (("teacher.sampling_temperature=0",), "got teacher.sampling_temperature=0, expected a number above 0"),
        (
            ("teacher.sampling_temperature=1.0", "teacher.beams=4"),
            "got teacher.beams=4 and teacher.sampling_temperature=1.0, expected a search or a sampling",
        ),
        (("teacher.beams=4", *OF_CLASSES), "teacher.beams=4 replaces the targets of texts, and task=sst2 has none"),
        (("objective=on_policy", *OF_CLASSES), "student_share of objective on_policy has the student write targets"),
        (
            ("objective=on_policy", "objective.terms.gkd.sampling_temperature=0"),
            "sampling_temperature=0, expected a number above 0",
        ),
    ],
)
def test_bad_input_is_reported_in_one_line(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], expected: str
) -> None:
    task = [option for option in options if option.startswith("task=")] or ["task=seq2seq"]
    code = run_command(
        *task, f"task.data_dir={work / 'data'}", "+teacher=pretrained", "+student=distilbert",
        f"teacher.path={work / 't5'}", f"cache_dir={tmp_path}", f"output_dir={tmp_path}", *TRAINER,
        *(option for option in options if option not in task),
    )  # fmt: skip
    printed = capsys.readouterr()
    error = (printed.out + printed.err).strip().splitlines()[-1]
    assert code == 2, printed
    assert error.startswith("error: ")
    assert expected in error
