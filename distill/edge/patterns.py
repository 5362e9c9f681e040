"""Types of entities with a regular form, such as addresses of e-mail, which patterns find beside a model.

A pattern means the same in Python and in JavaScript, and a place of a text costs it a bounded time: repetitions have
an upper limit, and the ways in which a pattern may read the same characters are counted before it is taken.

>>> list(Pattern.create("email").find("write to a.b@c.org."))
[(9, 18)]
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from distill.core.errors import UserError, shorten
from distill.edge.words import Span

MOST_STEPS = 100_000  # The ways in which a pattern may read what is behind one place, times its characters.


def is_iban(text: str) -> bool:
    """Returns whether the number of an account has its check digits (ISO 7064, MOD 97-10)."""
    characters = re.sub(r"[^A-Za-z0-9]", "", text)
    return int("".join(str(int(each, 36)) for each in characters[4:] + characters[:4]) or "0") % 97 == 1


def is_luhn(text: str) -> bool:
    """Returns whether the last digit of a number is its check digit (ISO/IEC 7812-1, Luhn)."""
    digits = [int(each) for each in reversed(re.sub(r"[^0-9]", "", text))]
    return (sum(digits[::2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2])) % 10 == 0


CHECKS: Mapping[str, Callable[[str], bool]] = {"iban": is_iban, "luhn": is_luhn}
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
# Each pattern with its check, which may be none.
BUILT_IN: Mapping[str, tuple[str, str | None]] = {
    "email": (r"(?<![\w.%+\-])[\w.%+\-]{1,64}@(?:[A-Za-z0-9\-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w\-])", None),
    "iban": (r"\b[A-Z]{2}\d{2}(?:[A-Z0-9]{11,30}|(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,3})?)(?!\w)", "iban"),
    "card": (r"(?<![\w\-])\d(?:[ \-]?\d){12,18}(?!\w)", "luhn"),
    "url": (r'\bhttps?://[^ \t\n<>"]{0,300}[^ \t\n<>".,:;!?)]', None),
    "phone": (r"(?<![\w+])(?:\+\d{1,3}|\(?0\d{1,5}\)?)(?:[ ./\-]\(?\d{1,9}\)?){1,5}(?!\w)", None),
    "ipv4": (rf"(?<![\w.])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w.])", None),
}

_ESCAPE = r"\\[dDwWtn^$\\.*+?()\[\]{}|/]"
_CLASS = rf"\[(?!\^?\])\^?(?:{_ESCAPE}|\\-|[^\[\]\\])+\]"
_TOKEN = re.compile(
    rf"(?P<one>{_CLASS}|{_ESCAPE}|[^\\^$.*+?()\[\]{{}}|])|(?P<edge>\\b)|(?P<look>\(\?<?[=!])|(?P<open>\(\?:|\((?!\?))"
    r"|(?P<close>\))|(?P<or>\|)|(?P<times>\?|\{\d{1,4}(?:,\d{1,4})?\})"
)
# What else a pattern may have, and why it is refused.
_REFUSED = (
    (r"[*+]|\{\d*,\}", "has no upper limit: write {0,64} or {1,64}"),
    (r"\.", r"is another character in Python than in JavaScript: write [^\n], or \. for a dot"),
    (r"[\^$]", r"is an end of the text, and a pattern is found anywhere: leave it out, or write \^ and \$"),
    (r"\\.", r"is read differently in Python and JavaScript: the escapes are \d, \w, \D, \W, \b, \t and \n"),
    (r"\(\?.", "is a group of one of both languages alone: write (?:...), (?=...), (?!...), (?<=...) or (?<!...)"),
    (r"[\[\]{}]", r"is no class of both languages and no repetition: write \[ for itself, and no \s and \b in a class"),
)


class _Measure(NamedTuple):
    """The characters that a part of a pattern may begin with, its ways, and its fewest and most characters."""

    first: frozenset[str]
    ways: int
    least: int
    most: int


@dataclass(frozen=True)
class _Item:
    """One character, a group of alternatives, or a condition without characters, and how often it is repeated."""

    first: frozenset[str]  # The characters that it may begin with, or that a condition allows behind it.
    group: "Sequence[Sequence[_Item]] | None" = None
    is_condition: bool = False
    times: tuple[int, int] | None = None


class _Reader:
    """Reads the syntax that Python and JavaScript share, and measures how many ways it has.

    A repetition that the first character behind it ends has one way, and else one for each number of times.

    Raises:
        UserError: for another syntax, with the reason in words.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern, self.place = pattern, 0
        self.sample = {*map(chr, range(128)), *"\u00e9\U0001f600", *pattern}

    def read(self) -> _Measure:
        """Returns the measure of the pattern."""
        return self._measure(self._read_branches(), frozenset())

    def _read_branches(self) -> list[list[_Item]]:
        """Returns the items of each alternative up to the end of the group, which is known to have one."""
        branches: list[list[_Item]] = [[]]
        while self.place < len(self.pattern):
            token = _TOKEN.match(self.pattern, self.place)
            if token is None:
                raise self._refuse()
            self.place, kind = token.end(), token.lastgroup
            if kind == "close":
                break
            if kind == "or":
                branches.append([])
            elif kind == "times":
                self._repeat(branches[-1], token.group())
            else:
                branches[-1].append(self._read_item(str(kind), token.group()))
        return branches

    def _read_item(self, kind: str, token: str) -> _Item:
        if kind == "one":
            character = re.compile(token, re.ASCII)
            return _Item(frozenset(each for each in self.sample if character.match(each)))
        if kind == "edge":
            return _Item(frozenset(self.sample), is_condition=True)
        group = self._read_branches()
        if kind == "open":
            return _Item(self._measure(group, frozenset()).first, group)
        if any(len(branch) != 1 or branch[0].group or branch[0].times for branch in group):
            raise UserError(f"{token}...) has more than one character, expected one, or several with | between")
        allowed = frozenset[str]().union(*(branch[0].first for branch in group))
        behind = allowed if token == "(?=" else self.sample - allowed if token == "(?!" else self.sample
        return _Item(frozenset(behind), is_condition=True)

    def _repeat(self, branch: list[_Item], token: str) -> None:
        if not branch or branch[-1].times or branch[-1].is_condition:
            raise UserError(f"{token} at character {self.place - len(token) + 1} repeats nothing")
        least, _, most = ("0,1" if token == "?" else token[1:-1]).partition(",")
        branch.append(_Item(branch[-1].first, branch.pop().group, times=(int(least), int(most or least))))

    def _refuse(self) -> UserError:
        rest = self.pattern[self.place :]
        matches = ((re.match(construct, rest, re.DOTALL), reason) for construct, reason in _REFUSED)
        found, reason = next((match.group(), reason) for match, reason in matches if match)
        return UserError(f"{found} at character {self.place + 1} {reason}")

    def _measure(self, branches: Sequence[Sequence[_Item]], behind: frozenset[str]) -> _Measure:
        """Returns the measure of alternatives, before one of the characters `behind`, none at the end of a pattern."""
        parts = [self._measure_branch(branch, behind) for branch in branches]
        first, ways, least, most = zip(*parts, strict=True)
        return _Measure(frozenset[str]().union(*first), sum(ways), min(least), max(most))

    def _measure_branch(self, branch: Sequence[_Item], behind: frozenset[str]) -> _Measure:
        ways, least, most = 1, 0, 0
        for item in reversed(branch):
            if item.is_condition:
                behind = (item.first & behind) or item.first
                continue
            fewest, times = item.times or (1, 1)
            part = _Measure(item.first, 1, 1, 1)
            if item.group is not None:
                part = self._measure(item.group, behind | item.first if times > 1 else behind)
                if times > 1 and not part.least:
                    raise UserError("a group that may be empty is repeated: give it at least one character")
            ways *= (times - fewest + 1 if part.first & behind else 1) * part.ways ** min(times, 64)
            behind = part.first | behind if not fewest else part.first
            least, most = least + fewest * part.least, most + times * part.most
        return _Measure(behind, ways, least, most)


@dataclass(frozen=True)
class Pattern:
    """A regular expression, read as ASCII, whose matches in a text are entities.

    A match whose check fails is tried again up to each space in it, the last one first, because a word behind a number
    may look like more of it.

    Args:
        type: of the entities.
        pattern: the expression, in the syntax that Python and JavaScript share.
        check: one of `CHECKS`; None for none.

    Raises:
        UserError: for another syntax, one that matches nothing at all, or in too many ways, and an unknown check.
    """

    type: str
    pattern: str
    check: str | None = None

    def __post_init__(self) -> None:
        if self.check not in (None, *CHECKS):
            raise UserError(f"check {shorten(self.check)} is unknown, expected one of {', '.join(CHECKS)} or null")
        try:
            re.compile(self.pattern, re.ASCII)
            measure = _Reader(self.pattern).read()
        except (re.error, RecursionError, OverflowError) as error:
            raise UserError(f"it is no regular expression: {error}") from error
        if not measure.least:
            raise UserError("it matches the empty text: give it at least one character that must be there")
        if measure.ways * measure.most > MOST_STEPS:
            raise UserError(
                f"it may take more than {MOST_STEPS:,} steps at one place of a text: end each repetition with a "
                "character that it does not contain"
            )

    @classmethod
    def create(cls, type: str, value: object = None) -> "Pattern":
        """Returns the pattern of an option: an expression, `{"pattern", "check"}`, or None for a built-in type.

        Raises:
            UserError: as `Pattern` does.
        """
        if value is None:
            if type not in BUILT_IN:
                raise UserError(f"null is for the built-in types {', '.join(BUILT_IN)}: give an expression")
            return cls(type, *BUILT_IN[type])
        given = {"pattern": value} if isinstance(value, str) else value
        if not isinstance(given, Mapping) or not {"pattern"} <= given.keys() <= {"pattern", "check"}:
            raise UserError("expected an expression, or a mapping with pattern and check")
        if not isinstance(given["pattern"], str) or not type or type.splitlines() != [type]:
            raise UserError("expected a type on one line, and an expression")
        return cls(type, given["pattern"], given.get("check"))

    def describe(self) -> dict[str, str | None]:
        """Returns the values in the form of bundle.json."""
        return {"type": self.type, "pattern": self.pattern, "check": self.check}

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.ASCII)

    def find(self, text: str) -> Iterator[Span]:
        """Yields the first and last (exclusive) character of each match whose check holds, from left to right."""
        is_right = CHECKS[self.check] if self.check else bool
        for match in self._expression.finditer(text):
            first, last = match.span()
            spaces = (place for place in range(last - 1, first, -1) if self.check and text[place] == " ")
            tries = itertools.chain([match], (self._expression.match(text, first, place) for place in spaces))
            found = next((one for one in tries if one is not None and is_right(one.group())), None)
            if found is not None:
                yield found.span()


def parse_patterns(values: Any) -> list[Pattern]:
    """Returns the patterns of bundle.json; raises UserError for what is none."""
    try:
        return [Pattern.create(str(value.pop("type")), value) for value in map(dict, values)]
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"decoding has the patterns {shorten(values)}: {error}") from error


def add_matches(
    patterns: Sequence[Pattern], text: str, entities: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Returns the entities of a text with those of patterns, in order of their characters.

    A match takes the place of the entities that it overlaps, and of the matches of patterns behind its own.
    """
    kept, is_taken = list[Mapping[str, Any]](), bytearray(len(text))
    matches = (
        {"text": text[start:end], "type": pattern.type, "score": 1.0, "start": start, "end": end}
        for pattern in patterns
        for start, end in pattern.find(text)
    )
    for entity in (*matches, *entities):
        place = slice(entity["start"], entity["end"])
        if not any(is_taken[place]):
            is_taken[place] = b"1" * (place.stop - place.start)
            kept.append(entity)
    return sorted(kept, key=lambda entity: entity["start"])
