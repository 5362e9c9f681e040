"""Tests of the cleaning of web text: each rule by a line made for it, repeated spans, and the counts."""

import random
from pathlib import Path

import pytest

from distill.core.errors import OptionError, UserError
from distill.data.pool import BankSource
from distill.data.prose import BOILERPLATE, BRACES, ENDING, REPEATED, WORDS, WebCleaner, describe_cleaning, failed_rule
from distill.kinds import Classification
from tests.data.conftest import Printed

FIRST, SECOND, THIRD, FOURTH = (
    "The first sentence has five words.", "The second one is here too.", "A third one ends this span.",
    "The fourth sentence is a new one.",
)  # fmt: skip


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("A whole sentence of prose stays as it is.", None),
        ('  "Is a quoted question kept as well?"  ', None),
        ("He said that it was \u201cquite enough\u201d", None),
        ("This line has no mark at its end", ENDING),
        ("This line is cut off in the middle of...", ENDING),
        ("This line is cut off in the middle of\u2026", ENDING),
        ("Just four words here.", WORDS),
        ("function f() { return 1; } is no prose.", BRACES),
        ("Please enable JavaScript to read this page.", BOILERPLATE),
        ("Lorem ipsum dolor sit amet, consectetur adipiscing elit.", BOILERPLATE),
        ("By going on you accept our Privacy Policy and more.", BOILERPLATE),
        ("This site uses cookies to serve you better.", BOILERPLATE),
    ],
)
def test_a_line_fails_the_first_rule_that_it_breaks(line: str, rule: str | None) -> None:
    assert failed_rule(line) == rule


def test_lines_that_fail_are_dropped_and_counted() -> None:
    cleaner = WebCleaner()
    text = f"Home | Contact\n{FIRST}\n\nToo short this.\nif (x) {{ y(); }} or else nothing at all.\n{SECOND}"
    assert cleaner.clean(text) == f"{FIRST}\n\n{SECOND}"
    assert cleaner.record() == {
        "lines": 5, "kept": 2,
        "dropped": {ENDING: 1, WORDS: 1, BRACES: 1, BOILERPLATE: 0, REPEATED: 0},
    }  # fmt: skip
    described = describe_cleaning(cleaner.record())
    assert described.startswith("2 of 5 lines are left; dropped: 1 (")
    assert all(f"1 ({rule})" in described for rule in (ENDING, WORDS, BRACES))
    assert BOILERPLATE not in described


def test_a_span_of_three_sentences_stays_once() -> None:
    cleaner = WebCleaner()
    page = f"{FIRST} {SECOND}\n{THIRD}"
    assert cleaner.clean(page) == page
    # The same span, in other lines, case and spaces; what is new around it stays.
    assert cleaner.clean(f"{FOURTH} {FIRST.upper()}\n{SECOND}  {THIRD}\n{FOURTH}") == f"{FOURTH}\n{FOURTH}"
    assert cleaner.dropped[REPEATED] == 3
    # Two sentences are no span.
    assert cleaner.clean(f"{FIRST} {SECOND}") == f"{FIRST} {SECOND}"


def test_a_span_that_is_repeated_within_a_text_stays_once() -> None:
    cleaner = WebCleaner()
    block = f"{FIRST} {SECOND} {THIRD}"
    assert cleaner.clean(f"{block}\n{block}") == block


def test_the_memory_of_spans_is_bounded() -> None:
    generator = random.Random(0)
    cleaner = WebCleaner(most_spans=10)
    for _ in range(100):
        cleaner.clean(" ".join(f"Number {generator.random()} is the one drawn." for _ in range(5)))
        assert len(cleaner._recent) + len(cleaner._older) <= 20
    cleaner = WebCleaner(most_spans=1)
    page = f"{FIRST} {SECOND} {THIRD}"
    cleaner.clean(page)
    cleaner.clean(f"{SECOND} {THIRD} {FOURTH}")
    assert cleaner.clean(page) == ""  # The generation before the last one is known.
    cleaner.forget()
    assert cleaner.clean(page) == page
    assert cleaner.kept == 3


def test_a_bank_and_texts_without_labels_are_cleaned(tmp_path: Path, printed: Printed) -> None:
    page = f"Home | Contact us here\n{FIRST} {SECOND}\nuse {{braces}} in a line of code.\n{FOURTH}"
    (tmp_path / "pages.txt").write_text(page)
    assert BankSource(str(tmp_path), "text", clean=True).read().sentences == [FIRST, SECOND, FOURTH]
    assert "2 of 4 lines are left; dropped: 1 (" in printed()
    rows = ["a good film.", "a bad film."], ["good", "bad"]
    options = {"text": "text", "train": rows, "dev": rows, "unlabelled": str(tmp_path / "pages.txt")}
    data = Classification(**options, clean="web").read(tmp_path)
    assert list(data.unlabelled_texts()) == [f"{FIRST} {SECOND}", FOURTH]
    assert len(list(Classification(**options).read(tmp_path).unlabelled_texts())) == 4


def test_a_bank_of_which_nothing_is_left_names_the_rule(tmp_path: Path) -> None:
    (tmp_path / "pages.txt").write_text("Home\nContact us here\nRead more.")
    expected = (
        rf"^task.clean=web leaves nothing of task.bank={tmp_path}: of its 3 lines are dropped 2 \(no punctuation at "
        r"the end\), 1 \(fewer than five words\); set task.clean=null"
    )
    with pytest.raises(UserError, match=expected):
        BankSource(str(tmp_path), "text", clean=True).read()


def test_pairs_and_other_tasks_are_not_cleaned() -> None:
    rows = {"a": ["x"], "b": ["y"], "label": ["z"]}
    with pytest.raises(OptionError, match=r"^got clean=web, expected null, because the rules are for single texts$"):
        Classification(text=["a", "b"], train=rows, dev=rows, clean="web")
