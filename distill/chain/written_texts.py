"""The texts that the teacher and the exported files write for the sources of dev and test, and their comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distill.console import format_duration
from distill.contracts import Data
from distill.data.tables import LabelledData, Split
from distill.export.bundle import Texts
from distill.export.formats import FLOAT32
from distill.export.generation import count_positions
from distill.models.decoding import describe_rules
from distill.records.predictions import REFERENCES, WRITTEN
from distill.tasks.text_metrics import CORPUS, break_down_by_length, combine_examples, score_examples
from distill.tasks.writing import Writing
from distill.teaching.prepared import PreparedTeacher
from distill.teaching.targets import BeamWriter, WrittenTexts, open_texts
from distill.training.statistics import Difference, compare_corpora, compare_means

TEACHER = "teacher"
LONGEST = 2**20  # Tokens of a source for a model without positions.


@dataclass(frozen=True)
class TeacherTexts:
    """The texts of a teacher for the sources of the splits that are scored, cached as its targets are.

    Args:
        writer: writes the missing ones.
        texts: those of the cache.
        sources: of each split that texts are written for.
        sizes: all examples of each split.
    """

    writer: BeamWriter
    texts: WrittenTexts
    sources: Mapping[str, Sequence[str]]
    sizes: Mapping[str, int]

    @property
    def decoding(self) -> dict[str, Any]:
        """Returns the rules that the texts of the teacher and of all files are written by."""
        rules = {name: value for name, value in describe_rules(self.writer.model).items() if name != "num_beams"}
        return {"beams": self.writer.beams, "max_new_tokens": self.writer.max_target, **rules}

    def describe(self) -> str:
        """Describes for how many sources texts are written, by which rules, and the time that the teacher takes."""
        counts = ", ".join(f"{len(of):,} of {self.sizes[split]:,} in {split}" for split, of in self.sources.items())
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
        return {split: [{"text": by_source[source][0]} for source in of] for split, of in self.sources.items()}


def open_teacher_texts(teacher: PreparedTeacher, data: Data, *, cache_dir: Path) -> TeacherTexts | None:
    """Returns the texts of a teacher; None for a task whose texts are not scored."""
    writing = data.scoring.writing
    if writing is None:
        return None
    model, splits = teacher.running(), _splits(data)
    # The exported files cut a source where it has more tokens than positions too.
    positions = count_positions(model) or LONGEST
    beams = writing.beams or model.generation_config.num_beams or 1
    writer = BeamWriter(model, teacher.tokenizer, beams, positions, writing.max_target)
    sources = {name: [split["source"][row] for row in writing.rows(len(split))] for name, split in splits.items()}
    every = [source for of in sources.values() for source in of]
    texts = open_texts(every, writer, fingerprint=teacher.fingerprint, cache_dir=cache_dir)
    return TeacherTexts(writer, texts, sources, {name: len(split) for name, split in splits.items()})


def compare_texts(models: Mapping[str, Texts], data: Data, decoding: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the `texts` of run.json: of each split the differences of the models, and their metrics by length.

    Each file is compared with the teacher, and with the float32 file.

    Args:
        models: the texts of the teacher and of each file.
        decoding: the rules that all of them are written by.
    """
    writing = _writing(data)
    return {
        name: {
            **_compare_split({model: texts[name] for model, texts in models.items()}, split, writing),
            "beams": decoding["beams"], "decoding": dict(decoding),
        }
        for name, split in _splits(data).items()
    }  # fmt: skip


def list_columns(models: Mapping[str, Texts], data: Data) -> dict[str, dict[str, list[Any]]]:
    """Returns the columns of predictions.parquet for each split: `references`, and `NAME_written` of each model.

    A row that no text was written for has none in the latter.
    """
    writing, columns = _writing(data), dict[str, dict[str, list[Any]]]()
    for name, split in _splits(data).items():
        columns[name] = {REFERENCES: split["references"]}
        for model, texts in models.items():
            values: list[Any] = [None] * len(split)
            for row, prediction in zip(writing.rows(len(split)), texts[name], strict=True):
                values[row] = prediction["text"]
            columns[name][f"{model}{WRITTEN}"] = values
    return columns


def _compare_split(models: Mapping[str, Sequence[Mapping[str, Any]]], split: Split, writing: Writing) -> dict[str, Any]:
    chosen = split.select(np.array(writing.rows(len(split))))
    references = chosen["references"]
    columns = {
        model: score_examples([prediction["text"] for prediction in texts], references, writing.metrics)
        for model, texts in models.items()
    }
    worst = score_examples([""] * len(chosen), references, writing.metrics)
    pairs = [
        (model, reference) for model in models for reference in (TEACHER, FLOAT32) if model not in (TEACHER, reference)
    ]
    comparison: dict[str, dict[str, dict[str, Difference]]] = {}
    for model, reference in pairs:
        comparison.setdefault(model, {})[reference] = _compare(columns[model], columns[reference], worst)
    return {
        "sources": len(chosen),
        "comparison": comparison,
        "lengths": {model: break_down_by_length(of, chosen["source"]) for model, of in columns.items()},
    }


def _compare(
    columns: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], worst: Mapping[str, np.ndarray]
) -> dict[str, Difference]:
    """Returns the difference of each metric of two models with its interval."""

    def compare(metric: str) -> Difference:
        if metric not in CORPUS:
            return compare_means(columns[metric], others[metric])
        return compare_corpora(
            columns[metric], others[metric], worst[metric], combine=lambda rows: combine_examples(metric, rows)
        )

    return {metric: compare(metric) for metric in columns}


def _writing(data: Data) -> Writing:
    writing = data.scoring.writing
    assert writing is not None  # Callers have the texts of one.
    return writing


def _splits(data: Data) -> Mapping[str, Split]:
    assert isinstance(data, LabelledData)  # Other tasks write no texts that are scored.
    return data.scored()
