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
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe, forward_flops, has_bf16, median_seconds, peak_flops
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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


def step_of(
    loss_of: Callable[[], Tensor], module: nn.Module, optimizer: torch.optim.Optimizer, device: str
) -> Callable[[], None]:
    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=has_bf16()):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


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
    heads = max(1, options.width // 64)
    config = BertConfig(
        num_hidden_layers=options.layers, hidden_size=options.width, num_attention_heads=heads,
        intermediate_size=4 * options.width,
    )  # fmt: skip
    teacher = freeze(BertForMaskedLM(config).to(device))
    batch = batch_of(options, device)
    terms = {
        "soft": SoftTargets(temperature=TEMPERATURE, weight=SOFT),
        "mlm": MaskedLanguageModelling(weight=MLM),
        "cosine": Cosine(weight=COSINE),
    }

    def module_of(answering: BertForMaskedLM) -> DistillationModule:
        return DistillationModule(
            student=from_teacher(teacher).to(device), objective=Objective(name="language_model", terms=terms),
            task=SequenceTask(name="step", text=["text"]), teacher=answering, learning_rate=1e-5,
        )  # fmt: skip

    in_bf16 = freeze(BertForMaskedLM(config).to(device))
    in_bf16.load_state_dict(teacher.state_dict())
    in_bf16 = in_bf16.to(torch.bfloat16) if has_bf16() else in_bf16
    check = module_of(teacher).eval()
    with torch.no_grad():
        ours, plain = float(check.losses(batch)[0]), float(plain_loss(check.student, teacher, batch))
    print(f"Loss of the same student in float32: {ours:.5f}, plain loop {plain:.5f}")
    ways = ["plain", "distill", *(["distill, compiled"] if options.compile else [])]
    took: dict[str, list[float]] = {way: [] for way in ways}
    memory: dict[str, str] = {}
    peaks = []
    for _ in range(options.rounds):
        peaks.append(peak_flops(torch.bfloat16 if has_bf16() else torch.float32, device))
        for way in ways:
            module = module_of(in_bf16)
            module.student.train()
            if way == "plain":
                optimizer: Any = torch.optim.AdamW(module.student.parameters(), lr=1e-5)
                step = step_of(lambda m=module: plain_loss(m.student, teacher, batch), module, optimizer, device)
            else:
                optimizer = module.configure_optimizers()[0][0]
                step = step_of(lambda m=module: m.losses(batch)[0], module, optimizer, device)
            if way == "distill, compiled":
                module.student.compile()
                in_bf16.compile()
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            quick = kernels.training_on_cpu(module.student) if (way, device) == ("distill", "cpu") else nullcontext()
            times, before = (20, 5) if device == "cuda" else (3, 2)
            with quick:
                took[way].append(median_seconds(step, times=times, before=before))
            in_bf16._compiled_call_impl = None
            memory[way] = f"{torch.cuda.max_memory_allocated() / 1e6:,.0f}" if device == "cuda" else "-"
    lengths = np.full(options.batch, options.length)
    items = int(batch["items"].sum())
    head = 2 * items * (options.width * config.vocab_size + options.width**2)
    student = from_teacher(teacher)
    # What the triple loss cannot do without: the teacher's pass, the student's training step, heads at the items.
    work = forward_flops(teacher, lengths) + 3 * forward_flops(student, lengths) + head * 4
    peak = statistics.median(peaks)
    size = f"Batch {options.batch}, length {options.length}"
    table = Table(title=f"{size}; {describe()}; {peak / 1e12:.2f} TFLOP/s at most")
    for column in ("", "ms", "tokens/s", "of the peak", "ratio", "GPU MB"):
        table.add_column(column, justify="right")
    rows = {way: statistics.median(seconds) for way, seconds in took.items()}
    for way, seconds in rows.items():
        table.add_row(
            way, f"{1e3 * seconds:.1f}", f"{lengths.sum() / seconds:,.0f}", f"{work / seconds / peak:.2f}",
            f"{rows['plain'] / seconds:.2f}x", memory[way],
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if options.json:
        found = {
            way: {"tokens_per_second": float(lengths.sum() / seconds), "share_of_peak": work / seconds / peak,
                  "ratio": rows["plain"] / seconds}
            for way, seconds in rows.items()
        }  # fmt: skip
        print(json.dumps({"machine": describe(), "loss": [ours, plain], "ways": found}))


if __name__ == "__main__":
    main()
