"""The built-in data set `docstrings`: English sentences from the docstrings of installed packages.

Each row holds one sentence and, as its label, the package of the docstring. Nothing is downloaded. The packages are
not imported, because their source files are read with `ast`.
"""

import ast
import importlib.metadata
import importlib.util
import inspect
import json
import os
import platform
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from distill.core.console import print_notice
from distill.core.errors import install_command
from distill.core.files import write_text
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data.prose import split_sentences

LABELS: tuple[str, ...] = ("python", "numpy", "pandas", "torch", "transformers", "sympy", "networkx")

# Part of the fingerprint. Increase it if the text or the selection of the sentences changes.
FORMAT = 1

MASK = "package"
MIN_WORDS, MAX_WORDS = 5, 60
MIN_LETTER_SHARE = 0.9  # Share of letters and spaces among the characters.
DEV_SHARE = 0.1
# Limits the share of one long file. Sentences above the limit are used only if the package has no others.
SENTENCES_PER_FILE = 60
# Files with more bytes per triple quote are not parsed, because they hold hardly any docstrings.
MAX_BYTES_PER_QUOTE = 4000
DATA_FILES = ("train.jsonl", "dev.jsonl")

_SKIPPED_DIRECTORIES = re.compile(
    r"^(?:tests?|testing|idle_test|benchmarks|__pycache__|(?:site|dist)-packages|lib2to3"
    r"|_?vendor(?:ed)?|third_?party|externs?|externals|_bundled)$"
)
_SKIPPED_FILE = re.compile(r"^(?:test_.*|.*_tests?|conftest|_?version)\.py$")
_GENERATED = re.compile(rb"automatically generated|auto-?generated|@generated", re.IGNORECASE)
_DOCSTRING_CALLS = frozenset({"add_newdoc", "add_docstr", "_add_docstr"})

# Names, makers and usual aliases of the packages, and words derived from them. Long names are masked anywhere in a word
# (PyTorch, IPython, sympify), short aliases only as a complete part of an identifier.
_PACKAGE_NAMES = re.compile(
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

# Excludes the continuation of a formula ("where x is ..."). An identifier may begin with a lower-case letter.
_COMPLETE_SENTENCE = re.compile(r"^(?!(?:where|and|or|but|that|which|with)\b)[A-Za-z].*[.!?][\"')]*$")
# Remaining markup, formulas, code, URLs, and a full stop before a lower-case letter (an uncertain sentence end).
_NOISE = re.compile(
    r"[\\{}$|`<>^@~]|::|__|https?:|www\.|==|\.\.\.|\w\(\w*="
    r"|[a-z]\.(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!\bcf\.)(?<!\bvs\.)(?<!\bal\.) [a-z]"
)
_IDENTIFIER = re.compile(r"[\d_]|\w\.\w|\w\(")
_NO_LETTER = re.compile(r"[^A-Za-z ]")
_WORD = re.compile(r"[A-Za-z]+")


def prepare_dataset(cache_dir: Path, *, sentences_per_class: int = 3000, seed: int = 0) -> Path:
    """Returns the cached directory with `train.jsonl` and `dev.jsonl`, and builds it if it is missing or damaged.

    Rows are `{"sentence": str, "label": str}`.

    Raises:
        ModuleNotFoundError: if one of the packages is not installed.
    """
    if sentences_per_class < 10:
        raise ValueError(f"sentences_per_class is {sentences_per_class}, expected at least 10 (a tenth becomes dev)")
    roots = {label: find_sources(label) for label in LABELS}
    target = Path(cache_dir) / "data" / f"docstrings-{compute_fingerprint(sentences_per_class, seed)}"
    if has_entry(target):
        return target
    if target.exists():
        print_notice(f"the data set in {target} is damaged, its checksums do not match: building it again")
    splits = build_splits(roots, sentences_per_class=sentences_per_class, seed=seed)
    with new_entry(target) as draft:
        for name, rows in splits.items():
            write_text(draft / name, "".join(json.dumps(row) + "\n" for row in rows))
    return target


def find_sources(label: str) -> Path:
    """Returns the directory with the sources of a package, without importing it."""
    if label == "python":
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(label)
    # A spec without an origin is a namespace package: any directory with this name.
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise _not_installed_error(label)
    return Path(spec.submodule_search_locations[0])


def _not_installed_error(label: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"the built-in data set reads the sources of '{label}', which is not installed: {install_command('train')}",
        name=label,
    )


def compute_fingerprint(sentences_per_class: int, seed: int) -> str:
    """Returns a digest of everything that determines the content: package versions, size, seed and format version."""
    versions = {"python": platform.python_version()}
    for label in LABELS[1:]:
        try:
            versions[label] = importlib.metadata.version(label)
        except importlib.metadata.PackageNotFoundError:
            raise _not_installed_error(label) from None
    return entry_key("docstrings", FORMAT, versions, sentences_per_class, seed)[:16]


def build_splits(roots: dict[str, Path], *, sentences_per_class: int, seed: int) -> dict[str, list[dict[str, str]]]:
    """Returns the rows of each data file, with equally many per label and no two sentences of one normalized form."""
    # Shared by all labels: a sentence that occurs in two packages belongs to the first one in LABELS.
    seen: set[str] = set()
    sentences_by_label = {
        label: collect_sentences(
            root, limit=sentences_per_class, random_order=random.Random(f"{seed}/{label}"), seen=seen
        )
        for label, root in roots.items()
    }
    size = min(len(sentences) for sentences in sentences_by_label.values())
    if size < sentences_per_class:
        counts = {label: len(sentences) for label, sentences in sentences_by_label.items()}
        short = ", ".join(f"{label} {count}" for label, count in counts.items() if count < sentences_per_class)
        print_notice(f"fewer than {sentences_per_class} sentences for {short}: using {size} per class")
    dev_size = round(size * DEV_SHARE)
    train: list[dict[str, str]] = []
    dev: list[dict[str, str]] = []
    for label, sentences in sentences_by_label.items():
        sampler = random.Random(f"{seed}/{label}/split")
        rows = [{"sentence": sentence, "label": label} for sentence in sampler.sample(sentences, size)]
        dev += rows[:dev_size]
        train += rows[dev_size:]
    for rows in (train, dev):
        random.Random(f"{seed}/order").shuffle(rows)
    return {"train.jsonl": train, "dev.jsonl": dev}


def collect_sentences(root: Path, *, limit: int, random_order: random.Random, seen: set[str]) -> list[str]:
    """Returns up to `limit` sentences from the files under `root`, which are read in random order.

    Sentences whose normalized form is in `seen` are skipped. The forms of the others are added to `seen`.
    """
    paths = list_source_files(root)
    random_order.shuffle(paths)
    collected: list[str] = []
    reserve: list[str] = []
    for path in paths:
        texts = extract_docstrings(path.read_bytes())
        random_order.shuffle(texts)
        file_limit = min(limit, len(collected) + SENTENCES_PER_FILE)
        while texts and len(collected) < file_limit:
            collected += _extract_new_sentences(texts.pop(), seen)
        if len(collected) >= limit:
            return collected[:limit]
        reserve += texts
    random_order.shuffle(reserve)
    while reserve and len(collected) < limit:
        collected += _extract_new_sentences(reserve.pop(), seen)
    return collected[:limit]


def _extract_new_sentences(docstring: str, seen: set[str]) -> list[str]:
    new_sentences: list[str] = []
    for sentence in extract_sentences(docstring):
        normalized = normalize_sentence(sentence)
        if normalized not in seen:
            seen.add(normalized)
            new_sentences.append(sentence)
    return new_sentences


def list_source_files(root: Path) -> list[Path]:
    """Returns the Python files of a package, sorted, without its tests and vendored packages."""
    paths: list[Path] = []
    for folder, directories, names in os.walk(root):
        directories[:] = [name for name in directories if not _SKIPPED_DIRECTORIES.match(name)]
        paths += [Path(folder, name) for name in names if name.endswith(".py") and not _SKIPPED_FILE.match(name)]
    return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


def extract_docstrings(source: bytes) -> list[str]:
    """Returns the docstrings of a module, its classes and functions, and the texts of `add_newdoc` for C code."""
    if (source.count(b'"""') + source.count(b"'''")) * MAX_BYTES_PER_QUOTE < len(source):
        return []  # Parsing is slow and would yield hardly any text.
    if _GENERATED.search(source, 0, 1000):
        return []  # A duplicate of its template, as a third of the sources of transformers.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Invalid escapes in the strings of the packages.
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # A file for another version of Python.
        return []
    return list(_iterate_docstrings(tree))


def _iterate_docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    docstring = ast.get_docstring(node, clean=False)
    if docstring:
        yield docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _iterate_docstrings(child)
        elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            function = child.value.func
            function_name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if function_name in _DOCSTRING_CALLS:
                for descendant in ast.walk(child.value):
                    if isinstance(descendant, ast.Constant) and isinstance(descendant.value, str):
                        yield descendant.value


def extract_sentences(docstring: str) -> list[str]:
    """Returns the clean English sentences of a docstring, with package names masked."""
    sentences: list[str] = []
    for paragraph in split_paragraphs(docstring):
        for sentence in split_sentences(strip_markup(paragraph)):
            if is_clean_sentence(sentence):
                masked = mask_names(sentence)
                if MIN_WORDS <= len(masked.split()) <= MAX_WORDS:
                    sentences.append(masked)
    return sentences


def split_paragraphs(docstring: str) -> list[str]:
    """Returns the paragraphs of prose, each on one line.

    Only lines without indentation count, because code, directives, parameters and list items are indented.
    """
    lines = inspect.cleandoc(docstring).splitlines()
    paragraphs: list[str] = []
    current: list[str] = []
    skipping = in_fence = False
    for line, following in zip(lines, [*lines, ""][1:], strict=True):
        text = line.strip()
        is_fence = bool(_FENCE.match(text))
        in_fence ^= is_fence
        is_heading = bool(text and _UNDERLINE.match(following.strip()))
        if not text or is_heading or is_fence or in_fence or line[0].isspace():
            paragraphs.append(" ".join(current))
            current = []
            if not text or is_heading or is_fence:
                skipping = False
        elif skipping or _NOT_PROSE.search(line):
            # Lines after a doctest or a list item belong to it, up to the next blank line.
            skipping = True
        elif not _UNDERLINE.match(text):
            current.append(text)
    paragraphs.append(" ".join(current))
    return [paragraph for paragraph in paragraphs if paragraph]


def strip_markup(text: str) -> str:
    """Replaces reST and Markdown markup by its text: ":class:`~a.B`" becomes "B"."""
    text = _MARKDOWN_LINK.sub(r"\1", text)
    text = _ROLE_WITH_TARGET.sub(r"\1", text)
    text = _ROLE.sub(lambda role: role[2].rsplit(".", 1)[-1] if role[1] else role[2], text)
    text = _HYPERLINK.sub(r"\1", text)
    text = _REFERENCE.sub("", text)
    text = _LITERAL.sub(r"\1", text)
    text = _EMPHASIS.sub(r"\1", text)
    return " ".join(text.split())


def is_clean_sentence(sentence: str) -> bool:
    """Returns whether the text is a complete sentence, mostly of letters, without code and formulas."""
    if not sentence.isascii() or not _COMPLETE_SENTENCE.match(sentence) or _NOISE.search(sentence):
        return False
    return len(_NO_LETTER.findall(sentence)) <= (1 - MIN_LETTER_SHARE) * len(sentence)


def mask_names(text: str) -> str:
    """Replaces the names of all packages by one neutral word, because they would reveal the label."""
    return _REPEATED_MASK.sub(MASK, _PACKAGE_NAMES.sub(MASK, text))


def normalize_sentence(sentence: str) -> str:
    """Returns the lower-case words of a sentence without numbers, identifiers and proper names.

    Sentences that differ in those only have the same normalized form.
    """
    first, *others = sentence.split()
    # An upper-case letter after the first word marks a name: "a BERT tokenizer", "a GPT tokenizer".
    common = [first, *(word for word in others if word == word.lower())]
    return " ".join(_WORD.findall(" ".join(word for word in common if not _IDENTIFIER.search(word)).lower()))
