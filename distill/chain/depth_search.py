"""Chooses the largest student whose exported file is within a budget, by measuring students before any training.

It is the deepest one, or with `budget.widths` the one with most weights in its layers, of two alike the deeper one.
Random, copied and trained weights have the same size and the same speed, so that the students need no training.
"""

import inspect
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.benchmark import latency
from distill.benchmark.budget import Budget
from distill.chain.plan import Plan, Student
from distill.console import console, print_line, print_notice
from distill.contracts import Data, Task
from distill.edge import cores
from distill.edge.model_files import count_bytes
from distill.edge.processor import weight_bits
from distill.errors import UserError
from distill.export.bundle import FILES, export_float32
from distill.export.gate import recommended
from distill.export.quantization import Material, write_dynamic
from distill.models.checks import longest
from distill.models.forward import exported_inputs
from distill.models.narrowing import Sizes
from distill.models.origins import Origins
from distill.records.record import Run

DEPTH = "depth"  # The parameter of a function that builds students of any number of layers.
SIZES = ("heads", "ffn")  # Those of one that builds students of any width.
Size = tuple[int | None, float | None]  # Number of layers, and share of the teacher's heads and inner neurons.


@dataclass
class DepthSearch:
    """The search for the largest student within a budget; without a budget it is the student as it is.

    The choice stands in the `budget` of run.json, so that a resumed run does not choose again: times vary.
    """

    student: Student
    plan: Plan
    task: Task
    run: Run
    data: Data
    chosen: Student | None = None

    def choose(self, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Student:
        """Returns the largest student within the budget, measured in the first call.

        Raises:
            UserError: if no student is within the budget.
        """
        if self.chosen is None:
            self.chosen = self._choose(teacher, tokenizer) if self.plan.budget.is_set else self.student
        return self.chosen

    def _choose(self, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Student:
        budget = self.plan.budget
        candidates = _list_candidates(self.student, teacher, budget.shares())
        earlier = self.run.record.get("budget")
        if earlier is not None and earlier["chosen"] is not None:
            return candidates[earlier["chosen"]["depth"], earlier["chosen"].get("width")]
        print_line(f"Measuring untrained students of {self.student.name} for {budget}")
        rows: list[dict[str, Any]] = []
        for (depth, width), student in candidates.items():
            size = {"depth": depth} if width is None else {"depth": depth, "width": width}
            row = {**size, **self._measure(student, teacher, tokenizer)}
            rows.append(row | {"fits": budget.allows(size=row["bytes"], p50_ms=row["p50_ms"])})
            if rows[-1]["fits"]:
                break
        console.print(_create_table(rows))
        last = rows[-1]
        self.run.update(
            budget={"mb": budget.mb, "ms": budget.ms, "tried": rows, "chosen": last if last["fits"] else None}
        )
        if not last["fits"]:
            raise UserError(self._describe_failure(last))
        return candidates[last["depth"], last.get("width")]

    def _measure(
        self, student: Student, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> dict[str, Any]:
        """Returns the size and the latency of the student's int8 file, and the size of its float32 file."""
        settings = self.plan.benchmark
        try:
            model = student.make(teacher, self.task, self.data, Origins(tokenizer))
        except UserError as error:
            raise UserError(f"{self.plan.budget} tries every depth of student {student.name}: {error}") from error
        length = min(*settings.lengths, longest(model, tokenizer))
        threads = settings.threads or cores.count_cores()
        _separate_tensors(model)
        with tempfile.TemporaryDirectory() as directory:
            fp32, int8 = (Path(directory) / FILES[name] for name in ("fp32", "int8"))
            model, tokenizer = export_float32(
                model, fp32, tokenizer=tokenizer, settings=self.plan.export.cut_at_export(), data=self.data,
                info=self.task.info,
            )  # fmt: skip
            bits = weight_bits(self.plan.export.targets()[0])
            write_dynamic(Material(fp32, bits, ties=self.task.info.generates), int8)
            row = time_file(
                int8, exported_inputs(model, tokenizer), length=length, threads=threads, seconds=settings.longest(),
                vocabulary=len(tokenizer), choices=self.data.choices,
            )  # fmt: skip
            if row["disturbed"]:
                print_notice("the machine is busy, so that the student's time may be too long for its depth")
            return {
                "format": "int8", "bytes": row["bytes"], "p50_ms": row["p50_ms"], "length": length,
                "threads": threads, "fp32_bytes": count_bytes(fp32),
            }  # fmt: skip

    def _describe_failure(self, smallest: Mapping[str, Any]) -> str:
        which = "it" if smallest["depth"] is None else f"the one of depth {smallest['depth']}"
        which += f" and width {smallest['width']:g}" if "width" in smallest else ""
        return (
            f"no student {self.student.name} is within {self.plan.budget}: {which} has "
            f"{smallest['bytes'] / 1e6:.1f} MB and {smallest['p50_ms']:.2f} ms in int8 (one text of "
            f"{smallest['length']} tokens, {smallest['threads']} threads): raise the budget, or take another student"
        )


def time_file(
    path: Path,
    inputs: Sequence[str],
    *,
    length: int,
    threads: int,
    seconds: float,
    vocabulary: int,
    choices: int | None,
) -> dict[str, Any]:
    """Returns the row of a benchmark of an exported file, for one text of `length` tokens."""
    candidate = latency.load_candidate("student", path.stem, path, inputs, threads)
    [row] = latency.measure_latency(
        [candidate], batches=[1], lengths=[length], threads=threads, seconds=seconds, vocabulary=vocabulary,
        choices=choices,
    )  # fmt: skip
    return row


def measure_delivered(
    plan: Plan,
    record: Mapping[str, Any],
    directory: Path,
    *,
    inputs: Sequence[str],
    vocabulary: int,
    choices: int | None,
) -> dict[str, Any] | None:
    """Returns the size and the time of the recommended file of a bundle, timed as the student was before the training.

    Its recipe may be another one. None without a recommended file.
    """
    chosen = recommended(record["export"])
    if chosen is None:
        return None
    file, before = record["export"][chosen], record["budget"]["chosen"]
    row = time_file(
        directory / file["file"], inputs, length=before["length"], threads=before["threads"],
        seconds=plan.benchmark.longest(), vocabulary=vocabulary, choices=choices,
    )  # fmt: skip
    delivered = {"format": chosen, "file": file["file"], "recipe": file.get("recipe"), "bytes": file["bytes"]}
    delivered |= {name: row[name] for name in ("p50_ms", "length", "threads", "disturbed")}
    fits = plan.budget.allows(size=file["bytes"], p50_ms=row["p50_ms"])
    return delivered | {"fits": fits}


def warn_of_budget(budget: Budget, delivered: Mapping[str, Any] | None) -> None:
    """Prints a notice if the recommended file is not within the budget, or not the int8 file that it is about."""
    if delivered is None or (delivered["fits"] and delivered["format"] == "int8"):
        return
    measured = (
        f"the recommended file {delivered['file']} has {delivered['bytes'] / 1e6:.2f} MB and takes "
        f"{delivered['p50_ms']:.2f} ms (one text of {delivered['length']} tokens, {delivered['threads']} threads)"
    )
    if delivered["format"] != "int8":
        within = "within" if delivered["fits"] else "more than"
        print_notice(f"{measured}, {within} {budget}; no int8 file passed its gate")
        return
    busy = ", while the machine was busy" if delivered["disturbed"] else ""
    why = advice = ""
    if delivered["recipe"] != "dynamic":
        why = f": its recipe is {delivered['recipe']}, and that of the file before the training was dynamic"
        advice = ", or export.recipes=[dynamic]"
    print_notice(f"{measured}{busy}, more than {budget}{why}: set a smaller student.depth{advice}")


def _list_candidates(student: Student, teacher: PreTrainedModel, shares: Sequence[float]) -> dict[Size, Student]:
    """Returns the students of every depth and width, those with most weights in their layers first.

    Without `shares` their width is that of the student, and a student without a depth is the only one.

    Raises:
        UserError: if the user chose a depth, or a width that is to be chosen.
    """
    parameters = {} if isinstance(student.build, PreTrainedModel) else inspect.signature(student.build).parameters
    _check_widths(student, shares, has_widths=all(name in parameters for name in SIZES))
    if isinstance(student.build, PreTrainedModel) or DEPTH not in parameters:
        return {(None, None): student}
    given = student.option(DEPTH)
    if given is not None:
        raise UserError(
            f"got student.{DEPTH}={given} and a budget, which chooses the depth: leave out student.{DEPTH} or budget"
        )
    found: dict[Size, Student] = {}
    weights: dict[Size, float] = {}
    tried: Sequence[float | None] = shares or [None]
    for depth, share in itertools.product(range(teacher.config.num_hidden_layers, 0, -1), tried):
        options: dict[str, int] = {DEPTH: depth}
        if share is not None:
            whole = Sizes.of(teacher)
            options |= {"heads": max(1, round(share * whole.heads[0])), "ffn": max(1, round(share * whole.neurons[0]))}
        weights[depth, share] = depth * (share or 1.0)
        found[depth, share] = Student(student.name, partial(student.build, **options))
    # The sort is stable, so that of two with as many weights the deeper one stays first.
    return {size: found[size] for size in sorted(found, key=lambda size: weights[size], reverse=True)}


def _check_widths(student: Student, shares: Sequence[float], *, has_widths: bool) -> None:
    """Raises UserError for widths that the student cannot have, or that the user has chosen already."""
    if not shares:
        return
    if not has_widths:
        raise UserError(
            f"budget.widths is for a student with student.heads and student.ffn, and student {student.name} has none: "
            "leave it out, or take +student=distilbert"
        )
    for name in SIZES:
        if student.option(name) is not None:
            raise UserError(
                f"got student.{name}={student.option(name)} and budget.widths, which chooses it: leave out one of them"
            )


@torch.no_grad()
def _separate_tensors(model: PreTrainedModel) -> None:
    """Adds noise to the weights, because an ONNX file stores equal tensors once, such as biases before any training."""
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter += 0.01 * torch.randn(parameter.shape, generator=random)


def _create_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Untrained students", title_justify="left", title_style="bold")
    has_widths = "width" in rows[0]
    for column in ("depth", *["width"] * has_widths, "size (int8)", "p50", "within the budget"):
        table.add_column(column, justify="right")
    for row in rows:
        depth = "-" if row["depth"] is None else str(row["depth"])
        size, time = f"{row['bytes'] / 1e6:.1f} MB", f"{row['p50_ms']:.2f} ms"
        width = [f"{row['width']:g}"] if has_widths else []
        table.add_row(depth, *width, size, time, "yes" if row["fits"] else "no")
    return table
