"""Whether the baseline, the student without a teacher, is trained: `baseline=auto` counts the work of the run."""

import math
from dataclasses import astuple, dataclass, replace
from typing import cast

from transformers import PreTrainedModel

from distill.chain.plan import SAME_START
from distill.chain.pruning import Pruning
from distill.chain.task_run import TaskRun
from distill.chain.train import Prepared
from distill.contracts import EncodedSplits, Examples
from distill.data import batching, several
from distill.data.mixing import labelled_only, seen_examples, shown_in_epoch
from distill.errors import UserError
from distill.models.heads import heads_of
from distill.storage.files import JsonObject
from distill.teaching.prepared import PreparedTeacher
from distill.training.auto import SMALL_ROWS
from distill.training.settings import AUTO, TrainerSettings, count_evaluations

LARGEST_SHARE = 0.35  # Of the work of a run, that of its baseline with `baseline=auto`: about a third.
STEP = 3  # Forward passes that a training step costs, because a backward pass costs two.


@dataclass(frozen=True)
class Work:
    """The work of a run with a baseline, in forward passes: tokens times the parameters besides embeddings.

    It follows from the options, the data and the models alone. Measured seconds would differ from run to run, and would
    lack those of a teacher that is cached.

    Args:
        teacher: of the teacher's fine-tuning.
        outputs: of the teacher's outputs.
        student: of the student's training.
        baseline: of the baseline's training.
        export: of the scores of the exported files.
    """

    teacher: float
    outputs: float
    student: float
    baseline: float
    export: float

    @property
    def share(self) -> float:
        """Returns the share of the baseline."""
        return float(self.baseline / sum(astuple(self)))


def choose_baseline(prepared: Prepared) -> Prepared:
    """Returns the training with a plan whose `baseline` is true or false, and records the choice."""
    choice = _choose(prepared)
    prepared.run.update(baseline_choice=choice)
    trained = SAME_START if choice["trained"] and prepared.plan.baseline == SAME_START else choice["trained"]
    return replace(prepared, plan=replace(prepared.plan, baseline=trained))


def _choose(prepared: Prepared) -> JsonObject:
    """Returns the `baseline_choice` of run.json; its `share` is null where the summary need not mention a baseline."""
    plan, record = prepared.plan, prepared.run.record
    if plan.baseline == AUTO and plan.resume and record.get("teacher_outputs"):  # Its training has begun.
        return cast(JsonObject, record["baseline_choice"])
    obstacle = None if plan.wants_baseline else _find_obstacle(prepared)
    if obstacle is not None or plan.baseline is False:
        return {"trained": False, "reason": obstacle or "baseline=false", "share": None, "possible": obstacle is None}
    share = count_work(prepared).share
    rows = sum(task_run.data.sizes().get("train", 0) for task_run in prepared.tasks)
    trained, reason = (True, describe_share(share)) if plan.wants_baseline else decide(share, rows)
    return {"trained": trained, "reason": reason, "share": share, "possible": True}


def decide(share: float, rows: int) -> tuple[bool, str]:
    """Returns whether `auto` trains a baseline of this share of the work on so many labelled rows, and the reason."""
    if rows > SMALL_ROWS:
        return False, f"{rows:,} labelled rows are more than {SMALL_ROWS:,}"
    if share > LARGEST_SHARE:
        return False, f"it would take {describe_share(share)}, more than a third"
    return True, describe_share(share)


def describe_share(share: float) -> str:
    """Returns a share of the work in words."""
    return f"about {share:.0%} of the run"


def _find_obstacle(prepared: Prepared) -> str | None:
    """Returns the reason why there can be no baseline whatever its cost, None without one."""
    plan = prepared.plan
    if any(task.info.raw_text for task in plan.tasks.values()):
        return "a language model has none"
    if prepared.source.targets is not None:
        return "the teacher's texts are in the place of the labels"
    if not plan.objective.needs_teacher:
        return f"objective {plan.objective.name} has no teacher either"
    try:
        prepared.supervised_objective()
    except UserError:
        return "the training texts have no labels"
    return None


def count_work(prepared: Prepared) -> Work:
    """Counts the work of all seeds of a run.

    Padding, attention and the loss are left out, of which student and baseline have as much.
    """
    plan, without = prepared.plan, prepared.without_unlabelled()
    pruning = Pruning.of(prepared.student)
    trainings = plan.seeds * (1 if pruning is None else 1 + pruning.extra)
    parameters = _count_parameters(next(iter(heads_of(prepared.model).values())))
    files = len(plan.export.formats) if plan.exports else 0
    return Work(
        teacher=sum(_count_fine_tuning(task_run) for task_run in prepared.tasks),
        outputs=_count_outputs(prepared),
        student=trainings * parameters * _count_training(prepared.examples, plan.trainer),
        baseline=trainings * parameters * _count_training(without.examples, without.plan.trainer),
        export=plan.seeds * parameters * files * _count_scored(prepared.examples),
    )


def _count_training(examples: EncodedSplits, settings: TrainerSettings) -> float:
    """Returns the tokens in forward passes of a training with its evaluations."""
    train = examples["train"].training_loader(steps=settings.max_steps, **settings.batches())
    dataset, buckets = batching.examples_and_buckets(train)
    steps = settings.total_steps(len(train))
    shown = dataset.lengths[buckets.indices()].sum() * steps / len(train)
    evaluations = count_evaluations(settings.evaluations, steps_per_epoch=len(train), steps=steps)
    evaluations += int(settings.soup > 1)
    return float(STEP * shown + evaluations * cast(Examples, examples["dev"]).lengths.sum())


def _count_scored(examples: EncodedSplits) -> int:
    """Returns the tokens of the splits that are scored."""
    return sum(int(cast(Examples, split).lengths.sum()) for name, split in examples.items() if name != "train")


def _count_fine_tuning(task_run: TaskRun) -> float:
    """Returns the work of the fine-tuning of a task's teachers, whether it is cached or not."""
    examples = labelled_only(task_run.examples)
    return sum(_count_fine_tuning_of(teacher, examples) for teacher in task_run.teacher.members)


def _count_fine_tuning_of(teacher: PreparedTeacher, examples: EncodedSplits) -> float:
    if teacher.trained_by is None:
        return 0.0
    training = _count_training(examples, teacher.trained_by)
    if teacher.features is None:
        return training * _count_parameters(teacher.model)
    # The encoder computes features once, and the BiLSTM is trained on them.
    once = sum(int(cast(Examples, examples[name]).lengths.sum()) for name in ("train", "dev"))
    encoder, head = (cast(PreTrainedModel, getattr(teacher.model, name)) for name in ("encoder", "head"))
    return once * _count_parameters(encoder) + training * _count_parameters(head)


def _count_outputs(prepared: Prepared) -> float:
    """Returns the work of the teachers' outputs, each computed once where inputs are the same in every epoch."""
    loader, total = prepared.loaders["train"], 0.0
    epochs = several.epochs_of_tasks(loader, prepared.plan.trainer.total_steps(len(loader)))
    for task_run, task_epochs in zip(prepared.tasks, epochs, strict=True):
        train, tokens = cast(Examples, task_run.examples["train"]), _count_scored(task_run.examples)
        if not prepared.plan.objective.needs_teacher:
            shown = 0.0
        elif task_run.task.info.fixed_inputs and prepared.source.cache.is_wanted(
            by_default=task_run.task.info.caches_outputs
        ):
            shown = float(train.lengths[: seen_examples(train, math.ceil(task_epochs))].sum())
        else:
            shown = task_epochs * shown_in_epoch(train) * float(train.lengths.mean())
        total += (tokens + shown) * sum(_count_parameters(teacher.model) for teacher in task_run.teacher.members)
    return total


def _count_parameters(model: PreTrainedModel) -> int:
    return int(model.num_parameters(exclude_embeddings=True))
