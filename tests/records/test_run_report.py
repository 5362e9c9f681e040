"""Tests of the report of one run: curves, calibration, confusion, differences and figures."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.core.errors import UserError
from distill.kinds.scoring import expected_calibration_error
from distill.records import plots, prediction_analysis
from distill.records.pages import write_report
from distill.records.plots import read_curves
from distill.records.prediction_analysis import analyze_predictions
from distill.records.schema import read_record
from distill.training.statistics import Estimate
from tests.records.test_collection_report import CLASSES, report_of, save, save_sweep, write_predictions
from tests.records.test_report import record


def test_predictions_are_compared_on_dev(tmp_path: Path) -> None:
    found = analyze_predictions(write_predictions(tmp_path, CLASSES))
    assert found is not None
    assert (found.model, found.number, found.agreement, found.lengths) == ("int8", 4, 0.5, [2, 1, 3, 1])
    assert found.confusion is not None
    assert (found.classes, found.confusion.tolist()) == (["no", "yes"], [[1, 1], [1, 1]])
    # Differing predictions first, the surest ones at the top; then the others by their probabilities.
    assert [difference.index for difference in found.differences] == [2, 3, 1, 0]
    # Each of the four probabilities is in a bin of its own, as in the calibration error of the gate.
    calibration = found.calibration["int8"]
    assert calibration.accuracy == [1.0, 0.0, 1.0, 0.0]
    assert calibration.confidence == pytest.approx([0.5, 0.55, 0.91, 0.99])
    assert calibration.error == pytest.approx((0.5 + 0.55 + 0.09 + 0.99) / 4)
    probabilities, right = np.array([0.91, 0.5, 0.99, 0.55]), np.array([True, True, False, False])
    assert calibration.error == pytest.approx(expected_calibration_error(probabilities, right))


@pytest.mark.usefixtures("drawn")
def test_stars_are_in_their_order_in_the_confusion(tmp_path: Path) -> None:
    labels = ["10", "9", "1", "2"]
    columns = {"split": ["dev"] * 4, "index": [0, 1, 2, 3], "label": labels}
    columns |= {f"{model}_{of}": values for model in ("teacher", "int8")
                for of, values in (("prediction", [*labels[:3], "10"]), ("probability", [0.9] * 4))}  # fmt: skip
    path = save(tmp_path / "run")
    found = analyze_predictions(write_predictions(path, columns))
    assert found is not None
    assert list(found.classes) == ["1", "2", "9", "10"]
    html = write_report(path, read_record(path)).read_text()
    [table] = re.findall(r"<th>label</th>(.*?)</table>", html, flags=re.S)
    assert re.findall(r"<th[^>]*>(\d+)</th>", table) == ["1", "2", "9", "10"]
    assert re.findall(r"<tr>\s*<td[^>]*>(\d+)</td>", table) == ["1", "2", "9", "10"]
    confusion = html[html.index('aria-label="Confusion of') :]
    assert re.findall(r">(1|2|9|10)</text>", confusion.partition("</figure>")[0])[:4] == ["1", "2", "9", "10"]


def test_numbers_tags_and_runs_without_texts_are_compared_too(tmp_path: Path) -> None:
    numbers = {"split": ["dev"] * 2, "index": [0, 1], "label": [1.0, 2.0], "teacher_prediction": [1.5, 2.0]}
    numbers |= {"student_prediction": [1.0, 4.0]} | {f"{of}_probability": [None] * 2 for of in ("teacher", "student")}
    found = analyze_predictions(write_predictions(tmp_path, numbers))
    assert found is not None
    assert found.numbers is not None
    assert (found.agreement, found.confusion, found.calibration, found.lengths) == (None, None, {}, [])
    assert [(difference.index, difference.texts) for difference in found.differences] == [(1, {}), (0, {})]
    tags = {"split": ["dev"], "index": [0], "label": [["O", "B"]], "teacher_prediction": [["O", "B"]]}
    tags |= {"int8_prediction": [["O", "O"]], "teacher_probability": [[0.9, 0.9]], "int8_probability": [[0.8, 0.6]]}
    found = analyze_predictions(write_predictions(tmp_path, tags))
    assert found is not None
    assert found.confusion is not None
    assert (found.classes, found.confusion.tolist()) == (["B", "O"], [[0, 1], [0, 1]])
    assert found.differences[0].student_probability == pytest.approx(0.7)


def test_questions_rightly_left_unanswered_count(tmp_path: Path) -> None:
    """Both models leave the first question unanswered, which no answer is right for."""
    questions: dict[str, list[Any]] = {
        "split": ["dev"] * 4, "index": [0, 1, 2, 3], "label": [None, None, ["the Turing", "Alan"], ["1950"]],
        "teacher_prediction": [None, "a", "turing", "1950"], "teacher_probability": [0.95, 0.9, 0.8, 0.6],
        "int8_prediction": [None, None, "Turing", "51"], "int8_probability": [0.95, 0.95, 0.95, 0.95],
    }  # fmt: skip
    found = analyze_predictions(write_predictions(tmp_path, questions), answer="spans")
    assert found is not None
    assert (found.number, found.agreement, found.confusion) == (4, 0.25, None)
    # The first three are right: an answer is compared with each correct one as SQuAD's metrics do.
    assert (found.calibration["int8"].accuracy, found.calibration["int8"].number) == ([0.75], [4])
    assert found.calibration["teacher"].mean_accuracy() == 0.75
    documents: dict[str, list[Any]] = {  # Of a retrieval set, whose documents are asked nothing.
        "split": ["dev"] * 2, "index": [0, 1], "label": [["d1"], None],
        "teacher_prediction": [["d1"], None], "teacher_probability": [None, None],
        "int8_prediction": [["d2"], None], "int8_probability": [None, None],
    }  # fmt: skip
    found = analyze_predictions(write_predictions(tmp_path, documents))
    assert found is not None
    assert (found.number, found.agreement, found.calibration) == (1, 0.0, {})


def test_each_given_label_of_a_set_is_an_item_whatever_stands_beside_it(tmp_path: Path) -> None:
    """The second example was given two labels, and has other two, so that one of both is right."""
    sets: dict[str, list[Any]] = {
        "split": ["dev"] * 3, "index": [0, 1, 2], "label": [["a"], ["b", "c"], []],
        "teacher_prediction": [["a"], ["a", "b"], []], "teacher_probability": [[0.95], [0.95, 0.75], []],
        "int8_prediction": [["a"], ["a", "b"], ["c"]], "int8_probability": [[0.95], [0.95, 0.95], [0.95]],
    }  # fmt: skip
    found = analyze_predictions(write_predictions(tmp_path, sets), answer="labels")
    assert found is not None
    assert (found.agreement, found.confusion) == (2 / 3, None)
    assert (found.calibration["int8"].accuracy, found.calibration["int8"].number) == ([0.5], [4])
    assert found.calibration["teacher"].mean_accuracy() == pytest.approx(2 / 3)
    # One of two at 0.95 is right, and the one at 0.75.
    assert found.calibration["teacher"].error == pytest.approx((2 * 0.45 + 0.25) / 3)


def test_damaged_predictions_are_a_notice_of_a_report(tmp_path: Path) -> None:
    save_sweep(tmp_path)
    path = tmp_path / "1"
    (path / "predictions.parquet").write_bytes(b"no parquet")
    assert "predictions.parquet is damaged" in write_report(path, read_record(path)).read_text()
    text = report_of(tmp_path)
    assert "> **Notice.** " in text
    assert "predictions.parquet is damaged" in text
    assert "## Predictions of" not in text
    write_predictions(path, {"split": ["dev"], "index": [0], "int8_prediction": ["a"]})
    with pytest.raises(UserError, match="it has no column int8_probability"):
        analyze_predictions(path)


def test_a_run_has_its_predictions_and_its_command_in_both_forms(tmp_path: Path) -> None:
    path = write_predictions(save(tmp_path / "run", command=["python", "-m", "distill", "task.text=[a, b]"]), CLASSES)
    page = write_report(path, read_record(path))
    text = (path / "report.md").read_text()
    for line in (
        "The agreement of the two is 0.5000.",
        "| 2 | d e f | yes | yes (0.80) | no (0.99) |",
        r"| 3 | \<i>\|\*g\* | no | no (0.60) | yes (0.55) |",
        "    python -m distill 'task.text=[a, b]'",
    ):
        assert line in text
    html = page.read_text()
    assert "&lt;i&gt;|*g*" in html
    assert html.count("<figure") == 5  # Models, cost, calibration, confusion, lengths.


def test_curves_join_the_files_of_a_resumed_run_and_leave_out_what_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / "metrics.before-1.csv").write_text("epoch,step,train/soft,dev/accuracy\n0,4,2.0,\n0,8,1.5,\n0,")
    (tmp_path / "metrics.csv").write_text("epoch,step,train/soft,dev/accuracy\n0,8,1.25,\n1,12,nan,0.5\n")
    assert read_curves(tmp_path) == {"train/soft": [(4, 2.0), (8, 1.25)], "dev/accuracy": [(12, 0.5)]}
    assert read_curves(tmp_path / "nowhere") == {}


def test_a_point_that_costs_more_for_the_same_metric_is_not_on_the_pareto_front() -> None:
    values = [(3.0, 0.9), (2.0, 0.7), (1.0, 0.5), (1.0, 0.7), (3.0, 0.9), (4.0, 0.9)]
    for sign in (1.0, -1.0):
        points = [plots.Point(cost, sign * metric, "") for cost, metric in values]
        front = plots.find_pareto(points, lower_is_better=sign < 0)
        assert [(point.cost, sign * point.metric) for point in front] == [(1.0, 0.7), (3.0, 0.9)]


def test_points_within_noise_of_the_front_are_not_behind_it() -> None:
    """The third point costs more than the first one and is worse by more than both bars, the second one by less."""
    values = [(1.0, 0.8, (0.75, 0.85)), (2.0, 0.75, (0.7, 0.8)), (3.0, 0.7, (0.65, 0.75)), (4.0, 0.1, None)]
    points = [plots.Point(cost, metric, "", interval) for cost, metric, interval in values]
    assert [point.cost for point in plots.find_behind(points)] == [3.0]
    mirrored = [
        plots.Point(of.cost, -of.metric, "", of.interval and (-of.interval[1], -of.interval[0])) for of in points
    ]
    assert [point.cost for point in plots.find_behind(mirrored, lower_is_better=True)] == [3.0]
    drawn = plots.draw_cost(points, metric="accuracy", cost="ms", caption="Cost")
    assert drawn.caption == "Cost; faint points are behind the Pareto front beyond noise"
    near = plots.draw_cost(points[:2], metric="accuracy", cost="ms", caption="Cost")
    assert near.caption == "Cost; no point is behind the Pareto front beyond noise"
    unknown = plots.draw_cost(points[3:], metric="accuracy", cost="ms", caption="Cost")
    assert unknown.caption == "Cost"


def test_an_axis_shows_all_values_and_cuts_wide_intervals() -> None:
    assert plots.find_range([0.5, 0.6], [0.45, 0.65]) == (pytest.approx(0.44), pytest.approx(0.66), False)
    low, high, is_cut = plots.find_range([0.5, 0.6], [0.0, 1.0])
    assert is_cut
    assert 0.0 < low < 0.5 < 0.6 < high < 1.0
    assert plots.find_range([0.5], [])[:2] == (0.475, 0.525)


@pytest.mark.usefixtures("drawn")
def test_the_first_figure_has_every_model_with_its_interval(tmp_path: Path) -> None:
    scored = {"accuracy": 0.9, "test/accuracy": 0.8}
    export = record()["export"]
    for file in export.values():
        file["metrics"] = scored
    constant = {"answer": "always yes", "metrics": {"accuracy": 0.5, "test/accuracy": 0.55}}
    path = save(
        tmp_path / "run", export=export, task=record()["task"] | {"examples": {"dev": 24, "test": 100}},
        teacher=record()["teacher"] | {"metrics": scored, "constant": constant},
        student=record()["student"] | {"metrics": scored}, baseline={"metrics": scored | {"test/accuracy": 0.7}},
    )  # fmt: skip
    html = write_report(path, read_record(path)).read_text()
    first, cost = html.split("<figure")[1:3]
    names = ("teacher", "always yes", "baseline, no teacher", "student in torch", "student fp32", "student int8")
    assert all(f">{name}</text>" in first for name in names)
    assert all(f">{value}</text>" in first for value in ("0.8000", "0.5500", "0.7000", "accuracy on test"))
    assert "accuracy on test of every model; bars are 95% intervals: Wilson&#39;s score over 100 examples" in first
    assert ">baseline&#39;s metric</text>" in cost.replace("'s", "&#39;s")
    assert "accuracy on test against latency: batch 1, length 32" in cost
    assert "bars are 95% intervals: Wilson&#39;s score over 100 examples" in cost


@pytest.mark.usefixtures("drawn")
def test_a_run_has_its_metric_and_its_time_by_the_length_of_the_text(tmp_path: Path) -> None:
    groups = {"540 to 1,024": {"number": 41.0, "accuracy": 0.9}, "1,025 to 2,900": {"number": 20.0}}
    lengths = {"dev": {"teacher": groups, "int8": groups}}
    timings = [row | {"length": length} for row in record()["benchmark"] for length in (512, 1024, 2048)]
    path = save(tmp_path / "run", lengths=lengths, benchmark=timings)
    html = write_report(path, read_record(path)).read_text()
    text = (path / "report.md").read_text()
    assert "## accuracy by length in tokens\n\nOn dev:\n\n| length in tokens | number | teacher | int8 |" in text
    assert "| 540 to 1,024 | 41 | 0.9000 | 0.9000 |" in text
    assert "| 1,025 to 2,900 | 20 | - | - |" in text
    by_length, cost = html.split("<h2>accuracy by length")[1].split("<h2>Latency")
    assert "accuracy on dev by the length of an example in tokens" in by_length
    assert "p50 latency against the length of a text, both on logarithmic axes: batch 1, 2 threads" in cost
    assert all(f">{tick}</text>" in cost for tick in ("512", "1,024", "2,048"))


def test_times_at_two_lengths_have_no_figure_against_the_length() -> None:
    shape = {"model": "student", "format": "torch", "batch": 1, "threads": 2}
    rows = [{**shape, "length": length, "p50_ms": 1.0} for length in (32, 128)]
    assert prediction_analysis.draw_cost_by_length(rows) is None


@pytest.mark.usefixtures("drawn")
def test_a_figure_has_the_colours_of_paper_after_one_of_a_page() -> None:
    """matplotlib keeps the colours that it has looked up, and a page has marks in their place."""
    figure = prediction_analysis.draw_lengths([1, 2])
    assert figure.create_canvas().get_facecolor() == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 24), (3, 27), (0, 600)])
def test_every_bar_of_lengths_has_as_many_numbers(shortest: int, longest: int) -> None:
    """Before, bars of one and of two numbers took turns, and equally frequent lengths had every other bar lower."""
    edges = prediction_analysis.bin_lengths(shortest, longest)
    counts, _ = np.histogram(np.arange(shortest, longest + 1), edges)
    assert len(set(np.diff(edges))) == 1
    assert len(set(counts[:-1])) <= 1
    assert counts.sum() == longest - shortest + 1
    assert len(counts) <= 24


@pytest.mark.usefixtures("drawn")
def test_figures_of_several_seeds_name_them(tmp_path: Path) -> None:
    seeds = [
        {"seed": seed, "metrics": {"accuracy": value}, "export": {}, "baseline": {"metrics": {"accuracy": value - 0.1}}}
        for seed, value in ((3, 0.7), (4, 0.8), (5, 0.75))
    ]
    path = save(tmp_path / "run", seeds=seeds, export={}, benchmark=[])
    html = write_report(path, read_record(path)).read_text()
    assert "bars are 95% intervals: Student&#39;s t over 3 seeds (3, 4, 5), and Wilson&#39;s score over 24" in html
    seeds_figure = html[html.index("accuracy on dev of 3 seeds (3, 4, 5), with the mean") :]
    assert ">baseline</text>" in seeds_figure


def test_only_parameters_that_were_varied_have_a_figure() -> None:
    def settings(*values: tuple[int, int]) -> list[plots.Setting]:
        return [plots.Setting({"a": a, "b": b}, 0.5) for a, b in values]

    assert plots.is_varied(settings((1, 1), (2, 1)), "a")
    assert not plots.is_varied(settings((1, 1), (2, 2)), "a")
    assert plots.order_values([2, 10, 1, 2]) == [1, 2, 10]
    assert plots.order_values(["b", None, "b", 1]) == ["b", None, 1]


@pytest.mark.usefixtures("drawn")
def test_every_figure_is_drawn_with_any_names() -> None:
    name = "_<b>&$x$ \x00" + "long " * 30
    settings = [plots.Setting({name: a, "b": b}, 0.5 + a / 10, (0.1, 0.2)) for a in (1, 2) for b in ("x", None)]
    estimates = {name: Estimate(0.5, (0.4, 0.6), "seeds"), "b": Estimate(0.5, None, "examples")}
    drawn = [
        prediction_analysis.draw_seeds({name: [0.5, 0.6], "b": [0.5]}, metric=name, teacher=0.7, caption=name),
        prediction_analysis.draw_models(estimates, metric=name, split="dev", bars=""),
        plots.draw_losses({f"train/{name}": [(step, 1 / step) for step in range(1, 999)], "train/b": [(1, 0.0)]}),
        plots.draw_dev([(1, 0.5)], metric=name),
        prediction_analysis.draw_confusion([name, "b"], np.array([[3, 0], [0, 0]]), model=name),
        prediction_analysis.draw_numbers(np.array([[1.0, 1.0]]), model=name),
        prediction_analysis.draw_lengths([0]),
        prediction_analysis.draw_by_length({name: {name: {name: 0.5, "number": 3}}}, metric=name, split="dev"),
        prediction_analysis.draw_cost_by_length(
            [{"model": name, "format": name, "batch": 1, "threads": 2, "length": n, "p50_ms": 1.0} for n in (1, 2, 3)]
        ),
        plots.draw_cost([plots.Point(2.0, 0.5, name)], metric=name, cost="ms", caption=name, references={name: 0.6}),
        plots.draw_parameter(settings, name, metric=name, caption=name, references={name: 0.5}),
        plots.draw_parameter(settings, "b", metric=name, caption=name),
        plots.draw_heat_map(settings, (name, "b"), caption=name),
    ]
    for figure in drawn:
        assert figure is not None
        assert figure.svg.startswith("<svg ")
        assert "<b>" not in figure.svg
        assert "mathdefault" not in figure.svg
    again = prediction_analysis.draw_lengths([0])
    assert again in drawn
    assert plots.label_axes("_a\x00b") == " _a b"
