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
    found, shares = [], task.get("split_differently") or {}
    for file in export.values():
        for name, value in file["metrics"].items():
            split, slash, metric = name.rpartition("/")
            if metric == f"text_{task.get('metric')}":
                on_words = file["metrics"][f"{split}{slash}{task['metric']}"]
                found.append(TextResult(file["file"], split or DEV, on_words, value, shares.get(split or DEV)))
    return found


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
    headline = _Headline.of(record)
    if headline is None:
        return None
    title, *sentences = headline.describe_student()
    text = " ".join([f"**{title}**", *sentences])
    files = " ".join(headline.describe_files())
    return f"{text}\n\n{files}" if files else text


def describe_verdict(record: JsonObject) -> list[str]:
    """Returns the verdict on a run as sentences, a title first; none without a scored student."""
    headline = _Headline.of(record)
    return [] if headline is None else [*headline.describe_student(), *headline.describe_files()]


def describe_baseline(record: JsonObject) -> str:
    """Returns the baseline in words, with the weights that it started from."""
    starts = {"pretrained": " from the pre-trained encoder", "teacher": " from the teacher's own layers"}
    start = starts.get((record.get("baseline") or {}).get("start") or "", "")
    return f"the same student trained without a teacher{start}"


@dataclass(frozen=True)
class _Headline:
    """The sentences of a verdict and of the numbers that it is about."""

    results: verdicts.Results
    verdict: verdicts.Verdict

    @classmethod
    def of(cls, record: JsonObject) -> "_Headline | None":
        """Returns that of a run, or of one of its several tasks; None without a scored student."""
        results = verdicts.Results(record)
        verdict = results.decide()
        return None if verdict is None else cls(results, verdict)

    @property
    def _others(self) -> list[verdicts.Against]:
        return [other for other in (self.verdict.baseline, self.verdict.teacher) if other is not None]

    @property
    def _teacher(self) -> str:
        return "the teacher" if self.verdict.case == verdicts.UNTAUGHT else "its teacher"

    @property
    def _is_constant(self) -> bool:
        """Whether the title is that of a student that is no better than a constant prediction."""
        cases = (verdicts.WEAK, verdicts.WORSE, verdicts.BETTER)
        return self.verdict.constant is not None and self.verdict.case not in cases

    def title(self) -> str:
        """Returns the verdict in a few words, without its full stop."""
        verdict = self.verdict
        is_worse = verdict.baseline is not None and verdict.baseline.outcome == verdicts.WORSE
        if verdict.case == verdicts.WEAK and is_worse:
            return "Prefer the baseline: the teacher is weak"
        if self._is_constant:
            return CONSTANT
        if verdict.case == verdicts.NO_BASELINE:
            return OPINIONS[verdict.teacher.outcome if verdict.teacher else verdicts.UNKNOWN]
        return TITLES[verdict.case]

    def describe_student(self) -> Iterator[str]:
        """Yields the sentences about the student and the other models, a title first.

        Of several tasks it is the verdict on each of them in a few words, and the mean over them.
        """
        if self.results.record.get("tasks"):
            sections = {name: _Headline.of(of) for name, of in verdicts.task_sections(self.results.record).items()}
            titles = {name: of.title() for name, of in sections.items() if of}
            yield "; ".join(f"{name}: {title[0].lower()}{title[1:]}" for name, title in titles.items()) + "."
            yield self._describe_result()
            yield from self._describe_uncertainty()
            return
        yield f"{self.title()}."
        yield from self._describe_weakness()
        yield from self._describe_constant()
        yield self._describe_result()
        yield from self._describe_doubts()
        if any(of.outcome == verdicts.EQUAL and (of.interval or of.elsewhere) for of in self._others):
            margin = self.results.unit.format_margin(self.results.margin)
            yield f"Two models are called equal within {margin} (report.margin)."
        yield from self._describe_uncertainty()
        yield from self._advise()

    def _describe_weakness(self) -> Iterator[str]:
        """Yields what the teacher has beside a constant prediction, and what to set."""
        weakness, unit = self.verdict.weakness, self.results.unit
        if weakness is None or self.verdict.case != verdicts.WEAK:
            return
        values = f"{weakness.metric:.3f} against {weakness.constant:.3f} of a constant prediction ({weakness.answer})"
        noise = "which is no better"
        if unit.gain(weakness.difference) > 0:
            amount = _describe_interval(weakness.difference, weakness.interval, unit)
            noise = f"which is not known to be better ({amount})"
        yield f"On {weakness.split} it has {self.results.task['metric']} {values}, {noise}."
        if (self.results.record["teacher"].get("origin") or "fine-tuned") in ("fine-tuned", "kept"):
            yield "Set a higher teacher.finetune.max_epochs, label more rows, or take a larger teacher."
        else:
            yield "Check that its labels mean the task's, or take another teacher."

    def _describe_constant(self) -> Iterator[str]:
        """Yields what a student that is no better than a constant prediction has beside it."""
        if self.verdict.constant is not None:
            constant = self.results.measure("constant") or self.results.measure("constant", DEV)
            value = f"{constant['mean']:.3f} " if constant else ""
            opening = "That has" if self._is_constant else f"{CONSTANT}, which has"
            yield f"{opening} {self.results.task['metric']} {value}({self.verdict.constant})."

    def _describe_doubts(self) -> Iterator[str]:
        """Yields what undecided intervals leave open, and what would decide."""
        others = {"the same student without a teacher": self.verdict.baseline, self._teacher: self.verdict.teacher}
        for name, other in others.items():
            if other is not None and other.doubt is not None:
                sides = _describe_doubt(other.doubt, self.results.unit)
                yield f"Against {name} it may be {sides}: {_describe_evidence(other.doubt)}."

    def _describe_result(self) -> str:
        """Returns the metric of the student, beside that of its baseline and its teacher."""
        results, verdict, task = self.results, self.verdict, self.results.task
        unit = "sequences" if task.get("packing") else "examples"
        counted = f"{verdicts.format_number((task.get('examples') or {}).get(verdict.split), ',')} {unit}"
        chose = ", which chose the checkpoint too" if verdict.split == DEV else "; dev chose the checkpoint"
        lesser = " (less is better)" if results.unit.less_is_better else ""
        further = [f"mean of {verdict.seeds} seeds"] if verdict.seeds > 1 else []
        exported = results.measure(verdict.file) if verdict.file else None
        if verdict.file and exported:
            further.append(f"{_value(exported)} in {results.record['export'][verdict.file]['file']}")
        shown = _value(verdict.student) + (f" ({'; '.join(further)})" if further else "")
        against = []
        if verdict.baseline:
            against.append(_describe_against(verdict.baseline, describe_baseline(results.record), results.unit))
        if verdict.teacher:
            against.append(_describe_against(verdict.teacher, self._teacher, results.unit, share=verdict.share))
        compared = f", {' and '.join(against)}" if against else ""
        return f"On {verdict.split} ({counted}{chose}) the student has {task['metric']}{lesser} {shown}{compared}."

    def _describe_uncertainty(self) -> Iterator[str]:
        """Yields what the intervals leave out."""
        has_interval = any(of.interval or of.elsewhere for of in self._others)
        if self.verdict.seeds == 1:
            yield f"One seed{': training noise is not in the intervals' if has_interval else ', without an interval'}."
        elif has_interval:
            both = any(of.over == verdicts.BOTH for of in self._others)
            rest = "and the examples" if both else "alone, and leave out the examples"
            yield f"The intervals are over {self.verdict.seeds} seeds {rest}."

    def _advise(self) -> Iterator[str]:
        """Yields which bundle to take, and what would show or raise the gain from the teacher."""
        verdict, task, choice = self.verdict, self.results.task, self.results.record.get("baseline_choice") or {}
        if verdict.baseline and verdict.baseline.outcome == verdicts.WORSE:
            if verdict.bundle == verdicts.BASELINE_BUNDLE:
                yield f"The baseline is exported in {verdicts.BASELINE_BUNDLE}."
            else:
                yield "The baseline is not exported: objective=supervised trains and exports such a student."
        writes = task.get("answer") in ("text", "label_words")
        takes_texts = not (task.get("unlabelled") or task.get("packing") or writes)
        if verdict.case in (verdicts.EQUAL, verdicts.UNDECIDED, verdicts.WORSE) and takes_texts:
            yield "More text for the teacher to label may help: set task.unlabelled."
        is_over = choice.get("trained") is False or (not choice and self.results.record.get("status") != "running")
        if verdict.case == verdicts.NO_BASELINE and is_over:
            reason = f" ({choice['reason']})" if choice.get("reason") else ""
            advice = "" if choice.get("possible") is False else ": set baseline=true"
            yield f"No baseline was trained{reason}, so the gain from the teacher is not known{advice}."

    def describe_files(self) -> Iterator[str]:
        """Yields what the recommended file saves, and why files did not pass their gates; nothing without files."""
        export = self.results.record.get("export") or {}
        if export and self.verdict.file:
            yield from self._describe_savings(self.verdict.file, export[self.verdict.file])
        elif export:
            yield "No exported file passed its gate, so these numbers are those in torch."
        for file in export.values():
            if file["gate"] != "passed" and file.get("reason"):
                yield f"{file['file']} {verdicts.describe_gate(file)}."

    def _describe_savings(self, format: str, file: JsonObject) -> Iterator[str]:
        """Yields size and speed of the recommended file beside the teacher in torch and its own fastest file."""
        results, words = self.results, []
        whole, own = results.teacher_bytes(), results.fastest_teacher_file()
        if whole:
            is_smaller = own is not None and own["bytes"] < whole
            smaller = f" ({own['bytes'] / 1e6:.1f} MB in {verdicts.number_format(own)})" if own and is_smaller else ""
            words.append(f"has {file['bytes'] / 1e6:.1f} MB of the teacher's {whole / 1e6:.1f} MB{smaller}")
        timing = results.timing("student", timed_name(format, file["file"]))
        references = {"the teacher in torch": results.timing("teacher", "torch")}
        references |= {f"the teacher's own {verdicts.number_format(own)} file": own} if own else {}
        speeds = [
            f"{reference['p50_ms'] / timing['p50_ms']:.1f}x as fast as {name}"
            for name, reference in references.items()
            if timing and reference
        ]
        if speeds:
            words.append(f"is {' and '.join(speeds)} ({results.conditions()})")
        if words:
            yield f"{file['file']} {', and '.join(words)}."


def _describe_doubt(doubt: verdicts.Doubt, unit: verdicts.Unit) -> str:
    """Returns `up to 10.9 points worse and up to 2.0 points better`, without a side that rounds to nothing."""
    sides = {"worse": unit.format(doubt.worse)[1:], "better": unit.format(doubt.better)[1:]}
    return " and ".join(f"up to {amount}{unit.word} {side}" for side, amount in sides.items() if amount.strip("0."))


def _describe_evidence(doubt: verdicts.Doubt) -> str:
    """Returns the examples or seeds that tell no more, and the examples that would."""
    rows = f"{doubt.number:,} examples of {doubt.split}"
    if doubt.needed is not None:
        return f"{rows} show no more, about {doubt.needed:,} would decide"
    if doubt.over == "examples":
        return f"{rows} show no more"
    split = doubt.split
    return f"{doubt.number} seeds on {split} show no more; set a higher seeds, or give {split} more examples"


def _describe_against(against: verdicts.Against, other: str, unit: verdicts.Unit, *, share: float | None = None) -> str:
    """Returns `2.9 points above its teacher (0.814; 95% interval +1.2 to +4.6)`."""
    details = [f"{against.metric:.3f}"]
    if share is not None:
        details.append(f"the student keeps {share:.1%} of it")
    if against.interval:
        details.append(_describe_interval(None, against.interval, unit))
    elif against.elsewhere:
        known = against.elsewhere
        interval = _describe_interval(known["difference"], known.get("interval"), unit)
        details.append(f"on {known.get('split') or DEV} {interval}")
    amount = unit.format(abs(against.difference))[1:]
    side = "above" if against.difference > 0 else "below"
    place = f"{amount}{unit.word} {side}" if float(amount) else "level with"
    return f"{place} {other} ({'; '.join(details)})"


def _describe_interval(difference: float | None, interval: Sequence[float] | None, unit: verdicts.Unit) -> str:
    """Returns `+1.0 points, 95% interval -0.5 to +2.5`, without the points if they are said before."""
    words = [] if difference is None else [f"{unit.format(difference)}{unit.word}"]
    if interval:
        words.append(f"95% interval {unit.format_ends(interval)}")
    return ", ".join(words)


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
    against = verdicts.Against(before, difference, interval, None, verdicts.UNKNOWN)
    compared = _describe_against(against, "its teacher", verdicts.Unit.of(row.task))
    kept = f"{subject or row.label} has {row.task['metric']} {verdicts.format_spread(spread)}, {compared}, on {counted}"
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
