"""Tests that the terminal table, report.md and the model card show what run.json holds."""

import copy
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from rich.console import Console

from distill.records import report
from distill.records.headline import warn_of_text


def record(**changes: Any) -> dict[str, Any]:
    def timed(model: str, format: str, p50: float, length: int, size: int) -> dict[str, Any]:
        times = {"p50_ms": p50, "p90_ms": 2 * p50, "p99_ms": 3 * p50}
        shape = {"batch": 1, "length": length, "threads": 2, "runs": 9, "bytes": size}
        return {"model": model, "format": format, **shape, **times}

    def exported(file: str, size: int, accuracy: float, gate: str) -> dict[str, Any]:
        return {
            "file": file, "bytes": size, "max_abs_diff": 0.001, "max_probability_diff": 0.0004, "agreement": 1.0,
            "metrics": {"accuracy": accuracy}, "drop": 0.9 - accuracy, "gate": gate, "recipe": "a recipe",
        }  # fmt: skip

    content: dict[str, Any] = {
        "task": {
            "name": "toy", "answer": "classes", "pair": False, "metric": "accuracy",
            "examples": {"train": 64, "dev": 24},
        },
        "objective": {"name": "hinton", "terms": {"soft": {"weight": 0.5}, "hard": {"weight": 0.5}}},
        "teacher": {
            "requested": "big", "resolved": "big", "substituted": False, "parameters": 20_000_000,
            "metrics": {"accuracy": 0.9},
        },
        "student": {"name": "small", "parameters": 10_000_000, "metrics": {"accuracy": 0.9}},
        "baseline": None,
        "training": {"steps": 8, "seconds": 1.0, "precision": "32-true", "examples_per_second": 64.0,
                     "tokens_per_second": 2000.0, "padding": 0.1, "teacher_seconds": 0.0, "teacher_cache": None},
        "export": {
            "fp32": exported("model.onnx", 40_000_000, 0.9, "passed"),
            "int8": exported("model.int8.onnx", 10_000_000, 0.81, "failed"),
        },
        "benchmark": [
            timed("teacher", "torch", 99.0, 128, 80_000_000),
            timed("teacher", "torch", 20.0, 32, 80_000_000),
            timed("teacher", "onnx-fp32", 16.0, 32, 80_100_000),
            timed("student", "onnx-fp32", 8.0, 32, 40_000_000),
            timed("student", "onnx-int8", 2.5, 32, 10_000_000),
        ],
        "environment": {
            "cpu": "a processor", "isa": ["AVX2"], "cores": 2, "torch": "2", "transformers": "5", "onnxruntime": "1",
            "python": "3",
        },
    }  # fmt: skip
    return content | changes


def test_types_that_a_split_has_are_rows() -> None:
    def scored(accuracy: float) -> dict[str, Any]:
        return {"city": {"accuracy": accuracy, "number": 1200}, "day": {"accuracy": 0.0, "number": 0}}

    text = report.render_report(record(breakdown={"dev": {"teacher": scored(0.75), "student": scored(0.5)}}))
    assert "| city | 1,200 | 0.7500 | 0.5000 |" in text
    assert "| day |" not in text


def test_sets_that_select_nothing_have_a_table_with_the_share_of_the_teachers_metric() -> None:
    content = record()
    content["task"]["examples"] |= {"test": 0, "de": 5010, "es": 20}
    for model, (german, spanish) in {
        "teacher": (0.8, 0.0), "student": (0.76, 0.1), "fp32": (0.76, 0.1), "int8": (0.7, 0.0),
    }.items():  # fmt: skip
        owner = content["export"][model] if model in content["export"] else content[model]
        owner["metrics"] = {**owner["metrics"], "de/accuracy": german, "es/accuracy": spanish}
    text = report.render_report(content)
    assert "## Transfer\n\naccuracy on sets that selected nothing, and in brackets the share of the teacher's" in text
    assert "| set | examples | teacher | student (torch) | student fp32 | student int8 |" in text
    assert "| dev | 24 | 0.9000 | 0.9000 (100.0%) | 0.9000 (100.0%) | 0.8100 (90.0%) |" in text
    assert "| de | 5,010 | 0.8000 | 0.7600 (95.0%) | 0.7600 (95.0%) | 0.7000 (87.5%) |" in text
    assert "| es | 20 | 0.0000 | 0.1000 | 0.1000 | 0.0000 |" in text
    assert report.transfer_sentences(content) == [
        "On de (5,010 examples): teacher 0.8000, student (torch) 0.7600 (95.0%), student fp32 0.7600 (95.0%), student "
        "int8 0.7000 (87.5%)",
        "On es (20 examples): teacher 0.0000, student (torch) 0.1000, student fp32 0.1000, student int8 0.0000",
        "The mean of 2 sets: teacher 0.4000, student (torch) 0.4300 (107.5%), student fp32 0.4300 (107.5%), student "
        "int8 0.3500 (87.5%)",
    ]
    assert "| set | examples | model |" in report.render_report({**content, "student": None, "export": {}})
    assert "## Transfer" not in report.render_report(record())
    assert report.transfer_sentences(record()) == []


def test_texts_that_are_left_to_the_teacher_have_their_accuracy_and_costs() -> None:
    content = record()
    content["export"]["fp32"]["escalate"] = [
        {"share": share, "threshold": 0.5 + share, "left": {"dev": left, "test": 0.5},
         "accuracy": {"dev": accuracy, "test": 0.5}, "interval": [accuracy - 0.1, 1.0]}
        for share, left, accuracy in ((0.0, 0.0, 0.9), (0.1, 0.0833, 0.9167))
    ]  # fmt: skip
    text = report.render_report(content)
    assert (
        "## What is left to the teacher\n\nAt 10% left to the teacher: 91.7% of the predictions are right (81.7" in text
    )
    assert "| left to the teacher | accuracy on dev | 95% interval | accuracy on test | calls saved | $ a mil" in text
    assert "| 0% | 0.9000 | 0.8000 to 1.0000 | 0.5000 | 100.0% | - | 8.00 |" in text
    assert "| 10% | 0.9167 | 0.8167 to 1.0000 | 0.5000 | 91.7% | - | 9.67 |" in text  # 8 + 0.0833 * 20 ms, in torch.
    content["teacher"] |= {"dollars_per_million_texts": 300.0, "milliseconds": 600.0}
    text = report.render_report(content)
    assert "| 100.0% | 0.00 | 8.00 |" in text
    assert "| 91.7% | 24.99 | 57.98 |" in text
    untimed = report.render_report({**content, "benchmark": []})
    assert "| 91.7% | 24.99 | - |" in untimed
    content["export"]["fp32"]["escalate"][1]["interval"] = None
    content["export"]["fp32"]["escalate"][0]["interval"] = None
    assert "left to the teacher" not in report.render_report(content)
    assert "left to the teacher" not in report.render_report(record())


def test_both_metrics_of_sentences_that_are_given_as_words_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    task = record()["task"] | {"splitter": "edges", "split_differently": {"dev": 0.25, "test": 0.5}}
    scored = {"accuracy": 0.9, "text_accuracy": 0.895, "test/accuracy": 0.8, "test/text_accuracy": 0.5}
    export = {"fp32": record()["export"]["fp32"] | {"metrics": scored}}
    content = record(task=task, export=export)
    assert "| model.onnx | test | 0.8000 | 0.5000 | 50.0% |" in report.render_report(content)
    warn_of_text(task, export)  # Of dev they differ by less than a point.
    assert " ".join(capsys.readouterr().out.split()) == (
        "Notice: model.onnx has accuracy 0.5000 on the plain text of test, and 0.8000 on its words, because it splits "
        "50.0% of the sentences into other words than the data has; report.md has both of every file"
    )
    warn_of_text(record()["task"], record()["export"])
    assert capsys.readouterr().out == ""


def test_stages_have_their_seconds() -> None:
    text = report.render_report(record(seconds={"data": 0.4, "training": 1234.5, "total": 1300.0}))
    assert "- Stages: data 0 s, training 1,234 s\n" in text


def language_model_record(**changes: Any) -> dict[str, Any]:
    """A record without an export: every model has several metrics, and the student more than its teacher."""
    return record(
        task={
            "name": "mlm", "answer": "vocabulary", "metric": "perplexity", "packing": "full_sentences",
            "masking": "dynamic", "max_length": 128, "examples": {"train": 640, "dev": 240},
        },
        teacher=record()["teacher"] | {"metrics": {"loss": 2.0, "perplexity": 7.389}},
        student=record()["student"] | {"metrics": {"loss": 2.3, "perplexity": 9.974, "agreement_top1": 0.5}},
        export={}, benchmark=[],
    ) | changes  # fmt: skip


def card_of(content: dict[str, Any], labels: list[str]) -> ModelCard:
    return ModelCard(report.render_model_card(content, labels))


def several_seeds() -> dict[str, Any]:
    """A record with three seeds: mean and deviation of the students, and differences from baseline and teacher."""
    files = {"fp32": {"mean": 0.855, "std": 0.0123}, "int8": {"mean": 0.81, "std": 0.02}}
    baseline = {"metrics": {"accuracy": 0.8}, "seconds": 1.0}
    single = record()
    entry = {"metrics": {"accuracy": 0.86}, "export": single["export"], "baseline": baseline}
    compared = {"difference": 0.008, "interval": [0.002, 0.014], "p": 0.0213, "over": "seeds", "number": 3}
    against = {"difference": -0.045, "interval": None, "p": None, "over": "seeds", "number": 3}
    return record(
        baseline=baseline, seeds=[entry | {"seed": seed} for seed in (4, 5, 6)],
        comparison={"teacher": against, "baseline": compared},
        summary={
            "accuracy": {"mean": 0.86, "std": 0.01, "files": files, "baseline": {"mean": 0.84, "std": 0.005}},
        },
    )  # fmt: skip


def test_several_seeds_are_shown_as_mean_and_deviation() -> None:
    content = several_seeds()
    assert [row[:4] for row in report.summary_cells(content)[1:]][2:] == [
        ("baseline, no teacher", "10.0 M", "0.8400 ± 0.0050", "93.3%"),
        ("student fp32", "10.0 M", "0.8550 ± 0.0123", "95.0%"),
        ("student int8 (gate failed)", "10.0 M", "0.8100 ± 0.0200", "90.0%"),
    ]
    assert "| 5 | 0.8600 | 0.9000 | 0.8100 | 0.8000 |" in report.render_report(content)
    assert "With the teacher: +0.8 points of accuracy, 95% interval +0.2 to +1.4, 3 seeds on dev, p = 0.021." in (
        report.comparison_sentences(content)
    )
    baseline = content["baseline"] | {"export": {"fp32": content["export"]["fp32"]}}  # Of the first seed.
    rows = report.summary_cells(content | {"baseline": baseline})[1:]
    assert ("baseline fp32", "10.0 M", "-", "-") in [row[:4] for row in rows]
    without_export = content | {"export": {}, "seeds": [entry | {"export": {}} for entry in content["seeds"]]}
    assert ("student", "10.0 M", "0.8600 ± 0.0100") in report.summary_cells(without_export)[1:]


def test_comparison_over_examples_and_of_a_metric_of_which_less_is_better() -> None:
    difference = {"difference": -1.5, "interval": [-2.0, -1.0], "p": 0.0002, "over": "examples", "number": 1200}
    task = {"metric": "perplexity", "selects": "min"}
    assert report.describe_difference(difference, task) == (
        "-1.500 in perplexity (less is better), 95% interval -2.000 to -1.000, 1,200 dev examples, p < 0.001"
    )


def test_without_an_export_there_are_all_metrics_of_every_model_and_no_files_and_no_latency() -> None:
    content = language_model_record(baseline={"metrics": {"loss": 2.5}})
    assert report.summary_cells(content)[0] == ("", "parameters", "loss", "perplexity", "agreement_top1")
    assert report.summary_cells(content)[1:] == [
        ("teacher", "20.0 M", "2.0000", "7.3890", "-"),
        ("baseline, no teacher", "10.0 M", "2.5000", "-", "-"),
        ("student", "10.0 M", "2.3000", "9.9740", "0.5000"),
    ]
    text = report.render_report(language_model_record())
    sections = [line for line in text.splitlines() if line.startswith("#")]
    assert sections == ["# small from big on mlm", "## Training", "## Environment"]
    assert "64 sequences/s, 2,000 tokens/s" in text
    assert "latency was measured" not in text
    assert "agreement_top5" not in text


def test_a_teacher_trained_without_a_student_is_compared_with_its_start() -> None:
    teacher = language_model_record()["teacher"] | {"before": {"loss": 4.0, "perplexity": 54.598}}
    content = language_model_record(student=None, teacher=teacher)
    assert report.summary_cells(content)[1:] == [
        ("model, before training", "20.0 M", "4.0000", "54.5980"),
        ("model", "20.0 M", "2.0000", "7.3890"),
    ]
    assert report.render_report(content).startswith("# big on mlm\n")
    assert report.summary_cells(content | {"teacher": teacher | {"before": None}})[1][0] == "model"


def test_a_narrow_terminal_shows_the_first_metrics_of_a_run_without_an_export() -> None:
    content = language_model_record() | {"export": {}}
    metrics = {f"metric_number_{number}": 0.1234 for number in range(8)}
    content["student"]["metrics"] = content["student"]["metrics"] | metrics
    console = Console(width=60)
    with console.capture() as captured:
        console.print(report.summary_table(content))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 60
    shown = " ".join(captured.get().split())
    columns = report.summary_cells(content)[0]
    assert "loss perplexity" in shown
    assert columns[-1] == "metric_number_7"
    assert columns[-1] not in shown


def test_a_teacher_that_was_timed_in_torch_alone_has_a_speed_up_of_torch() -> None:
    rows = record()["benchmark"]
    in_torch = record(benchmark=[row for row in rows if row["model"] == "student" or row["format"] == "torch"])
    assert report.summary_cells(in_torch)[1][4:] == ("80.0 MB", "20.00 ms", "1.0x")
    for text in (report.render_report(in_torch), report.render_model_card(in_torch, ["no", "yes"])):
        assert "p50 and speed-up are for batch 1 and length 32" in text
        assert "The speed-up is relative to the teacher in torch.\n" in text


def test_documents_name_a_substitute_teacher() -> None:
    teacher = record()["teacher"] | {"requested": "bert_base", "resolved": "embedded", "substituted": True}
    content = record(teacher=teacher)
    for text in (report.render_report(content), report.render_model_card(content, ["no", "yes"])):
        assert "The weights of bert_base were not available." in text
        assert "> embedded is the teacher of this run" in text


def test_a_card_has_the_licence_that_all_teachers_have() -> None:
    for second, expected in (("bert-large-uncased", "apache-2.0"), ("other", None)):
        members = [{"resolved": f"google-bert/{name}"} for name in ("bert-base-uncased", second)]
        content = record(teacher=record()["teacher"] | {"members": members})
        assert card_of(content, ["no", "yes"]).data.license == expected


def test_a_card_has_the_results_of_every_split() -> None:
    several = record()
    several["task"]["examples"]["test"] = 12
    for model in (several["teacher"], several["student"], *several["export"].values()):
        model["metrics"]["test/accuracy"] = 0.7
    results = card_of(several, ["no", "yes"]).data.eval_results
    assert [(r.dataset_split, r.metric_name, r.metric_value) for r in results] == [
        ("test", "accuracy (model.onnx)", 0.7), ("test", "accuracy (model.int8.onnx)", 0.7),
        ("dev", "accuracy (model.onnx)", 0.9), ("dev", "accuracy (model.int8.onnx)", 0.81),
    ]  # fmt: skip


@pytest.mark.parametrize("make", [record, language_model_record])
def test_a_missing_value_is_never_shown_as_none(make: Any) -> None:
    """Sets every value of the record to None, one at a time, except the ones that every record has."""
    required = {"name", "resolved", "metrics", "gate", "file", "bytes", "model", "format", "batch", "length", "p50_ms"}

    def paths(part: Any, *path: Any) -> Any:
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield from paths(value, *path, key) if isinstance(value, dict | list) else [(*path, key)]

    checked = 0
    for *parents, last in paths(make()):
        if required & {last, *parents} or (parents, last) == (["task"], "metric"):
            continue
        content = copy.deepcopy(make())
        part: Any = content
        for key in parents:
            part = part[key]
        part[last] = None
        for text in (report.render_report(content), report.render_model_card(content, ["no", "yes"])):
            assert "None" not in text, (parents, last)
        checked += 1
    assert checked > 20


def test_the_header_of_a_card_has_the_names_of_the_hub() -> None:
    content = record(teacher=record()["teacher"] | {"metrics": {"matthews": 0.5}})
    content["task"] |= {"hub_id": "nyu-mll/glue:cola", "metric": "matthews"}
    for exported in content["export"].values():
        exported["metrics"] = {"matthews": 0.412345}
    header = yaml.safe_load(report.render_model_card(content, ["no", "yes"]).split("---\n")[1])
    assert (header["datasets"], header["metrics"]) == (["nyu-mll/glue"], ["matthews_correlation"])
    [result] = header["model-index"][0]["results"]
    assert result["dataset"] == {"name": "toy", "type": "nyu-mll/glue", "config": "cola", "split": "dev"}
    metric = {"type": "matthews_correlation", "value": 0.4123, "name": "matthews (model.onnx)"}
    assert result["metrics"][0] == metric
    number = record(task=record()["task"] | {"answer": "number"})  # Of an earlier version.
    assert "Predicts a number: score." in report.render_model_card(number, ["score"])


def test_the_report_says_that_a_training_stopped_early() -> None:
    text = report.render_report(record(training=record()["training"] | {"stopped_early": 8}))
    assert "- Stopped early: at step 8, because accuracy on dev no longer improved\n" in text
    assert "- Teacher outputs: none needed\n" in text


def test_times_of_a_busy_machine_are_named_as_such() -> None:
    content = record()
    quiet = report.render_report(content)
    assert "## Latency" in quiet
    assert "busy" not in quiet
    content["benchmark"][1]["disturbed"] = True
    text = report.render_report(content)
    assert "Other work kept the machine busy during 1 of these 5 timings: they may be wrong by far." in text
