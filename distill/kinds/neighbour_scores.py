"""Metrics of vectors without judgements: the nearest texts, compared with those that the teacher's vectors find."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distill.core.console import print_notice
from distill.core.contracts import Scores
from distill.core.errors import UserError
from distill.data.labelled_text import read_text_column
from distill.data.pool import USUAL
from distill.data.retrieval import IS_QUERY, GroupColumns, group_split, list_content
from distill.data.sources import TableSource, check_columns, read_file, text_keys
from distill.data.splits import LabelledData, Split, create_data
from distill.edge.index import find_nearest, normalize, similarity
from distill.kinds.scoring import MeanScoring
from distill.kinds.vector_scores import COSINE, VectorScores
from distill.rows.columns import SUFFIXES, Table

OVERLAP = "overlap@10"
NEAREST = 10
MOST_DEV = 2_000  # Texts that are held out of one file, because each is compared with each.
TEXT_SUFFIX = ".txt"
_ROLES = {"queries": True, "documents": False}  # The stems of two files in a directory, and whether they are queries.


def read_lines(path: Path, wanted: Collection[str]) -> Table:
    """Reads a table, or the lines of a text file as the column `text`; empty lines are left out, with a notice."""
    if path.suffix != TEXT_SUFFIX:
        return read_file(path, wanted)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    if len(numbers) < len(lines):
        print_notice(f"{path}: lines that are empty and left out: {len(lines) - len(numbers):,}")
    return Table(str(path), (USUAL,), {USUAL: [lines[number - 1] for number in numbers]}, lines=numbers)


def has_text_files(data_dir: object) -> bool:
    """Returns whether a source is a text file, or a directory of such files with the names of splits or roles alone."""
    path = Path(str(data_dir)).expanduser()
    if path.suffix == TEXT_SUFFIX or not path.is_dir():
        return path.suffix == TEXT_SUFFIX
    has_tables = any(file.name.endswith(SUFFIXES) for file in path.iterdir())
    return not has_tables and any((path / f"{stem}{TEXT_SUFFIX}").is_file() for stem in (*_ROLES, "train"))


@dataclass(frozen=True)
class NeighbourScores(MeanScoring, VectorScores):
    """The share of a text's ten nearest ones that the teacher finds too, and the cosine of the two models' vectors.

    The texts of a split are compared with each other, queries with documents where there are both. The labels of
    examples are numbers of the scored texts.

    Args:
        is_query: of each scored text, `[N]`; None without roles.
        vectors: the teacher's, `[N, D]`; None before it has encoded the texts.
    """

    is_query: np.ndarray | None = None
    vectors: np.ndarray | None = None

    @property
    def needs_teacher(self) -> bool:
        return True

    @property
    def has_roles(self) -> bool:
        return self.is_query is not None

    def read(self, columns: GroupColumns, source: TableSource, cache_dir: Path) -> LabelledData:
        """Reads the texts, each once: train, and those that are held out, a tenth and at most `MOST_DEV`.

        Raises:
            UserError: for a file, a column or a text that is missing, and too few texts to compare.
        """
        directory = None if source.data_dir is None else Path(source.data_dir).expanduser()
        missing = list(_ROLES) if directory is None else _list_missing(directory)
        if directory is not None and not missing:
            tables = _hold_out(source, _join_roles(directory))
        elif len(missing) < len(_ROLES):
            raise UserError(
                f"{directory} has no {missing[0]}{TEXT_SUFFIX} beside the other one: give both, or one file"
            )
        else:
            tables = source.read(cache_dir, lambda table: _hold_out(source, table), lambda table: True)
        splits, first = dict[str, Split](), 0
        for name, table in tables.items():
            check_columns(table, [(text,) for text in columns.text], "name yours with task.text=[...]")
            groups = [[text] for text in read_text_column(table, columns.text[0], may_be_empty=False)]
            further = {IS_QUERY: np.array(table.columns[IS_QUERY])} if IS_QUERY in table.columns else {}
            numbers = np.full(len(groups), np.nan) if name == "train" else np.arange(first, first + len(groups))
            first += 0 if name == "train" else len(groups)
            splits[name] = group_split(groups, numbers.astype(np.float32), **further)
            is_query = further.get(IS_QUERY, np.zeros(len(groups), dtype=bool))
            if name != "train" and (
                (others := int((~is_query).sum())) <= NEAREST or (further and others == len(groups))
            ):
                shown = f"{len(groups) - others} queries and {others} documents" if further else f"{others} texts"
                raise UserError(
                    f"{table.source} has {shown} in {name}, expected more than {NEAREST} that are near: give more texts"
                )
        scored = [split for name, split in splits.items() if name != "train"]
        roles = np.concatenate([split[IS_QUERY] for split in scored]) if IS_QUERY in splits["dev"].columns else None
        data = create_data(source, (), splits, list_content)
        return replace(data, scoring=replace(self, is_query=roles))

    def with_teacher(self, data: LabelledData, scores: Mapping[str, Scores] | None) -> LabelledData:
        if scores is None:
            return data
        numbers = np.concatenate([of.labels for of in scores.values()]).astype(int)
        every = np.concatenate([of.columns["logits"] for of in scores.values()])
        vectors = np.zeros((numbers.max() + 1, every.shape[-1]), dtype=every.dtype)  # Some may have been left out.
        vectors[numbers] = every
        return replace(data, scoring=replace(self, vectors=vectors))

    def condense(self, scores: Scores) -> Scores:
        """The share and the cosine of each text, or of each query; a vector of fewer numbers is compared with as many.

        The cosine is 0 with a vector of more numbers than the teacher's.
        """
        if OVERLAP in scores.columns:
            return scores
        own, theirs = scores.columns["logits"], self._of_teacher(scores)
        queries, documents = self._sides(scores)
        found, expected = (_find(vectors, queries, documents) for vectors in (own, theirs))
        shared = (found[:, :, None] == expected[:, None]).any(axis=2).mean(axis=1)
        cosine = np.zeros(len(queries))
        if (width := own.shape[-1]) <= theirs.shape[-1]:
            cosine = (normalize(own[queries]) * normalize(theirs[queries, :width])).sum(axis=-1)
        columns = {OVERLAP: shared, COSINE: cosine}
        return replace(scores, columns=columns, labels=scores.labels[queries], example_id=scores.example_id[queries])

    def values(self, scores: Scores) -> np.ndarray:
        queries, documents = self._sides(scores)
        vectors = scores.columns["logits"]
        return similarity(vectors[queries], vectors[documents]).ravel()

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The examples whose texts are nearest to each one's, by the teacher as the label; None for documents."""
        queries, documents = self._sides(scores)
        own, theirs = scores.columns["logits"], self._of_teacher(scores)
        columns: dict[str, list[Any]] = {name: [None] * examples for name in ("label", "prediction", "probability")}
        for name, vectors in (("label", theirs), ("prediction", own)):
            for query, nearest in zip(queries, _find(vectors, queries, documents), strict=True):
                columns[name][scores.example_id[query]] = scores.example_id[nearest].tolist()
        return columns

    def summarize_dev(self, splits: LabelledData) -> str:
        return f"dev has {len(splits.splits['dev']):,} texts, whose nearest ones are compared with the teacher's"

    def _of_teacher(self, scores: Scores) -> np.ndarray:
        if self.vectors is None:
            raise ValueError("the teacher has not encoded the texts yet")
        return np.asarray(self.vectors[scores.labels.astype(int)])

    def _sides(self, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
        """Returns the items that are compared, and those that they are compared with."""
        if self.is_query is None:
            every = np.arange(len(scores.labels))
            return every, every
        is_query = self.is_query[scores.labels.astype(int)]
        return np.flatnonzero(is_query), np.flatnonzero(~is_query)


def _find(vectors: np.ndarray, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Returns the items that are nearest to each query, `[Q, k]`, without itself."""
    _, nearest = find_nearest(vectors[queries], vectors[documents], NEAREST + 1)
    items = documents[nearest]
    others = np.argsort(items == queries[:, None], axis=1, kind="stable")  # The query itself comes last.
    return np.take_along_axis(items, others, axis=1)[:, :NEAREST]


def _list_missing(directory: Path) -> list[str]:
    return [stem for stem in _ROLES if not (directory / f"{stem}{TEXT_SUFFIX}").is_file()]


def _join_roles(directory: Path) -> Table:
    """Returns the queries and the documents of two text files as one table."""
    tables = {stem: read_lines(directory / f"{stem}{TEXT_SUFFIX}", ()) for stem in _ROLES}
    texts = [text for table in tables.values() for text in table.columns[USUAL]]
    roles = [is_query for stem, is_query in _ROLES.items() for _ in range(len(tables[stem]))]
    return Table(str(directory), (USUAL, IS_QUERY), {USUAL: texts, IS_QUERY: roles})


def _hold_out(source: TableSource, table: Table) -> dict[str, Table]:
    """Returns the different texts of a table as train and dev."""
    column = next(name for name in (*source.wanted, *table.names) if name in table.columns)
    keys = text_keys(table.columns[column])
    first = list({key: row for row, key in reversed(list(enumerate(keys)))}.values())[::-1]
    if left_out := len(table) - len(first):
        print_notice(f"{table.source}: texts that are there more than once and are left out: {left_out:,}")
        table = table.select(first, table.source)
    if len(table) < 2 * NEAREST:
        raise UserError(f"{table.source} has {len(table)} different texts, expected at least {2 * NEAREST}")
    share = min(source.dev_fraction, MOST_DEV / len(table))
    roles = [str(role) for role in table.columns[IS_QUERY]] if IS_QUERY in table.columns else None
    return replace(source, dev_fraction=share).hold_out_dev(table, classes=roles)
