"""From run.json to what people read: the closing table, report.md, the bundle's model card."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

Record = Mapping[str, Any]
COLUMNS = ("", "parameters", "metric", "of the teacher", "size", "p50", "speed-up")


def summary_rows(record: Record) -> list[tuple[str, ...]]:
    """The closing table: teacher, student, student int8 and, if there is one, the baseline, in `COLUMNS`."""
    metric = record["task"]["metric"]
    teacher, student = record["teacher"], record["student"]
    teacher_metric = teacher["metrics"][metric]
    base = timing(record, "teacher", "torch")

    def row(name: str, parameters: int, value: float, fast: Record | None, size: int | None) -> tuple[str, ...]:
        share = f"{value / teacher_metric:.1%}" if teacher_metric > 0 else "-"
        p50 = f"{fast['p50_ms']:.2f} ms" if fast else "-"
        speed = f"{base['p50_ms'] / fast['p50_ms']:.1f}x" if base and fast else "-"
        return (name, f"{parameters / 1e6:.1f} M", f"{value:.4f}", share, _megabytes(size), p50, speed)

    teacher_file = timing(record, "teacher", "onnx-fp32")
    size = teacher_file["bytes"] if teacher_file else None
    rows = [row("teacher (torch)", teacher["parameters"], teacher_metric, base, size)]
    for name, exported in record["export"].items():
        fast = timing(record, "student", f"onnx-{name}")
        mark = "" if exported["gate"] == "passed" else " (gate failed)"
        value = exported["metrics"][metric]
        rows.append(row(f"student {name}{mark}", student["parameters"], value, fast, exported["bytes"]))
    if record["baseline"] is not None:
        value = record["baseline"]["metrics"][metric]
        rows.append(row("baseline, no teacher (torch)", student["parameters"], value, None, None))
    return rows


def timing(record: Record, model: str, format: str) -> Record | None:
    """The benchmark's row at its smallest batch and length."""
    rows = [row for row in record["benchmark"] if row["model"] == model and row["format"] == format]
    return min(rows, key=lambda row: (row["batch"], row["length"]), default=None)


def summary_table(record: Record) -> Table:
    """The closing table for a terminal."""
    if not record["export"]:
        return language_model_table(record)
    table = Table(title=_caption(record), title_justify="left", title_style="bold")
    for column in _columns(record):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for row in summary_rows(record):
        table.add_row(*row)
    return table


def markdown(record: Record) -> str:
    """report.md: what was kept, what was saved, and how that was measured."""
    if not record["export"]:
        return language_model(record)
    task, teacher, training = record["task"], record["teacher"], record["training"]
    environment = record["environment"]
    lines = [
        f"# {record['student']['name']} from {teacher['resolved']} on {task['name']}",
        "",
        *_substitution(teacher),
        f"Dev split, {task['examples']['dev']:,} examples; trained on {task['examples']['train']:,}.",
        "",
        *_markdown_table(_columns(record), summary_rows(record)),
        "",
        _speed_note(record),
        "",
        "## The exported files",
        "",
        "Each scored again on dev through ONNX Runtime, from the text on, and compared with torch.",
        "",
        *_markdown_table(
            ("file", "agreement with torch", "largest logit difference", f"drop of {task['metric']}", "gate", "recipe"),
            [
                (
                    e["file"], f"{e['agreement']:.4f}", f"{e['max_abs_diff']:.2g}", f"{e['drop']:+.4f}", e["gate"],
                    e["recipe"],
                )
                for e in record["export"].values()
            ],
        ),
        "",
        *_other_splits(record),
        "## Time for an answer",
        "",
        *_markdown_table(
            ("model", "format", "batch", "length", "threads", "runs", "p50 ms", "p90 ms", "p99 ms"),
            [
                (
                    b["model"], b["format"], str(b["batch"]), str(b["length"]), str(b["threads"]), str(b["runs"]),
                    f"{b['p50_ms']:.2f}", f"{b['p90_ms']:.2f}", f"{b['p99_ms']:.2f}",
                )
                for b in record["benchmark"]
            ],
        ),
        "",
        "## Training",
        "",
        f"Objective {record['objective']['name']} ({_terms(record)}); {training['steps']:,} steps in "
        f"{training['seconds']:.0f} s, {training['precision']}, {training['examples_per_second']:.0f} examples/s, "
        f"{training['padding']:.1%} of the computed tokens were padding. {_teacher_note(training)}",
        "",
        "## Machine",
        "",
        f"{environment['cpu']} ({', '.join(environment['isa'])}), {environment['cores']} cores, torch "
        f"{environment['torch']}, transformers {environment['transformers']}, onnxruntime "
        f"{environment['onnxruntime']}, Python {environment['python']}.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def language_model_rows(record: Record) -> list[tuple[str, ...]]:
    """Who, how large, and each metric on dev, the header first."""
    students = [("student", record["student"])] if record["student"] else []
    before = record["teacher"].get("before")
    rows = [("before", {**record["teacher"], "metrics": before})] if before else []
    rows += [("teacher" if students else "model", record["teacher"]), *students]
    names = list(rows[-1][1]["metrics"])
    return [("", "parameters", *names)] + [
        (
            who,
            f"{of['parameters'] / 1e6:.1f} M",
            *(f"{of['metrics'][n]:.4f}" if n in of["metrics"] else "-" for n in names),
        )
        for who, of in rows
    ]


def language_model_table(record: Record) -> Table:
    """The closing table of a job over raw text."""
    header, *rows = language_model_rows(record)
    table = Table(title=f"{record['task']['name']}: masked tokens of dev", title_justify="left", title_style="bold")
    for column in header:
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def language_model(record: Record) -> str:
    """report.md of a job over raw text."""
    task, training, environment = record["task"], record["training"], record["environment"]
    header, *rows = language_model_rows(record)
    name = f"{record['student']['name']} from " if record["student"] else ""
    lines = [
        f"# {name}{record['teacher']['resolved']} on {task['name']}",
        "",
        f"Masked language modelling, sequences of at most {task['max_length']} tokens ({task['packing']}), "
        f"{task['masking']} masks; {task['examples']['dev']:,} sequences held out by document.",
        "",
        *_markdown_table(header, rows),
        "",
        "All of dev, at the masked tokens; perplexity is the exponential of the loss. Agreement with the teacher is "
        "how often the student's first choice is the teacher's, and is among the teacher's first five.",
        "",
        "## Training",
        "",
        f"Objective {record['objective']['name']} ({_terms(record)}); {training['steps']:,} steps in "
        f"{training['seconds']:.0f} s, {training['precision']}, {training['tokens_per_second']:.0f} tokens/s. "
        f"{_teacher_note(training)}",
        "",
        "## Machine",
        "",
        f"{environment['cpu']} ({', '.join(environment['isa'])}), {environment['cores']} cores, torch "
        f"{environment['torch']}, transformers {environment['transformers']}, Python {environment['python']}.",
        "",
    ]
    return "\n".join(lines)


def _teacher_note(training: Record) -> str:
    """What the teacher's answers cost."""
    cache, seconds = training.get("teacher_cache"), training["teacher_seconds"]
    if cache is None:
        return f"The teacher was asked in every step: {seconds:.0f} s of it." if seconds else "No teacher was asked."
    kept = f"its outputs are kept ({cache['bytes'] / 1e6:.1f} MB)"
    return (
        f"The teacher was not asked: {kept}."
        if cache["hit"]
        else f"The teacher was asked once, {seconds:.0f} s: {kept}."
    )


def model_card(record: Record, labels: Sequence[str]) -> str:
    """The README.md of a bundle."""
    task, teacher = record["task"], record["teacher"]
    lines = [
        "---",
        "library_name: onnx",
        "pipeline_tag: text-classification",
        "---",
        "",
        f"# {record['student']['name']} for {task['name']}",
        "",
        f"Distilled from **{teacher['resolved']}**. {_answers(task, labels)}",
        "",
        *_substitution(teacher),
        f"Measured on the dev split ({task['examples']['dev']:,} examples), which also chose the checkpoint:",
        "",
        *_markdown_table(_columns(record), summary_rows(record)),
        "",
        _speed_note(record),
        "",
        "## Use",
        "",
        "Needs `onnxruntime`, `tokenizers` and `numpy`:",
        "",
        f"    python -m distill.edge path/to/this/directory {example(task)}",
        "",
    ]
    return "\n".join(lines)


def example(task: Record) -> str:
    """What to call a bundle with: a text, or two with a tab between them."""
    return "$'a sentence\\tanother one'" if task["pair"] else '"a sentence"'


def _answers(task: Record, labels: Sequence[str]) -> str:
    return f"Predicts a number: {labels[0]}." if task["answer"] == "number" else f"Labels: {', '.join(labels)}."


def _caption(record: Record) -> str:
    return f"{record['task']['name']}: {record['student']['name']} from {record['teacher']['resolved']}"


def _columns(record: Record) -> tuple[str, ...]:
    return tuple(record["task"]["metric"] if column == "metric" else column for column in COLUMNS)


def _substitution(teacher: Record) -> list[str]:
    if not teacher["substituted"]:
        return []
    return [
        f"> **Not the teacher that was asked for.** The weights of {teacher['requested']} could not be had; "
        f"{teacher['resolved']} taught instead, and all numbers speak of it.",
        "",
    ]


def _speed_note(record: Record) -> str:
    base = timing(record, "teacher", "torch")
    if base is None:
        return "No times were taken."
    return (
        f"p50 and speed-up: batch {base['batch']}, length {base['length']}, {base['threads']} thread(s) of "
        f"{record['environment']['cpu']}; speed-up against the teacher in torch. The teacher's size is that of its "
        "ONNX file."
    )


def _other_splits(record: Record) -> list[str]:
    """All metrics on all splits, where there are more than the table above has."""
    names = list(record["teacher"]["metrics"])
    if len(names) == 1:
        return []
    rows = {"teacher (torch)": record["teacher"]["metrics"], "student (torch)": record["student"]["metrics"]}
    rows |= {f"student {name}": exported["metrics"] for name, exported in record["export"].items()}
    if record["baseline"] is not None:
        rows["baseline, no teacher (torch)"] = record["baseline"]["metrics"]
    return [
        "## All metrics",
        "",
        "Of dev, and with its name in front of any other split; those chose nothing.",
        "",
        *_markdown_table(("", *names), [(who, *(f"{row[name]:.4f}" for name in names)) for who, row in rows.items()]),
        "",
    ]


def _terms(record: Record) -> str:
    return ", ".join(f"{name} x {term['weight']}" for name, term in record["objective"]["terms"].items())


def _megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.1f} MB"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---" if index == 0 else "---:" for index in range(len(header))]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]
