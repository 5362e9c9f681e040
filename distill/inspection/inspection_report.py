"""Writes an inspection: a page, its Markdown, and tables as Parquet files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from distill.core.files import atomic_file, make_directory, write_text
from distill.inspection.inspection import Inspection, Looked, heads_of
from distill.inspection.probes import Attribution
from distill.inspection.subjects import LEAST, compared_rows
from distill.records.pages import render_page
from distill.records.plots import LINES, MARKERS, SERIES, Figure, draw, label_axes, plot_cells
from distill.records.report import render_table
from distill.records.verdict import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    return Markup(_templates().get_template("attention.html.jinja").render(data=Markup(data)))


def render_words(inspection: Inspection) -> Markup | None:
    """Returns the shown sentences with their words coloured by what they add to the logit of the prediction."""
    asked = [of for of in inspection.models if of.attributions]
    if not asked:
        return None
    sentences = [
        [{"name": of.subject.name, "words": _colour_words(of.attributions[number])} for of in asked]
        for number in range(len(asked[0].attributions))
    ]
    return Markup(_templates().get_template("words.html.jinja").render(sentences=sentences))


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


@cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader("distill.inspection"), autoescape=True, undefined=StrictUndefined)


PAGE, MARKDOWN = "inspect.html", "inspect.md"
ATTENTION, WORDS = "Attention", "What the predictions rest on"  # Sections.

Rows = list[dict[str, Any]]


def write_inspection(inspection: Inspection, directory: Path) -> Path:
    """Writes `inspect.html`, `inspect.md` and the tables as Parquet files, and returns the path of the page."""
    make_directory(directory)
    sections = [section for section in _list_sections(inspection) if section[1]]
    markdown = "\n\n".join(
        ["# " + _title(inspection), _summary(inspection), *(f"## {name}\n\n{text}" for name, text, _ in sections)]
    )
    write_text(directory / MARKDOWN, markdown + "\n")
    drawn_in_html = {ATTENTION: render_attention(inspection), WORDS: render_words(inspection)}
    insets = {name: html for name, html in drawn_in_html.items() if html is not None}
    write_text(directory / PAGE, render_page(markdown, {name: drawn for name, _, drawn in sections}, insets=insets))
    for name, rows in tables(inspection).items():
        if rows:
            _write_table(directory / f"{name}.parquet", rows)
    return directory / PAGE


def _write_table(path: Path, rows: Rows) -> None:
    import pyarrow
    import pyarrow.parquet

    with atomic_file(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)


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


def _title(inspection: Inspection) -> str:
    names = " and ".join(of.subject.name for of in inspection.models)
    return f"Looking inside {names} on {inspection.models[0].subject.task.info.name}"


def _summary(inspection: Inspection) -> str:
    scoring = inspection.models[0].subject.data.scoring
    rows = [
        (
            of.subject.name, f"{of.metrics[scoring.metric]:.4f}", f"{of.subject.model.num_parameters() / 1e6:.1f} M",
            str(of.subject.path),
        )
        for of in inspection.models
    ]  # fmt: skip
    number = len(np.unique(inspection.models[0].seen.scores.example_id))
    parts = [
        render_table(("model", scoring.metric, "parameters", "directory"), rows),
        f"Measured on {number:,} examples of {inspection.split}.",
    ]
    if inspection.agreement is not None:
        parts.append(f"Both predict the same for {inspection.agreement:.1%} of the items.")
    return "\n\n".join(parts)


Section = tuple[str, str, Sequence[Figure]]


def _list_sections(inspection: Inspection) -> Iterator[Section]:
    yield "What was lost", _describe_groups(inspection), ()
    yield "Where they differ", _describe_differences(inspection), ()
    yield "Types and calibration", _describe_types(inspection), ()
    yield ATTENTION, "The weights of attention in single sentences." if inspection.models[0].views else "", ()
    yield WORDS, _describe_attributions(inspection), ()
    yield "Heads", _describe_heads(inspection), ()
    yield "Relations of words", _describe_relations(inspection), ()
    yield from _similarity_section(inspection)
    probed = [of for of in inspection.models if of.probes]
    yield (
        "Probes",
        _describe_probes(inspection),
        [_draw_probes(probed, of.of) for of in probed[0].probes] if probed else (),
    )
    yield "Gaps", _describe_clozes(inspection), ()
    yield "A word in its contexts", _describe_contexts(inspection), ()


def _describe_groups(inspection: Inspection) -> str:
    if inspection.agreement is None:
        return ""
    if not inspection.groups:
        return f"No group has items of at least {LEAST} texts inside and outside."
    rows = [
        (
            group.kind, group.name, f"{group.number:,}", f"{group.texts:,}", f"{group.teacher:.3f}",
            f"{group.student:.3f}", f"{group.lost:+.3f}", f"{group.excess:+.3f}",
            f"{group.interval[0]:+.3f} to {group.interval[1]:+.3f}", "yes" if group.loses_more else "no",
        )
        for group in inspection.groups
    ]  # fmt: skip
    first, second = (of.subject.name for of in inspection.models)
    header = ("by", "group", "items", "texts", first, second, "lost", "more than outside", "interval", "loses more")
    text = (
        f"The mean score of the items of each group, and how much more of it the {second} loses there than outside. "
        "The intervals hold together with a probability of at least 95% (a paired bootstrap over texts, Bonferroni)."
    )
    return f"{text}\n\n{render_table(header, rows)}"


def _describe_differences(inspection: Inspection) -> str:
    if not inspection.differences:
        return ""
    first, second = (of.subject.name for of in inspection.models)
    rows = [
        (
            label_axes(found.text, longest=120),
            *(label_axes(answer) for answer in (found.label, found.first, found.second)),
            f"{found.size:.2f}",
        )
        for found in inspection.differences
    ]  # fmt: skip
    return render_table(("text", "label", first, second, "difference"), rows)


def _describe_types(inspection: Inspection) -> str:
    scoring = inspection.models[0].subject.data.scoring
    parts = []
    errors = [(of.subject.name, scoring.calibration_error(of.seen.scores)) for of in inspection.models]
    known = [(name, f"{error:.4f}") for name, error in errors if error is not None]
    if known:
        parts.append(render_table(("model", "expected calibration error"), known))
    types = [scoring.breakdown(of.seen.scores) for of in inspection.models]
    if types[0]:
        rows = [
            (
                name, f"{values['number']:,.0f}",
                *(format_number(of.get(name, {}).get(scoring.metric), ".3f") for of in types),
            )
            for name, values in types[0].items()
        ]  # fmt: skip
        header = ("type", "number", *(f"{of.subject.name}: {scoring.metric}" for of in inspection.models))
        parts.append(render_table(header, rows))
    return "\n\n".join(parts)


def _describe_attributions(inspection: Inspection) -> str:
    """Shows what each word of a sentence adds to the score of the prediction, by integrated gradients."""
    blocks = []
    for number, sentence in enumerate(inspection.sentences):
        rows = []
        for of in inspection.models:
            if number < len(of.attributions):
                found = of.attributions[number]
                words = zip(found.words, found.integrated, strict=True)
                largest = sorted(words, key=lambda pair: -abs(pair[1]))[:6]
                rows.append((of.subject.name, ", ".join(f"{word} {value:+.2f}" for word, value in largest)))
        if rows:
            blocks.append(f"{render_table(('model', label_axes(sentence, longest=100)), rows)}")
    if not blocks:
        return ""
    text = (
        "What the words add to the logit of the predicted class, the largest six: integrated gradients from padding as "
        "the baseline. attributions.parquet has all words, and gradient times input beside them."
    )
    return "\n\n".join([text, *blocks])


def _describe_heads(inspection: Inspection) -> str:
    rows = []
    for of in inspection.models:
        for row in _head_rows(of):
            place = f"{row['offset']:+d} ({row['positional']:.0%})" + (" positional" if row["is_positional"] else "")
            change = "" if row["without"] is None or of.whole is None else f"{row['without'] - of.whole:+.4f}"
            rows.append(
                (
                    of.subject.name, str(row["layer"]), str(row["head"]), change,
                    "" if row["importance"] is None else f"{row['importance']:.2f}", f"{row['confidence']:.2f}",
                    f"{row['entropy']:.2f}", f"{row['distance']:.1f}", f"{row['separator']:.2f}", place,
                    f"{row['rare']:.2f}",
                )
            )  # fmt: skip
    without = [of.subject.name for of in inspection.models if not of.subject.has_attention]
    notes = [f"{name} has no attention." for name in without]
    notes += [
        f"The heads of {of.subject.name} are neither masked nor ranked: its layers are of another layout than BERT's."
        for of in inspection.models if of.subject.has_attention and not heads_of(of.subject.model)
    ]  # fmt: skip
    if not rows:
        return " ".join(notes)
    metric = inspection.models[0].subject.data.scoring.metric
    header = (
        "model", "layer", "head", f"{metric} without it", "importance", "confidence", "entropy", "distance",
        "on special tokens", "most frequent offset", "on the rarest token",
    )  # fmt: skip
    text = (
        f"The first number of a head is the change of {metric} where its output is zero, and importance the "
        "expected size of the derivative of the loss by the head (arXiv 1905.10650). The rest are means over the "
        "tokens that are not special. Confidence is the largest weight on such a token (arXiv 1905.09418), entropy is "
        "in nats, and a head is positional if 90% of its largest weights are at one offset."
    )
    return "\n\n".join([text, *notes, render_table(header, rows)])


def _describe_relations(inspection: Inspection) -> str:
    rows = [
        (
            of.subject.name, row.relation, row.direction, f"{row.number:,}", f"{row.layer}.{row.head}",
            f"{row.accuracy:.2f}", f"{row.baseline:.2f} ({row.offset:+d})",
        )
        for of in inspection.models for row in of.relations
    ]  # fmt: skip
    if not rows:
        return ""
    text = "The head that follows each relation best, beside the most frequent distance of the two words."
    header = ("model", "relation", "from a word", "words", "head", "accuracy", "by distance")
    return f"{text}\n\n{render_table(header, rows)}"


def _similarity_section(inspection: Inspection) -> Iterator[Section]:
    if inspection.similarity is None:
        return
    first, second = (of.subject.name for of in inspection.models)
    if not inspection.similarity.size:  # As a CNN.
        missing = [of.subject.name for of in inspection.models if not of.seen.states]
        yield "Layers that are alike", f"Not known: {' and '.join(missing)} returns no states of layers.", ()
        return
    drawn = [_draw_similarity(inspection.similarity, first, second, "after training")]
    if inspection.before is not None:
        drawn.append(_draw_similarity(inspection.before, first, second, "before training"))
    nearest, items = inspection.similarity.argmax(axis=0), _compared_items(inspection)
    rows = [
        (_layer(column), _layer(int(row)), f"{inspection.similarity[row, column]:.2f}", f"{items:,}")
        for column, row in enumerate(nearest)
    ]
    text = (
        "Linear centred kernel alignment (arXiv 1905.00414) of the states of the items, 1 for states that are "
        "alike and on average 0 for states that have nothing in common (the unbiased estimate, arXiv 2010.15327)."
    )
    table = render_table((f"layer of {second}", f"most alike in {first}", "CKA", "items"), rows)
    yield "Layers that are alike", f"{text}\n\n{table}", drawn


def _compared_items(inspection: Inspection) -> int:
    return len(compared_rows(len(inspection.models[0].seen.states[0])))


def _layer(number: int) -> str:
    return str(number) if number else "embeddings"


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


def _describe_probes(inspection: Inspection) -> str:
    rows = [
        (
            of.subject.name, probes.of, _layer(row.layer), f"{row.accuracy:.3f}", f"{row.majority:.3f}",
            format_number(row.control, ".3f"), format_number(row.selectivity, "+.3f"),
            "" if probes.mix is None else f"{probes.mix.weights[row.layer]:.2f}",
        )
        for of in inspection.models for probes in of.probes for row in probes.layers
    ]  # fmt: skip
    if not rows:
        return ""
    centres = [
        f"The centre of gravity of {of.subject.name} for the {probes.of} is layer {probes.mix.centre:.2f} of "
        f"{len(probes.layers) - 1}, and the mixed layers reach {probes.mix.accuracy:.3f} (learned from "
        f"{probes.rows:,} rows)."
        for of in inspection.models for probes in of.probes if probes.mix is not None
    ]  # fmt: skip
    text = (
        "The accuracy of a logistic regression on the frozen states of each layer, beside the most frequent label. "
        "Where each word has a label, another one learns a random label of each word, drawn as often as the labels "
        "have it (arXiv 1909.03368). Texts have no such control, because a random label of one text says nothing about "
        "another. Weights are those with which a probe mixes the layers (arXiv 1905.05950)."
    )
    header = ("model", "of", "layer", "accuracy", "most frequent label", "random labels", "difference", "weight")
    return "\n\n".join([text, *centres, render_table(header, rows)])


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


def _describe_clozes(inspection: Inspection) -> str:
    asked = [of for of in inspection.models if of.clozes]
    if not asked:
        return ""
    groups = dict.fromkeys(row.cloze.group for of in asked for row in of.clozes)
    rows = []
    for group in groups:
        cells = [group]
        for of in asked:
            found = [row for row in of.clozes if row.cloze.group == group]
            ranks = np.array([row.rank for row in found])
            cells += [
                f"{np.mean([row.prefers for row in found]):.2f}", f"{(ranks <= 10).mean():.2f}",
                f"{1 / (1 / ranks).mean():.1f}",
            ]  # fmt: skip
        rows.append(tuple(cells))
    header = (
        "group",
        *(f"{of.subject.name}: {name}" for of in asked for name in ("right word first", "among 10", "mean rank")),
    )
    text = (
        "Sentences with a gap: how often the right word is likelier than a wrong one that fits, how often it is among "
        "the ten likeliest tokens, and its harmonic mean rank. clozes.parquet has every sentence. For occupations the "
        "right word is the pronoun against the stereotype."
    )
    return f"{text}\n\n{render_table(header, rows)}"


def _describe_contexts(inspection: Inspection) -> str:
    rows = [
        (
            of.subject.name, _layer(row.layer), label_axes(row.of.shown(), longest=80), f"{cosine:.2f}",
            label_axes(other.shown(), longest=80),
        )
        for of in inspection.models for row in of.neighbours for other, cosine in row.nearest[:1]
    ]  # fmt: skip
    if not rows:
        return ""
    return render_table(("model", "layer", "occurrence", "cosine", "nearest other one"), rows)
