"""How fast is a whole distillation, next to what a user would run instead?

    python benchmarks/throughput.py --data DIR --teacher DIR --install
    python benchmarks/throughput.py --data DIR --teacher DIR [--examples 8000 --epochs 3 --rounds 3] --json

Everybody gets the same fine-tuned teacher, the same student out of its alternate layers, the same examples, batch size,
learning rate and loss (half soft targets at T=2, half labels), and trains in a process of its own, in turns:

- distill: this project; once with an empty cache, once with what that left behind
- plain: a PyTorch loop with dynamic padding
- plain-bf16: the same under bf16 autocast, for whoever has the hardware
- trainer, trainer-bf16: a Hugging Face Trainer whose loss asks the teacher, as it comes and with `bf16=True`
- textbrewer: TextBrewer's GeneralDistiller with dynamic padding
- textbrewer-caching: TextBrewer's BasicDistiller, which keeps batches and logits in memory

The time is that from texts to a trained student: tokenizing, the teacher's pass, training, scoring dev once (distill
scores it, and writes checkpoints, in every epoch). Loading libraries, data and models is left out for all. The accuracy
is that of the last step. distill trains in bf16 where there is hardware for it, the others as they do by themselves.
"""

import argparse
import contextlib
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
PEERS = {"trainer": ["accelerate"], "textbrewer": ["textbrewer", "tensorboardX"]}
CONTESTANTS = ("distill", "plain", "plain-bf16", "trainer", "trainer-bf16", "textbrewer", "textbrewer-caching")
IMPORTS = {"distill": "distill.fitting", "trainer": "transformers.trainer", "textbrewer": "textbrewer"}
LEARNING_RATE, WARMUP, WEIGHT_DECAY, CLIP, TEMPERATURE, BATCH = 1e-4, 0.1, 0.01, 1.0, 2.0, 32


@dataclass
class Race:
    """What everybody is given: raw examples, teacher, student, tokenizer, epochs and a directory to write to."""

    splits: Any
    task: Any
    teacher: Any
    student: Any
    tokenizer: Any
    epochs: int
    directory: Path
    precision: str
    seed: int


# Contestants: each trains `race.student` and returns logits of dev, tokens computed with padding, teacher seconds


def distill(race: Race) -> tuple[Any, int, float]:
    import torch

    from distill import answers, batches, fitting
    from distill.losses import HardLabels, Objective, SoftTargets
    from distill.module import DistillationModule, predict_logits
    from teachers.cache import OutputCache

    examples = batches.tokenize(race.splits, race.task, race.tokenizer, cache_dir=race.directory)
    asked = answers.ask_once(
        lambda: race.teacher, examples["train"], cache=OutputCache(), directory=race.directory / "outputs",
        fingerprint=race.precision,
    )  # fmt: skip
    race.teacher = None
    settings = fitting.Settings(
        learning_rate=LEARNING_RATE, batch_size=BATCH, max_epochs=race.epochs, warmup=WARMUP,
        weight_decay=WEIGHT_DECAY, clip=CLIP, accelerator="cpu", seed=race.seed,
    )  # fmt: skip
    loaders = batches.loaders(examples, **settings.batches())
    terms = {"soft": SoftTargets(temperature=TEMPERATURE, weight=0.5), "hard": HardLabels(weight=0.5)}
    module = DistillationModule(
        student=race.student, objective=Objective(name="hinton", terms=terms), task=race.task, kept=asked.kept,
        **settings.optimization(len(loaders["train"])),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as checkpoints:
        fitting.fit(
            module, loaders["train"], loaders["dev"], settings=settings, checkpoints=Path(checkpoints) / "c",
            logger=None, title="student",
        )  # fmt: skip
        # `fit` leaves the best of the epochs; the others have nothing but the last.
        last = torch.load(Path(checkpoints) / "c" / "last.ckpt", weights_only=True)["state_dict"]
        module.load_state_dict(last)
    return predict_logits(module.student, loaders["dev"]), module.tokens_computed, asked.seconds


def loader(race: Race, computed: list[int]) -> Any:
    """Batches with dynamic padding, drawn at random; what they hold is counted."""
    import torch
    from transformers import DataCollatorWithPadding

    encoded = race.tokenizer(race.splits.splits["train"].texts, truncation=True, max_length=race.task.max_length)
    collate = DataCollatorWithPadding(race.tokenizer)
    labels = race.splits.splits["train"].labels.tolist()
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": label}
        for ids, mask, label in zip(encoded["input_ids"], encoded["attention_mask"], labels, strict=True)
    ]

    def padded(examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = dict(collate(examples))
        computed.append(batch["input_ids"].numel())
        return batch

    generator = torch.Generator().manual_seed(race.seed)
    return torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True, collate_fn=padded, generator=generator)


def kd_loss(student: Any, teacher: Any, labels: Any) -> Any:
    import torch.nn.functional as F

    soft = F.softmax(teacher / TEMPERATURE, dim=-1) * F.log_softmax(student / TEMPERATURE, dim=-1)
    return 0.5 * -(TEMPERATURE**2) * soft.sum(dim=-1).mean() + 0.5 * F.cross_entropy(student, labels)


def dev_logits(race: Race) -> Any:
    import torch

    race.student.eval()
    texts, found = race.splits.splits["dev"].texts, []
    for start in range(0, len(texts), 64):
        part = texts[start : start + 64]
        batch = race.tokenizer(
            part,
            truncation=True,
            max_length=race.task.max_length,
            padding=True,
            return_tensors="pt",
            return_token_type_ids=False,
        )
        with torch.no_grad():
            found.append(race.student(**batch).logits)
    return torch.cat(found).numpy()


def optimizer_and_schedule(race: Race, steps: int) -> tuple[Any, Any]:
    import torch
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.AdamW(race.student.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    return optimizer, get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)


def plain(race: Race, bf16: bool = False) -> tuple[Any, int, float]:
    import torch

    computed: list[int] = []
    batches = loader(race, computed)
    optimizer, schedule = optimizer_and_schedule(race, len(batches) * race.epochs)
    race.student.train()
    asked = 0.0
    for _ in range(race.epochs):
        for batch in batches:
            labels = batch.pop("labels")
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                began = time.perf_counter()
                with torch.no_grad():
                    teacher = race.teacher(**batch).logits.float()
                asked += time.perf_counter() - began
                student = race.student(**batch).logits.float()
            kd_loss(student, teacher, labels).backward()
            torch.nn.utils.clip_grad_norm_(race.student.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return dev_logits(race), sum(computed), asked


def trainer(race: Race, bf16: bool = False) -> tuple[Any, int, float]:
    import torch
    from transformers import Trainer, TrainingArguments

    computed: list[int] = []
    batches = loader(race, computed)
    asked = [0.0]

    class Distilling(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            labels = inputs.pop("labels")
            began = time.perf_counter()
            with torch.no_grad():
                teacher = race.teacher(**inputs).logits
            asked[0] += time.perf_counter() - began
            student = model(**inputs)
            loss = kd_loss(student.logits, teacher, labels)
            return (loss, student) if return_outputs else loss

    arguments = TrainingArguments(
        output_dir=str(race.directory / "trainer"), per_device_train_batch_size=BATCH, num_train_epochs=race.epochs,
        learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, warmup_steps=WARMUP, max_grad_norm=CLIP,
        use_cpu=True, bf16=bf16, seed=race.seed, report_to=[], save_strategy="no", disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    Distilling(
        model=race.student, args=arguments, train_dataset=batches.dataset, data_collator=batches.collate_fn
    ).train()
    return dev_logits(race), sum(computed), asked[0]


def textbrewer(race: Race, caching: bool = False) -> tuple[Any, int, float]:
    from textbrewer import BasicDistiller, DistillationConfig, GeneralDistiller, TrainingConfig
    from transformers import get_linear_schedule_with_warmup

    computed: list[int] = []
    batches = loader(race, computed)
    optimizer, _ = optimizer_and_schedule(race, 1)
    steps = len(batches) * race.epochs
    asked = [0.0]
    forward = race.teacher.forward

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        output = forward(*arguments, **options)
        asked[0] += time.perf_counter() - began
        return output

    race.teacher.forward = timed
    # It leaves T^2 to the weight.
    config = DistillationConfig(
        temperature=TEMPERATURE, kd_loss_type="ce", kd_loss_weight=0.5 * TEMPERATURE**2, hard_label_weight=0.5,
        is_caching_logits=caching,
    )  # fmt: skip
    distiller = (BasicDistiller if caching else GeneralDistiller)(
        train_config=TrainingConfig(
            device="cpu", output_dir=str(race.directory / "textbrewer"), log_dir=str(race.directory / "log")
        ),
        distill_config=config, model_T=race.teacher, model_S=race.student,
        adaptor_T=lambda batch, output: {"logits": (output.logits,)},
        adaptor_S=lambda batch, output: {"logits": (output.logits,), "losses": (output.loss,)},
    )  # fmt: skip
    schedule = {"num_warmup_steps": int(WARMUP * steps), "num_training_steps": steps}
    with distiller:
        distiller.train(
            optimizer, batches, num_epochs=race.epochs, max_grad_norm=CLIP,
            scheduler_class=get_linear_schedule_with_warmup, scheduler_args=schedule,
        )  # fmt: skip
    return dev_logits(race), sum(computed) * (race.epochs if caching else 1), asked[0]


RUN: Mapping[str, Callable[[Race], tuple[Any, int, float]]] = {
    "distill": distill,
    "plain": plain,
    "plain-bf16": lambda race: plain(race, bf16=True),
    "trainer": trainer,
    "trainer-bf16": lambda race: trainer(race, bf16=True),
    "textbrewer": textbrewer,
    "textbrewer-caching": lambda race: textbrewer(race, caching=True),
}


# One contestant, in a process of its own


def task_of(options: argparse.Namespace) -> Any:
    from distill.tasks import SequenceTask

    return SequenceTask(
        name="race", text=["sentence"], labels=["negative", "positive"], data_dir=str(options.data),
        train_examples=options.examples,
    )  # fmt: skip


def child(options: argparse.Namespace) -> None:
    import numpy as np
    import torch
    import transformers
    from machine import forward_flops

    from distill import data, fitting
    from distill.module import freeze
    from students.distilbert import from_teacher

    fitting.quiet()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(options.seed)
    task = task_of(options)
    splits = data.read(task, cache_dir=options.work)
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    dtype = getattr(torch, options.teacher_precision) if options.contestant == "distill" else torch.float32
    student = from_teacher(load(options.teacher, dtype=torch.float32))
    # What distill has kept need not be asked, or loaded, again.
    known = options.contestant == "distill" and (options.cache / "outputs").is_dir()
    teacher = None if known else freeze(load(options.teacher, dtype=dtype))
    race = Race(
        splits=splits, task=task, teacher=teacher, student=student,
        tokenizer=transformers.AutoTokenizer.from_pretrained(options.teacher), epochs=options.epochs,
        directory=options.cache, precision=options.teacher_precision, seed=options.seed,
    )  # fmt: skip
    importlib.import_module(IMPORTS.get(options.contestant.partition("-")[0], "torch"))
    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        logits, computed, asked = RUN[options.contestant](race)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # What follows is of the measurement.
    encoded = race.tokenizer(splits.splits["train"].texts, truncation=True, max_length=task.max_length)
    lengths = np.array([len(ids) for ids in encoded["input_ids"]])
    examples, tokens = options.epochs * len(lengths), options.epochs * int(lengths.sum())
    found = {
        "seconds": seconds,
        "teacher_seconds": asked,
        "examples_per_second": examples / seconds,
        "tokens_per_second": tokens / seconds,
        "padding": 1 - tokens / computed,
        "peak_rss_mb": peak,
        "accuracy": task.metrics(logits, splits.splits["dev"].labels)["accuracy"],
        "useful_flops": 3 * options.epochs * forward_flops(student, lengths),
    }
    print(json.dumps(found))


# The race


def prepared_teacher(options: argparse.Namespace) -> Path:
    """The teacher, fine-tuned on the same examples if its head does not fit; kept in the working directory."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(options.teacher)
    if "SequenceClassification" in str(config.architectures):
        return Path(options.teacher)
    runs = options.work / "teacher-runs"
    if not list(runs.rglob("teacher/model/config.json")):
        print("The teacher is fine-tuned on these examples first.", file=sys.stderr)
        subprocess.run(
            [sys.executable, "-m", "distill", "job=finetune", "+teacher=minilm", f"teacher.path={options.teacher}",
             "task=sst2", f"task.data_dir={options.data}", f"task.train_examples={options.examples}",
             f"cache_dir={options.work}", f"output_dir={runs}"],
            check=True, stdout=sys.stderr, env=environment(options),
        )  # fmt: skip
    return next(runs.rglob("teacher/model/config.json")).parent


def run(options: argparse.Namespace, contestant: str, teacher: Path, cache: Path, seed: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--contestant", contestant, "--data", options.data, "--teacher", teacher,
         "--examples", str(options.examples), "--epochs", str(options.epochs), "--work", options.work,
         "--cache", cache, "--teacher-precision", options.teacher_precision, "--seed", str(seed)],
        capture_output=True, text=True, check=False,
        env=environment(options),
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{contestant} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{contestant:20} {found['seconds']:8.1f} s   accuracy {found['accuracy']:.4f}", file=sys.stderr)
    return found


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Of a child: it finds this project and the peers."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(options.work / "peers")])}


def install(directory: Path) -> None:
    """The peers, without what they depend on: torch, numpy and transformers are here."""
    packages = sorted({package for needed in PEERS.values() for package in needed})
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory), *packages]
    subprocess.run(pip, check=True, stdout=sys.stderr)


def are_there(contestant: str, peers: Path) -> bool:
    needed = PEERS.get(contestant.partition("-")[0], [])
    return all((peers / package).is_dir() for package in needed)


def absolute(path: str) -> Path:
    return Path(path).expanduser().resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=absolute, help="SST-2: train.tsv and dev.tsv")
    parser.add_argument("--teacher", required=True, type=absolute, help="a BERT, fine-tuned on SST-2 or not")
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1, help="the medians of so many are shown")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each has its own")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--teacher-precision", default="float32", choices=("float32", "bfloat16"), help="distill's")
    parser.add_argument(
        "--work", type=absolute, help="keeps teacher, peers and caches; a temporary directory by default"
    )
    parser.add_argument("--install", action="store_true", help="get the peers from the package registry")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        child(options)
        return
    with contextlib.ExitStack() as stack:
        options.work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        compare(options)


def compare(options: argparse.Namespace) -> None:
    import torch
    from machine import describe, has_bf16, peak_flops
    from rich.console import Console
    from rich.table import Table

    peers = options.work / "peers"
    if options.install:
        install(peers)
    teacher = prepared_teacher(options)
    chosen = [name for name in options.contestants.split(",") if are_there(name, peers)]
    for name in set(options.contestants.split(",")) - set(chosen):
        print(f"{name} is left out: --install gets its packages", file=sys.stderr)
    found: dict[str, list[dict[str, Any]]] = {}
    peaks = []
    for seed in range(options.seed, options.seed + options.rounds):
        peaks.append(peak_flops(torch.bfloat16 if has_bf16() else torch.float32))
        with tempfile.TemporaryDirectory() as temporary:
            for name in chosen:
                found.setdefault(name, []).append(run(options, name, teacher, Path(temporary), seed))
                if name == "distill":
                    found.setdefault("distill, again", []).append(run(options, name, teacher, Path(temporary), seed))
    rows = {name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()}
    peak = statistics.median(peaks)
    table = Table(
        title=f"{options.examples:,} examples, {options.epochs} epochs, median of {options.rounds}; {describe()}; "
        f"matrix products {peak / 1e9:.0f} GFLOP/s in {'bf16' if has_bf16() else 'float32'}"
    )
    for column in ("", "seconds", "examples/s", "tokens/s", "padding", "peak MB", "of the peak", "dev", "distill is"):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        row["share_of_peak"] = row["useful_flops"] / row["seconds"] / peak
        row["ratio"] = row["seconds"] / rows["distill"]["seconds"]
        row["ratio_again"] = row["seconds"] / rows["distill, again"]["seconds"]
        table.add_row(
            name, f"{row['seconds']:.1f}", f"{row['examples_per_second']:.0f}", f"{row['tokens_per_second']:,.0f}",
            f"{row['padding']:.1%}", f"{row['peak_rss_mb']:,.0f}", f"{row['share_of_peak']:.2f}",
            f"{row['accuracy']:.4f}", f"{row['ratio']:.2f}x, again {row['ratio_again']:.2f}x",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    accuracies = [row["accuracy"] for row in rows.values()]
    spread = max(accuracies) - min(accuracies)
    print(f"Dev accuracies lie within {spread:.4f}" + ("" if spread <= 0.01 else ": more than 0.01, not equally good"))
    if options.json:
        others = [name for name in rows if not name.startswith("distill")]
        print(json.dumps({
            "ratios": {name: rows[name]["ratio"] for name in others},
            "ratios_with_cache": {name: rows[name]["ratio_again"] for name in others},
            "accuracy_spread": spread, "peak_gflops": peak / 1e9, "machine": describe(), "rows": rows,
        }))  # fmt: skip


if __name__ == "__main__":
    main()
