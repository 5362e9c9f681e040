"""Renders notebooks as pages: a line `{{ notebook NAME.ipynb }}` of a Markdown page becomes its cells and outputs."""

import itertools
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
        outputs = [_convert_output(output) for output in cell["outputs"]]
        for is_text, group in itertools.groupby((output for output in outputs if output[1]), lambda output: output[0]):
            parts = [content for _, content in group]
            yield "\n".join(['```text title="Output"', *parts, "```"]) if is_text else "\n\n".join(parts)


def _convert_output(output: Mapping[str, Any]) -> tuple[bool, str]:
    """Returns whether an output is text, which joins the text around it, and its content."""
    data = output.get("data", {"text/plain": output.get("text", output.get("traceback", ""))})
    if "text/markdown" in data:
        return False, "".join(data["text/markdown"])
    if "image/png" in data:
        return False, f"![Figure](data:image/png;base64,{''.join(data['image/png']).strip()})"
    if "<table" in (html := "".join(data.get("text/html", ""))):
        return False, _ATTRIBUTES.sub("<table>", _STYLE.sub("", html))
    return True, _COLOURS.sub("", "".join(data.get("text/plain", ""))).strip("\n")
