"""Replaces what a clock, a processor or a directory decides in the texts of a run, and compares the texts.

| placeholder | in its place |
| --- | --- |
| `<date>` | the moment in the name of a directory |
| `<seconds>` | durations, rates, and shares that are estimated from durations |
| `<memory>` | memory of the process |
| `<environment>`, `<version>` | processor, cores, and versions of packages |
| `<hash>` | digests of weights and of what is computed from them |
| `<int8>` | numbers and predictions of int8 kernels, which differ between processors |

Latencies stay, because each is the same on the clock of `steady_machine`.
"""

import difflib
import json
import re
from collections.abc import Iterator
from typing import Any

RELATIVE, ABSOLUTE = 1e-3, 1e-4
WHOLE = r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)"
NUMBER = re.compile(WHOLE + r"(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
FLOAT = re.compile(WHOLE + r"(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)(?!\w)")
SENTENCE = re.compile(r"(?<=[^\d\s.][.:])(\**) (?=\**[A-Z])|(?<=\d[.])(\**) (?=\**[A-Z])")
COLUMNS = {"s": "<seconds>", "seconds": "<seconds>", "int8": "<int8>", "student int8": "<int8>"}
PATTERNS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in {
        r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-\d+)?": "<date>",
        r"(distill_encoders-)[^-]+": r"\1<version>",
        r"(?<!\d\.)\b[0-9a-f]{16,64}\b": "<hash>",
        r"[\d.,]+ (s|min|h) left$": "<seconds> left",
        r"\b(about |in |, )[\d.,]+ (s|min|h)\b": r"\1<seconds>",
        r"about \d+% of the run": "about <seconds> of the run",
        r"(Stages|Throughput): .*": r"\1: <seconds>",
        r"(- CPU|- Software|- \d+ runs?): .*": r"\1: <environment>",
        r"[-+\d.]+( ± [\d.]+)? in model\.int8\.onnx": "<int8> in model.int8.onnx",
        r"[\d.]+ ± [\d.]+  ([\d.]+x)  \d+$": r"<int8>  \1  <seconds>",  # Of the terminal's table of a sweep.
    }.items()
)


def normalize_json(text: str) -> str:
    """Returns run.json or bundle.json with placeholders."""
    return json.dumps(_normalize_value(json.loads(text), ()), indent=1, ensure_ascii=False) + "\n"


def _normalize_value(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: _normalize_value(each, (*path, key)) for key, each in value.items()}
    if "environment" in path or path == ("version",):
        return f"<{path[0]}>"  # Of a list too, whose length is that of another machine's.
    if isinstance(value, list):
        return [_normalize_value(each, path) for each in value]
    if path == ("sha256",) or path[0] == "files":
        return "<hash>"
    if path[-1] == "peak_rss_mb":
        return "<memory>"
    is_timed = any(key.endswith(("seconds", "_per_second")) for key in path) or path == ("baseline_choice", "share")
    if is_timed and isinstance(value, int | float):
        return "<seconds>"
    if {"int8", "attempts"} & set(path):
        if isinstance(value, float) or (path[-2:-1] == ("vectors",) and path[-1] in ("gate", "reason")):
            return "<int8>"
        return FLOAT.sub("<int8>", value) if isinstance(value, str) else value
    return _normalize_line(value) if isinstance(value, str) else value


def normalize_text(text: str, cpu: str) -> str:
    """Returns a report or the text of a terminal: a sentence a line, and tables without the widths of columns."""
    text = re.sub(r"value: .*(\n.*\(model\.int8\.onnx\))", r"value: <int8>\1", text.replace(cpu, "<environment>"))
    return "\n".join(_normalize_lines(text)) + "\n"


def _normalize_lines(text: str) -> Iterator[str]:
    header: list[str] = []
    of_int8 = False  # Whether the section compares predictions of the int8 file with the teacher's.
    for line in text.removesuffix("\n").split("\n"):
        of_int8 = line.startswith("int8 ") or (of_int8 and not line.startswith("## "))
        if not line.startswith("|"):
            header = []
            sentences = SENTENCE.sub(r"\1\2\n", line).split("\n")
            yield from (FLOAT.sub("<int8>", each) if of_int8 else _normalize_line(each) for each in sentences)
        elif not header:
            header = _split_row(line)
            yield line
        elif line.startswith("| ---"):
            yield line
        elif not of_int8:
            cells = zip(header, _split_row(_normalize_line(line)), strict=True)
            yield f"| {' | '.join(COLUMNS.get(name, cell) for name, cell in cells)} |"


def _split_row(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _normalize_line(line: str) -> str:
    is_int8 = "int8" in line and " in model.int8.onnx" not in line
    line = re.sub(r"(?<=\S) {2,}", "  ", line.replace("─", "")).rstrip()
    for pattern, replacement in PATTERNS:
        line = pattern.sub(replacement, line)
    return FLOAT.sub("<int8>", line) if is_int8 else line


def settle(stored: str, made: str, *, is_rounded: bool) -> str:
    """Returns the new text with the stored lines wherever only numbers differ, and these within the tolerance.

    Args:
        is_rounded: whether numbers are rounded to the digits that are shown, so that the last one may differ by 1.
    """
    old, new = stored.split("\n"), made.split("\n")
    shapes = [[NUMBER.sub("#", line) for line in lines] for lines in (old, new)]
    matcher = difflib.SequenceMatcher(None, *shapes, autojunk=False)
    for before, after, size in matcher.get_matching_blocks():
        for number in range(size):
            if _are_equal(old[before + number], new[after + number], is_rounded):
                new[after + number] = old[before + number]
    return "\n".join(new)


def _are_equal(old: str, new: str, is_rounded: bool) -> bool:
    pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    return all(first == second or _are_near(first, second, is_rounded) for first, second in pairs)


def _are_near(first: str, second: str, is_rounded: bool) -> bool:
    """Returns whether two numbers are equal within the tolerance; whole numbers are not, unless one is nearly 0."""
    one, other = (float(text.replace(",", "")) for text in (first, second))
    difference = abs(one - other)
    if max(abs(one), abs(other)) <= ABSOLUTE:
        return True
    if not (FLOAT.fullmatch(first) and FLOAT.fullmatch(second)):
        return False
    digits = max(len(text.partition("e")[0].partition(".")[2]) for text in (first, second))
    unit = 1.01 * 10.0**-digits if is_rounded else 0.0
    return difference <= max(ABSOLUTE, RELATIVE * max(abs(one), abs(other)), unit)


def show_difference(name: str, stored: str, made: str) -> str:
    """Returns the unified diff of two texts."""
    lines = difflib.unified_diff(
        stored.split("\n"), made.split("\n"), f"stored/{name}", f"now/{name}", n=2, lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)
