"""Metrics of a run in parts: by length, of written texts, and over seeds.

Several students in one run: their plans and records, and what `seeds=N` adds to run.json. The first student is
published in `student/` and `bundle/`, not the best one. A student chosen by its metric on dev has a metric that is too
high, by more the more seeds there are. The first one is an ordinary draw, and its weights are those of a run with
`seeds=1`. Every other student has a directory `seeds/<seed>` with its own checkpoints, model and bundle, so that a user
can still choose another one.
"""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from distill import edge
from distill.chain.plan import Plan
from distill.core.console import events, format_duration, print_line
from distill.core.contracts import Data, Scores
from distill.core.errors import OptionError
from distill.core.files import JsonObject
from distill.core.options import show_value
from distill.data.splits import LabelledData, Split
from distill.data.tokenization import count_tokens
from distill.export.bundle_writer import Scorer, Texts
from distill.export.onnx import count_positions
from distill.export.quantization import FLOAT32
from distill.kinds.scoring import (
    CORPUS,
    MetricError,
    Scoring,
    WritingSettings,
    break_down_by_length,
    combine_examples,
    score_examples,
)
from distill.models.decoding import describe_rules
from distill.records.prediction_analysis import REFERENCES, WRITTEN
from distill.records.run import Run, create_record, create_seed, open_run
from distill.records.schema import first_metric, first_split
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.writing import BeamWriter, WrittenTexts, open_texts
from distill.training import statistics
from distill.training.lightning_callbacks import copy_callbacks
from distill.training.statistics import Difference, Measured

ENDS = (128, 512, 1024, 2048, 4096, 8192)  # Tokens of the longest example of a group.
LEAST = 20  # Examples of a group.
Groups = Sequence[tuple[int, int]]
ByLength = dict[str, dict[str, float]]
Lengths = dict[str, dict[str, ByLength]]  # Of each split and model.
ModelScores = Mapping[str, Mapping[str, Scores]]  # The scores of each model by split.


def break_down_scores_by_length(models: ModelScores, data: Data, tokenizer: PreTrainedTokenizerBase) -> Lengths:
    """Returns the `lengths` of run.json: of each split, the metric of each model for each group of lengths.

    A split whose examples are in one group, or have no text, is left out.
    """
    scoring, first = data.scoring, next(iter(models.values()))
    by_split: Lengths = {}
    for name, split in data.scored().items():
        columns = split.text_columns()
        if not columns:  # Of a language model.
            continue
        lengths = measure_examples(columns, tokenizer)
        scored = scoring.rows(scoring.condense(first[name]))
        groups = find_groups(lengths[np.unique(scored)])
        if len(groups) > 1:
            by_split[name] = {
                model: score_groups(scoring, scores[name], lengths, groups) for model, scores in models.items()
            }
    return by_split


def measure_examples(
    columns: Mapping[str, Sequence[str | Sequence[str]]], tokenizer: PreTrainedTokenizerBase
) -> np.ndarray:
    """Returns the tokens of all texts of each example together, none of them cut off, `[N]`.

    Args:
        columns: of texts, or of lists of texts.
    """
    parts = [[[value] if isinstance(value, str) else list(value) for value in column] for column in columns.values()]
    texts = list(dict.fromkeys(text for column in parts for value in column for text in value))
    number = dict(zip(texts, count_tokens(texts, tokenizer).tolist(), strict=True))
    lengths = [[sum(number[text] for text in value) for value in column] for column in parts]
    return np.asarray(np.sum(lengths, axis=0))


def find_groups(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Returns the shortest and the longest length of each group, which has at least `LEAST` examples.

    >>> find_groups(np.repeat([30, 600, 900, 3000], [40, 20, 20, 3]))
    [(30, 128), (129, 3000)]
    """
    longest = int(lengths.max())
    groups: list[tuple[int, int]] = []
    first = int(lengths.min())
    for end in [*(end for end in ENDS if first <= end < longest), longest]:
        if np.count_nonzero((first <= lengths) & (lengths <= end)) >= LEAST:
            groups.append((first, end))
            first = end + 1
    if groups:  # The last examples may be too few.
        groups[-1] = (groups[-1][0], longest)
    return groups


def score_groups(scoring: Scoring, scores: Scores, lengths: np.ndarray, groups: Groups) -> ByLength:
    """Returns the metric of the task and the `number` of examples for each group of lengths.

    Args:
        lengths: of all examples of the split, `[N]`.
    """
    scores = scoring.condense(scores)
    rows, values = scoring.rows(scores), ByLength()
    for first, last in groups:
        chosen = (first <= lengths[rows]) & (lengths[rows] <= last)
        name = f"{first:,} to {last:,}"
        values[name] = {"number": float(len(np.unique(rows[chosen])))}
        with suppress(MetricError):  # A function of a user may need both classes.
            values[name][scoring.metric] = scoring.selecting_metric(scores.select(chosen))
    return values


def score_cuts(
    files: Mapping[str, Path], models: ModelScores, data: Data, lengths: Sequence[int], *, split: str
) -> Lengths:
    """Returns the `cuts` of run.json: the metric of each file on texts of a split that are cut to so many tokens.

    Each length has the number of `truncated` examples. The last length is that of the task.

    Args:
        files: of each model, in a bundle whose other files it shares.
        models: the scores of each model without a further cut, by split.
    """
    scoring, records = data.scoring, data.scored()[split].records()
    cuts: dict[str, ByLength] = {name: {} for name in files}
    numbers: dict[int, int] = {}
    for name, path in files.items():
        print_line(f"Scoring {name} on {split} with texts cut to {', '.join(map(str, sorted(lengths)))} tokens")
        for length in [*sorted(lengths), None]:
            bundle = edge.Bundle(path.parent, model=FLOAT32, threads=torch.get_num_threads(), max_length=length)
            read, scores = bundle.manifest["max_length"], models[name]
            if read not in numbers:
                numbers[read] = sum(map(bundle.truncates, records))
            found = scores[split] if length is None else Scorer(bundle, data, scores).score(path, split)
            metric = scoring.selecting_metric(found)
            cuts[name][str(read)] = {scoring.metric: metric, "truncated": float(numbers[read])}
    return {split: cuts}


TEACHER = "teacher"
LONGEST = 2**20  # Tokens of a source for a model without positions.


@dataclass(frozen=True)
class TeacherTexts:
    """The texts of a teacher for the sources of the splits that are scored, cached as its targets are.

    Args:
        settings: those of all texts, of the teacher and of the files.
        splits: those that are scored.
        writer: writes the missing ones.
        texts: those of the cache.
    """

    settings: WritingSettings
    splits: Mapping[str, Split]
    writer: BeamWriter
    texts: WrittenTexts

    @classmethod
    def open(cls, teacher: PreparedTeacher, data: Data, *, cache_dir: Path) -> "TeacherTexts | None":
        """Returns the texts of a teacher; None for a task whose texts are not scored."""
        settings = data.scoring.writing
        if settings is None:
            return None
        assert isinstance(data, LabelledData)  # Other tasks write no texts that are scored.
        model, splits = teacher.running(), data.scored()
        # The exported files cut a source where it has more tokens than positions too.
        positions = count_positions(model) or LONGEST
        beams = settings.beams or model.generation_config.num_beams or 1
        writer = BeamWriter(model, teacher.tokenizer, beams, positions, settings.max_target)
        sources = [source for split in splits.values() for source in _select_rows(split, settings)["source"]]
        texts = open_texts(sources, writer, fingerprint=teacher.fingerprint, cache_dir=cache_dir)
        return cls(settings, splits, writer, texts)

    @property
    def decoding(self) -> dict[str, Any]:
        """Returns the rules that the texts of the teacher and of all files are written by."""
        rules = {name: value for name, value in describe_rules(self.writer.model).items() if name != "num_beams"}
        return {"beams": self.writer.beams, "max_new_tokens": self.writer.max_target, **rules}

    def describe(self) -> str:
        """Describes for how many sources texts are written, by which rules, and the time that the teacher takes."""
        numbers = {name: len(self.settings.rows(len(split))) for name, split in self.splits.items()}
        counts = ", ".join(f"{numbers[name]:,} of {len(split):,} in {name}" for name, split in self.splits.items())
        cached = "which are in the cache"
        if self.texts.missing():
            cached = f"about {format_duration(self.texts.estimate_seconds(self.writer))}"
        return (
            f"sources {counts}: the teacher writes a text for each, {cached}, and so does every exported file, by "
            f"{', '.join(f'{name}={value}' for name, value in self.decoding.items())}; task.scored_texts=0 writes none"
        )

    def write(self) -> Texts:
        """Returns the texts of each split, after the missing ones are written."""
        if self.texts.missing():
            self.texts.write(self.writer)
        by_source = self.texts.by_source()
        return {
            name: [{"text": by_source[source][0]} for source in _select_rows(split, self.settings)["source"]]
            for name, split in self.splits.items()
        }

    def compare(self, models: Mapping[str, Texts]) -> dict[str, dict[str, Any]]:
        """Returns the `texts` of run.json: of each split the differences of the models, and their metrics by length.

        Each file is compared with the teacher, and with the float32 file.

        Args:
            models: the texts of the teacher and of each file.
        """
        compared = {}
        for name, split in self.splits.items():
            chosen = _select_rows(split, self.settings)
            written = {model: [prediction["text"] for prediction in texts[name]] for model, texts in models.items()}
            score = partial(score_examples, references=chosen["references"], metrics=self.settings.metrics)
            columns, worst = {model: score(texts) for model, texts in written.items()}, score([""] * len(chosen))
            comparison: dict[str, dict[str, dict[str, Difference]]] = {}
            for model, reference in itertools.product(models, (TEACHER, FLOAT32)):
                if model not in (TEACHER, reference):
                    of_model = comparison.setdefault(model, {})
                    of_model[reference] = _compare(columns[model], columns[reference], worst)
            lengths = {model: break_down_by_length(of, chosen["source"]) for model, of in columns.items()}
            compared[name] = {
                "sources": len(chosen), "comparison": comparison, "lengths": lengths, "beams": self.writer.beams,
                "decoding": self.decoding,
            }  # fmt: skip
        return compared

    def list_columns(self, models: Mapping[str, Texts]) -> dict[str, dict[str, list[Any]]]:
        """Returns the columns of predictions.parquet for each split: `references`, and `NAME_written` of each model.

        A row that no text was written for has none in the latter.
        """
        columns = dict[str, dict[str, list[Any]]]()
        for name, split in self.splits.items():
            columns[name] = {REFERENCES: split["references"]}
            for model, texts in models.items():
                written = dict(zip(self.settings.rows(len(split)), texts[name], strict=True))
                values = [written[row]["text"] if row in written else None for row in range(len(split))]
                columns[name][f"{model}{WRITTEN}"] = values
        return columns


def _select_rows(split: Split, settings: WritingSettings) -> Split:
    """Returns the rows of a split that texts are written for."""
    return split.select(np.array(settings.rows(len(split)), dtype=int))


def _compare(
    columns: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], worst: Mapping[str, np.ndarray]
) -> dict[str, Difference]:
    """Returns the difference of each metric of two models with its interval."""
    return {
        metric: statistics.compare_corpora(
            column, others[metric], worst[metric], combine=partial(combine_examples, metric)
        )
        if metric in CORPUS
        else statistics.compare_means(column, others[metric])
        for metric, column in columns.items()
    }


RECORD = "seed.json"  # Of a further student, with the fields of run.json.
SHARED = (
    "job", "command", "config_sha256", "version", "task", "objective", "teacher", "baseline_choice", "environment",
)  # fmt: skip
LARGEST = 2**32 - 1  # Seed of the libraries.


def check_seeds(plan: Plan) -> None:
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


def unfinished_seeds(run: Run, plans: Sequence[Plan]) -> Iterator[tuple[Plan, Run]]:
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
        add_seed(run, seed_run.record)


def add_seed(run: Run, record: JsonObject) -> None:
    """Adds the results of a seed to the record of its run."""
    entry = create_seed(record)
    others = [other for other in run.record.get("seeds") or [] if other["seed"] != entry["seed"]]
    run.update(seeds=sorted([*others, entry], key=lambda other: int(other["seed"])))


def summarize_seeds(run: Run) -> None:
    """Sets mean and deviation of every metric, and the comparisons on the split that stands first."""
    seeds, task = run.record["seeds"], run.record["task"]
    metric, split = first_metric(task), first_split(task)
    has_baselines = all(entry["baseline"] for entry in seeds)
    values = [statistics.read_measured(entry["metrics"][metric], entry, "student", split) for entry in seeds]
    teacher = statistics.read_measured(run.record["teacher"]["metrics"][metric], run.record, "teacher", split)
    others = {"teacher": [teacher] * len(values)}
    if has_baselines:
        others["baseline"] = [
            statistics.read_measured(entry["baseline"]["metrics"][metric], entry, "baseline", split) for entry in seeds
        ]
    comparison = {name: {**statistics.compare_seeds(values, of), "split": split} for name, of in others.items()}
    run.update(summary={name: summarize_metric(name, seeds) for name in seeds[0]["metrics"]}, comparison=comparison)


def summarize_metric(name: str, seeds: Sequence[JsonObject]) -> dict[str, object]:
    """Returns the spread of a metric: of the students in torch, of the files that all of them have, and baselines."""
    exports = [entry["export"] for entry in seeds]
    files = {
        file: statistics.spread([export[file]["metrics"][name] for export in exports])
        for file in exports[0]
        if all(name in export.get(file, {}).get("metrics", {}) for export in exports)
    }
    result: dict[str, Any] = {**statistics.spread([entry["metrics"][name] for entry in seeds]), "files": files}
    if all(entry["baseline"] for entry in seeds):
        result["baseline"] = statistics.spread([entry["baseline"]["metrics"][name] for entry in seeds])
    return result


def record_parts(scoring: Scoring, models: ModelScores) -> JsonObject:
    """Returns the `parts` of run.json: of each model and split those of the task's metric, where it has some."""
    return {
        name: {
            split: parts.record() for split, of in scores.items() if (parts := statistics.measure_parts(scoring, of))
        }
        for name, scores in models.items()
        if scores
    }


def compare_models(
    scoring: Scoring, models: ModelScores, parts: JsonObject, *, split: str, seeds: int
) -> dict[str, Difference]:
    """Compares a student with its `baseline` and its `teacher`, as far as there are both, over the examples of a split.

    A metric that is no mean over examples takes seconds to resample. It is resampled in a run with one seed and a
    baseline alone. Others are compared by their parts.

    Args:
        models: the scores of each model by split, those of the student too; none of a model that there is not.
        parts: of the same models, as `record_parts` returns them.
    """

    def measured(model: str) -> Measured:
        return statistics.read_measured(scoring.selecting_metric(models[model][split]), {"parts": parts}, model, split)

    results: dict[str, Difference] = {}
    for name in ("baseline", "teacher"):
        if not models["student"] or not models[name]:
            continue
        scores, others = models["student"][split], models[name][split]
        only_means = not models["baseline"] or seeds > 1
        found = statistics.compare_examples(scoring, scores, others, only_means=only_means)
        if found is None:
            found = statistics.compare_seeds([measured("student")], [measured(name)])
        if found["interval"] is not None:
            results[name] = {**found, "split": split}
    return results
