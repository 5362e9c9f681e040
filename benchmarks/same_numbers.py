"""Has a change of the code left the numbers of six whole runs as they were, to the last digit?

    python benchmarks/same_numbers.py --data path/to/data --model path/to/all-MiniLM-L6-v2 \\
        --other path/to/paraphrase-MiniLM-L3-v2 --output before.json
    python benchmarks/same_numbers.py --data path/to/data --model path/to/all-MiniLM-L6-v2 \\
        --other path/to/paraphrase-MiniLM-L3-v2 --output after.json
    python benchmarks/same_numbers.py --compare before.json after.json

Runs the README's Run block, SST-2 with a baseline, masked language modelling, tagging, two tasks and an ensemble, each
for a few steps with one thread and an empty cache. Keeps all metrics of run.json, the sizes of the exported files and
the SHA-256 of the students' weights. `--root` names another checkout to run.
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
    "mlm": (*TEACHER, "task=mlm", "task.data_dir={data}/corpus/books", "trainer.max_steps=50", STEPS[2]),
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
    values = {"data": options.data.resolve(), "model": options.model.resolve(), "other": options.other.resolve()}
    found = json.loads(options.output.read_text()) if options.output.exists() else {}
    for name in options.only:
        found[name] = run(options.root.resolve(), [part.format(**values) for part in RUNS[name]])
        options.output.write_text(json.dumps(found, indent=1, sort_keys=True))


def run(root: Path, options: list[str]) -> dict[str, Any]:
    """Runs one command with an empty cache and one thread; returns its numbers by their names."""
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {
            "PYTHONPATH": str(root), "DISTILL_CACHE": f"{directory}/cache", "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "distill", *options, f"output_dir={directory}/runs"]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        [path] = (path for path in Path(directory, "runs").rglob("run.json"))
        weights = sorted(path.parent.rglob("student/**/model.safetensors"))
        return {
            **dict(list_numbers(json.loads(path.read_text()))),
            **{f"sha256 {file.relative_to(path.parent)}": _sha256(file) for file in weights},
        }


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


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
