"""Duration of a training step with the rows of embeddings that batches read, next to one with the whole table.

    python benchmarks/compact_embeddings.py --data DIR --teacher DIR [--examples 8000 --batch 32 --steps 40]

A student of half the teacher's layers learns SST-2 from outputs that are kept, as in `throughput.py`. Both ways take
turns step by step on the same batches, which are those of a training in their order. The seconds are those of the
processor, which the load of other processes changes less than those of a clock.
"""

import argparse
import copy
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from machine import describe_machine, has_bf16, make_training_step
from rich.console import Console
from rich.table import Table
from training_step import FixedSignal
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from distill.data import batches as batching
from distill.kinds import Classification
from distill.losses import HardLabels, Objective, SoftTargets
from distill.models import cpu_kernels
from distill.training import processes
from distill.training.fitting import choose_rows, compact_embeddings
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import DistillationModule
from students.distilbert import from_teacher

WAYS: dict[str, Literal["auto", False]] = {"whole": False, "compact": "auto"}


def make_step(module: DistillationModule, shown: list[list[dict[str, torch.Tensor]]]) -> Callable[[], None]:
    """Returns a function that runs one optimizer step of the module on the next batch."""
    batches = itertools.cycle(shown)

    def loss() -> torch.Tensor:
        [batch] = next(batches)
        module.signal = FixedSignal(torch.zeros(len(batch["labels"]), 2))
        return module.losses(batch)[0]

    return make_training_step(loss, module.parameters(), module.configure_optimizers()[0][0], "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="SST-2: train.tsv and dev.tsv")
    parser.add_argument("--teacher", required=True, help="a BERT")
    parser.add_argument("--examples", type=int, default=8000, help="of train")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40, help="of each way; medians are shown")
    options = parser.parse_args()
    processes.keep_freed_memory()
    task = Classification(name="sst2", text=["sentence"], data_dir=options.data, train_examples=options.examples)
    tokenizer = AutoTokenizer.from_pretrained(options.teacher)
    settings = TrainerSettings(learning_rate=1e-4, batch_size=options.batch, max_epochs=1)
    loader = batching.all_loaders(task.encode(task.read(Path()), tokenizer, None), **settings.batches())["train"]
    shown = list(itertools.islice(loader, options.steps))
    model = AutoModelForSequenceClassification.from_pretrained(options.teacher, num_labels=2)
    student = from_teacher(model)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        steps = {}
        for way, value in WAYS.items():
            objective = Objective(
                name="hinton", terms={"soft": SoftTargets(weight=0.5), "hard": HardLabels(weight=0.5)}
            )
            module = DistillationModule(
                student=copy.deepcopy(student), objective=objective, task=task,
                signal=FixedSignal(torch.zeros(options.batch, 2)), settings=settings,
                steps_per_epoch=len(loader),
            )  # fmt: skip
            rows = choose_rows(module, loader, replace(settings, compact_embeddings=value))
            stack.enter_context(compact_embeddings(module, rows))
            stack.enter_context(cpu_kernels.use_cpu_kernels(module.student))
            steps[way] = make_step(module, shown)
        for number in range(-3, options.steps):
            for way, step in steps.items():
                start = time.process_time()
                step()
                if number >= 0:
                    seconds[way].append(time.process_time() - start)
    table = Table(title=f"Batch {options.batch}, {rows.describe()}; bf16 {has_bf16()}; {describe_machine()}")
    for column in ("table", "ms of the processor", "of the whole"):
        table.add_column(column, justify="left" if column == "table" else "right")
    whole = statistics.median(seconds["whole"])
    for way, values in seconds.items():
        table.add_row(way, f"{1e3 * statistics.median(values):.1f}", f"{statistics.median(values) / whole:.2f}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
