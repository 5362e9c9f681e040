"""Tests of +student=auto with a job that writes a record in place of a training, and one with trainings."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from distill.chain.train import Prepared
from distill.core.console import stages
from distill.core.errors import Pruned, UserError
from distill.jobs import execution as jobs
from distill.jobs import measuring_jobs
from distill.jobs.pruning import StudentPruner, find_least
from distill.records.choice import Candidate, Choice
from distill.records.loggers import TrackerEntry
from distill.records.run import Run, create_record
from distill.records.schema import add_run
from tests.jobs.conftest import Command
from tests.records.test_report import record

AUTO = ("+teacher=embedded", "+student=auto", "hydra.sweep.dir=auto")
# By student and depth: the metric on dev, ms for a text, and bytes of the recommended file.
FILES = {
    ("tfidf", None): (0.70, 0.2, 1.2e6), ("teacher", None): (0.961, 9, 2e7), ("static", None): (0.80, 0.1, 1e6),
    ("distilbert", 2): (0.957, 2, 3e6), ("distilbert", 3): (0.96, 3, 4e6), ("distilbert", None): (0.95, 6, 9e6),
}  # fmt: skip


@pytest.fixture
def files() -> dict[tuple[str, int | None], tuple[float, float, float]]:
    """The metric, ms and bytes of each student; a test may change them."""
    return dict(FILES)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[Any, Any]) -> list[DictConfig]:
    """The configurations of the trainings; a BiLSTM is refused in its plan, and a CNN ends at a third of its steps."""
    seen: list[DictConfig] = []

    def run(config: DictConfig, *, launch: str) -> Path | None:
        student = config.student.name, config.student.get("depth")
        if config.student.name == "bilstm":
            raise UserError("student bilstm is not for this task")
        if config.dry_run:
            stages.expect(teacher=60.0, training=files.get(student, (0, 1, 0))[1] * 60, data=0, export=0, benchmark=0)
            return None
        seen.append(config)
        if config.student.name == "cnn":
            raise Pruned("it was behind")
        metric, ms, size = files[student]
        content: dict[str, Any] = create_record(job="distill", seed=0, command=[]) | record() | {"status": "finished"}
        content["teacher"]["metrics"] = {"accuracy": 0.961}
        content["export"]["int8"] |= {"bytes": int(size), "gate": "passed", "metrics": {"accuracy": metric}}
        content["benchmark"] = [
            row | {"p50_ms": ms} if row["format"] == "onnx-int8" and row["model"] == "student" else row
            for row in content["benchmark"]
        ]
        directory = tmp_path / "runs" / f"{len(seen)}"
        directory.mkdir(parents=True)
        Run(directory, content).save()
        Path("auto").mkdir(exist_ok=True)
        add_run(Path("auto"), directory, launch)
        return directory

    monkeypatch.setattr(jobs, "run_job", run)
    monkeypatch.setattr(measuring_jobs, "read_dev_records", lambda *_, **__: ([], None))
    return seen


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        ((), r"Take distilbert depth=2: accuracy 0.9570 .* on dev \(0.4 points behind teacher\), 2.00 ms, 3.0 MB"),
        (("auto.tolerance=0",), r"Take teacher: accuracy 0.9610 .* on dev \(the best\), 9.00 ms, 20.0 MB"),
        (("auto.ms=1",), r"Take static: accuracy 0.8000 .* on dev \(the best\), 0.10 ms, 1.0 MB"),
        (("auto.mb=3.5",), r"Take distilbert depth=2: accuracy 0.9570 .* on dev \(the best\), 2.00 ms, 3.0 MB"),
    ],
)
def test_the_fastest_student_that_is_about_as_good_as_the_best_is_recommended(
    ran: list[DictConfig], command: Command, options: tuple[str, ...], choice: str
) -> None:
    code, output, error = command(*AUTO, *options)
    assert (code, error) == (0, "")
    assert re.search(choice, output)
    assert "Left out: bilstm: student bilstm is not for this task" in output
    assert "Left out: cnn: it was behind" in output
    assert "There is no test: dev has chosen the file" in output
    assert [config.student.name for config in ran].count("bilstm") == 0
    assert {config.baseline for config in ran} == {False}
    page = Path("auto/report.md").read_text(encoding="utf-8")
    assert re.search(choice, page)
    assert re.search(r"\| teacher \| int8 \| 0.9610 [^|]* \| 9.00 \| 20.0 \| yes \|", page)


def test_the_plan_has_the_time_of_each_student_and_leaves_out_what_does_not_fit(
    ran: list[DictConfig], command: Command
) -> None:
    code, output, error = command(*AUTO, "auto.minutes=8")
    assert (code, error) == (0, "")
    assert "distilbert depth=2: 2.0 min" in output
    for name, time in {"teacher": "9.0 min", "distilbert": "6.0 min"}.items():
        assert f"Left out {name}: its {time} do not fit into 8 minutes" in output
    assert "7.3 min at most, 60 s of them for the teacher" in output
    assert [config.student.name for config in ran] == ["tfidf", "distilbert", "distilbert", "cnn", "static"]


def test_a_dry_run_is_the_plan_alone(ran: list[DictConfig], command: Command) -> None:
    code, output, error = command(*AUTO, "dry_run=true")
    assert (code, error, ran) == (0, "", [])
    assert "distilbert depth=2: 2.0 min" in output
    assert not Path("auto/choice.json").exists()


def test_the_page_says_first_that_a_teacher_is_worse_than_tfidf(
    ran: list[DictConfig], files: dict[Any, Any], command: Command
) -> None:
    files["tfidf", None] = (0.97, 0.05, 1.2e6)
    code, output, _ = command(*AUTO)
    assert code == 0
    first = "TF-IDF with a linear model is 0.9 points better on dev than the teacher, which has not learned"
    assert output.index(first) < output.index("Take tfidf: accuracy 0.9700")
    assert "TF-IDF with a linear model is enough for these rows" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("auto.ms=0.01",), "no student meets the limits: the fastest is static with 0.10 ms, and"),
        (("hydra.sweeper.candidates=[+student=bilstm]",), "error: student bilstm is not for this task"),
        (("auto.tolerance=-1",), "got auto.tolerance=-1, expected a number above 0, or null"),
        (("auto.minute=3",), "there is no option auto.minute"),
        (("seed=1,2",), "+student=auto tries several students with the same options: give one value in seed=1,2"),
        (("task=multi",), "+student=auto chooses the student of one task"),
    ],
)
def test_limits_that_nothing_meets(
    ran: list[DictConfig], command: Command, options: tuple[str, ...], message: str
) -> None:
    code, _, error = command(*AUTO, *options)
    assert code == 2
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_damaged_choice_is_named(tmp_path: Path) -> None:
    assert Choice.read(tmp_path) is None
    choice = Choice([Candidate("cnn", tmp_path / "run", "int8", 1.0)], {}, 0.5, None, None, [], 1.0)
    choice.write(tmp_path)
    assert Choice.read(tmp_path) == choice
    content = json.loads((tmp_path / "choice.json").read_text(encoding="utf-8"))
    (tmp_path / "choice.json").write_text(json.dumps(content | {"other": 1}), encoding="utf-8")
    with pytest.raises(UserError, match="choice.json is damaged"):
        Choice.read(tmp_path)


CANDIDATES = "[+student=tfidf,+student=teacher,+student=distilbert,+student=cnn,'+student=distilbert student.depth=1']"
OPTIONS = (
    "+teacher=pretrained teacher.path=toys/classifier1 teacher.accept_weak=true task=sst2 task.data_dir=toys/classes "
    "task.max_length=32 trainer=fixed trainer.max_epochs=2 benchmark.enabled=false augment=none +student=auto"
)


def test_a_killed_sweep_goes_on_to_the_page_that_it_would_have_had(
    golden_root: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toys").symlink_to(golden_root / "toys")
    options = [*OPTIONS.split(), f"hydra.sweeper.candidates={CANDIDATES}"]
    code, whole, error = command(*options, "hydra.sweep.dir=whole", "output_dir=a")
    assert (code, error) == (0, "")
    assert "Take " in whole

    evaluate, calls = Prepared.evaluate, list[object]()

    def kill(self: Prepared, *arguments: Any, **options: Any) -> Any:
        calls.append(self)
        if len(calls) == 3:  # After the training of the first student that has one.
            raise KeyboardInterrupt
        return evaluate(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Prepared, "evaluate", kill)
        with pytest.raises(SystemExit):
            command(*options, "hydra.sweep.dir=killed", "output_dir=b")
    code, resumed, error = command(*options, "hydra.sweep.dir=killed", "output_dir=b", "resume=true")
    assert (code, error) == (0, "")
    assert resumed.count("is finished already") == 2
    pages = [Choice.read(Path(name)).describe() for name in ("whole", "killed")]
    first, second = (page.tables["Table"].cells for page in pages)
    assert first == second
    assert len(first) == 6  # With the header and the best constant.
    assert pages[0].sentences[-1] == "Left out: distilbert depth=1: it is distilbert"


def write_run(directory: Path, curve: list[float], *, steps: int, size: float = 1e6) -> Path:
    content: dict[str, Any] = create_record(job="distill", seed=0, command=[]) | record() | {"status": "finished"}
    content["task"] |= {"examples": {"train": 1000, "dev": 400}}
    content["training"] |= {"steps": steps}
    content["export"] = {"int8": content["export"]["int8"] | {"bytes": int(size), "gate": "passed"}}
    directory.mkdir()
    Run(directory, content).save()
    rows = [f"{10 * (number + 1)},{value}" for number, value in enumerate(curve)]
    (directory / "metrics.csv").write_text("\n".join(["step,dev/accuracy", *rows]))
    return directory


def test_a_student_ends_at_a_third_of_its_steps_where_it_is_behind_beyond_noise(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good", [0.5, 0.6, 0.9, 0.95], steps=60)  # A third is at 20 steps.
    large = write_run(tmp_path / "large", [0.9, 0.99, 0.99], steps=30, size=9e6)
    fitted = write_run(tmp_path / "fitted", [], steps=0)
    assert find_least([fitted], mb=None) is None
    least = find_least([good, fitted, large], mb=2)
    assert least is not None
    assert 0.55 < least < 0.56  # The interval of a share of 0.6 of 400.
    assert (find_least([good, large], mb=None) or 0) > 0.8
    logger, _ = StudentPruner(least).open(TrackerEntry(tmp_path, "run", None, {}, None, "accuracy", "max", 90))
    logger.log_metrics({"dev/accuracy": 0.1}, step=29)
    logger.log_metrics({"train/loss": 0.1}, step=30)
    logger.log_metrics({"dev/accuracy": 0.56}, step=30)
    with pytest.raises(
        Pruned, match=r"accuracy 0.5100 at step 60 of 90, and the interval of that one's metric began at 0.55\d\d"
    ):
        logger.log_metrics({"dev/accuracy": 0.51}, step=60)
