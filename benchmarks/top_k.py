"""Error of the loss when the teacher's outputs over a vocabulary are cached as their largest logits.

    python benchmarks/top_k.py --teacher DIR --data DIR

Computes the soft-target loss of a half-depth student on masked text, once from all logits of the teacher and once from
its `teacher.cache.top_k` largest ones. Reports the share of the probability that is cached, and the relative errors of
the loss and of its gradient. Nothing is trained or timed, so the numbers are the same on every machine.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoTokenizer, BertForMaskedLM, PreTrainedModel

from distill.core.contracts import Items, Outputs
from distill.kinds import MaskedLM
from distill.losses import SoftTargets
from distill.teachers.output_cache import TopK
from distill.text.sequences import Sequences
from distill.training.module import freeze
from students.distilbert import from_teacher


def compute_loss_and_gradient(student_logits: Tensor, teacher_output: Any, temperature: float) -> tuple[float, Tensor]:
    """Returns the mean soft-target loss and its gradient with respect to the student's logits."""
    logits = student_logits.detach().requires_grad_()
    labels = torch.zeros(len(logits), dtype=torch.long)
    items = Items(batch={}, row=labels, labels=labels, labelled=labels == 0, classes_are_tokens=True)
    total, count = SoftTargets(temperature=temperature)(Outputs(logits=logits), teacher_output, items)
    (total / count).backward()
    assert logits.grad is not None
    return float((total / count).detach()), logits.grad


def compute_masked_logits(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Returns the logits `[n, V]` of teacher and student at the masked tokens of held-out sequences."""
    tokenizer = AutoTokenizer.from_pretrained(options.teacher)
    task = MaskedLM(name="top_k", data_dir=options.data, dev_examples=options.sequences)
    with tempfile.TemporaryDirectory() as directory:
        cache_dir = Path(directory)
        dev = task.encode(task.read(cache_dir), tokenizer, cache_dir)["dev"]
        assert isinstance(dev, Sequences)
        batch = dev[list(range(len(dev)))]
    teacher: PreTrainedModel = freeze(BertForMaskedLM.from_pretrained(options.teacher, dtype=torch.float32))
    student = from_teacher(teacher).eval()
    items = task.select(batch)
    with torch.no_grad():
        teacher_logits, student_logits = (
            task.run(model, batch, items, frozenset()).at(items).logits for model in (teacher, student)
        )
    assert teacher_logits is not None
    assert student_logits is not None
    return teacher_logits, student_logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="a directory with a BERT language model")
    parser.add_argument("--data", required=True, help="a folder or a file of text")
    parser.add_argument("--sequences", type=int, default=64, help="number of sequences of 128 tokens")
    parser.add_argument("--top-k", type=int, nargs="+", default=[8, 16, 64, 256, 1024])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 2.0, 4.0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    teacher_logits, student_logits = compute_masked_logits(options)
    half = len(teacher_logits) // 2  # The profile comes from other tokens than those it is evaluated on.
    profile = teacher_logits[half:].log_softmax(dim=-1).mean(dim=0)
    teacher_logits, student_logits = teacher_logits[:half], student_logits[:half]
    rows = []
    for top_k in options.top_k:
        kept = TopK(top_k)
        largest = kept.restore(kept.pack(teacher_logits.log_softmax(dim=-1), torch.Generator()), profile)
        mass = float(teacher_logits.softmax(dim=-1).topk(top_k, dim=-1).values.sum(dim=-1).mean())
        for temperature in options.temperatures:
            exact_loss, exact_gradient = compute_loss_and_gradient(
                student_logits, Outputs(logits=teacher_logits), temperature
            )
            loss, gradient = compute_loss_and_gradient(student_logits, largest, temperature)
            rows.append(
                {
                    "top_k": top_k, "temperature": temperature, "mass": mass,
                    "loss": abs(loss - exact_loss) / exact_loss,
                    "gradient": float((gradient - exact_gradient).norm() / exact_gradient.norm()),
                    "bytes": kept.bytes_per_item,
                }
            )  # fmt: skip
    table = Table(title=f"{len(teacher_logits):,} masked tokens; {describe_machine()}")
    for column in ("top_k", "T", "of the probability", "error of the loss", "of the gradient", "bytes a token"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["top_k"]), f"{row['temperature']:g}", f"{row['mass']:.1%}", f"{row['loss']:.2%}",
            f"{row['gradient']:.2%}", f"{row['bytes']:,}",
        )  # fmt: skip
    Console(width=120).print(table)
    if options.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
