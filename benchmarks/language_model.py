"""How fast is DistilBERT's triple loss over a vocabulary, next to a plain loop that computes all of it?

    python benchmarks/language_model.py --batch 64 --compile              # BERT-base to DistilBERT, on a GPU
    python benchmarks/language_model.py --layers 2 --width 128 --batch 8  # a try on a CPU

Soft targets at T=2 and MLM at the 15% of the tokens that are predicted, cosine between the last hidden states at all of
them; weights 5, 2 and 1. Both begin from the same random weights and see the same tokens. The plain loop runs both
models whole under bf16 autocast; this project's step gives their heads the predicted positions alone, its teacher
answers in bf16, and its optimizer is fused. The losses of the first step are compared before anything is timed.
"""

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from machine import describe, forward_flops, has_bf16, median_seconds, peak_flops, training_step
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel

from distill import fitting, kernels
from distill.losses import Cosine, MaskedLanguageModelling, Objective, SoftTargets
from distill.module import DistillationModule, freeze
from distill.tasks import SequenceTask
from students.distilbert import from_teacher

TEMPERATURE, SOFT, MLM, COSINE = 2.0, 5.0, 2.0, 1.0


def batch_of(options: argparse.Namespace, device: str) -> dict[str, Tensor]:
    """Random tokens, 15% of them to be predicted."""
    random = torch.Generator().manual_seed(0)
    size = (options.batch, options.length)
    ids = torch.randint(1000, 30000, size, generator=random)
    chosen = torch.rand(size, generator=random) < 0.15
    batch = {
        "input_ids": ids.masked_fill(chosen, 103),
        "attention_mask": torch.ones(size, dtype=torch.long),
        "labels": ids.masked_fill(~chosen, -100),
        "items": chosen,
        "example_id": torch.arange(size[0]),
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


def plain_loss(student: Any, teacher: Any, batch: dict[str, Tensor]) -> Tensor:
    """Everything computed, then chosen from."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        told = teacher(**inputs, output_hidden_states=True)
    said = student(**inputs, output_hidden_states=True)
    chosen = batch["items"]
    student_logits, teacher_logits = said.logits[chosen].float(), told.logits[chosen].float()
    soft = (teacher_logits / TEMPERATURE).softmax(-1) * (student_logits / TEMPERATURE).log_softmax(-1)
    mlm = nn.functional.cross_entropy(student_logits, batch["labels"][chosen])
    cosine = 1 - nn.functional.cosine_similarity(said.hidden_states[-1].float(), told.hidden_states[-1].float(), dim=-1)
    return -SOFT * TEMPERATURE**2 * soft.sum(-1).mean() + MLM * mlm + COSINE * cosine.mean()


def models_of(options: argparse.Namespace, device: str) -> tuple[BertForMaskedLM, BertForMaskedLM]:
    """A teacher with random weights in float32, and the same in what it answers distill in."""
    config = BertConfig(
        num_hidden_layers=options.layers, hidden_size=options.width, intermediate_size=4 * options.width,
        num_attention_heads=max(1, options.width // 64),
    )  # fmt: skip
    teacher = freeze(BertForMaskedLM(config).to(device))
    answering = freeze(BertForMaskedLM(config).to(device))
    answering.load_state_dict(teacher.state_dict())
    return teacher, answering.to(torch.bfloat16) if has_bf16() else answering


def module_of(student: PreTrainedModel, answering: BertForMaskedLM) -> DistillationModule:
    terms = {
        "soft": SoftTargets(temperature=TEMPERATURE, weight=SOFT),
        "mlm": MaskedLanguageModelling(weight=MLM),
        "cosine": Cosine(weight=COSINE),
    }
    return DistillationModule(
        student=student, objective=Objective(name="language_model", terms=terms),
        task=SequenceTask(name="step", text=["text"]), teacher=answering, learning_rate=1e-5,
    )  # fmt: skip


def measure(
    way: str, teacher: BertForMaskedLM, answering: BertForMaskedLM, batch: dict[str, Tensor], device: str
) -> tuple[float, float | None]:
    """Median seconds of a step, and on a GPU the most bytes that it took."""
    student = from_teacher(teacher).to(device).train()
    with ExitStack() as stack:
        if way == "plain":
            step = training_step(
                lambda: plain_loss(student, teacher, batch), student.parameters(),
                torch.optim.AdamW(student.parameters(), lr=1e-5), device,
            )  # fmt: skip
        else:
            module = module_of(student, answering)
            optimizer = module.configure_optimizers()[0][0]
            step = training_step(lambda: module.losses(batch)[0], student.parameters(), optimizer, device)
        if way == "distill, compiled":
            student.compile()
            answering.compile()
            stack.callback(setattr, answering, "_compiled_call_impl", None)
        elif way == "distill" and device == "cpu":
            stack.enter_context(kernels.training_on_cpu(student))
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            return median_seconds(step, times=20, before=5), torch.cuda.max_memory_allocated()
        return median_seconds(step, times=3, before=2), None


def needed_flops(teacher: BertForMaskedLM, student: PreTrainedModel, options: argparse.Namespace, items: int) -> float:
    """What a step cannot do without: the teacher's pass, the student's training step, both heads at the items."""
    lengths = np.full(options.batch, options.length)
    width = teacher.config.hidden_size
    head = 2 * items * (width * teacher.config.vocab_size + width**2)
    return forward_flops(teacher, lengths) + 3 * forward_flops(student, lengths) + 4 * head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="of the teacher; the student has half")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="the medians of so many are shown")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fitting.keep_freed_memory()
    torch.manual_seed(0)
    teacher, answering = models_of(options, device)
    batch = batch_of(options, device)
    student = from_teacher(teacher).to(device).eval()
    with torch.no_grad():
        ours = float(module_of(student, teacher).eval().losses(batch)[0])
        plain = float(plain_loss(student, teacher, batch))
    print(f"Loss of the same student in float32: {ours:.5f}, plain loop {plain:.5f}")
    ways = ["plain", "distill", *(["distill, compiled"] if options.compile else [])]
    took: dict[str, list[float]] = {way: [] for way in ways}
    memory: dict[str, float | None] = {}
    peaks = []
    for _ in range(options.rounds):
        peaks.append(peak_flops(torch.bfloat16 if has_bf16() else torch.float32, device))
        for way in ways:
            seconds, memory[way] = measure(way, teacher, answering, batch, device)
            took[way].append(seconds)
    medians = {way: statistics.median(seconds) for way, seconds in took.items()}
    peak, work = statistics.median(peaks), needed_flops(teacher, student, options, int(batch["items"].sum()))
    rows = {
        way: {
            "ms": 1e3 * seconds,
            "tokens_per_second": options.batch * options.length / seconds,
            "share_of_peak": work / seconds / peak,
            "ratio": medians["plain"] / seconds,
            "gpu_bytes": memory[way],
        }
        for way, seconds in medians.items()
    }
    show(rows, title=f"Batch {options.batch}, length {options.length}; {describe()}; {peak / 1e12:.2f} TFLOP/s at most")
    if options.json:
        print(json.dumps({"machine": describe(), "loss": [ours, plain], "ways": rows}))


def show(rows: dict[str, dict[str, Any]], title: str) -> None:
    table = Table(title=title)
    for column in ("", "ms", "tokens/s", "of the peak", "ratio", "GPU MB"):
        table.add_column(column, justify="right")
    for way, row in rows.items():
        table.add_row(
            way, f"{row['ms']:.1f}", f"{row['tokens_per_second']:,.0f}", f"{row['share_of_peak']:.2f}",
            f"{row['ratio']:.2f}x", "-" if row["gpu_bytes"] is None else f"{row['gpu_bytes'] / 1e6:,.0f}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
