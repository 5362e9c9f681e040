"""What do the defaults gain on small data: taught and untaught students on all rows that the training did not see?

    python benchmarks/small_data.py samples --data path/to/data --output samples
    python benchmarks/small_data.py train --samples samples --results study.jsonl --settings SETTINGS \\
        +teacher=pretrained teacher.path=path/to/all-MiniLM-L6-v2 +student=distilbert
    python benchmarks/small_data.py table --results study.jsonl

`samples` draws 500, 2,500 and, where there are as many, 10,000 labelled rows of every data set, for each of three
seeds, as a user would have them: nine tenths are train, one tenth is dev. All other rows, those of the published dev
and test splits too, are test, of which at most 4,000 are kept.

`train` runs `python -m distill` for each line of the file SETTINGS: a name, data sets, sizes, seeds, and options of the
command line, in which `{set}` is replaced by the name of the data set. A line of JSON is appended for each run, and
runs that are in the file already are left out.

`table` writes, for each setting, the mean over the seeds of test metrics and of the difference of the taught and the
untaught student in points, with its 95% interval.
"""

import argparse
import csv
import json
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from distill.data.sources import read_file
from distill.training.statistics import compare_seeds

# Name: directory, columns of text, column of the label, metric.
SETS: Mapping[str, tuple[str, tuple[str, ...], str, str]] = {
    "sst2": ("glue/sst2", ("sentence",), "label", "accuracy"),
    "cola": ("glue/cola", ("sentence",), "label", "matthews"),
    "mrpc": ("glue/mrpc", ("sentence1", "sentence2"), "label", "accuracy"),
    "scicite": ("science/scicite", ("text",), "label", "accuracy"),
    "chemprot": ("science/chemprot", ("text",), "label", "accuracy"),
    "snips": ("intent/snips", ("sentence",), "label", "accuracy"),
    "snli": ("nli/snli", ("premise", "hypothesis"), "label", "accuracy"),
}
SIZES, SEEDS, MOST_TEST = (500, 2_500, 10_000), (0, 1, 2), 4_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = parser.add_subparsers(dest="job", required=True)
    samples = jobs.add_parser("samples")
    samples.add_argument("--data", type=Path, required=True)
    samples.add_argument("--output", type=Path, required=True)
    train = jobs.add_parser("train")
    train.add_argument("--samples", type=Path, required=True)
    train.add_argument("--results", type=Path, required=True)
    train.add_argument("--settings", type=Path, required=True)
    train.add_argument("--only", help="the names of some data sets, with commas")
    table = jobs.add_parser("table")
    table.add_argument("--results", type=Path, required=True)
    options, common = parser.parse_known_args()
    if options.job == "samples":
        for name in SETS:
            write_samples(name, options.data, options.output)
    elif options.job == "train":
        only = options.only.split(",") if options.only else list(SETS)
        run_all(options.samples, options.results, options.settings, only, common)
    else:
        Console(soft_wrap=True).print(make_table(_read_results(options.results)), highlight=False, markup=False)


def write_samples(name: str, data: Path, output: Path) -> None:
    """Writes train, dev and test of every size and seed of a data set."""
    folder, text, label, _ = SETS[name]
    rows: dict[str, list[tuple[str, ...]]] = {}
    for split in ("train", "dev", "test"):
        path = next(iter(sorted((data / folder).glob(f"{split}.*"))), None)
        if path is not None:
            table = read_file(path, (*text, label))
            rows[split] = list(zip(*(map(str, table.columns[column]) for column in (*text, label)), strict=True))
    for size in SIZES:
        for seed in SEEDS:
            if size > 0.75 * len(rows["train"]):
                continue
            for split, of_split in draw_sample(rows, size, seed).items():
                _write_csv(output / name / str(size) / str(seed) / f"{split}.csv", (*text, label), of_split)


def draw_sample(
    rows: Mapping[str, Sequence[tuple[str, ...]]], size: int, seed: int
) -> dict[str, list[tuple[str, ...]]]:
    """Returns train and dev of so many rows, and as test other rows whose class is in train."""
    order = list(dict.fromkeys(rows["train"]))
    random.Random(seed).shuffle(order)
    cut = size - size // 10
    train, dev = order[:cut], order[cut:size]
    seen, classes = {row[:-1] for row in order[:size]}, {row[-1] for row in train}
    others = [row for row in [*order[size:], *rows["dev"], *rows.get("test", [])] if row[:-1] not in seen]
    random.Random(seed).shuffle(others)
    known = [row for row in others if row[-1] in classes]
    return {"train": train, "dev": [row for row in dev if row[-1] in classes], "test": known[:MOST_TEST]}


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])


def run_all(samples: Path, results: Path, settings: Path, only: Sequence[str], common: Sequence[str]) -> None:
    """Runs the lines of the settings that are not in the results yet."""
    for line in filter(None, settings.read_text().splitlines()):
        name, sets, sizes, seeds, *options = shlex.split(line)
        for size in sizes.split(","):
            for seed in seeds.split(","):
                for data in filter(only.__contains__, sets.split(",")):
                    key = {"setting": name, "data": data, "size": int(size), "seed": int(seed)}
                    if not any(row.items() >= key.items() for row in _read_results(results)):
                        found = run_one(samples / data / size / seed, key, [*common, *options])
                        with results.open("a") as file:
                            file.write(json.dumps({**key, **found, "options": options}) + "\n")


def run_one(directory: Path, key: Mapping[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """Runs one distillation; returns the metrics on test and dev of teacher, student and baseline, and the seconds."""
    _, text, label, metric = SETS[key["data"]]
    with tempfile.TemporaryDirectory() as runs:
        command = [
            sys.executable, "-m", "distill", "task=classification", f"task.data_dir={directory}",
            f"task.text=[{','.join(text)}]", f"task.label={label}", f"task.metrics=[{metric}]", "baseline=true",
            "export.enabled=false", "benchmark.enabled=false", "teacher.accept_weak=true",
            f"seed={key['seed']}", f"output_dir={runs}",
            *(option.replace("{set}", key["data"]) for option in options),
        ]  # fmt: skip
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        paths = list(Path(runs).rglob("run.json"))
        if done.returncode or not paths:
            return {"error": (done.stderr or done.stdout)[-500:]}
        record = json.loads(paths[0].read_text())
    models = {name: record[name] for name in ("teacher", "student", "baseline") if record.get(name)}
    return {
        "metric": metric,
        **{name: model["metrics"].get(f"test/{metric}") for name, model in models.items()},
        **{f"{name}_dev": model["metrics"].get(metric) for name, model in models.items()},
        "unlabelled": (record["task"].get("unlabelled") or {}).get("examples", 0),
        "steps": record["training"]["steps"], "seconds": round(seconds, 1),
        "parts": {name: round(value, 1) for name, value in record["seconds"].items()},
    }  # fmt: skip


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table in Markdown: a row for each setting, size and data set, with the mean over the seeds."""
    cells: dict[tuple[str, int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if "error" not in row:
            cells[row["setting"], row["size"], row["data"]].append(row)
    lines = [
        "| setting | rows | data | teacher | taught | untaught | points | 95% interval | seeds | seconds |",
        "|---|---:|---|---:|---:|---:|---:|---|---:|---:|",
    ]
    for (setting, size, data), of_cell in cells.items():
        means = {
            name: _mean([row[name] for row in of_cell if row.get(name) is not None])
            for name in ("teacher", "student", "baseline", "seconds")
        }
        pairs = [row for row in of_cell if row.get("baseline") is not None]
        points = interval = "-"
        if pairs:
            difference = compare_seeds([row["student"] for row in pairs], [row["baseline"] for row in pairs])
            points = f"{100 * difference['difference']:+.1f}"
            if difference["interval"]:
                interval = " to ".join(f"{100 * end:+.1f}" for end in difference["interval"])
        models = [means[name] for name in ("teacher", "student", "baseline")]
        values = ["-" if value is None else f"{value:.3f}" for value in models]
        cells_of_row = [setting, f"{size:,}", data, *values, points, interval, len(of_cell), f"{means['seconds']:.0f}"]
        lines.append(f"| {' | '.join(map(str, cells_of_row))} |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
