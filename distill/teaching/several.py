"""The teachers of several tasks, each for the batches of its own task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from distill.contracts import Learnable, Scores, Signal
from distill.errors import UserError, first_line
from distill.losses import Objective
from distill.models.checks import encoder_size
from distill.models.tokenizer import read_vocabulary
from distill.tasks.scoring import Scoring
from distill.teaching.outputs import run_live
from distill.teaching.prepared import PreparedTeacher, digest_parts
from distill.teaching.signal import ByTask
from distill.teaching.source import TeacherSource
from distill.training.evaluate import split_metrics
from distill.training.module import NOTHING


def check_teachers(sources: Mapping[str, TeacherSource], objective: Objective) -> None:
    """Raises UserError for teachers in directories with other tokens, or sizes that the objective cannot compare."""
    directories = {name: source.weights.locate() for name, source in sources.items()}
    given = {name: directory for name, directory in directories.items() if directory is not None}
    if len(set(given.values())) < 2:
        return
    loaded = {
        name: _load_parts(directory, trust_remote_code=sources[name].weights.trust_remote_code)
        for name, directory in given.items()
    }
    names = {name: str(directory) for name, directory in given.items()}
    _compare_vocabularies({name: vocabulary for name, (vocabulary, _) in loaded.items()}, names)
    _compare_sizes({name: size for name, (_, size) in loaded.items()}, names, objective)


def _compare_vocabularies(vocabularies: Mapping[str, object], teachers: Mapping[str, str]) -> None:
    first = next(iter(vocabularies))
    for name, vocabulary in vocabularies.items():
        if vocabulary != vocabularies[first]:
            raise UserError(
                f"the teacher of task {name} ({teachers[name]}) reads other tokens than that of task {first} "
                f"({teachers[first]}): one student reads one vocabulary, so give teachers with the same tokenizer"
            )


def _compare_sizes(sizes: Mapping[str, object], teachers: Mapping[str, str], objective: Objective) -> None:
    first = next(iter(sizes))
    for name, size in sizes.items():
        if objective.needs and size != sizes[first]:
            raise UserError(
                f"the teacher of task {name} ({teachers[name]}) has an encoder of another size than that of task "
                f"{first} ({teachers[first]}), and objective {objective.name} compares encoders: take "
                "objective=hinton, which compares logits alone"
            )


def _load_parts(directory: Path, *, trust_remote_code: bool) -> tuple[dict[str, Any], tuple[int | None, ...]]:
    """Returns the vocabulary of a model in a directory, and its width, its layers and its heads."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=trust_remote_code)
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads")
        return read_vocabulary(tokenizer), tuple(getattr(config, name, None) for name in sizes)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:  # Of transformers, for damaged files.
        raise UserError(f"{directory} cannot be loaded: {first_line(error)}") from error


def join_teachers(teachers: Mapping[str, PreparedTeacher], objective: Objective) -> PreparedTeacher:
    """Returns the teachers of several tasks as one; a single one stays as it is.

    Everything but the running model, scores and size is that of the first one.

    Raises:
        UserError: for teachers with other tokens, and for encoders of other sizes where the objective reads them.
    """
    if len(teachers) == 1:
        return next(iter(teachers.values()))
    names = {name: teacher.resolved for name, teacher in teachers.items()}
    _compare_vocabularies({name: read_vocabulary(teacher.tokenizer) for name, teacher in teachers.items()}, names)
    _compare_sizes({name: encoder_size(teacher.model) for name, teacher in teachers.items()}, names, objective)
    first, every = next(iter(teachers.values())), teachers.values()
    return PreparedTeacher(
        requested=first.requested, resolved=", ".join(dict.fromkeys(one.resolved for one in every)),
        substituted=any(one.substituted for one in every), origin=", ".join(one.origin for one in every),
        tokenizer=first.tokenizer, load=lambda: first.model, precision=first.precision,
        weights=digest_parts([one.fingerprint for one in every]), device=first.device,
        seconds=sum(one.seconds for one in every), by_task=teachers,
    )  # fmt: skip


def join_scores(teacher: PreparedTeacher, scoring: Scoring) -> None:
    """Sets scores, metrics and notices of the teacher of several tasks from those of the teacher of each."""
    every = [one.scores for one in teacher.by_task.values()]
    splits = dict.fromkeys(split for scores in every for split in scores)
    teacher.scores = {
        split: Scores.of_tasks({number: scores[split] for number, scores in enumerate(every) if split in scores})
        for split in splits
    }
    teacher.metrics = split_metrics(scoring, teacher.scores)
    teacher.notices = [notice for one in teacher.by_task.values() for notice in one.notices]


def join_signals(signals: Sequence[Signal], teacher: PreparedTeacher, task: Learnable, objective: Objective) -> Signal:
    """Returns the outputs of the teachers of all tasks as one signal.

    All teachers run in every step if one of them does, for its reason.

    Args:
        signals: of each task.
        teacher: that of all tasks.
        task: all tasks.
    """
    if len(signals) == 1:
        return signals[0]
    reasons = [signal.reason for signal in signals if signal.reason is not None]
    if reasons:
        return run_live(teacher, task, objective, reasons[0])
    return ByTask(signals) if objective.needs_teacher else NOTHING
