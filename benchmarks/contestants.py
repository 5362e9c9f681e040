"""One contestant of throughput.py, in a process of its own: it trains the student and prints one line of JSON."""

import argparse
import contextlib
import importlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from machine import forward_flops, soft_and_hard
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    get_linear_schedule_with_warmup,
)

from distill.console import silence_libraries
from distill.contracts import Scores
from distill.data import batching, tables
from distill.losses import HardLabels, Objective, SoftTargets
from distill.tasks import Classification
from distill.teaching import outputs
from distill.teaching.output_cache import OutputCache
from distill.training import fitting
from distill.training.evaluate import evaluate
from distill.training.module import DistillationModule, freeze
from distill.training.settings import TrainerSettings
from students.distilbert import from_teacher

IMPORTS = {"trainer": "transformers.trainer", "textbrewer": "textbrewer"}
LEARNING_RATE, WARMUP, WEIGHT_DECAY, CLIP, TEMPERATURE, BATCH = 1e-4, 0.1, 0.01, 1.0, 2.0, 32


@dataclass
class Race:
    """What everybody is given: raw examples, teacher, student, tokenizer, epochs and a directory to write to."""

    splits: tables.LabelledData
    task: Classification
    teacher: PreTrainedModel | None
    student: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    epochs: int
    directory: Path
    precision: str
    seed: int


# Each trains `race.student` and returns logits of dev `[N, C]`, tokens computed with padding, seconds of the teacher.


def distill(race: Race) -> tuple[np.ndarray, int, float]:
    examples = race.task.encode(race.splits, race.tokenizer, race.directory)
    directory = race.directory / "outputs"
    computation = outputs.Computation(lambda: race.teacher, race.precision, race.task, OutputCache(), directory)
    computed = outputs.cache_outputs(computation, examples["train"])
    race.teacher = None
    settings = TrainerSettings(
        learning_rate=LEARNING_RATE, batch_size=BATCH, max_epochs=race.epochs, warmup=WARMUP,
        weight_decay=WEIGHT_DECAY, clip=CLIP, accelerator="cpu", seed=race.seed,
    )  # fmt: skip
    loaders = batching.all_loaders(examples, **settings.batches())
    terms = {"soft": SoftTargets(temperature=TEMPERATURE, weight=0.5), "hard": HardLabels(weight=0.5)}
    module = DistillationModule(
        student=race.student, objective=Objective(name="hinton", terms=terms), task=race.task,
        cached_outputs=computed.outputs, **settings.optimization(len(loaders["train"])),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as checkpoints:
        fitting.fit(
            module, loaders["train"], loaders["dev"], settings=settings, checkpoints=Path(checkpoints) / "c",
            logger=None, title="student",
        )  # fmt: skip
        # `fit` leaves the best of the epochs; the others have nothing but the last.
        last = torch.load(Path(checkpoints) / "c" / "last.ckpt", weights_only=True)["state_dict"]
        module.load_state_dict(last)
    scores = evaluate(module.student, race.task, loaders["dev"]).by_example()
    return scores.columns["logits"], module.tokens_computed, computed.seconds


def loader(race: Race, computed: list[int]) -> Any:
    """Batches with dynamic padding, drawn at random; what they hold is counted."""
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


def dev_logits(race: Race) -> np.ndarray:
    race.student.eval()
    texts, found = race.splits.splits["dev"].texts, []
    for start in range(0, len(texts), 64):
        batch = race.tokenizer(
            texts[start : start + 64], truncation=True, max_length=race.task.max_length, padding=True,
            return_tensors="pt", return_token_type_ids=False,
        )  # fmt: skip
        with torch.no_grad():
            found.append(race.student(**batch).logits)
    return torch.cat(found).numpy()


def scores_of(logits: np.ndarray, labels: np.ndarray) -> Scores:
    return Scores({"logits": logits}, labels, np.arange(len(labels)))


def optimizer_and_schedule(race: Race, steps: int) -> tuple[Any, Any]:
    optimizer = torch.optim.AdamW(race.student.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    return optimizer, get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)


def plain(race: Race, bf16: bool = False) -> tuple[np.ndarray, int, float]:
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
            soft_and_hard(student, teacher, labels, TEMPERATURE).backward()
            torch.nn.utils.clip_grad_norm_(race.student.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return dev_logits(race), sum(computed), asked


def trainer(race: Race, bf16: bool = False) -> tuple[np.ndarray, int, float]:
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
            loss = soft_and_hard(student.logits, teacher, labels, TEMPERATURE)
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


def textbrewer(race: Race, caching: bool = False) -> tuple[np.ndarray, int, float]:
    from textbrewer import BasicDistiller, DistillationConfig, GeneralDistiller, TrainingConfig

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


RUN: Mapping[str, Callable[[Race], tuple[np.ndarray, int, float]]] = {
    "distill": distill,
    "plain": plain,
    "plain-bf16": lambda race: plain(race, bf16=True),
    "trainer": trainer,
    "trainer-bf16": lambda race: trainer(race, bf16=True),
    "textbrewer": textbrewer,
    "textbrewer-caching": lambda race: textbrewer(race, caching=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant", choices=list(RUN))
    for name in ("--data", "--teacher", "--work", "--cache"):
        parser.add_argument(name, required=True, type=Path)
    for name in ("--examples", "--epochs", "--seed"):
        parser.add_argument(name, required=True, type=int)
    parser.add_argument("--teacher-precision", required=True)
    options = parser.parse_args()
    silence_libraries()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(options.seed)
    task = Classification(
        name="race", text=["sentence"], labels=["negative", "positive"], data_dir=str(options.data),
        train_examples=options.examples,
    )  # fmt: skip
    splits = task.read(options.work)
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    ours = options.contestant == "distill"
    student = from_teacher(load(options.teacher, dtype=torch.float32))
    # The teacher of cached outputs is not loaded again.
    known = ours and (options.cache / "outputs").is_dir()
    dtype = getattr(torch, options.teacher_precision) if ours else torch.float32
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
        "accuracy": task.metrics(scores_of(logits, splits.splits["dev"].labels))["accuracy"],
        "useful_flops": 3 * options.epochs * forward_flops(student, lengths),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
