"""The tokenized splits of a task, the pieces of its vocabulary, and the work that decides on a baseline."""

import json
import math
from dataclasses import astuple, dataclass, replace
from typing import cast

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain.plan import SAME_START, Plan, Student
from distill.chain.student_search import Pruning, starts_generally
from distill.chain.train import Prepared
from distill.core.console import print_line, print_notice
from distill.core.contracts import Data, EncodedSplits, Examples, Task, TaskInfo
from distill.core.errors import UserError
from distill.core.files import JsonObject
from distill.core.storage import entry_key
from distill.data import batches, splits
from distill.data.augmentation import Augmentation, AutoAugmentation, augment
from distill.data.batches import labelled_only, seen_examples, shown_in_epoch
from distill.data.pool import Bank, BankSource
from distill.data.splits import Amounts, LabelledData, Room
from distill.export.bundle_writer import choose_vocabulary
from distill.export.quantization import ExportSettings
from distill.kinds import multitask
from distill.kinds.masked_lm import TextData
from distill.kinds.scoring import Scoring
from distill.models.sentence_files import read_vocabulary
from distill.models.surgery.embeddings import CutVocabulary
from distill.models.surgery.initialization import Origins
from distill.models.wrappers import heads_of
from distill.teachers.prepared import PreparedTeacher, Search, mine_negatives
from distill.teachers.source import TeacherSource
from distill.teachers.writing import continue_texts, write_targets
from distill.training import hyperparameters
from distill.training.hyperparameters import AUTO, SMALL_ROWS, TrainerSettings, count_evaluations

OPTION = "export.vocabulary=trained"


def check_pieces(student: Student, source: TeacherSource, plan: Plan) -> None:
    """Raises UserError for a student or a teacher whose vocabulary cannot be chosen before the training."""
    if not plan.trains_pieces:
        return
    if starts_generally(student):
        raise UserError(
            f"{OPTION} trains other pieces than student.init=general, whose encoder reads all of the teacher's: leave "
            "one of them out"
        )
    if source.features is not None or source.labeller is not None:
        raise UserError(
            f"{OPTION} needs a teacher that is one model with the head of the task, because it takes rows of its "
            "embeddings: leave it out"
        )


def cut_teacher(
    teacher: PreparedTeacher, data: Data, settings: ExportSettings
) -> tuple[PreparedTeacher, CutVocabulary]:
    """Returns the teacher that reads the pieces of the texts of `data`, and these pieces.

    A labelled training text has the same pieces as before, and the teacher the same outputs for it.
    """
    cut = choose_vocabulary(teacher.model, teacher.tokenizer, settings, data)
    digest = entry_key("vocabulary", 1, json.dumps(read_vocabulary(cut.tokenizer)))
    return teacher.with_vocabulary(cut.tokenizer, cut.apply, digest), cut


def compare_readings(teacher: PreparedTeacher, scoring: Scoring) -> None:
    """Notes what a teacher that has been scored loses by fewer pieces, and gives it the scores that it has with all.

    It keeps its own where the two are of different items, because a cut sentence has other words, or a context other
    windows. A teacher with all of its pieces stays as it is.
    """
    whole, metric = teacher.whole, scoring.metric
    if whole is None:
        return
    for member in teacher.members:
        if member is not teacher:
            compare_readings(member, scoring)
    teacher.notices.append(
        f"it teaches by {len(teacher.tokenizer):,} of its {len(whole.tokenizer):,} pieces, those of the task: its "
        f"{metric} on dev is {teacher.metrics[metric]:.4f} with them, and {whole.metrics[metric]:.4f} with all"
    )
    pairs = [(scores, teacher.scores[name]) for name, scores in whole.scores.items()]
    if all(np.array_equal(one.example_id, other.example_id) for one, other in pairs):
        teacher.scores, teacher.metrics, teacher.comparison = whole.scores, whole.metrics, whole.comparison


def check_cut_student(student: Student, teacher: PreparedTeacher, task: Task, data: Data) -> None:
    """Raises UserError for a student that has embeddings of its own, and not those that the teacher has now."""
    rows = student.make(teacher.model, task, data, Origins(teacher.tokenizer)).config.vocab_size
    if rows != teacher.model.config.vocab_size:
        raise UserError(
            f"{OPTION} is for a student that is made from its teacher, and student {student.name} has {rows:,} rows of "
            f"embeddings for the {len(teacher.tokenizer):,} pieces of the task: leave it out"
        )


class Encoding:
    """Tokenizes the splits, with changed copies of the training texts and sentences of a bank in the pool.

    Attributes:
        given: the data of the task, as it was read.
        data: with the texts of the last call in its pool.
        notes: facts on the texts that only the teacher labels, for the summary before training.
    """

    def __init__(self, plan: Plan, task: Task, data: Data, source: TeacherSource) -> None:
        self.plan, self.task, self.source = plan, task, source
        self.given = self.data = data
        self.notes: list[str] = []
        self.bank = _read_bank(plan, task.info)
        self._augmented: dict[str | None, Data] = {}  # By mask token.

    def rehearse(self, tokenizer: PreTrainedTokenizerBase, examples: EncodedSplits) -> EncodedSplits:
        """Returns the splits with as many copies as the options name, before the teacher is fine-tuned."""
        if self.plan.augment is None or isinstance(self.plan.augment, AutoAugmentation):
            return examples
        return self._encode(self._add_copies(self.plan.augment, tokenizer.mask_token), tokenizer)

    def __call__(
        self, teacher: PreparedTeacher, student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> EncodedSplits:
        """Returns the splits for the training of a student that reads by this tokenizer, or by its teacher's."""
        tokenizer = tokenizer or teacher.tokenizer
        plan, info, data = self.plan, self.task.info, self.given
        if plan.augment is not None and not isinstance(plan.augment, AutoAugmentation):
            data = self._add_copies(plan.augment, tokenizer.mask_token)
        if info.unlabelled == "auto" and plan.objective.needs_teacher:
            assert isinstance(data, LabelledData)  # Other tasks have no automatic texts.
            data = self._add_chosen(data, teacher, student)
        elif info.can_augment and plan.objective.needs_teacher and plan.augment is None:
            self.notes = [] if info.unlabelled == "given" else [_describe_gain(info)]
        if isinstance(data, LabelledData) and not plan.dry_run:
            data = mine_negatives(data, teacher, max_length=info.max_length, cache_dir=plan.cache_dir)
        targets = self.source.targets
        if targets is not None and isinstance(data, LabelledData):
            data = write_targets(data, teacher, targets, info=info, cache_dir=plan.cache_dir, dry_run=plan.dry_run)
        self.data = data
        examples = self._encode(data, tokenizer)
        if targets is None or not isinstance(data, TextData):
            return examples
        return continue_texts(data, examples, teacher, targets, cache_dir=plan.cache_dir, dry_run=plan.dry_run)

    def _encode(self, data: Data, tokenizer: PreTrainedTokenizerBase) -> EncodedSplits:
        return self.task.encode(data, tokenizer, self.plan.cache_dir)

    def _add_copies(self, augmentation: Augmentation, mask_token: str | None) -> Data:
        """Returns the data with as many copies as the options name."""
        plan = self.plan
        if plan.dry_run:
            print_line(f"augment={augmentation.name}: makes no copies in a dry run, which plans without them")
            return self.given
        if mask_token not in self._augmented:
            self._augmented[mask_token] = augment(
                self.given, augmentation, mask_token=mask_token, cache_dir=plan.cache_dir,
                device=plan.trainer.device().type,
            )  # fmt: skip
        return self._augmented[mask_token]

    def _add_chosen(self, data: LabelledData, teacher: PreparedTeacher, student: PreTrainedModel) -> LabelledData:
        """Returns the data with the copies and the sentences that suit it."""
        plan, rows = self.plan, len(data.splits["train"])
        makes_copies = isinstance(plan.augment, AutoAugmentation) and rows <= hyperparameters.SMALL_ROWS
        room = self._measure_room(data, teacher, student).without(len(data.pool))
        bank = 0 if self.bank is None else len(self.bank)
        amounts = splits.choose_amounts(room, rows=rows, copies=makes_copies, bank=bank)
        self.notes = self._describe(amounts, data)
        if plan.dry_run:
            return data
        if amounts.copies and isinstance(plan.augment, AutoAugmentation):
            chosen = plan.augment.choose(data.splits["train"], copies=amounts.copies)
            data = augment(
                data, chosen, mask_token=teacher.tokenizer.mask_token, cache_dir=plan.cache_dir,
                device=plan.trainer.device().type, optional=True,
            )  # fmt: skip
        if self.bank is not None and amounts.sentences:
            search = Search(self.bank, self.task, self.source, plan.cache_dir, plan.trainer.device())
            data = search.add_to(data, teacher, amounts.sentences)
        return data

    def _describe(self, amounts: Amounts, data: LabelledData) -> list[str]:
        """Returns the notes on what is chosen and what is left out."""
        plan, rows = self.plan, len(data.splits["train"])
        notes = []
        planned = [f"{amounts.copies} copies of each row"] if amounts.copies else []
        planned += [f"{amounts.sentences:,} sentences of the bank"] if amounts.sentences else []
        if plan.dry_run and planned:
            sureness = "how sure the teacher is of them is not known yet"
            notes.append(f"{' and '.join(planned)}, {data.pool.share:.0%} of the examples of every step; {sureness}")
        if isinstance(plan.augment, AutoAugmentation) and rows > hyperparameters.SMALL_ROWS:
            notes.append(f"no copies of {rows:,} rows, because auto makes them of up to {hyperparameters.SMALL_ROWS:,}")
        if self.bank is not None:
            notes.append(f"bank: {len(self.bank):,} sentences, encoded once")
        if (left_out := amounts.describe_left_out()) is not None:
            limit = f"the training does not show them, or they pass {splits.AUTO_TIME:g} times the time without text"
            notes.append(f"left out {left_out}: {limit}")
        chooses = plan.augment is None or isinstance(plan.augment, AutoAugmentation)
        if chooses and not notes and not planned and not len(data.pool):
            notes.append(_describe_gain(self.task.info))
        return notes

    def _measure_room(self, data: LabelledData, teacher: PreparedTeacher, student: PreTrainedModel) -> Room:
        """Returns the room for further text beside the labelled rows."""
        rows, scored, share = len(data.splits["train"]), len(data.splits["dev"]), data.pool.share
        trainer, layers = self.plan.trainer, student.config.num_hidden_layers / teacher.model.config.num_hidden_layers
        facts = hyperparameters.Facts(
            rows, _steps_per_epoch(trainer, rows), *hyperparameters.describe_student(student), scored=scored
        )
        mixed = replace(facts, steps_per_epoch=_steps_per_epoch(trainer, rows, share=share))
        shown = 0
        for finetune in filter(None, (member.trained_by for member in teacher.members)):
            shown = finetune.total_steps(_steps_per_epoch(finetune, rows)) * _step_size(finetune)
        return splits.measure_room(
            rows=rows, student=_examples_shown(trainer, facts), mixed=_examples_shown(trainer, mixed), teacher=shown,
            layers=layers, share=share,
        )  # fmt: skip


def _describe_gain(task: TaskInfo) -> str:
    """Describes how a run without text for the teacher to label gets some, and the use of it."""
    bank = ", task.bank=DIR (sentences near the rows)" if task.unlabelled == "auto" and not task.pair else ""
    return f"none; to give some: task.unlabelled=FILE, augment=tang (copies of the rows){bank}; {splits.AUTO_GAIN}"


def _read_bank(plan: Plan, task: TaskInfo) -> Bank | None:
    """Returns the sentences of the task's bank, None without one and where it has no use."""
    if task.bank is None or not plan.objective.needs_teacher:
        return None
    if task.pair:
        print_notice(f"task.bank has single texts, and an example of task {task.name} is a pair: it is left out")
        return None
    bank: BankSource = task.bank
    return bank.read()


def _examples_shown(trainer: TrainerSettings, facts: hyperparameters.Facts) -> int:
    """Returns the number of examples that a training shows, one that is shown twice counted twice."""
    settings, _ = hyperparameters.resolve(trainer, facts)
    return settings.total_steps(facts.steps_per_epoch) * _step_size(trainer)


def _steps_per_epoch(trainer: TrainerSettings, rows: int, *, share: float = 0.0) -> int:
    """Returns the steps of one pass over the labelled rows, with this share of unlabelled texts in a step."""
    return math.ceil(rows / (_step_size(trainer) * (1 - share)))


def _step_size(trainer: TrainerSettings) -> int:
    """Returns the examples of an optimizer step."""
    size = hyperparameters.with_batch_size(trainer).batches()["batch_size"] or hyperparameters.BATCH_SIZE
    return size * trainer.accumulate * trainer.processes()


LARGEST_SHARE = 0.35  # Of the work of a run, that of its baseline with `baseline=auto`: about a third.
STEP = 3  # Forward passes that a training step costs, because a backward pass costs two.


@dataclass(frozen=True)
class BaselineWork:
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
    trained, reason = (True, describe_share(share)) if plan.wants_baseline else decide_on_baseline(share, rows)
    return {"trained": trained, "reason": reason, "share": share, "possible": True}


def decide_on_baseline(share: float, rows: int) -> tuple[bool, str]:
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
    if prepared.fitted is not None:
        return "the student is not trained"
    if prepared.source.targets is not None:
        return "the teacher's texts are in the place of the labels"
    if not plan.objective.needs_teacher:
        return f"objective {plan.objective.name} has no teacher either"
    try:
        prepared.supervised_objective()
    except UserError:
        return "the training texts have no labels"
    return None


def count_work(prepared: Prepared) -> BaselineWork:
    """Counts the work of all seeds of a run.

    Padding, attention and the loss are left out, of which student and baseline have as much.
    """
    plan, without = prepared.plan, prepared.without_unlabelled()
    trainings = plan.seeds * Pruning.of(prepared.student).trainings
    parameters = _count_parameters(next(iter(heads_of(prepared.model).values())))
    files = len(plan.export.formats) if plan.exports else 0
    return BaselineWork(
        teacher=sum(
            _count_fine_tuning(teacher, labelled_only(task_run.examples))
            for task_run in prepared.tasks
            for teacher in task_run.teacher.members
        ),
        outputs=_count_outputs(prepared),
        student=trainings * parameters * _count_training(prepared.examples, plan.trainer),
        baseline=trainings * parameters * _count_training(without.examples, without.plan.trainer),
        export=plan.seeds * parameters * files * _count_scored(prepared.examples),
    )


def _count_training(examples: EncodedSplits, settings: TrainerSettings) -> float:
    """Returns the tokens in forward passes of a training with its evaluations."""
    train = examples["train"].training_loader(steps=settings.max_steps, **settings.batches())
    dataset, buckets = batches.examples_and_buckets(train)
    steps = settings.total_steps(len(train))
    shown = dataset.lengths[buckets.indices()].sum() * steps / len(train)
    evaluations = count_evaluations(settings.evaluations, steps_per_epoch=len(train), steps=steps)
    evaluations += int(settings.soup > 1)
    return float(STEP * shown + evaluations * cast(Examples, examples["dev"]).lengths.sum())


def _count_scored(examples: EncodedSplits) -> int:
    """Returns the tokens of the splits that are scored."""
    return sum(int(cast(Examples, split).lengths.sum()) for name, split in examples.items() if name != "train")


def _count_fine_tuning(teacher: PreparedTeacher, examples: EncodedSplits) -> float:
    """Returns the work of the fine-tuning of a teacher, whether it is cached or not."""
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
    epochs = multitask.epochs_of_tasks(loader, prepared.plan.trainer.total_steps(len(loader)))
    for task_run, task_epochs in zip(prepared.tasks, epochs, strict=True):
        train, info = cast(Examples, task_run.examples["train"]), task_run.task.info
        if not prepared.plan.objective.needs_teacher:
            shown = 0.0
        elif info.fixed_inputs and prepared.source.cache.is_wanted(by_default=info.caches_outputs):
            shown = float(train.lengths[: seen_examples(train, math.ceil(task_epochs))].sum())
        else:
            shown = task_epochs * shown_in_epoch(train) * float(train.lengths.mean())
        tokens = shown + _count_scored(task_run.examples)
        total += tokens * sum(_count_parameters(teacher.model) for teacher in task_run.teacher.members)
    return total


def _count_parameters(model: PreTrainedModel) -> int:
    return int(model.num_parameters(exclude_embeddings=True))
