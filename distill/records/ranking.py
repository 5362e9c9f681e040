"""Ranks of the values of an option, such as the objective, over the tasks of several runs."""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distill.core.errors import UserError, suggest
from distill.core.files import JsonObject
from distill.records.comparison import Row, Runs, compare_runs, read_options
from distill.records.experiment_table import DIFFERENCES, VALUES, TablePage
from distill.records.plots import SERIES, Figure, draw, label_axes
from distill.records.row_tables import LatexTable
from distill.records.run import hide_in_text, show_command
from distill.records.schema import TEST
from distill.records.verdict import MISSING, Options, describe_options, format_number, format_spread, shorten_names
from distill.training.statistics import LEVEL, POWER, Difference, compare_all, is_noise, smallest_shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKING = "ranking.json"
USUAL = "hinton"  # The value that others are compared with.


@dataclass(frozen=True)
class Entry:
    """A value of the option on a task: its setting that is best on dev.

    Attributes:
        row: its runs.
        setting: the options in which it differs from the other settings of the value, in words; empty for a single one.
        settings: number of them.
        seconds: of a step of its training, the least of the runs, to which other work of a machine only adds; None
            where it is not known.
    """

    row: Row
    setting: str
    settings: int
    seconds: float | None

    def score(self, seeds: Iterable[int] | None = None) -> float:
        """Returns the mean over seeds, None for all, signed so that more is better."""
        chosen = self.row.scores if seeds is None else seeds
        return self.row.unit.gain(statistics.fmean(self.row.scores[seed] for seed in chosen))


@dataclass(frozen=True)
class Ranking:
    """The values of an option on several tasks.

    Ranks are those of Friedman's test as Demsar (2006) describes it: 1 for the best value on a task, by the mean over
    seeds, and with a single task a rank for each seed. They are of the largest part of the table that has no gaps.

    Attributes:
        option: whose values are ranked.
        against: the value that others are compared with.
        entries: by task and value.
        command: of the report.
    """

    option: str
    against: str
    entries: Mapping[str, Mapping[str, Entry]]
    command: Sequence[str]

    @classmethod
    def of(cls, runs: Runs, option: str, against: str | None, command: Sequence[str]) -> "Ranking":
        """Returns the ranking of the runs of `job=distill`.

        Raises:
            UserError: for an option in which the runs do not differ, and a value that none of them has.
        """
        records = {directory: record for directory, record in runs if record["job"] == "distill" and record["task"]}
        options = {path: read_options(path, record) for path, record in records.items()}
        tasks = _name_tasks(records, options)
        by_task = {
            name: [
                row for row in compare_runs([(path, records[path]) for path in records if tasks[path] == name])
                if row.scores and row.values
            ]
            for name in dict.fromkeys(tasks.values())
        }  # fmt: skip
        keys = [key for key in (f"{option}.name", option) if any(key in of for of in options.values())]
        values = {path: str(of.get(keys[0])) for path, of in options.items()} if keys else {}
        if len(set(values.values())) < 2:
            reason = "all runs have the same one" if keys else "no run has it"
            known = dict.fromkeys(name.removesuffix(".name") for of in options.values() for name in of)
            raise UserError(
                f"report.rank={option} ranks nothing, because {reason}{suggest(option, list(known))}: give an "
                "option in which the runs differ, like objective or student"
            )
        entries = {task: dict(_choose(rows, values, options, records)) for task, rows in by_task.items()}
        names = list(dict.fromkeys(values.values()))
        if against is not None and against not in names:
            raise UserError(f"report.against={against} is no {option} of the runs, expected one of {', '.join(names)}")
        return cls(option, against or (USUAL if USUAL in names else names[0]), entries, command)

    @cached_property
    def values(self) -> list[str]:
        """The values of the option, those with ranks first, the best one before the others."""
        names = dict.fromkeys(name for of in self.entries.values() for name in of)
        return sorted(names, key=lambda name: self.ranks.get(name, len(names) + 1))

    @cached_property
    def part(self) -> tuple[list[str], list[str]]:
        """The values and the tasks of the largest part of the table without gaps."""
        names = dict.fromkeys(name for of in self.entries.values() for name in of)
        tasks_of = {name: frozenset(task for task, of in self.entries.items() if name in of) for name in names}
        parts = set(tasks_of.values())
        for tasks in tasks_of.values():
            parts |= {part & tasks for part in parts}
        complete = {part: [name for name, tasks in tasks_of.items() if part <= tasks] for part in parts if part}
        best = max(complete, key=lambda part: (len(part) * len(complete[part]), len(part)))
        return complete[best], [task for task in self.entries if task in best]

    @cached_property
    def blocks(self) -> np.ndarray:
        """The numbers that are ranked, `[blocks, values]`, more of which is better: those of tasks, or of seeds."""
        tasks, seeds = self.part[1], self._seeds()
        if len(tasks) > 1 or not seeds:
            return self._scores()
        return np.concatenate([self._scores([seed]) for seed in seeds])

    def _scores(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Returns the means over seeds of the ranked part, `[tasks, values]`, more of which is better."""
        names, tasks = self.part
        return np.array([[self.entries[task][name].score(seeds) for name in names] for task in tasks])

    def _seeds(self) -> list[int]:
        """Returns the seeds that all ranked runs have."""
        names, tasks = self.part
        return sorted(set.intersection(*(set(self.entries[task][name].row.scores) for task in tasks for name in names)))

    @cached_property
    def ranks(self) -> dict[str, float]:
        """The mean rank of each value."""
        return dict(zip(self.part[0], _mean_ranks(self.blocks).tolist(), strict=True))

    def friedman(self) -> tuple[float, float] | None:
        """Returns Friedman's chi-square and its p; None for fewer than three values or two blocks, or all alike."""
        from scipy import stats

        blocks, number = self.blocks.shape
        if number < 3 or blocks < 2:
            return None
        found = stats.friedmanchisquare(*self.blocks.T)
        return (float(found.statistic), float(found.pvalue)) if np.isfinite(found.statistic) else None

    def critical_difference(self) -> float:
        """Returns the difference of two mean ranks above which they differ at 95% (Nemenyi, 1963)."""
        from scipy import stats

        blocks, number = self.blocks.shape
        quantile = stats.studentized_range.ppf(LEVEL, number, np.inf) / np.sqrt(2)
        return float(quantile * np.sqrt(number * (number + 1) / (6 * blocks)))

    def halves(self) -> float | None:
        """Returns Kendall's tau of the mean ranks over two halves of the seeds, the mean over all ways to cut them.

        It is None for fewer than two seeds or values, or where all are alike.
        """
        from scipy import stats

        seeds, found = self._seeds(), []
        if len(seeds) < 2 or len(self.ranks) < 2:
            return None
        for half in itertools.combinations(seeds, len(seeds) // 2):
            parts = half, [seed for seed in seeds if seed not in half]
            found.append(stats.kendalltau(*(_mean_ranks(self._scores(part)) for part in parts)).statistic)
        known = [tau for tau in found if np.isfinite(tau)]
        return float(np.mean(known)) if known else None

    @cached_property
    def differences(self) -> dict[str, dict[str, Difference]]:
        """The differences from `against` by task and value. The intervals of a task hold together."""
        found = {}
        for task, of in self.entries.items():
            if self.against in of:
                reference = of[self.against].row
                others = {name: entry.row.scores for name, entry in of.items() if name != self.against}
                found[task] = compare_all(others, reference.scores, reference.examples)
        return found

    def cost(self, name: str) -> float | None:
        """Returns the seconds of a step as a factor of those of `against`, the median over the tasks of both."""
        pairs = [[of[key].seconds for key in (name, self.against) if key in of] for of in self.entries.values()]
        factors = [pair[0] / pair[1] for pair in pairs if len(pair) == 2 and pair[0] and pair[1]]
        return statistics.median(factors) if factors else None

    def record(self) -> JsonObject:
        """Returns all of it as JSON."""
        names, tasks = self.part
        friedman = self.friedman()
        return {
            "option": self.option, "against": self.against,
            "tasks": {
                task: {
                    name: {
                        "metric": entry.row.task["metric"], "split": entry.row.split, "values": dict(entry.row.scores),
                        "dev": dict(entry.row.values), "setting": entry.setting, "settings": entry.settings,
                        "seconds_per_step": entry.seconds,
                        "difference": self.differences.get(task, {}).get(name),
                    }
                    for name, entry in of.items()
                }
                for task, of in self.entries.items()
            },
            "ranks": self.ranks, "ranked_tasks": tasks, "blocks": len(self.blocks),
            "critical_difference": self.critical_difference() if len(names) > 1 else None,
            "friedman": friedman and {"chi_square": friedman[0], "p": friedman[1]},
            "kendall_of_halves": self.halves(), "cost": {name: self.cost(name) for name in self.values},
        }  # fmt: skip

    def describe(self) -> TablePage:
        """Returns the page of the ranking."""
        title, sentences = f"Ranks by {self.option}", list(self._sentences())
        caption = " ".join([f"{title}.", *sentences])
        cells = {VALUES: list(self._value_cells()), DIFFERENCES: list(self._difference_cells())}
        return TablePage(
            title=title, reference=self.against, sentences=sentences, sources=[],
            tables={
                heading: LatexTable(f"{self.option} {heading}", caption, shown)
                for heading, shown in cells.items() if len(shown) > 1
            },
            command=show_command(hide_in_text(word) for word in self.command),
            figures={VALUES: [self._draw()] if len(self.ranks) > 1 else []}, record=self.record(),
        )  # fmt: skip

    def _value_cells(self) -> Iterator[list[str]]:
        yield [self.option, "rank", *(f"{task}: {_metric(of)}" for task, of in self.entries.items()), "cost"]
        for name in self.values:
            cells = [of[name].row.spread(of[name].row.split) if name in of else None for of in self.entries.values()]
            factor = format_number(self.cost(name), ".2f", "x")
            yield [name, format_number(self.ranks.get(name), ".1f"), *map(format_spread, cells), factor]

    def _difference_cells(self) -> Iterator[list[str]]:
        yield [self.option, "on", "difference", "could have shown", "sign", "setting"]
        for name in self.values:
            for task, of in self.entries.items():
                if (found := self.differences.get(task, {}).get(name)) is not None:
                    alone = of[name].row.compare(of[self.against].row.scores)
                    shown = _describe_difference(found, alone, of[name].row)
                    yield [name, task, *shown, of[name].setting or MISSING]

    def _sentences(self) -> Iterator[str]:
        names, tasks = self.part
        blocks = len(self.blocks)
        over = f"{blocks} tasks" if len(tasks) > 1 else f"{blocks} seed{'s' if blocks != 1 else ''} of {tasks[0]}"
        yield f"Ranks are the means over {over}, 1 for the best of {len(names)}. Costs are factors of {self.against}."
        several = [
            name for name in self.values if any(of[name].settings > 1 for of in self.entries.values() if name in of)
        ]
        if several:
            yield f"The setting with the best mean on dev counts, of {', '.join(several)}."
        if (found := self.friedman()) is not None:
            words = "they differ" if found[1] < 1 - LEVEL else "all may be alike"
            yield f"Friedman's test: chi-square {found[0]:.2f}, p = {found[1]:.3g}, so that {words}."
        if len(names) > 1:
            yield (
                f"Mean ranks that are less than {self.critical_difference():.2f} apart are not told apart (Nemenyi, "
                f"{LEVEL:.0%})."
            )
        if (tau := self.halves()) is not None:
            yield f"Kendall's tau of the ranks over two halves of the seeds, the mean over all ways to cut: {tau:.2f}."
        splits = [(task, entry.row.split) for task, of in self.entries.items() for entry in of.values()]
        untested = dict.fromkeys(task for task, split in splits if split != TEST)
        if untested:
            yield f"Scored on dev, on which settings are chosen too, for want of a test split: {', '.join(untested)}."
        gaps = [*(set(self.values) - set(names)), *(set(self.entries) - set(tasks))]
        if gaps:
            yield f"Not in the ranks, because a value lacks a task: {', '.join(sorted(gaps))}."
        yield (
            f"Differences are from {self.against}, paired by seed and example, with intervals that hold together at "
            f"{LEVEL:.0%} for all values of a task (Holm). `could have shown` is the smallest true difference that "
            f"{POWER:.0%} of such comparisons alone show."
        )

    def _draw(self) -> Figure:
        """Returns the mean ranks with bars that do not meet where two of them differ by the critical difference."""
        half = self.critical_difference() / 2
        shown = [name for name in self.values if name in self.ranks]

        def plot(axes: "Axes") -> None:
            ranks = [self.ranks[name] for name in shown]
            axes.errorbar(ranks, range(len(shown)), xerr=half, fmt="o", color=SERIES[0], capsize=3)
            axes.set_yticks(range(len(shown)), [label_axes(name, longest=24) for name in shown])
            axes.invert_yaxis()
            axes.set_xlabel(label_axes("mean rank, 1 is the best"))

        caption = (
            f"Mean ranks by {self.option}; two whose bars do not meet differ at {LEVEL:.0%} (Nemenyi's critical "
            f"difference {2 * half:.2f})"
        )
        return draw(caption, plot, name=f"{self.option} ranks", height=max(1.8, 1 + 0.25 * len(shown)))


def _mean_ranks(blocks: np.ndarray) -> np.ndarray:
    """Returns the mean rank of each column of `[blocks, values]`, 1 for the largest; equal numbers share theirs."""
    from scipy import stats

    ranks: np.ndarray = stats.rankdata(-np.round(blocks, 12), axis=1).mean(axis=0)
    return ranks


def _name_tasks(records: Mapping[Path, JsonObject], options: Mapping[Path, Options]) -> dict[Path, str]:
    """Returns the task of each run, with those of its options in which runs of the task differ."""
    values: dict[tuple[str, str], set[str]] = {}
    own = {
        path: (
            str(record["task"]["name"]),
            {name: of for name, of in options[path].items() if name.startswith("task.")},
        )
        for path, record in records.items()
    }
    for task, of_task in own.values():
        for name, value in of_task.items():
            values.setdefault((task, name), set()).add(str(value))
    found = {}
    for path, (task, of_task) in own.items():
        differing = {name: value for name, value in of_task.items() if len(values[task, name]) > 1}
        found[path] = " ".join(filter(None, (task, describe_options(differing, shorten_names(differing)))))
    return found


def _choose(
    rows: Sequence[Row], values: Mapping[Path, str], options: Mapping[Path, Options],
    records: Mapping[Path, JsonObject],
) -> Iterator[tuple[str, Entry]]:  # fmt: skip
    """Yields each value with its setting that is best on dev."""
    by_value: dict[str, list[Row]] = {}
    for row in rows:
        by_value.setdefault(values[row.directories[0]], []).append(row)
    for value, of_value in by_value.items():
        best = max(of_value, key=lambda row: row.unit.gain(statistics.fmean(row.values.values())))
        settings = [options[row.directories[0]] for row in of_value]
        own = options[best.directories[0]]
        differing = {name: of for name, of in own.items() if any(other.get(name) != of for other in settings)}
        trainings = [records[directory]["training"] or {} for directory in best.directories]
        seconds = [of["seconds"] / of["steps"] for of in trainings if of.get("seconds") and of.get("steps")]
        setting = describe_options(differing, shorten_names(differing))
        yield value, Entry(best, setting, len(of_value), min(seconds, default=None))


def _metric(entries: Mapping[str, Entry]) -> str:
    row = next(iter(entries.values())).row
    return f"{row.task['metric']} on {row.split}"


def _describe_difference(difference: Difference, alone: Difference | None, row: Row) -> list[str]:
    """Returns the cells of a difference: it with its interval, what it could have shown, and whether it is better.

    Args:
        alone: the difference with the 95% interval of a single comparison.
    """
    ends, least = difference["interval"], None if alone is None else smallest_shown(alone)
    words = f" ({row.unit.format_ends(ends)})" if ends else ""
    gain = row.unit.gain(difference["difference"])
    sign = MISSING if is_noise(difference) else "better" if gain > 0 else "worse"
    shown = MISSING if least is None else row.unit.format(least).lstrip("+")
    return [row.unit.format(difference["difference"]) + words, shown, sign]
