"""Renders notebooks as pages: a line `{{ notebook NAME.ipynb }}` of a Markdown page becomes its cells and outputs."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_LINE = re.compile(r"^\{\{ notebook ([\w.-]+\.ipynb) \}\}$", re.M)
_STYLE = re.compile(r"<style.*?</style>\n?", re.S)
_ATTRIBUTES = re.compile(r"<table[^>]*>")  # Those of pandas; the theme has its own.
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Replaces the line by the notebook, which lies in the folder of the pages."""
    directory = Path(config.docs_dir)
    return _LINE.sub(lambda match: convert((directory / match[1]).read_text(encoding="utf-8")), markdown)


def convert(notebook: str) -> str:
    """Returns a notebook as Markdown, with the outputs that it has.

    An output is taken as Markdown, picture or table if it has that form, and else as text.
    """
    return "\n\n".join(part for cell in json.loads(notebook)["cells"] for part in _convert_cell(cell)) + "\n"


def _convert_cell(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif cell["cell_type"] == "code":
        language, code = ("sh", source.removeprefix("%%bash\n")) if source.startswith("%%bash") else ("python", source)
        yield f"```{language}\n{code}\n```"
        for output in cell["outputs"]:
            yield from _convert_output(output)


def _convert_output(output: Mapping[str, Any]) -> Iterator[str]:
    data = output.get("data", {"text/plain": output.get("text", output.get("traceback", ""))})
    if "text/markdown" in data:
        yield "".join(data["text/markdown"])
    elif "image/png" in data:
        yield f"![Figure](data:image/png;base64,{''.join(data['image/png']).strip()})"
    elif "<table" in (html := "".join(data.get("text/html", ""))):
        yield _ATTRIBUTES.sub("<table>", _STYLE.sub("", html))
    elif text := _COLOURS.sub("", "".join(data.get("text/plain", ""))).strip("\n"):
        yield f'```text title="Output"\n{text}\n```'
