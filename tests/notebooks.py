"""Executes notebooks, and writes their outputs without colours, widgets, and paths of the machine.

python -m tests.notebooks docs/tutorial.ipynb examples/inspect_predictions.ipynb
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

CACHE = Path(os.environ.get("DISTILL_CACHE", "~/.cache/distill")).expanduser()
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RICH = '<pre style="white-space:pre'  # Text that rich writes into a notebook.


def execute(notebook: Any, directory: Path, *, cache: Path = CACHE) -> None:
    """Executes the cells in a directory, which holds their files afterwards, without a network."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    set_for_kernel = {"PATH": path, "DISTILL_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    client = NotebookClient(notebook, timeout=3600, kernel_name="python3", resources={"metadata": {"path": directory}})
    client.execute(env={**os.environ, **set_for_kernel})


def clean(notebook: Any, hidden: Mapping[str, str]) -> None:
    """Joins the text of each cell, and removes what the file shall not have.

    Args:
        hidden: paths of this machine, with the text in their place.
    """
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.get("metadata", {}).pop("execution", None)
        if cell.cell_type == "code":
            outputs: list[Any] = []
            for output in cell.outputs:
                text = _read_text(output)
                if text is None:
                    outputs.append(output)
                elif outputs and outputs[-1].output_type == "stream":
                    outputs[-1].text += text
                else:
                    outputs.append(nbformat.v4.new_output("stream", name="stdout", text=text))
            for output in outputs:
                if output.output_type == "stream":
                    output.text = _clean_text(output.text, hidden)
                for kind, content in output.get("data", {}).items():
                    if kind in ("text/html", "text/plain"):
                        output.data[kind] = _hide(content, hidden)
            cell.outputs = [output for output in outputs if output.get("text", "-").strip()]


def _read_text(output: Any) -> str | None:
    """Returns the text of an output that is text alone; None for tables, pictures and errors."""
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "display_data":
        if "application/vnd.jupyter.widget-view+json" in output.data:
            return ""
        if output.data.get("text/html", "").startswith(_RICH):
            return str(output.data["text/plain"])
    return None


def _clean_text(text: str, hidden: Mapping[str, str]) -> str:
    text = _hide(_COLOURS.sub("", text), hidden)
    return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines()) + "\n"


def _hide(text: str, hidden: Mapping[str, str]) -> str:
    for path, shown in hidden.items():
        text = text.replace(path, shown)
    return text


def main() -> None:
    for name in sys.argv[1:]:
        notebook = nbformat.read(name, 4)
        with tempfile.TemporaryDirectory() as directory:
            execute(notebook, Path(directory))
            clean(notebook, {str(CACHE): "~/.cache/distill", directory: "."})
        nbformat.write(notebook, name)


if __name__ == "__main__":
    main()
