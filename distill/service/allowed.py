"""The options that a request may set: a table with a verdict for every key of `conf/`, and the check of overrides.

Nothing of a request names a class, a path, an address or a model of the Hub. Data sets of the owner are `data:NAME` and
models of the administrator's directory `teacher:NAME`, which the service resolves to the only paths of a command.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from distill.installation import config_directory
from distill.service.grammar import Override, OverrideError, Scalar, Value, parse_override
from distill.service.names import is_name, show

MULTIRUN = ("-m", "--multirun")
MOST_OVERRIDES = 200
MOST_RUNS = 200  # Of a sweep.
Resolve = Callable[[str], Path]  # Returns the path of a name, or raises an error of one line.


class Kind(StrEnum):
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
class Verdict:
    """Whether a request may set an option, and to which values.

    Args:
        words: values that are taken besides those of the kind.
        group: of conf, of whose files the value is a name.
        excluded: names of the group that only an administrator may choose.
        is_for_all: whether everybody may set it, and not an administrator alone.
        reason: for an option that nobody may set.
    """

    kind: Kind
    words: tuple[str, ...] = ()
    group: str = ""
    excluded: tuple[str, ...] = ()
    is_for_all: bool = True
    reason: str = ""


def _list(kind: Kind, section: str, names: str, *, words: tuple[str, ...] = (), is_for_all: bool = True) -> "Table":
    return {f"{section}{name}": Verdict(kind, words, is_for_all=is_for_all) for name in names.split()}


def _refuse(section: str, names: str, reason: str) -> "Table":
    return {f"{section}{name}": Verdict(Kind.NEVER, reason=reason) for name in names.split()}


def _choose(group: str, *excluded: str) -> "Table":
    return {group: Verdict(Kind.CHOICE, group=group, excluded=excluded)}


Table = dict[str, Verdict]
OF_JOBS = "it is of a job that the service does not run"
OF_SERVICE = "the service sets it"
# `*` stands for one part of a key.
TABLE: Table = {
    # Choices of files
    **_choose("ablation"), **_choose("adapt"), **_choose("augment"), **_choose("benchmark"), **_choose("experiment"),
    **_choose("export"), **_choose("objective"), **_choose("student"), **_choose("task"), **_choose("teacher"),
    **_choose("variant"), **_choose("logger", "mlflow", "wandb"), **_choose("trainer", "ddp", "fsdp", "ray"),
    **_choose("job", "benchmark", "cache", "check", "glue_test", "inspect", "publish", "report"),
    # The run
    **_list(Kind.VALUE, "", "seed seeds baseline alpha copies"),
    **_list(Kind.VALUE, "record.", "texts"),
    **_list(Kind.VALUE, "report.", "margin"),
    **_list(Kind.VALUE, "budget.", "mb ms widths"),
    **_list(Kind.ANY, "", "output_dir cache_dir", is_for_all=False),
    **_refuse("", "resume dry_run", OF_SERVICE),
    **_refuse("", "trust", "it would run the code of others"),
    **_refuse("", "bundles data json label model other private refresh repo report_dir run runs text", OF_JOBS),
    **_refuse("inspect.", "*", OF_JOBS),
    **_refuse("job.", "dry_run formats license older_than_days threads to_gb", OF_JOBS),
    **_refuse("job.", "name", "choose with job=NAME"),
    **_refuse("experiment.", "* *.* *.*.* *.*.*.*", "it is the table of an experiment"),
    # The task
    **_list(
        Kind.VALUE, "task.",
        "beams builtin clean column corruption dev_examples dev_fraction doc_stride documents keep_gb lengths "
        "long_targets masking masks max_answer_length max_length max_target mean_span metrics missing multi_label "
        "n_best negatives negatives_by noise normalize packing pair pooling prompt rounds sampling scored_texts "
        "seed streaming text_metrics top train_examples unlabelled_share word_column",
    ),
    **_list(Kind.VALUE, "task.mask.", "probability replace shuffle shuffle_size span_longest span_p unit"),
    **_list(Kind.VALUE, "task.generator.", "layers width"),
    **_list(
        Kind.TEXT, "task.",
        "answer choices class_weights classes context label labels language positive prefix question separator source "
        "tags target text tokens train_label train_text triples words words.* words.*.*",
    ),
    **_list(Kind.NAME, "task.", "name"),
    **_list(Kind.FILES, "task.", "splits splits.*"),
    **_list(Kind.DATA, "task.", "data_dir bank transfer transfer.*", words=("null",)),
    **_list(Kind.DATA, "task.", "unlabelled", words=("null", "auto")),
    **_list(Kind.TEACHER, "task.", "cross_encoder source_encoder generator.path", words=("null",)),
    **_list(Kind.TEACHER, "task.", "candidates", words=("bm25",)),
    **_list(Kind.ANY, "task.", "hub_id", is_for_all=False),
    "task.tasks": Verdict(Kind.CHOICE, group="task"),
    # The teacher
    **_list(
        Kind.VALUE, "teacher.",
        "accept_weak attention beams decoder_depth depth dropout family features global_tokens heads hidden_dim "
        "hidden_size keep layers pieces positions precision sampling_seed sampling_temperature seed start "
        "vocabulary weights window",
    ),
    **_list(Kind.VALUE, "teacher.bilstm.", "dropout hidden_dim layers pooling"),
    **_list(Kind.VALUE, "teacher.contrastive.", "batch_size epochs learning_rate pairs seed"),
    **_list(Kind.VALUE, "teacher.cache.", "enabled hidden max_gb draws top_k"),
    **_list(Kind.TEXT, "teacher.", "labels hypothesis"),
    **_list(Kind.NAME, "teacher.", "name"),
    **_list(Kind.TEACHER, "teacher.", "path paths paths.* encoder tokenizer", words=("null",)),
    **_list(Kind.DATA, "teacher.", "texts", words=("null",)),
    **_list(Kind.ANY, "teacher.", "id revision sizes", is_for_all=False),
    **_refuse("teacher.", "trust_remote_code", "it would run the code of others"),
    # The student and its losses
    **_list(
        Kind.VALUE, "student.",
        "attention bucket_dim buckets chunk chunk_overlap chunk_pooling classifier_dim decoder_depth depth dilations "
        "dim dropout embedding_dim ffn global_tokens groups heads hidden_dim init layer layers pooling positions prune "
        "prune_share prune_steps share smoothing start table tag_width token_dropout widths window",
    ),
    **_list(Kind.VALUE, "student.general.", "batch_size documents learning_rate max_length passes tokens"),
    **_list(Kind.DATA, "student.general.", "corpus", words=("null",)),
    **_list(Kind.NAME, "student.", "name"),
    **_list(Kind.TEACHER, "student.", "path", words=("null",)),
    **_refuse("student.", "trust_remote_code", "it would run the code of others"),
    **_list(Kind.VALUE, "objective.", "dimensions"),
    **_list(Kind.NAME, "objective.", "name"),
    **_list(
        Kind.VALUE, "objective.terms.*.",
        "alpha beta classes divergence embeddings last_layer layers margin part position_width positions projection "
        "relation_heads sampling_temperature scale smoothing student_share targets teacher_layer temperature weight",
    ),
    **_list(Kind.VALUE, "ablation.", "init"),
    **_list(Kind.NAME, "ablation.", "name"),
    **_list(Kind.NAME, "variant.", "name"),
    # The training
    **_list(
        Kind.VALUE, "trainer.",
        "accelerator accumulate batch_size batch_tokens betas checkpoint_steps clip compact_embeddings compile ema "
        "embeddings_learning_rate eps evaluations frozen_embeddings learning_rate max_epochs max_steps min_steps "
        "patience precision schedule seed soup warmup weight_decay",
    ),
    **_list(Kind.VALUE, "trainer.", "devices strategy", is_for_all=False),
    **_list(Kind.VALUE, "augment.", "candidates copies language longest_ngram p_mask p_ngram p_pos p_replace seed"),
    **_list(Kind.TEACHER, "augment.", "model", words=("null",)),
    **_list(Kind.NAME, "augment.", "name"),
    **_list(Kind.TEXT, "adapt.", "add_words"),
    # The bundle
    **_list(
        Kind.VALUE, "export.",
        "abstain calibration dimensions enabled formats max_batch_diff max_drop max_ece_rise max_probability_diff "
        "max_vector_drop min_agreement model2vec qat_epochs recipes search_evaluations target vocabulary",
    ),
    **_list(Kind.DATA, "export.", "vocabulary_texts"),
    **_list(Kind.VALUE, "benchmark.", "batches dev_pass enabled lengths max_lengths seconds teacher threads"),
    **_list(Kind.ANY, "logger.mlflow.", "bundle directory experiment tracking_uri", is_for_all=False),
    **_list(Kind.ANY, "logger.wandb.", "bundle entity mode project", is_for_all=False),
}  # fmt: skip
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
    overrides: Sequence[str],
    *,
    resolve_data: Resolve,
    resolve_teacher: Resolve,
    administrator: bool = False,
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


def find_verdict(key: Sequence[str]) -> Verdict | None:
    """Returns the verdict on an option; None for one that `conf/` has not.

    >>> find_verdict(["task", "max_length"]).kind
    <Kind.VALUE: 'numbers, words, and lists of them'>
    """
    if key[0] == "hydra":
        return Verdict(Kind.NEVER, reason="it is of the command line")
    if any(part.startswith("_") for part in key):
        return Verdict(Kind.NEVER, reason="it names the code that runs")
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
            raise OverrideError(f"there is no option {show(name)}{f': did you mean {close[0]}?' if close else ''}")
        if verdict.kind == Kind.NEVER:
            raise OverrideError(f"the option {name} cannot be set here: {verdict.reason}")
        if not (verdict.is_for_all or self.administrator):
            raise OverrideError(f"the option {name} is for the administrator of the service: leave it out")
        return Override(override.sign, override.key, tuple(self._check(name, verdict, v) for v in override.values))

    def _check(self, name: str, verdict: Verdict, value: Value) -> Value:
        if isinstance(value, list):
            return [self._check(name, verdict, item) for item in value]
        if isinstance(value, dict):
            if verdict.kind in (Kind.VALUE, Kind.NAME, Kind.CHOICE):
                raise OverrideError(f"got a mapping for {name}, expected {verdict.kind}")
            return {key: self._check(name, verdict, item) for key, item in value.items()}
        return value if value.text in verdict.words else self._check_scalar(name, verdict, value)

    def _check_scalar(self, name: str, verdict: Verdict, value: Scalar) -> Scalar:
        match verdict.kind:
            case Kind.DATA:
                return self._resolve(name, verdict, value, "data")
            case Kind.TEACHER:
                is_data = name == "teacher.path" and self.from_file
                return self._resolve(name, verdict, value, "data" if is_data else "teacher")
            case Kind.CHOICE:
                return self._check_choice(name, verdict, value.text)
            case Kind.NAME | Kind.FILES:
                if not is_name(value.text):
                    raise OverrideError(f"got {name}={show(value.text)}, expected {verdict.kind}")
            case Kind.VALUE:
                if not _WORDS.fullmatch(value.text) or ".." in value.text:
                    raise OverrideError(f"got {name}={show(value.text)}, expected {verdict.kind}")
        return value

    def _check_choice(self, name: str, verdict: Verdict, text: str) -> Scalar:
        known = list_choices(verdict.group)
        if text not in known:
            open_to_all = [choice for choice in known if choice not in verdict.excluded]
            raise OverrideError(f"got {name}={show(text)}, expected one of {', '.join(open_to_all)}")
        if text in verdict.excluded and not (self.administrator and verdict.group != "job"):
            raise OverrideError(f"{name}={text} is not for requests to the service: choose another one")
        return Scalar(text)

    def _resolve(self, name: str, verdict: Verdict, value: Scalar, prefix: str) -> Scalar:
        """Returns the path of `data:NAME` or `teacher:NAME`."""
        start, _, rest = value.text.partition(":")
        if start != prefix or not is_name(rest):
            words = "".join(f", or {word}" for word in verdict.words)
            example = "data:NAME with the name of a data set" if prefix == "data" else Kind.TEACHER
            raise OverrideError(f"got {name}={show(value.text)}, expected {example}{words}")
        path = self.resolve_data(rest) if prefix == "data" else self.resolve_teacher(rest)
        if "\\" in str(path) or "${" in str(path) or not str(path).isprintable():
            raise OverrideError(f"the path of {value.text} has a sign that an override cannot have: move the service")
        return Scalar(str(path), is_quoted=True)
