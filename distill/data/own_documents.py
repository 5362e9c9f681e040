"""Documents that queries are themselves, by their ids or texts, as in sets for the search of duplicates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.console import print_notice
from distill.errors import UserError
from distill.readers.equal_texts import normalize_text

Gains = Mapping[int, int]  # Of the relevant documents of a query, by the number of the document.


@dataclass(frozen=True)
class IdTexts:
    """The texts of a file in their order, and their numbers by id. The text of a document without any is empty."""

    path: Path
    texts: list[str]
    numbers: Mapping[str, int]


def find_own(queries: IdTexts, corpus: IdTexts) -> dict[int, int]:
    """Returns the document with the id of each query, by their numbers; none where ids are equal by chance.

    They are equal by chance if most of these documents do not have the text of the query, such as in sets that number
    queries and documents from 1. A document may have a title beside it.
    """
    both = {number: corpus.numbers[id] for id, number in queries.numbers.items() if id in corpus.numbers}
    same = sum(normalize_text(queries.texts[q]) in normalize_text(corpus.texts[d]) for q, d in both.items())
    if not both:
        return {}
    if 2 * same < len(both):
        print_notice(
            f"{queries.path}: {len(both):,} queries have the id of a document, and {len(both) - same:,} of them another"
            " text than it: the ids are taken for equal by chance, so that such a document can be found"
        )
        return {}
    print_notice(
        f"{queries.path}: {len(both):,} queries are documents too, by their ids: such a document is no hit for its own "
        "query, as in BEIR, and no negative"
    )
    return both


def leave_out_own(split: str, judged: dict[int, Gains], own: Mapping[int, int]) -> dict[int, Gains]:
    """Returns the judgements of a split without those that a query is relevant to itself.

    Raises:
        UserError: if there are no others.
    """
    others = {
        query: {document: gain for document, gain in gains.items() if document != own.get(query)}
        for query, gains in judged.items()
    }
    if left_out := sum(map(len, judged.values())) - sum(map(len, others.values())):
        print_notice(f"{split}: judgements that are left out, of a query as the answer to itself: {left_out:,}")
    found: dict[int, Gains] = {query: gains for query, gains in others.items() if gains}
    if not found:
        raise UserError(f"{split} has no query with a relevant document but itself, expected scores above 0")
    return found


def find_equal(queries: Sequence[str], documents: Sequence[str], own: Mapping[int, int]) -> Callable[[int], list[int]]:
    """Returns a function that returns the documents which a query is itself: by its id, or with its text.

    Args:
        own: the document with the id of each query.
    """
    by_text: dict[str, list[int]] = {}
    for document, text in enumerate(documents):
        by_text.setdefault(normalize_text(text), []).append(document)

    def find(query: int) -> list[int]:
        of_id = [own[query]] if query in own else []
        return [*of_id, *by_text.get(normalize_text(queries[query]), ())]

    return find


def list_own(own: Mapping[int, int]) -> list[object]:
    """Returns the documents that queries are themselves as a part of a digest, which has none without them."""
    return [list(own.items())] if own else []
