"""The verdict on a result in words, and the lines and tables of a terminal."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.align import VerticalAlignMethod
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from distill.core.console import print_notice
from distill.core.files import JsonObject
from distill.edge.bundle_files import timed_name
from distill.records import verdict as verdicts
from distill.records.schema import DEV
from distill.records.verdict import (
    Against,
    Doubt,
    Verdict,
    decide,
    describe_conditions,
    describe_gate,
    fastest_teacher_file,
    find_teacher_bytes,
    format_margin,
    format_number,
    format_points,
    format_spread,
    number_format,
    select_timing,
    task_sections,
)

if TYPE_CHECKING:
    from distill.records.comparison import FileResult, Row
    from distill.training.statistics import Spread


LONGEST_WORD = 30  # Characters; a longer one, such as a path, is broken.


@dataclass(frozen=True)
class TerminalTable:
    """A table for a terminal, whose columns are at least as wide as their longest word.

    Attributes:
        cells: the header first.
        left: headers of the columns that begin on the left, others end on the right.
        least: headers of columns that a narrow terminal lacks, the first one first.
        vertical: where a header or a cell of few lines is beside others of more.
    """

    title: str | None
    cells: Sequence[Sequence[str]]
    left: Collection[str]
    least: Sequence[str] = ()
    vertical: VerticalAlignMethod = "top"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._select(options.max_width)
        table = Table(
            title=self.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False,
            pad_edge=False, padding=(0, 1, 0, 0),
        )  # fmt: skip
        for (header, *_), width in zip(columns, _share(columns, options.max_width), strict=True):
            justify: Literal["left", "right"] = "left" if header in self.left else "right"
            table.add_column(header, justify=justify, overflow="fold", vertical=self.vertical, width=width)
        _, *rows = zip(*columns, strict=True)
        for row in rows:
            table.add_row(*row)
        yield table

    def _select(self, width: int) -> list[tuple[str, ...]]:
        """Returns the columns that fit, each with its header first."""
        columns = list(zip(*self.cells, strict=True))
        for name in self.least:
            if sum(map(_longest_word, columns)) <= _count_room(len(columns), width):
                break
            columns = [column for column in columns if column[0].split() != name.split()]
        return columns


def _share(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Returns the width of each column: that of its longest word, and a share of the rest for its longest line."""
    shortest, longest = list(map(_longest_word, columns)), list(map(_longest_line, columns))
    room, wanted = _count_room(len(columns), width) - sum(shortest), sum(longest) - sum(shortest)
    share = min(1.0, max(0, room) / max(1, wanted))
    return [low + int(share * (high - low)) for low, high in zip(shortest, longest, strict=True)]


def _count_room(columns: int, width: int) -> int:
    """Returns the characters that the cells of a line have, without the lines and the spaces between them."""
    return width - 2 * columns + 1


def _longest_word(column: Sequence[str]) -> int:
    return min(LONGEST_WORD, max((len(word) for text in column for word in text.split()), default=1))


def _longest_line(column: Sequence[str]) -> int:
    return max(_longest_word(column), max((len(line) for text in column for line in text.splitlines()), default=1))


POINT = 0.01  # A larger difference of the two metrics is reported.


class TextResult(NamedTuple):
    """The metric of a file on a split.

    Attributes:
        on_words: with the words of the data.
        on_text: with the plain text of the sentences, which the bundle splits into words itself.
        split_differently: share of the sentences that it splits into other words than those of the data.
    """

    file: str
    split: str
    on_words: float
    on_text: float
    split_differently: float | None


def list_text_results(task: Mapping[str, Any], export: Mapping[str, Any]) -> list[TextResult]:
    """Returns the results of all files on all splits; none for a task whose examples are texts.

    Args:
        task, export: of run.json.
    """
    return [
        TextResult(
            file["file"], split, file["metrics"][f"{prefix}{task['metric']}"], value,
            (task.get("split_differently") or {}).get(split),
        )
        for file in export.values()
        for split, prefix, value in _text_metrics(task, file["metrics"])
    ]  # fmt: skip


def _text_metrics(task: Mapping[str, Any], metrics: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """Yields each split with the prefix of its metrics, and its metric on plain text."""
    for name, value in metrics.items():
        prefix, slash, metric = name.rpartition("/")
        if metric == f"text_{task.get('metric')}":
            yield prefix or "dev", f"{prefix}{slash}", value


def warn_of_text(task: Mapping[str, Any], export: Mapping[str, Any]) -> None:
    """Prints a notice for each split on which the two metrics of a file differ by more than a point.

    Args:
        task, export: of run.json.
    """
    metric = task["metric"]
    for result in list_text_results(task, export):
        if abs(result.on_words - result.on_text) <= POINT:
            continue
        share = result.split_differently
        reason = f", because it splits {share:.1%} of the sentences into other words than the data has" if share else ""
        print_notice(
            f"{result.file} has {metric} {result.on_text:.4f} on the plain text of {result.split}, and "
            f"{result.on_words:.4f} on its words{reason}; report.md has both of every file"
        )


TITLES: Mapping[str, str] = {
    verdicts.WEAK: "The teacher is weak",
    verdicts.BETTER: "The teacher helps",
    verdicts.EQUAL: "No gain from the teacher",
    verdicts.UNDECIDED: "Whether the teacher helps is undecided",
    verdicts.WORSE: "Prefer the baseline",
    verdicts.UNKNOWN: "Whether the teacher helps is not certain",
    verdicts.UNTAUGHT: "The student learned without a teacher",
}
OPINIONS: Mapping[str, str] = {
    verdicts.BETTER: "The student is better than its teacher",
    verdicts.EQUAL: "The student is as good as its teacher",
    verdicts.UNDECIDED: "Whether the student is as good as its teacher is undecided",
    verdicts.WORSE: "The student is below its teacher",
    verdicts.UNKNOWN: "The gain from the teacher is not known",
}

CONSTANT = "The student is no better than a constant prediction"


def render_headline(record: JsonObject) -> str | None:
    """Returns the verdict on a run as Markdown, files in a paragraph of their own; None without a scored student."""
    sentences = _describe_student(record)
    if not sentences:
        return None
    text = " ".join([f"**{sentences[0]}**", *sentences[1:]])
    files = " ".join(_describe_files(record))
    return f"{text}\n\n{files}" if files else text


def describe_verdict(record: JsonObject) -> list[str]:
    """Returns the verdict on a run as sentences, a title first; none without a scored student."""
    return [*_describe_student(record), *_describe_files(record)]


def _describe_student(record: JsonObject) -> list[str]:
    """Returns the sentences about the student and the other models, a title first; none without a scored student."""
    verdict = decide(record)
    if verdict is None:
        return []
    if record.get("tasks"):
        return _describe_tasks(record, verdict)
    return [
        f"{_title(verdict)}.", *_describe_weakness(record, verdict), *_describe_constant(record, verdict),
        _describe_result(record, verdict), *_describe_doubts(verdict, record["task"]),
        *_describe_equality(record, verdict), *_describe_uncertainty(verdict), *_advise(record, verdict),
    ]  # fmt: skip


def _title(verdict: Verdict) -> str:
    """Returns the verdict in a few words, without its full stop."""
    is_worse = verdict.baseline is not None and verdict.baseline.outcome == verdicts.WORSE
    if verdict.case == verdicts.WEAK and is_worse:
        return "Prefer the baseline: the teacher is weak"
    if _is_constant(verdict):
        return CONSTANT
    if verdict.case == verdicts.NO_BASELINE:
        return OPINIONS[verdict.teacher.outcome if verdict.teacher else verdicts.UNKNOWN]
    return TITLES[verdict.case]


def _describe_weakness(record: JsonObject, verdict: Verdict) -> list[str]:
    """Returns what the teacher has beside a constant prediction, and what to set."""
    weakness, task = verdict.weakness, record["task"]
    if weakness is None or verdict.case != verdicts.WEAK:
        return []
    values = f"{weakness.metric:.3f} against {weakness.constant:.3f} of a constant prediction ({weakness.answer})"
    noise = "which is no better"
    if weakness.difference and (weakness.difference > 0) != (task.get("selects") == "min"):
        noise = f"which is not known to be better ({_describe_interval(weakness.difference, weakness.interval, task)})"
    train = "set a higher teacher.finetune.max_epochs, label more rows, or take a larger teacher"
    check = "check that its labels mean the task's, or take another teacher"
    advice = train if (record["teacher"].get("origin") or "fine-tuned") in ("fine-tuned", "kept") else check
    return [f"On {weakness.split} it has {task['metric']} {values}, {noise}.", f"{advice[0].upper()}{advice[1:]}."]


def _is_constant(verdict: Verdict) -> bool:
    """Returns whether the title is that of a student that is no better than a constant prediction."""
    return verdict.constant is not None and verdict.case not in (verdicts.WEAK, verdicts.WORSE, verdicts.BETTER)


def _describe_constant(record: JsonObject, verdict: Verdict) -> list[str]:
    """Returns what a student that is no better than a constant prediction has beside it."""
    if verdict.constant is None:
        return []
    constant = verdicts.measure(record, "constant", verdict.split) or verdicts.measure(record, "constant", DEV)
    value = f"{constant['mean']:.3f} " if constant else ""
    opening = "That has" if _is_constant(verdict) else f"{CONSTANT}, which has"
    return [f"{opening} {record['task']['metric']} {value}({verdict.constant})."]


def _describe_doubts(verdict: Verdict, task: JsonObject) -> list[str]:
    """Returns what undecided intervals leave open, and what would decide."""
    teacher = "the teacher" if verdict.case == verdicts.UNTAUGHT else "its teacher"
    others = {"the same student without a teacher": verdict.baseline, teacher: verdict.teacher}
    return [
        f"Against {name} it may be {_describe_doubt(of.doubt, task)}: {_describe_evidence(of.doubt)}."
        for name, of in others.items()
        if of is not None and of.doubt is not None
    ]


def _describe_doubt(doubt: Doubt, task: JsonObject) -> str:
    """Returns `up to 10.9 points worse and up to 2.0 points better`, without a side that rounds to nothing."""
    unit = "" if task.get("selects") == "min" else " points"
    sides = {"worse": format_points(doubt.worse, task)[1:], "better": format_points(doubt.better, task)[1:]}
    return " and ".join(f"up to {amount}{unit} {side}" for side, amount in sides.items() if amount.strip("0."))


def _describe_evidence(doubt: Doubt) -> str:
    """Returns the examples or seeds that tell no more, and the examples that would."""
    rows = f"{doubt.number:,} examples of {doubt.split}"
    if doubt.needed is not None:
        return f"{rows} show no more, about {doubt.needed:,} would decide"
    if doubt.over == "examples":
        return f"{rows} show no more"
    split = doubt.split
    return f"{doubt.number} seeds on {split} show no more; set a higher seeds, or give {split} more examples"


def _describe_equality(record: JsonObject, verdict: Verdict) -> list[str]:
    """Returns the margin within which the student is called equal to another model; nothing where it is not."""
    others = [of for of in (verdict.baseline, verdict.teacher) if of is not None]
    if not any(of.outcome == verdicts.EQUAL and (of.interval or of.elsewhere) for of in others):
        return []
    margin = format_margin(verdicts.read_margin(record), record["task"])
    return [f"Two models are called equal within {margin} (report.margin)."]


def _describe_result(record: JsonObject, verdict: Verdict) -> str:
    """Returns the metric of the student, beside that of its baseline and its teacher."""
    task, file = record["task"], verdict.file
    unit = "sequences" if task.get("packing") else "examples"
    counted = f"{format_number((task.get('examples') or {}).get(verdict.split), ',')} {unit}"
    chose = "which chose the checkpoint too" if verdict.split == DEV else "dev chose the checkpoint"
    separator = ", " if verdict.split == DEV else "; "
    lesser = " (less is better)" if task.get("selects") == "min" else ""
    further = [f"mean of {verdict.seeds} seeds"] if verdict.seeds > 1 else []
    exported = verdicts.measure(record, file, verdict.split) if file else None
    if file and exported:
        further.append(f"{_value(exported)} in {record['export'][file]['file']}")
    shown = _value(verdict.student) + (f" ({'; '.join(further)})" if further else "")
    teacher = "the teacher" if verdict.case == verdicts.UNTAUGHT else "its teacher"
    against = [
        *([_describe_against(verdict.baseline, describe_baseline(record), task)] if verdict.baseline else []),
        *([_describe_against(verdict.teacher, teacher, task, share=verdict.share)] if verdict.teacher else []),
    ]  # fmt: skip
    compared = "".join(f", {words}" for words in [" and ".join(against)] if words)
    return (
        f"On {verdict.split} ({counted}{separator}{chose}) the student has {task['metric']}{lesser} {shown}{compared}."
    )


def describe_baseline(record: JsonObject) -> str:
    """Returns the baseline in words, with the weights that it started from."""
    starts = {"pretrained": " from the pre-trained encoder", "teacher": " from the teacher's own layers"}
    start = starts.get((record.get("baseline") or {}).get("start") or "", "")
    return f"the same student trained without a teacher{start}"


def _describe_against(against: Against, other: str, task: JsonObject, *, share: float | None = None) -> str:
    """Returns `2.9 points above its teacher (0.814; 95% interval +1.2 to +4.6)`."""
    details = [f"{against.metric:.3f}"]
    if share is not None:
        details.append(f"the student keeps {share:.1%} of it")
    if against.interval:
        details.append(_describe_interval(None, against.interval, task))
    elif against.elsewhere:
        known = against.elsewhere
        interval = _describe_interval(known["difference"], known.get("interval"), task)
        details.append(f"on {known.get('split') or DEV} {interval}")
    amount = format_points(abs(against.difference), task)[1:]
    unit = "" if task.get("selects") == "min" else " points"
    side = "above" if against.difference > 0 else "below"
    place = f"{amount}{unit} {side}" if float(amount) else "level with"
    return f"{place} {other} ({'; '.join(details)})"


def _describe_interval(difference: float | None, interval: Sequence[float] | None, task: JsonObject) -> str:
    """Returns `+1.0 points, 95% interval -0.5 to +2.5`, without the points if they are said before."""
    unit = "" if task.get("selects") == "min" else " points"
    words = [] if difference is None else [f"{format_points(difference, task)}{unit}"]
    if interval:
        words.append(f"95% interval {format_points(interval[0], task)} to {format_points(interval[1], task)}")
    return ", ".join(words)


def _describe_savings(record: JsonObject, format: str) -> list[str]:
    """Returns size and speed of the recommended file beside the teacher in torch and its own fastest file."""
    file, words = record["export"][format], []
    whole, own = find_teacher_bytes(record), fastest_teacher_file(record)
    if whole:
        is_smaller = own is not None and own["bytes"] < whole
        smaller = f" ({own['bytes'] / 1e6:.1f} MB in {number_format(own)})" if own and is_smaller else ""
        words.append(f"has {file['bytes'] / 1e6:.1f} MB of the teacher's {whole / 1e6:.1f} MB{smaller}")
    timing = select_timing(record, "student", timed_name(format, file["file"]))
    in_torch = select_timing(record, "teacher", "torch")
    names = {"the teacher in torch": in_torch, **({f"the teacher's own {number_format(own)} file": own} if own else {})}
    speeds = [
        f"{reference['p50_ms'] / timing['p50_ms']:.1f}x as fast as {name}"
        for name, reference in names.items()
        if timing and reference
    ]
    if speeds:
        words.append(f"is {' and '.join(speeds)} ({describe_conditions(record)})")
    return [f"{file['file']} {', and '.join(words)}."] if words else []


def _describe_files(record: JsonObject) -> list[str]:
    """Returns what the recommended file saves, and why files did not pass their gates; none without a student."""
    export = record.get("export") or {}
    if not export or decide(record) is None:
        return []
    chosen = verdicts.recommend(export)
    none = ["No exported file passed its gate, so these numbers are those in torch."]
    reasons = [
        f"{file['file']} {describe_gate(file)}."
        for file in export.values()
        if file["gate"] != "passed" and file.get("reason")
    ]
    return [*(_describe_savings(record, chosen) if chosen else none), *reasons]


def _describe_uncertainty(verdict: Verdict) -> list[str]:
    """Returns what the intervals leave out."""
    has_interval = any(of and (of.interval or of.elsewhere) for of in (verdict.baseline, verdict.teacher))
    if verdict.seeds > 1:
        return [f"The intervals are over {_describe_over(verdict)}."] if has_interval else []
    return ["One seed: training noise is not in the intervals." if has_interval else "One seed, without an interval."]


def _describe_over(verdict: Verdict) -> str:
    """Returns the seeds that intervals are over, and whether they are over the examples too."""
    both = any(of is not None and of.over == verdicts.BOTH for of in (verdict.baseline, verdict.teacher))
    return f"{verdict.seeds} seeds" + (" and the examples" if both else " alone, and leave out the examples")


def _advise(record: JsonObject, verdict: Verdict) -> list[str]:
    """Returns which bundle to take, and what would show or raise the gain from the teacher."""
    choice, task = record.get("baseline_choice") or {}, record["task"]
    words = []
    if verdict.baseline and verdict.baseline.outcome == verdicts.WORSE:
        is_exported = verdict.bundle == verdicts.BASELINE_BUNDLE
        words.append(
            f"The baseline is exported in {verdicts.BASELINE_BUNDLE}." if is_exported
            else "The baseline is not exported: objective=supervised trains and exports such a student."
        )  # fmt: skip
    writes = task.get("answer") in ("text", "label_words")
    takes_texts = not (task.get("unlabelled") or task.get("packing") or writes)
    if verdict.case in (verdicts.EQUAL, verdicts.UNDECIDED, verdicts.WORSE) and takes_texts:
        words.append("More text for the teacher to label may help: set task.unlabelled.")
    is_over = choice.get("trained") is False or (not choice and record.get("status") != "running")
    if verdict.case == verdicts.NO_BASELINE and is_over:
        reason = f" ({choice['reason']})" if choice.get("reason") else ""
        advice = "" if choice.get("possible") is False else ": set baseline=true"
        words.append(f"No baseline was trained{reason}, so the gain from the teacher is not known{advice}.")
    return words


def _describe_tasks(record: JsonObject, verdict: Verdict) -> list[str]:
    """Returns the verdict on each of several tasks in a few words, and the mean over them."""
    sections = {name: decide(section) for name, section in task_sections(record).items()}
    titles = [f"{name}: {_title(of)[0].lower()}{_title(of)[1:]}" for name, of in sections.items() if of]
    return [f"{'; '.join(titles)}.", _describe_result(record, verdict), *_describe_uncertainty(verdict)]


def _value(value: "Spread") -> str:
    return f"{value['mean']:.3f}" + ("" if value["std"] is None else f" ± {value['std']:.3f}")


def describe_result(row: "Row", *, subject: str | None = None) -> str | None:
    """Returns the sentence about a row of several runs: its smallest file that passed, else the student in torch.

    The metric is that on the split of the table: test where every row has it, because dev chose checkpoints and orders
    the rows. It ends with the reasons of files that did not pass.

    Args:
        subject: the name of the student; None for the label of the row.

    Returns:
        None if the metric of student or teacher is not known.
    """
    passed = {name: file for name, file in row.files.items() if file.passed and file.metrics[row.split]}
    chosen = min(passed.values(), key=lambda file: file.bytes or 0, default=None)
    spread = chosen.spread(row.split) if chosen else row.spread(row.split)
    before = row.teacher_score
    if spread is None or before is None:
        return None
    seeds = len(chosen.metrics[row.split] if chosen else row.scores)
    examples = f"{row.task['examples'].get(row.split, 0):,} examples of {row.split}"
    counted = f"{examples}, {seeds} seeds" if seeds > 1 else f"{examples}, one seed"
    # The interval is about the student in torch, or its fp32 file, and moves with the metric of the file.
    known, difference, interval = row.from_teacher, spread["mean"] - before, None
    if known is not None and known["interval"] is not None:
        low, high = (end - known["difference"] + difference for end in known["interval"])
        interval = low, high
    against = Against(before, difference, interval, None, verdicts.UNKNOWN)
    compared = _describe_against(against, "its teacher", row.task)
    kept = f"{subject or row.label} has {row.task['metric']} {format_spread(spread)}, {compared}, on {counted}"
    saved = _describe_row_savings(row, chosen) if chosen else []
    if row.files and not chosen:
        saved = ["no exported file passed its gate, so these numbers are those in torch"]
    reasons = [f"{file.file} {verdict}" for file in row.files.values() for verdict in file.verdicts]
    return f"**{'; '.join([kept, *([' and '.join(saved)] if saved else []), *reasons])}.**"


def _describe_row_savings(row: "Row", file: "FileResult") -> list[str]:
    """Returns size and speed of a file beside the teacher, as far as they were measured."""
    teacher, saved = row.teacher, []
    if teacher and teacher.bytes and file.bytes:
        saved.append(f"{file.file} has {file.bytes / 1e6:.1f} MB of the teacher's {teacher.bytes / 1e6:.1f} MB")
    if teacher and teacher.p50_ms and file.p50_ms:
        words = f"is {teacher.p50_ms / file.p50_ms:.1f}x as fast as the teacher in torch"
        if teacher.fastest:
            format, p50_ms = teacher.fastest
            words += f" and {p50_ms / file.p50_ms:.1f}x as fast as the teacher's own {format} file"
        saved.append(f"{words} ({row.conditions})")
    return saved
