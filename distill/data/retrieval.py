"""Reads retrieval sets in the layout of BEIR (arXiv 2104.08663): a corpus, queries, and judgements of their documents.

`corpus.jsonl` has `_id`, `text` and maybe `title`, and `queries.jsonl` has `_id` and `text`; both may be `.gz`.
`qrels/train.tsv`, `dev.tsv` and `test.tsv` have the columns `query-id`, `corpus-id` and `score`. A score is a whole
number: above 0 it is the gain of a relevant document, else the document is not relevant.

Where the queries are documents themselves (ArguAna, Quora), the document with the id of a query is neither found for it
nor a negative, as in BEIR's evaluation (`ignore_identical_ids`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from distill.console import print_notice
from distill.data import readers
from distill.data.columns import read_text_column
from distill.data.held_out import keep_together, number_units, text_keys
from distill.data.own_documents import Gains, IdTexts, find_equal, find_own, leave_out_own, list_own
from distill.data.sources import TableSource, check_columns
from distill.data.tables import LabelledData, Split, compute_digest
from distill.data.text_groups import IS_QUERY, group_split, list_content
from distill.edge.search import normalize
from distill.errors import UserError
from distill.readers.lines import read_lines

HEADER = ("query-id", "corpus-id", "score")
SUFFIXES = (".jsonl", ".jsonl.gz")
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
        training: the judgements of train, of which its groups are made.
    """

    gains: tuple[Gains, ...]
    documents: tuple[str, ...]
    own: Mapping[int, int] = field(default_factory=dict)
    training: "TrainingPairs | None" = None


@dataclass(frozen=True)
class JudgedTexts:
    """The texts of a retrieval set, and the gains of the queries of each split by the number of the query.

    Args:
        own: the document that each query is itself, by their numbers, as `find_own` returns it.
    """

    corpus: IdTexts
    queries: IdTexts
    judged: dict[str, dict[int, Gains]]
    own: Mapping[int, int]

    def own_of(self, queries: Sequence[int]) -> dict[int, int]:
        """The documents that these queries are themselves, by the place of the query."""
        return {place: self.own[query] for place, query in enumerate(queries) if query in self.own}


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
    found = read_judged(source)
    corpus, queries, judged = found.corpus, found.queries, found.judged
    gains: list[Gains] = []
    training = TrainingPairs(judged.pop("train"), queries, corpus, source, negatives, found.own)
    splits = {"train": training.create_split(training.compare_words() if negatives else None)}
    of_train = {group[0] for group in splits["train"]["texts"]}
    numbers: list[int] = []
    for name, gains_of_split in sorted(judged.items(), key=lambda pair: pair[0] != "dev"):
        report_shared_queries(name, gains_of_split, queries.texts, list(queries.numbers), of_train)
        splits[name] = _create_split(gains_of_split, queries, corpus, first=len(gains))
        gains += gains_of_split.values()
        numbers += gains_of_split
    own = found.own_of(numbers)
    digest = compute_digest([[list(of.items()) for of in gains], *list_content(splits), *list_own(own)])
    judgements = Judgements(tuple(gains), documents=tuple(corpus.numbers), own=own, training=training)
    return LabelledData(labels=(), splits=splits, sha256=digest), judgements


def read_judged(source: TableSource) -> JudgedTexts:
    """Reads the corpus, the queries, and the judgements of each split.

    There are `train` and `dev`, which is held out of train if it has no file, with at most `dev_examples` queries.

    Raises:
        UserError: as `read_retrieval` does.
    """
    if source.transfer:
        raise UserError(
            "task.transfer is for rows, and a retrieval set has its splits in qrels: name them in task.splits"
        )
    directory = _check_directory(source)
    corpus = _read_texts(_find_file(directory, "corpus"), ("title", "text"))
    queries = _read_texts(_find_file(directory, "queries"), ("text",))
    judged = {
        split: _read_judgements(path, queries, corpus) for split, path in _find_judgements(directory, source).items()
    }
    own = find_own(queries, corpus)
    judged = {split: leave_out_own(split, of, own) for split, of in judged.items()}
    if "dev" not in judged:
        judged["train"], judged["dev"] = _hold_out(judged["train"], queries.texts, source)
    judged["dev"] = dict(_choose(list(judged["dev"].items()), source.dev_examples))
    return JudgedTexts(corpus, queries, judged, own)


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


def _read_texts(path: Path, columns: Sequence[str]) -> IdTexts:
    """Reads the columns of every row, which are joined with a space."""
    table = readers.read_file(path, ("_id", *columns))
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
    lines = read_lines(path)
    if not lines or tuple(lines[0].split("\t")) != HEADER:
        first = repr(lines[0][:60]) if lines else "nothing"
        raise UserError(f"{path}, line 1: got {first}, expected {', '.join(HEADER)} with tabs between them")
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != len(HEADER):
            raise UserError(f"{path}, line {number}: got {len(fields)} fields, expected {', '.join(HEADER)}")
        query, document = _look_up(fields[0], queries, path, number), _look_up(fields[1], corpus, path, number)
        gains = judged.setdefault(query, {})
        if document in gains:
            raise UserError(
                f"{path}, line {number}: query {fields[0]} has document {fields[1]} twice, expected it once"
            )
        gains[document] = _read_gain(fields[2], path, number)
    relevant = {query: {d: gain for d, gain in gains.items() if gain} for query, gains in judged.items()}
    found: dict[int, Gains] = {query: gains for query, gains in relevant.items() if gains and queries.texts[query]}
    if left_out := len(judged) - len(found):
        print_notice(
            f"{path}: queries that are left out, because they are empty or have no relevant document: {left_out:,}"
        )
    if not found:
        raise UserError(f"{path} has no query with a relevant document, expected scores above 0")
    return found


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
class TrainingPairs:
    """The pairs of a query and a relevant document in train, which become groups of three texts with negative ones.

    Args:
        judged: the relevant documents of each query.
        negatives: documents for each pair.
        own: the document that each query is itself.
    """

    judged: Mapping[int, Gains]
    queries: IdTexts
    corpus: IdTexts
    source: TableSource
    negatives: int
    own: Mapping[int, int]

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

    def compare_vectors(self, encode: Callable[[list[str]], np.ndarray]) -> Compare:
        """Returns the cosines of vectors `[n, D]`, which `encode` computes of texts.

        Documents whose cosine is above `LIKELY` of the least one of a relevant document are as far as can be, because
        many of them are relevant and not judged (Moreira et al., arXiv 2407.15831, section 3, with their 95%).
        """
        rows = [row for row, text in enumerate(self.corpus.texts) if text]
        texts = [self.queries.texts[query] for query in self.judged]
        vectors = normalize(encode([*texts, *(self.corpus.texts[row] for row in rows)]))
        of_query = dict(zip(self.judged, vectors, strict=False))

        def compare(query: int) -> np.ndarray:
            cosines = np.full(len(self.corpus.texts), -1.0, dtype=np.float32)
            cosines[rows] = vectors[len(texts) :] @ of_query[query]
            positives = [cosines[document] for document in self.judged[query] if self.corpus.texts[document]]
            likely = cosines > LIKELY * min(positives, default=1.0)
            return np.where(likely, -1.0, cosines)

        return compare

    def create_split(self, compare: Compare | None) -> Split:
        """Returns the groups of a query, a relevant document and, with `compare`, a near one that is not relevant."""
        others = {} if compare is None else self._find_negatives(compare)
        groups = [
            [
                self.queries.texts[query],
                self.corpus.texts[document],
                *([] if other is None else [self.corpus.texts[other]]),
            ]
            for query, gains in self.judged.items()
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
        equal = find_equal(self.queries.texts, self.corpus.texts, self.own)
        for query, gains in self.judged.items():
            similarities = compare(query).astype(np.float64)
            similarities[[*empty, *gains, *equal(query)]] = -1
            order = np.argsort(-similarities, kind="stable")[: self.negatives]
            found[query] = [int(document) for document in order if similarities[document] > -1]
        if alone := sum(not documents for documents in found.values()):
            print_notice(
                f"train: queries that are left out, because all documents are relevant to them or seem to be: {alone:,}"
            )
        return found


def report_shared_queries(
    name: str, judged: Iterable[int], texts: Sequence[str], ids: Sequence[str], of_train: Collection[str]
) -> None:
    """Prints how many queries of a split have the text of a query of train, under whichever id, and the first ids.

    Args:
        texts, ids: of all queries by their number.
        of_train: the texts of train's queries.
    """
    every = list(judged)
    shared = [ids[query] for query in every if texts[query] in of_train]
    if shared:
        shown = ", ".join(shared[:SHOWN]) + (", ..." if len(shared) > SHOWN else "")
        print_notice(
            f"{len(shared):,} of {len(every):,} queries of {name} have the same text as one of train ({shown}), so "
            f"that the scores of {name} may be too high"
        )


def _create_split(judged: Mapping[int, Gains], queries: IdTexts, corpus: IdTexts, *, first: int) -> Split:
    """Returns the queries, which have numbers from `first` on, and the corpus, each a group of one text.

    A label is the number of a query, or `-1 - d` for the document with the number `d`. A query is followed by its
    relevant documents, as far as they are not there yet, so that any beginning of a split has both.
    """
    groups, labels, remaining = [], [], dict.fromkeys(range(len(corpus.texts)))

    def add(document: int) -> None:
        if corpus.texts[document]:
            groups.append([corpus.texts[document]])
            labels.append(-1 - document)

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
