"""What a student starts from and reads by: its teacher, another encoder, or a tokenizer of its own."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from torch import nn
from transformers import AutoConfig, BertConfig, PreTrainedModel, PreTrainedTokenizerBase

from distill.chain.plan import Plan, Student
from distill.core.console import print_line, print_notice
from distill.core.contracts import POOLED, Data, Task
from distill.core.errors import UnreachableError, UserError
from distill.core.options import show_value
from distill.data.tokenization import encode_whole
from distill.models.forward import configure, is_decoder, model_class
from distill.models.loading import check_tokenizer, find_directory, has_tokenizer, load_directory, start_head
from distill.models.sentence_files import adopt_special_tokens, load_tokenizer, read_vocabulary
from distill.models.surgery.copies import copy_labels
from distill.models.surgery.initialization import list_pieces
from distill.teachers.source import TeacherSource, Weights
from distill.text.vocabulary import train_word_pieces

PIECES = "pieces"  # The value of `student.tokenizer` that trains one on the texts of the task.
VOCABULARY = 8000  # Pieces of such a tokenizer, at most.
UNKNOWN = 0.05  # Share of the pieces of the texts that are unknown, from which on it is said.
SAMPLE = 500  # Texts in which they are counted.
DIFFER = "teacher and student read different tokens"
# Options of a student that are about its teacher's layers, and the values that ask for nothing of them.
_OF_TEACHER = {"heads": None, "ffn": None, "prune": None, "init": "teacher"}


@dataclass(frozen=True)
class Parent:
    """What a student is made from, and the tokenizer that it reads by.

    Args:
        model: has a head for the task, which may be new.
        is_own: whether this is not the teacher.
        make: makes the model from a teacher; None for one that does not depend on it.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    is_own: bool = False
    make: Callable[[PreTrainedModel], PreTrainedModel] | None = None

    def of(self, teacher: PreTrainedModel) -> "Parent":
        """Returns what a student is made from whose teacher has other weights."""
        return self if self.make is None else replace(self, model=self.make(teacher))


def own_option(student: Student) -> tuple[str, str] | None:
    """Returns the option that gives a student other layers or another tokenizer, and its value; None without one."""
    name = next((name for name in ("tokenizer", "path") if student.has_option(name)), "start")
    value = student.option(name)
    return None if value is None or not student.has_option(name) else (name, str(value))


def choose_terms(plan: Plan, student: Student, source: TeacherSource) -> Plan:
    """Returns the plan with an objective that a teacher and a student of different tokenizers can have.

    Raises:
        UserError: for a task or an option whose models must read the same tokens, and for terms that compare tokens.
    """
    if not _reads_differently(student, source):
        return plan
    for task in plan.tasks.values():
        if task.info.classes_are_tokens or task.info.writes:
            raise UserError(
                f"{DIFFER}, and task={task.info.name} predicts tokens: take a student with the teacher's tokenizer"
            )
    if plan.trains_pieces:
        raise UserError(
            f"export.vocabulary=trained takes rows of the teacher's embeddings, and {DIFFER}: leave it out, or set "
            "export.vocabulary=task"
        )
    compares = _list_comparing(plan)
    if not compares:
        return plan
    if not plan.has_default_objective:
        check_terms_across(plan)
    print_line(
        f"Objective: leaves out the term {', '.join(compares)}, which compares the states of tokens, because {DIFFER}"
    )
    return replace(plan, objective=plan.objective.without(compares))


def check_terms_across(plan: Plan) -> None:
    """Raises UserError for an objective whose models must read the same tokens."""
    if compares := _list_comparing(plan):
        zero = " ".join(f"objective.terms.{name}.weight=0" for name in compares)
        raise UserError(
            f"objective {plan.objective.name}: the term {', '.join(compares)} compares the states of tokens, and "
            f"{DIFFER}: set {zero}, or take objective=hinton, which compares what both say of an example"
        )


def _list_comparing(plan: Plan) -> list[str]:
    """Returns the names of the terms that compare tokens of teacher and student."""
    return plan.objective.names_where(lambda term: term.needs_teacher and bool(term.needs - {POOLED}))


def _reads_differently(student: Student, source: TeacherSource) -> bool:
    """Returns whether a teacher reads other tokens than the student, as far as it is known before they are loaded."""
    sources = [member for one in (source.by_task or {"": source}).values() for member in one.members]
    if student.is_fitted or any(one.max_length is not None for one in sources):
        return True
    own = own_option(student)
    if own is None and len(sources) == 1:
        return False
    tokenizers = [_find_tokenizer(one.weights) for one in sources]
    if own is None:
        return any(other is not None and not is_same(tokenizers[0], other) for other in tokenizers)
    name, value = own
    if value == PIECES:
        return True
    tokenizer = _read_tokenizer(value, f"student.{name}")
    return any(other is None or not is_alike(tokenizer, other) for other in tokenizers)


def is_alike(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> bool:
    """Returns whether a student can read by the tokenizer of a teacher."""
    return bool(student.get_vocab() == teacher.get_vocab())


def is_same(one: PreTrainedTokenizerBase | None, other: PreTrainedTokenizerBase) -> bool:
    """Returns whether two teachers read the same tokens of every text; a student then reads by that of the first."""
    return one is None or read_vocabulary(one) == read_vocabulary(other)


def _find_tokenizer(weights: Weights) -> PreTrainedTokenizerBase | None:
    """Returns the tokenizer of a teacher; None for a new one, whose texts are not read yet."""
    loaded: PreTrainedTokenizerBase | None = getattr(weights, "tokenizer", None)
    if isinstance(loaded, PreTrainedTokenizerBase):
        return loaded
    try:
        directory = weights.locate()
    except UnreachableError:  # A substitute may take its place, or an error of its own follows.
        return None
    if directory is None or not has_tokenizer(directory):
        return None
    return load_tokenizer(directory, trust_remote_code=weights.trust_remote_code)[0]


def _read_tokenizer(path: str, option: str) -> PreTrainedTokenizerBase:
    directory = Path(path).expanduser()
    if not directory.is_dir() or not has_tokenizer(directory):
        raise UserError(f"{option}={path} holds no tokenizer, expected a directory with tokenizer.json")
    tokenizer, _ = load_tokenizer(directory, trust_remote_code=False)
    check_tokenizer(tokenizer, directory)
    return tokenizer


def load_parent(
    student: Student, task: Task, data: Data, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Parent:
    """Returns what a student is made from: its teacher, another encoder, or the teacher's embeddings of other pieces.

    Args:
        tokenizer: of the teacher.

    Raises:
        UserError: for a directory without a model or a tokenizer, and options that are about the teacher's layers.
    """
    own = own_option(student)
    if own is None:
        if student.has_option("start") and is_decoder(teacher.config) and not task.info.writes:
            print_notice(
                "the student has layers of its teacher, a decoder: student.start=DIR starts it from an encoder; in the "
                f"Hugging Face cache of this machine: {', '.join(list_encoders()) or 'none'}"
            )
        return Parent(teacher, tokenizer)
    name, value = own
    if name == "start":
        return _load_encoder(student, task, data, value, tokenizer)
    if value == PIECES:
        found: PreTrainedTokenizerBase = train_word_pieces(data.texts(), VOCABULARY, int(1e9))
    else:
        found = _read_tokenizer(value, f"student.{name}")
    if is_alike(found, tokenizer):
        return Parent(teacher, tokenizer)
    if name == "path":
        return Parent(teacher, found, is_own=True)
    _warn_of_unknown(found, data, value)
    make = partial(_embed_pieces, tokenizer=tokenizer, own=found, task=task)
    return Parent(make(teacher), found, is_own=True, make=make)


def fit_parent(student: Student, task: Task, data: Data) -> Parent:
    """Returns a student that is fitted to labels as what it is made from, with its own tokenizer."""
    model: Any = student.fit(task, data)
    return Parent(model, model.__dict__.pop("tokenizer"), is_own=True)


def list_encoders() -> list[str]:
    """Returns the names of the encoders of texts in the Hugging Face cache."""
    names = []
    for file in sorted(Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*/config.json")):
        with suppress(OSError, ValueError):
            config = AutoConfig.for_model(**json.loads(file.read_text(encoding="utf-8")))
            if model_class("AutoModelForMaskedLM", type(config)) is not None and not config.is_encoder_decoder:
                names.append(file.parents[2].name.removeprefix("models--").replace("--", "/"))
    return list(dict.fromkeys(names))


def _load_encoder(student: Student, task: Task, data: Data, path: str, tokenizer: PreTrainedTokenizerBase) -> Parent:
    """Returns the encoder of `student.start`, with a head for the task."""
    for name, usual in _OF_TEACHER.items():
        if (given := student.option(name)) != usual and student.has_option(name):
            raise UserError(
                f"student.{name}={show_value(given)} is about the layers of the teacher, and student.start={path} "
                "gives the student others: leave out one of them"
            )
    info = task.info
    torch.manual_seed(0)  # Of a new head.
    start = load_directory(
        find_directory(path, "student.start"), info.auto_class, data.labels or None, trust_remote_code=False,
        problem_type=info.model_settings.get("problem_type"),
    )  # fmt: skip
    configure(start.model, info.model_settings)
    if not start.fits and data.head_bias is not None:
        start_head(start.model, data.head_bias)
    adopt_special_tokens(start.model, start.tokenizer)
    _warn_of_unknown(start.tokenizer, data, path)
    alike = is_alike(start.tokenizer, tokenizer)
    return Parent(start.model, tokenizer if alike else start.tokenizer, is_own=True)


def _warn_of_unknown(tokenizer: PreTrainedTokenizerBase, data: Data, path: str) -> None:
    """Prints the share of unknown pieces of the training texts if the tokenizer is one for another language."""
    unknown = tokenizer.unk_token_id
    sample = [text for text, _ in zip(data.labelled_texts(), range(SAMPLE), strict=False)]
    pieces = [piece for ids in encode_whole(sample, tokenizer, add_special_tokens=False) for piece in ids]
    share = sum(piece == unknown for piece in pieces) / max(1, len(pieces))
    if share >= UNKNOWN:
        print_notice(
            f"{path}: {share:.0%} of the pieces of the training texts are unknown to the student, whose tokenizer is "
            "for other texts: take an encoder of their language"
        )


@torch.no_grad()
def _embed_pieces(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase, task: Task
) -> PreTrainedModel:
    """Returns a model of random layers whose embedding of each piece is the mean of the teacher's for its text."""
    table = teacher.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    special = {name: getattr(own, name) for name in ("pad_token_id", "cls_token_id", "sep_token_id")}
    config: Any = BertConfig(
        vocab_size=len(own), hidden_size=table.embedding_dim, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=1, **special, **copy_labels(teacher.config),
    )  # fmt: skip
    create = model_class(task.info.auto_class, BertConfig)
    assert create is not None
    model: PreTrainedModel = create(config)
    configure(model, task.info.model_settings)
    rows = model.get_input_embeddings()
    assert isinstance(rows, nn.Embedding)
    usual = table.weight.float().mean(dim=0)
    for piece, ids in enumerate(encode_whole(list_pieces(own), tokenizer, add_special_tokens=False)):
        rows.weight[piece] = table.weight[torch.tensor(ids)].float().mean(dim=0) if ids else usual
    return model
