"""One sentence about a result: what was kept, what was saved, and the evidence."""

from distill.records.comparison import FileResult, Row
from distill.records.report import format_spread


def describe_result(row: Row, *, subject: str | None = None) -> str | None:
    """Returns the sentence about the smallest file that passed its gate, else about the student in torch.

    It ends with the verdicts on files that did not pass.

    Args:
        subject: the name of the student; None for the label of the row.

    Returns:
        None if the metric of student or teacher is not known.
    """
    passed = {name: file for name, file in row.files.items() if file.passed and file.values}
    chosen = min(passed.values(), key=lambda file: file.bytes or 0, default=None)
    spread = chosen.spread() if chosen else row.spread()
    if spread is None or row.teacher is None or row.teacher.metric is None:
        return None
    metric, name, before = row.task["metric"], subject or row.label, row.teacher.metric
    seeds = len(chosen.values if chosen else row.values)
    examples = f"{row.task['examples'].get('dev', 0):,} examples of dev"
    counted = f"{examples}, {seeds} seeds" if seeds > 1 else f"{examples}, one seed"
    if row.task.get("selects") == "min" or before <= 0:
        kept = f"{name} has a {metric} of {format_spread(spread)}, and its teacher {before:.4f} ({counted})"
    else:
        values = f"{format_spread(spread)} of {before:.4f} on {counted}"
        kept = f"{name} keeps {spread['mean'] / before:.1%} of its teacher's {metric} ({values})"
    saved = _describe_savings(row, chosen) if chosen else []
    if row.files and not chosen:
        saved = ["no exported file passed its gate, so these numbers are those in torch"]
    verdicts = [f"{file.file} {verdict}" for file in row.files.values() for verdict in file.verdicts]
    return f"**{'; '.join([kept, *([', '.join(saved)] if saved else []), *verdicts])}.**"


def _describe_savings(row: Row, file: FileResult) -> list[str]:
    """Returns size and speed of a file relative to the teacher, as far as they were measured."""
    teacher, saved = row.teacher, []
    if teacher and teacher.bytes and file.bytes:
        sizes = f"{file.bytes / 1e6:.1f} MB of {teacher.bytes / 1e6:.1f} MB"
        saved.append(f"{file.file} has {file.bytes / teacher.bytes:.0%} of its size ({sizes})")
    if teacher and teacher.p50_ms and file.p50_ms:
        times = f"{file.p50_ms:.2f} ms for {teacher.p50_ms:.2f} ms: {row.conditions}"
        saved.append(f"and is {teacher.p50_ms / file.p50_ms:.1f}x as fast ({times})")
    return saved
