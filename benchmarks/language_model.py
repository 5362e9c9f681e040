"""How fast is DistilBERT's triple loss over a vocabulary, next to a plain loop that computes all of it?

    python benchmarks/language_model.py --batch 64 --compile              # BERT-base to DistilBERT, on a GPU
    python benchmarks/language_model.py --layers 2 --width 128 --batch 8  # a try on a CPU

Soft targets at T=2 and MLM at the 15% of the tokens that are predicted, cosine between the last hidden states at all of
them; weights 5, 2 and 1. Both begin from the same random weights and see the same tokens. The plain loop runs both
models whole, in float32 or under bf16 autocast; this project's step gives their heads the predicted positions alone,
its teacher answers in bf16, and its optimizer is fused. The losses of the first step are compared before anything is
timed; each way runs in processes of its own, in turns.
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
from machine import describe, forward_flops, has_bf16, median_seconds, peak_flops, training_step
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel

from distill.contracts import IGNORED
from distill.losses import Cosine, MaskedLanguageModelling, Objective, SoftTargets
from distill.models import cpu_kernels
from distill.tasks import MaskedLM
from distill.training import fitting
from distill.training.module import DistillationModule, freeze
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
        "labels": ids.masked_fill(~chosen, IGNORED),
        "example_id": torch.arange(size[0]),
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


def plain_loss(student: Any, teacher: Any, batch: dict[str, Tensor], positions: str = "masked") -> Tensor:
    """Everything computed, then chosen from."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        told = teacher(**inputs, output_hidden_states=True)
    said = student(**inputs, output_hidden_states=True)
    chosen = batch["labels"] != IGNORED if positions == "masked" else batch["attention_mask"].bool()
    student_logits, teacher_logits = said.logits[chosen].float(), told.logits[chosen].float()
    soft = (teacher_logits / TEMPERATURE).softmax(-1) * (student_logits / TEMPERATURE).log_softmax(-1)
    mlm = nn.functional.cross_entropy(said.logits.flatten(0, 1).float(), batch["labels"].flatten())
    cosine = 1 - nn.functional.cosine_similarity(said.hidden_states[-1].float(), told.hidden_states[-1].float(), dim=-1)
    return -SOFT * TEMPERATURE**2 * soft.sum(-1).mean() + MLM * mlm + COSINE * cosine.mean()


def models_of(options: argparse.Namespace, device: str) -> tuple[BertForMaskedLM, BertForMaskedLM]:
    """A teacher in float32, with random weights where none is given, and the same in what it answers distill in."""
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
    answering = freeze(copy.deepcopy(teacher))
    return teacher, answering.to(torch.bfloat16) if has_bf16() else answering


def module_of(student: PreTrainedModel, answering: BertForMaskedLM, positions: str) -> DistillationModule:
    terms = {
        "soft": SoftTargets(temperature=TEMPERATURE, weight=SOFT, positions=positions),
        "mlm": MaskedLanguageModelling(weight=MLM),
        "cosine": Cosine(weight=COSINE),
    }
    return DistillationModule(
        student=student, objective=Objective(name="language_model", terms=terms),
        task=MaskedLM(), teacher=answering, learning_rate=1e-5,
    )  # fmt: skip


def measure(options: argparse.Namespace, way: str, device: str) -> dict[str, float]:
    """In this process: median seconds of a step, and the most bytes that steps took beyond both models."""
    teacher, answering = models_of(options, device)
    batch, student = batch_of(options, device), from_teacher(teacher).to(device).train()
    if way.startswith("plain"):
        del answering
    else:
        del teacher
    with ExitStack() as stack:
        if way.startswith("plain"):
            step = training_step(
                lambda: plain_loss(student, teacher, batch, options.positions), student.parameters(),
                torch.optim.AdamW(student.parameters(), lr=1e-5), device, autocast=way == "plain, bf16",
            )  # fmt: skip
        else:
            module = module_of(student, answering, options.positions)
            optimizer = module.configure_optimizers()[0][0]
            step = training_step(lambda: module.losses(batch)[0], student.parameters(), optimizer, device)
        if way == "distill, compiled":
            student.base_model.compile()
            answering.base_model.compile()
        elif way == "distill" and device == "cpu":
            stack.enter_context(cpu_kernels.use_cpu_kernels(student))
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            seconds = median_seconds(step, times=20, before=5)
            return {"seconds": seconds, "bytes": torch.cuda.max_memory_allocated()}
        with resident_peak() as peak:
            seconds = median_seconds(step, times=options.steps, before=2)
    return {"seconds": seconds, "bytes": peak.bytes}


class resident_peak:
    """Meanwhile, the most resident memory beyond what there was at its beginning; looked at every 2 ms."""

    bytes = 0

    def __enter__(self) -> "resident_peak":
        self._process, self._over = psutil.Process(), threading.Event()
        self._before = self._process.memory_info().rss
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._watcher.join()


def elsewhere(way: str) -> dict[str, float]:
    """`measure` in a process of its own, whose memory nothing else has been in."""
    done = subprocess.run([sys.executable, *sys.argv, "--only", way], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


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
    parser.add_argument("--teacher", help="a directory with a BERT language model, in place of layers and width")
    parser.add_argument("--positions", choices=("masked", "all"), default="masked", help="of the soft targets")
    parser.add_argument("--steps", type=int, default=8, help="that are timed in each round, on a CPU")
    parser.add_argument("--rounds", type=int, default=3, help="the medians of so many are shown")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fitting.keep_freed_memory()
    if options.only:
        print(json.dumps(measure(options, options.only, device)))
        return
    teacher, _ = models_of(options, device)
    batch = batch_of(options, device)
    student = from_teacher(teacher).to(device).eval()
    with torch.no_grad():
        ours = float(module_of(student, teacher, options.positions).eval().losses(batch)[0])
        plain = float(plain_loss(student, teacher, batch, options.positions))
    print(f"Loss of the same student in float32: {ours:.5f}, plain loop {plain:.5f}")
    ways = ["plain", *(["plain, bf16"] if has_bf16() else []), "distill"]
    ways += ["distill, compiled"] if options.compile else []
    took: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    peaks = []
    for _ in range(options.rounds):
        peaks.append(peak_flops(torch.bfloat16 if has_bf16() else torch.float32, device))
        for way in ways:
            took[way].append(elsewhere(way))
    masked = int((batch["labels"] != IGNORED).sum())
    peak, work = statistics.median(peaks), needed_flops(teacher, student, options, masked)
    medians = {
        way: {name: statistics.median(one[name] for one in found) for name in ("seconds", "bytes")}
        for way, found in took.items()
    }
    base = medians["plain"]
    rows = {
        way: {
            "ms": 1e3 * found["seconds"],
            "tokens_per_second": options.batch * options.length / found["seconds"],
            "share_of_peak": work / found["seconds"] / peak,
            "ratio": base["seconds"] / found["seconds"],
            "megabytes": found["bytes"] / 1e6,
            "memory": found["bytes"] / base["bytes"],
        }
        for way, found in medians.items()
    }
    show(rows, title=f"Batch {options.batch}, length {options.length}; {describe()}; {peak / 1e12:.2f} TFLOP/s at most")
    if options.json:
        print(json.dumps({"machine": describe(), "loss": [ours, plain], "ways": rows}))


def show(rows: dict[str, dict[str, float]], title: str) -> None:
    table = Table(title=title)
    for column in ("", "ms", "tokens/s", "of the peak", "ratio", "MB", "of plain"):
        table.add_column(column, justify="right")
    for way, row in rows.items():
        table.add_row(
            way, f"{row['ms']:.1f}", f"{row['tokens_per_second']:,.0f}", f"{row['share_of_peak']:.2f}",
            f"{row['ratio']:.2f}x", f"{row['megabytes']:,.0f}", f"{row['memory']:.2f}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
