"""The options that a request may set: a strict grammar of overrides, and a table with a verdict for every key.

Reads overrides by a strict part of the grammar of the command line, and writes them so that Hydra reads the same. A
value is a number, a word, a text in quotes, a list or a mapping; several with commas between them, or `range(1,4)`, are
a sweep. Every other form is refused: functions, references, escapes, packages and deletions. Because an override is
written anew from what was read, no text is read in two ways.

    +teacher=minilm                   ->  Override("+", ("teacher",), (Scalar("minilm"),))
    seed=range(1,4)                   ->  Override("", ("seed",), (Scalar("1"), Scalar("2"), Scalar("3")))
    task.text=["my review",'a, b']    ->  Override("", ("task", "text"), ([Scalar(...), Scalar(...)],))

The options that a request may set: a table with a verdict for every key of `conf/`, and the check of overrides. Nothing
of a request names a class, a path, an address or a model of the Hub. Data sets of the owner are `data:NAME` and models
of the administrator's directory `teacher:NAME`, which the service resolves to the only paths of a command.
"""

import difflib
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TypeAlias

from distill.core.errors import UserError, config_directory

LONGEST_NAME = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}", re.ASCII)


def is_name(text: object) -> bool:
    """Returns whether a text is a name, which is never a path, a hidden file or an option of a command."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_name(text: object, noun: str) -> str:
    """Returns the text; raises UserError if it is no name.

    Args:
        noun: of the thing with that name, such as `data set`.
    """
    if isinstance(text, str) and is_name(text):
        return text
    raise UserError(
        f"got the {noun} {show_escaped(text)}, expected a name of 1 to {LONGEST_NAME} letters from a to z, digits, "
        "dots, hyphens and underscores, the first one a letter or a digit"
    )


def show_escaped(value: object) -> str:
    """Returns a value as a short part of one line, in which all but ASCII is escaped."""
    return reprlib.repr(value).encode("ascii", "backslashreplace").decode()


LONGEST_OVERRIDE = 10_000  # Characters of an override.
MOST_VALUES = 1_000  # Items of a list or values of a sweep.
MOST_PARTS = 10  # Of a key.
DEEPEST = 4  # Lists and mappings within each other.

_KEY = re.compile(r"(\+\+|\+|)([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)=", re.ASCII)
_RANGE = re.compile(r"range\(\s*(-?\d{1,18})\s*(?:,\s*(-?\d{1,18})\s*)?(?:,\s*(-?\d{1,18})\s*)?\)", re.ASCII)
_MAPPING_KEY = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9_-]*)\s*:", re.ASCII)
# A text in quotes, and what ends it: the quote, a backslash before another sign, or the end.
_QUOTED = {quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\{quote})*)({quote}|\\|\Z)") for quote in ("'", '"')}
_UNQUOTED = re.compile(r"""[^,\[\]{}()'"=\\]+""")
# Scalars that stand without quotes; Hydra reads their types.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_DIGITS = r"(?:0|[1-9](?:_?[0-9])*)"
_NUMBER = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


class OverrideError(UserError):
    """An override that the service does not take."""


@dataclass(frozen=True)
class Scalar:
    """A number, a word or a text."""

    text: str
    is_quoted: bool = False


Value: TypeAlias = "Scalar | list[Value] | dict[str, Value]"


@dataclass(frozen=True)
class Override:
    """An override: its sign `+`, `++` or none, the parts of its key, and one value or those of a sweep."""

    sign: str
    key: tuple[str, ...]
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """Returns the key as it is typed."""
        return ".".join(self.key)

    def __str__(self) -> str:
        return f"{self.sign}{self.name}={','.join(map(write_value, self.values))}"


def parse_override(text: str) -> Override:
    """Reads an override.

    Raises:
        OverrideError: for one of another form.
    """
    if len(text) > LONGEST_OVERRIDE:
        raise OverrideError(
            f"an override has {len(text):,} characters, the limit is {LONGEST_OVERRIDE:,}: {show_escaped(text)}"
        )
    if not text.isprintable() or "${" in text:
        reason = "a reference ${...}" if "${" in text else "a character that does not print"
        raise OverrideError(f"the override {show_escaped(text)} has {reason}, which the service does not take")
    key = _KEY.match(text)
    if key is None or key[2].count(".") >= MOST_PARTS:
        raise OverrideError(
            f"got the override {show_escaped(text)}, expected key=value or +key=value with a key such as task.label"
        )
    parts = tuple(key[2].split("."))
    return Override(key[1], parts, _Reader(text, key.end()).read_values())


def write_override(key: str, value: object) -> str:
    """Returns the override that gives a key a value of JSON: a text, a number, true, null, a list or a mapping.

    Raises:
        OverrideError: for a key or a text that no override can have.
    """
    return str(parse_override(f"{key}={write_value(_from_json(value))}"))


def write_value(value: Value) -> str:
    """Returns a value as Hydra reads it."""
    if isinstance(value, list):
        return f"[{','.join(map(write_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{write_value(item)}' for key, item in value.items())}}}"
    is_plain = _WORD.fullmatch(value.text) or _NUMBER.fullmatch(value.text)
    if is_plain and not value.is_quoted:
        return value.text
    escaped = value.text.replace("'", "\\'")
    return f"'{escaped}'"


def is_sweep(overrides: Sequence[str]) -> bool:
    """Returns whether one of the overrides, which this module has written, has several values."""
    return any(len(parse_override(text).values) > 1 for text in overrides)


def _from_json(value: object) -> Value:
    if isinstance(value, Mapping):
        return {str(key): _from_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_from_json(item) for item in value]
    if isinstance(value, bool) or value is None:
        return Scalar({True: "true", False: "false", None: "null"}[value])
    return Scalar(value, is_quoted=True) if isinstance(value, str) else Scalar(str(value))


class _Reader:
    """Reads the values of an override from a position on."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.position = text, start

    def read_values(self) -> tuple[Value, ...]:
        swept = _RANGE.fullmatch(self.text, self.position)
        if swept:
            return self._count(*(None if group is None else int(group) for group in swept.groups()))
        if self.position == len(self.text):
            return (Scalar("", is_quoted=True),)
        values = self._read_items(0)
        if self.position != len(self.text):
            raise self._refuse()
        return tuple(values)

    def _count(self, first: int | None, last: int | None, step: int | None) -> tuple[Value, ...]:
        start, end = (0, first) if last is None else (first, last)
        numbers = range(start or 0, end or 0, 1 if step is None else step) if step != 0 else range(0)
        if not 0 < len(numbers) <= MOST_VALUES:
            raise OverrideError(f"{show_escaped(self.text)} has no values, or more than {MOST_VALUES:,}")
        return tuple(Scalar(str(number)) for number in numbers)

    def _read_items(self, depth: int) -> list[Value]:
        """Reads values with commas between them."""
        items: list[Value] = []
        while not items or self._take(","):
            items.append(self._read_value(depth))
            if len(items) > MOST_VALUES:
                raise OverrideError(f"{show_escaped(self.text)} has more than {MOST_VALUES:,} values")
        return items

    def _read_value(self, depth: int) -> Value:
        self._skip_spaces()
        if depth > DEEPEST:
            raise OverrideError(f"{show_escaped(self.text)} has lists or mappings in more than {DEEPEST} others")
        if self._take("["):
            items = [] if self._take("]") else self._read_items(depth + 1)
            if items:
                self._close("]")
            return items
        if self._take("{"):
            return self._read_mapping(depth)
        sign = self.text[self.position : self.position + 1]
        return self._read_quoted(sign) if sign in _QUOTED else self._read_unquoted()

    def _read_mapping(self, depth: int) -> dict[str, Value]:
        items: dict[str, Value] = {}
        if self._take("}"):
            return items
        while not items or self._take(","):
            key = _MAPPING_KEY.match(self.text, self.position)
            if key is None or key[1] in items or len(items) >= MOST_VALUES:
                raise self._refuse()
            self.position = key.end()
            items[key[1]] = self._read_value(depth + 1)
        self._close("}")
        return items

    def _read_quoted(self, quote: str) -> Scalar:
        found = _QUOTED[quote].match(self.text, self.position)
        assert found is not None
        self.position = found.end()
        if found[2] == "\\":
            raise OverrideError(f"{show_escaped(self.text)} has a backslash, which the service does not take")
        if found[2] != quote:
            raise OverrideError(f"{show_escaped(self.text)} opens a quote that is never closed")
        return Scalar(found[1].replace(f"\\{quote}", quote), is_quoted=True)

    def _read_unquoted(self) -> Scalar:
        found = _UNQUOTED.match(self.text, self.position)
        if found is None or not found[0].strip():
            raise self._refuse()
        self.position = found.end()
        return Scalar(found[0].strip())

    def _skip_spaces(self) -> None:
        while self.text.startswith(" ", self.position):
            self.position += 1

    def _take(self, sign: str) -> bool:
        """Goes on behind spaces and a sign, and returns whether it is there."""
        self._skip_spaces()
        is_there = self.text.startswith(sign, self.position)
        self.position += is_there
        return is_there

    def _close(self, sign: str) -> None:
        if not self._take(sign):
            raise self._refuse()

    def _refuse(self) -> OverrideError:
        return OverrideError(
            f"the override {show_escaped(self.text)} cannot be read at character {self.position + 1}: put each text "
            'in quotes, as in task.text=["my text","a, b"]'
        )


MULTIRUN = ("-m", "--multirun")
MOST_OVERRIDES = 200
MOST_RUNS = 200  # Of a sweep.
Resolve = Callable[[str], Path]  # Returns the path of a name, or raises an error of one line.


class ValueKind(StrEnum):
    """The values that an option takes."""

    VALUE = "numbers, words, and lists of them"
    TEXT = "any text, or a list or mapping of texts"
    NAME = "a name without spaces and slashes"
    CHOICE = "names of the group's files"
    DATA = "data:NAME with the name of a data set"
    TEACHER = "teacher:NAME with the name of a model of the administrator"
    FILES = "names of files without directories"
    ANY = "any value"
    NEVER = "no value"


@dataclass(frozen=True)
class OptionRule:
    """Whether a request may set an option, and to which values.

    Args:
        words: values that are taken besides those of the kind.
        group: of conf, of whose files the value is a name; by default that of the option's name.
        excluded: names of the group that only an administrator may choose.
        is_for_all: whether everybody may set it, and not an administrator alone.
        reason: for an option that nobody may set.
    """

    kind: ValueKind
    words: tuple[str, ...] = ()
    group: str = ""
    excluded: tuple[str, ...] = ()
    is_for_all: bool = True
    reason: str = ""


VALUE, TEXT, NAME, GROUP = map(OptionRule, (ValueKind.VALUE, ValueKind.TEXT, ValueKind.NAME, ValueKind.CHOICE))
DATA, TEACHER = OptionRule(ValueKind.DATA, words=("null",)), OptionRule(ValueKind.TEACHER, words=("null",))
ADMINISTRATION = OptionRule(ValueKind.ANY, is_for_all=False)
OF_JOBS = OptionRule(ValueKind.NEVER, reason="it is of a job that the service does not run")
OF_SERVICE = OptionRule(ValueKind.NEVER, reason="the service sets it")
FOREIGN_CODE = OptionRule(ValueKind.NEVER, reason="it would run the code of others")
# The section, the rule and the names of options. `*` stands for one part of a key.
RULES: Sequence[tuple[str, OptionRule, str]] = (
    # Choices of files
    ("", GROUP, "ablation adapt augment benchmark experiment export objective student task teacher variant"),
    ("", replace(GROUP, excluded=("mlflow", "wandb")), "logger"),
    ("", replace(GROUP, excluded=("ddp", "fsdp", "ray")), "trainer"),
    ("", replace(GROUP, excluded=(
        "benchmark", "cache", "check", "glue_test", "inspect", "label", "publish", "report", "teach",
    )), "job"),
    # The run
    ("", VALUE, "seed seeds baseline alpha copies"),
    ("record.", VALUE, "texts"),
    ("report.", VALUE, "margin rank against"),
    ("budget.", VALUE, "mb ms widths"),
    ("", ADMINISTRATION, "output_dir cache_dir"),
    ("", OF_SERVICE, "resume dry_run"),
    ("", FOREIGN_CODE, "trust"),
    ("", OF_JOBS, "bundles data json label model other private refresh repo report_dir run runs text"),
    ("inspect.", OF_JOBS, "*"),
    ("label.", OF_JOBS, "*"),
    ("teach.", OF_JOBS, "*"),
    ("job.", OF_JOBS, "dry_run formats license older_than_days threads to_gb"),
    ("job.", replace(OF_JOBS, reason="choose with job=NAME"), "name"),
    ("experiment.", replace(OF_JOBS, reason="it is the table of an experiment"), "* *.* *.*.* *.*.*.*"),
    # The task
    ("task.", VALUE,
     "beams builtin clean column corruption dev_examples dev_fraction doc_stride documents keep_gb lengths "
     "long_targets masking masks max_answer_length max_length max_target mean_span metrics missing multi_label "
     "n_best negatives negatives_by noise normalize packing pair pooling prompt rounds sampling scored_texts "
     "seed streaming text_metrics top train_examples unlabelled_share word_column"),
    ("task.mask.", VALUE, "probability replace shuffle shuffle_size span_longest span_p unit"),
    ("task.generator.", VALUE, "layers width"),
    ("task.", TEXT,
     "answer choices class_weights classes context label labels language positive prefix question separator source "
     "tags target text tokens train_label train_text triples words words.* words.*.*"),
    ("task.", NAME, "name"),
    ("task.", OptionRule(ValueKind.FILES), "splits splits.*"),
    ("task.", DATA, "data_dir bank transfer transfer.*"),
    ("task.", replace(DATA, words=("null", "auto")), "unlabelled"),
    ("task.", TEACHER, "cross_encoder source_encoder generator.path"),
    ("task.", replace(TEACHER, words=("bm25",)), "candidates"),
    ("task.", ADMINISTRATION, "hub_id"),
    ("task.", replace(GROUP, group="task"), "tasks"),
    # The teacher
    ("teacher.", VALUE,
     "accept_weak attention beams decoder_depth depth dropout family features global_tokens heads hidden_dim "
     "hidden_size keep layers max_length pieces positions precision sampling_seed sampling_temperature seed start "
     "trust vocabulary weights window"),
    ("teacher.bilstm.", VALUE, "dropout hidden_dim layers pooling"),
    ("teacher.contrastive.", VALUE, "batch_size epochs learning_rate pairs seed"),
    ("teacher.cache.", VALUE, "enabled hidden max_gb draws top_k"),
    ("teacher.", TEXT, "answers labels hypothesis prompt prompt_name prompts"),
    ("teacher.", NAME, "name"),
    ("teacher.", TEACHER, "path paths paths.* encoder tokenizer"),
    ("teacher.", DATA, "texts"),
    ("teacher.", ADMINISTRATION, "id revision sizes"),
    ("teacher.", FOREIGN_CODE, "trust_remote_code"),
    # The student and its losses
    ("student.", VALUE,
     "attention bucket_dim buckets chunk chunk_overlap chunk_pooling classifier_dim decoder_depth depth dilations "
     "dim dropout embedding_dim ffn global_tokens groups heads hidden_dim init layer layers max_length pooling "
     "positions projection prune prune_share prune_steps share smoothing table tag_width token_dropout widths window"),
    ("student.general.", VALUE, "batch_size documents learning_rate max_length passes tokens"),
    ("student.general.", DATA, "corpus"),
    ("student.", NAME, "name"),
    ("student.", TEACHER, "path"),
    ("student.", replace(TEACHER, words=("null", "pieces")), "tokenizer"),
    ("student.", replace(TEACHER, words=("null", "sentence", "teacher", "random")), "start"),
    ("student.", FOREIGN_CODE, "trust_remote_code"),
    ("objective.", VALUE, "dimensions"),
    ("objective.", NAME, "name"),
    ("objective.terms.*.", VALUE,
     "alpha angle beta between classes dimensions distance divergence embeddings last_layer layers margin part "
     "position_width positions projection projectors relation_heads sampling_temperature scale smoothing student_share "
     "targets teacher_layer temperature weight within"),
    ("ablation.", VALUE, "init"),
    ("ablation.", NAME, "name"),
    ("variant.", NAME, "name"),
    # The training
    ("trainer.", VALUE,
     "accelerator accumulate batch_size batch_tokens betas checkpoint_steps clip compact_embeddings compile ema "
     "embeddings_learning_rate eps evaluations frozen_embeddings learning_rate max_epochs max_steps min_steps "
     "patience precision schedule seed soup warmup weight_decay"),
    ("trainer.", replace(VALUE, is_for_all=False), "devices strategy"),
    ("augment.", VALUE, "candidates copies language longest_ngram p_mask p_ngram p_pos p_replace seed"),
    ("augment.", TEACHER, "model"),
    ("augment.", NAME, "name"),
    ("adapt.", TEXT, "add_words"),
    # The bundle
    ("export.", VALUE,
     "abstain calibration dimensions enabled formats layout max_batch_diff max_drop max_ece_rise max_probability_diff "
     "max_vector_drop min_agreement min_type_recall model2vec qat_epochs recipes search_evaluations target vocabulary"),
    ("export.", TEXT, "patterns"),
    ("export.", replace(DATA, words=()), "vocabulary_texts"),
    ("benchmark.", VALUE, "batches dev_pass enabled lengths max_lengths seconds teacher threads"),
    ("logger.mlflow.", ADMINISTRATION, "bundle directory experiment tracking_uri"),
    ("logger.wandb.", ADMINISTRATION, "bundle entity mode project"),
)  # fmt: skip
TABLE = {f"{section}{name}": rule for section, rule, names in RULES for name in names.split()}
# Keys that have the options of another section: a group of conf stands at several places.
ALIASES = (
    (("task", "tasks", "*"), ("task",)),
    (("teacher", "finetune"), ("trainer",)),
    (("teacher", "bilstm", "trainer"), ("trainer",)),
    (("adapt", "trainer"), ("trainer",)),
    (("adapt",), ("task",)),
    (("substitute",), ("teacher",)),
)
_PATTERNS = {tuple(name.split(".")): verdict for name, verdict in TABLE.items()}
_WORDS = re.compile(r"[A-Za-z0-9_@.+-]*", re.ASCII)


def check_overrides(
    overrides: Sequence[str], *, resolve_data: Resolve, resolve_teacher: Resolve, administrator: bool = False
) -> tuple[str, ...]:
    """Returns the overrides with paths in place of `data:NAME` and `teacher:NAME`, written anew.

    Args:
        resolve_data: returns the path of a data set of the owner.
        resolve_teacher: returns the path of a model of the administrator's directory.
        administrator: whether options are taken that name paths and models of the Hub.

    Raises:
        OverrideError: for an option that there is not or that must not be set, and for a value that it does not take.
    """
    if len(overrides) > MOST_OVERRIDES:
        raise OverrideError(f"got {len(overrides)} overrides, the limit is {MOST_OVERRIDES}")
    parsed, runs = [parse_override(text) for text in overrides], 1
    for override in parsed:
        runs *= len(override.values)
    if runs > MOST_RUNS:
        raise OverrideError(f"the overrides are a sweep of {runs:,} runs, the limit is {MOST_RUNS}")
    teachers = [override.values for override in parsed if override.name == "teacher"]
    from_file = bool(teachers) and all(values == (Scalar("file"),) for values in teachers)
    checker = _Checker(resolve_data, resolve_teacher, administrator, from_file)
    return tuple(str(checker.check(override)) for override in parsed)


def find_verdict(key: Sequence[str]) -> OptionRule | None:
    """Returns the verdict on an option; None for one that `conf/` has not.

    >>> find_verdict(["task", "max_length"]).kind
    <ValueKind.VALUE: 'numbers, words, and lists of them'>
    """
    if key[0] == "hydra":
        return OptionRule(ValueKind.NEVER, reason="it is of the command line")
    if any(part.startswith("_") for part in key):
        return OptionRule(ValueKind.NEVER, reason="it names the code that runs")
    found = next((verdict for pattern, verdict in _PATTERNS.items() if _matches(pattern, key)), None)
    if found is not None:
        return found
    for pattern, place in ALIASES:
        if len(key) > len(pattern) and _matches(pattern, key[: len(pattern)]):
            return find_verdict([*place, *key[len(pattern) :]])
    return None


@cache
def list_choices(group: str) -> tuple[str, ...]:
    """Returns the names of the files of a group of `conf/`."""
    return tuple(sorted(path.stem for path in (config_directory() / group).glob("*.yaml")))


def _matches(pattern: Sequence[str], key: Sequence[str]) -> bool:
    return len(pattern) == len(key) and all(one in ("*", other) for one, other in zip(pattern, key, strict=True))


@dataclass(frozen=True)
class _Checker:
    """Checks one override after the other and resolves its names."""

    resolve_data: Resolve
    resolve_teacher: Resolve
    administrator: bool
    from_file: bool  # Whether the teacher is a table of probabilities, whose path is that of a data set.

    def check(self, override: Override) -> Override:
        verdict = find_verdict(override.key)
        name = override.name
        if verdict is None:
            close = difflib.get_close_matches(name, TABLE, n=1)
            raise OverrideError(
                f"there is no option {show_escaped(name)}{f': did you mean {close[0]}?' if close else ''}"
            )
        if verdict.kind == ValueKind.NEVER:
            raise OverrideError(f"the option {name} cannot be set here: {verdict.reason}")
        if not (verdict.is_for_all or self.administrator):
            raise OverrideError(f"the option {name} is for the administrator of the service: leave it out")
        return Override(override.sign, override.key, tuple(self._check(name, verdict, v) for v in override.values))

    def _check(self, name: str, verdict: OptionRule, value: Value) -> Value:
        if isinstance(value, list):
            return [self._check(name, verdict, item) for item in value]
        if isinstance(value, dict):
            if verdict.kind in (ValueKind.VALUE, ValueKind.NAME, ValueKind.CHOICE):
                raise OverrideError(f"got a mapping for {name}, expected {verdict.kind}")
            return {key: self._check(name, verdict, item) for key, item in value.items()}
        return value if value.text in verdict.words else self._check_scalar(name, verdict, value)

    def _check_scalar(self, name: str, verdict: OptionRule, value: Scalar) -> Scalar:
        match verdict.kind:
            case ValueKind.DATA:
                return self._resolve(name, verdict, value, "data")
            case ValueKind.TEACHER:
                is_data = name == "teacher.path" and self.from_file
                return self._resolve(name, verdict, value, "data" if is_data else "teacher")
            case ValueKind.CHOICE:
                return self._check_choice(name, verdict, value.text)
            case ValueKind.NAME | ValueKind.FILES:
                if not is_name(value.text):
                    raise OverrideError(f"got {name}={show_escaped(value.text)}, expected {verdict.kind}")
            case ValueKind.VALUE:
                if not _WORDS.fullmatch(value.text) or ".." in value.text:
                    raise OverrideError(f"got {name}={show_escaped(value.text)}, expected {verdict.kind}")
        return value

    def _check_choice(self, name: str, verdict: OptionRule, text: str) -> Scalar:
        known = list_choices(verdict.group or name)
        if text not in known:
            open_to_all = [choice for choice in known if choice not in verdict.excluded]
            raise OverrideError(f"got {name}={show_escaped(text)}, expected one of {', '.join(open_to_all)}")
        if text in verdict.excluded and not (self.administrator and name != "job"):
            raise OverrideError(f"{name}={text} is not for requests to the service: choose another one")
        return Scalar(text)

    def _resolve(self, name: str, verdict: OptionRule, value: Scalar, prefix: str) -> Scalar:
        """Returns the path of `data:NAME` or `teacher:NAME`."""
        start, _, rest = value.text.partition(":")
        if start != prefix or not is_name(rest):
            words = "".join(f", or {word}" for word in verdict.words)
            example = "data:NAME with the name of a data set" if prefix == "data" else ValueKind.TEACHER
            raise OverrideError(f"got {name}={show_escaped(value.text)}, expected {example}{words}")
        path = self.resolve_data(rest) if prefix == "data" else self.resolve_teacher(rest)
        if "\\" in str(path) or "${" in str(path) or not str(path).isprintable():
            raise OverrideError(f"the path of {value.text} has a sign that an override cannot have: move the service")
        return Scalar(str(path), is_quoted=True)
