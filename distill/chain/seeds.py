"""Several students in one run: their plans and records, and what `seeds=N` adds to run.json.

The first student is published in `student/` and `bundle/`, not the best one. A student chosen by its metric on dev has
a metric that is too high, by more the more seeds there are. The first one is an ordinary draw, and its weights are
those of a run with `seeds=1`. Every other student has a directory `seeds/<seed>` with its own checkpoints, model and
bundle, so that a user can still choose another one.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distill.chain.plan import Plan
from distill.console import print_line
from distill.contracts import Scores
from distill.errors import OptionError
from distill.events import events
from distill.options import show_value
from distill.records.intervals import read_measured
from distill.records.record import Run, create_record, open_run
from distill.records.shape import first_metric, first_split
from distill.storage.files import JsonObject
from distill.tasks.scoring import Scoring
from distill.training.callbacks import copy_callbacks
from distill.training.parts import measure_parts
from distill.training.statistics import Difference, Spread, compare_examples, compare_seeds, spread

RECORD = "seed.json"  # Of a further student, with the fields of run.json.
SHARED = (
    "job", "command", "config_sha256", "version", "task", "objective", "teacher", "baseline_choice", "environment",
)  # fmt: skip
LARGEST = 2**32 - 1  # Seed of the libraries.


def check(plan: Plan) -> None:
    """Raises OptionError for a number of seeds that cannot be."""
    if not isinstance(plan.seeds, int) or isinstance(plan.seeds, bool) or plan.seeds < 1:
        raise OptionError("seeds", show_value(plan.seeds), "a whole number of at least 1")
    highest = max(plan.seed, plan.trainer.seed) + plan.seeds - 1
    if plan.seeds > 1 and highest > LARGEST:
        raise OptionError("seeds", str(plan.seeds), f"a last seed of at most {LARGEST}, and it is {highest}")


def further_plans(plan: Plan) -> list[Plan]:
    """Returns the plans of all students but the first, which are not timed. Call it before the first training."""
    return [
        replace(
            plan, seed=plan.seed + number, objective=copy.deepcopy(plan.objective),
            trainer=replace(plan.trainer, seed=plan.trainer.seed + number),
            benchmark=replace(plan.benchmark, enabled=False), callbacks=copy_callbacks(plan.callbacks),
        )
        for number in range(1, plan.seeds)
    ]  # fmt: skip


def is_finished(run: Run, plan: Plan) -> bool:
    """Returns whether the first student of several is in the record of its run already."""
    return plan.seeds > 1 and any(entry["seed"] == plan.seed for entry in run.record.get("seeds") or [])


def unfinished(run: Run, plans: Sequence[Plan]) -> Iterator[tuple[Plan, Run]]:
    """Yields each further plan that is not finished, with the run in its own directory, and collects the results."""
    for number, plan in enumerate(plans, 2):
        directory = run.directory / "seeds" / str(plan.seed)
        name = f"seed {plan.seed}, student {number} of {plan.seeds}"
        if (directory / RECORD).is_file():
            seed_run = open_run(directory, file=RECORD)
        else:
            directory.mkdir(parents=True, exist_ok=True)
            seed_run = Run(directory, create_record(seed=plan.seed), RECORD)
        if seed_run.record["status"] == "finished":
            print_line(f"Finished before: {name}")
        else:
            print_line(f"Now {name}")
            seed_run.update(**{field: run.record[field] for field in SHARED if field in run.record})
            events.name_run(directory)
            yield plan, seed_run
            events.name_run(run.directory)
            seed_run.update(status="finished")
        add(run, seed_run.record)


def add(run: Run, record: JsonObject) -> None:
    """Adds the results of a seed to the record of its run."""
    entry = {
        "seed": record["seed"], "metrics": record["student"]["metrics"], "retention": record["retention"],
        "export": record["export"], "baseline": record["baseline"], "comparison": record["comparison"],
        "seconds": record["training"]["seconds"], "parts": record.get("parts"),
    }  # fmt: skip
    others = [other for other in run.record.get("seeds") or [] if other["seed"] != entry["seed"]]
    run.update(seeds=sorted([*others, entry], key=lambda other: int(other["seed"])))


def summarize(run: Run) -> None:
    """Sets mean and deviation of every metric, and the comparisons on the split that stands first."""
    seeds, task = run.record["seeds"], run.record["task"]
    metric, split = first_metric(task), first_split(task)
    values = [read_measured(entry["metrics"][metric], entry, "student", split) for entry in seeds]
    teacher = read_measured(run.record["teacher"]["metrics"][metric], run.record, "teacher", split)
    comparison = {"teacher": compare_seeds(values, [teacher] * len(values))}
    if all(entry["baseline"] for entry in seeds):
        baselines = [read_measured(entry["baseline"]["metrics"][metric], entry, "baseline", split) for entry in seeds]
        comparison["baseline"] = compare_seeds(values, baselines)
    summary = {name: _summarize_metric(name, seeds) for name in seeds[0]["metrics"]}
    run.update(summary=summary, comparison={name: {**of, "split": split} for name, of in comparison.items()})


def _summarize_metric(name: str, seeds: Sequence[JsonObject]) -> dict[str, object]:
    """Returns the spread of a metric: of the students in torch, of the files that all of them have, and baselines."""
    exports = [entry["export"] for entry in seeds]
    files = {
        file: spread([export[file]["metrics"][name] for export in exports])
        for file in exports[0]
        if all(name in export.get(file, {}).get("metrics", {}) for export in exports)
    }
    result: dict[str, Any] = {**_of([entry["metrics"] for entry in seeds], name), "files": files}
    if all(entry["baseline"] for entry in seeds):
        result["baseline"] = _of([entry["baseline"]["metrics"] for entry in seeds], name)
    return result


def _of(metrics: Sequence[Mapping[str, float]], name: str) -> Spread:
    return spread([values[name] for values in metrics])


def measure(scoring: Scoring, models: Mapping[str, Mapping[str, Scores] | None]) -> JsonObject:
    """Returns the `parts` of run.json: of each model and split those of the task's metric, where it has some."""
    return {
        name: {split: parts.record() for split, of in scores.items() if (parts := measure_parts(scoring, of))}
        for name, scores in models.items()
        if scores
    }


def compare(
    scoring: Scoring,
    models: Mapping[str, Mapping[str, Scores] | None],
    parts: JsonObject,
    *,
    split: str,
    seeds: int,
) -> dict[str, Difference]:
    """Compares a student with its `baseline` and its `teacher`, as far as there are both, over the examples of a split.

    A metric that is no mean over examples takes seconds to resample. It is resampled in a run with one seed and a
    baseline alone. Others are compared by their parts.

    Args:
        models: the scores of each model by split, those of the student too.
        parts: of the same models, as `measure` returns them.
    """
    only_means = models["baseline"] is None or seeds > 1
    results: dict[str, Difference] = {}
    for name in ("baseline", "teacher"):
        student, other = models["student"], models[name]
        if not student or not other:
            continue
        found = compare_examples(scoring, student[split], other[split], only_means=only_means)
        if found is None:
            values, others = (
                [read_measured(scoring.selecting_metric(of[split]), {"parts": parts}, model, split)]
                for model, of in (("student", student), (name, other))
            )
            found = compare_seeds(values, others)
        if found is not None and found["interval"] is not None:
            results[name] = {**found, "split": split}
    return results
