"""Tests of a corpus of web text that is cleaned while it is read."""

from pathlib import Path

import pytest

from distill.core.errors import UserError
from distill.data.prose import WebCleaner
from distill.text.corpus import Corpus, Position

PAGE = "Home | About\nThe first sentence has five words.\nMore of this text stands here.\nRead on..."
PROSE = "The first sentence has five words.\nMore of this text stands here."
SPAN = "One span of three sentences. It is the second here. And this is its end."


def write(directory: Path, **pages: str) -> Corpus:
    for name, text in pages.items():
        (directory / f"{name}.txt").write_text(text)
    return Corpus(data_dir=str(directory), clean="web")


def test_documents_are_cleaned_and_empty_ones_left_out(tmp_path: Path) -> None:
    corpus = write(tmp_path, a=PAGE, b="Menu\nContact", c=SPAN)
    assert [(d.key, d.text) for d in corpus.read_documents()] == [("a.txt#0", PROSE), ("c.txt#0", SPAN)]
    assert list(corpus.read_keys()) == ["a.txt#0", "b.txt#0", "c.txt#0"]


def test_spans_are_known_across_files_with_a_cleaner(tmp_path: Path) -> None:
    corpus = write(tmp_path, a=SPAN, b=SPAN, c=PAGE)
    cleaner = WebCleaner()
    assert [d.key for d in corpus.read_documents(cleaner=cleaner)] == ["a.txt#0", "c.txt#0"]
    assert (cleaner.lines, cleaner.kept) == (6, 3)
    # A reading that may begin at any file knows those of the file alone.
    assert [d.key for d in corpus.read_documents()] == ["a.txt#0", "b.txt#0", "c.txt#0"]


@pytest.mark.parametrize("world", [1, 2])
def test_a_reading_that_goes_on_gives_the_same_text(tmp_path: Path, world: int) -> None:
    paragraphs = [SPAN, PROSE, SPAN, "Menu", f"{SPAN} With one more sentence at the end.", "A last line of some words."]
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("\n\n".join(paragraphs))
    corpus = Corpus(data_dir=str(tmp_path), split_by="paragraph", clean="web")
    for rank in range(world):
        whole = list(corpus.read_documents(rank=rank, world_size=world))
        for read in range(1, len(whole)):
            position = Position()
            documents = corpus.read_documents(rank=rank, world_size=world, position=position)
            first = [next(documents) for _ in range(read)]
            rest = list(corpus.read_documents(rank=rank, world_size=world, position=position))
            assert first + rest == whole


def test_a_corpus_of_which_nothing_is_left_names_the_rule(tmp_path: Path) -> None:
    corpus = write(tmp_path, a="Menu\nHome\nToo short this.", b="Contact")
    expected = (
        rf"^task.clean=web leaves nothing of task.data_dir={tmp_path}: of its 4 lines are dropped 3 \(no punctuation "
        r"at the end\), 1 \(fewer than five words\); set task.clean=null, or give text with a paragraph in each line$"
    )
    with pytest.raises(UserError, match=expected):
        list(corpus.read_documents())


def test_the_fingerprint_depends_on_the_cleaning(tmp_path: Path) -> None:
    cleaned = write(tmp_path, a=PAGE).compute_fingerprint()
    assert cleaned != Corpus(data_dir=str(tmp_path)).compute_fingerprint()
