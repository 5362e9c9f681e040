"""The gap between a student and its teacher: its shares of the start, the training, the objective and the data.

    python benchmarks/study.py --results study.jsonl --variants VARIANTS +teacher=minilm teacher.path=DIR task=mrpc ...

Trains a student for each line of the file VARIANTS, which holds options of the command line, and for each seed. One
line of JSON is appended for each training, and trainings that are in the file already are left out. Students are scored
in torch on dev; nothing is exported or timed. The word `refit` in a line, which only this script knows, replaces the
weights of the student's last layer before the training by the ridge regression of the teacher's logits.

    python benchmarks/study.py --results study.jsonl --table

writes the shares of the teacher's metric as a table of variants and tasks, mean and deviation over seeds.
"""

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn
from transformers import PreTrainedModel

import students
from distill.chain.encoding import Encoding
from distill.chain.plan import check_plan
from distill.chain.student_setup import OriginSource
from distill.chain.task_run import TaskRun
from distill.chain.train import Prepared
from distill.core.console import silence_libraries
from distill.core.contracts import Examples
from distill.data import batches
from distill.data.batches import labelled_only
from distill.jobs import execution
from distill.models.forward import run_model
from distill.records.run import create_run
from distill.teachers import preparation as teaching
from distill.training import fitting
from distill.training.module import evaluate

assert students
CONF = Path(__file__).resolve().parents[1] / "conf"
REFIT_EXAMPLES = 4000


@torch.no_grad()
def refit_head(student: PreTrainedModel, teacher: PreTrainedModel, examples: Examples, penalty: float = 1e-2) -> None:
    """Sets the last linear layer of the student to the ridge regression of the teacher's logits."""
    classes = teacher.config.num_labels
    head = [module for module in student.modules() if isinstance(module, nn.Linear) and module.out_features == classes]
    features: list[Tensor] = []
    targets: list[Tensor] = []
    hook = head[-1].register_forward_pre_hook(lambda module, inputs: features.append(inputs[0].double()))
    student.eval()
    chosen = list(range(min(REFIT_EXAMPLES, len(examples))))
    for first in range(0, len(chosen), 32):
        batch = examples[chosen[first : first + 32]]
        targets.append(run_model(teacher, batch).logits.double())
        run_model(student, batch)
    hook.remove()
    student.train()
    x, y = torch.cat(features), torch.cat(targets)
    mean_x, mean_y = x.mean(dim=0), y.mean(dim=0)
    x, y = x - mean_x, y - mean_y
    scale = penalty * x.square().sum() / x.shape[1]
    weight = torch.linalg.solve(x.T @ x + scale * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)
    head[-1].weight.copy_(weight.T)
    head[-1].bias.copy_(mean_y - mean_x @ weight)


def train(overrides: list[str], seed: int, *, refit: bool) -> dict[str, object]:
    """Trains one student; returns the metrics on dev of teacher, start and student."""
    config = compose("config", [*overrides, f"seed={seed}"])
    source = execution.build_source(config)
    plan = execution.build_plan(config).choose_for(source)
    [task] = plan.tasks.values()
    check_plan(source, plan)
    data = task.read(plan.cache_dir)
    with tempfile.TemporaryDirectory() as directory:
        run = create_run(Path(directory), job="study", seed=seed)
        preparation = teaching.Preparation(
            task=task, splits=data, cache_dir=plan.cache_dir, run_directory=run.directory,
            device=plan.trainer.device(),
        )  # fmt: skip
        teacher = teaching.prepare(source, preparation)
        L.seed_everything(plan.seed, verbose=False)
        named = execution.build_student(config)
        origins = OriginSource(source, data, plan.cache_dir, plan.trainer.device())
        student = named.make(teacher.model, task, data, origins.of(teacher.tokenizer))
        examples = Encoding(plan, task, data, source)(teacher, student)
        loaders = batches.all_loaders(examples, steps=plan.trainer.max_steps, **plan.trainer.batches())
        rows, steps = data.sizes()["train"], len(loaders["train"])
        scored = len(cast(Examples, examples["dev"]))
        plan = plan.choose_training(student, examples=rows, steps_per_epoch=steps, scored=scored)
        teaching.score(teacher, task, data.scoring, examples, source=source, directory=plan.cache_dir / "outputs")
        if refit:
            refit_head(student, teacher.model, cast(Examples, labelled_only(examples)["train"]))
        scoring = data.scoring
        start = scoring.metrics(evaluate(student, task, scoring, loaders["dev"]))[scoring.metric]
        tasks = [TaskRun("", task, plan, run, data, examples, teacher, origins)]
        prepared = Prepared(plan, run, named, student, tasks, examples, loaders, teacher, source)
        module = prepared.prepare_training(student)
        fit = fitting.fit(
            module, loaders["train"], loaders["dev"], settings=plan.trainer, checkpoints=run.directory / "checkpoints",
            logger=None, title="student",
        )  # fmt: skip
        value = scoring.metrics(evaluate(module.student, task, scoring, loaders["dev"]))[scoring.metric]
    reference = teacher.metrics[scoring.metric]
    return {
        "teacher": reference, "start": start, "student": value, "share": value / reference, "steps": fit.steps,
        "seconds": round(fit.seconds, 1),
    }  # fmt: skip


def make_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table in Markdown: a row for each variant, a column for each task."""
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        shares[row["variant"], row["task"].removeprefix("task=")].append(row["share"])
    variants, tasks = (list(dict.fromkeys(key[position] for key in shares)) for position in (0, 1))
    lines = [f"| variant | {' | '.join(tasks)} |", "|---|" + "---:|" * len(tasks)]
    for variant in variants:
        cells = [_describe_shares(shares.get((variant, task), [])) for task in tasks]
        lines.append(f"| `{variant}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _describe_shares(values: Sequence[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.3f} (one seed)"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--variants", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--seeds", default="0")
    options, common = parser.parse_known_args()
    known = options.results.read_text().splitlines() if options.results.exists() else []
    if options.table:
        print(make_table([json.loads(row) for row in known]))
        return
    silence_libraries()
    with initialize_config_dir(str(CONF), version_base=None):
        for line in filter(None, options.variants.read_text().splitlines()):
            for seed in map(int, options.seeds.split(",")):
                key = " ".join([*common, line, f"seed={seed}"])
                lines = options.results.read_text().splitlines() if options.results.exists() else []
                if any(json.loads(row)["key"] == key for row in lines):
                    continue
                words = line.split()
                overrides = [word for word in words if word not in ("refit", "default")]
                result = train([*common, *overrides], seed, refit="refit" in words)
                with options.results.open("a") as file:
                    task = next(word for word in common if word.startswith("task="))
                    file.write(json.dumps({"key": key, "task": task, "variant": line, "seed": seed, **result}) + "\n")


if __name__ == "__main__":
    main()
