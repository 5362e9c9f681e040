"""Compares losses over several seeds: an ablation with means, deviations and paired differences.

    python examples/compare_losses.py
    python examples/compare_losses.py --seeds 5 --epochs 8 --losses hinton logit_mse
    python -m distill job=report runs=runs/losses

The last command writes one report of all runs, with figures. All runs share one teacher, and its outputs are computed
once. The reference is the same student that learns from the labels alone.
"""

import argparse
from pathlib import Path

import pandas
from scipy import stats

import distill as d
from distill.data.docstrings import prepare_dataset

# A loss is a weighted sum of terms. Any term of `distill.losses` can stand here, and one of your own.
LOSSES = {
    "labels": {"hard": d.HardLabels(weight=1)},
    "hinton": {"soft": d.SoftTargets(temperature=2, weight=1), "hard": d.HardLabels(weight=1)},
    "logit_mse": {"mse": d.LogitMSE(weight=1)},
    "triple": {
        "soft": d.SoftTargets(temperature=2, weight=5), "hard": d.HardLabels(weight=2), "cosine": d.Cosine(weight=1),
    },
}  # fmt: skip
REFERENCE = "labels"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", nargs="+", choices=sorted(LOSSES), default=sorted(LOSSES), help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="students of each loss (default %(default)s)")
    parser.add_argument("--rows", type=int, default=1400, help="of the built-in sentences (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="of each student (default %(default)s)")
    parser.add_argument("--directory", type=Path, default=Path("runs/losses"), help="of all runs (default %(default)s)")
    options = parser.parse_args()

    table = pandas.read_json(prepare_dataset(d.Teacher.embedded().cache_dir) / "train.jsonl", lines=True)
    table = table.groupby("label").head(options.rows // table.label.nunique())
    # Only the labelled rows, so that the losses differ in nothing else.
    task = d.tasks.Classification(data=table, text="sentence", label="label", unlabelled=None)
    teacher = d.Teacher.embedded().fit(task, min_steps=400)

    names = [REFERENCE, *(name for name in options.losses if name != REFERENCE)]
    metrics = {}
    for name in names:
        result = d.distill(
            teacher,
            d.students.distilbert(layers="alternate"),
            task,
            objective=d.Objective(**LOSSES[name]),
            trainer=d.TrainerSettings.auto(max_epochs=options.epochs),
            augment=None,
            baseline=False,
            seeds=options.seeds,
            export=d.ExportSettings(formats=["fp32"]),  # The comparison needs no int8 file,
            benchmark=d.BenchmarkSettings(enabled=False),  # and no times.
            directory=options.directory / name,
        )
        metrics[name] = read_metrics(result)

    print(f"accuracy on dev, {options.seeds} seeds; the difference is paired by seed, with its 95% interval")
    for name in names:
        values = pandas.Series(metrics[name])
        print(f"{name:<10}{values.mean():.4f} ± {values.std():.4f}{describe_difference(values, metrics[REFERENCE])}")
    print(f"One report of all: python -m distill job=report runs={options.directory}")


def read_metrics(result: d.Result) -> list[float]:
    """Returns the accuracy of the student of each seed, in the order of the seeds."""
    seeds = result.record["seeds"] or [{"metrics": result.metrics}]
    return [seed["metrics"]["accuracy"] for seed in seeds]


def describe_difference(values: pandas.Series, reference: list[float]) -> str:
    """Describes the paired difference from the reference; empty for the reference itself."""
    differences = (values - pandas.Series(reference)).round(9)
    if not differences.any():
        return ""
    if differences.nunique() == 1:  # A single seed, or the same difference of all: no interval.
        return f"   {100 * differences.mean():+.1f} points"
    low, high = stats.t.interval(0.95, len(differences) - 1, loc=differences.mean(), scale=stats.sem(differences))
    return f"   {100 * differences.mean():+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"


if __name__ == "__main__":
    main()
