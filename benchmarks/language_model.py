"""Speed and memory of DistilBERT's triple loss over a vocabulary, next to a plain loop that computes all logits.

    python benchmarks/language_model.py --batch 64 --compile              # BERT-base to DistilBERT, on a GPU
    python benchmarks/language_model.py --layers 2 --width 128 --batch 8  # a quick test on a CPU

The terms are soft targets at T=2 and MLM at the 15% of tokens that are masked, and cosine between the last hidden
states of all tokens, with weights 5, 2 and 1. Both loops start from the same weights and see the same tokens. The plain
loop applies both heads to all tokens, in float32 or under bf16 autocast. This project's step applies them to the masked
tokens only, runs the teacher in bf16 and uses a fused optimizer. Both losses of the same student are printed before
timing. The variants take turns, each in a process of its own.
"""

import argparse
import copy
import json
import statistics
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import psutil
import torch
from machine import (
    count_forward_flops,
    describe_machine,
    has_bf16,
    make_training_step,
    measure_median_seconds,
    measure_peak_flops,
)
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel

from distill.core.contracts import IGNORED
from distill.kinds import MaskedLM
from distill.losses import Cosine, MaskedLanguageModelling, Objective, SoftTargets
from distill.models import cpu_kernels
from distill.teachers.signal import Live
from distill.training import processes
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import DistillationModule, freeze
from students.distilbert import from_teacher

TEMPERATURE, SOFT, MLM, COSINE = 2.0, 5.0, 2.0, 1.0


def make_batch(options: argparse.Namespace, device: str) -> dict[str, Tensor]:
    """Returns a batch of random tokens, 15% of them masked."""
    random = torch.Generator().manual_seed(0)
    size = (options.batch, options.length)
    ids = torch.randint(1000, 30000, size, generator=random)
    chosen = torch.rand(size, generator=random) < 0.15
    batch = {
        "input_ids": ids.masked_fill(chosen, 103),
        "attention_mask": torch.ones(size, dtype=torch.long),
        "labels": ids.masked_fill(~chosen, IGNORED),
        "example_id": torch.arange(size[0]),
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


def compute_plain_loss(student: Any, teacher: Any, batch: dict[str, Tensor], positions: str = "masked") -> Tensor:
    """Returns the triple loss, computed from all logits of both models."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        teacher_output = teacher(**inputs, output_hidden_states=True)
    student_output = student(**inputs, output_hidden_states=True)
    chosen = batch["labels"] != IGNORED if positions == "masked" else batch["attention_mask"].bool()
    student_logits = student_output.logits[chosen].float()
    teacher_logits = teacher_output.logits[chosen].float()
    teacher_log_probs = (teacher_logits / TEMPERATURE).log_softmax(-1)
    # Less the teacher's own entropy, which changes no gradient.
    soft = teacher_log_probs.exp() * ((student_logits / TEMPERATURE).log_softmax(-1) - teacher_log_probs)
    mlm = nn.functional.cross_entropy(student_output.logits.flatten(0, 1).float(), batch["labels"].flatten())
    student_states, teacher_states = student_output.hidden_states[-1], teacher_output.hidden_states[-1]
    cosine = 1 - nn.functional.cosine_similarity(student_states.float(), teacher_states.float(), dim=-1)
    loss: Tensor = -SOFT * TEMPERATURE**2 * soft.sum(-1).mean() + MLM * mlm + COSINE * cosine.mean()
    return loss


def build_teachers(options: argparse.Namespace, device: str) -> tuple[BertForMaskedLM, BertForMaskedLM]:
    """Returns the teacher in float32 and a copy in distill's precision; random weights without `--teacher`."""
    torch.manual_seed(0)
    if options.teacher:
        teacher = BertForMaskedLM.from_pretrained(options.teacher, dtype=torch.float32)
    else:
        teacher = BertForMaskedLM(
            BertConfig(
                num_hidden_layers=options.layers, hidden_size=options.width, intermediate_size=4 * options.width,
                num_attention_heads=max(1, options.width // 64),
            )
        )  # fmt: skip
    teacher = freeze(teacher.to(device))
    distill_teacher = freeze(copy.deepcopy(teacher))
    return teacher, distill_teacher.to(torch.bfloat16) if has_bf16() else distill_teacher


def build_module(student: PreTrainedModel, teacher: BertForMaskedLM, positions: str) -> DistillationModule:
    terms = {
        "soft": SoftTargets(temperature=TEMPERATURE, weight=SOFT, positions=positions),
        "mlm": MaskedLanguageModelling(weight=MLM),
        "cosine": Cosine(weight=COSINE),
    }
    objective, task = Objective(name="language_model", terms=terms), MaskedLM()
    signal = Live(teacher, task, objective, reason="the inputs change every epoch")
    settings = TrainerSettings(learning_rate=1e-5, batch_size=32, max_steps=1000)
    return DistillationModule(student=student, objective=objective, task=task, signal=signal, settings=settings)


def measure(options: argparse.Namespace, variant: str, device: str) -> dict[str, float]:
    """Returns the median seconds and the peak bytes of a step; the bytes include the models on a GPU only."""
    teacher, distill_teacher = build_teachers(options, device)
    batch, student = make_batch(options, device), from_teacher(teacher).to(device).train()
    if variant.startswith("plain"):
        del distill_teacher
    else:
        del teacher
    with ExitStack() as stack:
        if variant.startswith("plain"):
            step = make_training_step(
                lambda: compute_plain_loss(student, teacher, batch, options.positions), student.parameters(),
                torch.optim.AdamW(student.parameters(), lr=1e-5), device, autocast=variant == "plain, bf16",
            )  # fmt: skip
        else:
            module = build_module(student, distill_teacher, options.positions)
            optimizer = module.configure_optimizers()[0][0]
            step = make_training_step(lambda: module.losses(batch)[0], student.parameters(), optimizer, device)
        if variant == "distill, compiled":
            student.base_model.compile()
            distill_teacher.base_model.compile()
        elif variant == "distill" and device == "cpu":
            stack.enter_context(cpu_kernels.use_cpu_kernels(student))
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            seconds = measure_median_seconds(step, repeats=20, warmup=5)
            return {"seconds": seconds, "bytes": torch.cuda.max_memory_allocated()}
        with ResidentPeak() as peak:
            seconds = measure_median_seconds(step, repeats=options.steps, warmup=2)
    return {"seconds": seconds, "bytes": peak.bytes}


class ResidentPeak:
    """Context manager whose `bytes` is the peak of resident memory above its start, sampled every 2 ms."""

    bytes = 0

    def __enter__(self) -> "ResidentPeak":
        self._process, self._stop = psutil.Process(), threading.Event()
        self._before = self._process.memory_info().rss
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.002):
            self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._sampler.join()


def measure_in_subprocess(variant: str) -> dict[str, float]:
    """Runs `measure` in a process of its own, so that other variants do not affect its memory."""
    command = [sys.executable, *sys.argv, "--only", variant]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{variant} failed:\n{process.stderr}")
    result: dict[str, float] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def count_needed_flops(
    teacher: BertForMaskedLM, student: PreTrainedModel, options: argparse.Namespace, items: int
) -> float:
    """Returns the operations of the teacher's pass, the student's training step, and both heads at `items` tokens."""
    lengths = np.full(options.batch, options.length)
    width = teacher.config.hidden_size
    head: float = 2 * items * (width * teacher.config.vocab_size + width**2)
    return count_forward_flops(teacher, lengths) + 3 * count_forward_flops(student, lengths) + 4 * head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="layers of the teacher; the student has half of them")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--teacher", help="directory of a BERT language model, instead of --layers and --width")
    parser.add_argument("--positions", choices=("masked", "all"), default="masked", help="tokens of the soft targets")
    parser.add_argument("--steps", type=int, default=8, help="timed steps per round on a CPU")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; medians are shown")
    parser.add_argument("--compile", action="store_true", help="also measure distill with torch.compile")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    processes.keep_freed_memory()
    if options.only:
        print(json.dumps(measure(options, options.only, device)))
        return
    teacher, _ = build_teachers(options, device)
    batch = make_batch(options, device)
    student = from_teacher(teacher).to(device).eval()
    with torch.no_grad():
        distill_loss = float(build_module(student, teacher, options.positions).eval().losses(batch)[0])
        plain_loss = float(compute_plain_loss(student, teacher, batch, options.positions))
    print(f"Loss of the same student in float32: distill {distill_loss:.5f}, plain loop {plain_loss:.5f}")
    variants = ["plain", *(["plain, bf16"] if has_bf16() else []), "distill"]
    variants += ["distill, compiled"] if options.compile else []
    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    peaks = []
    for _ in range(options.rounds):
        peaks.append(measure_peak_flops(torch.bfloat16 if has_bf16() else torch.float32, device))
        for variant in variants:
            results[variant].append(measure_in_subprocess(variant))
    masked = int((batch["labels"] != IGNORED).sum())
    peak, step_flops = statistics.median(peaks), count_needed_flops(teacher, student, options, masked)
    medians = {
        variant: {name: statistics.median(result[name] for result in rounds) for name in ("seconds", "bytes")}
        for variant, rounds in results.items()
    }
    plain_median = medians["plain"]
    rows = {
        variant: {
            "ms": 1e3 * median["seconds"],
            "tokens_per_second": options.batch * options.length / median["seconds"],
            "share_of_peak": step_flops / median["seconds"] / peak,
            "ratio": plain_median["seconds"] / median["seconds"],
            "megabytes": median["bytes"] / 1e6,
            "memory": median["bytes"] / plain_median["bytes"],
        }
        for variant, median in medians.items()
    }
    title = f"Batch {options.batch}, length {options.length}; {describe_machine()}; {peak / 1e12:.2f} TFLOP/s at most"
    show(rows, title)
    if options.json:
        print(json.dumps({"machine": describe_machine(), "loss": [distill_loss, plain_loss], "ways": rows}))


def show(rows: dict[str, dict[str, float]], title: str) -> None:
    table = Table(title=title)
    for column in ("", "ms", "tokens/s", "of the peak", "ratio", "MB", "of plain"):
        table.add_column(column, justify="right")
    for variant, row in rows.items():
        table.add_row(
            variant, f"{row['ms']:.1f}", f"{row['tokens_per_second']:,.0f}", f"{row['share_of_peak']:.2f}",
            f"{row['ratio']:.2f}x", f"{row['megabytes']:,.0f}", f"{row['memory']:.2f}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
