"""Share of the processor's best matrix product that a training step reaches, optimizer included.

    python benchmarks/training_step.py [--length 128 --batch 32 --rounds 3]

The variants take turns: plain Hugging Face under bf16 autocast, this project's step, this step with torch's own dropout
and attention, with only one of the two replaced, and compiled. The shapes are those of a half-depth MiniLM (3 layers of
384) and of DistilBERT (6 layers of 768). Dropout is BERT's 0.1.
"""

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

SHAPES = {"3 layers of 384": (3, 384, 12), "6 layers of 768": (6, 768, 12)}
VARIANTS = ("plain", "distill", "torch's own", "dropout alone", "attention alone", "compiled")


def build_student(layers: int, width: int, heads: int) -> PreTrainedModel:
    torch.manual_seed(0)
    config = DistilBertConfig(n_layers=layers, dim=width, hidden_dim=4 * width, n_heads=heads)
    return DistilBertForSequenceClassification(config).train()


@contextmanager
def apply_variant(student: PreTrainedModel, variant: str) -> Iterator[None]:
    """Context manager that compiles the student or replaces its dropout and attention, as the variant requires."""
    with ExitStack() as stack:
        if variant == "compiled":
            student.compile(dynamic=True)
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
    student: PreTrainedModel, batch: dict[str, Tensor], teacher_logits: Tensor, *, plain: bool
) -> Callable[[], None]:
    """Returns a function that runs one optimizer step on the batch, in plain Hugging Face or in distill."""
    if plain:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return make_training_step(
            lambda: soft_and_hard_loss(student(**inputs).logits.float(), teacher_logits, batch["labels"], 2.0),
            student.parameters(), torch.optim.AdamW(student.parameters(), lr=1e-5), "cpu",
        )  # fmt: skip
    terms = {"soft": SoftTargets(temperature=2.0, weight=0.5), "hard": HardLabels(weight=0.5)}
    module = DistillationModule(
        student=student, objective=Objective(name="hinton", terms=terms),
        settings=TrainerSettings(learning_rate=1e-5, batch_size=32, max_steps=1000),
        task=Classification(name="step", text=["text"]),
        signal=FixedSignal(teacher_logits),
    )  # fmt: skip
    optimizer = module.configure_optimizers()[0][0]
    return make_training_step(lambda: module.losses(batch)[0], student.parameters(), optimizer, "cpu")


@dataclass(frozen=True)
class FixedSignal(Signal):
    """Teacher outputs with the same logits for every batch, at no cost."""

    logits: Tensor

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        return Outputs(logits=self.logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; medians are shown")
    parser.add_argument("--ways", default=",".join(VARIANTS), help="variants, separated by commas")
    options = parser.parse_args()
    processes.keep_freed_memory()
    random = torch.Generator().manual_seed(0)
    size = (options.batch, options.length)
    batch = {
        "input_ids": torch.randint(1000, 30000, size, generator=random),
        "attention_mask": torch.ones(size, dtype=torch.long),
        "labels": torch.randint(0, 2, size[:1], generator=random),
        "example_id": torch.arange(size[0]),
    }
    teacher_logits = torch.randn(size[0], 2, generator=random)
    dtype = torch.bfloat16 if has_bf16() else torch.float32
    table = Table(title=f"Batch {size[0]}, length {size[1]}, median of {options.rounds}; {describe_machine()}")
    for column in ("student", "step", "ms", "GFLOP/s", "of the peak"):
        table.add_column(column, justify="left" if column in ("student", "step") else "right")
    for name, shape in SHAPES.items():
        seconds: dict[str, list[float]] = {}
        peaks = []
        for _ in range(options.rounds):
            peaks.append(measure_peak_flops(dtype))
            for variant in options.ways.split(","):
                student = build_student(*shape)
                step = make_step(student, batch, teacher_logits, plain=variant == "plain")
                with apply_variant(student, variant):
                    seconds.setdefault(variant, []).append(measure_median_seconds(step, repeats=5, warmup=3))
        step_flops = 3 * count_forward_flops(student, np.full(size[0], size[1]))
        for variant, variant_seconds in seconds.items():
            speed = step_flops / statistics.median(variant_seconds)
            share = speed / statistics.median(peaks)
            milliseconds = 1e3 * statistics.median(variant_seconds)
            table.add_row(name, variant, f"{milliseconds:.0f}", f"{speed / 1e9:.0f}", f"{share:.2f}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
