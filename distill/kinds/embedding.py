"""Vectors of texts, and frozen models whose outputs they learn.

Scores of pairs by a cross-encoder, which reads both texts together and teaches an encoder of single texts. Its scores
of pairs are targets of cosines (Augmented SBERT, arXiv 2010.08240), and its margins between a positive and a negative
text those of the student's margins (arXiv 2010.02666).

Vectors of texts (Sentence-BERT, arXiv 1908.10084): texts of similar meaning have similar vectors; an item is a text.

>>> from distill.kinds import Embedding
>>> pairs = {"sentence1": ["a cat", "a car"], "sentence2": ["one cat", "a tree"], "score": [5.0, 0.0]}
>>> Embedding(text=["sentence1", "sentence2"], label="score", train=pairs, dev=pairs).info.likelihood
'vector'
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

import numpy as np
import torch
from pydantic import Field
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from distill.core.console import print_line, print_notice
from distill.core.contracts import CROSS_SCORES, PAIR_CLASSES, SOURCE_VECTORS, VECTOR_SETTINGS, Batch, Items
from distill.core.errors import OptionError, UserError
from distill.core.files import hash_file
from distill.core.options import check_arguments, show_value
from distill.core.storage import entry_key, has_entry, new_entry
from distill.data import tokenization
from distill.data.batches import TokenizedExamples, scoring_steps
from distill.data.pool import USUAL
from distill.data.retrieval import IS_QUERY, GroupColumns, group_split
from distill.data.splits import LabelledData, Split, text_split
from distill.edge.index import ROLES
from distill.kinds import labelled_rows
from distill.kinds.kind import Encoder, Kind
from distill.kinds.known import VECTOR, Found, Key, KnownTable, normalize
from distill.kinds.neighbour_scores import OVERLAP, TEXT_SUFFIX, NeighbourScores, has_text_files, read_lines
from distill.kinds.vector_scores import (
    ACCURACY,
    CORRELATIONS,
    COSINE,
    METRICS,
    PairScores,
    RankingScores,
    TranslationScores,
    VectorScores,
    mine_negatives,
    score_range,
)
from distill.losses import CosineRegression, MultipleNegatives, PairClassification, Term
from distill.models.compatibility import longest
from distill.models.forward import configure, count_outputs, run_model, to_device
from distill.models.loading import Start, check_directory, load_directory
from distill.models.sentence_files import head_activation, role_prompts
from distill.models.vectors import AUTO, Pooling, VectorSettings, vector_settings
from distill.rows.columns import SUFFIXES

FILE = "outputs.npy"
FORMAT = 1


def cached_outputs(
    start: Start, source: Path, texts: Split, max_length: int, cache_dir: Path | None, name: str
) -> np.ndarray:
    """Returns the logits or vectors of texts of train by a model that was loaded from `source`, `[N, C]`.

    They are computed once, in inference mode. Without `cache_dir` they are not cached.

    Args:
        max_length: tokens that a text is cut to, if the model can read as many.
        name: of the model in messages.

    Raises:
        UserError: if one is not finite.
    """
    length = min(max_length, longest(start.model, start.tokenizer))
    tokens = tokenization.tokenize_split(texts, start.tokenizer, length, cache_dir)
    examples = TokenizedExamples(tokens, start.tokenizer)
    if cache_dir is None:
        return _compute_outputs(start, examples, name)
    weights = sorted([*source.glob("*.safetensors"), *source.glob("*_*/*.safetensors")])
    files = {str(path.relative_to(source)): hash_file(path) for path in weights}
    config = hash_file(source / "config.json")
    key = entry_key("frozen_outputs", FORMAT, tokens.digest, files, config, vector_settings(start.model.config))
    directory = cache_dir / "frozen_outputs" / key[:20]
    if not has_entry(directory):
        print_line(f"{name}: reads {len(examples):,} examples of train once, for {directory}")
        outputs = _compute_outputs(start, examples, name)
        with new_entry(directory) as temporary:
            np.save(temporary / FILE, outputs)
    return np.asarray(np.load(directory / FILE))


@torch.inference_mode()
def _compute_outputs(start: Start, examples: TokenizedExamples, name: str) -> np.ndarray:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = start.model.to(device).eval()
    outputs = np.empty((len(examples), count_outputs(model)), dtype=np.float32)
    for chosen in scoring_steps(examples.lengths):
        outputs[chosen] = run_model(model, to_device(examples[chosen], device)).logits.float().cpu().numpy()
    if not np.isfinite(outputs).all():
        raise UserError(f"the {name.lower()} gives numbers that are not finite: check its weights")
    return outputs


SOURCE_AUTO_CLASS = "AutoModel"


@dataclass(frozen=True)
class SourceEncoder:
    """An encoder of the language of the first texts. Its vocabulary may be another one than the student's.

    Args:
        directory: a directory that `save_pretrained` or sentence-transformers wrote.
        settings: how its vectors are computed. If the directory names another pooling, that one is taken.
    """

    directory: Path
    settings: VectorSettings

    def check(self) -> None:
        """Raises UserError for a directory without a model."""
        check_directory(self.directory, f"task.source_encoder={self.directory}")

    def encode(self, texts: list[str], cache_dir: Path | None) -> np.ndarray:
        """Returns the vectors of texts, `[N, D]` (float32), cached or computed.

        Raises:
            UserError: if the model cannot be loaded, or has no trained encoder.
        """
        start = load_directory(self.directory, SOURCE_AUTO_CLASS, None, trust_remote_code=False)
        if not start.fits:
            raise UserError(f"task.source_encoder={self.directory} does not encode texts: {start.reason}")
        for notice in start.notices:
            print_notice(notice)
        configure(start.model, {VECTOR_SETTINGS: {**self.settings, "pooling": AUTO}})
        rows = text_split(texts)
        return cached_outputs(start, self.directory, rows, self.settings["max_length"], cache_dir, "Source encoder")


CROSS_AUTO_CLASS = "AutoModelForSequenceClassification"
MOST_OUTSIDE = 0.5  # Of the numbers of pairs, which are not in the range of the data's scores.
# Names of the class of other texts without their marks, and the beginnings that turn a name into that of its opposite.
_NEGATIVE = ("label0", "0", "no", "false", "negative", "different", "contradiction")
_NO = ("not", "non", "no", "un", "dis", "ir")
Groups = Sequence[Sequence[str]]
TARGETS = (PAIR_CLASSES, CROSS_SCORES, SOURCE_VECTORS)  # The columns of train and the pool that a term may read.


@dataclass(frozen=True)
class CrossEncoder:
    """A classifier of two classes, or a model of one number, for pairs of texts.

    Args:
        directory: a directory that `save_pretrained` or sentence-transformers wrote.
        max_length: tokens that a pair is cut to, if the model can read as many.
    """

    directory: Path
    max_length: int

    def check(self, groups: Groups) -> None:
        """Raises UserError for a directory without a model, and for groups that it cannot score."""
        check_directory(self.directory, f"task.cross_encoder={self.directory}")
        sizes = sorted(set(map(len, groups)))
        if sizes not in ([2], [3]):
            found = " and ".join(map(str, sizes))
            raise UserError(
                f"train has groups of {found} texts, and task.cross_encoder scores pairs, or a text with a positive "
                "and a negative one: give train two columns of texts, or three"
            )

    def score(self, groups: Groups, low: float, high: float, cache_dir: Path | None) -> np.ndarray:
        """Returns the targets of groups of two or three texts, `[N]` (float32), cached or computed.

        That of a pair is from 0 to 1: a probability, or a number as its share of the range from `low` to `high`. That
        of three texts is the first pair's number or log-odds minus the second's, on the model's own scale. A single
        logit with a sigmoid, as in sentence-transformers, is the log-odds of a probability.

        Raises:
            UserError: if the model cannot be loaded or has other outputs, if nothing says what its output means, and
                if most numbers of pairs are not in the range of the scores.
        """
        start = load_directory(self.directory, CROSS_AUTO_CLASS, None, trust_remote_code=False)
        outputs = count_outputs(start.model)
        if not start.fits or outputs > 2:
            reason = start.reason if not start.fits else f"it has {outputs} outputs"
            raise UserError(
                f"task.cross_encoder={self.directory} does not score pairs: {reason}, expected a trained head with one "
                "number or two classes"
            )
        for notice in start.notices:
            print_notice(notice)
        positive = self._positive_class(start.model.config) if outputs == 2 else 0
        pairs = [(group[0], text) for group in groups for text in group[1:]]
        first, second = (list(texts) for texts in zip(*pairs, strict=True))
        texts = text_split(first, second)
        logits = cached_outputs(start, self.directory, texts, self.max_length, cache_dir, "Cross-encoder")
        numbers = logits[:, 0] if outputs == 1 else logits[:, positive] - logits[:, 1 - positive]
        numbers = numbers.reshape(len(groups), -1)
        if numbers.shape[1] == 2:
            return np.asarray(numbers[:, 0] - numbers[:, 1])
        if outputs == 2 or self._is_probability(start.model.config):
            return np.asarray(1 / (1 + np.exp(-numbers[:, 0])))
        return self._to_shares(numbers[:, 0], low, high)

    def _positive_class(self, config: PreTrainedConfig) -> int:
        """Returns the index of the class of similar texts, by the names of the classes.

        Raises:
            UserError: for names that do not tell.
        """
        names = [str(config.id2label[index]) for index in range(2)]
        short = [re.sub(r"[\W_]", "", name.lower()) for name in names]
        negative = [name in _NEGATIVE or any(name == no + short[1 - i] for no in _NO) for i, name in enumerate(short)]
        if sum(negative) != 1:
            raise UserError(
                f"task.cross_encoder={self.directory} has the classes {' and '.join(names)}, which do not say which of "
                "them means similar texts: name them not_similar and similar in id2label of its config.json"
            )
        if names == ["LABEL_0", "LABEL_1"]:
            print_notice(f"the classes of task.cross_encoder={self.directory} have no names: LABEL_1 is similar texts")
        return negative.index(False)

    def _is_probability(self, config: PreTrainedConfig) -> bool:
        """Returns whether the single output is the logit of a probability.

        Raises:
            UserError: if the model's files do not tell.
        """
        activation = head_activation(config, self.directory)
        if activation in ("Sigmoid", "Identity"):
            return activation == "Sigmoid"
        if activation is None and config.problem_type == "regression":
            return False
        found = "neither problem_type nor activation_fn" if activation is None else f"activation_fn {activation}"
        raise UserError(
            f"task.cross_encoder={self.directory} has one output and {found} in its config.json, so that it may be a "
            'number or the logit of a probability: write "problem_type": "regression" there for a number, or '
            '"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"} for a logit'
        )

    def _to_shares(self, numbers: np.ndarray, low: float, high: float) -> np.ndarray:
        """Returns numbers as shares of a range; those outside of it are 0 or 1."""
        if (outside := float(((numbers < low) | (numbers > high)).mean())) > MOST_OUTSIDE:
            raise UserError(
                f"task.cross_encoder={self.directory} gives {outside:.0%} of the pairs of train numbers outside of the "
                f"data's scores, {low:g} to {high:g} (they are {numbers.min():.3g} to {numbers.max():.3g}): take a "
                "model that was trained on such scores, or a classifier of two classes"
            )
        return np.asarray(((numbers - low) / (high - low)).clip(0, 1))


Metrics = Annotated[
    Sequence[
        Literal[
            "spearman", "pearson", "ndcg@10", "recall@10", "recall@100", "mrr@10", "accuracy", "overlap@10", "cosine"
        ]
    ],
    Field(
        min_length=1,
        description=f"a list of some of {', '.join(CORRELATIONS)}, or of {', '.join(METRICS)}, or [{ACCURACY}]",
    ),
]


class Embedding(Kind):
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
            translation among all of its language. Texts alone, of a text file with one on each line or of the one
            column `text`, have overlap@10 and cosine, which compare the student with its teacher. The first one selects
            checkpoints.
        language: the column of dev with the language of a row's second text; None for a single language.
        pooling: of the last hidden states of a text, as `pool` names them. `auto` is that of the files of the model, of
            a student that has its teacher's layers that of the teacher, and else the mean.
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
        options: those of `labelled_rows.DataOptions`, `unlabelled` with single texts.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("embedding",)
    auto_class = "AutoModel"
    likelihood = "vector"
    decoder = "vectors"
    cross_encoder: CrossEncoder | None = None
    source_encoder: SourceEncoder | None = None

    @check_arguments
    def __init__(
        self,
        *,
        text: labelled_rows.Columns = ("sentence1", "sentence2"),
        label: labelled_rows.Columns = "score",
        train_text: labelled_rows.Columns | None = None,
        train_label: labelled_rows.Columns | None = None,
        classes: Sequence[str | int] | None = None,
        triples: Annotated[Sequence[str], Field(min_length=2, max_length=2, description="two classes")] | None = None,
        name: str = "embedding",
        metrics: Metrics = ("spearman", "pearson"),
        pooling: Literal["auto"] | Pooling = AUTO,
        normalize: bool = True,
        max_length: labelled_rows.MaxLength = 128,
        language: str | None = None,
        cross_encoder: str | Path | None = None,
        source_encoder: str | Path | None = None,
        negatives: Annotated[int, Field(ge=0)] = 0,
        negatives_by: Literal["tfidf", "teacher"] = "tfidf",
        **options: Unpack[labelled_rows.DataOptions],
    ) -> None:
        two, names = _choose_columns(labelled_rows.column_names(text), tuple(metrics), options.get("data_dir"))
        self._scoring = _scoring(names, pooling, normalize, negatives=negatives, language=language)
        if cross_encoder is not None and not self._scoring.scores_pairs and not negatives:
            expected = "negatives=1 beside it, because all pairs of a retrieval set are positive"
            raise OptionError("cross_encoder", str(cross_encoder), expected)
        if negatives_by == "teacher" and not negatives:
            raise OptionError("negatives_by", negatives_by, "negatives=1 beside it, the number for each pair")
        self.negatives_by = negatives_by
        self.columns = GroupColumns(
            text=two, label=labelled_rows.column_names(label),
            train_text=two if train_text is None else labelled_rows.column_names(train_text),
            train_label=labelled_rows.column_names(label if train_label is None else train_label),
            classes=None if classes is None else tuple(map(str, classes)),
            triples=None if triples is None else (triples[0], triples[1]),
        )  # fmt: skip
        self.source = labelled_rows.table_source(
            name=name, text=self.columns.text, label=self.columns.label, options=options,
            further=("text", *self.columns.train_text, *self.columns.train_label, *([language] if language else [])),
            **({"suffixes": (*SUFFIXES, TEXT_SUFFIX), "read_file": read_lines} if self._scoring.needs_teacher else {}),
        )  # fmt: skip
        pool = labelled_rows.pool_source(options, lambda texts: partial(self.columns.add_unlabelled, texts))
        super().__init__(name, max_length, builtin=options.get("builtin", False), pool=pool)
        vectors: VectorSettings = {"pooling": pooling, "normalize": normalize, "max_length": max_length}
        self.model_settings = {VECTOR_SETTINGS: vectors}
        if cross_encoder is not None:
            self.cross_encoder = CrossEncoder(Path(cross_encoder).expanduser(), 2 * max_length)
        if source_encoder is not None:
            self.source_encoder = SourceEncoder(Path(source_encoder).expanduser(), vectors)
        self.further_teachers = [name for name in ("cross_encoder", "source_encoder") if getattr(self, name)]

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

    known_columns = ("text",)
    can_stream = True

    def create_rows(self, columns: list[list[str]]) -> Split:
        return group_split([[text] for text in columns[0]])

    def encode_texts(self, encoder: Encoder, data: LabelledData, rows: Split) -> TokenizedExamples:
        prompts = role_prompts(encoder.tokenizer) if data.scoring.has_roles else {}
        begin = [prompts.get(role, "") for role in ROLES]
        return self.encode_unlabelled(encoder, data, _begin(rows, begin) if prompts else rows)

    def read_known(self, known: KnownTable, data: LabelledData) -> Found:
        """Yields the vector of each text."""
        width = None
        for row, texts in enumerate(known.texts(self.known_columns)):
            vector = known.numbers(row, VECTOR, "a list of numbers")
            width = len(vector) if width is None else width
            if len(vector) != width:
                raise known.fail(row, f"the vector has {len(vector)} numbers, and those before {width}")
            yield row, texts, vector[None]

    def known_keys(self, split: Split) -> list[list[Key]]:
        return [[normalize((text,)) for text in texts] for texts in split["texts"]]

    def encode(self, data: LabelledData, tokenizer: PreTrainedTokenizerBase, cache_dir: Path | None) -> dict[str, Any]:
        """Tokenizes every text by itself. The batches have scores from 0 to 1, and those of train maybe classes."""
        train: Split = data.splits["train"]
        targets: dict[str, np.ndarray] = {PAIR_CLASSES: train.labels} if data.classes else {}
        if self.cross_encoder is not None:
            targets[CROSS_SCORES] = self.cross_encoder.score(train["texts"], *score_range(data, "train"), cache_dir)
        if self.source_encoder is not None:
            sources = [group[0] for group in train["texts"]]
            targets[SOURCE_VECTORS] = self.source_encoder.encode(sources, cache_dir)
        scaled = {name: data.scoring.scale(split.labels, data, name) for name, split in data.splits.items()}
        if data.classes:
            scaled["train"] = np.full_like(train.labels, np.nan)
        data = self.prompted(data, tokenizer)
        splits = {name: split.with_columns(labels=scaled[name]) for name, split in data.splits.items()}
        splits["train"] = splits["train"].with_columns(
            **{name: values.astype(np.float32) for name, values in targets.items()}
        )
        return super().encode(replace(data, splits=splits), tokenizer, cache_dir)

    def prompted(self, data: LabelledData, tokenizer: PreTrainedTokenizerBase) -> LabelledData:
        """Returns a retrieval set whose queries and documents begin with the prompts of a tokenizer, once."""
        prompts = role_prompts(tokenizer)
        if not prompts or not data.scoring.has_roles or data.scoring.prompts:
            return data
        begin = [prompts.get(role, "") for role in ROLES]
        pool = replace(data.pool, rows=_begin(data.pool.rows, begin)) if len(data.pool) else data.pool
        splits = {name: _begin(split, begin) for name, split in data.splits.items()}
        return replace(data, splits=splits, pool=pool, scoring=replace(data.scoring, prompts=prompts))

    def encode_split(self, encoder: Encoder, data: LabelledData, name: str, split: Split) -> TokenizedExamples:
        groups, every = split["texts"], [*data.splits.values(), *([data.pool.rows] if len(data.pool) else [])]
        most = max(len(group) for of_split in every for group in of_split["texts"])
        columns = {column: split[column] for column in ("labels", *TARGETS) if column in split.columns}
        counts = list(map(len, groups))
        return encoder.encode_lists(
            list(itertools.chain(*groups)), None, counts, most, items_per_example=float(np.mean(counts)), **columns
        )  # fmt: skip

    def create_unlabelled(self, pool: Split, data: LabelledData) -> Split:
        """Returns single texts, without scores and targets."""
        train: Split = data.splits["train"]
        targets = {name: train[name].shape[1:] for name in TARGETS if name in train.columns}
        empty = {name: np.full((len(pool), *shape), np.nan, np.float32) for name, shape in targets.items()}
        return pool.with_columns(**empty)

    def select(self, batch: Batch) -> Items:
        """The texts of all examples, each with the label of its example."""
        row = batch["valid"].nonzero()[:, 0]
        labels = batch["labels"][row]
        return Items(batch=batch, row=row, labels=labels, labelled=~labels.isnan(), likelihood=self.likelihood)


def _begin(split: Split, prompts: Sequence[str]) -> Split:
    """Returns a split whose queries and documents begin with these prompts; of a group the first text is the query."""
    if IS_QUERY in split.columns or max(map(len, split["texts"])) == 1:
        is_query = split[IS_QUERY] if IS_QUERY in split.columns else np.zeros(len(split), dtype=bool)
        rows = zip(split["texts"], is_query.tolist(), strict=True)
        return split.with_columns(texts=[[prompts[not first] + text for text in group] for group, first in rows])
    return split.with_columns(
        texts=[[prompts[number > 0] + text for number, text in enumerate(group)] for group in split["texts"]]
    )


def _choose_columns(
    text: tuple[str, ...], metrics: tuple[str, ...], data_dir: object
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the columns of texts and the metrics; single texts have those that need no score.

    Raises:
        OptionError: for another number of columns, and for metrics that single texts have not.
    """
    columns = (USUAL,) if has_text_files(data_dir) else text
    if len(columns) > 2:
        raise OptionError("text", show_value(text), "the two columns of a pair; train_text names others")
    if len(columns) == 2:
        return columns, metrics
    if set(metrics) == set(CORRELATIONS):
        metrics = (OVERLAP, COSINE)
    if set(metrics) != {OVERLAP, COSINE}:
        expected = f"[{OVERLAP},{COSINE}] for single texts, which have no scores"
        raise OptionError("metrics", show_value(list(metrics)), expected)
    return columns, metrics


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
    if set(metrics) == {OVERLAP, COSINE}:
        return NeighbourScores((OVERLAP, COSINE), pooling, normalize)
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
