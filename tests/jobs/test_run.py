"""Tests of whole runs at toy size: their output, files, cache and resumption."""

import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import distill.builtin  # noqa: F401  so that the auto classes know every student
from distill import __main__ as command_line
from distill.chain import encoding
from distill.core.errors import UserError
from distill.edge import bundle_files
from distill.jobs import execution
from distill.jobs.cache_entries import scan
from distill.records.run import Run, create_run
from distill.teachers import preparation as teaching
from distill.training import fitting
from tests.conftest import LARGEST_SHARE, run_here, sentences

SMALL = ("task.max_length=32", "trainer.max_epochs=2", "trainer.batch_size=16", "trainer.learning_rate=1e-3")
TEACHER = ("teacher.finetune.max_epochs=15", "teacher.finetune.learning_rate=3e-3", "teacher.finetune.batch_size=16")


def read_records(output: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Returns the directory and record of every run below `output`, oldest first."""
    runs = [(path.parent, json.loads(path.read_text())) for path in output.rglob("run.json")]
    return sorted(runs, key=lambda item: item[0].name)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, data_dir: Path, encoder_dir: Path) -> dict[str, Any]:
    """Two runs of the main job with one cache: a toy teacher without a head, and a baseline in the first run."""
    root = tmp_path_factory.mktemp("chain")
    arguments = (
        "+teacher=pretrained", f"teacher.path={encoder_dir}", "+student=distilbert", "task=sst2",
        f"task.data_dir={data_dir}", f"cache_dir={root / 'cache'}", f"output_dir={root / 'runs'}", *SMALL, *TEACHER,
        "teacher.accept_weak=true", "augment=none", "export.enabled=false",
    )  # fmt: skip
    first = run_here(*arguments, "baseline=true", cwd=root)
    with pytest.MonkeyPatch.context() as patch:  # As the fixture `chosen_baseline` does for a test.
        patch.setattr(encoding, "LARGEST_SHARE", LARGEST_SHARE)
        second = run_here(*arguments, "logger=wandb", cwd=root)
    ignored = ("+student", "trainer", "export", "benchmark", "augment")
    finetune = ("job=finetune", *(argument for argument in arguments if not argument.startswith(ignored)))
    return {
        "root": root,
        "arguments": arguments,
        "finetune": finetune,
        "first": first,
        "second": second,
        "runs": read_records(root / "runs"),
    }


def test_no_checkpoint_contains_the_teacher(chain: dict[str, Any]) -> None:
    directory, _ = chain["runs"][0]
    for name in ("best", "last"):
        state = torch.load(directory / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]
        assert state
        assert all(key.startswith(("student.", "objective.")) for key in state)


def test_the_second_run_reuses_the_teacher_and_has_the_same_metrics_and_weights(chain: dict[str, Any]) -> None:
    second = chain["second"]
    assert second.returncode == 0, second.stderr
    assert "fine-tuned before, read from" in second.stdout
    assert "Teacher: computes" not in second.stdout  # The first run cached its outputs for dev.
    (_, before), (_, after) = chain["runs"]
    assert after["teacher"]["origin"] == "kept"
    assert after["teacher"]["metrics"] == before["teacher"]["metrics"]
    assert after["student"]["metrics"] == before["student"]["metrics"]
    one, two = (
        AutoModelForSequenceClassification.from_pretrained(directory / "student").state_dict()
        for directory, _ in chain["runs"]
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_wandb_logs_offline(chain: dict[str, Any]) -> None:
    directory, _ = chain["runs"][1]
    [file] = directory.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    for expected in (b"train/soft", b"learning_rate"):
        assert expected in content
    assert (directory / "metrics.csv").is_file()  # The report reads it.


def test_a_finished_run_is_not_run_again(chain: dict[str, Any]) -> None:
    directory, _ = chain["runs"][0]
    again = run_here(f"resume={directory}", cwd=chain["root"])
    assert again.returncode == 0
    assert "finished already" in again.stdout


def test_a_run_stopped_after_training_resumes_without_training_again(chain: dict[str, Any]) -> None:
    """The last checkpoint marks training as complete, so only the later stages run again."""
    directory, record = chain["runs"][0]
    decision = {"cached": False, "reason": "the disk was full"}  # Is kept, so that a training continues as it began.
    Run(directory, {**record, "status": "running", "teacher_outputs": decision}).save()
    resumed = run_here("resume=true", *chain["arguments"], "baseline=true", cwd=chain["root"])
    assert resumed.returncode == 0, resumed.stderr
    assert f"Resuming {directory}" in resumed.stdout
    assert "computed in every step: the disk was full" in resumed.stdout
    after = json.loads((directory / "run.json").read_text())
    assert after["status"] == "finished"
    assert after["student"]["metrics"] == record["student"]["metrics"]
    assert after["seconds"]["total"] > record["seconds"]["total"]  # Of both processes.


def test_a_sweep_makes_a_run_for_every_value_and_computes_the_teacher_outputs_once(chain: dict[str, Any]) -> None:
    output = chain["root"] / "cached"
    done = run_here(
        "-m", *chain["arguments"], f"output_dir={output}", "trainer.max_steps=1", "objective=hinton",
        "objective.terms.soft.temperature=1,4",
        cwd=chain["root"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [record for _, record in read_records(output)]
    assert sorted(record["objective"]["terms"]["soft"]["temperature"] for record in records) == [1, 4]
    trainings = [record["training"] for record in records]
    assert [training["teacher_cache"]["hit"] for training in trainings] == [False, True]
    assert trainings[0]["teacher_seconds"] > 0
    assert [training["teacher_seconds"] for training in trainings[1:]] == [0]
    assert done.stdout.count("Teacher: computes the outputs for 64 examples once") == 1
    assert done.stdout.count("computed once, cached in") == 2
    assert "computed once, cached in" in chain["first"].stdout  # With the hidden states that cosine reads.
    first, second = (record for _, record in chain["runs"])
    assert [record["training"]["teacher_cache"]["hit"] for record in (first, second)] == [False, True]
    assert first["teacher_outputs"] == second["teacher_outputs"] == {"cached": True, "reason": None}


def test_the_teacher_is_freed_unless_training_needs_it(
    chain: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded: list[Any] = []
    original = teaching._load

    def load(*arguments: Any, **options: Any) -> Any:
        model = original(*arguments, **options)
        loaded.append(weakref.ref(model))
        return model

    def fit(*arguments: Any, **options: Any) -> Any:
        raise UserError(f"alive: {sum(reference() is not None for reference in loaded)} of {len(loaded)}")

    monkeypatch.chdir(chain["root"])
    monkeypatch.setattr(teaching, "_load", load)
    monkeypatch.setattr(fitting, "fit", fit)
    uncached = ("objective=distilbert", "teacher.cache.hidden=false")
    for options, expected in ((("objective=hinton",), 0), (uncached, 1), ((), 0), (("objective=supervised",), 0)):
        loaded.clear()
        arguments = ["distill", *chain["arguments"], f"output_dir={chain['root'] / 'memory'}", *options]
        monkeypatch.setattr(sys, "argv", arguments)
        assert command_line.main() == 2
        assert f"alive: {expected} of 1" in capsys.readouterr().err


NOT_FINE_TUNED = "(not fine-tuned in a dry run)"


@pytest.mark.parametrize("job", ["distill", "finetune", "pretrain"])
def test_a_dry_run_trains_nothing_and_writes_no_run(
    job: str, data_dir: Path, encoder_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def no_training(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something is trained")

    arguments = [f"job={job}", "dry_run=true", f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'runs'}"]
    if job == "pretrain":
        for number in range(8):
            lines = [f"{text.capitalize()} {number}." for text, _ in sentences(12)]
            (tmp_path / f"{number}.txt").write_text("\n".join(lines))
        arguments += ["+teacher=bert_tiny", "teacher.vocabulary=300", "teacher.hidden_size=32", "task=mlm",
                      f"task.data_dir={tmp_path}", "task.max_length=32", "trainer.batch_size=8"]  # fmt: skip
    else:
        arguments += ["+teacher=pretrained", f"teacher.path={encoder_dir}", "task=sst2", f"task.data_dir={data_dir}"]
        arguments += [*TEACHER, "task.max_length=32"]
        arguments += [*SMALL[1:], "+student=distilbert", "baseline=true"] if job == "distill" else []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fitting, "fit", no_training)
    monkeypatch.setattr(sys, "argv", ["distill", *arguments])
    assert command_line.main() == 0
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith("Nothing was trained (dry_run=true)")
    expected = {
        "distill": (
            "64 rows of train, 24 rows of dev",
            "Classes  0 32, 1 32",
            "Before training",
            NOT_FINE_TUNED,
            "layers 4 -> 2 (0, 3)",
            "computed in every step",
        ),
        "finetune": (NOT_FINE_TUNED, "60 steps of"),
        "pretrain": ("Before training", "masked_language_modelling: mlm"),
    }[job]
    assert [text for text in expected if text not in printed] == []
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.rglob("*.ckpt"))
    assert not list(tmp_path.rglob("*.safetensors"))  # Neither a teacher nor outputs.


@pytest.fixture
def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the models that this machine has from the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))


@pytest.mark.usefixtures("empty_hub_cache")
def test_an_unreachable_teacher_stops_the_run_with_three_remedies(data_dir: Path, tmp_path: Path) -> None:
    done = run_here(
        "+teacher=bert_base", "+student=distilbert", "task=sst2", f"task.data_dir={data_dir}",
        f"cache_dir={tmp_path}", f"output_dir={tmp_path / 'runs'}", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    for remedy in ("teacher.path=DIR", "hf download google-bert/bert-base-uncased", "+teacher=embedded"):
        assert remedy in done.stderr


@pytest.mark.usefixtures("empty_hub_cache")
def test_the_built_in_task_runs_with_a_substitute_teacher_and_reports_it(tmp_path: Path) -> None:
    done = run_here(
        "+teacher=bert_base", "+student=distilbert", "task.train_examples=64", "task.dev_examples=24",
        f"cache_dir={tmp_path}", f"output_dir={tmp_path / 'runs'}", *SMALL, "substitute.hidden_size=32",
        "substitute.layers=2", "substitute.vocabulary=500", "substitute.finetune.max_steps=1",
        "trainer.max_epochs=1", "export.enabled=false", "teacher.accept_weak=true", "augment=none", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ANOTHER TEACHER TEACHES" in done.stdout
    [(directory, record)] = read_records(tmp_path / "runs")
    assert record["teacher"]["substituted"] is True
    assert record["teacher"]["requested"] == "bert_base"
    assert record["teacher"]["resolved"].startswith("embedded")
    text = (directory / "report.md").read_text()
    assert "The teacher is a substitute." in text
    assert record["teacher"]["resolved"] in text


def test_the_finetune_job_reuses_a_fine_tuned_teacher_and_accepts_a_trained_one(
    chain: dict[str, Any], data_dir: Path, encoder_dir: Path
) -> None:
    output = chain["root"] / "finetune"
    done = run_here(*chain["finetune"], f"output_dir={output}", cwd=chain["root"])
    assert done.returncode == 0, done.stderr
    assert "fine-tuned before, read from" in done.stdout
    [(directory, record)] = read_records(output)
    assert record["status"] == "finished"
    assert (directory / "predictions.parquet").is_file()
    other = run_here(
        "job=finetune", "+teacher=pretrained", f"teacher.path={directory / 'teacher' / 'model'}",
        "teacher.finetune=false", "task.max_length=32", "task=sst2", f"task.data_dir={data_dir}",
        f"cache_dir={chain['root'] / 'cache'}",
        f"output_dir={chain['root'] / 'as-it-is'}", cwd=chain["root"],
    )  # fmt: skip
    assert other.returncode == 0, other.stderr
    assert "(as it is)" in other.stdout


def test_every_cached_file_belongs_to_a_listed_entry(golden_root: Path, golden_run: Callable[[str], Path]) -> None:
    assert golden_run("labels")
    cache = golden_root / "cache" / "labels"
    entries = [entry.path for entry in scan(cache)]
    files = {path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert {path.relative_to(cache).parts[0] for path in entries} == {
        "teachers",
        "baselines",
        "outputs",
        "tokens",
        "stages",
    }
    assert [path for path in files if not any(entry in path.parents for entry in entries)] == []


def test_a_damaged_cached_teacher_is_fine_tuned_again(chain: dict[str, Any]) -> None:
    [entry] = (chain["root"] / "cache" / "teachers").iterdir()
    with open(entry / "model.safetensors", "r+b") as file:
        file.truncate(1000)
    done = run_here(*chain["finetune"], f"output_dir={chain['root'] / 'again'}", cwd=chain["root"])
    assert done.returncode == 0, done.stderr
    assert "is damaged and made again" in done.stdout
    [(_, record)] = read_records(chain["root"] / "again")
    assert record["teacher"]["metrics"] == chain["runs"][0][1]["teacher"]["metrics"]


def test_an_interrupted_run_names_the_command_that_goes_on_with_it_or_with_all_of_its_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = create_run(tmp_path, job="distill", seed=0)
    monkeypatch.setattr(sys, "argv", ["distill", "-m", "seed=0,1", "task.text=[a b]", "resume=false"])
    assert execution._describe_resume(created) == f"python -m distill resume={created.directory}"
    monkeypatch.setattr(execution, "_sweep_directory", lambda: tmp_path)
    assert execution._describe_resume(created) == "python -m distill -m seed=0,1 'task.text=[a b]' resume=true"


@pytest.mark.parametrize(("variable", "expected"), [(None, 2), ("6", 6)])
def test_torch_has_at_most_as_many_threads_as_the_process_may_use_cores(
    variable: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = [6]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(bundle_files, "count_cores", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    execution.limit_threads()
    assert threads[-1] == expected
