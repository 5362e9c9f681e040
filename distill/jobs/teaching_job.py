"""The job `teach`, which writes the outputs of a teacher for any number of texts to shards that a training streams."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from omegaconf import DictConfig
from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as checked_dataclass
from transformers import PreTrainedModel

from distill.core import storage
from distill.core.console import ProgressMeter, format_duration, print_line, print_notice, silence_libraries
from distill.core.errors import OptionError, UserError
from distill.core.files import show_size
from distill.core.options import STRICT, check_options
from distill.core.storage import local_path, open_cache
from distill.data.pool import KnownTexts, describe_removed
from distill.data.shards import OUTPUTS, VERSION, Dtype, Manifest, ShardWriter, check_room, rounded
from distill.data.splits import LabelledData, Pool
from distill.data.text_files import Part, TextFiles
from distill.jobs import execution
from distill.kinds.kind import Encoder, Kind
from distill.kinds.multitask import Tasks
from distill.models.forward import count_outputs
from distill.records.run import Run
from distill.teachers import preparation as teaching
from distill.teachers.computation import Computation, compute_logits
from distill.teachers.prepared import PreparedTeacher
from distill.teachers.signal import computation_of
from distill.teachers.source import check_source, locate

TIMED = 1000  # Texts of a dry run.


@check_options("teach")
@checked_dataclass(frozen=True, config=STRICT)
class TeachSettings:
    """The options of `teach`, as `conf/job/teach.yaml` describes them."""

    output: str = "shards"
    texts: PositiveInt = 50_000
    dtype: Dtype = "float32"
    worker: NonNegativeInt = 0


@dataclass(frozen=True)
class TeacherPass:
    """The pass of a teacher over texts.

    Args:
        task: as the teacher reads it.
        teacher: what is known of it, and `model` in its precision.
        data: the labelled rows, without a pool.
    """

    task: Kind
    teacher: PreparedTeacher
    data: LabelledData
    computation: Computation

    @cached_property
    def known(self) -> KnownTexts:
        """The texts of the labelled rows, which are left out."""
        return KnownTexts.of(self.data)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The teacher on its device, in its precision."""
        return self.teacher.running()

    def estimate_seconds(self, part: Part, total: int | None) -> float:
        """Returns the seconds of a pass over all texts, from one over the first ones of a part."""
        few = [column[:TIMED] for column in part]
        start = time.perf_counter()
        self.compute(few, lambda number: None)
        return (time.perf_counter() - start) / len(few[0]) * (total or len(part[0]))

    def compute(self, part: Part, done: Callable[[int], None]) -> tuple[Part, np.ndarray, dict[str, int]]:
        """Returns the texts that are new, their outputs `[N, C]`, and the number of those removed by reason."""
        rows = self.task.create_rows(part)
        chosen, removed = self.known.choose_new(rows)
        done(len(rows) - len(chosen))
        texts = [[column[row] for row in chosen] for column in part]
        if not len(chosen):
            return texts, np.zeros((0, count_outputs(self.model)), dtype=np.float32), removed
        encoder = Encoder(self.teacher.tokenizer, self.task.max_length, None)
        examples = self.task.encode_texts(encoder, self.data, rows.select(chosen))
        return texts, compute_logits(self.computation, self.model, examples, done).numpy(), removed


def run_teach(config: DictConfig, run: Run) -> None:
    """Writes those shards that no process has written or is writing.

    Raises:
        UserError: for options, data and shards that do not fit.
    """
    if not isinstance(config.data, str):
        raise UserError("job=teach has no texts: add data=FILE, a directory, a URL or a data set of the Hub")
    settings: TeachSettings = execution.instantiate(config.teach)
    task = _find_task(Tasks.of(execution.instantiate(config.task)))
    if settings.dtype == "int8" and task.likelihood != "vector":
        raise OptionError("teach.dtype", "int8", "float32 or float16, because int8 is for vectors")
    output = local_path(settings.output)
    storage.check(output)
    texts = TextFiles(config.data, task.known_columns)
    first = next(texts.read(settings.texts), None)
    if first is None:
        raise UserError(f"data={config.data} has no text")
    outputs = _prepare(config, run, task)
    total = texts.count()
    of_texts = float(np.mean([len(text.encode()) for texts in zip(*first, strict=True) for text in texts])) * len(first)
    of_outputs = np.dtype(settings.dtype).itemsize * count_outputs(outputs.teacher.model)
    needed = (total or len(first[0])) * (of_texts + of_outputs)
    amount = "an unknown number of texts" if total is None else f"about {total:,} texts"
    print_line(
        f"Texts    {amount} of {config.data}, at most {show_size(needed)} in {settings.output} ({settings.dtype})"
    )
    check_room(output, needed)
    if config.dry_run:
        print_line(f"Teacher  about {format_duration(outputs.estimate_seconds(first, total))} by one process")
        return
    manifest = Manifest(
        VERSION, task.kind, task.known_columns, outputs.data.labels, outputs.teacher.fingerprint, outputs.data.sha256,
        texts.describe(), settings.texts, settings.dtype,
    )  # fmt: skip
    run.update(teacher=outputs.teacher.record())
    _write(ShardWriter(output, manifest), texts, outputs, total or len(first[0]))


def _find_task(tasks: Tasks) -> Kind:
    """Returns the only task, whose examples are one item each; raises UserError for others."""
    [task, *others] = tasks.values()
    if others or not isinstance(task, Kind) or not task.can_stream:
        raise UserError(
            f"job=teach is for one task of classes, numbers or vectors of texts, and task={tasks.name} is none: take "
            "job=distill, which computes the outputs itself"
        )
    return task


def _prepare(config: DictConfig, run: Run, task: Kind) -> TeacherPass:
    """Returns the pass of the teacher; raises UserError for a teacher that is no model."""
    silence_libraries()
    requested, cache_dir = execution.build_source(config), execution.cache_dir(config)
    if requested.labeller is not None or requested.others or requested.targets is not None:
        raise UserError(
            f"job=teach writes the outputs of one model, and teacher {requested.weights.name} is none: a file of "
            "outputs is read as it is (+teacher=file), and an ensemble teaches in job=distill"
        )
    check_source(requested, task)
    open_cache(cache_dir)
    with run.timed("data"):
        data = task.read(cache_dir)
    source = locate(requested, task)
    own = task if source.max_length is None else task.with_max_length(source.max_length)
    preparation = teaching.Preparation(
        task=own, splits=data, cache_dir=cache_dir, run_directory=run.directory,
        device=execution.instantiate(config.trainer).device(), resume=bool(config.resume), dry_run=config.dry_run,
    )  # fmt: skip
    with run.timed("teacher"):
        teacher = teaching.prepare(source, preparation)
    computation = computation_of(teacher, own, source.cache, cache_dir / "outputs")
    return TeacherPass(own, teacher, replace(data, pool=Pool()), computation)


def _write(writer: ShardWriter, texts: TextFiles, outputs: TeacherPass, total: int) -> None:
    """Writes the shards that are left, and prints how many there are."""
    names, written, left_out, number = writer.manifest.columns, 0, dict[str, int](), 0
    with ProgressMeter("teacher", total, unit="texts") as meter:
        for number, part in enumerate(texts.read(writer.manifest.texts)):
            with writer.claim(number) as is_mine:
                if not is_mine:
                    meter.advance(len(part[0]))
                    continue
                kept, values, removed = outputs.compute(part, meter.advance)
                path = writer.write(number, dict(zip(names, kept, strict=True)), values)
            left_out = {reason: left_out.get(reason, 0) + count for reason, count in removed.items()}
            if not written and len(values):
                _check_first(writer, values, path, total)
            written += len(values)
    missing = writer.finish(number + 1)
    print_line(f"Teacher  {written:,} texts with {OUTPUTS}; removed: {describe_removed(left_out)}")
    print_line(f"Shards   {number + 1 - missing:,} of {number + 1:,} in {storage.address(writer.directory)}")
    if missing:
        print_notice(f"other processes write {missing:,} more; the same command writes those that they lose")


def _check_first(writer: ShardWriter, values: np.ndarray, path: Path, total: int) -> None:
    """Prints the error of a rounded shard, and checks the room for the others by the size of the first one."""
    dtype = writer.manifest.dtype
    if dtype != "float32":
        error = float(np.abs(rounded(values, dtype) - values).max())
        print_line(f"Teacher  {dtype} changes an output by at most {error:.2g} of {np.abs(values).max():.3g}")
    missing = max(0, total - len(values))
    check_room(writer.directory, path.stat().st_size / len(values) * missing)
