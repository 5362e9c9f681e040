"""Renders the Markdown of a report, with its figures, as one HTML page that needs no other file."""

import datetime
import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from distill.records.figures import Figure

Figures = Mapping[str, Sequence[Figure]]  # By the heading of their section, which is empty before the first one.


def render_page(
    markdown: str, figures: Figures, *, refresh: int | None = None, insets: Mapping[str, Markup] = MappingProxyType({})
) -> str:
    """Returns the HTML page of a report.

    Args:
        markdown: the text, whose first line is the title.
        figures: drawn at the end of their sections.
        insets: further HTML for the end of a section, by its heading.
        refresh: seconds after which a browser loads the page again; None for a page that does not change.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    # A wide table scrolls by itself on a small screen.
    reader.add_render_rule("table_open", lambda *_: '<div class="table" tabindex="0">\n<table>\n')
    reader.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    sections = []
    for number, text in enumerate(f"\n{markdown}".split("\n## ")):
        heading = text.partition("\n")[0] if number else ""
        html = Markup(_mark_short_cells(reader.render(f"## {text}" if number else text)))  # Escaped by the reader.
        drawn = [(figure.caption, Markup(figure.svg)) for figure in figures.get(heading, ())]
        sections.append((html, drawn, insets.get(heading, "")))
    return _templates().get_template("page.html.jinja").render(
        title=markdown.partition("\n")[0].lstrip("# "), sections=sections, refresh=refresh,
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )  # fmt: skip


@cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader("distill.records"), autoescape=True, undefined=StrictUndefined)


def _mark_short_cells(html: str) -> str:
    """Returns the HTML with a class for cells that are too short to be broken into lines."""
    return re.sub(r"<td([^>]*)>([^<]{1,24})</td>", r'<td class="short"\1>\2</td>', html)
