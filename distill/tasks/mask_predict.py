"""A text for a text, all of whose tokens are predicted at once: the items are the masked tokens of the target.

>>> from distill.tasks import MaskPredict
>>> pairs = [{"source": "3 1 2", "target": "1 2 3"}]
>>> MaskPredict(train=pairs, dev=pairs, rounds=4, lengths=3).info.taught_by
'seq2seq'
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import numpy as np
from pydantic import Field

from distill.contracts import DECODER_INPUTS, IGNORED, TARGET_LENGTHS, TARGET_MASK, Batch, Items, Outputs, Scores
from distill.data.tables import LabelledData
from distill.data.text_pairs import MissingTarget
from distill.edge.target_masks import TargetFrame
from distill.errors import UserError
from distill.losses import HardLabels, TargetLength
from distill.options import check_arguments
from distill.tasks import rows
from distill.tasks.seq2seq import LongTargets, PairOptions, Seq2Seq, TargetScores, ends_texts
from distill.tasks.writing import TextMetric, Writing

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.data.masked_targets import MaskedTargets
    from distill.data.token_cache import Tokens
    from distill.edge.bundle import Bundle


class TargetOptions(PairOptions, total=False):
    """The options of `Seq2Seq` besides its name, with their meanings there."""

    source: str | int
    target: str | int
    separator: str | None
    prefix: str
    max_length: rows.MaxLength
    max_target: rows.MaxLength
    long_targets: LongTargets
    missing: MissingTarget
    text_metrics: Sequence[TextMetric]
    scored_texts: int | None
    beams: int | None


@dataclass(frozen=True)
class RefinedWriting(Writing):
    """How texts are written whose masks are filled in `rounds`, for each of so many `lengths`."""

    rounds: int = 1
    lengths: int = 1

    def write(self, bundle: "Bundle", sources: Sequence[str]) -> list[Mapping[str, Any]]:
        return list(bundle.predict(sources, rounds=self.rounds, lengths=self.lengths))


@dataclass(frozen=True)
class MaskedTargetScores(TargetScores):
    """The cross-entropies and the predictions of masked tokens, each from the source and the tokens that are shown.

    A model that writes tokens one after another predicts the same ones, each after the right tokens before it.
    """

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """The columns of tokens, and the distance of the predicted from the right length of their target."""
        columns = super().score(outputs, items)
        if outputs.length_logits is not None:
            distance = (outputs.length_logits.argmax(dim=-1) - items[TARGET_LENGTHS]).abs()
            columns["length_error"] = distance.float()[items.row]
        return columns

    def metrics(self, scores: Scores) -> dict[str, float]:
        """Those of `TargetScores`, and of a model that predicts lengths the share of right ones and the mean error.

        `length_error` is in tokens.
        """
        values = super().metrics(scores)
        if "length_error" in scores.columns:
            _, first = np.unique(scores.example_id, return_index=True)
            errors = scores.columns["length_error"][first]
            values |= {"length_accuracy": float((errors == 0).mean()), "length_error": float(errors.mean())}
        return values

    def fit_decoder(self, scores: Scores) -> dict[str, Any]:
        """The numbers of rounds and lengths of a bundle."""
        writing = self.writing
        return {"rounds": writing.rounds, "lengths": writing.lengths} if isinstance(writing, RefinedWriting) else {}

    def describe(self, splits: Any) -> dict[str, Any]:
        return {**super().describe(splits), "example": '"a sentence"'}  # It fills masks, and takes no `generate`.


class MaskPredict(Seq2Seq):
    """A text for a text by Mask-Predict (Ghazvininejad et al., arXiv 1904.09324).

    Students are encoder-decoders that fill all masks of a target at once, and predict its length. A target of train has
    other masks in every epoch, a number of them that is uniform from 1 to all tokens (section 3.1); those of dev and
    test are always the same. Teachers are models of `Seq2Seq`, which teach by the texts that they write.

    Args:
        rounds: in which exported files fill the masks of a text.
        lengths: likeliest lengths for which they do so, to take the best text of them.
        name: names the task in records and directories.
        options: those of `Seq2Seq`.

    Raises:
        OptionError: for an option that got a value it cannot take.
        UserError: for data of a type that cannot be read.
    """

    kinds = ("mask_predict",)

    @check_arguments
    def __init__(
        self,
        *,
        rounds: Annotated[int, Field(ge=1)] = 10,
        lengths: Annotated[int, Field(ge=1)] = 5,
        name: str = "mask_predict",
        **options: Unpack[TargetOptions],
    ) -> None:
        super().__init__(name=name, **options)
        self.rounds, self.lengths = rounds, lengths
        if self.writing is not None:
            self.writing = RefinedWriting(**vars(self.writing), rounds=rounds, lengths=lengths)
        self.info = replace(
            self.info, kind=self.kinds[0], decoder="mask_predict", generates=False, fixed_inputs=False,
            taught_by="seq2seq", label_columns=frozenset({"labels", TARGET_LENGTHS}),
        )  # fmt: skip

    def read(self, cache_dir: Path) -> LabelledData:
        return replace(super().read(cache_dir), terms={"hard": HardLabels(), "length": TargetLength()})

    def create_scores(self) -> MaskedTargetScores:
        return MaskedTargetScores(max_target=self.max_target, writing=self.writing, prefix=self.pairs.prefix)

    def join(
        self, tokens: "Tokens", targets: "Tokens", tokenizer: "PreTrainedTokenizerBase", *, name: str
    ) -> "MaskedTargets":
        """Returns sources with their targets, whose masks are new in each epoch of train.

        Raises:
            UserError: for a tokenizer without a token for masks.
        """
        from distill.data.masked_targets import MaskedTargets

        frame = find_frame(tokenizer, self.max_target)
        return MaskedTargets(tokens, tokenizer, targets=targets, frame=frame, visits=None if name == "train" else 1)

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs both halves without the head, which computes logits at the items alone."""
        from distill.models.chunked_logits import run_encoder_pass
        from distill.models.forward import fills_targets, shift_targets

        if not fills_targets(model):
            shown = batch[DECODER_INPUTS].masked_fill(batch[TARGET_MASK] == 0, IGNORED)
            whole = batch["labels"].where(batch["labels"] != IGNORED, shown)
            batch = {**batch, DECODER_INPUTS: shift_targets(model, whole)}
        return run_encoder_pass(model, batch, items, needs)


def find_frame(tokenizer: "PreTrainedTokenizerBase", max_target: int) -> TargetFrame:
    """Returns the tokens around a target.

    Raises:
        UserError: for a tokenizer without a token for masks, and targets without room for a token.
    """
    if tokenizer.mask_token_id is None:
        raise UserError(
            f"the tokenizer ({type(tokenizer).__name__}) has no token for masks (mask_token), which task=mask_predict "
            "fills: take a teacher such as a BART, or one that begins with a BERT"
        )
    alone: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole: list[int] = tokenizer("a")["input_ids"]
    begin = next(place for place in range(len(whole)) if whole[place : place + len(alone)] == alone)
    after = [*whole[begin + len(alone) :], *([] if ends_texts(tokenizer) else [tokenizer.eos_token_id])]
    frame = TargetFrame(tuple(whole[:begin]), tuple(after), int(tokenizer.mask_token_id), max_target)
    if frame.most < 1:
        special = max_target - frame.most
        raise UserError(f"got task.max_target={max_target}, expected more than the {special} special tokens of a text")
    return frame
