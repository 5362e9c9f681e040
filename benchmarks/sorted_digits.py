"""Sequence-level, word-level and on-policy distillation on sorted digits with noise, by exact match.

python benchmarks/sorted_digits.py --output sorted_digits

A source has ten digits, and its target has them in order, a fifth of the target's tokens being wrong. A teacher with
two layers in both halves learns from these targets. Each student begins with its layers but one of the decoder's, and
has as many steps as every other one: by the labels, by the teacher's distributions on them (word level), by the
teacher's beams (sequence level), by both, and on texts of its own. Dev has no noise.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from distill.core.contracts import IGNORED, TARGET_MASK
from distill.kinds import Seq2Seq
from distill.kinds.scoring import text_metrics
from distill.losses import GeneralizedKD, HardLabels, Objective, SoftTargets
from distill.teachers.signal import Live
from distill.teachers.writing import BeamWriter, TargetSettings, open_texts
from distill.training.module import NOTHING, DistillationModule

DIGITS, BATCH, RATE = 10, 64, 2e-3
Pairs = tuple[list[str], list[str]]


@dataclass(frozen=True)
class Setting:
    """A way of training: the objective, and whether the targets are the teacher's texts."""

    objective: Objective
    beams: bool = False


def settings() -> dict[str, Setting]:
    """Returns the ways of training a student by their names."""
    soft, hard = SoftTargets(temperature=1.0), HardLabels()
    on_policy = GeneralizedKD(divergence="jsd", student_share=0.5)
    return {
        "labels": Setting(Objective(hard=hard)),
        "word level": Setting(Objective(soft=soft)),
        "sequence level": Setting(Objective(hard=hard), beams=True),
        "both levels": Setting(Objective(soft=soft, hard=hard), beams=True),
        "on-policy": Setting(Objective(gkd=on_policy)),
    }


def create_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {name: number for number, name in enumerate(["<pad>", "</s>", "<unk>", *map(str, range(10))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=64
    )


def create_pairs(number: int, *, noise: float, seed: int) -> Pairs:
    """Returns sources and targets, of whose tokens a share of `noise` is another digit."""
    random = np.random.default_rng(seed)
    digits = random.integers(0, 10, (number, DIGITS))
    targets = np.sort(digits, axis=1)
    is_wrong = random.random(targets.shape) < noise
    targets = np.where(is_wrong, (targets + random.integers(1, 10, targets.shape)) % 10, targets)
    return [" ".join(map(str, row)) for row in digits], [" ".join(map(str, row)) for row in targets]


def create_teacher(tokenizer: PreTrainedTokenizerFast) -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=len(tokenizer), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, dropout_rate=0.0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def create_student(teacher: T5ForConditionalGeneration) -> T5ForConditionalGeneration:
    """Returns the teacher without the last layer of its decoder (shrink and fine-tune, arXiv 2010.13002)."""
    student = copy.deepcopy(teacher).requires_grad_(True)
    student.decoder.block = student.decoder.block[:1]
    student.config.num_decoder_layers = student.decoder.config.num_layers = 1
    return student


def create_batch(
    tokenizer: PreTrainedTokenizerFast, sources: Sequence[str], targets: Sequence[str]
) -> dict[str, Tensor]:
    inputs, outputs = (tokenizer(list(texts), padding=True, return_tensors="pt") for texts in (sources, targets))
    mask = outputs["attention_mask"]
    return {
        "input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"],
        "labels": outputs["input_ids"].masked_fill(mask == 0, IGNORED), TARGET_MASK: mask,
        "example_id": torch.arange(len(sources)),
    }  # fmt: skip


def train(
    module: DistillationModule, tokenizer: PreTrainedTokenizerFast, pairs: Pairs, *, steps: int, seed: int
) -> None:
    """Trains the module's student with AdamW, whose learning rate falls to zero."""
    optimizer = torch.optim.AdamW(module.student.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20) * (1 - step / steps))
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    for _ in range(steps):
        rows = random.integers(0, len(pairs[0]), BATCH)
        batch = create_batch(tokenizer, *([texts[row] for row in rows] for texts in pairs))
        loss, _ = module.losses(module.choose_targets(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def score(model: T5ForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, dev: Pairs) -> dict[str, float]:
    """Returns the metrics of the texts that the model writes greedily."""
    texts = BeamWriter(model.eval(), tokenizer, 1, 16, DIGITS + 1)(dev[0])
    return text_metrics([beams[0] for beams in texts], [[target] for target in dev[1]])


def run(*, rows: int, teacher_steps: int, steps: int, seeds: int, cache_dir: Path) -> dict[str, dict[str, float]]:
    """Returns the metrics of the teacher and of each student, the students' as means over the seeds."""
    tokenizer, task = create_tokenizer(), Seq2Seq(train=[{"source": "1", "target": "1"}])
    pairs, dev = create_pairs(rows, noise=0.2, seed=1), create_pairs(500, noise=0.0, seed=2)
    torch.manual_seed(0)
    teacher = create_teacher(tokenizer)
    module = DistillationModule(student=teacher, objective=Objective(hard=HardLabels()), task=task)
    train(module, tokenizer, pairs, steps=teacher_steps, seed=0)
    results = {"teacher": score(teacher, tokenizer, dev)}
    start = time.perf_counter()
    writer = BeamWriter(teacher, tokenizer, TargetSettings().beams, 16, DIGITS + 1)
    texts = open_texts(pairs[0], writer, fingerprint=f"{rows}-{teacher_steps}", cache_dir=cache_dir)
    texts.write(writer)
    print(f"beams for {texts.sources:,} sources: {time.perf_counter() - start:.1f} s", flush=True)
    beams = texts.by_source()
    written = pairs[0], TargetSettings().choose([beams[source] for source in pairs[0]], pairs[1])
    results["student before training"] = score(create_student(teacher), tokenizer, dev)
    for name, setting in settings().items():
        scores = []
        for seed in range(seeds):
            objective = copy.deepcopy(setting.objective)
            signal = Live(teacher, task, objective, reason="small") if objective.needs_teacher else NOTHING
            student = create_student(teacher)
            module = DistillationModule(student=student, objective=objective, task=task, signal=signal)
            train(module, tokenizer, written if setting.beams else pairs, steps=steps, seed=seed)
            scores.append(score(student, tokenizer, dev))
        results[name] = {metric: float(np.mean([of[metric] for of in scores])) for metric in scores[0]}
        spread = f" ± {statistics.stdev([of['exact_match'] for of in scores]):.3f}" if seeds > 1 else ""
        print(f"{name}: {results[name]['exact_match']:.3f}{spread}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="directory of the results and the teacher's texts")
    parser.add_argument("--rows", type=int, default=6000, help="training examples")
    parser.add_argument("--teacher-steps", type=int, default=1500, help="steps of the teacher's training")
    parser.add_argument("--steps", type=int, default=250, help="steps of each student's training")
    parser.add_argument("--seeds", type=int, default=1, help="students of each kind")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    results = run(
        rows=options.rows, teacher_steps=options.teacher_steps, steps=options.steps, seeds=options.seeds,
        cache_dir=options.output,
    )  # fmt: skip
    (options.output / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"{'':24} exact match   chrF")
    for name, metrics in results.items():
        print(f"{name:24} {metrics['exact_match']:11.3f} {metrics['chrf']:6.3f}")


if __name__ == "__main__":
    main()
