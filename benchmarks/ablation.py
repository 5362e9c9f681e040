"""What each term of DistilBERT's loss is worth on tasks: table 4 of arXiv 1910.01108, from a sweep of language models.

    python -m distill -m +experiment=distilbert_ablation +teacher=... task.data_dir=... seed=0,1,2 output_dir=STUDENTS
    python benchmarks/ablation.py --students STUDENTS --teacher DIR --data path/to/glue --output DIR

Every student of the sweep is fine-tuned on each task, without a teacher (`+experiment=distilbert_finetune`), and its
exported float32 file is scored on dev. All students of a task have the same steps. The macro-score is the mean of the
tasks' metrics in percent, and a row's difference from the whole loss is paired by seed. What is in `--output` already
is not trained again. With `--table` nothing is trained.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import yaml  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from distill.files import JsonObject
from distill.records.collection import find_runs
from distill.records.comparison import read_options

ROOT = Path(__file__).resolve().parents[1]
PAPER: Mapping[str, float] = yaml.safe_load((ROOT / "conf/experiment/distilbert_ablation.yaml").read_text())["paper"][
    "values"
]
WHOLE = "none"  # The name of the loss from which nothing is left out.
Students = Mapping[Path, tuple[str, int]]  # The directory of each student, with its ablation and its seed.
Scores = dict[tuple[str, int, str], float]  # Ablation, seed and task -> the metric.


def find_students(directory: Path, names: Sequence[str]) -> Students:
    """Returns the students of a sweep that has finished, by their directories."""
    return {
        (path / "student").resolve(): (name, int(record["seed"]))
        for path, record in find_runs(directory).readable
        if record["status"] == "finished" and (name := str(read_options(path, record)["ablation.name"])) in names
    }


def find_scores(directory: Path, students: Students) -> Scores:
    """Returns the metric of the float32 file of every student that was fine-tuned below a directory."""
    scores: Scores = {}
    if not directory.is_dir():
        return scores
    for path, record in find_runs(directory).readable:
        student = students.get(Path(str(read_options(path, record)["student.path"])))
        if record["status"] == "finished" and student:
            scores[*student, record["task"]["name"]] = score_of(record)
    return scores


def score_of(record: JsonObject) -> float:
    return float(record["export"]["fp32"]["metrics"][record["task"]["metric"]])


def finetune(options: argparse.Namespace, task: str, students: Students) -> None:
    """Fine-tunes students on a task, one after the other, with one thread; the teacher is that of the cache."""
    output = options.output / f"{task}.txt"
    command = [
        sys.executable, "-m", "distill", "-m", "+experiment=distilbert_finetune", "+teacher=minilm",
        f"teacher.path={options.teacher}", "+student=pretrained", f"student.path={','.join(map(str, students))}",
        f"seed={min(seed for _, seed in students.values())}", f"task={task}", f"task.data_dir={options.data / task}",
        f"trainer.max_epochs={options.epochs}", f"trainer.learning_rate={options.learning_rate}",
        "trainer.checkpoint_steps=null", "teacher.finetune.max_epochs=2", "export.formats=[fp32]",
        "benchmark.enabled=false", f"cache_dir={options.output / 'cache'}", f"output_dir={options.output}",
    ]  # fmt: skip
    with open(output, "ab") as file:
        subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=options.output,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def finetune_all(options: argparse.Namespace, students: Students) -> None:
    """Fine-tunes what has no score yet, the students of one seed and task in one process."""
    options.output.mkdir(parents=True, exist_ok=True)
    scores = find_scores(options.output, students)
    with ThreadPoolExecutor(options.processes) as pool:
        for task in options.tasks:
            for seed in sorted({seed for _, seed in students.values()}):
                due = {
                    path: (name, of) for path, (name, of) in students.items()
                    if of == seed and (name, of, task) not in scores
                }  # fmt: skip
                if due:
                    pool.submit(finetune, options, task, due)


def make_table(scores: Scores, tasks: Sequence[str], names: Sequence[str]) -> Table:
    """Returns the mean and the deviation over seeds of each task, in percent, and the difference of the macro-score."""
    table = Table(*("loss", "seeds", *tasks, "macro-score", "difference", "the paper's"))
    macro: dict[str, dict[int, float]] = {}
    for name in names:
        seeds = sorted({seed for of, seed, _ in scores if of == name})
        whole = [seed for seed in seeds if all((name, seed, task) in scores for task in tasks)]
        macro[name] = {seed: 100 * float(np.mean([scores[name, seed, task] for task in tasks])) for seed in whole}
        both = [seed for seed in macro[name] if seed in macro.get(WHOLE, {})]
        differences = [macro[name][seed] - macro[WHOLE][seed] for seed in both] if name != WHOLE else []
        columns = [
            describe([100 * scores[name, seed, task] for seed in seeds if (name, seed, task) in scores])
            for task in tasks
        ]
        paper = f"{PAPER[name]:+.2f}" if name in PAPER else ""
        macros = describe(list(macro[name].values()))
        table.add_row(name, str(len(whole)), *columns, macros, describe(differences, sign="+"), paper)
    return table


def describe(values: Sequence[float], sign: str = "") -> str:
    """Returns the mean and the standard deviation."""
    if not values:
        return ""
    deviation = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.1f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=Path, required=True, help="directory of the sweep of language models")
    parser.add_argument("--teacher", type=Path, required=True, help="the pre-trained encoder, the reference of a task")
    parser.add_argument("--data", type=Path, required=True, help="with a directory for each task")
    parser.add_argument("--output", type=Path, required=True, help="for runs, teachers and output")
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "rte", "cola", "stsb"])
    parser.add_argument("--rows", nargs="+", default=[WHOLE, *PAPER], help="of the ablation")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--processes", type=int, default=2, help="with one thread each")
    parser.add_argument("--table", action="store_true", help="of what there is")
    options = parser.parse_args()
    options.output = options.output.resolve()
    students = find_students(options.students, options.rows)
    if not options.table:
        finetune_all(options, students)
    scores = find_scores(options.output, students)
    Console(width=160).print(make_table(scores, options.tasks, options.rows))


if __name__ == "__main__":
    main()
