"""How is the built-in data set `docstrings` made, out of the sources of packages that are installed anyway?

One row is one English sentence of a docstring, the label is the package it came from. Nothing is downloaded and none of
the packages is imported: their files are read with `ast`.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import platform
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from distill import files

logger = logging.getLogger(__name__)

LABELS: tuple[str, ...] = ("python", "numpy", "pandas", "torch", "transformers", "sympy", "networkx")

# Part of the fingerprint: raise it when the text of any sentence, or the choice among them, changes.
FORMAT_VERSION = 3

MASK = "package"
MIN_WORDS, MAX_WORDS = 5, 60
MIN_LETTER_SHARE = 0.9  # of the characters, letters and spaces
DEV_SHARE = 0.1
# One long file must not stand for its package; what is above the cap is used only if the package runs dry.
SENTENCES_PER_FILE = 60
# Files with fewer triple quotes than one in so many bytes are not parsed.
SOURCE_BYTES_PER_QUOTE = 4000
DATA_FILES = ("train.jsonl", "dev.jsonl")

_SKIPPED_DIRECTORIES = re.compile(
    r"^(?:tests?|testing|idle_test|benchmarks|__pycache__|(?:site|dist)-packages|lib2to3"
    r"|_?vendor(?:ed)?|third_?party|externs?|externals|_bundled)$"
)
_SKIPPED_FILE = re.compile(r"^(?:test_.*|.*_tests?|conftest|_?version)\.py$")
_GENERATED = re.compile(rb"automatically generated|auto-?generated|@generated", re.IGNORECASE)
_DOC_CALLS = frozenset({"add_newdoc", "add_docstr", "_add_docstr"})

# Names of the packages, their makers, their usual aliases and words coined from their names. Long names are masked
# wherever they occur in a word (PyTorch, IPython, sympify), short aliases only as a whole part of an identifier.
_NAMES = re.compile(
    r"(?<![a-z])(?:[a-z]*?(?:python|numpy|pandas|torch|transformers|sympy|sympif|networkx|hugging[ -]?face)[a-z]*"
    r"|(?<!\d)(?:np|npy|pd|nn|pt|hf|nx|aten|stdlib|standard library|f2py|pep)(?![a-z0-9]))",
    re.IGNORECASE,
)
_REPEATED_MASK = re.compile(rf"\b{MASK}(?:[ ./_-]+{MASK}\b)+")

_UNDERLINE = re.compile(r"^([-=~^*\"'#+_.])\1{2,}$")
_NOT_PROSE = re.compile(
    r"^(?:[-+#|@](?![-+#|@]{2})|\* |\d+[.)]\s|\[\d+\]|\(\w\)\s)"  # list item, comment, decorator, footnote
    r"|^(?:\.\. |:\w+.*: |>>>|\.\.\.)"  # directive, field, doctest
    r"|\|.*\||[=+-]{3} "  # table row, table border
    r"|^\S+ +: |^\w+[._][\w.]+: "  # numpydoc parameter, entry of "See Also"
    r"|^\w+ \([^)]*\): "  # Google-style parameter
)
_FENCE = re.compile(r"^(?:```|~~~)")

_ROLE_WITH_TARGET = re.compile(r"(?::[\w:+-]+:)?`([^`<]+?)\s*<[^`>]*>`_{0,2}")
_ROLE = re.compile(r":[\w:+-]+:`(~?)!?([^`]*)`")
_MARKDOWN_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_REFERENCE = re.compile(r"\s*\[(?:\d+|[A-Z]\w*)\]_?(?!\w)")
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*]*[^\s*])?)\*{1,2}(?![\w*])")
_HYPERLINK = re.compile(r"`([^`]*)`__?(?!\w)")
_LITERAL = re.compile(r"\[?`{1,2}~?([^`]+)`{1,2}\]?")

_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+(?=[\"'(]?[A-Z0-9]|[\"']\w)")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|vs|al|fig|eq|eqs|no|sec|ch|pp|resp|approx|dr|mr|prof)\.$", re.IGNORECASE)
# Not what goes on after a formula: "where x is ...". An identifier may well begin with a small letter.
_COMPLETE = re.compile(r"^(?!(?:where|and|or|but|that|which|with)\b)[A-Za-z].*[.!?][\"')]*$")
# Left-over markup, formulas, code, addresses, and a sentence end with a small letter after it (an unclear split).
_NOISE = re.compile(
    r"[\\{}$|`<>^@~]|::|__|https?:|www\.|==|\.\.\.|\w\(\w*="
    r"|[a-z]\.(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!\bcf\.)(?<!\bvs\.)(?<!\bal\.) [a-z]"
)
_IDENTIFIER = re.compile(r"[\d_]|\w\.\w|\w\(")
_NO_LETTER = re.compile(r"[^A-Za-z ]")
_WORD = re.compile(r"[A-Za-z]+")


def prepare(cache_dir: Path, *, sentences_per_class: int = 3000, seed: int = 0) -> Path:
    """Return the directory with `train.jsonl` and `dev.jsonl`; make it first if it is missing or damaged.

    Rows are `{"sentence": str, "label": str}`. Raises ModuleNotFoundError if one of the packages is not installed.
    """
    if sentences_per_class < 10:
        raise ValueError(f"sentences_per_class is {sentences_per_class}; it must be at least 10 (a tenth goes to dev)")
    roots = {label: locate(label) for label in LABELS}
    target = Path(cache_dir) / "data" / f"docstrings-{fingerprint(sentences_per_class, seed)}"
    if target.exists():
        if files.is_intact(target):
            return target
        logger.warning("the data set in %s is damaged (its checksums do not match): it is made again", target)
    splits = build(roots, sentences_per_class=sentences_per_class, seed=seed)
    with files.whole_directory(target) as draft:
        for name, rows in splits.items():
            files.write_text(draft / name, "".join(json.dumps(row) + "\n" for row in rows))
    return target


def locate(label: str) -> Path:
    """The directory with the sources of a package; found without importing it."""
    if label == "python":
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(label)
    # Without an origin it is a stray directory that has the name of the package, a "namespace package".
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise _not_installed(label)
    return Path(spec.submodule_search_locations[0])


def _not_installed(label: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"the built-in data set reads the sources of '{label}', which is not installed: pip install 'distill[train]'",
        name=label,
    )


def fingerprint(sentences_per_class: int, seed: int) -> str:
    """A name for all that the content depends on: versions, size, seed, and this module's way of reading."""
    versions = {"python": platform.python_version()}
    for label in LABELS[1:]:
        try:
            versions[label] = importlib.metadata.version(label)
        except importlib.metadata.PackageNotFoundError:
            raise _not_installed(label) from None
    content = {"format": FORMAT_VERSION, "versions": versions, "size": sentences_per_class, "seed": seed}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def build(roots: dict[str, Path], *, sentences_per_class: int, seed: int) -> dict[str, list[dict[str, str]]]:
    """The rows of each data file: balanced over the labels, no two sentences with the same `near_key`."""
    # Shared by all: a sentence that two packages have counts for the one that comes first in LABELS.
    seen: set[str] = set()
    found = {
        label: collect(root, wanted=sentences_per_class, order=random.Random(f"{seed}/{label}"), seen=seen)
        for label, root in roots.items()
    }
    size = min(len(sentences) for sentences in found.values())
    if size < sentences_per_class:
        short = ", ".join(f"{label} {len(s)}" for label, s in found.items() if len(s) < sentences_per_class)
        logger.warning("fewer than %d sentences for: %s; %d are taken of every class", sentences_per_class, short, size)
    dev_size = round(size * DEV_SHARE)
    train: list[dict[str, str]] = []
    dev: list[dict[str, str]] = []
    for label, sentences in found.items():
        order = random.Random(f"{seed}/{label}/split")
        rows = [{"sentence": sentence, "label": label} for sentence in order.sample(sentences, size)]
        dev += rows[:dev_size]
        train += rows[dev_size:]
    for rows in (train, dev):
        random.Random(f"{seed}/order").shuffle(rows)
    return {"train.jsonl": train, "dev.jsonl": dev}


def collect(root: Path, *, wanted: int, order: random.Random, seen: set[str]) -> list[str]:
    """Up to `wanted` sentences out of the files under `root`, visited in a random order until there are enough.

    A sentence whose key is in `seen` is left out, the keys of the others are added.
    """
    paths = source_files(root)
    order.shuffle(paths)
    found: list[str] = []
    reserve: list[str] = []
    for path in paths:
        texts = docstrings(path.read_bytes(), name=str(path))
        order.shuffle(texts)
        limit = min(wanted, len(found) + SENTENCES_PER_FILE)
        while texts and len(found) < limit:
            found += _fresh(texts.pop(), seen)
        if len(found) >= wanted:
            return found[:wanted]
        reserve += texts
    order.shuffle(reserve)
    while reserve and len(found) < wanted:
        found += _fresh(reserve.pop(), seen)
    return found[:wanted]


def _fresh(docstring: str, seen: set[str]) -> list[str]:
    fresh: list[str] = []
    for sentence in sentences(docstring):
        key = near_key(sentence)
        if key not in seen:
            seen.add(key)
            fresh.append(sentence)
    return fresh


def source_files(root: Path) -> list[Path]:
    """The Python files of a package, sorted; without its tests and without what it carries along from elsewhere."""
    files: list[Path] = []
    for folder, directories, names in os.walk(root):
        directories[:] = [name for name in directories if not _SKIPPED_DIRECTORIES.match(name)]
        files += [Path(folder, name) for name in names if name.endswith(".py") and not _SKIPPED_FILE.match(name)]
    return sorted(files, key=lambda file: file.relative_to(root).as_posix())


def docstrings(source: bytes, *, name: str = "<source>") -> list[str]:
    """The docstrings of a module, its classes and functions, and the texts it gives to C code (`add_newdoc`)."""
    if (source.count(b'"""') + source.count(b"'''")) * SOURCE_BYTES_PER_QUOTE < len(source):
        return []  # parsing is what takes the time, and here it would yield next to nothing
    if _GENERATED.search(source, 0, 1000):
        return []  # repeats what it was made from: a third of the sources of transformers
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        logger.debug("%s is no Python source of this version, left out: %s", name, error)
        return []
    return list(_docstrings_of(tree))


def _docstrings_of(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    docstring = ast.get_docstring(node, clean=False)
    if docstring:
        yield docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings_of(child)
        elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            called = child.value.func
            called_name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if called_name in _DOC_CALLS:
                for part in ast.walk(child.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value


def sentences(docstring: str) -> list[str]:
    """The clean English sentences of a docstring, names masked."""
    found: list[str] = []
    for paragraph in paragraphs(docstring):
        for sentence in split_sentences(strip_markup(paragraph)):
            if is_clean(sentence):
                masked = mask_names(sentence)
                if MIN_WORDS <= len(masked.split()) <= MAX_WORDS:
                    found.append(masked)
    return found


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs of running prose, each on one line.

    Only what stands at the margin counts: code, bodies of directives, parameters and list items are indented.
    """
    lines = inspect.cleandoc(docstring).splitlines()
    found: list[str] = []
    current: list[str] = []
    skipping = in_fence = False
    for line, following in zip(lines, [*lines, ""][1:], strict=True):
        text = line.strip()
        is_fence = bool(_FENCE.match(text))
        in_fence ^= is_fence
        is_heading = bool(text and _UNDERLINE.match(following.strip()))
        if not text or is_heading or is_fence or in_fence or line[0].isspace():
            found.append(" ".join(current))
            current = []
            if not text or is_heading or is_fence:
                skipping = False
        elif skipping or _NOT_PROSE.search(line):
            # What follows a doctest or a list item without a blank line belongs to it.
            skipping = True
        elif not _UNDERLINE.match(text):
            current.append(text)
    found.append(" ".join(current))
    return [paragraph for paragraph in found if paragraph]


def strip_markup(text: str) -> str:
    """Plain words for reST and Markdown markup: ":class:`~a.B`" becomes "B"."""
    text = _MARKDOWN_LINK.sub(r"\1", text)
    text = _ROLE_WITH_TARGET.sub(r"\1", text)
    text = _ROLE.sub(lambda role: role[2].rsplit(".", 1)[-1] if role[1] else role[2], text)
    text = _HYPERLINK.sub(r"\1", text)
    text = _REFERENCE.sub("", text)
    text = _LITERAL.sub(r"\1", text)
    text = _EMPHASIS.sub(r"\1", text)
    return " ".join(text.split())


def split_sentences(paragraph: str) -> list[str]:
    found: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(paragraph):
        # No abbreviation is longer; looking from `start` on would take time that grows with the square of them.
        if not _ABBREVIATION.search(paragraph, max(start, end.start() - 8), end.start() + 1):
            found.append(paragraph[start : end.end()].strip())
            start = end.end()
    return [*found, paragraph[start:].strip()]


def is_clean(sentence: str) -> bool:
    """Whether this is a whole sentence, mostly of letters, and free of code and formulas."""
    if not sentence.isascii() or not _COMPLETE.match(sentence) or _NOISE.search(sentence):
        return False
    return len(_NO_LETTER.findall(sentence)) <= (1 - MIN_LETTER_SHARE) * len(sentence)


def mask_names(text: str) -> str:
    """Put the same neutral word for the names of all packages, so that no label can be read off its own name."""
    return _REPEATED_MASK.sub(MASK, _NAMES.sub(MASK, text))


def near_key(sentence: str) -> str:
    """What two sentences share that differ in numbers, identifiers or proper names only."""
    first, *others = sentence.split()
    # A capital inside the sentence marks a name: "a BERT tokenizer", "a GPT tokenizer".
    common = [first, *(word for word in others if word == word.lower())]
    return " ".join(_WORD.findall(" ".join(word for word in common if not _IDENTIFIER.search(word)).lower()))
