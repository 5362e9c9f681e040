"""Has a change of the code left the numbers of whole runs as they were, to the last digit?

    python benchmarks/same_numbers.py --data path/to/data --model path/to/all-MiniLM-L6-v2 \\
        --other path/to/paraphrase-MiniLM-L3-v2 --output before.json
    python benchmarks/same_numbers.py --data path/to/data --model path/to/all-MiniLM-L6-v2 \\
        --other path/to/paraphrase-MiniLM-L3-v2 --output after.json
    python benchmarks/same_numbers.py --compare before.json after.json

Runs the README's Run block, SST-2 with a baseline, a masked language model that is adapted and then distilled, tagging,
two tasks and an ensemble, each for a few steps with one thread and an empty cache. Keeps all metrics of run.json, the
sizes of the exported files and the SHA-256 of the students' weights. `--root` names another checkout to run.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS = (
    "trainer.max_steps=200",
    "teacher.finetune.max_epochs=1",
    "benchmark.enabled=false",
    "augment=none",
    "teacher.accept_weak=true",
)
TEACHER = ("+teacher=pretrained", "teacher.path={model}", "+student=distilbert")
SST2 = ("task=sst2", "task.data_dir={data}/glue/sst2", "task.train_examples=2000")
RUNS = {
    "readme": ("+teacher=bert_base", "+student=distilbert"),
    "sst2": (*TEACHER, *SST2, "baseline=true", *STEPS),
    "books": ("job=finetune", *TEACHER[:2], "task=mlm", "task.data_dir={data}/corpus/books", "trainer.max_steps=30"),
    "mlm": (
        TEACHER[0], "teacher.path={books}/teacher/model", TEACHER[2], "task=mlm", "task.data_dir={data}/corpus/books",
        "trainer.max_steps=50", "benchmark.enabled=false",
    ),
    "atis": (*TEACHER, "task=atis_slots", "task.data_dir={data}/tagging/atis", *STEPS),
    "several": (
        *TEACHER, "task=multi", "task.tasks=[cola,mrpc]", "task.tasks.cola.data_dir={data}/glue/cola",
        "task.tasks.mrpc.data_dir={data}/glue/mrpc", *STEPS,
    ),
    "ensemble": (
        "+teacher=ensemble", "teacher.paths=[{model},{other}]", "+student=distilbert", *SST2, *STEPS,
    ),
}  # fmt: skip
NUMBERS = ("metrics", "retention", "export", "seeds", "summary", "comparison", "tasks", "attempts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--other", type=Path, help="a second model of the ensemble, with the same vocabulary")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--compare", type=Path, nargs=2)
    options = parser.parse_args()
    if options.compare:
        before, after = (json.loads(path.read_text()) for path in options.compare)
        sys.exit(compare(before, after))
    names: dict[str, Path] = {
        "data": options.data.resolve(),
        "model": options.model.resolve(),
        "other": options.other.resolve(),
    }
    found = json.loads(options.output.read_text()) if options.output.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        for name in options.only:
            command = [part.format(**names) for part in RUNS[name]]
            names[name] = run(options.root.resolve(), command, Path(directory, name))
            found[name] = dict(list_results(names[name]))
            options.output.write_text(json.dumps(found, indent=1, sort_keys=True))


def run(root: Path, options: list[str], directory: Path) -> Path:
    """Runs one command with an empty cache and one thread; returns the directory of the run."""
    environment = os.environ | {
        "PYTHONPATH": str(root), "DISTILL_CACHE": f"{directory}/cache", "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "distill", *options, f"output_dir={directory}/runs"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    [path] = (directory / "runs").rglob("run.json")
    return path.parent


def list_results(directory: Path) -> Iterator[tuple[str, Any]]:
    """Yields the numbers of a run, and the digests of its weights, by their names."""
    yield from list_numbers(json.loads((directory / "run.json").read_text()))
    for path in sorted(directory.rglob("model.safetensors")):
        yield f"sha256 {path.relative_to(directory)}", hashlib.sha256(path.read_bytes()).hexdigest()


def list_numbers(record: dict[str, Any] | list[Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Yields the numbers of a record that do not depend on the machine's speed."""
    for name, value in record.items() if isinstance(record, dict) else enumerate(record):
        where = f"{path}/{name}" if path else str(name)
        if isinstance(value, dict | list):
            yield from list_numbers(value, where)
        elif isinstance(value, int | float) and _is_result(where):
            yield where, value


def _is_result(path: str) -> bool:
    """Returns whether a field is a metric or a size, and not a time."""
    parts = path.split("/")
    return bool({*parts} & {*NUMBERS}) and not any("second" in part or part.endswith("_ms") for part in parts)


def compare(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> int:
    """Prints the differences; returns their number, at most 1."""
    different = 0
    for name in before.keys() & after.keys():
        first, second = before[name], after[name]
        changed = [key for key in sorted(first.keys() | second.keys()) if first.get(key) != second.get(key)]
        print(f"{name}: {len(first)} numbers, {len(changed)} differ")
        for key in changed:
            print(f"    {key}: {first.get(key)} -> {second.get(key)}")
        different += len(changed)
    return min(different, 1)


if __name__ == "__main__":
    main()
