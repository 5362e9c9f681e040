"""Rows of several texts, and retrieval sets in the layout of BEIR (arXiv 2104.08663).

Reads retrieval sets in the layout of BEIR (arXiv 2104.08663): a corpus, queries, and judgements of their documents.
`corpus.jsonl` has `_id`, `text` and maybe `title`, and `queries.jsonl` has `_id` and `text`; both may be `.gz`.
`qrels/train.tsv`, `dev.tsv` and `test.tsv` have the columns `query-id`, `corpus-id` and `score`. A score is a whole
number: above 0 it is the gain of a relevant document, else the document is not relevant.

Where the queries are documents themselves (ArguAna, Quora), the document with the id of a query is neither found for it
nor a negative, as in BEIR's evaluation (`ignore_identical_ids`).
"""

import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import numpy as np

from distill.core.console import print_notice
from distill.core.errors import UserError
from distill.data import sources
from distill.data.labelled_text import get_labels, is_labelled, read_text_column
from distill.data.pool import USUAL, Unlabelled, UnlabelledText
from distill.data.prose import normalize_text
from distill.data.sources import TableSource, check_columns, keep_together, number_units, text_keys
from distill.data.splits import Column, LabelledData, Split, compute_digest, create_data, text_split
from distill.edge.index import ROLES, normalize
from distill.rows.columns import Table
from distill.rows.formats import is_blank, is_number, read_fields
from distill.rows.labels import to_classes, to_numbers

ADVICE = "name yours with task.text=[...] and task.label=..."
IS_QUERY = "is_query"  # The column of a retrieval set that tells its queries from its documents.
ReadLabels = Callable[[Table], np.ndarray]


def group_split(groups: list[list[str]], labels: np.ndarray | None = None, **further: Column) -> Split:
    """Returns groups of one or several texts, with their scores `[N]`, NaN for a group without one.

    Args:
        labels: None for groups without scores.
        further: columns beside those of texts and labels.
    """
    if labels is None:
        labels = np.full(len(groups), np.nan, dtype=np.float32)
    return Split({"texts": groups, "labels": labels, **further}, ("texts",), itemgetter("texts"))


def list_content(splits: Mapping[str, Split]) -> Iterator[object]:
    """Yields the content of the splits, of which a digest is computed."""
    return ([name, split["texts"], split.labels.tolist()] for name, split in splits.items())


@dataclass(frozen=True, kw_only=True)
class GroupColumns:
    """The columns of groups of texts.

    Args:
        text: the columns of the texts of the splits that are scored.
        label: the column of their scores; of several names the one that a table has.
        train_text: the columns of the texts of train, which may lack all but one of them, or have `text` instead.
        train_label: the column of train's scores or classes, which train may lack.
        classes: names of train's classes in the order of the data's integers. None takes numbers for scores and words
            for classes.
        triples: two classes of pairs in train. The pairs of a first text then become groups of three texts: the first
            text, the second one of a pair of the first class, and that of a pair of the second class. Other pairs are
            left out. None leaves pairs as they are.
    """

    text: tuple[str, ...]
    label: tuple[str, ...]
    train_text: tuple[str, ...]
    train_label: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    triples: tuple[str, str] | None = None

    def read(self, source: TableSource, cache_dir: Path, read_labels: ReadLabels | None = None) -> LabelledData:
        """Reads `train`, `dev` and the other splits with scores.

        Args:
            read_labels: returns the labels `[N]` of a table in the place of scores. All splits then have them.

        Raises:
            UserError: if a directory, file, column, text, score or class is missing or invalid.
            UnreachableError: if the data is not in the cache and cannot be downloaded.
        """
        tables = source.read(
            cache_dir,
            partial(self._hold_out_dev, source),
            lambda table: read_labels is not None or is_labelled(table, self.label),
        )
        groups = self._read_train(tables["train"])
        classes, numbers = self._read_train_labels(tables["train"], len(groups))
        if self.triples is not None:
            groups = _form_triples(groups, numbers, classes, self.triples, tables["train"].source)
            classes, numbers = (), np.full(len(groups), np.nan, dtype=np.float32)
        splits = {"train": group_split(groups, numbers)}
        splits |= {name: self._read_scored(table, read_labels) for name, table in tables.items() if name != "train"}
        # The classes are a part of what a teacher is fine-tuned on.
        data = create_data(source, (), splits, lambda of: [*([classes] if classes else []), *list_content(of)])
        return replace(data, classes=classes)

    def add_unlabelled(self, source: Unlabelled, data: LabelledData) -> LabelledData:
        """Returns the data with the single texts of a source that are in none of its splits, each once, as its pool.

        Raises:
            UserError: if the source is missing, cannot be read, lacks a column, or has no new text.
        """
        known = replace(data, splits={name: text_split(_known_texts(split)) for name, split in data.splits.items()})
        pool = UnlabelledText(source, text=self.text[:1], label=self.label).add_to(known).pool
        rows = None if pool.rows is None else group_split([[text] for text in pool.rows.texts])
        return replace(data, pool=replace(pool, rows=rows))

    def _hold_out_dev(self, source: TableSource, table: Table) -> dict[str, Table]:
        columns = [table.columns[name] for name in (*self.text, *self.train_text) if name in table.columns]
        return source.hold_out_dev(table, together=[text_keys(*columns)] if columns else ())

    def _read_train(self, table: Table) -> list[list[str]]:
        """Returns the groups of a table to train on, of those columns that it has."""
        columns = table.find(self.train_text) or table.find([USUAL])
        check_columns(table, [] if columns else [(name,) for name in self.train_text], ADVICE)
        if missing := [name for name in self.train_text if name not in columns]:
            print_notice(f"{table.source} has no column {', '.join(missing)}: only {', '.join(columns)} is read")
        return _read_groups(table, columns, least=1)

    def _read_train_labels(self, table: Table, count: int) -> tuple[tuple[str, ...], np.ndarray]:
        """Returns the names of the classes, none for scores, and the labels `[N]`, NaN without any."""
        if not table.find(self.train_label):
            return (), np.full(count, np.nan, dtype=np.float32)
        column = get_labels(table, self.train_label)
        given = [row for row, value in enumerate(column.values) if not is_blank(value)]
        numbers = np.full(count, np.nan, dtype=np.float32)
        known = replace(column, values=[column.values[row] for row in given], rows=given)
        if self.classes is None and column.classes is None and any(map(is_number, known.values)):
            numbers[given] = to_numbers(known)
            return (), numbers
        if not given:
            return (), numbers
        names, indices = to_classes({"train": known}, self.classes, print_notice)
        numbers[given] = indices["train"]
        return names, numbers

    def _read_scored(self, table: Table, read_labels: ReadLabels | None) -> Split:
        columns = [(name,) for name in self.text]
        check_columns(table, columns if read_labels is not None else [*columns, self.label], ADVICE)
        groups = _read_groups(table, self.text, least=2)
        if read_labels is not None:
            return group_split(groups, read_labels(table))
        return group_split(groups, to_numbers(get_labels(table, self.label)))


def _form_triples(
    groups: Sequence[list[str]], labels: np.ndarray, classes: Sequence[str], triples: tuple[str, str], source: str
) -> list[list[str]]:
    """Returns groups of a text, one that belongs to it and one that does not, of the pairs of two classes.

    The negative texts of a first text take turns.

    Raises:
        UserError: for a class that train does not have, and if no first text has pairs of both.
    """
    given = f"task.triples=[{','.join(triples)}]"
    if unknown := [name for name in triples if name not in classes]:
        known = f"expected two of {', '.join(classes)}" if classes else "and its pairs have no classes in words"
        raise UserError(f"{given}: {source} has no class {unknown[0]}, {known}")
    positive, negative = map(list(classes).index, triples)
    others: dict[str, list[str]] = {}
    for group, label in zip(groups, labels, strict=True):
        if label == negative and len(group) > 1:
            others.setdefault(group[0], []).append(group[1])
    negatives = {text: itertools.cycle(texts) for text, texts in others.items()}
    found = [
        [group[0], group[1], next(negatives[group[0]])]
        for group, label in zip(groups, labels, strict=True)
        if label == positive and len(group) > 1 and group[0] in negatives
    ]
    if not found:
        raise UserError(f"{given}: no first text of {source} has pairs of both classes: leave it out")
    return found


def _read_groups(table: Table, columns: Sequence[str], *, least: int) -> list[list[str]]:
    """Returns the texts of each row; empty ones at its end are none.

    Raises:
        UserError: for a row of fewer texts, and for an empty text before another one.
    """
    texts = [read_text_column(table, name, may_be_empty=True, optional=True) for name in columns]
    groups = []
    for row, every in enumerate(zip(*texts, strict=True)):
        group = list(every)
        while group and not group[-1].strip():
            group.pop()
        empty = next((name for name, text in zip(columns, group, strict=False) if not text.strip()), None)
        if empty is None and len(group) < min(least, len(columns)):
            empty = columns[len(group)]
        if empty is not None or not group:
            raise UserError(f"{table.place(row)}: column {empty or columns[0]} is empty, expected text")
        groups.append(group)
    return groups


def _known_texts(split: Split) -> list[str]:
    """Returns the texts that one without a label is compared with: all of a split, or its queries.

    The documents of a retrieval set are known before a query is.
    """
    queries = split.select(np.flatnonzero(split[IS_QUERY])) if IS_QUERY in split.columns else split
    return list(queries.all_texts())


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


HEADER = ("query-id", "corpus-id", "score")
SUFFIXES = (".jsonl", ".jsonl.gz")
PARQUET = ".parquet"  # Of the files in folders `corpus`, `queries` and `qrels`, as NanoBEIR has them.
SHOWN = 5  # Ids in a notice.
LAYOUT = "expected corpus.jsonl, queries.jsonl, and qrels with train.tsv"
T = TypeVar("T")
# Returns the similarities `[N]` of the query with this number to all documents of the corpus.
Compare = Callable[[int], np.ndarray]
# Share of the similarity of a query to its relevant documents, above which a document that is not judged may be one.
LIKELY = 0.95


@dataclass(frozen=True)
class Judgements:
    """The relevant documents of the queries of all scored splits.

    Args:
        gains: of each query by its number.
        documents: the ids of the documents by their number.
        own: the document that each query is itself, by their numbers, for those queries that are one.
        texts: the set, of whose judgements of train its groups are made.
    """

    gains: tuple[Gains, ...]
    documents: tuple[str, ...]
    own: Mapping[int, int] = field(default_factory=dict)
    texts: "JudgedTexts | None" = None


def read_retrieval(source: TableSource, *, negatives: int = 0) -> tuple[LabelledData, Judgements]:
    """Reads `train`, `dev` and, if it is there, `test`; returns them and the judgements of all but train.

    Train has groups without scores: a query, a relevant document, and maybe a negative one.

    Without judgements of `dev`, `dev_fraction` of train's queries are dev. `train_examples` limits the groups of train,
    and `dev_examples` the queries of dev.

    Args:
        negatives: documents by which a training pair becomes so many groups of three texts. They are those nearest to
            the query by TF-IDF that are not relevant.

    Raises:
        UserError: if a directory, file or column is missing, and for a text, an id or a judgement that is invalid.
    """
    found = read_judged(source, negatives=negatives)
    splits = {"train": found.create_train(found.compare_words() if negatives else None)}
    of_train, first = {group[0] for group in splits["train"]["texts"]}, 0
    for name, judged in found.scored().items():
        found.report_shared(name, of_train)
        splits[name] = _create_split(judged, found.queries, found.corpus, first=first)
        first += len(judged)
    return _add_sets(*found.collect(splits, list_content(splits)), source.transfer)


def _add_sets(
    data: LabelledData, judgements: Judgements, transfer: Mapping[str, object]
) -> tuple[LabelledData, Judgements]:
    """Returns the data with further sets, each a split with a corpus of its own, and the judgements of all of them.

    A folder of several sets is as many, named by it and by their folders.
    """
    splits, gains, documents, own = dict(data.splits), judgements.gains, judgements.documents, dict(judgements.own)
    for name, directory in _list_sets(transfer).items():
        corpus, queries = _read_corpus(directory)
        first, before = len(gains), len(documents)
        judged = _read_judgements(_find_scored(directory), queries, corpus)
        itself = find_own(queries, corpus)
        judged = leave_out_own(name, judged, itself)
        splits[name] = _create_split(judged, queries, corpus, first=first, before=before)
        own |= {place: before + itself[query] for place, query in enumerate(judged, first) if query in itself}
        gains += tuple({before + document: gain for document, gain in of.items()} for of in judged.values())
        documents += tuple(corpus.numbers)
    return replace(data, splits=splits), replace(judgements, gains=gains, documents=documents, own=own)


def _list_sets(transfer: Mapping[str, object]) -> dict[str, Path]:
    """Returns the directories of the sets by their names."""
    found: dict[str, Path] = {}
    for name, given in transfer.items():
        directory = Path(str(given)).expanduser()
        within = [path for path in sorted(directory.glob("*")) if (path / "qrels").is_dir()]
        found |= {f"{name}-{path.name}": path for path in within} or {name: directory}
        if not directory.is_dir():
            raise UserError(f"task.transfer.{name}={directory} is no directory, expected a retrieval set or several")
    return found


def _find_scored(directory: Path) -> Path:
    """Returns the judgements of a set that is scored alone: those of test, or the first ones that are there."""
    paths = [*(directory / "qrels" / f"{stem}.tsv" for stem in ("test", "dev")), *sorted(directory.glob("qrels/*"))]
    path = next((path for path in paths if path.is_file() and path.suffix in (".tsv", PARQUET)), None)
    if path is None:
        raise UserError(f"{directory / 'qrels'} has no judgements, expected test.tsv or a file of Parquet")
    return path


def read_judged(source: TableSource, *, negatives: int = 0) -> "JudgedTexts":
    """Reads the corpus, the queries, and the judgements of each split.

    There are `train` and `dev`, which is held out of train if it has no file, with at most `dev_examples` queries.

    Raises:
        UserError: as `read_retrieval` does.
    """
    directory = _check_directory(source)
    corpus, queries = _read_corpus(directory)
    judged = {
        split: _read_judgements(path, queries, corpus) for split, path in _find_judgements(directory, source).items()
    }
    own = find_own(queries, corpus)
    judged = {split: leave_out_own(split, of, own) for split, of in judged.items()}
    if "dev" not in judged:
        judged["train"], judged["dev"] = _hold_out(judged["train"], queries.texts, source)
    judged["dev"] = dict(_choose(list(judged["dev"].items()), source.dev_examples))
    return JudgedTexts(source, corpus, queries, judged, own, negatives)


def replace_train(data: LabelledData, train: Split) -> LabelledData:
    """Returns the data with other groups of train."""
    return replace(
        data,
        splits={**data.splits, "train": train},
        sha256=compute_digest([data.sha256, *list_content({"train": train})]),
    )


def _check_directory(source: TableSource) -> Path:
    if source.data_dir is None:
        raise UserError(f"task {source.name} has no data of its own: give task.data_dir=DIR, {LAYOUT}")
    directory = Path(source.data_dir).expanduser()
    if not directory.is_dir():
        raise UserError(f"task.data_dir={directory} is no directory, {LAYOUT}")
    return directory


def _find_file(directory: Path, stem: str) -> Path:
    paths = [path for suffix in SUFFIXES if (path := directory / f"{stem}{suffix}").is_file()]
    paths += sorted((directory / stem).glob(f"*{PARQUET}"))
    if len(paths) != 1:
        found = " and ".join(path.name for path in paths) or f"no {stem}.jsonl"
        advice = "move one of them away" if paths else LAYOUT
        raise UserError(f"{directory} has {found}: {advice}")
    return paths[0]


def _find_judgements(directory: Path, source: TableSource) -> dict[str, Path]:
    """Returns the file of each split; one that is another name's already is not read again."""
    found: dict[str, Path] = {}
    for split, stems in source.stems.items():
        paths = (directory / "qrels" / f"{stem}.tsv" for stem in stems)
        path = next((path for path in paths if path.is_file()), None)
        if path is not None and path not in found.values():
            found[split] = path
    if "train" not in found:
        names = sorted(path.stem for path in (directory / "qrels").glob("*.tsv"))
        advice = f"; task.splits={{train:[{names[0]}]}} trains on that one, and holds out dev from it" if names else ""
        content = ", ".join(f"{name}.tsv" for name in names) or "nothing"
        raise UserError(f"{directory / 'qrels'} has no train.tsv (found {content}), {LAYOUT}{advice}")
    return found


def _read_corpus(directory: Path) -> tuple[IdTexts, IdTexts]:
    """Returns the documents and the queries of a set."""
    corpus = _read_texts(_find_file(directory, "corpus"), ("title", "text"))
    return corpus, _read_texts(_find_file(directory, "queries"), ("text",))


def _read_texts(path: Path, columns: Sequence[str]) -> IdTexts:
    """Reads the columns of every row, which are joined with a space."""
    table = sources.read_file(path, ("_id", *columns))
    check_columns(table, [("_id",), ("text",)], LAYOUT)
    numbers: dict[str, int] = {}
    for row, value in enumerate(table.columns["_id"]):
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value):
            raise UserError(f"{table.place(row)}: column _id is {value!r}, expected an id")
        if str(value) in numbers:
            raise UserError(f"{table.place(row)}: the id {value} is there twice, expected it once")
        numbers[str(value)] = len(numbers)
    read = [
        read_text_column(table, name, may_be_empty=True, optional=True) for name in columns if name in table.columns
    ]
    texts = [" ".join(part for part in parts if part.strip()) for parts in zip(*read, strict=True)]
    if empty := texts.count(""):
        print_notice(f"{path}: texts that are empty, which no search finds: {empty:,}")
    return IdTexts(path, texts, numbers)


def _read_judgements(path: Path, queries: IdTexts, corpus: IdTexts) -> dict[int, Gains]:
    """Returns the gains of every query with a relevant document, by the number of the query."""
    judged: dict[int, dict[int, int]] = {}
    with closing(_read_rows(path)) as rows:
        for number, (query_id, document_id, score) in rows:
            query, document = _look_up(query_id, queries, path, number), _look_up(document_id, corpus, path, number)
            gains = judged.setdefault(query, {})
            if document in gains:
                raise UserError(
                    f"{path}, line {number}: query {query_id} has document {document_id} twice, expected it once"
                )
            gains[document] = _read_gain(score, path, number)
    relevant = {query: {d: gain for d, gain in gains.items() if gain} for query, gains in judged.items()}
    found: dict[int, Gains] = {query: gains for query, gains in relevant.items() if gains and queries.texts[query]}
    if left_out := len(judged) - len(found):
        print_notice(
            f"{path}: queries that are left out, because they are empty or have no relevant document: {left_out:,}"
        )
    if not found:
        raise UserError(f"{path} has no query with a relevant document, expected scores above 0")
    return found


def _read_rows(path: Path) -> Generator[tuple[int, Sequence[str]]]:
    """Yields the number and the fields of each judgement; in Parquet those without a score have the score 1."""
    if path.suffix == PARQUET:
        table = sources.read_file(path, HEADER)
        check_columns(table, [(name,) for name in HEADER[:2]], LAYOUT)
        columns = [table.columns.get(name, ["1"] * len(table)) for name in HEADER]
        yield from enumerate(([str(value) for value in row] for row in zip(*columns, strict=True)), 1)
        return
    with closing(read_fields(path)) as rows:
        _, names = next(rows)
        if tuple(names) != HEADER:
            first = repr("\t".join(names)[:60])
            raise UserError(f"{path}, line 1: got {first}, expected {', '.join(HEADER)} with tabs between them")
        yield from rows


def _look_up(name: str, texts: IdTexts, path: Path, line: int) -> int:
    if name not in texts.numbers:
        raise UserError(f"{path}, line {line}: {name!r} is no id of {texts.path.name}, expected one")
    return texts.numbers[name]


def _read_gain(score: str, path: Path, line: int) -> int:
    try:
        return max(0, int(score))
    except ValueError as error:
        raise UserError(f"{path}, line {line}: the score {score!r} is no whole number") from error


def _hold_out(
    judged: Mapping[int, Gains], texts: Sequence[str], source: TableSource
) -> tuple[dict[int, Gains], dict[int, Gains]]:
    """Returns the judgements of train and of dev, the same in every run. Queries of equal texts are on one side."""
    queries = np.random.default_rng(0).permutation(list(judged)).tolist()
    number = max(1, round(source.dev_fraction * len(queries)))
    if number >= len(queries):
        raise UserError(
            f"{source.data_dir} has {len(queries)} queries to train on, of which "
            f"task.dev_fraction={source.dev_fraction} cannot hold out dev: give qrels/dev.tsv, or more queries"
        )
    units = number_units([text_keys([texts[query] for query in queries])], len(queries))
    held = {queries[row] for row in keep_together(np.arange(number), units)}
    train = {query: gains for query, gains in judged.items() if query not in held}
    return train, {query: gains for query, gains in judged.items() if query in held}


def _choose(rows: list[T], size: int | None) -> list[T]:
    """Returns at most `size` of the rows in their order, the same in every run."""
    if size is None or size >= len(rows):
        return rows
    return [rows[row] for row in sorted(np.random.default_rng(0).permutation(len(rows))[:size])]


@dataclass(frozen=True)
class JudgedTexts:
    """The texts of a retrieval set, and the gains of the queries of each split by the number of the query.

    Args:
        own: the document that each query is itself, by their numbers, as `find_own` returns it.
        negatives: documents for each pair of a query and a relevant document in train.
    """

    source: TableSource
    corpus: IdTexts
    queries: IdTexts
    judged: Mapping[str, Mapping[int, Gains]]
    own: Mapping[int, int]
    negatives: int = 0

    def scored(self) -> dict[str, Mapping[int, Gains]]:
        """Returns the gains of the splits that are scored, dev first."""
        scored = [(name, judged) for name, judged in self.judged.items() if name != "train"]
        return dict(sorted(scored, key=lambda pair: pair[0] != "dev"))

    def collect(
        self, splits: Mapping[str, Split], content: Iterable[object], labels: tuple[str, ...] = ()
    ) -> tuple[LabelledData, Judgements]:
        """Returns the splits with the judgements of those that are scored; `content` is that of the splits."""
        judged = [pair for of_split in self.scored().values() for pair in of_split.items()]
        own = {place: self.own[query] for place, (query, _) in enumerate(judged) if query in self.own}
        # A digest without queries that are documents is the one from before such were known.
        known = [list(own.items())] if own else []
        digest = compute_digest([[list(gains.items()) for _, gains in judged], *content, *known])
        gains, documents = tuple(gains for _, gains in judged), tuple(self.corpus.numbers)
        return LabelledData(labels, splits, digest), Judgements(gains, documents, own, self)

    def report_shared(self, name: str, of_train: Collection[str]) -> None:
        """Prints how many queries of a split have the text of one of train, under whichever id, and the first ids.

        Args:
            of_train: the texts of train's queries.
        """
        ids, judged = list(self.queries.numbers), self.judged[name]
        shared = [ids[query] for query in judged if self.queries.texts[query] in of_train]
        if shared:
            shown = ", ".join(shared[:SHOWN]) + (", ..." if len(shared) > SHOWN else "")
            print_notice(
                f"{len(shared):,} of {len(judged):,} queries of {name} have the same text as one of train ({shown}), "
                f"so that the scores of {name} may be too high"
            )

    @cached_property
    def _by_text(self) -> dict[str, list[int]]:
        """The documents by their text as it is compared."""
        by_text: dict[str, list[int]] = {}
        for document, text in enumerate(self.corpus.texts):
            by_text.setdefault(normalize_text(text), []).append(document)
        return by_text

    def find_equal(self, query: int) -> list[int]:
        """Returns the documents which a query is itself: by its id, or with its text."""
        of_id = [self.own[query]] if query in self.own else []
        return [*of_id, *self._by_text.get(normalize_text(self.queries.texts[query]), ())]

    def compare_words(self) -> Compare:
        """Returns the cosines of TF-IDF.

        Raises:
            UserError: for a corpus without words.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(sublinear_tf=True)
        try:
            documents = vectorizer.fit_transform(self.corpus.texts)
        except ValueError as error:  # Of single letters alone.
            raise UserError(f"{self.corpus.path} has no words to find negatives by: set task.negatives=0") from error
        return lambda query: np.asarray(
            (documents @ vectorizer.transform([self.queries.texts[query]]).T).toarray()[:, 0]
        )

    def compare_vectors(
        self, encode: Callable[[list[str]], np.ndarray], prompts: Mapping[str, str] | None = None
    ) -> Compare:
        """Returns the cosines of vectors `[n, D]`, which `encode` computes of texts.

        Documents whose cosine is above `LIKELY` of the least one of a relevant document are as far as can be, because
        many of them are relevant and not judged (Moreira et al., arXiv 2407.15831, section 3, with their 95%).
        """
        rows = [row for row, text in enumerate(self.corpus.texts) if text]
        of_query, of_document = ((prompts or {}).get(role, "") for role in ROLES)
        texts = [of_query + self.queries.texts[query] for query in self.judged["train"]]
        vectors = normalize(encode([*texts, *(of_document + self.corpus.texts[row] for row in rows)]))
        by_query = dict(zip(self.judged["train"], vectors, strict=False))

        def compare(query: int) -> np.ndarray:
            cosines = np.full(len(self.corpus.texts), -1.0, dtype=np.float32)
            cosines[rows] = vectors[len(texts) :] @ by_query[query]
            positives = [cosines[document] for document in self.judged["train"][query] if self.corpus.texts[document]]
            likely = cosines > LIKELY * min(positives, default=1.0)
            return np.where(likely, -1.0, cosines)

        return compare

    def create_train(self, compare: Compare | None) -> Split:
        """Returns the groups of a query, a relevant document and, with `compare`, a near one that is not relevant."""
        others = {} if compare is None else self._find_negatives(compare)
        groups = [
            [
                self.queries.texts[query],
                self.corpus.texts[document],
                *([] if other is None else [self.corpus.texts[other]]),
            ]
            for query, gains in self.judged["train"].items()
            for document in gains
            if self.corpus.texts[document]
            for other in others.get(query, [None])
        ]
        if not groups:
            raise UserError(
                f"{self.source.data_dir} has no pair of a query and a document to train on: all are empty or in dev"
            )
        return group_split(_choose(groups, self.source.train_examples))

    def _find_negatives(self, compare: Compare) -> dict[int, list[int | None]]:
        """Returns the most similar documents of each query that are not relevant and are not the query itself."""
        found: dict[int, list[int | None]] = {}
        empty = [document for document, text in enumerate(self.corpus.texts) if not text]
        for query, gains in self.judged["train"].items():
            similarities = compare(query).astype(np.float64)
            similarities[[*empty, *gains, *self.find_equal(query)]] = -1
            order = np.argsort(-similarities, kind="stable")[: self.negatives]
            found[query] = [int(document) for document in order if similarities[document] > -1]
        if alone := sum(not documents for documents in found.values()):
            print_notice(
                f"train: queries that are left out, because all documents are relevant to them or seem to be: {alone:,}"
            )
        return found


def _create_split(
    judged: Mapping[int, Gains], queries: IdTexts, corpus: IdTexts, *, first: int, before: int = 0
) -> Split:
    """Returns the queries, which have numbers from `first` on, and the corpus, each a group of one text.

    A label is the number of a query, or `-1 - d` for the document with the number `d`, of which `before` is the first.
    A query is followed by its relevant documents, as far as they are not there yet, so that any beginning of a split
    has both.
    """
    groups, labels, remaining = [], [], dict.fromkeys(range(len(corpus.texts)))

    def add(document: int) -> None:
        if corpus.texts[document]:
            groups.append([corpus.texts[document]])
            labels.append(-1 - before - document)

    for number, (query, gains) in enumerate(judged.items(), first):
        groups.append([queries.texts[query]])
        labels.append(number)
        for document in gains:
            if document in remaining:
                del remaining[document]
                add(document)
    for document in remaining:
        add(document)
    numbers = np.array(labels, dtype=np.float32)
    return group_split(groups, numbers, **{IS_QUERY: numbers >= 0})
