"""Vectors of texts (Sentence-BERT, arXiv 1908.10084): texts of similar meaning have similar vectors; an item is a text.

>>> from distill.tasks import Embedding
>>> pairs = {"sentence1": ["a cat", "a car"], "sentence2": ["one cat", "a tree"], "score": [5.0, 0.0]}
>>> Embedding(text=["sentence1", "sentence2"], label="score", train=pairs, dev=pairs).info.likelihood
'vector'
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

import numpy as np
from pydantic import Field

from distill.contracts import (
    CROSS_SCORES,
    PAIR_CLASSES,
    SOURCE_VECTORS,
    VECTOR_SETTINGS,
    Batch,
    Examples,
    Items,
    Outputs,
    TaskInfo,
)
from distill.data.tables import LabelledData, Split, text_split
from distill.data.text_groups import GroupColumns
from distill.errors import OptionError
from distill.losses import CosineRegression, MultipleNegatives, PairClassification, Term
from distill.options import check_arguments, show_value
from distill.tasks import rows
from distill.tasks.overview import ShownTask
from distill.tasks.rankings import METRICS
from distill.tasks.vector_scores import (
    ACCURACY,
    CORRELATIONS,
    PairScores,
    RankingScores,
    TranslationScores,
    VectorScores,
    mine_negatives,
    score_range,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.batching import TokenizedExamples
    from distill.models.pooling import VectorSettings
    from distill.tasks.cross_encoder import CrossEncoder
    from distill.tasks.source_encoder import SourceEncoder

Metrics = Annotated[
    Sequence[Literal["spearman", "pearson", "ndcg@10", "recall@10", "recall@100", "mrr@10", "accuracy"]],
    Field(
        min_length=1,
        description=f"a list of some of {', '.join(CORRELATIONS)}, or of {', '.join(METRICS)}, or [{ACCURACY}]",
    ),
]


class Embedding(ShownTask):
    """Vectors of texts, whose cosines are compared with the scores of pairs.

    The vector of a text is pooled from the last hidden states of an encoder. Both texts of a pair are encoded by
    themselves. Models are of `AutoModel`; every encoder can teach, whether it was trained for vectors or not.

    Args:
        text: the columns of the texts, the two of a pair for splits that are scored. Training rows may have one of them
            alone: a student learns the teacher's vectors from any text.
        label: the column of the score of a pair, the higher the more similar; of several names the one that is
            there. Training rows may lack it.
        train_text: the columns of the texts of train where they are others, such as an anchor, a positive and a
            negative text; None for those of `text`.
        train_label: the column of train's labels where it is another one. Numbers are scores, and words are classes, as
            in natural language inference.
        classes: the names of train's classes in the order of its integers.
        triples: two classes of train's pairs, such as `entailment` and `contradiction`. The pairs of a first text then
            become groups of that text, a text of the first class and one of the second class.
        metrics: spearman or pearson, the correlation of cosines and scores of pairs. Or ndcg@10, recall@10, recall@100
            and mrr@10 of rankings by cosine, with `data_dir` a retrieval set as in `distill.data.retrieval`. Or
            accuracy of translations: dev has pairs without a score, and each text is to be nearest to its own
            translation among all of its language. The first one selects checkpoints.
        language: the column of dev with the language of a row's second text; None for a single language.
        pooling: `mean` of the hidden states of all tokens, the one of the first token (`cls`), or their `max`.
        normalize: whether vectors have length 1.
        max_length: tokens that a text is cut to.
        cross_encoder: a directory with a classifier or regressor of pairs, whose scores of train's groups are targets
            of `CosineRegression` and `MarginMSE`.
        source_encoder: a directory with an encoder whose vector of the first text of a group is a target of all its
            texts, by `EmbeddingMSE(targets="source_encoder")`.
        negatives: documents of a retrieval set, near to the query and not relevant, by which each pair of train becomes
            so many groups of three texts.
        negatives_by: `tfidf` for those nearest by TF-IDF, or `teacher` for those nearest by the teacher's vectors, but
            for documents about as near as a relevant one. A teacher that is fine-tuned first has those by TF-IDF.
        name: names the task in records and directories.
        options: those of `rows.DataOptions`, `unlabelled` with single texts.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("embedding",)
    auto_class = "AutoModel"

    @check_arguments
    def __init__(
        self,
        *,
        text: rows.Columns = ("sentence1", "sentence2"),
        label: rows.Columns = "score",
        train_text: rows.Columns | None = None,
        train_label: rows.Columns | None = None,
        classes: Sequence[str | int] | None = None,
        triples: Annotated[Sequence[str], Field(min_length=2, max_length=2, description="two classes")] | None = None,
        name: str = "embedding",
        metrics: Metrics = ("spearman", "pearson"),
        pooling: Literal["mean", "cls", "max"] = "mean",
        normalize: bool = True,
        max_length: rows.MaxLength = 128,
        language: str | None = None,
        cross_encoder: str | Path | None = None,
        source_encoder: str | Path | None = None,
        negatives: Annotated[int, Field(ge=0)] = 0,
        negatives_by: Literal["tfidf", "teacher"] = "tfidf",
        **options: Unpack[rows.DataOptions],
    ) -> None:
        self._scoring = _scoring(tuple(metrics), pooling, normalize, negatives=negatives, language=language)
        if cross_encoder is not None and not self._scoring.scores_pairs and not negatives:
            raise OptionError(
                "cross_encoder",
                str(cross_encoder),
                "negatives=1 beside it, because all pairs of a retrieval set are positive",
            )
        if negatives_by == "teacher" and not negatives:
            raise OptionError("negatives_by", negatives_by, "negatives=1 beside it, the number for each pair")
        self.negatives_by = negatives_by
        self.columns = _group_columns(text, label, train_text, train_label, classes, triples)
        self.source = rows.table_source(
            name=name, text=self.columns.text, label=self.columns.label,
            further=("text", *self.columns.train_text, *self.columns.train_label, *([language] if language else [])),
            **options,
        )  # fmt: skip
        self.pool = rows.pool_source(options, lambda texts: partial(self.columns.add_unlabelled, texts))
        self.cross_encoder = None if cross_encoder is None else _cross_encoder(cross_encoder, 2 * max_length)
        self.source_encoder = None
        vectors: VectorSettings = {"pooling": pooling, "normalize": normalize, "max_length": max_length}
        if source_encoder is not None:
            self.source_encoder = _source_encoder(source_encoder, vectors)
        others = {"cross_encoder": self.cross_encoder, "source_encoder": self.source_encoder}
        self.info = TaskInfo(
            name=name, kind=self.kinds[0], auto_class=self.auto_class, likelihood="vector", decoder="vectors",
            max_length=max_length, builtin=options.get("builtin", False), model_settings={VECTOR_SETTINGS: vectors},
            further_teachers=[name for name, model in others.items() if model is not None], **self.pool.info(),
        )  # fmt: skip

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split, and determines the terms that learn from train alone.

        Raises:
            UserError: for a directory, file, column, text or label that is missing or unusable.
        """
        data = self._scoring.read(self.columns, self.source, cache_dir)
        if self.negatives_by == "teacher":
            data = replace(data, mine=mine_negatives)
        if self.cross_encoder is not None:
            self.cross_encoder.check(data.splits["train"]["texts"])
        if self.source_encoder is not None:
            self.source_encoder.check()
        return self.pool.add_to(replace(data, terms=_supervised_terms(data)))

    def encode(
        self, data: LabelledData, tokenizer: "PreTrainedTokenizerBase", cache_dir: Path | None
    ) -> dict[str, Examples]:
        """Tokenizes every text by itself. The batches have scores from 0 to 1, and those of train maybe classes."""
        every: list[Split] = [*data.splits.values(), *([data.pool.rows] if len(data.pool) else [])]
        most = max(len(group) for split in every for group in split["texts"])

        train: Split = data.splits["train"]
        targets: dict[str, np.ndarray] = {PAIR_CLASSES: train.labels} if data.classes else {}
        if self.cross_encoder is not None:
            targets[CROSS_SCORES] = self.cross_encoder.score(train["texts"], *score_range(data, "train"), cache_dir)
        if self.source_encoder is not None:
            sources = [group[0] for group in train["texts"]]
            targets[SOURCE_VECTORS] = self.source_encoder.encode(sources, cache_dir)

        def encode(name: str, split: Split) -> "TokenizedExamples":
            is_of_classes = name == "train" and data.classes
            if is_of_classes:
                split = split.with_columns(labels=np.full_like(split.labels, np.nan))
            else:
                split = split.with_columns(labels=data.scoring.scale(split.labels, data, name))
            further = {}
            if name == "train":
                further = {column: values.astype(np.float32) for column, values in targets.items()}
            elif name == rows.UNLABELLED:
                further = {
                    column: np.full((len(split), *values.shape[1:]), np.nan, dtype=np.float32)
                    for column, values in targets.items()
                }
            return _encode(split, most, tokenizer, self.info.max_length, cache_dir, further)

        return rows.encode_splits(data, encode, lambda pool: pool)

    def select(self, batch: Batch) -> Items:
        """The texts of all examples, each with the label of its example."""
        row = batch["valid"].nonzero()[:, 0]
        labels = batch["labels"][row]
        return Items(batch=batch, row=row, labels=labels, labelled=~labels.isnan(), likelihood=self.info.likelihood)

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the model on the sequences `[S, L]` of all texts; in the place of logits are their vectors `[S, D]`."""
        return rows.run_whole_model(model, batch, needs)


def _cross_encoder(directory: str | Path, max_length: int) -> "CrossEncoder":
    from distill.tasks.cross_encoder import CrossEncoder

    return CrossEncoder(Path(directory).expanduser(), max_length)


def _source_encoder(directory: str | Path, settings: "VectorSettings") -> "SourceEncoder":
    from distill.tasks.source_encoder import SourceEncoder

    return SourceEncoder(Path(directory).expanduser(), settings)


def _group_columns(
    text: rows.Columns,
    label: rows.Columns,
    train_text: rows.Columns | None,
    train_label: rows.Columns | None,
    classes: Sequence[str | int] | None,
    triples: Sequence[str] | None,
) -> GroupColumns:
    """Returns the columns; those of train are the others unless they are given.

    Raises:
        OptionError: for another number of texts than two.
    """
    columns = GroupColumns(
        text=rows.column_names(text), label=rows.column_names(label),
        train_text=rows.column_names(text if train_text is None else train_text),
        train_label=rows.column_names(label if train_label is None else train_label),
        classes=None if classes is None else tuple(map(str, classes)),
        triples=None if triples is None else (triples[0], triples[1]),
    )  # fmt: skip
    if len(columns.text) != 2:
        raise OptionError("text", show_value(columns.text), "the two columns of a pair; train_text names others")
    return columns


def _scoring(
    metrics: tuple[str, ...], pooling: str, normalize: bool, *, negatives: int, language: str | None
) -> VectorScores:
    """Returns the scoring with these metrics.

    Raises:
        OptionError: for metrics of pairs, of rankings and of translations together, for negatives of pairs, and for a
            language without translations.
    """
    if language is not None and set(metrics) != {ACCURACY}:
        raise OptionError("language", language, f"metrics=[{ACCURACY}] beside it, which is computed for each language")
    if set(metrics) <= set(METRICS):
        return RankingScores(metrics, pooling, normalize, negatives=negatives)
    if set(metrics) <= set(CORRELATIONS) or set(metrics) == {ACCURACY}:
        if negatives:
            raise OptionError("negatives", str(negatives), "0, because they are found for retrieval sets alone")
        if set(metrics) == {ACCURACY}:
            return TranslationScores((ACCURACY,), pooling, normalize, language=language)
        return PairScores(metrics, pooling, normalize)
    pairs, rankings = (", ".join(names) for names in (CORRELATIONS, METRICS))
    raise OptionError(
        "metrics",
        show_value(list(metrics)),
        f"those of pairs ({pairs}), those of rankings ({rankings}), or that of translations ({ACCURACY})",
    )


def _supervised_terms(data: LabelledData) -> dict[str, Term]:
    """Returns the term that learns from the labels of train, or from its groups of texts; none for single texts.

    It is cosine regression for scores, classification for classes, and otherwise multiple negatives.
    """
    train: Split = data.splits["train"]
    if max(map(len, train["texts"])) < 2:
        return {}
    if data.classes:
        return {"classes": PairClassification(classes=len(data.classes))}
    if not np.isnan(train.labels).all():
        return {"scores": CosineRegression()}
    return {"negatives": MultipleNegatives()}


def _encode(
    split: Split,
    most: int,
    tokenizer: "PreTrainedTokenizerBase",
    max_length: int,
    cache_dir: Path | None,
    further: Mapping[str, np.ndarray],
) -> "TokenizedExamples":
    """Tokenizes the texts of a split, whose examples have at most `most` of them, with `further` columns."""
    from distill.data import token_cache
    from distill.data.batching import TokenizedExamples

    texts = list(itertools.chain.from_iterable(split["texts"]))
    tokens = token_cache.tokenize_split(text_split(texts), tokenizer, max_length, cache_dir)
    counts = np.array([len(group) for group in split["texts"]])
    return TokenizedExamples(
        tokens, tokenizer, per_example={"labels": split.labels, **further}, valid=np.arange(most) < counts[:, None],
        items_per_example=float(counts.mean()),
    )  # fmt: skip
