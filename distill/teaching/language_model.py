"""The training of a language model on raw text: of a new one, of one that goes on, and of a teacher to adapt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch.loggers import Logger
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.console import print_line, print_notice
from distill.contracts import EncodedSplits, Loader, Scores
from distill.data import batching
from distill.errors import UserError
from distill.losses import Objective
from distill.models import checks
from distill.models.added_words import AUTO, AddWords, Growth, can_grow, plan_growth
from distill.models.causality import check_causal
from distill.models.forward import segment_logits
from distill.models.heads import heads_of
from distill.models.loading import CAUSAL, Start
from distill.models.tokenizer import adopt_special_tokens
from distill.tasks import CausalLM, MaskedLM
from distill.tasks.masked_lm import TextData
from distill.teaching.source import Weights
from distill.text.sequences import Sequences
from distill.text.stream import StreamedText
from distill.training import fitting
from distill.training.evaluate import evaluate
from distill.training.module import DistillationModule
from distill.training.settings import TrainerSettings

MOST_UNKNOWN = 0.5  # Share of the unknown piece in a text, above which a vocabulary is of another script.
TOLD_UNKNOWN = 0.01  # Above which the share gets a notice.


@dataclass(frozen=True)
class TextTraining:
    """A training on raw text: the model, its tokenized text, and the module that trains it.

    Args:
        data: with the tokenized splits.
    """

    task: MaskedLM | CausalLM
    start: Start
    data: TextData
    examples: EncodedSplits
    loaders: Mapping[str, Loader]
    settings: TrainerSettings
    module: DistillationModule

    @classmethod
    def prepare(
        cls,
        task: MaskedLM | CausalLM,
        data: TextData,
        start: Start,
        *,
        objective: Objective | None,
        settings: TrainerSettings,
        cache_dir: Path,
    ) -> "TextTraining":
        """Tokenizes the text and creates the module; without an objective it has the terms of the text.

        The model is trained together with those that the task adds, such as a generator.
        """
        model = task.assemble(start.model, start.tokenizer)
        chosen = objective or Objective(name=data.objective, terms=data.terms)
        size = checks.encoder_size(trained_model(start.model))
        chosen.connect(size, size)
        examples = task.encode(data, start.tokenizer, cache_dir)
        _check_script(examples, start.tokenizer)
        data = data.with_examples(examples)
        loaders = batching.all_loaders(examples, steps=settings.max_steps, **settings.batches())
        module = DistillationModule(
            student=model, objective=chosen, task=task, scoring=data.scoring,
            **settings.optimization(len(loaders["train"])),
        )  # fmt: skip
        return cls(task, start, data, examples, loaders, settings, module)

    def evaluate(self) -> Scores:
        """Returns the scores of the model on dev."""
        model = self.module.to(self.settings.device()).student
        return evaluate(model, self.task, self.data.scoring, self.loaders["dev"])

    def estimate_seconds(self) -> float:
        return fitting.estimate_seconds(self.module, self.loaders["train"], self.loaders["dev"], self.settings)

    def fit(
        self,
        checkpoints: Path,
        logger: Logger | Sequence[Logger],
        *,
        title: str,
        identity: Mapping[str, object],
        resume: bool,
    ) -> fitting.Fit:
        """Trains the model, as `fitting.fit`."""
        return fitting.fit(
            self.module, self.loaders["train"], self.loaders["dev"], settings=self.settings, checkpoints=checkpoints,
            logger=logger, title=title, identity=identity, resume=resume,
        )  # fmt: skip


def load_language_model(weights: Weights, task: MaskedLM | CausalLM, data: TextData, *, seed: int) -> Start:
    """Loads the model with a head over its vocabulary, and if needed one for two segments."""
    weights.locate()
    torch.manual_seed(seed)  # For a new head.
    start = weights.load(task.info.auto_class, data.labels or None, data.texts())
    if task.info.auto_class == CAUSAL:
        check_causal(start.model, f"teacher {weights.name}")
    adopt_special_tokens(start.model, start.tokenizer)
    for text in start.notices:
        print_notice(text)
    if not weights.is_new and not start.fits:
        print_notice(f"teacher {weights.resolved()} gets a head with random weights")
    checks.check_length(start.model, start.tokenizer, task.info.max_length, who="teacher", lengthens=start.lengthens)
    if "pair_labels" in task.info.label_columns and segment_logits(checks.run_sample(start.model)) is None:
        raise UserError(
            f"task.pair={task.settings.pair} needs a model with a head for two segments, such as BERT's, and a "
            f"{type(start.model).__name__} has none: set task.pair=null, or three_way"
        )
    return start


def trained_model(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the model itself, without a further one that is trained together with it."""
    return next(iter(heads_of(model).values()))


def choose_growth(tokenizer: PreTrainedTokenizerBase, data: TextData, add_words: AddWords) -> Growth | None:
    """Returns the words of a text that the vocabulary gets, and prints them; None for none.

    Raises:
        UserError: for words and a vocabulary that cannot grow.
    """
    if not add_words:
        return None
    if add_words == AUTO and not can_grow(tokenizer):
        print_line("Words: no word becomes a piece, because the vocabulary is no WordPiece (adapt.add_words=auto)")
        return None
    growth = plan_growth(data.texts(), tokenizer, add_words)
    print_line(f"Words: {growth}")
    return growth


def _check_script(examples: EncodedSplits, tokenizer: PreTrainedTokenizerBase) -> None:
    """Prints a notice of unknown pieces.

    Raises:
        UserError: for a text in another script than the vocabulary.
    """
    train = examples["train"]
    sequences = train.sample() if isinstance(train, StreamedText) else train
    if tokenizer.unk_token_id is None or not isinstance(sequences, Sequences):
        return
    unknown = sequences.share_of(tokenizer.unk_token_id)
    if unknown > MOST_UNKNOWN:
        raise UserError(
            f"{unknown:.0%} of the pieces of the text are unknown to the vocabulary, expected at most "
            f"{MOST_UNKNOWN:.0%}: give a text in the script of the vocabulary, or a multilingual teacher"
        )
    if unknown > TOLD_UNKNOWN:
        print_notice(f"{unknown:.1%} of the pieces of the text are unknown to the vocabulary")
