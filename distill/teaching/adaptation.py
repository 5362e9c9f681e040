"""Settings of a teacher's adaptation to a domain or to its task (arXiv 2004.10964): training on text before labels."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distill.contracts import Data, Task
from distill.errors import OptionError, UnreachableError, UserError
from distill.models.added_words import AUTO, AddWords, check_option
from distill.options import show_value
from distill.storage.cache import entry_key, has_entry, new_entry
from distill.storage.files import write_text
from distill.tasks import MaskedLM
from distill.tasks.masked_lm import TextData
from distill.training import auto
from distill.training.settings import TrainerSettings, check_budget, check_processes

FORMAT = 1  # Of the texts of a task in the cache.
DOMAIN, TASK = "domain", "task"
_TEXTS = "texts.jsonl"
# Settings of the text that do not change its sequences, or stand in the digest of the corpus.
_WITHOUT_EFFECT = ("data_dir", "hub_id", "builtin", "text", "documents", "streaming", "keep_gb")


@contextmanager
def renamed(prefix: str = "adapt", **names: str) -> Iterator[None]:
    """Raises errors of a text with other options in place of those of a task, which are alike.

    Args:
        prefix: of those options.
        names: of options of a task that have other names there.
    """
    try:
        yield
    except (UserError, ValueError) as error:
        kind = UnreachableError if isinstance(error, UnreachableError) else UserError
        text = re.sub(r"(?<![\w/.])task\.(\w+)", lambda found: f"{prefix}.{names.get(found[1], found[1])}", str(error))
        raise kind(text) from error


class Adaptation:
    """Masked language modelling on further text, with words of the text in the vocabulary, before a fine-tuning.

    Args:
        name: `domain` for text of its own, or `task` for the training texts of the task, labelled or not.
        trainer: settings of the training; None has those that are chosen for text.
        add_words: words that become pieces, as in `grow_vocabulary`.
        text: arguments of `MaskedLM` for the text and its masks.

    Raises:
        OptionError: for another name, or something that is no words.
        UserError: for `domain` without text, or `task` with text.
    """

    def __init__(
        self, *, name: str = DOMAIN, trainer: TrainerSettings | None = None, add_words: AddWords = AUTO, **text: Any
    ) -> None:
        if name not in (DOMAIN, TASK):
            raise OptionError("name", show_value(name), f"{DOMAIN} or {TASK}")
        check_option(add_words)
        self.name, self.add_words = name, add_words
        self.trainer = auto.for_text(trainer or TrainerSettings.auto())
        with renamed():
            self.text = MaskedLM(name=name, **text | {"builtin": False})
        given = self.text.settings.data_dir or self.text.settings.hub_id
        if name == DOMAIN and given is None:
            raise UserError("adapt=domain has no text: set adapt.data_dir=DIR with .txt, .jsonl or .parquet files")
        if name == TASK and given is not None:
            raise UserError(
                "adapt=task reads the training texts of the task: leave adapt.data_dir out, or set adapt=domain"
            )
        check_processes(self.trainer, "adapt.trainer")
        check_budget(self.trainer.batch_tokens, self.text.info.max_length, "adapt.trainer")

    def __str__(self) -> str:
        """Names the text in records and messages, without the directories that it is in."""
        settings = self.text.settings
        if self.name == TASK:
            return "the training texts of the task"
        return settings.hub_id or Path(str(settings.data_dir)).expanduser().resolve().name

    def check(self, task: Task, *, is_new: bool, is_finetuned: bool) -> None:
        """Raises UserError for a task or a teacher that cannot be adapted.

        Args:
            is_new: whether the teacher has random weights.
            is_finetuned: whether it is fine-tuned if its head does not fit.
        """
        given = f"adapt={self.name}"
        if task.info.raw_text:
            raise UserError(
                f"{given} is for a teacher that is fine-tuned on labels, and task={task.info.name} is raw text: leave "
                f"it out; job=finetune task={task.info.name} trains the teacher on the text"
            )
        if is_new:
            raise UserError(
                f"{given} begins with a trained model, and this teacher has random weights: take another one, or train "
                "it with job=pretrain"
            )
        if not is_finetuned:
            raise UserError(
                f"{given} changes the encoder under a teacher's head, and teacher.finetune=false keeps the head as it "
                "is: leave out one of them"
            )

    def read(self, data: Data, cache_dir: Path) -> TextData:
        """Returns the text, of the task that of the rows that are trained on.

        Args:
            data: of the task.
        """
        if self.name == DOMAIN:
            return self.text.read(cache_dir)
        file = keep_texts(_training_texts(data), cache_dir)
        options = asdict(self.text.settings) | {"mask": self.text.settings.mask, "text": "text"}
        return MaskedLM(name=self.name, **options | {"data_dir": str(file)}).read(cache_dir)

    def key(self) -> list[Any]:
        """Returns everything that the adapted model depends on besides its start and its text."""
        text = {name: value for name, value in asdict(self.text.settings).items() if name not in _WITHOUT_EFFECT}
        return [self.add_words, text, self.trainer.key()]


def keep_texts(texts: Iterable[str], cache_dir: Path) -> Path:
    """Returns the JSONL file of the cache that has each of these texts once."""
    kept = list(dict.fromkeys(filter(None, texts)))
    directory = cache_dir / "adaptation" / entry_key("adaptation", FORMAT, kept)[:20]
    if not has_entry(directory):
        with new_entry(directory) as temporary:
            lines = (json.dumps({"text": text}) for text in kept)
            write_text(temporary / _TEXTS, "".join(f"{line}\n" for line in lines))
    return directory / _TEXTS


def _training_texts(data: Data) -> Iterator[str]:
    """Yields the texts of the examples of train, and those that only the teacher labels."""
    yield from data.labelled_texts()
    yield from data.unlabelled_texts()
