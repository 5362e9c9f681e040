"""The signal of a teacher in a training: cached outputs or a teacher that runs in every step, for each task."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from distill.core.contracts import (
    TASK_ID,
    TEACHER_LOGITS,
    Batch,
    Examples,
    Items,
    Learnable,
    Likelihood,
    Outputs,
    Scores,
    Signal,
    Stream,
    Task,
)
from distill.core.errors import UserError, first_line
from distill.core.files import JsonObject
from distill.data.batches import (
    MixedExamples,
    labelled_only,
    scoring_steps,
    seen_examples,
    shown_in_epoch,
    streamed_pool,
)
from distill.data.shards import Shards
from distill.kinds.outputs import KnownReading
from distill.kinds.scoring import Scoring
from distill.losses import Objective
from distill.losses.term import get_logits
from distill.models.compatibility import encoder_size
from distill.models.forward import to_device
from distill.models.loading import read_config
from distill.models.sentence_files import read_vocabulary
from distill.teachers.computation import (
    Computation,
    HiddenStatesOverflow,
    cache_outputs,
    count_logit_bytes,
    count_visited,
    fill_outputs,
    open_outputs,
)
from distill.teachers.output_cache import Cached, Draws, HiddenLayers, OutputCache, TopK
from distill.teachers.prepared import PreparedTeacher, join_prepared
from distill.teachers.reading import Reading
from distill.teachers.source import TeacherSource, mix_logits
from distill.training.module import NOTHING, freeze, split_metrics


class Live(Signal):
    """A teacher that runs for every batch, in evaluation mode, in its own precision and without gradients.

    Args:
        model: moved to the device of the batches.
        objective: names the outputs that are computed.
        reason: the reason why the outputs are not cached.
        reading: how a teacher of another tokenizer reads the examples, or what a table says of them; None for one that
            reads the batches.
    """

    seconds = 0.0

    def __init__(
        self,
        model: PreTrainedModel,
        task: Learnable,
        objective: Objective,
        *,
        reason: str,
        reading: Reading | KnownReading | None = None,
    ) -> None:
        self.model, self.task, self.objective, self.reason = freeze(model), task, objective, reason
        self.reading = reading

    def __getstate__(self) -> dict[str, Any]:
        """Moves the model to the CPU, because it is pickled for processes with other GPUs."""
        self.model.cpu()
        return self.__dict__

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        device = batch["attention_mask"].device
        if self.model.device != device:
            self.model.to(device)
        with self._timed():
            if self.reading is not None:
                return self.reading.run(self.model, batch, items, self.objective.teacher_needs)
            outputs = self.task.run(self.model, batch, items, self.objective.teacher_needs)
        return outputs if outputs.head is None else replace(outputs, head=self._timed()(outputs.head))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Disables gradients and autocast, and adds the duration to `seconds`."""
        start = time.perf_counter()
        with torch.no_grad(), torch.autocast(self.model.device.type, enabled=False):
            yield
        self.seconds += time.perf_counter() - start


class SignalByTask(Signal):
    """The cached outputs of the teachers of several tasks, in the order of the tasks' numbers."""

    def __init__(self, signals: Sequence[Signal]) -> None:
        self.signals = signals

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        return self.signals[int(batch[TASK_ID][0])](batch, items)


class Streamed(Signal):
    """The teacher's outputs of a stream, which its batches have, and of the labelled examples that it is mixed with.

    Args:
        shards: those of the stream.
        labelled: outputs of the labelled examples, `[N, C]`.
    """

    def __init__(self, shards: Shards, labelled: Tensor) -> None:
        self.shards, self.labelled = shards, labelled

    @property
    def bytes(self) -> int:
        return self.shards.bytes

    def describe(self) -> str:
        return f"{self.shards.directory} ({self.bytes / 1e6:.1f} MB, streamed)"

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        example = items.example_id().cpu()
        logits = self.labelled[example.clamp(min=0)].to(items.labels.device)
        if TEACHER_LOGITS in batch:  # As in every batch but those of the labelled examples alone.
            is_labelled = (example >= 0).to(logits.device)
            logits = torch.where(is_labelled[:, None], logits, batch[TEACHER_LOGITS][items.row])
        return Outputs(logits=logits)


class Mean(Signal):
    """The mean of the cached outputs of several teachers. Hidden states are those of the first one.

    Args:
        shares, likelihood: as in `mix_logits`.
    """

    def __init__(self, signals: Sequence[Signal], shares: Sequence[float], likelihood: Likelihood) -> None:
        self.signals, self.shares, self.likelihood = signals, shares, likelihood

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        outputs = [signal(batch, items) for signal in self.signals]
        members = [cast(Tensor, output.logits) for output in outputs]  # They are not over a vocabulary.

        def soften(span: slice, temperature: float) -> Tensor:
            logits = [member[span] for member in members]
            return mix_logits(logits, self.shares, self.likelihood, temperature=temperature)

        return replace(outputs[0], logits=soften(slice(None), 1.0), soften=soften)


WRITES = "the student writes some of the texts"


def check_cache(cache: OutputCache, objective: Objective, task: Task, *, is_ensemble: bool = False) -> None:
    """Raises UserError if the outputs cannot be cached and must be: for an ensemble, or by `teacher.cache.enabled`."""
    reason = _obstacle(cache, objective, task)
    if is_ensemble and objective.needs_teacher:
        _refuse_to_run(reason)
    if reason is None:
        _keep(cache, objective, task)


def _keep(cache: OutputCache, objective: Objective, task: Task) -> Draws | TopK | None:
    """Returns what is cached of logits over a vocabulary, None for other tasks; raises UserError as `check_cache`."""
    return cache.over_vocabulary(objective.drawn_at()) if task.info.classes_are_tokens else None


def _refuse_to_run(reason: str | None) -> None:
    """Raises UserError if there is a reason why the teachers of an ensemble would run in every step."""
    if reason is not None:
        raise UserError(
            f"an ensemble teaches from cached outputs, and {reason}: take another objective, or one teacher"
        )


def check_size(
    objective: Objective,
    task: Task,
    teacher: PreTrainedModel,
    examples: Examples,
    cache: OutputCache,
    *,
    student: PreTrainedModel,
    epochs: int | None = None,
) -> None:
    """Raises UserError if the outputs for a training of so many epochs must be cached and exceed the allowed size."""
    if not objective.needs_teacher or _obstacle(cache, objective, task) is not None:
        return
    hidden = hidden_layers(objective, student=student, teacher=teacher)
    if hidden is None or not cache.is_optional:
        lengths = examples.tokens[: seen_examples(examples, epochs)]
        cache.check_size(
            lengths, logit_bytes=count_logit_bytes(cache, task, examples, teacher, len(lengths)),
            hidden=hidden,
        )  # fmt: skip


def hidden_layers(objective: Objective, *, student: PreTrainedModel, teacher: PreTrainedModel) -> HiddenLayers | None:
    """Returns the teacher's hidden states that the objective reads, None without any."""
    depth = int(teacher.config.num_hidden_layers)
    layers = objective.teacher_layers(int(student.config.num_hidden_layers), depth)
    return HiddenLayers(int(teacher.config.hidden_size), depth, layers) if layers else None


def teacher_logits(
    teacher: PreparedTeacher, task: Learnable, examples: Examples | Stream, signal: Signal, *, most: int
) -> list[Tensor]:
    """Returns the teacher's logits on labelled examples of train, batches of `[n, C]` in float32 on the CPU.

    Args:
        signal: has the logits if they are cached; otherwise the teacher runs.
        most: number of examples, which are evenly spaced.
    """
    labelled = labelled_only({"train": examples})["train"]
    assert isinstance(labelled, Examples)  # A stream has no vectors.
    return _logits_of(np.arange(len(labelled)), teacher, task, labelled, signal, most=most)


def measure_sureness(
    teacher: PreparedTeacher, task: Task, examples: Examples | Stream, signal: Signal, *, most: int
) -> float | None:
    """Returns the mean of the teacher's largest probability on the texts that only it labels.

    Of labels with a sigmoid each, it is the mean of the probabilities of what is likelier, the label or its absence.

    Args:
        most: number of texts, which are evenly spaced among those of the first epoch.

    Returns:
        None without such texts, and for outputs that are no probabilities.
    """
    if not isinstance(examples, MixedExamples) or task.info.likelihood not in ("softmax", "sigmoid"):
        return None
    drawn = np.arange(len(examples.labelled), examples.seen(1))
    if not len(drawn):
        return None
    logits = torch.cat(_logits_of(drawn, teacher, task, examples, signal, most=most))
    if task.info.likelihood == "softmax":
        return float(logits.softmax(dim=-1).amax(dim=-1).mean())
    return float(logits.abs().sigmoid().mean())


@torch.no_grad()
def _logits_of(
    indices: np.ndarray, teacher: PreparedTeacher, task: Learnable, examples: Examples, signal: Signal, *, most: int
) -> list[Tensor]:
    """Returns the teacher's logits on at most so many of these examples, as `teacher_logits`."""
    chosen = indices[np.linspace(0, len(indices) - 1, min(most, len(indices))).astype(int)]
    logits, is_cached, reading = [], signal.bytes > 0, teacher.readings.get(examples.digest)
    for rows in scoring_steps(examples.lengths[chosen]):
        batch = to_device(examples[chosen[rows].tolist()], torch.device("cpu") if is_cached else teacher.device)
        items = task.select(batch)
        outputs = (
            signal(batch, items) if is_cached
            else task.run(teacher.running(), batch, items, frozenset()) if reading is None
            else reading.run(teacher.running(), batch, items, frozenset())
        )  # fmt: skip
        logits.append(get_logits(outputs.at(items)).float().cpu())
    return logits


def earlier_decision(record: JsonObject, checkpoint: Path) -> JsonObject | None:
    """Returns the `teacher_outputs` of run.json if a training continues from `checkpoint`, None if it begins."""
    decision: JsonObject | None = record.get("teacher_outputs") if checkpoint.is_file() else None
    return decision


def outputs_for_training(
    teacher: PreparedTeacher,
    objective: Objective,
    task: Task,
    examples: Examples | Stream,
    *,
    student: PreTrainedModel,
    cache: OutputCache,
    directory: Path,
    epochs: float = 1.0,
    earlier: JsonObject | None = None,
) -> Signal:
    """Returns the teacher's outputs for the training: cached ones, or those of a teacher that runs in every step.

    Args:
        examples: the training split.
        epochs: number of epochs of the training, a fraction if it ends within one.
        earlier: the decision of `earlier_decision`, which a resumed training keeps.

    Raises:
        UserError: if the outputs of an ensemble cannot be cached.
    """
    if not objective.needs_teacher:
        return NOTHING
    if not isinstance(examples, Examples):
        return run_live(teacher, task, objective, "a stream shows a text once only")
    first, *others = teacher.members
    if (streamed := streamed_pool(examples)) is not None:
        return _stream(streamed.shards, examples, first, task, cache, directory)
    hidden = hidden_layers(objective, student=student, teacher=first.model)
    reason = WRITES if objective.writing is not None else _obstacle(
        cache, objective, task, hidden_gb=cache.size_gb(examples.tokens, logit_bytes=0, hidden=hidden),
        unnamed_layers=objective.needing_unnamed_layers(
            student.config.num_hidden_layers, first.model.config.num_hidden_layers
        ),
    )  # fmt: skip
    outputs = reason or _cache_or_reason(
        replace(computation_of(first, task, cache, directory), kept=_keep(cache, objective, task)),
        examples, first.model, hidden, objective, epochs, earlier,
    )  # fmt: skip
    if isinstance(outputs, str):
        if others:
            _refuse_to_run(outputs)
        return run_live(teacher, task, objective, outputs, examples)
    if not others:
        return outputs
    further = [
        cache_outputs(computation_of(other, task, cache, directory), examples, epochs=epochs) for other in others
    ]
    return Mean([outputs, *further], teacher.shares, task.info.likelihood)


def _stream(
    shards: Shards, examples: Examples, teacher: PreparedTeacher, task: Task, cache: OutputCache, directory: Path
) -> Streamed:
    """Returns the outputs of shards, and those `[N, C]` of labelled examples, of one item each."""
    cached = cache_outputs(computation_of(teacher, task, cache, directory), examples)
    parts, order = [], list[int]()
    for rows in scoring_steps(examples.lengths):
        batch = examples[rows]
        parts.append(get_logits(cached(batch, task.select(batch))))
        order += rows
    joined = torch.cat(parts)
    labelled = torch.empty_like(joined).index_copy_(0, torch.tensor(order), joined)
    return Streamed(shards, labelled)


def run_live(
    teacher: PreparedTeacher,
    task: Learnable,
    objective: Objective,
    reason: str,
    examples: Examples | Stream | None = None,
) -> Signal:
    """Returns the outputs of a teacher that runs in every step for this reason, if the objective reads them.

    Args:
        examples: those of the training of one task.
    """
    reading = None if examples is None else teacher.readings.get(examples.digest)
    live = Live(teacher.running(), task, objective, reason=reason, reading=reading)
    return live if objective.needs_teacher else NOTHING


def _cache_or_reason(
    computation: Computation,
    examples: Examples,
    teacher: PreTrainedModel,
    hidden: HiddenLayers | None,
    objective: Objective,
    epochs: float,
    earlier: JsonObject | None,
) -> Cached | str:
    """Returns the cached outputs of one teacher, or the reason why optional ones are not cached.

    The decision depends on the options, the data and the free space of the disk, and not on what is cached already,
    except that cached outputs need no space.
    """
    cache, shown = computation.cache, int(epochs * shown_in_epoch(examples))
    if hidden is None or not cache.is_optional or (earlier is not None and earlier["cached"]):
        return cache_outputs(computation, examples, hidden=hidden, epochs=epochs)
    if earlier is not None:
        return str(earlier["reason"])
    outputs = open_outputs(computation, examples, hidden)
    number = outputs.covering(count_visited(examples, epochs))
    logit_bytes = count_logit_bytes(cache, computation.task, examples, teacher, number)
    reason = cache.shortage(outputs, number, logit_bytes)
    if shown < number:
        reason = f"the training shows {shown:,} examples, fewer than the {number:,} that caching computes"
    if reason is None:
        try:
            return fill_outputs(computation, examples, outputs, number)
        except HiddenStatesOverflow as error:
            reason = error.reason
    return f"{', '.join(objective.needing('hidden_states'))} reads hidden states, and {reason}"


def computation_of(teacher: PreparedTeacher, task: Task, cache: OutputCache, directory: Path) -> Computation:
    """Returns the computation of the outputs of one teacher."""
    return Computation(
        teacher.running, teacher.fingerprint, task, cache, directory, device=teacher.device.type,
        readings=teacher.readings,
    )  # fmt: skip


def _obstacle(
    cache: OutputCache, objective: Objective, task: Task, *, hidden_gb: float = 0.0, unnamed_layers: Sequence[str] = ()
) -> str | None:
    return cache.obstacle(
        {output: objective.needing(output) for output in objective.needs},
        fixed_inputs=task.info.fixed_inputs,
        by_default=task.info.caches_outputs,
        hidden_gb=hidden_gb,
        needing_all=objective.needing_all_logits() if task.info.classes_are_tokens else (),
        unnamed_layers=unnamed_layers,
    )


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
    _compare(loaded, {name: str(directory) for name, directory in given.items()}, objective)


def _compare(parts: Mapping[str, tuple[object, object]], teachers: Mapping[str, str], objective: Objective) -> None:
    """Raises UserError for teachers whose vocabularies, or sizes that the objective compares, are not the first one's.

    Args:
        parts: the vocabulary and the size of the teacher of each task.
        teachers: the name of each.
    """
    first = next(iter(parts))
    for name, (vocabulary, _) in parts.items():
        if vocabulary != parts[first][0]:
            raise UserError(
                f"the teacher of task {name} ({teachers[name]}) reads other tokens than that of task {first} "
                f"({teachers[first]}): one student reads one vocabulary, so give teachers with the same tokenizer"
            )
    for name, (_, size) in parts.items():
        if objective.needs and size != parts[first][1]:
            raise UserError(
                f"the teacher of task {name} ({teachers[name]}) has an encoder of another size than that of task "
                f"{first} ({teachers[first]}), and objective {objective.name} compares encoders: take "
                "objective=hinton, which compares logits alone"
            )


def _load_parts(directory: Path, *, trust_remote_code: bool) -> tuple[dict[str, Any], tuple[int | None, ...]]:
    """Returns the vocabulary of a model in a directory, and its width, its layers and its heads."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=trust_remote_code)
        config = read_config(directory, trust_remote_code=trust_remote_code)
        sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads")
        return read_vocabulary(tokenizer), tuple(getattr(config, name, None) for name in sizes)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:  # Of transformers, for damaged files.
        raise UserError(f"{directory} cannot be loaded: {first_line(error)}") from error


def join_teachers(teachers: Mapping[str, PreparedTeacher], objective: Objective) -> PreparedTeacher:
    """Returns the teachers of several tasks as one; a single one stays as it is.

    Raises:
        UserError: for teachers with other tokens, and for encoders of other sizes where the objective reads them.
    """
    if len(teachers) == 1:
        return next(iter(teachers.values()))
    names = {name: teacher.resolved for name, teacher in teachers.items()}
    parts = {name: (read_vocabulary(one.tokenizer), encoder_size(one.model)) for name, one in teachers.items()}
    _compare(parts, names, objective)
    resolved = ", ".join(dict.fromkeys(names.values()))
    return join_prepared(list(teachers.values()), resolved=resolved, by_task=teachers)


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
    return SignalByTask(signals) if objective.needs_teacher else NOTHING
