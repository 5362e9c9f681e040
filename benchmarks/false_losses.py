"""How often does "What was lost" name a group that loses more, where no group does?

    python benchmarks/false_losses.py

Teachers and students are drawn without a difference between the groups of their texts, which are by length, negation
and unknown words, and each draw is one inspection. Of single answers a student loses some, and gets some right that its
teacher does not. The words of a text are lost together: at a rate of the text's own, or most of them at once.
"""

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from distill.inspection.subjects import find_lost_groups

KINDS = ("single answers", "words, each text at a rate of its own", "words, most of a text at once")


def draw_members(texts: int, random: np.random.Generator) -> tuple[dict[tuple[str, str], np.ndarray], np.ndarray]:
    """Returns the members of seven groups of texts, `[T]` each, and the lengths of the texts in words."""
    lengths = random.integers(3, 30, texts)
    short, middle = np.quantile(lengths, [1 / 3, 2 / 3])
    negated, is_new = random.random(texts) < 0.15, random.random(texts) < 0.3
    groups = {
        "short": lengths <= short, "middle": (lengths > short) & (lengths <= middle), "long": lengths > middle,
        "negated": negated, "not negated": ~negated, "new": is_new, "known": ~is_new,
    }  # fmt: skip
    return {("group", name): of for name, of in groups.items()}, lengths


def draw_scores(
    kind: str, lengths: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the scores of teacher and student, and the text of each, `[n]`."""
    if kind == KINDS[0]:
        text = np.arange(len(lengths))
        teacher = random.random(len(text)) < 0.9
        student = np.where(random.random(len(text)) < 0.9, teacher, random.random(len(text)) < 0.6)
        return teacher.astype(float), student.astype(float), text
    text = np.repeat(np.arange(len(lengths)), lengths)
    rates = random.beta(0.3, 6, len(lengths)) if kind == KINDS[1] else 0.7 * (random.random(len(lengths)) < 0.06)
    return np.ones(len(text)), (random.random(len(text)) >= rates[text]).astype(float), text


def share_of_false_losses(kind: str, texts: int, *, times: int, by_text: bool, seed: int = 0) -> float:
    """Returns the share of inspections that name a group.

    Args:
        by_text: whether texts are resampled, as `job=inspect` does, and not words.
    """
    random, found = np.random.default_rng(seed), 0
    for number in range(times):
        members, lengths = draw_members(texts, random)
        teacher, student, text = draw_scores(kind, lengths, random)
        of_items = {key: of[text] for key, of in members.items()}
        groups = find_lost_groups(teacher, student, of_items, texts=text if by_text else None, seed=number)
        found += any(group.loses_more for group in groups)
    return found / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, nargs="+", default=[200, 872, 5000])
    parser.add_argument("--times", type=int, default=400, help="inspections of each row")
    parser.add_argument("--by-word", action="store_true", help="resample words, which the program does not")
    options = parser.parse_args()
    print("| lost | texts | inspections that name a group |\n|---|---:|---:|")
    for kind, texts in itertools.product(KINDS, options.texts):
        share = share_of_false_losses(kind, texts, times=options.times, by_text=not options.by_word)
        print(f"| {kind} | {texts:,} | {share:.1%} |", flush=True)


if __name__ == "__main__":
    main()
