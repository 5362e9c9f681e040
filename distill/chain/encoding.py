"""The tokenized splits of a task, with the texts that only its teacher labels."""

import math
from dataclasses import replace

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.chain.plan import Plan
from distill.console import print_line, print_notice
from distill.contracts import Data, EncodedSplits, Task, TaskInfo
from distill.data import auto_text
from distill.data.augmentation import Augmentation, AutoAugmentation, augment
from distill.data.auto_text import Amounts, Room
from distill.data.bank import Bank, BankSource
from distill.data.tables import LabelledData
from distill.tasks.masked_lm import TextData
from distill.teaching.bank import Search
from distill.teaching.continuations import continue_texts
from distill.teaching.negatives import mine_negatives
from distill.teaching.prepared import PreparedTeacher
from distill.teaching.source import TeacherSource
from distill.teaching.targets import write_targets
from distill.training import auto
from distill.training.settings import TrainerSettings


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

    def __call__(self, teacher: PreparedTeacher, student: PreTrainedModel) -> EncodedSplits:
        """Returns the splits for the training of a student."""
        plan, info, data = self.plan, self.task.info, self.given
        if plan.augment is not None and not isinstance(plan.augment, AutoAugmentation):
            data = self._add_copies(plan.augment, teacher.tokenizer.mask_token)
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
        examples = self._encode(data, teacher.tokenizer)
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
        makes_copies = isinstance(plan.augment, AutoAugmentation) and rows <= auto.SMALL_ROWS
        room = self._measure_room(data, teacher, student).without(len(data.pool))
        bank = 0 if self.bank is None else len(self.bank)
        amounts = auto_text.choose_amounts(room, rows=rows, copies=makes_copies, bank=bank)
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
        if isinstance(plan.augment, AutoAugmentation) and rows > auto.SMALL_ROWS:
            notes.append(f"no copies of {rows:,} rows, because auto makes them of up to {auto.SMALL_ROWS:,}")
        if self.bank is not None:
            notes.append(f"bank: {len(self.bank):,} sentences, encoded once")
        if (left_out := amounts.describe_left_out()) is not None:
            limit = f"the training does not show them, or they pass {auto_text.TIME:g} times the time without text"
            notes.append(f"left out {left_out}: {limit}")
        chooses = plan.augment is None or isinstance(plan.augment, AutoAugmentation)
        if chooses and not notes and not planned and not len(data.pool):
            notes.append(_describe_gain(self.task.info))
        return notes

    def _measure_room(self, data: LabelledData, teacher: PreparedTeacher, student: PreTrainedModel) -> Room:
        """Returns the room for further text beside the labelled rows."""
        rows, scored, share = len(data.splits["train"]), len(data.splits["dev"]), data.pool.share
        trainer, layers = self.plan.trainer, student.config.num_hidden_layers / teacher.model.config.num_hidden_layers
        facts = auto.Facts(rows, _steps_per_epoch(trainer, rows), *auto.describe_student(student), scored=scored)
        mixed = replace(facts, steps_per_epoch=_steps_per_epoch(trainer, rows, share=share))
        shown = 0
        for finetune in filter(None, (member.trained_by for member in teacher.members)):
            shown = finetune.total_steps(_steps_per_epoch(finetune, rows)) * _step_size(finetune)
        return auto_text.measure_room(
            rows=rows, student=_examples_shown(trainer, facts), mixed=_examples_shown(trainer, mixed), teacher=shown,
            layers=layers, share=share,
        )  # fmt: skip


def _describe_gain(task: TaskInfo) -> str:
    """Describes how a run without text for the teacher to label gets some, and the use of it."""
    bank = ", task.bank=DIR (sentences near the rows)" if task.unlabelled == "auto" and not task.pair else ""
    return f"none; to give some: task.unlabelled=FILE, augment=tang (copies of the rows){bank}; {auto_text.GAIN}"


def _read_bank(plan: Plan, task: TaskInfo) -> Bank | None:
    """Returns the sentences of the task's bank, None without one and where it has no use."""
    if task.bank is None or not plan.objective.needs_teacher:
        return None
    if task.pair:
        print_notice(f"task.bank has single texts, and an example of task {task.name} is a pair: it is left out")
        return None
    bank: BankSource = task.bank
    return bank.read()


def _examples_shown(trainer: TrainerSettings, facts: auto.Facts) -> int:
    """Returns the number of examples that a training shows, one that is shown twice counted twice."""
    settings, _ = auto.resolve(trainer, facts)
    return settings.total_steps(facts.steps_per_epoch) * _step_size(trainer)


def _steps_per_epoch(trainer: TrainerSettings, rows: int, *, share: float = 0.0) -> int:
    """Returns the steps of one pass over the labelled rows, with this share of unlabelled texts in a step."""
    return math.ceil(rows / (_step_size(trainer) * (1 - share)))


def _step_size(trainer: TrainerSettings) -> int:
    """Returns the examples of an optimizer step."""
    size = auto.with_batch_size(trainer).batches()["batch_size"] or auto.BATCH_SIZE
    return size * trainer.accumulate * trainer.processes()
