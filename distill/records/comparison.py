"""Rows of several runs: those that differ only in their seeds are one row; their differences and their ranking.

Rows of several runs: those that differ only in their seeds are one row, with its metrics and its differences. A row is
compared with the row of the same options and the objective `supervised`, with the baseline that its own runs trained,
and with its teacher. All are paired by seed and example; with one seed the difference from the latter two is that of
its run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from distill.core.errors import UserError
from distill.core.files import JsonObject
from distill.edge.bundle_files import timed_name
from distill.records.run import CONFIG, create_seed, hide_paths, read_plain
from distill.records.schema import DEV, TEST, metric_name
from distill.records.verdict import (
    EQUAL,
    MARGIN,
    UNDECIDED,
    UNKNOWN,
    Options,
    Results,
    Unit,
    describe_gate,
    describe_options,
    flatten_options,
    format_spread,
    number_format,
    select_options,
    shorten_names,
)
from distill.rows.labels import natural_key
from distill.training.statistics import (
    Difference,
    Estimate,
    Spread,
    Values,
    compare_values,
    count_share_examples,
    estimate,
    is_noise,
    name_seeds,
    read_measured,
    spread,
)

Runs = Sequence[tuple[Path, JsonObject]]  # The directories of runs with their records.
REFERENCE = "supervised"
# Options that differ between runs of one row.
NOT_COMPARED = ("seed", "seeds", "trainer.seed", "resume", "output_dir", "cache_dir", "dry_run", "job.name")
_GROUPS_NOT_COMPARED = ("logger.", "experiment.", "paper.", "record.", "report.")


@dataclass(frozen=True)
class Scored:
    """A model with its metric on dev and test, of each seed.

    Attributes:
        metrics: by split.
    """

    metrics: Mapping[str, Values]

    @property
    def values(self) -> Values:
        """Returns the metric on dev of each seed."""
        return self.metrics[DEV]

    def spread(self, split: str = DEV) -> Spread | None:
        """Returns mean and standard deviation over the seeds."""
        values = self.metrics[split]
        return spread(list(values.values())) if values else None


@dataclass(frozen=True)
class FileResult(Scored):
    """An exported file of a row.

    Attributes:
        file: its name.
        bytes: its size in the last run.
        p50_ms: of the last run that was timed; None without one.
        passed: whether it passed its gate with every seed.
        verdicts: the reasons of the seeds with which it did not, in words.
    """

    file: str
    bytes: int | None
    p50_ms: float | None
    passed: bool
    verdicts: Sequence[str] = ()


@dataclass(frozen=True)
class TeacherResult:
    """The teacher of a row: name, metric on dev and test, p50 in ms in torch, and bytes of its weights.

    `fastest` has the number format and the p50 in ms of its own fastest ONNX file; None without one.
    """

    name: str
    metrics: Mapping[str, float | None]
    p50_ms: float | None
    bytes: int | None
    fastest: tuple[str, float] | None


@dataclass(frozen=True)
class Row(Scored):
    """All runs with the same options but for the seed.

    Attributes:
        label: the options in which the row differs from others, by their short names.
        options: these options with their values, by their full names.
        task: the `task` of run.json; empty if no run got that far.
        files: the exported files by format.
        teacher: None if no run has one yet.
        conditions: of the times, with the processor and whether it was busy; None without times.
        difference: from the reference; None for the reference itself and without one.
        baselines: the metric on dev and test of the baseline of each seed.
        gain: the difference from the baseline; None without one.
        from_teacher: the difference from the teacher; None without one.
        split: that all rows of the table are compared on: test if every one has it, else dev.
        names: the short names of the options of all rows of the table, by their full ones.
        margin: points within which two models are called equal.
        seconds: of one training, the mean over seeds.
        error: of the last run that failed, or `unfinished`.
    """

    label: str
    options: Options
    task: JsonObject
    files: Mapping[str, FileResult]
    teacher: TeacherResult | None
    conditions: str | None
    seconds: float | None
    error: str | None
    directories: Sequence[Path]
    difference: Difference | None = None
    baselines: Mapping[str, Values] = field(default_factory=dict)
    gain: Difference | None = None
    from_teacher: Difference | None = None
    split: str = DEV
    margin: float = MARGIN
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_label(self) -> str:
        """Returns the label with the full names of the options."""
        return describe_options(self.options) or self.label

    def short_options(self) -> Options:
        """Returns the options by their short names."""
        return {self.names.get(name, name): value for name, value in self.options.items()}

    @property
    def unit(self) -> Unit:
        """Returns the unit of differences."""
        return Unit.of(self.task)

    @property
    def scores(self) -> Values:
        """Returns the metric of each seed on the split of the table."""
        return self.metrics[self.split]

    @property
    def teacher_score(self) -> float | None:
        """Returns the teacher's metric on the split of the table."""
        return self.teacher.metrics[self.split] if self.teacher else None

    @property
    def kept(self) -> float | None:
        """Returns the share of the teacher's metric that the fp32 file keeps, or torch, on the split of the table."""
        file, teacher = self.files.get("fp32"), self.teacher_score
        value = (file.spread(self.split) if file else None) or self.spread(self.split)
        return None if value is None or teacher is None else self.unit.share_kept(value["mean"], teacher)

    @property
    def examples(self) -> int | None:
        """Returns the examples of the table's split of which the metric is the share; None if it is none."""
        return count_share_examples(self.task, self.split)

    def estimate(self, values: Values) -> Estimate | None:
        """Returns the mean of the metric of each seed, on the split of the table, with its interval."""
        return estimate(list(values.values()), self.examples)

    def compare(self, others: Values) -> Difference | None:
        """Returns the difference from the metric of each seed of another model, on the split of the table."""
        return compare_values(self.scores, others, self.examples)


def compare_runs(runs: Runs) -> list[Row]:
    """Returns one row for all runs with the same options but for the seed, the best ones first."""
    groups: dict[str, list[tuple[Path, JsonObject]]] = {}
    options: dict[str, Options] = {}
    for directory, record, flat in _tell_apart([(*run, read_options(*run)) for run in runs]):
        key = json.dumps(flat, sort_keys=True, default=str)
        options[key] = flat
        groups.setdefault(key, []).append((directory, hide_paths(record)))
    typed = {word.lstrip("+~").partition("=")[0] for _, record in runs for word in record.get("command") or ()}
    shown = select_options(list(options.values()), typed)
    names = shorten_names(name for row in shown for name in row)
    rows = {
        key: _create_row(options[key], chosen, groups[key], names) for key, chosen in zip(groups, shown, strict=True)
    }
    tests = [row.metrics[TEST] for row in rows.values()]
    is_tested = any(tests) and all(row.values.keys() <= row.metrics[TEST].keys() for row in rows.values())
    split = TEST if is_tested else DEV
    rows = {key: _compare_itself(replace(row, split=split), groups[key]) for key, row in rows.items()}
    rest = {key: _without_objective(flat) for key, flat in options.items()}
    references = {rest[key]: row for key, row in rows.items() if options[key].get("objective.name") == REFERENCE}
    compared = []
    for key, row in rows.items():
        reference = references.get(rest[key])
        if reference is not None and reference is not row:
            row = replace(row, difference=row.compare(reference.scores))
        compared.append(row)
    return sorted(compared, key=_order)


def _tell_apart(runs: Sequence[tuple[Path, JsonObject, Options]]) -> list[tuple[Path, JsonObject, Options]]:
    """Returns the runs, with their directory as an option where seeds cannot tell them apart.

    A run from Python has no config.yaml, so that its record may lack the option in which it differs from another. Two
    such runs with the same seed are no seeds of one row, and which of them others belong to is not known.
    """
    keys = [json.dumps(flat, sort_keys=True, default=str) for *_, flat in runs]
    seeds: dict[str, list[int]] = {}
    for key, (directory, record, _) in zip(keys, runs, strict=True):
        if read_config(directory) is None:
            seeds.setdefault(key, []).extend(int(entry["seed"]) for entry in _list_seeds(record))
    unclear = {key for key, of_key in seeds.items() if len(set(of_key)) < len(of_key)}
    return [
        (directory, record, {**flat, "directory": str(directory)} if key in unclear else flat)
        for key, (directory, record, flat) in zip(keys, runs, strict=True)
    ]


def read_options(directory: Path, record: JsonObject) -> Options:
    """Returns the options that the results depend on, by their full names; from Python there is only the record."""
    flat = flatten_options(read_config(directory) or _reconstruct_config(record), "")
    return {
        name: value
        for name, value in flat.items()
        if name not in NOT_COMPARED and not name.startswith(_GROUPS_NOT_COMPARED)
    }


def read_config(directory: Path) -> JsonObject | None:
    """Returns the config.yaml of a run; None without one, or with one that is damaged."""
    path = directory / CONFIG
    try:
        return read_plain(path) if path.is_file() else None
    except UserError:
        return None


def _reconstruct_config(record: JsonObject) -> JsonObject:
    settings = record.get("settings") or {}
    names = {
        name: {"name": (record.get(name) or {}).get("name"), **settings.get(name, {})} for name in ("task", "student")
    }
    teacher = {"name": (record.get("teacher") or {}).get("requested")}
    return {**settings, **names, "teacher": teacher, "objective": record.get("objective")}


def _create_row(options: Options, shown: Options, runs: Runs, names: Mapping[str, str]) -> Row:
    """Returns the row of runs that differ in their seeds; of two runs with the same seed the later one counts."""
    entries = read_seeds(runs)
    task: JsonObject = next((record["task"] for _, record in reversed(runs) if record["task"]), {})
    errors = [str(record["error"] or "unfinished") for _, record in runs if record["status"] != "finished"]
    taught = [record for _, record in runs if record["teacher"]] if task else []
    timed = Results(next((record for _, record in reversed(runs) if record["benchmark"]), {"benchmark": []}))
    untaught = {seed: found for seed, entry in entries.items() if (found := entry.get("baseline"))}
    seconds = [value for entry in entries.values() if (value := entry.get("seconds")) is not None]
    return Row(
        label=describe_options(shown, names) or f"objective={options.get('objective.name') or 'unknown'}",
        names=names, options=shown, task=task, error=errors[-1] if errors else None,
        directories=[directory for directory, _ in runs], files=_collect_files(entries, task, timed),
        teacher=_describe_teacher(taught[-1], task) if taught else None,
        metrics={split: read_metric(entries, task, split, entries=entries) for split in (DEV, TEST)},
        baselines={split: read_metric(untaught, task, split, entries=entries, model="baseline")
                   for split in (DEV, TEST)},
        conditions=timed.conditions(), margin=Results(runs[-1][1]).margin,
        seconds=sum(seconds) / len(seconds) if seconds else None,
    )  # fmt: skip


def _describe_teacher(record: JsonObject, task: JsonObject) -> TeacherResult:
    results, values = Results(record), record["teacher"]["metrics"]
    timing, own = results.timing("teacher", "torch"), results.fastest_teacher_file()
    metrics = {
        split: None if value is None else read_measured(value, record, "teacher", split)
        for split in (DEV, TEST) for value in [values.get(metric_name(task, split))]
    }  # fmt: skip
    return TeacherResult(
        str(record["teacher"]["resolved"]), metrics, timing["p50_ms"] if timing else None, results.teacher_bytes(),
        (number_format(own), own["p50_ms"]) if own else None,
    )  # fmt: skip


def _collect_files(entries: Mapping[int, JsonObject], task: JsonObject, timed: Results) -> dict[str, FileResult]:
    """Returns the exported files of all seeds by format, with the times of the last run that was timed."""
    found: dict[str, FileResult] = {}
    for format in dict.fromkeys(format for entry in entries.values() for format in entry["export"]):
        files = {seed: entries[seed]["export"][format] for seed in sorted(entries) if format in entries[seed]["export"]}
        last, failed = list(files.values())[-1], [file for file in files.values() if file["gate"] != "passed"]
        timing = timed.timing("student", timed_name(format, last["file"]))
        found[format] = FileResult(
            file=last["file"], metrics={split: read_metric(files, task, split) for split in (DEV, TEST)},
            bytes=last["bytes"], p50_ms=timing["p50_ms"] if timing else None, passed=not failed,
            verdicts=list(dict.fromkeys(describe_gate(file) for file in failed if file.get("reason"))),
        )  # fmt: skip
    return found


def _list_seeds(record: JsonObject) -> list[JsonObject]:
    """Returns the results of each seed of a run."""
    is_one = record["status"] == "finished" and record["student"]
    return record.get("seeds") or ([create_seed(record)] if is_one else [])


def read_seeds(runs: Runs) -> dict[int, JsonObject]:
    """Returns the results of each seed of a row."""
    return {int(entry["seed"]): entry for _, record in runs for entry in _list_seeds(record)}


def read_metric(
    models: Mapping[int, JsonObject], task: JsonObject, split: str, *, entries: Mapping[int, JsonObject] | None = None,
    model: str = "student",
) -> dict[int, float]:  # fmt: skip
    """Returns the task's metric of each seed: of the exported fp32 file, or of what has none.

    Args:
        models: by seed, the results of a student, a file or a baseline.
        entries: by seed, the results that have the parts of its metric; None for a metric without any.
        model: the name of these parts.
    """
    found = {
        seed: ((models[seed].get("export") or {}).get("fp32") or models[seed])["metrics"].get(metric_name(task, split))
        for seed in sorted(models)
    }
    return {
        seed: read_measured(value, (entries or {}).get(seed) or {}, model, split)
        for seed, value in found.items() if value is not None
    }  # fmt: skip


def _without_objective(options: Options) -> str:
    rest = {name: value for name, value in options.items() if name.partition(".")[0] != "objective"}
    return json.dumps(rest, sort_keys=True, default=str)


def _compare_itself(row: Row, runs: Runs) -> Row:
    """Returns the row with its differences from its own baseline and teacher.

    Those of one seed are of run.json, because its run compared the two on the same examples.
    """
    if not row.values:
        return row
    teachers = {} if row.teacher_score is None else dict.fromkeys(row.scores, row.teacher_score)
    gain, from_teacher = row.compare(row.baselines[row.split]), row.compare(teachers)
    recorded: JsonObject = {}
    if len(row.scores) == 1:
        entry = read_seeds(runs)[next(iter(row.scores))]
        recorded = {
            name: found for name, found in (entry.get("comparison") or {}).items()
            if found.get("split", DEV) == row.split and found["over"] == "examples"
        }  # fmt: skip
    return replace(
        row, gain=gain and recorded.get("baseline", gain),
        from_teacher=from_teacher and recorded.get("teacher", from_teacher),
    )  # fmt: skip


def _order(row: Row) -> tuple[bool, Sequence[object], float]:
    """Returns the position of a row: by task, the best first, and at the end what has no result."""
    found = row.spread()
    if found is None:
        return True, natural_key(row.label), 0.0
    return False, natural_key(str(row.task["name"])), -row.unit.gain(found["mean"])


MOST_NAMES = 5  # Rows that a sentence names.


def compare_with_first(rows: Sequence[Row]) -> list[Difference | None]:
    """Returns the difference of each row from the first one; None for that one and for a row without a result."""
    first = rows[0] if rows else None
    return [None if first is None or row is first else row.compare(first.scores) for row in rows]


def describe_ranking(rows: Sequence[Row]) -> str | None:
    """Returns whether one row is ahead of the others, in words; None for fewer than two rows with a result."""
    scored = [row for row in rows if row.values]
    if len(scored) < 2:
        return None
    first, *others = scored
    pairs = list(zip(others, compare_with_first(scored)[1:], strict=True))
    outcomes = [judge_row(difference, first) for _, difference in pairs]
    equal, close = (
        [row.label for (row, _), outcome in zip(pairs, outcomes, strict=True) if outcome in of]
        for of in ((EQUAL,), (UNDECIDED, UNKNOWN))
    )
    ahead = [row.label for row, of in pairs if not is_noise(of) and _gain(of, first) > 0]
    name = f"{first.label} ({_describe_value(first)})"
    if ahead:
        return f"No best row: {name} is the first by dev, and ahead of it on test, beyond noise, {_name(ahead)}."
    if close or equal:
        relations = {"not told apart from": close, f"within {first.unit.format_margin(first.margin)} of": equal}
        words = [f"{_count(of, len(others))} {relation} the first" for relation, of in relations.items() if of]
        rest = [f"{words[0]}, {name}: {_name(close or equal)}", *(f"{of}: {_name(equal)}" for of in words[1:])]
        return f"No best row: {'; '.join(rest)}.{_explain(first)}"
    nearest, difference = max(pairs, key=lambda pair: _gain(pair[1], first))
    assert difference is not None
    ends = first.unit.format_ends(difference["interval"] or ())
    behind = f"the nearest one, {nearest.label}, has {first.unit.format(difference['difference'])} ({ends})"
    return f"The first row is ahead of the others beyond noise: {name}; {behind}."


def judge_row(difference: Difference | None, first: Row) -> str:
    """Returns whether a row is better than the first one, equal to it within the margin, worse, or undecided."""
    if difference is None or difference["interval"] is None:
        return UNKNOWN
    other = spread(list(first.scores.values()))["mean"]
    return first.unit.judge(dict(difference), first.unit.scale_margin(first.margin, other))


def _count(labels: Sequence[str], number: int) -> str:
    """Returns how many of the other rows these are, as a sentence begins."""
    if number == 1:
        return "the other row is"
    return f"{len(labels)} of {number} other rows {'is' if len(labels) == 1 else 'are'}"


def _gain(difference: Difference | None, first: Row) -> float:
    """Returns by how much a row is better than the first one."""
    return first.unit.gain(difference["difference"] if difference else 0.0)


def _describe_value(row: Row) -> str:
    """Returns the metric of a row with its interval, its split and its seeds."""
    found = row.estimate(row.scores)
    shown: Spread = spread(list(row.scores.values()))
    words = [f"{row.task['metric']} {format_spread(shown)} on {row.split}"]
    if found and found.interval:
        words.append(f"95% interval {found.interval[0]:.4f} to {found.interval[1]:.4f}")
    return ", ".join([*words, name_seeds(sorted(row.scores))])


def _explain(first: Row) -> str:
    """Returns what to do about one seed, and the reason why dev orders rows that test compares."""
    advice = " One seed decides little: set seeds=3." if len(first.scores) < 2 else ""
    order = " Dev orders the rows, because a row that was chosen by test would be too good on it."
    return advice + (order if first.split == TEST else "")


def _name(labels: Sequence[str]) -> str:
    rest = len(labels) - MOST_NAMES
    names = ", ".join(labels[:MOST_NAMES])
    return f"{names} and {rest} more" if rest > 0 else names
