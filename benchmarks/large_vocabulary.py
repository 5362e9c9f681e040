"""Memory and time of a training step over a large vocabulary, next to a step that computes all logits at once.

    python benchmarks/large_vocabulary.py [--tokens 512 --vocabulary 50257 --width 256 --layers 2 --rounds 3]

A GPT-2 with random weights learns the next tokens of one sequence from a teacher of its size and from the labels, in
float32. The memory is that of the process above what the models and the optimizer take: gradients, activations and
logits of a step. Each variant runs in a process of its own, in which glibc gives freed blocks back to the system, and
they take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from machine import describe_machine
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from distill.kinds import CausalLM
from distill.losses import HardLabels, Objective, SoftTargets
from distill.teachers.signal import Live
from distill.training import processes
from distill.training.module import DistillationModule

VARIANTS = ("whole", "distill")
GOAL_MB = 480
TEMPERATURE = 2.0
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # Bytes of a block that glibc gives back when it is freed.


def build_model(options: argparse.Namespace, seed: int) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=options.vocabulary, n_embd=options.width, n_layer=options.layers, n_head=options.width // 64,
        n_positions=max(1024, options.tokens), bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def make_loss(student: GPT2LMHeadModel, options: argparse.Namespace) -> Callable[[], Tensor]:
    """Returns the function that computes the loss of the variant."""
    ids = torch.randint(1, options.vocabulary, (1, options.tokens + 1), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "example_id": torch.arange(1)}
    teacher, objective, task = (
        build_model(options, 1).eval(),
        Objective(soft=SoftTargets(), hard=HardLabels()),
        CausalLM(),
    )
    signal = Live(teacher, task, objective, reason="it is measured too")
    module = DistillationModule(student=student, objective=objective, task=task, signal=signal)

    def whole() -> Tensor:
        with torch.no_grad():
            targets = (teacher(input_ids=ids, use_cache=False).logits[0, :-1] / TEMPERATURE).log_softmax(dim=-1)
        logits = student(input_ids=ids, use_cache=False).logits[0, :-1]
        log_probs = (logits / TEMPERATURE).log_softmax(dim=-1)
        soft = F.kl_div(log_probs, targets, reduction="batchmean", log_target=True)
        return TEMPERATURE**2 * soft + F.cross_entropy(logits, ids[0, 1:])

    return whole if options.variant == "whole" else lambda: module.losses(batch)[0]


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Returns the memory of a step in MB, its median seconds, and its loss before any step."""
    torch.set_num_threads(options.threads)
    student = build_model(options, 0)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-5, fused=True)
    compute_loss, seconds = make_loss(student, options), []
    student.eval()  # Without dropout both have the same loss.
    with torch.no_grad():
        loss = float(compute_loss())
    student.train()

    def step() -> None:
        compute_loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    processes.reset_peak()
    before = processes.peak_mb()
    for _ in range(options.rounds):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {"mb": processes.peak_mb() - before, "seconds": statistics.median(seconds), "loss": loss}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 512), ("vocabulary", 50257), ("width", 256), ("layers", 2), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--variant", choices=VARIANTS, help="measures one variant and prints JSON")
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(measure(options)))
        return
    rows: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for _ in range(2):
        for variant in VARIANTS:
            command = [sys.executable, *sys.argv, "--variant", variant]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | RETURNED)
            rows[variant].append(json.loads(done.stdout.splitlines()[-1]))
    show(rows, options)


def show(rows: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    table = Table(title=f"{options.tokens} tokens, {options.vocabulary:,} logits; goal {GOAL_MB} MB")
    for heading in ("", "MB of a step", "seconds", "loss"):
        table.add_column(heading, justify="right" if heading else "left")
    for variant, runs in rows.items():
        best = {name: min(run[name] for run in runs) for name in runs[0]}
        table.add_row(variant, f"{best['mb']:.0f}", f"{best['seconds']:.2f}", f"{best['loss']:.6f}")
    console = Console()
    console.print(describe_machine())
    console.print(table)


if __name__ == "__main__":
    main()
