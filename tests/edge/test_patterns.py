"""Tests of patterns beside a tagger: matches and checks, refused syntax, the time of a text, and the same in Node."""

import json
import shutil
import subprocess
import time
from typing import Any

import pytest

from distill.core.errors import UserError
from distill.edge import Bundle
from distill.edge.patterns import BUILT_IN, Pattern, add_matches
from distill.edge.words import Splitter
from tests.edge.conftest import ROOT, Write

TEXT = (
    "\U0001f600 a.b+c@mail.example.org, DE89 3704 0044 0532 0130 00 or BE68 5390 0754 7034 BANK, "
    "not DE88 3704 0044 0532 0130 00; 4111 1111 1111 1111 2025, 4111-1111-1111-1112; see https://x.org/a?b=c. "
    "(http://y.org) +49 30 123456 192.168.0.1 256.1.1.1"
)
FOUND = {
    "email": ["a.b+c@mail.example.org"],
    "iban": ["DE89 3704 0044 0532 0130 00", "BE68 5390 0754 7034"],
    "card": ["4111 1111 1111 1111"],
    "url": ["https://x.org/a?b=c", "http://y.org"],
    "ipv4": ["192.168.0.1"],
}


def texts(pattern: Pattern, text: str) -> list[str]:
    return [text[start:end] for start, end in pattern.find(text)]


@pytest.mark.parametrize("name", FOUND)
def test_a_built_in_pattern_finds_what_has_its_check_digits(name: str) -> None:
    assert texts(Pattern.create(name), TEXT) == FOUND[name]


def test_a_phone_has_an_area_or_a_country() -> None:
    assert texts(Pattern.create("phone"), "+49 30 123456, (030) 1234-567, 12 34") == ["+49 30 123456", "(030) 1234-567"]


def test_a_match_takes_the_place_of_an_entity_and_of_a_later_pattern() -> None:
    patterns = [Pattern("code", r"[A-Z]{2}\d{2}"), Pattern("number", r"\d{2,4}")]
    entities: list[dict[str, Any]] = [
        {"text": "AB12", "type": "city", "score": 0.5, "start": 3, "end": 7},
        {"text": "x", "type": "city", "score": 0.5, "start": 12, "end": 13},
    ]
    found = add_matches(patterns, "to AB12 777 x", entities)
    assert [(of["type"], of["text"], of["score"]) for of in found] == [
        ("code", "AB12", 1.0), ("number", "777", 1.0), ("city", "x", 0.5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a+", r"\+ at character 2 has no upper limit: write \{0,64\} or \{1,64\}"),
        ("ba*", r"\* at character 3 has no upper limit"),
        ("a{2,}", r"\{2,\} at character 2 has no upper limit"),
        ("a.c", r"\. at character 2 is another character in Python than in JavaScript"),
        ("^a", r"\^ at character 1 is an end of the text"),
        ("a$", r"\$ at character 2 is an end of the text"),
        (r"a\s", r"\\s at character 2 is read differently in Python and JavaScript"),
        (r"(a)\1", r"\\1 at character 4 is read differently"),
        ("(?P<n>a)", r"\(\?P at character 1 is a group of one of both languages alone"),
        ("(?i)a", r"\(\?i at character 1 is a group"),
        ("a]", r"\] at character 2 is no class of both languages and no repetition: write \\\["),
        ("[[a]", r"\[ at character 1 is no class"),
        ("[]a]", r"\[ at character 1 is no class"),
        (r"[\s]", r"\[ at character 1 is no class of both languages .* and no \\s and \\b in a class"),
        ("a{x}", r"\{ at character 2 is no class"),
        ("a{2}?", r"\? at character 5 repeats nothing"),
        ("(?=a){2}a", r"\{2\} at character 6 repeats nothing"),
        ("{2}", "it is no regular expression: nothing to repeat at position 0"),
        ("(?=ab)a", r"\(\?=\.\.\.\) has more than one character"),
        ("(a", r"it is no regular expression: missing \)"),
        ("a)", "it is no regular expression: unbalanced parenthesis"),
        ("[z-a]", "it is no regular expression: bad character range z-a"),
        ("a{3,2}", "it is no regular expression: min repeat greater than max repeat"),
        ("", "it matches the empty text"),
        (r"a?\b", "it matches the empty text"),
        ("a|b{0,3}", "it matches the empty text"),
        ("(?:a?){1,3}b", "a group that may be empty is repeated"),
        (r"(?:\w{1,9}){1,9}!", "more than 100,000 steps at one place of a text: end each repetition"),
        (r"\w{0,64}\d{0,64}\w{0,64}!", "more than 100,000 steps"),
        (r"(?:a|a){1,20}!", "more than 100,000 steps"),
        ("(?:ab){1,9999}ab", "more than 100,000 steps"),
        ("(?:" * 40 + "a" + "){2}" * 40, "more than 100,000 steps"),
        ("(" * 5000 + "a" + ")" * 5000, "it is no regular expression: "),
    ],
)  # fmt: skip
def test_a_pattern_of_another_syntax_or_without_a_limit_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Pattern("type", pattern)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("order", None, "null is for the built-in types email, iban, card, url, phone, ipv4: give an expression"),
        ("order", {"pattern": "a", "check": "crc"}, "check 'crc' is unknown, expected one of iban, luhn or null"),
        ("order", {"check": "iban"}, "expected an expression, or a mapping with pattern and check"),
        ("order", 7, "expected an expression, or a mapping"),
        ("a\nb", "a", "expected a type on one line"),
    ],
)
def test_an_option_that_is_no_pattern_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Pattern.create(name, value)


@pytest.mark.parametrize("piece", ["a", "a.", "a@a.", "1 ", "1-", "A1", "http://.", "+1 ", "(0", "DE89 "])
def test_a_text_costs_time_in_proportion_to_its_length(piece: str) -> None:
    """A pattern with a square of the length, or worse, would take minutes."""
    text, begun = piece * (60_000 // len(piece)), time.process_time()
    for name in BUILT_IN:
        list(Pattern.create(name).find(text))
    assert time.process_time() - begun < 20


PATTERNS = [
    {"type": "mail", "pattern": BUILT_IN["email"][0], "check": None},
    {"type": "day", "pattern": r"\d{1,2}\.\d{1,2}\.\d{4}", "check": None},
]


def test_a_bundle_finds_patterns_beside_the_entities_of_its_model(write: Write) -> None:
    decoding = {"splitter": Splitter().describe(), "patterns": PATTERNS}
    bundle, plain = Bundle(write("tags", decoding=decoding)), Bundle(write("tags", name="plain"))
    text = "\U0001f600 a lovely film a@b.org " + "and so on " * 40 + "until 1.2.2030"  # The end is cut off.
    found, of_model = (one.predict(text)["entities"] for one in (bundle, plain))
    matches = [entity for entity in found if entity["score"] == 1.0]
    assert [(of["type"], of["text"]) for of in matches] == [("mail", "a@b.org"), ("day", "1.2.2030")]
    assert all(text[of["start"] : of["end"]] == of["text"] for of in found)
    assert [of for of in found if of not in matches] == [of for of in of_model if of["end"] <= 16 or of["start"] >= 23]
    assert [of["text"] for of in bundle.predict({"tokens": ["to", "a@b.org"]})["entities"] if of["score"] == 1] == [
        "a@b.org"
    ]


@pytest.mark.parametrize("value", [{"type": "x", "pattern": "a+"}, {"pattern": "a"}, "a"])
def test_a_damaged_pattern_of_a_bundle_is_refused(write: Write, value: object) -> None:
    with pytest.raises(UserError, match="is damaged: decoding has the patterns "):
        Bundle(write("tags", decoding={"splitter": Splitter().describe(), "patterns": [value]}))


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_matches_of_a_browser_are_those_of_python() -> None:
    own = [
        r"[^\n\w]{2}", r"\D\W", "[\u00e4-\u00fc]{1,3}|\U0001f600", r"(?<=\.)\w{1,5}(?=[,;\n ])", r"\ba\t?b\b",
        r"[a\-\].]{1,4}\/",
        r"(?:NR|Nr)[.\-]?\d{1,6}(?!\d)", r"\{\w{1,4}\}", "[^a-c\u00e9]x",
    ]  # fmt: skip
    patterns = [Pattern.create(name) for name in BUILT_IN] + [Pattern("own", one) for one in own]
    patterns.append(Pattern("number", r"\d(?: ?\d){3,20}", "luhn"))
    given = [
        TEXT, "", "NR.12 Nr-1234567 {ab} a\tb ab\u00e9b a.]-/ \u00e4\u00fc\u00f6\u00e4 \U0001f600\u2028.x, .y;\n",
        "0 4111 1111 1111 1111 42", "gb82west12345698765432 GB82WEST12345698765432", "\u0663\u0664 \u00e9x",
        "\u00e4a@b.de\u00e4 \u00c4DE89370400440532013000",
    ]  # fmt: skip
    path = ROOT / "distill" / "edge" / "web" / "bundle.mjs"
    script = f"""
        import {{ findMatches }} from {json.dumps(path.as_uri())};
        import {{ readFileSync }} from "node:fs";
        const {{ texts, patterns }} = JSON.parse(readFileSync(0, "utf8"));
        const find = (text, pattern) => findMatches(text, pattern).map(([start, end]) => text.slice(start, end));
        console.log(JSON.stringify(patterns.map((pattern) => texts.map((text) => find(text, pattern)))));
    """
    content = json.dumps({"texts": given, "patterns": [pattern.describe() for pattern in patterns]})
    command = ["node", "--input-type=module", "-e", script]
    found = json.loads(subprocess.run(command, input=content, capture_output=True, text=True, check=True).stdout)
    assert found == [[texts(pattern, text) for text in given] for pattern in patterns]
    assert all(any(of_pattern) for of_pattern in found)  # Each finds something.
