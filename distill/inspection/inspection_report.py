"""Writes an inspection: a page, its Markdown, and tables as Parquet files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from distill.core.files import atomic_file, make_directory
from distill.inspection.inspection import Inspection, Looked, heads_of
from distill.inspection.probes import Attribution
from distill.inspection.subjects import LEAST, compared_rows
from distill.records.pages import Report, render_html
from distill.records.plots import LINES, MARKERS, SERIES, Figure, draw, label_axes, plot_cells
from distill.records.report import render_template

if TYPE_CHECKING:
    from matplotlib.axes import Axes


PACKAGE = "distill.inspection"  # Of the templates.
_ADDS, _TAKES = "57, 135, 229", "235, 104, 52"  # Colours of words.


def render_attention(inspection: Inspection) -> Markup | None:
    models = [of for of in inspection.models if of.views]
    if not models:
        return None
    content = {
        "sentences": list(inspection.sentences),
        "models": [{"name": of.subject.name, "views": [view.encode() for view in of.views]} for of in models],
    }  # fmt: skip
    data = json.dumps(content).replace("<", "\\u003c")  # No end of the script can be in it.
    return render_html("attention.html.jinja", PACKAGE, data=Markup(data))


def render_words(inspection: Inspection) -> Markup | None:
    """Returns the shown sentences with their words coloured by what they add to the logit of the prediction."""
    asked = [of for of in inspection.models if of.attributions]
    if not asked:
        return None
    sentences = [
        [{"name": of.subject.name, "words": _colour_words(of.attributions[number])} for of in asked]
        for number in range(len(asked[0].attributions))
    ]
    return render_html("words.html.jinja", PACKAGE, sentences=sentences)


def _colour_words(found: Attribution) -> list[dict[str, Any]]:
    strongest = max(map(abs, found.integrated), default=0.0) or 1.0
    return [
        {
            "text": word, "title": f"{value:+.2f}",
            "style": f"background: rgba({_ADDS if value >= 0 else _TAKES}, {0.45 * abs(value) / strongest:.2f})"
            + ("; border-bottom: 2px dotted" if value < 0 else ""),
        }
        for word, value in zip(found.words, found.integrated, strict=True)
    ]  # fmt: skip


NAME = "inspect"  # Of the page and its Markdown.
# Sections with figures or HTML of their own.
ATTENTION, WORDS = "Attention", "What the predictions rest on"
SIMILARITY, PROBES = "Layers that are alike", "Probes"

Rows = list[dict[str, Any]]


def write_inspection(inspection: Inspection, directory: Path) -> Path:
    """Writes `inspect.html`, `inspect.md` and the tables as Parquet files, and returns the path of the page."""
    import pyarrow
    import pyarrow.parquet

    make_directory(directory)
    page = describe(inspection).write(directory, name=NAME)
    for name, rows in tables(inspection).items():
        if rows:
            with atomic_file(directory / f"{name}.parquet") as temporary:
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)
    return page


def tables(inspection: Inspection) -> dict[str, Rows]:
    """Returns the numbers of an inspection as tables by name, whose rows are of one model each."""
    found: dict[str, Rows] = {
        name: [] for name in ("heads", "probes", "relations", "clozes", "contexts", "attributions")
    }
    for of in inspection.models:
        model = {"model": of.subject.name}
        found["heads"] += [{**model, **row} for row in _head_rows(of)]
        found["probes"] += [
            {
                **model, "of": probes.of, **asdict(row), "selectivity": row.selectivity,
                "mix": None if probes.mix is None else probes.mix.weights[row.layer],
            }
            for probes in of.probes for row in probes.layers
        ]  # fmt: skip
        found["relations"] += [{**model, **asdict(row)} for row in of.relations]
        found["clozes"] += [
            {
                **model, **asdict(row.cloze), "rank": row.rank, "probability": row.probability, "best": row.best,
                "prefers": row.prefers,
            }
            for row in of.clozes
        ]  # fmt: skip
        found["contexts"] += [
            {**model, "layer": row.layer, "of": row.of.shown(), "nearest": other.shown(), "cosine": cosine}
            for row in of.neighbours for other, cosine in row.nearest
        ]  # fmt: skip
        found["attributions"] += [
            {**model, "sentence": number, "word": word, "gradient_times_input": product, "integrated_gradients": value}
            for number, row in enumerate(of.attributions)
            for word, product, value in zip(row.words, row.product, row.integrated, strict=True)
        ]  # fmt: skip
    found["groups"] = [
        {**asdict(group), "lost": group.lost, "loses_more": group.loses_more} for group in inspection.groups
    ]
    matrices = {"after": inspection.similarity, "before": inspection.before}
    found["similarity"] = [
        {
            "training": name, "first_layer": row, "second_layer": column, "cka": float(matrix[row, column]),
            "items": _compared_items(inspection),
        }
        for name, matrix in matrices.items() if matrix is not None for row, column in np.ndindex(*matrix.shape)
    ]  # fmt: skip
    return found


def _head_rows(of: Looked) -> Rows:
    """Returns the statistics of each head, with its importance and the metric without it where they were measured."""
    rows: Rows = []
    for head in of.seen.heads:
        row = {**asdict(head), "is_positional": head.is_positional}
        place = (head.layer - 1, head.head - 1)
        row["importance"] = of.importance[place[0]][place[1]] if of.importance else None
        row["without"] = of.masked[place[0]][place[1]] if of.masked else None
        rows.append(row)
    return rows


def describe(inspection: Inspection) -> Report:
    """Returns the page of an inspection."""
    models, names = inspection.models, [of.subject.name for of in inspection.models]
    first, scoring = models[0], models[0].subject.data.scoring
    errors = {of.subject.name: scoring.calibration_error(of.seen.scores) for of in models}
    markdown = render_template(
        "inspect.md.jinja", PACKAGE, **vars(inspection), names=names, metric=scoring.metric,
        task=first.subject.task.info.name, examples=len(np.unique(first.seen.scores.example_id)), least=LEAST,
        errors={name: error for name, error in errors.items() if error is not None},
        types=[scoring.breakdown(of.seen.scores) for of in models],
        attributions=list(_largest_attributions(inspection)), notes=list(_notes_on_heads(inspection)),
        heads=[(of, row) for of in models for row in _head_rows(of)], clozes=_cloze_cells(inspection),
        items=_compared_items(inspection),
        sections={"attention": ATTENTION, "words": WORDS, "similarity": SIMILARITY, "probes": PROBES},
    )  # fmt: skip
    matrices = {"after training": inspection.similarity, "before training": inspection.before}
    drawn = {
        SIMILARITY: [
            _draw_similarity(matrix, names[0], names[1], when)
            for when, matrix in matrices.items() if matrix is not None and matrix.size
        ],
        PROBES: [_draw_probes(models, of) for of in dict.fromkeys(probes.of for of in models for probes in of.probes)],
    }  # fmt: skip
    return Report(markdown, drawn, {ATTENTION: render_attention(inspection), WORDS: render_words(inspection)})


def _largest_attributions(inspection: Inspection) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields each sentence with the words that add or take most from the score of each model's prediction."""
    for number, sentence in enumerate(inspection.sentences):
        rows = []
        for of in inspection.models:
            if number < len(of.attributions):
                found = of.attributions[number]
                words = zip(found.words, found.integrated, strict=True)
                largest = sorted(words, key=lambda pair: -abs(pair[1]))[:6]
                rows.append((of.subject.name, ", ".join(f"{word} {value:+.2f}" for word, value in largest)))
        if rows:
            yield sentence, rows


def _notes_on_heads(inspection: Inspection) -> Iterator[str]:
    yield from (f"{of.subject.name} has no attention." for of in inspection.models if not of.subject.has_attention)
    for of in inspection.models:
        if of.subject.has_attention and not heads_of(of.subject.model):
            yield (
                f"The heads of {of.subject.name} are neither masked nor ranked: its layers are of another layout than "
                "BERT's."
            )


def _cloze_cells(inspection: Inspection) -> list[tuple[str, ...]]:
    """Returns the table of gaps by their group, the header first; nothing without any."""
    asked = [of for of in inspection.models if of.clozes]
    columns = ("right word first", "among 10", "mean rank")
    rows: list[tuple[str, ...]] = [("group", *(f"{of.subject.name}: {name}" for of in asked for name in columns))]
    for group in dict.fromkeys(row.cloze.group for of in asked for row in of.clozes):
        cells = [group]
        for of in asked:
            found = [row for row in of.clozes if row.cloze.group == group]
            ranks = np.array([row.rank for row in found])
            cells += [
                f"{np.mean([row.prefers for row in found]):.2f}", f"{(ranks <= 10).mean():.2f}",
                f"{1 / (1 / ranks).mean():.1f}",
            ]  # fmt: skip
        rows.append(tuple(cells))
    return rows if asked else []


def _compared_items(inspection: Inspection) -> int:
    states = inspection.models[0].seen.states
    return len(compared_rows(len(states[0]))) if states else 0


def _draw_similarity(matrix: np.ndarray, first: str, second: str, when: str) -> Figure:
    cells = {
        (row, column): (f"{value:.2f}", 0.02 + 0.6 * float(value))
        for (row, column), value in np.ndenumerate(np.clip(matrix, 0, 1))
    }

    def plot(axes: "Axes") -> None:
        rows, columns = ([str(number) for number in range(size)] for size in matrix.shape)
        plot_cells(axes, cells, rows=rows, columns=columns, fontsize=7 if max(matrix.shape) <= 8 else 5)
        axes.invert_yaxis()  # The embeddings are at the bottom.
        axes.set(xlabel=label_axes(f"layer of {second}"), ylabel=label_axes(f"layer of {first}"))

    height = max(2.4, 0.9 + 0.3 * len(matrix))
    return draw(
        f"CKA of the layers {when}; 0 are the embeddings", plot, name=f"similarity-{when.split()[0]}", height=height
    )


def _draw_probes(models: Sequence[Looked], of: str) -> Figure:
    """Returns the accuracy of the probes by layer, beside that of random labels, or of the most frequent one."""
    lines = [(each.subject.name, probes) for each in models for probes in each.probes if probes.of == of]

    def plot(axes: "Axes") -> None:
        for number, (name, probes) in enumerate(lines):
            style: dict[str, Any] = {"color": SERIES[number], "marker": MARKERS[number], "markersize": 4}
            layers = range(len(probes.layers))
            axes.plot(
                layers, [row.accuracy for row in probes.layers], label=label_axes(name), linestyle=LINES[0], **style
            )
            control = [row.majority if row.control is None else row.control for row in probes.layers]
            if probes.layers[0].control is None and number:
                continue  # The most frequent label is that of all models.
            kind = "most frequent label" if probes.layers[0].control is None else f"{name}: random labels"
            axes.plot(layers, control, label=label_axes(kind), linestyle=LINES[1], **style)
        axes.set(xlabel="layer (0: embeddings)", ylabel="accuracy of a linear probe")

    return draw(f"What a linear probe reads from each layer: {of}", plot, name=f"probes-{of.replace(' ', '-')}")
