"""Trains the student with one contestant of throughput.py, in a process of its own, and prints one line of JSON."""

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
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import transformers
from machine import count_forward_flops, soft_and_hard_loss
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    get_linear_schedule_with_warmup,
)

from distill.core.console import silence_libraries
from distill.core.contracts import Scores
from distill.data import batches as batching
from distill.data import splits as tables
from distill.kinds import Classification
from distill.losses import HardLabels, Objective, SoftTargets
from distill.teachers.computation import Computation, cache_outputs
from distill.teachers.output_cache import OutputCache
from distill.training import fitting
from distill.training.hyperparameters import TrainerSettings
from distill.training.module import DistillationModule, evaluate, freeze
from students.distilbert import from_teacher

IMPORTS = {"trainer": "transformers.trainer", "textbrewer": "textbrewer"}
LEARNING_RATE, WARMUP, WEIGHT_DECAY, CLIP, TEMPERATURE, BATCH = 1e-4, 0.1, 0.01, 1.0, 2.0, 32


@dataclass
class Setup:
    """Raw examples, models and settings that all contestants share, and a directory for their files."""

    splits: tables.LabelledData
    task: Classification
    teacher: PreTrainedModel | None
    student: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    epochs: int
    directory: Path
    precision: str
    seed: int


# Each contestant trains `setup.student` and returns its logits on dev `[N, C]`, the number of computed tokens (padding
# included) and the seconds of the teacher.
Result: TypeAlias = tuple[np.ndarray, int, float]


def distill(setup: Setup) -> Result:
    examples = setup.task.encode(setup.splits, setup.tokenizer, setup.directory)
    directory = setup.directory / "outputs"
    computation = Computation(lambda: setup.teacher, setup.precision, setup.task, OutputCache(), directory)
    computed = cache_outputs(computation, examples["train"])
    setup.teacher = None
    settings = TrainerSettings(
        learning_rate=LEARNING_RATE, batch_size=BATCH, max_epochs=setup.epochs, warmup=WARMUP,
        weight_decay=WEIGHT_DECAY, clip=CLIP, accelerator="cpu", seed=setup.seed,
    )  # fmt: skip
    loaders = batching.all_loaders(examples, **settings.batches())
    terms = {"soft": SoftTargets(temperature=TEMPERATURE, weight=0.5), "hard": HardLabels(weight=0.5)}
    module = DistillationModule(
        student=setup.student, objective=Objective(name="hinton", terms=terms), task=setup.task,
        scoring=setup.splits.scoring, signal=computed, settings=settings,
        steps_per_epoch=len(loaders["train"]),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as checkpoints:
        fitting.fit(
            module, loaders["train"], loaders["dev"], settings=settings, checkpoints=Path(checkpoints) / "c",
            logger=None, title="student",
        )  # fmt: skip
        # `fit` restores the best epoch. The other contestants only have the last one.
        last_state = torch.load(Path(checkpoints) / "c" / "last.ckpt", weights_only=True)["state_dict"]
        module.load_state_dict(last_state)
    scores = evaluate(module.student, setup.task, setup.splits.scoring, loaders["dev"]).by_example()
    return scores.columns["logits"], module.tokens_computed, computed.seconds


def make_loader(setup: Setup, token_counts: list[int]) -> Any:
    """Returns a shuffled loader with dynamic padding that appends the tokens of each batch to `token_counts`."""
    encoded = setup.tokenizer(
        setup.splits.splits["train"].texts, truncation=True, max_length=setup.task.info.max_length
    )
    collate = DataCollatorWithPadding(setup.tokenizer)
    labels = setup.splits.splits["train"].labels.tolist()
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": label}
        for ids, mask, label in zip(encoded["input_ids"], encoded["attention_mask"], labels, strict=True)
    ]

    def collate_and_count(examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = dict(collate(examples))
        token_counts.append(batch["input_ids"].numel())
        return batch

    generator = torch.Generator().manual_seed(setup.seed)
    return torch.utils.data.DataLoader(
        cast(Any, rows), batch_size=BATCH, shuffle=True, collate_fn=collate_and_count, generator=generator
    )


def compute_dev_logits(setup: Setup) -> np.ndarray:
    setup.student.eval()
    texts, logits = setup.splits.splits["dev"].texts, []
    for start in range(0, len(texts), 64):
        batch = setup.tokenizer(
            texts[start : start + 64], truncation=True, max_length=setup.task.info.max_length, padding=True,
            return_tensors="pt", return_token_type_ids=False,
        )  # fmt: skip
        with torch.no_grad():
            logits.append(setup.student(**batch).logits)
    return torch.cat(logits).numpy()


def make_scores(logits: np.ndarray, labels: np.ndarray) -> Scores:
    return Scores({"logits": logits}, labels, np.arange(len(labels)))


def make_optimizer_and_schedule(setup: Setup, steps: int) -> tuple[Any, Any]:
    optimizer = torch.optim.AdamW(setup.student.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    return optimizer, get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)


def plain(setup: Setup, bf16: bool = False) -> Result:
    token_counts: list[int] = []
    batches = make_loader(setup, token_counts)
    optimizer, schedule = make_optimizer_and_schedule(setup, len(batches) * setup.epochs)
    setup.student.train()
    teacher, teacher_seconds = setup.teacher, 0.0
    assert teacher is not None
    for _ in range(setup.epochs):
        for batch in batches:
            labels = batch.pop("labels")
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                start = time.perf_counter()
                with torch.no_grad():
                    teacher_logits = teacher(**batch).logits.float()
                teacher_seconds += time.perf_counter() - start
                student_logits = setup.student(**batch).logits.float()
            soft_and_hard_loss(student_logits, teacher_logits, labels, TEMPERATURE).backward()
            torch.nn.utils.clip_grad_norm_(setup.student.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return compute_dev_logits(setup), sum(token_counts), teacher_seconds


def trainer(setup: Setup, bf16: bool = False) -> Result:
    from transformers import Trainer, TrainingArguments

    token_counts: list[int] = []
    batches = make_loader(setup, token_counts)
    teacher: Any = setup.teacher
    teacher_seconds = [0.0]

    class DistillationTrainer(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            labels = inputs.pop("labels")
            start = time.perf_counter()
            with torch.no_grad():
                teacher_logits = teacher(**inputs).logits
            teacher_seconds[0] += time.perf_counter() - start
            student_output = model(**inputs)
            loss = soft_and_hard_loss(student_output.logits, teacher_logits, labels, TEMPERATURE)
            return (loss, student_output) if return_outputs else loss

    arguments = TrainingArguments(
        output_dir=str(setup.directory / "trainer"), per_device_train_batch_size=BATCH, num_train_epochs=setup.epochs,
        learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, warmup_steps=WARMUP, max_grad_norm=CLIP,
        use_cpu=True, bf16=bf16, seed=setup.seed, report_to=[], save_strategy="no", disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    DistillationTrainer(
        model=setup.student, args=arguments, train_dataset=batches.dataset, data_collator=batches.collate_fn
    ).train()
    return compute_dev_logits(setup), sum(token_counts), teacher_seconds[0]


def textbrewer(setup: Setup, caching: bool = False) -> Result:
    from textbrewer import BasicDistiller, DistillationConfig, GeneralDistiller, TrainingConfig

    token_counts: list[int] = []
    batches = make_loader(setup, token_counts)
    optimizer, _ = make_optimizer_and_schedule(setup, 1)
    steps = len(batches) * setup.epochs
    teacher_seconds = [0.0]
    assert setup.teacher is not None
    forward = setup.teacher.forward

    def timed_forward(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        output = forward(*args, **kwargs)
        teacher_seconds[0] += time.perf_counter() - start
        return output

    setup.teacher.forward = timed_forward
    # TextBrewer does not multiply by T^2.
    config = DistillationConfig(
        temperature=TEMPERATURE, kd_loss_type="ce", kd_loss_weight=0.5 * TEMPERATURE**2, hard_label_weight=0.5,
        is_caching_logits=caching,
    )  # fmt: skip
    distiller = (BasicDistiller if caching else GeneralDistiller)(
        train_config=TrainingConfig(
            device="cpu", output_dir=str(setup.directory / "textbrewer"), log_dir=str(setup.directory / "log")
        ),
        distill_config=config, model_T=setup.teacher, model_S=setup.student,
        adaptor_T=lambda batch, output: {"logits": (output.logits,)},
        adaptor_S=lambda batch, output: {"logits": (output.logits,), "losses": (output.loss,)},
    )  # fmt: skip
    schedule = {"num_warmup_steps": int(WARMUP * steps), "num_training_steps": steps}
    with distiller:
        distiller.train(
            optimizer, batches, num_epochs=setup.epochs, max_grad_norm=CLIP,
            scheduler_class=get_linear_schedule_with_warmup, scheduler_args=schedule,
        )  # fmt: skip
    return compute_dev_logits(setup), sum(token_counts) * (setup.epochs if caching else 1), teacher_seconds[0]


CONTESTANTS: Mapping[str, Callable[[Setup], Result]] = {
    "distill": distill,
    "plain": plain,
    "plain-bf16": lambda setup: plain(setup, bf16=True),
    "trainer": trainer,
    "trainer-bf16": lambda setup: trainer(setup, bf16=True),
    "textbrewer": textbrewer,
    "textbrewer-caching": lambda setup: textbrewer(setup, caching=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant", choices=list(CONTESTANTS))
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
        name="sst2", text=["sentence"], labels=["negative", "positive"], data_dir=str(options.data),
        train_examples=options.examples,
    )  # fmt: skip
    splits = task.read(options.work)
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    is_distill = options.contestant == "distill"
    student = from_teacher(load(options.teacher, dtype=torch.float32))
    # Cached outputs need no teacher.
    is_cached = is_distill and (options.cache / "outputs").is_dir()
    dtype = getattr(torch, options.teacher_precision) if is_distill else torch.float32
    teacher = None if is_cached else freeze(load(options.teacher, dtype=dtype))
    setup = Setup(
        splits=splits, task=task, teacher=teacher, student=student,
        tokenizer=transformers.AutoTokenizer.from_pretrained(options.teacher), epochs=options.epochs,
        directory=options.cache, precision=options.teacher_precision, seed=options.seed,
    )  # fmt: skip
    importlib.import_module(IMPORTS.get(options.contestant.partition("-")[0], "torch"))
    start = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        logits, computed_tokens, teacher_seconds = CONTESTANTS[options.contestant](setup)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # Before the tokenization below.
    encoded = setup.tokenizer(splits.splits["train"].texts, truncation=True, max_length=task.info.max_length)
    lengths = np.array([len(ids) for ids in encoded["input_ids"]])
    examples, tokens = options.epochs * len(lengths), options.epochs * int(lengths.sum())
    result = {
        "seconds": seconds,
        "teacher_seconds": teacher_seconds,
        "examples_per_second": examples / seconds,
        "tokens_per_second": tokens / seconds,
        "padding": 1 - tokens / computed_tokens,
        "peak_rss_mb": peak,
        "accuracy": splits.scoring.metrics(make_scores(logits, splits.splits["dev"].labels))["accuracy"],
        "useful_flops": 3 * options.epochs * count_forward_flops(student, lengths),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
