"""Tests that bad input is reported in one line, with exit code 2, before anything is trained.

The command runs in this process, so that its imports run once.
"""

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distill.builtin.teachers.vocabulary import train_word_pieces
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from distill import __main__ as command_line
from distill.losses import Term
from distill.training import fitting
from tests.conftest import sentences, toy_bert
from tests.jobs.sweeps import find_files


class AttentionTerm(Term):
    """Reads an output that a model with fused attention does not have."""

    needs = frozenset({"attentions"})

    def forward(self, student: Any, teacher: Any, items: Any) -> tuple[Tensor, Tensor]:
        raise AssertionError("the missing output must be reported before training")


class UserFiles:
    """A user's valid files, of which a test damages one."""

    def __init__(self, root: Path, encoder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self.root, self.encoder, self.tokenizer = root, encoder, tokenizer
        self.data = root / "data"
        self.data.mkdir()
        self.write("train", sentences(32))
        self.write("dev", sentences(8))

    def write(self, split: str, rows: list[tuple[Any, ...]], header: str = "sentence\tlabel") -> None:
        lines = [header, *("\t".join(map(str, row)) for row in rows)]
        (self.data / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def classifier(self, labels: int) -> Path:
        """Saves a teacher with a head for this number of labels."""
        model = toy_bert(len(self.tokenizer))
        model.config.num_labels = labels
        type(model)(model.config).save_pretrained(self.root / "classifier")
        self.tokenizer.save_pretrained(self.root / "classifier")
        return self.root / "classifier"

    def narrow_encoder(self) -> Path:
        """Saves an encoder without a head, 16 wide."""
        toy_bert(len(self.tokenizer), width=16).bert.save_pretrained(self.root / "narrow")
        self.tokenizer.save_pretrained(self.root / "narrow")
        return self.root / "narrow"

    def shallow_encoder(self) -> Path:
        """Saves an encoder of two layers without a head."""
        toy_bert(len(self.tokenizer), layers=2).bert.save_pretrained(self.root / "shallow")
        self.tokenizer.save_pretrained(self.root / "shallow")
        return self.root / "shallow"

    def other_student(self) -> Path:
        """Saves a model with a vocabulary of the same size and other tokens."""
        other = train_word_pieces([text[::-1] for text, _ in sentences(64)], len(self.tokenizer))
        toy_bert(max(len(other), len(self.tokenizer))).save_pretrained(self.root / "student")
        other.save_pretrained(self.root / "student")
        return self.root / "student"


@pytest.fixture
def user_files(tmp_path: Path, encoder_dir: Path, tokenizer: PreTrainedTokenizerBase) -> UserFiles:
    return UserFiles(tmp_path, encoder_dir, tokenizer)


def _pickled_weights(user_files: UserFiles) -> list[str]:
    directory = user_files.root / "pickle"
    directory.mkdir()
    (directory / "config.json").write_text((user_files.encoder / "config.json").read_text())
    (directory / "pytorch_model.bin").write_bytes(b"anything")
    return [f"teacher.path={directory}"]


def _no_weights(user_files: UserFiles) -> list[str]:
    options = _pickled_weights(user_files)
    (user_files.root / "pickle" / "pytorch_model.bin").unlink()
    return options


def _no_tokenizer(user_files: UserFiles) -> list[str]:
    toy_bert(len(user_files.tokenizer)).save_pretrained(user_files.root / "bare")
    return [f"teacher.path={user_files.root / 'bare'}"]


def _damaged(user_files: UserFiles) -> list[str]:
    directory = user_files.classifier(2)
    (directory / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    return [f"teacher.path={directory}"]


def _spoiled(split: str, content: bytes, suffix: str = "tsv") -> Callable[[UserFiles], list[str]]:
    def spoil(user_files: UserFiles) -> list[str]:
        (user_files.data / f"{split}.tsv").unlink()
        (user_files.data / f"{split}.{suffix}").write_bytes(content)
        return []

    return spoil


def _options(*options: str) -> Callable[[UserFiles], list[str]]:
    return lambda user_files: list(options)


def _all(*mistakes: Callable[[UserFiles], list[str]]) -> Callable[[UserFiles], list[str]]:
    return lambda user_files: [option for mistake in mistakes for option in mistake(user_files)]


def _another_dev(user_files: UserFiles) -> list[str]:
    (user_files.data / "dev.csv").write_text("sentence,label\na,1\n")
    return []


def _blocking_file(user_files: UserFiles) -> Path:
    (user_files.root / "file").write_text("in the way")
    return user_files.root / "file"


def _text_file(user_files: UserFiles) -> Path:
    (user_files.root / "plain.txt").write_text("a text")
    return user_files.root / "plain.txt"


def _empty_file(user_files: UserFiles) -> Path:
    (user_files.root / "empty.txt").write_bytes(b"")
    return user_files.root / "empty.txt"


def _tagged(*options: str, **files: str) -> Callable[[UserFiles], list[str]]:
    """Writes valid files of tagged words, and in their place those that are given: `dev_jsonl` is dev.jsonl."""

    def write(user_files: UserFiles) -> list[str]:
        given = {name.partition("_")[0]: (name.replace("_", "."), content) for name, content in files.items()}
        for split in ("train", "dev"):
            name, content = given.get(split, (f"{split}.conll", TAGGED))
            (user_files.data / f"{split}.tsv").unlink()
            (user_files.data / name).write_text(content)
        return ["task=token_classification", *options]

    return write


def _sentence_classifier(user_files: UserFiles) -> list[str]:
    """Saves a classifier of sentences whose labels are the tags."""
    model = toy_bert(len(user_files.tokenizer))
    model.config.id2label = {0: "O", 1: "B-city", 2: "I-city"}
    model.config.label2id = {"O": 0, "B-city": 1, "I-city": 2}
    type(model)(model.config).save_pretrained(user_files.root / "classifier")
    user_files.tokenizer.save_pretrained(user_files.root / "classifier")
    return [f"teacher.path={user_files.root / 'classifier'}", "teacher.finetune=false"]


def _two_files_of_tags(user_files: UserFiles) -> list[str]:
    (user_files.data / "dev.txt").write_text(TAGGED)
    return []


TAGGED = "fly O\nto O\nnew B-city\nyork I-city\n\nnow O\n"


def _questions(user_files: UserFiles, **changes: Any) -> list[str]:
    """Writes questions, the first one with these values; None leaves one out."""
    directory = user_files.root / "questions"
    directory.mkdir()
    row = {"question": "who", "context": "they made it", "answers": [{"text": "they", "answer_start": 0}]}
    changed = {name: value for name, value in {**row, **changes}.items() if value is not None}
    for split, rows in (("train", [changed, row] if "context" in changed else [changed]), ("dev", [row])):
        (directory / f"{split}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return ["task=squad", f"task.data_dir={directory}", "task.doc_stride=8"]


def _choices(
    *options: str, answers: tuple[object, ...] = (0, 1), **changes: object
) -> Callable[[UserFiles], list[str]]:
    """Replaces the data by questions with two choices, of which the last one is changed."""

    def write(user_files: UserFiles) -> list[str]:
        rows: list[dict[str, object]] = [
            {"question": "which", "choices": ["one", "two"], "answer": answer} for answer in answers * 4
        ]
        rows[-1] = rows[-1] | changes
        for split in ("train", "dev"):
            (user_files.data / f"{split}.tsv").unlink()
            lines = "\n".join(map(json.dumps, rows))
            (user_files.data / f"{split}.jsonl").write_text(lines)
        return ["task=multiple_choice", *options]

    return write


def _vectors(
    *options: str, train: str = "sentence1,sentence2,score\na b,a,1\nb,b a,2\n", dev: str = ""
) -> Callable[[UserFiles], list[str]]:
    """Replaces the data by pairs with a score, and the default objective by that of vectors."""

    def write(user_files: UserFiles) -> list[str]:
        for split, content in (("train", train), ("dev", dev or "sentence1,sentence2,score\na,a b,1\nb,a,2\n")):
            (user_files.data / f"{split}.tsv").unlink()
            (user_files.data / f"{split}.csv").write_text(content)
        is_given = any(option.startswith("objective=") for option in options)
        return ["task=embedding", *([] if is_given else ["objective=embedding"]), *options]

    return write


def _retrieval(*options: str, judgement: str = "q1\td1\t1") -> Callable[[UserFiles], list[str]]:
    """Writes a retrieval set of one document and two queries in the place of the data."""

    def write(user_files: UserFiles) -> list[str]:
        directory = user_files.data / "set"
        (directory / "qrels").mkdir(parents=True)
        (directory / "corpus.jsonl").write_text('{"_id": "d1", "title": "a", "text": "b"}\n')
        (directory / "queries.jsonl").write_text('{"_id": "q1", "text": "a"}\n{"_id": "q2", "text": "b"}\n')
        (directory / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\nq2\td1\t1\n{judgement}\n")
        return ["task=retrieval", f"task.data_dir={directory}", "objective=embedding", *options]

    return write


REGRESSION = ("task=regression", "task.text=[sentence]")
WEIGHTS = [f"objective.terms.{name}.weight=0" for name in ("soft", "hard", "cosine")]
ATTENTION = "+objective.terms.attention={_target_: tests.jobs.test_mistakes.AttentionTerm}"
# Mistake -> a function that makes it and returns its options, and the expected part of the message.
MISTAKES: dict[str, tuple[Callable[[UserFiles], list[str]], str]] = {
    "a missing data directory": (_options("task.data_dir=nowhere"), "task.data_dir=nowhere does not exist"),
    "no dev file": (_spoiled("dev", b"", "txt"), "has no dev or validation or valid file (found dev.txt, train.tsv)"),
    "an empty file": (_spoiled("dev", b""), "dev.tsv is empty, expected a header and examples"),
    "a file with only a header": (_spoiled("train", b"sentence\tlabel\n"), "train.tsv has a header and no examples"),
    "a missing text column": (_options("task.text=[review]"), "has no column review: it has sentence, label"),
    "a misnamed label column": (_options("task.label=stars"), "has no column stars: it has sentence, label"),
    "a label that is missing in train": (
        _spoiled("dev", b"sentence\tlabel\na\t7\n"),
        "dev.tsv, line 2: label '7' is unknown",
    ),
    "a word as a regression label": (
        lambda p: [*REGRESSION, *_spoiled("train", b"sentence\tlabel\na\t1\nb\tgood\n")(p)],
        "train.tsv: 1 of 2 rows has a label that is no number, 'good' (line 3): for classes take",
    ),
    "one class only": (_spoiled("train", b"sentence\tlabel\na\t1\nb\t1\n"), "train.tsv has one class only (1)"),
    "an empty text": (
        _all(_spoiled("dev", b"sentence\tlabel\na\t1\n \t0\n"), _options("task.missing=error")),
        "dev.tsv: 1 of 2 rows has no text (line 3): set task.missing=drop to leave them out",
    ),
    "an unknown way with empty labels": (
        _options("task.missing=keep"),
        "got task.missing=keep, expected one of auto, error, drop, unlabelled",
    ),
    "a text that is a number": (
        _spoiled("dev", b'{"sentence": 3, "label": 1}\n', "jsonl"),
        "dev.jsonl: 1 of 1 rows has no text but 3 or the like in column sentence (line 1): expected text",
    ),
    "broken UTF-8": (_spoiled("dev", b"sentence\tlabel\ncaf\xe9\t1\n"), "dev.tsv, line 2 is not UTF-8 (byte 0xe9)"),
    "a row with too many fields": (
        _spoiled("train", b"sentence\tlabel\na\t1\nb\t0\tx\n"),
        "train.tsv, line 3 has 3 fields, its header 2: expected as many in every row",
    ),
    "a row with too few fields": (
        _spoiled("train", b"sentence\tlabel\na\t1\nb\nc\t0\n"),
        "train.tsv, line 3 has 1 field, its header 2",
    ),
    "a NUL byte": (_spoiled("dev", b"sentence\tlabel\na\0\t1\n"), "dev.tsv, line 2 has a NUL byte"),
    "UTF-16": (
        _spoiled("dev", "sentence\tlabel\na\t1\n".encode("utf-16")),
        "dev.tsv is in UTF-16 or UTF-32, expected UTF-8: convert it with iconv",
    ),
    "a lone carriage return": (
        _spoiled("dev", b"sentence\tlabel\na\rb\t1\n"),
        "dev.tsv, line 2 has a carriage return (\\r) without a line feed",
    ),
    "a doubled column": (
        _spoiled("dev", b"sentence\tlabel\tlabel\na\t1\t0\n"),
        "dev.tsv has the column label twice, expected different names",
    ),
    "columns that differ in white space": (
        _spoiled("dev", b"sentence\tlabel\tlabel \na\t1\t0\n"),
        "dev.tsv has the columns 'label' and 'label ', expected different names",
    ),
    "a doubled key": (
        _spoiled("dev", b'{"sentence": "a", "label": 1, "label": 0}\n', "jsonl"),
        "dev.jsonl, line 1 has the key 'label' twice",
    ),
    "a quote that is never closed": (
        _spoiled("dev", b'sentence,label\n"a,1\nb,0\n', "csv"),
        "dev.csv, line 2 opens a quote that is never closed",
    ),
    "text behind a quote": (
        _spoiled("dev", b'sentence,label\n"a" b,1\n', "csv"),
        "dev.csv, line 2: ',' expected after '\"'",
    ),
    "a JSON array": (
        _spoiled("dev", b'[{"sentence": "a", "label": 1}]\n', "jsonl"),
        "dev.jsonl, line 1 is [{'label': 1, 'sentence': 'a'}], expected an object",
    ),
    "two files for dev": (_another_dev, "has dev.tsv and dev.csv, expected one file for dev: move the others away"),
    "white space after a label": (
        _spoiled("dev", b"sentence\tlabel\na\t1\nb\t1 \n"),
        "dev.tsv, line 3: label '1 ' looks like '1' of",
    ),
    "-1 as a label": (
        _spoiled("dev", b"sentence\tlabel\na\t1\nb\t-1\n"),
        "dev.tsv, line 3: label -1 often marks an example without a label: remove these rows, or name the classes",
    ),
    "names and indices as labels": (
        _all(_options("task=sst2"), _spoiled("dev", b"sentence\tlabel\na\tpositive\n")),
        "train.tsv, line 2: label 0 is an index and positive of ",
    ),
    "a number and a text as labels": (
        _spoiled("dev", b'{"sentence": "a", "label": 1}\n{"sentence": "b", "label": "0"}\n', "jsonl"),
        "dev.jsonl: of 2 rows 1 has a number as label, 1 (line 1) and 1 has text as label, '0' (line 2): expected",
    ),
    "classes without a positive one": (
        _all(
            _spoiled("train", b"sentence\tlabel\na\tham\nb\tspam\n"),
            _spoiled("dev", b"sentence\tlabel\nc\tham\n"),
            _options("task.metrics=[f1]"),
        ),
        "F1 is that of one of the two classes ham and spam: set task.positive=ham or task.positive=spam",
    ),
    "an unknown positive class": (_options("task.positive=2"), "got task.positive=2, expected 0 or 1"),
    "too few class weights": (
        _options("task.class_weights=[1,2,3]"),
        "got task.class_weights=[1.0, 2.0, 3.0], expected 2 numbers, one for each of 0, 1",
    ),
    "a negative class weight": (
        _options("task.class_weights=[1,-2]"),
        "got task.class_weights=[1, -2], expected balanced, or a list of numbers of at least 0",
    ),
    "an infinite regression label": (
        _all(_options(*REGRESSION), _spoiled("train", b"sentence\tlabel\na\t1\nb\tinf\n")),
        "train.tsv: 1 of 2 rows has a label that is no number, 'inf' (line 3)",
    ),
    "a pair without text": (
        _all(
            _options("task=classification", "task.text=[one,two]", "task.missing=error"),
            _spoiled("train", b"one\ttwo\tlabel\na\tb\t1\n\t \t0\n"),
            _spoiled("dev", b"one\ttwo\tlabel\na\t\t1\n"),
        ),
        "train.tsv: 1 of 2 rows has no text in either column of the pair (line 3): set task.missing=drop",
    ),
    "one class where the task names two": (
        lambda p: ["task=sst2", *_spoiled("train", b"sentence\tlabel\na\t1\nb\t1\n")(p)],
        "train.tsv has one class only (1)",
    ),
    "a truncated file": (
        _spoiled("dev", gzip.compress(b"sentence\tlabel\na\t1\n" * 50)[:-20], "tsv.gz"),
        "dev.tsv.gz cannot be read: ",
    ),
    "an unknown file type": (lambda p: [f"task.data_dir={_blocking_file(p)}"], "is of no known kind, expected one of"),
    "a type of tags that train lacks": (
        _tagged(dev_conll="fly O\n\nto O\nyork B-town\n"),
        "dev.conll, line 3: tag B-town is of a type that train lacks, expected one of city",
    ),
    "words and tags of different number": (
        _tagged(dev_jsonl='{"tokens": ["new", "york"], "tags": ["B-city"]}\n'),
        "dev.jsonl, line 1: tokens has 2 entries and tags 1, expected a tag for each word",
    ),
    "a sentence without a word": (
        _tagged(dev_jsonl='{"tokens": [], "tags": []}\n'),
        "dev.jsonl, line 1: column tokens is [], expected words: remove the sentence",
    ),
    "a missing column of words": (
        _tagged(train_jsonl='{"words": ["a"], "tags": ["O"]}\n'),
        "train.jsonl has no column tokens: it has words, tags; name yours with task.tokens=... and task.tags=...",
    ),
    "tags of another scheme": (
        _tagged(train_conll="fly VB\nto TO\n"),
        "train.conll, line 1: tag 'VB' is of no known scheme, expected O, B-TYPE, I-TYPE, E-TYPE or S-TYPE",
    ),
    "two files of tags for dev": (
        _all(_tagged(), _two_files_of_tags),
        "has dev.conll and dev.txt, expected one file for dev: move the others away",
    ),
    "a sentence classifier as a teacher of tags": (
        _all(_tagged(), _sentence_classifier),
        "its head is that of a BertForSequenceClassification, and the task needs a BertForTokenClassification; to hav",
    ),
    "a teacher with other tags": (
        lambda p: [*_tagged()(p), f"teacher.path={p.classifier(5)}", "teacher.finetune=false"],
        "does not fit task token_classification: it has 5 labels and the task 3",
    ),
    "unlabelled text for tags without words": (
        _all(
            _tagged(),
            lambda p: [f"task.unlabelled={p.data / 'other.jsonl'}"],
            lambda p: (p.data / "other.jsonl").write_text('{"review": "a"}\n') and [],
        ),
        "other.jsonl has no column tokens: it has review; texts without labels need the task's text columns, "
        "task.tokens=tokens",
    ),
    "a missing teacher directory": (_options("teacher.path=nowhere"), "teacher.path=nowhere is no directory"),
    "a teacher without weights": (_no_weights, "holds no weights: save the model there again as safetensors"),
    "a teacher with a pickle": (_pickled_weights, "holds only pytorch_model.bin, which can run code when read"),
    "a teacher with other labels": (
        lambda p: [f"teacher.path={p.classifier(3)}", "teacher.finetune=false"],
        "does not fit task classification: it has 3 labels and the task 2",
    ),
    "a student with another vocabulary": (
        lambda p: ["+student=pretrained", f"student.path={p.other_student()}"],
        "teacher and student read different tokens: ",
    ),
    "a teacher without a tokenizer": (_no_tokenizer, "holds no tokenizer: call tokenizer.save_pretrained"),
    "a teacher whose weights are damaged": (_damaged, "cannot be loaded: "),
    "a missing student directory": (
        _options("+student=pretrained", "student.path=nowhere"),
        "student.path=nowhere is no directory",
    ),
    "a layer out of range": (_options("student.layers=[0,9]"), "student.layers has 9, expected indices from 0 to 3"),
    "a repeated layer": (_options("student.layers=[0,0]"), "student.layers=[0, 0] repeats a layer"),
    "a number as student.layers": (
        _options("student.layers=3"),
        "student.layers=3 is one number: student.depth=3 copies this many layers",
    ),
    "a fractional depth": (_options("student.depth=1.5"), "student.depth=1.5 is no whole number"),
    "a window that has no halves": (
        _options("student.attention=local", "student.window=7"),
        "got student.window=7, expected an even number",
    ),
    "relations of local attention": (
        _options("student.attention=local", "student.window=8", "objective=minilmv2"),
        "objective minilmv2: the term minilmv2 compares the attention of all pairs of tokens, and the student",
    ),
    "more heads than there are": (
        _options("student.heads=99"),
        "got student.heads=99, expected a whole number from 1 to",
    ),
    "a fractional number of heads": (
        _options("student.heads=1.5"),
        "got student.heads=1.5, expected a whole number from 1 to",
    ),
    "heads of another number of layers": (
        _options("student.depth=2", "student.heads=[1,1,1]"),
        "student.heads=[1, 1, 1] has 3 numbers, expected one for each of 2 layers",
    ),
    "a rank above the width": (
        _options("student.embedding_dim=1000"),
        "got student.embedding_dim=1000, expected a whole number from 1 to",
    ),
    "an unknown pruning": (_options("student.prune=once"), "student.prune=once is unknown, expected iterative or null"),
    "a pruning of nothing": (
        _options("student.prune=iterative", "student.depth=4"),
        "student.prune=iterative removes nothing: give student.heads, student.ffn or fewer layers",
    ),
    "a search for layers that are given": (
        _options("student.init=search", "student.layers=[0,1]"),
        "student.init=search chooses the layers, and student.layers=[0, 1] gives them: leave out one",
    ),
    "widths without a limit": (
        _options("budget.widths=true"),
        "budget.widths chooses a width within budget.mb or budget.ms: give one of them, or leave it out",
    ),
    "an empty list of layers": (_options("student.layers=[]"), "student.layers=[] keeps no layer"),
    "a temperature of 0": (
        _options("objective.terms.soft.temperature=0"),
        "got temperature 0, expected a number above 0",
    ),
    "a negative weight": (
        _options("objective.terms.hard.weight=-1"),
        "got weight -1.0 for HardLabels, expected 0 or more",
    ),
    "no weight above 0": (_options(*WEIGHTS), "objective distilbert has nothing to learn from (soft, hard, cosine)"),
    "a batch size of 0": (_options("trainer.batch_size=0"), "got trainer.batch_size=0, expected a whole number of"),
    "a teacher's batch size of 0": (
        _options("teacher.finetune.batch_size=0"),
        "error: got teacher.finetune.batch_size=0, expected a whole number of at least 1",
    ),
    "a term that needs attentions": (_options(ATTENTION), "the term attention needs attentions, which the teacher"),
    "a layer map of the wrong length": (
        _options("objective=tinybert_layers", "objective.terms.hidden.layers=[4]"),
        "objective tinybert_layers: the term hidden got layers=[4], expected a list of 2 of the teacher's layers 1 to "
        "4, one for each layer of the student; or uniform or last",
    ),
    "a layer map beyond the teacher": (
        _options("objective=pkd", "objective.terms.pkd.layers=[5]"),
        "the term pkd got layers=[5], expected a list of 1 of the teacher's layers 1 to 4, one for each layer of the "
        "student except the last; or uniform or last",
    ),
    "a layer of 0": (
        _options("objective=pkd", "objective.terms.pkd.layers=[0]"),
        "layers=[0], expected uniform, last or a list of items, each a whole number of at least 1",
    ),
    "an unknown layer map": (
        _options("objective=tinybert_layers", "objective.terms.hidden.layers=first"),
        "layers=first, expected uniform, last or a list of items",
    ),
    "patient distillation of one layer": (
        _options("objective=pkd", "student.depth=1"),
        "the term pkd leaves out the last layer, and the student has no other: set last_layer=true",
    ),
    "relation heads that do not divide the width": (
        _options("objective=minilmv2"),
        "objective minilmv2: the term minilmv2 got relation_heads=48, expected a divisor of the attention widths 32 "
        "(teacher) and 32 (student): 1, 2, 4, 8, 16, 32",
    ),
    "a teacher layer beyond the last": (
        _options(
            "objective=minilmv2",
            "objective.terms.minilmv2.relation_heads=8",
            "objective.terms.minilmv2.teacher_layer=5",
        ),
        "got teacher_layer=5, expected one of the teacher's layers 1 to 4, or null for the last",
    ),
    "attention of a BiLSTM": (
        _options("objective=minilm", "+student=bilstm"),
        "objective minilm: the term minilm needs attention vectors, which the student (BilstmForSequence",
    ),
    "an even width of a CNN for tags": (
        _all(_tagged(), _options("+student=cnn", "student.tag_width=4")),
        "got student.tag_width=4, expected an odd number, because a tag belongs to the token in the middle: take 5",
    ),
    "a dilation of 0": (
        _all(_tagged(), _options("+student=cnn", "student.dilations=[1,0]")),
        "got student.dilations=[1, 0], expected a list of whole numbers of at least 1",
    ),
    "windows wider than the texts": (
        _options("+student=cnn", "student.widths=[3,40]", "student.hidden_dim=8", "task.max_length=32"),
        "got student.widths=[3, 40], expected at most task.max_length=32, the tokens of the longest text: take",
    ),
    "embeddings wider than the teacher's": (
        _options("+student=cnn", "student.embedding_dim=5000"),
        "got student.embedding_dim=5000, expected at most 32, the width of the teacher's embeddings",
    ),
    "hidden states of a CNN": (
        _options("objective=pkd", "+student=cnn"),
        "objective pkd: the term pkd needs hidden states, which the student (CnnForSequenceClassification) does not",
    ),
    "hidden states of a BiLSTM": (
        _options("objective=pkd", "+student=bilstm"),
        "objective pkd: the term pkd needs hidden states of the embeddings and of every layer in one width, which the "
        "student (BilstmForSequence",
    ),
    "attention of sharded layers": (
        _options("objective=minilm", "trainer.strategy=fsdp", "trainer.devices=2", "trainer.accelerator=cpu"),
        "the term minilm reads attention vectors inside of sharded layers: set trainer.strategy=ddp",
    ),
    "attention vectors in the cache": (
        _options("objective=minilm", "teacher.cache.enabled=true"),
        "minilm reads attention vectors, which cannot be cached; use auto or false",
    ),
    "classes of a regression": (
        lambda p: [*REGRESSION, "objective=dkd"],
        "objective dkd has the term dkd, which cannot learn task regression (regression)",
    ),
    "a negative alpha": (
        _options("objective=dkd", "objective.terms.dkd.alpha=-1"),
        "alpha=-1, expected a number of at least 0",
    ),
    "a term for other tasks": (
        _options("objective=language_model"),
        "objective language_model has the term mlm, which cannot learn task classification (classification)",
    ),
    "a classification term for a regression": (
        lambda p: [*REGRESSION, "objective=pseudo_label"],
        "has the term pseudo_label, which cannot learn task regression (regression)",
    ),
    "an output directory in a file": (lambda p: [f"output_dir={_blocking_file(p)}/runs"], "cannot be created"),
    "a cache directory in a file": (lambda p: [f"cache_dir={_blocking_file(p)}/cache"], "cannot be created"),
    "a max_length above the teacher's": (_options("task.max_length=100"), "but the teacher reads 80 tokens at most"),
    "a metric of another task": (
        _options("task.metrics=[pearson]"),
        "got task.metrics=[pearson], expected a list of some of accuracy, f1",
    ),
    "labels that are booleans": (
        _options("task.labels=[true,false]"),
        "got task.labels=[true, false], expected at least two names, quoted if",
    ),
    "a share of abstentions of 1": (
        _options("export.abstain=1"),
        "got export.abstain=1, expected a number above 0 and below 1 or null",
    ),
    "abstentions of a regression": (
        _options(*REGRESSION, "export.abstain=0.1"),
        "got export.abstain=0.1, expected null, because task regression (regression) has no classes of whole",
    ),
    "abstentions of less than an example": (
        _options("export.abstain=0.1"),
        "got export.abstain=0.1, which is less than one of the 8 examples of dev: set it to at least 0.125,",
    ),
    "a budget of 0": (_options("budget.mb=0"), "got budget.mb=0, expected a number above 0 or null"),
    "a budget that no student is within": (
        lambda p: ["+student=pretrained", f"student.path={p.classifier(2)}", "budget.mb=0.001", "budget.ms=1000"],
        "no student pretrained is within budget.mb=0.001 budget.ms=1000: it has 0.",
    ),
    "a budget and a depth": (
        _options("student.depth=2", "budget.ms=1"),
        "got student.depth=2 and a budget, which chooses the depth: leave out student.depth or budget",
    ),
    "a budget and a list of layers": (
        _options("student.layers=[0,2]", "budget.ms=1"),
        "budget.ms=1 tries every depth of student distilbert: student.depth=4 and student.layers=[0, 2] both choose",
    ),
    "a budget without an export": (
        _options("export.enabled=false", "budget.mb=20"),
        "budget.mb=20 is for exported students, and export.enabled=false: leave one of them out",
    ),
    "a benchmark length of 0": (_options("benchmark.lengths=[0]"), "got benchmark.lengths=[0], expected whole numbers"),
    "cut texts without an export": (
        _options("export.enabled=false", "benchmark.max_lengths=[8]"),
        "benchmark.max_lengths=[8] is for exported students, and export.enabled=false: leave one of them out",
    ),
    "a pass over dev that is not timed": (
        _options("benchmark.enabled=false", "benchmark.dev_pass=true"),
        "benchmark.dev_pass=true is timed, and benchmark.enabled=false: leave one of them out",
    ),
    "a pass over dev of choices": (
        _options("task=swag", "benchmark.dev_pass=true"),
        "benchmark.dev_pass=true is for tasks whose examples are texts, and task=swag is multiple_choice: leave it out",
    ),
    "texts that are cut to more than is read": (
        _options("task.max_length=16", "benchmark.max_lengths=[8,16]"),
        "got benchmark.max_lengths=[8, 16], expected less than task.max_length=16, which is scored anyway: leave 16 "
        "out, or raise task.max_length",
    ),
    "a moving average that never moves": (
        _options("trainer.ema=1"),
        "got trainer.ema=1, expected a number of at least 0 and below 1 or auto",
    ),
    "a moving average of sharded weights": (
        _options("trainer=fsdp", "trainer.ema=0.9"),
        "got trainer.ema=0.9, expected 0 with strategy=fsdp because the average is not sharded",
    ),
    "a soup of nothing": (
        _options("trainer.soup=0"),
        "got trainer.soup=0, expected a whole number of at least 1 or auto",
    ),
    "no patience": (
        _options("trainer.patience=0"),
        "got trainer.patience=0, expected a whole number of at least 1, auto",
    ),
    "an unknown schedule": (
        _options("trainer.schedule=step"),
        "got trainer.schedule=step, expected one of linear, cosine, constant",
    ),
    "more steps than max_steps": (
        _options("trainer.min_steps=9", "trainer.max_steps=8"),
        "got min_steps=9, expected at most max_steps=8: lower min_steps",
    ),
    "a batch size in words": (
        _options("trainer.batch_size=large"),
        "got trainer.batch_size=large, expected a whole number of at least 1, auto or null",
    ),
    "choices for a teacher whose steps are not known": (
        _options("teacher.finetune.max_epochs=auto", "teacher.finetune.batch_tokens=500"),
        "got teacher.finetune.learning_rate=auto with batch_tokens, whose steps are not known before, expected "
        "batch_size alone: set teacher.finetune.batch_tokens=null, or values such as",
    ),
    "no batch size": (_options("trainer.batch_size=null"), "got neither batch_size nor batch_tokens"),
    "an invalid compile option": (_options("trainer.compile=perhaps"), "got trainer.compile=perhaps, expected true or"),
    "a teacher without a cache": (
        _options("teacher.cache=null"),
        "the teacher's YAML has no cache: add /cache@cache: default to its defaults list",
    ),
    "a token budget of 0": (
        _options("trainer.batch_tokens=0"),
        "got trainer.batch_tokens=0, expected a whole number of at least 1 or null",
    ),
    "a token budget below the longest example": (
        _options("trainer.batch_tokens=30"),
        "got trainer.batch_tokens=30, expected at least task.max_length=32, the longest example: raise",
    ),
    "a teacher's token budget below the longest example": (
        _options(
            "teacher.finetune.batch_tokens=30",
            "teacher.finetune.learning_rate=5e-5",
            "teacher.finetune.max_epochs=1",
            "teacher.finetune.evaluations=1",
            "teacher.finetune.patience=null",
        ),
        "got teacher.finetune.batch_tokens=30, expected at least task.max_length=32, the longest example",
    ),
    "an invalid teacher.cache.enabled": (
        _options("teacher.cache.enabled=perhaps"),
        "got teacher.cache.enabled=perhaps, expected auto, true or false",
    ),
    "outputs that cannot be cached": (
        _options("teacher.cache.enabled=true", "teacher.cache.hidden=false"),
        "cannot cache teacher outputs (teacher.cache.enabled=true): cosine reads hidden states: "
        "teacher.cache.hidden=true caches those too",
    ),
    "an invalid teacher.cache.hidden": (
        _options("teacher.cache.hidden=perhaps"),
        "got teacher.cache.hidden=perhaps, expected auto, true or false",
    ),
    "hidden states above teacher.cache.max_gb": (
        _options("teacher.cache.max_gb=1e-6", "teacher.cache.hidden=true"),
        "more than teacher.cache.max_gb=1e-06: raise it, or set teacher.cache.hidden=false",
    ),
    "outputs above teacher.cache.max_gb": (
        _options("teacher.cache.max_gb=1e-9", "objective=hinton"),
        "more than teacher.cache.max_gb=1e-09: raise it, or set teacher.cache.enabled=false",
    ),
    "an unlabelled file that is dev": (
        lambda user_files: [f"task.unlabelled={user_files.data / 'dev.tsv'}"],
        "dev.tsv leaves nothing to learn from: all 8 texts are removed (8 in dev); give texts that are in no split",
    ),
    "an empty unlabelled file": (
        lambda user_files: [f"task.unlabelled={_empty_file(user_files)}"],
        "empty.txt is empty, expected texts without labels (task.unlabelled)",
    ),
    "a missing unlabelled file": (
        _options("task.unlabelled=nowhere.txt"),
        "task.unlabelled=nowhere.txt is no file and no directory, expected",
    ),
    "a missing bank": (
        _options("task.bank=nowhere.txt"),
        "task.bank=nowhere.txt is no file and no directory, expected",
    ),
    "a bank beside other texts": (
        _options("task.bank=reviews", "task.unlabelled=null"),
        "got task.bank=reviews, expected null, because sentences are chosen with task.unlabelled=auto alone",
    ),
    "a bank for a fine-tuning": (
        _options("job=finetune", "task.bank=reviews", "task=sst2"),
        "task.bank=reviews would change nothing in job=finetune task=sst2: leave it out",
    ),
    "a share of unlabelled text out of range": (
        _options("task.unlabelled_share=1.0"),
        "got task.unlabelled_share=1.0, expected a share between 0 and 1",
    ),
    "a file of questions without a context": (
        lambda user_files: _questions(user_files, context=None),
        "train.jsonl has no column context: it has question, answers; a question needs the columns question, context",
    ),
    "an answer that is not at its place": (
        lambda user_files: _questions(user_files, answers=[{"text": "film", "answer_start": 3}]),
        "train.jsonl, line 1: the answer 'film' is not in its context at answer_start 3, where the context has",
    ),
    "a question longer than the window": (
        lambda user_files: _questions(user_files, question="who made this film " * 12),
        "train, example 1: the question has 144 tokens and its context ",
    ),
    "dimensions of an objective that do not increase": (
        _vectors("objective=embedding", "objective.dimensions=[8,4]"),
        "got objective.dimensions=[8, 4], expected a list of whole numbers of at least 1 that increase",
    ),
    "dimensions twice": (
        _vectors("export.dimensions=[8,8]"),
        "got export.dimensions=[8, 8], expected a list of whole numbers of at least 1 that increase",
    ),
    "no dimensions": (
        _vectors("export.dimensions=[0,8]"),
        "got export.dimensions=[0, 8], expected a list of whole numbers of at least 1 that increase",
    ),
    "dimensions of an objective above the model's": (
        _vectors("objective.dimensions=[8,64]"),
        "objective.dimensions has 64, expected at most 32, the width of the student's vectors",
    ),
    "dimensions of an export above the model's": (
        _vectors("export.dimensions=[8,64]"),
        "got export.dimensions=[8, 64], expected at most 32, the width of the student's vectors",
    ),
    "dimensions of a task without vectors": (
        _options("export.dimensions=[8]"),
        "got export.dimensions=[8], expected [], because task classification (classification) has no vectors of texts",
    ),
    "negatives by a teacher without a number": (
        _retrieval("task.negatives_by=teacher"),
        "got task.negatives_by=teacher, expected negatives=1 beside it, the number for each pair",
    ),
    "negatives by another method": (
        _retrieval("task.negatives=1", "task.negatives_by=bm25"),
        "got task.negatives_by=bm25, expected tfidf or teacher",
    ),
    "windows that share too much": (
        _options("task=squad", "task.doc_stride=28"),
        "got task.doc_stride=28, expected at most 27, so that windows of 32 tokens have room for a question",
    ),
    "a cut vocabulary of questions": (
        lambda user_files: [*_questions(user_files), "export.vocabulary=task"],
        "got export.vocabulary=task, expected full, because the predictions of task squad (question_answering) are",
    ),
    "a threshold of confidence for questions": (
        lambda user_files: [*_questions(user_files), "export.abstain=0.1"],
        "got export.abstain=0.1, expected null, because task squad (question_answering) has no classes",
    ),
    "a teacher of classes that must answer questions": (
        lambda user_files: [
            *_questions(user_files),
            "teacher.finetune=false",
            f"teacher.path={user_files.classifier(2)}",
        ],
        "does not fit task squad: its head is not trained (qa_outputs.bias, qa_outputs.weight); to have",
    ),
    "questions without a context among the unlabelled": (
        lambda user_files: [*_questions(user_files), f"task.unlabelled={user_files.data / 'train.tsv'}"],
        "train.tsv has no column question, context: it has sentence, label; texts without labels need the task's text",
    ),
    "copies of raw text": (
        _options("task=mlm", "objective=language_model", "augment=tang"),
        "augment=tang is for tasks with labelled texts, and task mlm is masked_lm: leave it out",
    ),
    "copies of mentions without tags": (
        _options("augment=mentions"),
        "augment=mentions is for tasks with tagged spans of words, and task classification is classification: leave",
    ),
    "copies of questions without contexts": (
        _options("augment=questions"),
        "augment=questions is for tasks with questions about contexts, and task classification is classification: lea",
    ),
    "copies in a language without a tagger": (
        _options("augment=tang", "augment.language=de"),
        "got augment.language=de, expected en, because there is a tagger of parts of speech for English alone",
    ),
    "copies without their model": (
        _options("augment=mlm"),
        "augment=mlm needs a masked language model: set augment.model=DIR",
    ),
    "copies by a model without a trained head": (
        lambda user_files: ["augment=mlm", f"augment.model={user_files.encoder}"],
        "is no masked language model: its head is not trained",
    ),
    "copies that change nothing": (
        _options("augment=tang", *(f"augment.{name}=0.0" for name in ("p_mask", "p_pos", "p_ngram"))),
        "augment=tang makes no new text of 32 training examples",
    ),
    "copies for a fine-tuning": (
        _options("job=finetune", "task=sst2", "augment=tang"),
        "augment=tang would change nothing in job=finetune task=sst2: leave it out",
    ),
    "unlabelled text for a fine-tuning": (
        _options("job=finetune", "task.unlabelled=nowhere.txt", "task=sst2"),
        "task.unlabelled=nowhere.txt would change nothing in job=finetune task=sst2: leave it out",
    ),
    "a question without choices": (
        _choices(choices=[]),
        "train.jsonl, line 8: column choices is [], no choices, expected at least two",
    ),
    "a question with one choice": (_choices(choices=["one"]), "line 8: column choices is ['one'], one choice, expe"),
    "an answer outside of the choices": (
        _choices(answer=2),
        "train.jsonl, line 8: answer 2 is none of its 2 choices, expected an index from 0 to 1",
    ),
    "an empty choice": (_choices(choices=["one", ""]), "line 8: column choices: choice 2 is '', expected text"),
    "a missing column of choices": (
        _choices("task.choices=[a,b]"),
        "train.jsonl has no column a, b: it has question, choices, answer; name yours with task.question=..., ",
    ),
    "a teacher of another kind": (
        lambda p: [*_choices("teacher.finetune=false")(p), f"teacher.path={p.classifier(1)}"],
        "does not fit task multiple_choice: its head is that of a BertForSequenceClassification",
    ),
    "copies of questions": (
        _choices("augment=tang"),
        "augment=tang is for tasks with labelled texts, and task multiple_choice is multiple_choice: leave it out",
    ),
    "a missing column of a pair": (
        _vectors(dev="sentence1,score\na,1\n"),
        "dev.csv has no column sentence2: it has sentence1, score; name yours with task.text=[...]",
    ),
    "one column of text for pairs": (
        _vectors("task.text=[sentence1]"),
        "got task.text=[sentence1], expected the two columns of a pair; train_text names others",
    ),
    "an empty text of a pair": (
        _vectors(train="sentence1,sentence2\na,b\n,b\n"),
        "train.csv, line 3: column sentence1 is empty, expected text",
    ),
    "a judgement of an unknown document": (
        _retrieval(judgement="q1\td2\t1"),
        "train.tsv, line 3: 'd2' is no id of corpus.jsonl, expected one",
    ),
    "a cross-encoder that is missing": (
        _vectors("task.cross_encoder=nowhere", "objective=embedding", "objective.terms.margins.weight=1"),
        "task.cross_encoder=nowhere is no directory, expected one with config.json and weights",
    ),
    "a cross-encoder that teaches nothing": (
        _vectors("task.cross_encoder=nowhere", "objective=embedding"),
        "task.cross_encoder is given, and no term of objective embedding learns from it: raise the weight of a term "
        "with targets=cross_encoder, or leave out task.cross_encoder",
    ),
    "scores of dev that are equal": (
        _vectors(train="sentence1,sentence2,score\na,b,1\nc,d,2\n", dev="sentence1,sentence2,score\na,b,3\nc,d,3\n"),
        "dev has 2 pairs with the score 3 and no other, with which nothing correlates: give pairs with different",
    ),
    "an unknown pooling": (_vectors("task.pooling=sum"), "got task.pooling=sum, expected one of mean, cls, max"),
    "a teacher of classes for vectors": (
        lambda p: [*_vectors("teacher.finetune=false")(p), f"teacher.path={p.classifier(2)}"],
        "does not fit task embedding: its head is that of a BertForSequenceClassification, and the task needs a BertM",
    ),
    "a term of classes for vectors": (
        _vectors("objective=distilbert"),
        "objective distilbert has the term soft, hard, which cannot learn task embedding (embedding): take objecti",
    ),
    "vectors of other widths without a projection": (
        lambda p: [
            *_vectors("objective.terms.embedding.projection=null", "+student=pretrained")(p),
            f"student.path={p.narrow_encoder()}",
        ],
        "objective embedding: the term embedding compares vectors 32 wide (teacher) and 16 wide (student) without a pr",
    ),
    "a term without examples": (
        _vectors("objective.terms.triplet.weight=1"),
        "the term triplet learns from groups of three texts, and train of task embedding has none: set objective.term",
    ),
    "a baseline of texts alone": (
        _vectors("baseline=true", train="text\na b\nb\n"),
        "the training texts of task embedding are single and have no labels, from which nothing can be learned without",
    ),
    "copies of texts for vectors": (
        _vectors("augment=tang"),
        "augment=tang is for tasks with labelled texts, and task embedding is embedding: leave it out",
    ),
    "unlabelled text for questions": (
        lambda p: [*_choices()(p), f"task.unlabelled={_text_file(p)}"],
        "has questions with choices: give a table with the columns question and choices as task.unlabelled",
    ),
    "unknown features": (
        _options("teacher.features=all"),
        "got teacher.features=all, expected null or one of last, second_to_last, sum_last_4, concat_last_4, sum_all",
    ),
    "features of too few layers": (
        lambda p: [f"teacher.path={p.shallow_encoder()}", "teacher.features=concat_last_4"],
        "teacher.features=concat_last_4: got an encoder of 2 layers for concat_last_4, expected at least 4: take last",
    ),
    "features for a language model": (
        _options("teacher.features=last", "task=mlm"),
        "teacher.features=last is for labels of texts or words and for answers in a text, and task mlm is masked_lm",
    ),
    "options of a fine-tuning that features do without": (
        _options("teacher.features=last", "teacher.finetune.max_epochs=2"),
        "teacher.finetune.max_epochs=2 would change nothing in job=distill task=classification: leave it out, "
        "teacher.bilstm.trainer.* is what trains here",
    ),
    "features that are not cached": (
        _options("teacher.features=last", "teacher.cache.enabled=false"),
        "got teacher.cache.enabled=false, expected auto or true because features are cached",
    ),
    "no layer on features": (
        _options("teacher.features=last", "teacher.bilstm.layers=0"),
        "got teacher.bilstm.layers=0, expected a whole number of at least 1",
    ),
    "vectors of two pieces for model2vec": (
        _options("+student=static", "export.model2vec=true"),
        "export.model2vec=true is for vectors of single pieces, and the student has student.buckets=131072",
    ),
    "vectors of two pieces without those of one": (
        _options("+student=static", "student.dim=0"),
        "student.buckets=131072 has vectors of two pieces beside a table of single ones, and student.dim=0 leaves no",
    ),
    "a learning rate of 0 for the tables": (
        _options("+student=static", "trainer.embeddings_learning_rate=0"),
        "got trainer.embeddings_learning_rate=0, expected",
    ),
    "a table that is never trained": (
        _options("trainer.frozen_embeddings=1"),
        "got trainer.frozen_embeddings=1, expected a share of the steps from 0 to below 1 or auto",
    ),
    "a table that is always compact": (
        _options("trainer.compact_embeddings=true"),
        "got trainer.compact_embeddings=true, expected auto or false",
    ),
    "a negative weight decay": (
        _options("trainer.weight_decay=-1"),
        "got trainer.weight_decay=-1, expected a number of at",
    ),
    "a beta of 1": (
        _options("trainer.betas=[0.9,1.0]"),
        "got trainer.betas=[0.9, 1.0], expected two numbers of at least 0 and below 1, like [0.9, 0.98]",
    ),
    "one beta": (_options("trainer.betas=[0.9]"), "got trainer.betas"),
    "an eps of 0": (_options("trainer.eps=0"), "got trainer.eps=0, expected a number above 0"),
    "an invalid record.texts": (_options("record.texts=perhaps"), "got record.texts=perhaps, expected true or false"),
    "a negative seed": (_options("seed=-1"), "got seed=-1, expected a whole number"),
    "no seeds": (_options("seeds=0"), "got seeds=0, expected a whole number of at least 1"),
    "a word as seeds": (_options("seeds=three"), "got seeds=three, expected a whole number of at least 1"),
    "an unknown accelerator": (
        _options("trainer.accelerator=tpu"),
        "got trainer.accelerator=tpu, expected one of auto, cpu, gpu, cuda, mps",
    ),
    "a tracker without a key": (
        _options("logger=[csv,wandb]", "logger.wandb.mode=online"),
        "logger.wandb.mode=online needs a key of Weights & Biases, and there is none: run `wandb login`",
    ),
    "a mode of a tracker": (
        _options("logger=wandb", "logger.wandb.mode=on"),
        "got logger.wandb.mode=on, expected one of online, offline, disabled",
    ),
    "a tracker that there is not": (_options("logger=[csv,tensorbord]"), "did you mean tensorboard?"),
    "a misspelt option of a tracker": (
        _options("logger=[csv,wandb]", "logger.wandb.projekt=toy"),
        "did you mean logger.wandb.project?",
    ),
    "a misspelt option": (_options("trainer.max_epoch=1"), "did you mean trainer.max_epochs?"),
    "a misspelt name": (_options("objective=hintn"), "there is no objective hintn (did you mean hinton?)"),
}


def arguments(user_files: UserFiles, *options: str) -> list[str]:
    given = list(options)
    if not any(option.startswith("+student=") for option in given):
        given.insert(0, "+student=distilbert")
    if not any(option.startswith("task=") for option in given):
        given[:0] = ["task=classification", "task.text=[sentence]"]
    defaults = {
        "teacher.path": user_files.encoder, "task.data_dir": user_files.data, "task.max_length": 32,
        "output_dir": user_files.root / "runs", "cache_dir": user_files.root / "cache",
    }  # fmt: skip
    given += [f"{key}={value}" for key, value in defaults.items() if not any(o.startswith(f"{key}=") for o in given)]
    return ["+teacher=pretrained", *given]


@pytest.fixture
def distill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs the command in this process; training raises an error."""

    def run(*options: str) -> int:
        monkeypatch.setattr(sys, "argv", ["distill", *options])
        return command_line.main()

    def no_training(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something is trained")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))  # Without keys.
    for name in ("HYDRA_FULL_ERROR", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fitting, "fit", no_training)
    return run


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_input_is_reported_in_one_line(
    mistake: str, user_files: UserFiles, distill: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, expected = MISTAKES[mistake]
    options = arguments(user_files, *spoil(user_files))
    capsys.readouterr()  # Models that are saved show their progress.
    code = distill(*options)
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert expected in lines[0]


def test_the_valid_files_reach_training(user_files: UserFiles, distill: Callable[..., int]) -> None:
    with pytest.raises(AssertionError, match="something is trained"):
        distill(*arguments(user_files))


def test_a_full_disk_is_reported_in_one_line_and_leaves_no_partial_checkpoint(user_files: UserFiles) -> None:
    """Limits the size of a file to less than that of the teacher's first checkpoint."""
    done = subprocess.run(
        [
            sys.executable, "-m", "distill", *arguments(user_files), "trainer.max_steps=2",
            "teacher.finetune.max_steps=2",
        ],
        cwd=user_files.root, capture_output=True, text=True, check=False, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: there is no room left to write in output_dir=")
    assert "Traceback" not in done.stderr
    assert not [path for path in user_files.root.rglob("*") if ".ckpt" in path.name]


def test_a_directory_is_removed_if_the_disk_is_full(user_files: UserFiles) -> None:
    """Limits the size of a file so that only the second one of the directory fails."""
    program = (
        "import resource, pathlib, sys\n"
        "from distill.core.files import is_full_disk, atomic_directory\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    with atomic_directory(pathlib.Path('cache/teacher')) as draft:\n"
        "        (draft / 'small').write_bytes(bytes(10))\n"
        "        (draft / 'large').write_bytes(bytes(5000))\n"
        "except OSError as error:\n"
        "    sys.exit(7 if is_full_disk(error) else 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=user_files.root, capture_output=True, check=False)
    assert done.returncode == 7, done.stderr
    assert list((user_files.root / "cache").iterdir()) == []


@pytest.mark.parametrize("trained", [False, True])
def test_ctrl_c_reports_the_checkpoint_and_how_to_resume(user_files: UserFiles, trained: bool) -> None:
    options = [
        "teacher.finetune.max_steps=2",
        "teacher.accept_weak=true",
        "trainer.max_epochs=2000",
        "trainer.batch_size=8",
        "trainer.evaluations=4",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "distill", *arguments(user_files), *options], cwd=user_files.root, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ),
        # A test run in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    awaited = "checkpoints/last.ckpt" if trained else "run.json"
    runs = user_files.root / "runs" / "classification" / "pretrained-distilbert"
    deadline = time.monotonic() + 90
    try:
        while (
            not find_files(runs, f"{runs.name}/*/{awaited}") and time.monotonic() < deadline and process.poll() is None
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130, error
    [directory] = runs.iterdir()
    last = error.strip().splitlines()[-1]
    if trained:
        assert "last.ckpt holds the training so far" in last
    else:
        assert "interrupted before the first checkpoint" in last
    assert f"resume={directory.relative_to(user_files.root) if not directory.is_absolute() else directory}" in last
    assert "Traceback" not in error
