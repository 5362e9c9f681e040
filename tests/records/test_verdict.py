"""Tests that the headline, the tables, the cards and the terminal lines of a run say the same in each situation."""

import copy
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from distill.chain.task_run import TaskRun, measure_retention
from distill.records import report, verdict
from distill.records.headline import describe_verdict, render_headline
from distill.records.run import Run
from distill.records.schema import check_record, fill_record
from tests.records.test_report import record


def difference(points: float, low: float | None, high: float | None, **changes: Any) -> dict[str, Any]:
    """A difference of run.json from points and the ends of its interval in points."""
    interval = None if low is None or high is None else [low / 100, high / 100]
    content = {"difference": points / 100, "interval": interval, "p": 0.03, "over": "examples", "number": 24}
    return content | {"split": "dev"} | changes


def situation(
    *, metric: str = "accuracy", student: float = 0.85, teacher: float = 0.9, baseline: float | None = 0.8,
    constant: float | None = 0.5, against_baseline: Any = None, against_teacher: Any = None,
    against_constant: Any = None, split: str = "dev", answer: str = "always no", **task: Any,
) -> dict[str, Any]:  # fmt: skip
    """A record whose models have this metric on the split, and 0.7 on dev if it is test."""
    prefix = "" if split == "dev" else f"{split}/"

    def scored(value: float) -> dict[str, float]:
        return {metric: 0.7, f"{prefix}{metric}": value}

    content = record()
    content["task"] |= {"metric": metric, "selects": "max", **task}
    if split == "test":
        content["task"]["examples"] = content["task"]["examples"] | {"test": 1861}
    content["teacher"] |= {"metrics": scored(teacher), "origin": "fine-tuned"}
    if constant is not None:
        content["teacher"] |= {
            "constant": {"answer": answer, "metrics": scored(constant)},
            "against_constant": against_constant or difference(40, 30, 50),
        }
    content["student"]["metrics"] = scored(student)
    for file in content["export"].values():
        file |= {"metrics": scored(student), "gate": "passed"}
    if baseline is not None:
        content["baseline"] = {"metrics": scored(baseline), "seconds": 1.0}
    compared = {"baseline": against_baseline, "teacher": against_teacher}
    content["comparison"] = {name: of for name, of in compared.items() if of is not None}
    return fill_record(content)


def with_seeds(content: dict[str, Any]) -> dict[str, Any]:
    """The record with three seeds, whose metrics have deviations."""
    entry = {"metrics": content["student"]["metrics"], "export": content["export"], "baseline": content["baseline"]}
    files = {"int8": {"mean": 0.846, "std": 0.012}}
    summary = {"mean": 0.848, "std": 0.01, "files": files, "baseline": {"mean": 0.8, "std": 0.02}}
    return content | {"seeds": [entry | {"seed": seed} for seed in range(3)], "summary": {"accuracy": summary}}


def documents(content: dict[str, Any]) -> list[str]:
    return [report.render_report(content), report.render_model_card(content, ["no", "yes"])]


def says(content: dict[str, Any], *expected: str) -> str:
    """Checks that every document has the sentences of the verdict, and returns them as one text."""
    check_record(content | {"job": "distill"})
    title, *sentences = describe_verdict(content)
    text = " ".join([title, *sentences])
    for part in expected:
        assert part in text
    for document in documents(content):
        joined = document.replace(".\n\nmodel.", ". model.").replace(".\n\nNo exported", ". No exported")
        assert f"\n**{title}** {' '.join(sentences)}\n" in joined
    return text


def with_own_file(content: dict[str, Any]) -> dict[str, Any]:
    """Adds the time of the teacher's int8 file, which is faster than its fp32 file."""
    own = copy.deepcopy(content["benchmark"][1]) | {"format": "onnx-int8", "p50_ms": 5.0, "bytes": 60_000_000}
    return content | {"benchmark": [*content["benchmark"], own]}


def failed(content: dict[str, Any]) -> dict[str, Any]:
    for file in content["export"].values():
        file |= {"gate": "failed", "reason": "it is wrong"}
    return content


ERRORS = {"metric": "rmse", "selects": "min", "answer": "always 3.2", "constant": 1.2}
UNDECIDED = {"student": 0.806, "against_baseline": difference(0.6, -0.8, 2.1)}
# Of a student on a ranking whose teacher is better.
RANKING = situation(metric="ndcg@10", student=0.62, teacher=0.64, baseline=None, constant=None)
NO_LABELS = {"trained": False, "reason": "the training texts have no labels", "share": None, "possible": False}
# The record -> sentences that it has and, behind None, words that it has not.
SITUATIONS: dict[str, tuple[dict[str, Any], list[str | None]]] = {
    "a teacher within noise of the constant": (
        situation(
            teacher=0.51, student=0.5, baseline=0.49, against_constant=difference(1, -3, 5),
            against_teacher=difference(-1, -3, 1), answer="always positive",
        ),
        ["The teacher is weak. On dev it has accuracy 0.510 against 0.500 of a constant prediction (always positive), "
         "which is not known to be better (+1.0 points, 95% interval -3.0 to +5.0). Set a higher "
         "teacher.finetune.max_epochs, label more rows, or take a larger teacher. The student is no better than a "
         "constant prediction, which has accuracy 0.500 (always positive). On dev (24 examples, which chose the "
         "checkpoint too) the student has accuracy 0.500 (0.500 in model.int8.onnx), 1.0 points above", None, "keeps"],
    ),
    "a constant teacher and a better baseline": (
        situation(
            teacher=0.5, student=0.62, baseline=0.66, against_constant=difference(0, -1, 1),
            against_baseline=difference(-4, -7, -1),
        ),
        ["Prefer the baseline: the teacher is weak. On dev it has accuracy 0.500 against 0.500 of a constant "
         "prediction (always no), which is no better.", "12.0 points above its teacher (0.500)", None, "124"],
    ),
    "a student within noise of the baseline": (
        situation(**UNDECIDED, against_teacher=difference(-9.4, -12.2, -6.6)),
        ["Whether the teacher helps is undecided. On dev",
         "0.6 points above the same student trained without a teacher (0.800; 95% interval -0.8 to +2.1) and 9.4 "
         "points below its teacher (0.900; the student keeps 89.6% of it; 95% interval -12.2 to -6.6)",
         "Against the same student without a teacher it may be up to 0.8 points worse and up to 2.1 points better: 24 "
         "examples of dev show no more, about 140 would decide. ",
         "More text for the teacher to label may help: set task.unlabelled."],
    ),
    "the same with further texts": (situation(**UNDECIDED, unlabelled={"examples": 9}), [None, "task.unlabelled"]),
    "errors": (
        situation(
            **ERRORS, student=0.71, teacher=0.65, baseline=0.75, against_constant=difference(-55, -60, -50),
            against_baseline=difference(-4, -6, -2), against_teacher=difference(6, 1, 11),
        ),
        ["The teacher helps. On dev",
         "the student has rmse (less is better) 0.710 (0.710 in model.int8.onnx), 0.040 below the same student trained "
         "without a teacher (0.750; 95% interval -0.060 to -0.020) and 0.060 above its teacher (0.650; 95% interval "
         "+0.010 to +0.110)", None, " points", "% of"],
    ),
    "errors of a teacher within noise of the constant": (
        situation(
            **ERRORS, student=1.3, teacher=1.15, baseline=None, against_constant=difference(-5, -12, 2),
        ),
        ["The teacher is weak. On dev it has rmse 1.150 against 1.200 of a constant prediction (always 3.2), which is "
         "not known to be better (-0.050, 95% interval -0.120 to +0.020). Set a higher",
         "The student is no better than a constant prediction, which has rmse 1.200 (always 3.2)."],
    ),
    "no intervals": (
        situation(metric="micro_f1", student=0.61, teacher=0.7, baseline=0.58),
        ["Whether the teacher helps is not certain. On dev",
         "micro_f1 0.610 (0.610 in model.int8.onnx), 3.0 points above the same student trained without a teacher "
         "(0.580) and 9.0 points below its teacher (0.700; the student keeps 87.1% of it). ",
         "One seed, without an interval."],
    ),
    "a teacher that is better": (
        RANKING | {"comparison": {"teacher": difference(-2, -3, -1)}},
        ["The student is below its teacher. On dev",
         "ndcg@10 0.620 (0.620 in model.int8.onnx), 2.0 points below its teacher (0.640; the student keeps 96.9% of "
         "it; 95% interval -3.0 to -1.0)"],
    ),
    "training texts without labels": (
        RANKING | {"baseline_choice": NO_LABELS},
        ["No baseline was trained (the training texts have no labels), so the gain from the teacher is not known. "],
    ),
    "a student that is better": (
        RANKING | {"comparison": {"teacher": difference(-2, 1, 3)}}, ["The student is better than its teacher."],
    ),
    "several seeds alone": (
        with_seeds(situation(against_baseline=difference(5, 3, 7, over="seeds"))),
        ["The intervals are over 3 seeds alone, and ",
         "accuracy 0.848 ± 0.010 (mean of 3 seeds; 0.846 ± 0.012 in model.int8.onnx)", None, "One seed"],
    ),
    "a difference of dev beside points on test": (
        situation(
            split="test", student=0.82, baseline=0.83, constant=None, against_baseline=difference(-2, -13.5, 9.6)
        ),
        ["Whether the teacher helps is undecided.",
         "1.0 points below the same student trained without a teacher (0.830; on dev -2.0 points, 95% interval -13.5 "
         "to +9.6)"],
    ),
    "no metric on test": (situation(examples={"train": 9, "dev": 24, "test": 7}), ["On dev (24 examples"]),
    "a student of hard labels": (
        situation(baseline=None) | {"objective": {"name": "supervised"}},
        ["The student learned without a teacher. On dev", "5.0 points below the teacher (0.900;", None, "baseline"],
    ),
    "no file that passed": (
        failed(situation()),
        ["the student has accuracy 0.850, 5.0 points above",
         "No exported file passed its gate, so these numbers are those in torch. model.onnx failed its gate: it is "
         "wrong. model.int8.onnx failed its gate: it is wrong."],
    ),
    "a wide interval": (
        situation(
            student=0.855, baseline=None, against_teacher=difference(-4.5, -10.9, 2.0, number=200),
            examples={"dev": 200},
        ),
        ["Whether the student is as good as its teacher is undecided. On dev",
         "Against its teacher it may be up to 10.9 points worse and up to 2.0 points better: 200 examples of dev show "
         "no more, about 420 would decide. "],
    ),
    "an interval within the margin": (
        situation(student=0.898, baseline=None, against_teacher=difference(-0.2, -0.9, 0.5, number=9000)),
        ["The student is as good as its teacher.", "called equal within 1 point (report.margin).", None,
         "may be up to"],
    ),
    "an interval within a margin of the run": (
        situation(student=0.855, baseline=None, against_teacher=difference(-4.5, -10.9, 2.0)) | {"margin": 11.0},
        ["The student is as good as its teacher.", "called equal within 11 points"],
    ),
    "a student within a constant": (
        situation(student=0.5, baseline=0.5, against_baseline=difference(0, -2, 2)),
        ["The student is no better than a constant prediction. That has accuracy 0.500 (always no). On dev"],
    ),
    "a student above a constant": (
        situation(student=0.51, baseline=0.5, against_baseline=difference(1, -2, 4)),
        ["Whether the teacher helps is undecided.", None, "constant"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_document_of_a_situation_has_its_sentences(name: str) -> None:
    content, words = SITUATIONS[name]
    place = words.index(None) if None in words else len(words)
    text = says(content, *map(str, words[:place]))
    assert not [word for word in words[place + 1 :] if str(word) in text]


def test_a_student_worse_than_its_baseline_gives_way_to_it() -> None:
    content = situation(
        student=0.865, teacher=0.624, baseline=0.89, against_baseline=difference(-2.5, -4.4, -0.6),
        against_teacher=difference(24.1, 20.2, 28.0),
    )  # fmt: skip
    text = says(
        content,
        "Prefer the baseline. On dev",
        "2.5 points below the same student trained without a teacher (0.890; 95% interval -4.4 to -0.6) and 24.1 "
        "points above its teacher (0.624; 95% interval +20.2 to +28.0)",
        "The baseline is not exported: objective=supervised trains and exports such a student.",
    )
    assert "138.6%" not in text + "".join(documents(content))
    assert verdict.Results(content).decide().bundle == "bundle"  # type: ignore[union-attr]
    content["baseline"]["export"] = {"int8": content["export"]["int8"] | {"metrics": {"accuracy": 0.888}}}
    says(content, "The baseline is exported in baseline/bundle.")
    assert verdict.Results(content).decide().bundle == "baseline/bundle"  # type: ignore[union-attr]
    rows = {row[0]: row for row in report.summary_cells(content)[1:]}
    assert rows["baseline int8"][2:6] == ("0.8880", "+26.4", "-", "10.0 MB")
    assert rows["student int8"][2:6] == ("0.8650", "+24.1", "-2.5", "10.0 MB")


def test_test_stands_first_and_dev_is_named_as_what_chose_the_checkpoint() -> None:
    content = with_own_file(
        situation(
            split="test", student=0.843, baseline=0.814, teacher=0.839,
            against_baseline=difference(2.9, 1.2, 4.6, split="test", number=1861),
            against_teacher=difference(0.4, -0.8, 1.6, split="test", number=1861),
        )
    )  # fmt: skip
    says(
        content,
        "The teacher helps. On test (1,861 examples; dev chose the checkpoint) the student has accuracy 0.843 (0.843 "
        "in model.int8.onnx), 2.9 points above the same student trained without a teacher (0.814; 95% interval +1.2 to "
        "+4.6) and 0.4 points above its teacher (0.839; 95% interval -0.8 to +1.6). Against its teacher it may be up "
        "to 0.8 points worse and up to 1.6 points better: 1,861 examples of test show no more, about 7,500 would "
        "decide. One seed: training noise is not in the intervals. model.int8.onnx has 10.0 MB of the teacher's 80.1 "
        "MB (60.0 MB in int8), and is 8.0x as fast as the teacher in torch and 2.0x as fast as the teacher's own int8 "
        "file (batch 1, length 32, 2 threads of a processor).",
    )
    assert report.summary_cells(content)[0] == (
        "", "parameters", "accuracy on test", "points against teacher", "points against baseline", "size", "p50",
        "speed-up (torch)", "speed-up (int8)",
    )  # fmt: skip
    for document in documents(content):
        assert "Metrics are measured on the test split (1,861 examples), by which nothing was chosen.\n" in document
        assert "The dev split (24 examples) chose the checkpoint.\n" in document
        assert "+2.9 points of accuracy, 95% interval +1.2 to +4.6, 1,861 test examples" in document
        assert "`speed-up (int8)` to its own int8 file, the fastest of its ONNX files" in document
    assert "|  | test/accuracy | accuracy |" in documents(content)[0]
    card = report.render_model_card(content, ["no", "yes"])
    assert card.index("split: test") < card.index("split: dev")
    kept = measure_retention(content, content["export"])
    assert kept == {name: pytest.approx(0.843 / 0.839) for name in ("torch", *content["export"])}
    assert measure_retention(situation(student=0.82, teacher=0.9), {}) == {"torch": pytest.approx(0.82 / 0.9)}


def test_columns_and_rows_follow_what_is_known() -> None:
    weak, undecided, errors = (SITUATIONS[name][0] for name in (
        "a teacher within noise of the constant", "a student within noise of the baseline", "errors"
    ))  # fmt: skip
    assert "of the teacher" not in report.summary_cells(weak)[0]
    assert ("always positive", "-", "0.5000", "-1.0") in [row[:4] for row in report.summary_cells(weak)[1:]]
    loaded = weak | {"teacher": weak["teacher"] | {"origin": "as it is"}}
    says(loaded, "Check that its labels mean the task's, or take another teacher.")
    assert report.summary_cells(undecided)[0][2:5] == ("accuracy on dev", "of the teacher", "points against baseline")
    assert report.summary_cells(errors)[0][2:5] == ("rmse on dev", "against teacher", "against baseline")
    assert ("always 3.2", "-", "1.2000", "+0.550", "-") in [row[:5] for row in report.summary_cells(errors)[1:]]
    assert verdict.first_split(SITUATIONS["no metric on test"][0]["task"]) == "test"
    assert verdict.first_split({"examples": {"dev": 24, "test": 0}}) == "dev"
    near, _ = SITUATIONS["an interval within the margin"]
    says(near | {"margin": 0.5}, "Whether the student is as good as its teacher is undecided.", "0.9 points worse")


@pytest.mark.parametrize(
    ("teacher", "constant", "share"),
    [(0.9, 0.5, 0.85 / 0.9), (0.8, 0.5, None), (0.9, 0.9, None), (0.9, None, 0.85 / 0.9), (0.0, None, None)],
)
def test_a_share_is_from_0_to_1_and_of_a_teacher_above_the_constant(
    teacher: float, constant: float | None, share: float | None
) -> None:
    content = situation(teacher=teacher, constant=constant)
    assert verdict.Results(content).share_of_teacher(0.85) == (share and pytest.approx(share))


def test_a_constant_is_compared_by_its_value_without_an_interval() -> None:
    for selects, teacher, is_weak in (
        ("max", 0.49, True), ("max", 0.5, True), ("max", 0.51, False),
        ("min", 0.49, False), ("min", 0.5, True), ("min", 0.51, True),
    ):  # fmt: skip
        content = situation(teacher=teacher, selects=selects)
        content["teacher"]["against_constant"] = None
        assert (verdict.Results(content).find_weakness() is not None) == is_weak
    strong = situation(**ERRORS, student=1.1, teacher=1.1, against_constant=difference(-10, -15, -5))
    assert (verdict.Results(strong).find_weakness(), verdict.Results(strong).find_constant()) == (None, None)


def test_the_card_of_a_baseline_says_that_it_learned_without_a_teacher() -> None:
    content = situation(baseline=None)
    content["student"]["untaught"] = difference(2.5, 1, 4)
    content["baseline_choice"] = {"trained": True, "reason": "baseline=true"}
    says(content, "The student learned without a teacher. On dev")
    assert report.summary_cells(content)[-1][0] == "baseline int8"


def test_a_run_without_a_student_or_a_metric_has_no_verdict() -> None:
    content = situation()
    assert describe_verdict(content | {"student": None}) == []
    content["student"]["metrics"] = {}
    assert render_headline(content) is None


def test_the_smallest_file_that_passed_is_recommended_else_the_smallest_undecided_one() -> None:
    sizes = [("fp32", 9, "a.onnx"), ("int8", 3, "b.onnx"), ("openvino", 1, "c.xml")]
    for gates, expected in (
        (("passed", "passed", "passed"), "int8"), (("passed", "undecided", "passed"), "fp32"),
        (("undecided", "undecided", "passed"), "int8"), (("undecided", "failed", "passed"), "fp32"),
        (("failed", "unchecked", "passed"), None), (("unchecked", "undecided", "failed"), "int8"),
    ):  # fmt: skip
        files = {
            name: {"gate": gate, "bytes": size, "file": file}
            for gate, (name, size, file) in zip(gates, sizes, strict=True)
        }
        assert verdict.recommend(files) == expected, gates


def test_the_teachers_own_file_is_the_fastest_at_the_same_batch_length_and_threads() -> None:
    content = with_own_file(situation())
    for change in ({"batch": 8}, {"length": 64}, {"threads": 1}):
        other = content["benchmark"][-1] | change | {"p50_ms": 0.1}
        assert "2.0x as fast as the teacher's own int8 file" in says(
            content | {"benchmark": [*content["benchmark"], other]}
        )
    rows = {row[0]: row for row in report.summary_cells(content)[1:]}
    assert rows["teacher int8"] == (
        "teacher int8", "20.0 M", "-", "-", "-", "60.0 MB", "5.00 ms", "4.0x", "1.0x",
    )  # fmt: skip
    assert rows["teacher fp32"][5:] == ("80.1 MB", "16.00 ms", "1.2x", "0.3x")
    assert rows["student int8"][5:] == ("10.0 MB", "2.50 ms", "8.0x", "2.0x")


def test_a_student_keeps_half_of_an_accuracy_twice_its_own_and_of_a_perplexity_half_its_own() -> None:
    assert verdict.Unit(less_is_better=False).share_kept(0.4, 0.8) == 0.5
    assert verdict.Unit(less_is_better=True).share_kept(20.0, 10.0) == 0.5


def test_every_row_of_the_terminal_table_is_one_line_of_120_columns() -> None:
    content = with_seeds(with_own_file(situation()))
    content["export"]["int8"] |= {"gate": "undecided", "reason": "dev is small"}
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(report.summary_table(content))
    lines = [line.split() for line in captured.get().splitlines()]
    assert all(" ".join(row).split() in lines for row in report.summary_cells(content)[1:])


def joint(*parts: dict[str, Any]) -> dict[str, Any]:
    """A record of several tasks, with the means of their metrics."""
    names = [f"task{number}" for number in range(len(parts))]
    content = situation()
    content |= {"export": {}, "comparison": {}, "shared": {}, "tasks": dict(zip(names, parts, strict=True))}
    content["task"] |= {"metric": "mean", "tasks": names}
    content["teacher"] = {"requested": "big", "resolved": "big", "metrics": {}}
    for model in ("teacher", "student", "baseline"):
        values = [part[model]["metrics"][part["task"]["metric"]] for part in parts]
        content[model] |= {"metrics": {"mean": sum(values) / len(values)}}
    return content


def test_several_tasks_have_a_verdict_each_and_points_where_one_share_means_nothing() -> None:
    worse = situation(baseline=0.9, against_baseline=difference(-5, -7, -3))
    content = joint(situation(against_baseline=difference(5, 3, 7)), worse)
    sentences = describe_verdict(content)
    assert sentences[:2] == [
        "task0: the teacher helps; task1: prefer the baseline.",
        "On dev (24 examples, which chose the checkpoint too) the student has mean 0.850, level with the same student "
        "trained without a teacher (0.850) and 5.0 points below its teacher (0.900; the student keeps 94.4% of it).",
    ]
    gates = "fp32 passed, int8 passed"
    assert report.summary_cells(content) == [
        ("task", "metric", "teacher", "student", "baseline", "points against baseline", "of the teacher (fp32)",
         "of the teacher (int8)", "gate"),
        ("task0", "accuracy on dev", "0.9000", "0.8500", "0.8000", "+5.0", "94.4%", "94.4%", gates),
        ("task1", "accuracy on dev", "0.9000", "0.8500", "0.9000", "-5.0", "94.4%", "94.4%", gates),
        ("mean", "on dev", "0.9000", "0.8500", "0.8500", "+0.0", "94.4%", "94.4%", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(("points", "place"), [(-2.5, "baseline/bundle"), (2.5, "bundle")])
def test_the_terminal_names_the_bundle_to_take(
    points: float, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = situation(against_baseline=difference(points, points - 1, points + 1))
    content["baseline"]["export"] = content["export"]
    anything: Any = SimpleNamespace(budget=SimpleNamespace(is_set=False))
    TaskRun("", anything, anything, Run(tmp_path, content), anything, {}, anything, anything).print_bundle()
    assert capsys.readouterr().out.endswith(f'Try it   python -m distill.edge {tmp_path / place} "a sentence"\n')


def test_an_interval_without_zero_is_a_difference_and_one_within_the_margin_none() -> None:
    for value, low, high, selects, expected in (
        (0.5, 0.0, 1.0, "max", "equal"), (0.5, 0.1, 1.5, "max", "better"), (-0.5, -1.5, -0.1, "min", "better"),
        (0, -1.1, 1.1, "max", "undecided"), (-1.0, -1.5, -0.5, "max", "worse"), (0, -1.0, 1.0, "min", "equal"),
    ):  # fmt: skip
        assert verdict.Unit(selects == "min").judge(difference(value, low, high), 0.01) == expected
    assert verdict.Unit(less_is_better=True).scale_margin(2.0, 30.0) == pytest.approx(0.6)
    assert verdict.Unit(less_is_better=False).scale_margin(2.0, 30.0) == pytest.approx(0.02)
