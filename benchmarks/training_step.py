"""Share of the best matrix product of a processor or a GPU that a training step reaches, optimizer included.

    python benchmarks/training_step.py [--lengths 128 --batch 32 --rounds 3]
    python benchmarks/training_step.py --students distilbert --lengths 128,512 --batch 64 --ways plain,plain_compiled,distill,compiled,teacher  # on a GPU
    python benchmarks/training_step.py --profile --students minilm --lengths 13 --batch 32 --vocabulary 8550  # where the time of a step goes

The variants take turns: plain Hugging Face under bf16 autocast, and compiled; this project's step, this step with
torch's own dropout and attention, with only one of the two replaced (on a processor), and compiled; and the pass of a
teacher with twice the layers in bf16. The shapes are those of a half-depth MiniLM (3 layers of 384) and of DistilBERT
(6 layers of 768). Dropout is BERT's 0.1.
"""  # noqa: E501

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from machine import (
    count_forward_flops,
    describe_machine,
    has_bf16,
    make_training_step,
    measure_median_seconds,
    measure_peak_flops,
    soft_and_hard_loss,
)
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedModel

from distill.core.contracts import Batch, Items, Outputs, Signal
from distill.kinds import Classification
from distill.losses import HardLabels, Objective, SoftTargets
from distill.models import cpu_kernels
from distill.training import processes
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import DistillationModule

SHAPES = {"minilm": (3, 384, 12), "distilbert": (6, 768, 12), "tiny": (1, 32, 2)}
REPEATS = 20  # Of a step that is profiled.
VARIANTS = ("plain", "distill", "torch's own", "dropout alone", "attention alone", "compiled")


# The parts of a step, by the beginnings of the names of torch's operators; the first that fits is taken.
PARTS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul"),
    "optimizer and clipping": ("Optimizer", "aten::_fused", "aten::_foreach"),
    "norms, activations, softmax": ("aten::native_layer_norm", "aten::gelu", "aten::_softmax", "aten::_log_softmax"),
    "dropout": ("_DropoutFunction", "aten::random_", "aten::bitwise", "aten::native_dropout"),
    "casts and copies": ("aten::copy_", "aten::to", "aten::_to_copy", "aten::clone", "aten::contiguous", "aten::zero"),
    "embeddings": ("aten::embedding", "aten::index"),
    "sums and products of elements": ("aten::",),
    "Python and autograd": ("",),
}  # fmt: skip


def build_student(layers: int, width: int, heads: int, vocabulary: int = 30_522) -> PreTrainedModel:
    torch.manual_seed(0)
    config = DistilBertConfig(n_layers=layers, dim=width, hidden_dim=4 * width, n_heads=heads, vocab_size=vocabulary)
    return DistilBertForSequenceClassification(config).train()


@contextmanager
def apply_variant(student: PreTrainedModel, variant: str) -> Iterator[None]:
    """Context manager that compiles the student or replaces its dropout and attention, as the variant requires."""
    with ExitStack() as stack:
        if variant in ("compiled", "plain_compiled"):
            student.compile(dynamic=True)
        elif student.device.type != "cpu":
            pass  # The kernels are for processors.
        elif variant == "attention alone":
            stack.enter_context(mock.patch.object(cpu_kernels, "_forward_dropout", nn.Dropout.forward))
            stack.enter_context(cpu_kernels.use_cpu_kernels(student))
        elif variant == "dropout alone":
            stack.enter_context(mock.patch.object(student, "set_attn_implementation"))
            stack.enter_context(cpu_kernels.use_cpu_kernels(student))
        elif variant == "distill":
            stack.enter_context(cpu_kernels.use_cpu_kernels(student))
        yield
        student._compiled_call_impl = None


def make_step(
    student: PreTrainedModel, batch: dict[str, Tensor], teacher_logits: Tensor, variant: str
) -> Callable[[], object]:
    """Returns a function that runs one optimizer step on the batch, in plain Hugging Face or in distill."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    device = student.device.type
    if variant == "teacher":
        teacher = student.eval().to(torch.bfloat16 if has_bf16() else torch.float32)
        return torch.inference_mode()(lambda: teacher(**inputs))
    if variant.startswith("plain"):
        return make_training_step(
            lambda: soft_and_hard_loss(student(**inputs).logits.float(), teacher_logits, batch["labels"], 2.0),
            student.parameters(), torch.optim.AdamW(student.parameters(), lr=1e-5), device,
        )  # fmt: skip
    terms = {"soft": SoftTargets(temperature=2.0, weight=0.5), "hard": HardLabels(weight=0.5)}
    module = DistillationModule(
        student=student, objective=Objective(name="hinton", terms=terms),
        settings=TrainerSettings(learning_rate=1e-5, batch_size=32, max_steps=1000),
        task=Classification(name="step", text=["text"]),
        signal=FixedSignal(teacher_logits),
    )  # fmt: skip
    optimizer = module.configure_optimizers()[0][0]
    return make_training_step(lambda: module.losses(batch)[0], student.parameters(), optimizer, device)


@dataclass(frozen=True)
class FixedSignal(Signal):
    """Teacher outputs with the same logits for every batch, at no cost."""

    logits: Tensor

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        return Outputs(logits=self.logits)


def make_batch(batch: int, length: int, device: str, vocabulary: int = 30_000) -> tuple[dict[str, Tensor], Tensor]:
    """Returns a batch of random tokens with labels, and the logits of a teacher."""
    random = torch.Generator().manual_seed(0)
    tensors = {
        "input_ids": torch.randint(1000, min(vocabulary, 30_000), (batch, length), generator=random),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
        "labels": torch.randint(0, 2, (batch,), generator=random),
        "example_id": torch.arange(batch),
    }
    logits = torch.randn(batch, 2, generator=random)
    return {name: tensor.to(device) for name, tensor in tensors.items()}, logits.to(device)


def measure(shape: tuple[int, int, int], length: int, options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Returns a row for each variant: its name, milliseconds, operations a second and share of the peak."""
    batch, teacher_logits = make_batch(options.batch, length, options.device)
    seconds: dict[str, list[float]] = {}
    peaks, flops = [], {}
    dtype = torch.bfloat16 if has_bf16() else torch.float32
    for _ in range(options.rounds):
        peaks.append(measure_peak_flops(dtype, options.device))
        for variant in options.ways.split(","):
            layers, *width = shape
            student = build_student(2 * layers if variant == "teacher" else layers, *width).to(options.device)
            passes = 1 if variant == "teacher" else 3
            flops[variant] = passes * count_forward_flops(student, np.full(options.batch, length))
            step = make_step(student, batch, teacher_logits, variant)
            with apply_variant(student, variant):
                seconds.setdefault(variant, []).append(measure_median_seconds(step, repeats=5, warmup=3))
    rows: list[tuple[str, ...]] = []
    for variant, measured in seconds.items():
        speed = flops[variant] / statistics.median(measured)
        share = speed / statistics.median(peaks)
        rows.append((variant, f"{1e3 * statistics.median(measured):.1f}", f"{speed / 1e9:,.0f}", f"{share:.2f}"))
    return rows


def profile(shape: tuple[int, int, int], length: int, options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Returns the milliseconds of each part of a step of `distill`, and its share of all, the largest first."""
    batch, teacher_logits = make_batch(options.batch, length, options.device, options.vocabulary)
    student = build_student(*shape, vocabulary=options.vocabulary).to(options.device)
    step = make_step(student, batch, teacher_logits, "distill")
    with apply_variant(student, "distill"):
        for _ in range(3):
            step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(REPEATS):
                step()
        whole = measure_median_seconds(step, repeats=REPEATS, warmup=0)
    seconds = dict.fromkeys(PARTS, 0.0)
    for event in profiler.key_averages():
        part = next(part for part, names in PARTS.items() if event.key.startswith(names))
        seconds[part] += event.self_cpu_time_total / 1e6 / REPEATS
    total = sum(seconds.values())  # With the profiler's own work, of which each part has its share.
    rows = sorted(seconds.items(), key=lambda row: -row[1])
    table = [(part, f"{1e3 * whole * of / total:.1f}", "", f"{of / total:.0%}") for part, of in rows]
    return [*table, ("the step", f"{1e3 * whole:.1f}", "", "")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", default="minilm,distilbert", help=f"shapes: {', '.join(SHAPES)}")
    parser.add_argument("--lengths", default="128", help="tokens of a text, separated by commas")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; medians are shown")
    parser.add_argument("--ways", default=",".join(VARIANTS), help="variants, separated by commas")
    parser.add_argument(
        "--profile", action="store_true", help="the parts of a step on a processor, in place of its ways"
    )
    parser.add_argument("--vocabulary", type=int, default=30_522, help="rows of embeddings of the profiled student")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    processes.keep_freed_memory()
    table = Table(title=f"Batch {options.batch}, median of {options.rounds}; {describe_machine()}")
    for column in ("student", "tokens", "step", "ms", "GFLOP/s", "of the peak"):
        table.add_column(column, justify="left" if column in ("student", "step") else "right")
    for name in options.students.split(","):
        for length in map(int, options.lengths.split(",")):
            for row in (profile if options.profile else measure)(SHAPES[name], length, options):
                table.add_row(name, str(length), *row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
