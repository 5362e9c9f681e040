"""Texts that are stored of a golden command: its terminal, records and reports, its bundles, and the list of files."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import onnx
import pandas

from tests.golden.normal import normalize_json, normalize_text
from tests.golden.runs import find_runs

# Stored whole, but for those of further seeds; of other files the name is stored, and of some a digest.
TEXTS = {"terminal.txt", "run.json", "report.md", "bundle.json", "metrics.csv"}
DIGESTS = {"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "config.yaml"}


def read_output(output: Path) -> dict[str, str]:
    """Returns the normalized texts of an output directory by their names in it, and the list of its files."""
    runs = find_runs(output)
    cpu = json.loads((runs[0] / "run.json").read_text())["environment"]["cpu"]
    texts, files = {}, []
    for path in sorted(path for path in output.rglob("*") if path.is_file()):
        name = _short_name(path, output, runs)
        files.append(name + _describe(path, output))
        is_card = path.name == "README.md" and "bundle" in path.parts
        if (path.name in TEXTS or is_card) and "seeds" not in path.parts:
            content = _read(path, output)
            texts[name] = normalize_json(content) if path.suffix == ".json" else normalize_text(content, cpu)
    return {**texts, "files.txt": normalize_text("\n".join(sorted(files)), cpu)}


def _read(path: Path, output: Path) -> str:
    """Returns a text without the directory of all golden runs and the version of transformers."""
    text = path.read_text(encoding="utf-8").replace(str(output.parents[1]), "<path>")
    return re.sub(r'("transformers_version": )".*"', r'\1"<version>"', text)


def _short_name(path: Path, output: Path, runs: list[Path]) -> str:
    """Returns a path without the directories that only name the run, or with its number among several."""
    for number, run in enumerate(runs, 1):
        if path.is_relative_to(run):
            return (Path(f"run{number}" if len(runs) > 1 else "") / path.relative_to(run)).as_posix()
    relative = path.relative_to(output)
    return (Path("sweep", *relative.parts[2:]) if relative.parts[0] == "sweeps" else relative).as_posix()


def _describe(path: Path, output: Path) -> str:
    """Returns the structure of a model or a table, or the digest of a text that is the same on every machine."""
    if path.suffix == ".onnx":
        return f": {describe_graph(path)}"
    if path.suffix == ".parquet":
        frame = pandas.read_parquet(path)
        return f": {len(frame)} rows of {', '.join(frame.columns)}"
    return f": sha256 {_digest(_read(path, output))}" if path.name in DIGESTS else ""


def describe_graph(path: Path) -> str:
    """Returns the operations of an ONNX file, the number of its tensors, and a digest of all names and shapes."""
    graph = onnx.load(path, load_external_data=False).graph
    nodes = [(node.op_type, node.name, [*node.input], [*node.output]) for node in graph.node]
    tensors = sorted((tensor.name, [*tensor.dims], tensor.data_type) for tensor in graph.initializer)
    ends = [str(value) for value in (*graph.input, *graph.output)]
    counts = sorted(Counter(node.op_type for node in graph.node).items())
    operations = ", ".join(f"{number} {name}" for name, number in counts)
    return f"{operations}; {len(tensors)} tensors; sha256 {_digest(repr((nodes, tensors, ends)))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
