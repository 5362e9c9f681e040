"""Extractive question answering: the answer is a span of the context, in the formats of SQuAD 1.1 and 2.0.

>>> from distill.kinds import QuestionAnswering
>>> answers = {"text": ["Turing"], "answer_start": [0]}
>>> train = [{"question": "Who wrote it?", "context": "Turing wrote it.", "answers": answers}]
>>> dev = [{**train[0], "question": "Who was it?"}]
>>> QuestionAnswering(train=train, dev=dev).read(None).labels
('start', 'end')
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from distill.core.console import print_notice
from distill.core.contracts import IGNORED, Batch, Constant, Items, Match, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.core.options import check_arguments
from distill.data import questions, sources
from distill.data.batches import TokenizedExamples
from distill.data.pool import UnlabelledText
from distill.data.questions import CHARACTER_COLUMNS, label_windows, tokenize_windows
from distill.data.sources import check_memory
from distill.data.splits import LabelledData, Split
from distill.data.tokenization import check_offsets
from distill.edge import answering
from distill.edge.answering import NO_ANSWER, NO_CLASS
from distill.edge.decoder import MASKED
from distill.kinds import labelled_rows
from distill.kinds.kind import Encoder, Kind
from distill.kinds.scoring import Scoring, draw_halves, expected_calibration_error
from distill.losses import HardLabels

LABELS = ("start", "end")  # The two outputs of a model's head at every token.
SUFFIXES = (*sources.SQUAD, ".jsonl", ".jsonl.gz", ".parquet")
NULL_THRESHOLD = "null_threshold"  # That of all questions in `Scores.decoding`, and of each item in `Scores.columns`.
SMALLEST = 5  # Tokens of a window besides the shared ones: three special ones, the question's and a new one.


@dataclass(frozen=True)
class AnswerScores(Scoring):
    """The answers to the questions of all scored splits, joined over the windows of their contexts.

    Args:
        max_length: tokens of a window.
        doc_stride: tokens of the context that neighbouring windows share.
        limits: of spans, as `edge.answering.find_candidates` takes them.
        scored: the questions of all scored splits in turn; None before the data is read.
        may_be_unanswerable: whether a split has a question without an answer, so that the rules of SQuAD 2.0 hold.
    """

    names = ("f1", "exact_match")

    max_length: int
    doc_stride: int
    limits: Mapping[str, int]
    scored: Split | None = None
    may_be_unanswerable: bool = False

    def score(self, outputs: Outputs, items: Items) -> dict[str, Tensor]:
        """Returns logits and characters `[n, max_length]`, padded to the same width in every batch."""
        columns = [_from_first_token(items[f"{name}_characters"], items.batch) for name in LABELS]
        characters = torch.stack(columns, dim=1).flatten(0, 1)
        assert items.valid is not None
        characters = characters.masked_fill(~items.valid, NO_CLASS)
        logits = super().score(outputs, items)["logits"]
        padding = (0, self.max_length - logits.shape[-1])
        return {
            "logits": F.pad(logits, padding, value=MASKED),
            "characters": F.pad(characters, padding, value=NO_CLASS).int(),
            "question": items["question"][items.row],
        }

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """Returns the limits of spans and, if questions may have no answer, the threshold with the best F1."""
        decoding: dict[str, Any] = {**self.limits, NULL_THRESHOLD: None}
        if self.may_be_unanswerable:
            decoding[NULL_THRESHOLD] = answering.fit_threshold(*self._null_gains(self._find_answers(scores)))
        return decoding

    def _null_gains(self, answers: answering.Answers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns by how much no answer scores above each best span, and F1 with the span and with no answer, `[Q]`."""
        of_span, of_null = (self._score_answers(answers, is_null)[:, 1] for is_null in (False, True))
        return answers.null_difference, of_span, of_null

    def held_out(self, scores: Scores) -> Scores:
        """The scores with the threshold of each question, which has the best F1 on the other half of the questions."""
        if not self.may_be_unanswerable:
            return scores
        answers = self._find_answers(scores)
        halves, gains = draw_halves(answers.question), self._null_gains(answers)
        thresholds = np.zeros(len(halves))
        for half in (0, 1) if len(halves) > 1 else ():
            thresholds[halves == half] = answering.fit_threshold(*(values[halves != half] for values in gains))
        of_items = thresholds[np.searchsorted(answers.question, scores.columns["question"])]
        return scores.with_columns(**{NULL_THRESHOLD: of_items})

    def _find_answers(self, scores: Scores) -> answering.Answers:
        columns = scores.columns
        logits, characters, questions = (columns[name] for name in ("logits", "characters", "question"))
        return answering.find_candidates(logits, characters, questions[::2], **self.limits).best()

    def _threshold(self, scores: Scores) -> np.ndarray | float | None:
        """Returns the threshold of each question `[Q]` in ascending order, or that of all of them."""
        if NULL_THRESHOLD in scores.columns:
            first = np.unique(scores.columns["question"], return_index=True)[1]
            of_questions: np.ndarray = scores.columns[NULL_THRESHOLD][first]
            return of_questions
        threshold: float | None = scores.decoding.get(NULL_THRESHOLD, 0.0 if self.may_be_unanswerable else None)
        return threshold

    def _score_answers(self, answers: answering.Answers, is_null: np.ndarray | bool) -> np.ndarray:
        """Returns exact match and F1 of each question `[Q, 2]`; `is_null [Q]` are those that get no answer."""
        options = {"may_be_unanswerable": self.may_be_unanswerable}
        return np.array(
            [
                answering.score_answer(text, answering.normalize_references(references, **options), **options)
                for text, references in zip(
                    self._texts(answers, is_null), self._references(answers.question), strict=True
                )
            ]
        )

    def _texts(self, answers: answering.Answers, is_null: np.ndarray | bool) -> list[str | None]:
        """Returns the text of each answer, None for no answer."""
        assert self.scored is not None
        nulls = np.broadcast_to(is_null, len(answers.question)).tolist()
        places = zip(answers.question.tolist(), answers.start.tolist(), answers.end.tolist(), nulls, strict=True)
        contexts = self.scored["context"]
        return [None if null else contexts[number][start:end].strip() for number, start, end, null in places]

    def _references(self, numbers: np.ndarray) -> list[list[str]]:
        assert self.scored is not None
        return [[answer.text for answer in self.scored["answers"][number]] for number in numbers]

    def _question_scores(self, scores: Scores) -> tuple[answering.Answers, np.ndarray]:
        """Returns the answers, and exact match and F1 of each question `[Q, 2]`."""
        answers = self._find_answers(scores)
        return answers, self._score_answers(answers, answers.is_null(self._threshold(scores)))

    def metrics(self, scores: Scores) -> dict[str, float]:
        """F1 and exact match, and where only some questions have an answer, those of each of the two kinds."""
        answers, values = self._question_scores(scores)
        is_answered = np.array([bool(references) for references in self._references(answers.question)])
        return answering.average_scores(values, is_answered)

    def tabulate(self, scores: Scores, splits: LabelledData, *, examples: int) -> dict[str, list[Any]]:
        """The different correct answers to each question, None for none, and the predicted one."""
        answers, threshold = self._find_answers(scores), self._threshold(scores)
        return {
            "label": [list(dict.fromkeys(texts)) or None for texts in self._references(answers.question)],
            "prediction": self._texts(answers, answers.is_null(threshold)),
            "probability": answers.probability(threshold).tolist(),
        }

    def rows(self, scores: Scores) -> np.ndarray:
        """The question of each window, counted from the first one of the split."""
        return np.unique(scores.columns["question"], return_inverse=True)[1]

    def example_metric(self, scores: Scores) -> np.ndarray | None:
        """F1 of each question."""
        return np.asarray(self._question_scores(scores)[1][:, 1])

    def agreement(self, scores: Scores, reference: Scores) -> float:
        """Share of the questions to which both give the same span, or both no answer."""
        found, expected = self._find_answers(scores), self._find_answers(reference)
        nulls = [of.is_null(self._threshold(own)) for of, own in ((found, scores), (expected, reference))]
        same = (found.start == expected.start) & (found.end == expected.end)
        return float(np.where(nulls[0] | nulls[1], nulls[0] == nulls[1], same).mean())

    def calibration_error(self, scores: Scores) -> float | None:
        """The expected calibration error of the probabilities of the predictions, where an exact match is right."""
        answers, values = self._question_scores(scores)
        return expected_calibration_error(answers.probability(self._threshold(scores)), values[:, 0])

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """No answer to any question."""

        def predict(scores: Scores) -> Scores:
            columns = {name: column for name, column in scores.columns.items() if name != NULL_THRESHOLD}
            return replace(scores, columns=columns, decoding={**scores.decoding, NULL_THRESHOLD: -np.inf})

        return [Constant("always no answer", predict)]

    def describe(self, splits: LabelledData) -> dict[str, Any]:
        nothing = " or that it has none" if self.may_be_unanswerable else ""
        return {
            "labels": list(splits.labels),
            "doc_stride": self.doc_stride,
            "answer": "spans",
            "pipeline_tag": "question-answering",
            "prediction": f"Finds the answer to a question in a context{nothing}.",
            "example": "$'Who wrote it?\\tAlan Turing wrote it in 1950.'",
        }

    def summary(self, splits: LabelledData) -> str:
        without = {name: sum(not answers for answers in split["answers"]) for name, split in splits.splits.items()}
        counts = ", ".join(f"{number:,} in {name}" for name, number in without.items() if number)
        return (
            f"a span of the context; questions without an answer: {counts or 'none'}; windows share {self.doc_stride} "
            "tokens"
        )


class QuestionAnswering(Kind):
    """Answers to questions, each a span of its context or, as in SQuAD 2.0, none.

    A context is cut into windows that fit into the model. Each window has two items, the start and the end of the
    answer, whose classes are its tokens. The first token stands for no answer in this window.

    `example_id` is that of the window, because batches and cached teacher outputs are of windows. Evaluation joins the
    windows of a question by the column `question` of the scores.

    Args:
        data: a path as `data_dir`, a table, or split -> table; a table is a list of rows, a pandas frame, a
            `datasets.Dataset`, or a mapping of columns.
        data_dir: a directory with `train` and `dev`, each SQuAD's `.json`, `.jsonl` (also `.gz`) or `.parquet`, or one
            file of which `dev_fraction` is held out as dev.
        dev_fraction: share of the contexts of a single file or table that becomes dev, the same in every run.
        max_length: tokens of a window, the question among them.
        doc_stride: tokens of the context that neighbouring windows share.
        n_best: best starts of a window whose spans are compared, and spans that a probability is shared between.
        max_answer_length: tokens of an answer at most.
        unlabelled: more questions with contexts, which only the teacher answers: a file, a directory of files, a data
            set of the Hub, a list of pairs, or a table. Those of any split and repeated ones are left out.
        unlabelled_share: share of unlabelled windows in the examples of every optimizer step.
        name: names the task in records and directories.
        options: those of `labelled_rows.TableOptions`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("question_answering",)
    auto_class = "AutoModelForQuestionAnswering"
    decoder = "spans"
    pair = can_augment = has_contexts = True
    fewest_epochs = 10  # After 2 epochs of SQuAD a student is far from what it reaches.

    @check_arguments
    def __init__(
        self,
        *,
        name: str = "question_answering",
        max_length: labelled_rows.MaxLength = 384,
        doc_stride: Annotated[int, Field(ge=0)] = 128,
        n_best: labelled_rows.Amount = 20,
        max_answer_length: labelled_rows.Amount = 30,
        **options: Unpack[labelled_rows.TableOptions],
    ) -> None:
        if doc_stride > max_length - SMALLEST:
            raise OptionError(
                "doc_stride", str(doc_stride),
                f"at most {max_length - SMALLEST}, so that windows of {max_length} tokens have room for a question",
            )  # fmt: skip
        limits = {"n_best": n_best, "max_answer_length": max_answer_length}
        self._scoring = AnswerScores(max_length, doc_stride, limits)
        *text, label = questions.COLUMNS
        self.source = labelled_rows.table_source(
            name=name, text=tuple(text), label=(label,), further=questions.OPTIONAL_COLUMNS, suffixes=SUFFIXES,
            options=options,
        )  # fmt: skip
        check_memory(self.source, [(name,) for name in questions.COLUMNS], questions.ADVICE)
        pool = labelled_rows.pool_source(options, lambda pairs: UnlabelledText(pairs, tuple(text), (label,)).add_to)
        super().__init__(name, max_length, pool=pool)

    def read(self, cache_dir: Path) -> LabelledData:
        """Reads every split. If one of them has a question without an answer, the rules of SQuAD 2.0 hold for all.

        Raises:
            UserError: for a file or column that is missing, an empty text, and an answer that is not in its context.
        """
        # The digest is a part of a fine-tuned teacher's key, and windows and limits change its training and its F1.
        options = [self._scoring.doc_stride, self._scoring.limits]
        data = questions.read_questions(self.source, cache_dir, LABELS, options)
        scoring = replace(
            self._scoring,
            scored=functools.reduce(operator.add, data.scored().values()),
            may_be_unanswerable=any(not answers for split in data.splits.values() for answers in split["answers"]),
        )
        return self.pool.add_to(replace(data, scoring=scoring, terms={"hard": HardLabels()}))

    def encode_split(self, encoder: Encoder, data: LabelledData, name: str, split: Split) -> TokenizedExamples:
        """Tokenizes a split into windows; `Examples` are windows.

        Raises:
            UserError: for a tokenizer whose tokens stand for other characters than it tells, and long questions.
        """
        if name == "train":
            check_offsets(encoder.tokenizer, dict.fromkeys(split["context"]))
        tokens = tokenize_windows(
            split, encoder.tokenizer, max_length=self.max_length, doc_stride=self._scoring.doc_stride,
            cache_dir=encoder.cache_dir, name=name,
        )  # fmt: skip
        assert tokens.rows is not None
        answers = questions.find_spans(split)
        starts, ends = label_windows(tokens, answers)
        answered = int((answers[:, 0] >= 0).sum())
        found = len(np.unique(tokens.rows[starts > 0]))
        if found < answered:
            print_notice(
                f"{name}: the answers to {answered - found:,} of {answered:,} questions have no token, or are longer "
                "than what neighbouring windows share, so that no window holds the whole of them: raise task.doc_stride"
            )
        scored, question = list(data.scored()), np.full(len(tokens), NO_ANSWER)
        if name in scored:  # Its questions are counted among those of all scored splits.
            question = tokens.rows + sum(len(data.splits[other]) for other in scored[: scored.index(name)])
        return TokenizedExamples(
            tokens, encoder.tokenizer,
            per_example={"start_positions": starts, "end_positions": ends, "question": question},
            items_per_example=2.0,
            classes_per_item=float((tokens.columns["start_characters"] >= NO_ANSWER).sum() / len(tokens)),
        )  # fmt: skip

    def create_unlabelled(self, pool: Split, data: LabelledData) -> Split:
        return questions.question_split(pool.texts, pool.pairs or [])

    def select(self, batch: Batch) -> Items:
        """The start and the end of the answer in each window."""
        labels = torch.stack([batch["start_positions"], batch["end_positions"]], dim=1).flatten()
        row = torch.arange(len(labels), device=labels.device) // 2
        valid = _from_first_token(batch["start_characters"], batch) >= NO_ANSWER
        return Items(batch=batch, row=row, labels=labels, labelled=labels != IGNORED, valid=valid[row])

    def with_max_length(self, max_length: int) -> Self:
        raise UserError(
            "teacher.max_length: a window of answers is as long for the teacher as for the student: leave it out"
        )

    def match(self, student: TokenizedExamples, teacher: TokenizedExamples) -> Match:
        """Finds the teacher's window of the same question that shows most of the context of each window."""
        assert student.rows is not None
        assert teacher.rows is not None
        shown, known = _find_context(student), _find_context(teacher)
        first, last = (np.searchsorted(teacher.rows, student.rows, side=side) for side in ("left", "right"))
        best, most = first.copy(), np.full(len(student), -1)
        for step in range(int((last - first).max())):
            window = np.minimum(first + step, last - 1)
            common = np.minimum(shown[:, 1], known[window, 1]) - np.maximum(shown[:, 0], known[window, 0])
            best, most = np.where(common > most, window, best), np.maximum(common, most)
        return Match(rows=best)

    def align(self, outputs: Outputs, own: Items, items: Items) -> Outputs:
        """Returns the logits of the student's tokens by the characters that answers start and end at.

        That of a token is the logarithm of the sum of the exponentials of those that start, or end, at one of its
        characters. Those of characters that the student's window does not show are counted as no answer. A token that
        no answer of the teacher can start, or end, at has the teacher's smallest one.
        """
        assert outputs.logits is not None
        assert own.valid is not None
        assert items.valid is not None
        starts, ends = (_list_characters(items, name) for name in LABELS)
        ends[:, 0] = 0  # No answer, from -1 on.
        own_starts, own_ends = (_list_characters(own, name) for name in LABELS)
        at_end = (torch.arange(len(own), device=own_starts.device) % len(LABELS) == 1).unsqueeze(-1)
        character = torch.where(at_end & (own_starts > NO_ANSWER), own_ends - 1, own_starts)  # [n, L of the teacher]
        holds = (starts.unsqueeze(1) <= character.unsqueeze(2)) & (character.unsqueeze(2) < ends.unsqueeze(1))
        order = torch.arange(1, starts.shape[1] + 1, device=starts.device)  # Several tokens may stand for a character.
        order = torch.where(at_end, order, order.flip(0)).unsqueeze(1)  # The first of them starts, and the last ends.
        place = (order * (holds & items.valid.unsqueeze(1))).argmax(dim=2)  # No answer without one.
        logits = outputs.logits.float()
        lowest = logits.masked_fill(~own.valid, torch.inf).amin(dim=1, keepdim=True)
        known = logits.masked_fill(~own.valid, -torch.inf)
        largest = lowest.expand(len(items), starts.shape[1]).scatter_reduce(1, place, known, "amax", include_self=True)
        sums = torch.zeros_like(largest).scatter_add(1, place, (known - largest.gather(1, place)).exp())
        return Outputs(logits=largest + sums.clamp(min=torch.finfo(sums.dtype).tiny).log().where(sums > 0, 0.0))

    def select_logits(self, output: ModelOutput, batch: Batch, items: Items) -> Tensor:
        logits = [_from_first_token(output.logits[..., side], batch) for side in range(2)]
        return torch.stack(logits, dim=1).flatten(0, 1)


def _find_context(windows: TokenizedExamples) -> np.ndarray:
    """Returns the first and the last (exclusive) character of the context that each window shows, `[windows, 2]`."""
    starts, ends, window = (*map(windows.column, CHARACTER_COLUMNS), windows.example_of_tokens())
    shown = starts > NO_ANSWER
    found = np.zeros((len(windows), 2), dtype=np.int64)
    found[:, 0] = np.iinfo(np.int64).max
    np.minimum.at(found[:, 0], window[shown], starts[shown])
    np.maximum.at(found[:, 1], window[shown], ends[shown])
    return found


def _list_characters(items: Items, name: str) -> Tensor:
    """Returns the first or the last (exclusive) character of the tokens of each item, `[n, L]`."""
    return _from_first_token(items[f"{name}_characters"], items.batch)[items.row]


def _from_first_token(values: Tensor, batch: Batch) -> Tensor:
    """Returns values `[B, L]` of the tokens with those of the first token of each text at 0, whatever the padding."""
    first = batch["attention_mask"].argmax(dim=1, keepdim=True)
    position = torch.arange(values.shape[1], device=values.device) + first
    return values.gather(1, position.clamp(max=values.shape[1] - 1))
