"""Errors that end a run with one line, without passwords, and values in a line: escaped, shortened, or as an overview.

The command that installs what is missing is here too. The overview of an object is a table of HTML where a notebook
shows the object, and aligned lines elsewhere.

>>> print(Overview("Bundle", [("model", "int8"), ("size", "14.2 MB")]))
Bundle
  model  int8
  size   14.2 MB
"""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from pathlib import Path
from urllib.parse import unquote

from distill import __version__

_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.-]*://"
_URL = re.compile(rf"{_SCHEME}(?:(?!{_SCHEME})\S)*")
_SECRET_NAME = re.compile(
    r"(token|secret|signature|password|passwd|credentials?|(access|account|api)_?key(_?id)?)$"
    r"|(^|[-_.])(sig|key|pass|pwd|auth)$",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"(?<=[?&;#])(?P<name>[^=?&;#\s]+)=(?P<value>[^&;#\s]+)")
HIDDEN = "***"


def hide_secrets(text: str) -> str:
    """Returns a text in which passwords of URLs are `***`: of a user, and of parameters such as `?token=`."""
    return _URL.sub(lambda url: _hide(url.group()), text)


def has_secret(text: str) -> bool:
    """Returns whether a text has a URL with a password."""
    return hide_secrets(text) != text


def _hide(url: str) -> str:
    scheme, _, rest = url.partition("://")
    end = re.search(r"[/?#]", rest)
    host = rest[: end.start()] if end else rest
    if "@" not in host and re.search(r":(?!\d*$)[^]]*$", host):  # A password with a slash ends the host too early.
        host = rest.rpartition("@")[0] + "@" if "@" in rest else host
    rest = rest[len(host) :]
    user, at, name = host.rpartition("@")
    if at:
        account, colon, password = user.partition(":")
        if scheme.lower() in ("http", "https"):  # A token may be the user.
            user = HIDDEN
        elif colon and password:
            user = f"{account}:{HIDDEN}"
    return f"{scheme}://{user}{at}{name}{_PARAMETER.sub(_hide_parameter, rest)}"


def _hide_parameter(found: re.Match[str]) -> str:
    name = found["name"]
    return f"{name}={HIDDEN}" if _SECRET_NAME.search(unquote(name)) else found.group()


def describe_refusal(option: str, text: str) -> str | None:
    """Returns why an option is refused whose value has a URL with a password; None if it has none."""
    if not has_secret(text):
        return None
    scheme = next(url.group() for url in _URL.finditer(text) if has_secret(url.group())).partition("://")[0]
    variable = f"FSSPEC_{re.sub(r'[^A-Z0-9]', '_', scheme.upper())}_PASSWORD"
    if option.rpartition(".")[2] == "tracking_uri":
        instead = "set MLFLOW_TRACKING_URI instead, which no file names"
    elif scheme.lower() in ("http", "https"):
        instead = "download the files and give their path"
    else:
        instead = f"leave it out of the URL and set {variable}, or the variables that the package of the storage reads"
    return (
        f"{option} has a URL with a password or a token, which config.yaml, run.json and names of directories would "
        f"show: {instead}"
    )


def find_texts(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields every text in mappings and lists with its full name, such as `task.data_dir`."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str):
                yield name, key
            yield from find_texts(inner, f"{name}.{key}" if name else str(key))


_SURE = 0.8  # Similarity of a misspelt name, from which on no other one can be meant.


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or the name of its class where it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def did_you_mean(given: str, names: Sequence[str], *, cutoff: float = 0.6) -> str:
    """Returns ` (did you mean NAME?)` with the nearest of these names, empty where none is near.

    Args:
        cutoff: the least similarity, from 0 to 1.
    """
    nearest = difflib.get_close_matches(given, names, n=1, cutoff=cutoff)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def suggest(given: str, names: Sequence[str]) -> str:
    """Returns the end of a message: the nearest name, and all names unless it is surely meant."""
    hint = did_you_mean(given, names)
    ends = [name.rpartition(".")[2] for name in (given, *names)]  # What is common to all says nothing.
    if hint and difflib.get_close_matches(ends[0], ends[1:], n=1, cutoff=_SURE):
        return hint
    return f"{hint}, expected one of {', '.join(names)}"


def find_cause(error: BaseException) -> BaseException:
    """Returns the error of ours that another one was raised from, as by Hydra, or the very first error."""
    while error.__cause__ is not None and not isinstance(error, DistillError):
        error = error.__cause__
    return error


class DistillError(Exception):
    """An error whose message is complete: what was wrong, what was expected, what to type."""

    exit_code = 1

    def __str__(self) -> str:
        """Returns the message, which may quote an option or an error of a library, without passwords."""
        return hide_secrets(super().__str__())


class UserError(DistillError):
    """A wrong input from the user: an option, a file or a model."""

    exit_code = 2


class OptionError(UserError, ValueError):
    """An option that got a value it cannot take.

    Args:
        option: name of the option within its class; `with_prefix` adds the rest.
        got: the value as the user typed it, None if the option was left out.
        expected: the values that the option takes, in words.
    """

    def __init__(self, option: str, got: str | None, expected: str) -> None:
        super().__init__(option, got, expected)
        self.option, self.got, self.expected = option, got, expected

    def __str__(self) -> str:
        got = f"no {self.option}" if self.got is None else f"{self.option}={self.got}"
        return hide_secrets(f"got {got}, expected {self.expected}")

    def with_prefix(self, prefix: str) -> "OptionError":
        """Returns the same error about `prefix.option`, which may be its name already."""
        if self.option.startswith(f"{prefix}."):
            return self
        return OptionError(f"{prefix}.{self.option}", self.got, self.expected)


class UnreachableError(UserError):
    """A model or data set that is not on this machine and cannot be downloaded from the Hub."""


class Interrupted(DistillError):
    """An interrupt by Ctrl-C. The message names the saved state and the command that resumes the run."""

    exit_code = 130


class Pruned(DistillError):
    """The end of a trial of a search that had worse values than the others."""

    exit_code = 0


class NumericalError(DistillError):
    """A loss, or an output of an exported file, that is NaN or infinite."""

    exit_code = 3


@dataclass(frozen=True)
class Failure:
    """An error of a run, as it is sent to the process of the command.

    Attributes:
        is_reported: whether it was printed, because the run was in that process.
    """

    exit_code: int
    message: str
    is_reported: bool = False


def forget_interrupt() -> None:
    """Makes the interpreter end with its exit code after a `KeyboardInterrupt` that was caught.

    CPython 3.11 notes one that passes through `exec` of a string, as in an import of a dataclass, and `python -m` then
    ends by SIGINT whatever the program returns. Any other `exec` of a string clears the note.
    """
    exec("")


# The characters at which `str.splitlines` splits, and the tab, with their escapes.
ESCAPES = {ord(character): ascii(character)[1:-1] for character in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}
SHOWN = 80  # Characters of a record in a message.


def escape(text: str, *, tab: bool = True) -> str:
    """Returns a text in which line breaks, and by default tabs, are escaped as in Python."""
    return text.translate(ESCAPES if tab else {code: words for code, words in ESCAPES.items() if code != ord("\t")})


def shorten(record: object) -> str:
    """Returns a record as one line of a message."""
    text = ascii(record) if find_surrogate(repr(record)) is not None else repr(record)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def find_surrogate(text: str) -> int | None:
    """Returns the position of the first half of a character, which UTF-8 cannot encode; None if there is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def check_text(text: str) -> str:
    """Returns the text; raises UserError if it is not Unicode."""
    position = find_surrogate(text)
    if position is not None:
        raise UserError(f"got {shorten(text)}, expected Unicode: character {position + 1} is a lone surrogate")
    return text


# Notebooks align the cells of a table to the right. Colours are those of the notebook, light or dark.
_CELL = 'style="text-align: left; vertical-align: top; white-space: normal"'


@dataclass(frozen=True)
class Overview:
    """A title, rows of texts of equal length, and sentences below them.

    Args:
        header: names of the columns; none for rows of a name and its value.
        notes: a line each.
    """

    title: str
    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        lines = [*([self.header] if self.header else []), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        cells = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([self.title, *(f"  {line}" for line in cells), *self.notes])

    def html(self) -> str:
        """Returns the table as HTML without scripts and colours; every text is escaped."""
        head = "".join(f"<th {_CELL}>{escape_html(name)}</th>" for name in self.header)
        lines = [f"<thead><tr>{head}</tr></thead>"] if head else []
        for first, *others in self.rows:
            cells = "".join(f"<td {_CELL}>{escape_html(text)}</td>" for text in others)
            lines.append(f'<tr><th scope="row" {_CELL}>{escape_html(first)}</th>{cells}</tr>')
        notes = "".join(f"<p>{escape_html(note)}</p>" for note in self.notes)
        # A wide table scrolls by itself.
        table = f'<div style="overflow-x: auto"><table>{"".join(lines)}</table></div>'
        return f"<div><p><strong>{escape_html(self.title)}</strong></p>{table}{notes}</div>"


class Shown:
    """An object that a notebook shows as its overview. A class writes `overview`."""

    def overview(self) -> Overview:
        """Returns the facts of the object that a reader looks for first."""
        raise TypeError(f"{type(self).__name__} has no overview()")

    def _repr_html_(self) -> str:
        return self.overview().html()


def describe_call(name: str, /, *values: object, **options: object) -> str:
    """Returns an object in one line, as the call that makes it; options that are None or empty are left out.

    >>> describe_call("Bundle", "runs/first/bundle", model="int8", threads=None)
    "Bundle('runs/first/bundle', model='int8')"
    """
    shown = [f"{option}={value!r}" for option, value in options.items() if value or value == 0]
    return f"{name}({', '.join([*map(repr, values), *shown])})"


PACKAGE = Path(__file__).resolve().parents[1]
DISTRIBUTION = "distill-encoders"
WHEEL = f"{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"


def is_checkout() -> bool:
    """Returns whether this package is run from a checkout, where `conf` is beside it and not inside."""
    return not (PACKAGE / "conf").is_dir()


def config_directory() -> Path:
    """Returns the directory `conf`, which is in the package in a wheel and beside it in a checkout."""
    return (PACKAGE.parent if is_checkout() else PACKAGE) / "conf"


def install_command(extra: str) -> str:
    """Returns the command that installs an extra of distill, which no package index has.

    It names the checkout, or what pip has noted as the origin of the installed distribution (direct_url.json): a wheel,
    a directory or a repository.
    """
    if is_checkout():
        return f"pip install -e '{PACKAGE.parent}[{extra}]'"
    origin = _read_origin()
    if origin is None:
        return f"pip install 'PATH/TO/{WHEEL}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}] @ {origin}'"


def _read_origin() -> str | None:
    """Returns the URL that distill was installed from, as pip takes it; None if the installer noted none."""
    from importlib import metadata  # It is slow to import, and read for a message alone.

    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if text is None:
        return None
    noted = json.loads(text)
    repository = noted.get("vcs_info")
    return f"{repository['vcs']}+{noted['url']}@{repository['commit_id']}" if repository else str(noted["url"])
