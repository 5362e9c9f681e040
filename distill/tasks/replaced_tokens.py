"""Replaced-token detection on raw text: the items are all tokens, the classes original and replaced.

>>> from distill.tasks import ReplacedTokenDetection
>>> ReplacedTokenDetection(data="path/to/text", max_length=64).info.replaces_tokens
True
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from distill.contracts import IGNORED, Batch, Constant, Items, Outputs, Scores, TaskInfo
from distill.errors import OptionError
from distill.losses import GeneratorLoss, ReplacedTokens, Term
from distill.losses.detection import WEIGHT
from distill.losses.term import in_chunks
from distill.models.generator import DISCRIMINATOR, GENERATOR, Generator, sample_tokens
from distill.options import show_value
from distill.tasks.masked_lm import TextData, TextTask
from distill.tasks.scoring import Scoring, list_by_example
from distill.text.masking import Masking
from distill.text.sequences import SequenceSettings, open_corpus

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LABELS = ("original", "replaced")
MASK = Masking(replace=(1.0, 0.0, 0.0))


@dataclass(frozen=True)
class ReplacedText(TextData):
    """A corpus of raw text and its masked sequences, in which a generator fills the masks."""

    objective = "replaced_token_detection"
    labels: tuple[str, ...] = LABELS

    @property
    def scoring(self) -> "DetectionScores":
        return DetectionScores(self.settings)

    @property
    def terms(self) -> dict[str, Term]:
        """The generator's masked language modelling, and the detection of its tokens."""
        return {"mlm": GeneratorLoss(), "replaced": ReplacedTokens()}


class DetectionScores(Scoring):
    """The detection of every token and, at the masked ones, the cross-entropy of the generator.

    Checkpoints are selected by `joint_loss`, the sum that the training minimizes: the loss of the detection alone rises
    again where the generator becomes better, and would select a model that has only seen easy replacements.

    Args:
        settings: of the sequences.
    """

    names = ("joint_loss", "loss", "prior", "accuracy", "recall", "precision", "replaced", "generator_perplexity")
    selects = "min"

    def __init__(self, settings: SequenceSettings) -> None:
        self.settings = settings

    def score(self, outputs: Outputs, items: Items) -> "dict[str, Tensor]":
        """The logits of every item, whether its token is replaced, and the loss of the generator, NaN without one."""
        if outputs.logits is None or outputs.replaced is None or outputs.generator is None:
            raise ValueError("got outputs without replaced tokens, expected those of ReplacedTokenDetection.run")
        generator, loss = outputs.generator, outputs.logits.new_full((len(items),), torch.nan, dtype=torch.float32)

        def losses(masked: Items) -> "Tensor":
            logits = generator.at(masked).logits
            assert logits is not None
            return F.cross_entropy(logits.float(), masked.labels, reduction="none")

        masked = items.masked_tokens()
        loss[items.labelled] = torch.cat(list(in_chunks(losses, masked, generator.chunk_size)))
        return {"logits": outputs.logits.float(), "replaced": outputs.replaced, "generator_loss": loss}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The mean losses, shares of the tokens, and the perplexity of the generator at masked ones.

        `joint_loss` is the generator's loss and 50 times `loss`, that of the detection (arXiv 2003.10555). `prior` is
        the entropy of the share `replaced`: the loss of a model that knows this share alone. `recall` and `precision`
        are those of the replaced tokens, 0 where there are none.
        """
        replaced, predicted = scores.columns["replaced"], self.predictions(scores) == 1
        logits = scores.columns["logits"].astype(np.float64)
        right = np.where(replaced, logits[:, 1], logits[:, 0])
        loss = float((np.logaddexp(logits[:, 0], logits[:, 1]) - right).mean())
        found, share = float((predicted & replaced).sum()), float(replaced.mean())
        of_generator = scores.columns["generator_loss"].astype(np.float64)
        generator_loss = float(of_generator[~np.isnan(of_generator)].mean())
        return {
            "joint_loss": generator_loss + WEIGHT * loss,
            "loss": loss,
            "prior": _entropy(share),
            "accuracy": float((predicted == replaced).mean()),
            "recall": found / max(1, int(replaced.sum())),
            "precision": found / max(1, int(predicted.sum())),
            "replaced": share,
            "generator_perplexity": float(np.exp(generator_loss)),
        }

    def constants(self, scores: Scores) -> Sequence[Constant]:
        """The share of the replaced tokens, as the probability of every token; none before a model drew tokens."""
        share = float(scores.columns["replaced"].mean()) if "replaced" in scores.columns else 0.0
        if not 0 < share < 1:
            return []

        def predict(scores: Scores) -> Scores:
            logits = np.tile(np.log([1 - share, share]).astype(np.float32), (len(scores.labels), 1))
            return replace(scores, columns={**scores.columns, "logits": logits})

        return [Constant("always the share of replaced tokens", predict)]

    def tabulate(self, scores: Scores, splits: ReplacedText, *, examples: int) -> dict[str, list[Any]]:
        """The names of the right classes and of the predicted ones, in the order of the tokens."""
        names = np.array(LABELS, dtype=object)
        values = {
            "label": names[scores.columns["replaced"].astype(int)], "prediction": names[self.predictions(scores)],
            "probability": self.probabilities(scores).max(axis=-1),
        }  # fmt: skip
        return list_by_example(values, scores.example_id, examples)

    def calibration_error(self, scores: Scores) -> float | None:
        """The expected calibration error of the detection."""
        return super().calibration_error(replace(scores, labels=scores.columns["replaced"].astype(int)))

    def describe(self, splits: ReplacedText) -> dict[str, Any]:
        settings = self.settings
        return {
            "labels": list(LABELS), "answer": "replaced", "packing": settings.packing, "masking": settings.masking,
            "max_length": settings.max_length, "pipeline_tag": "token-classification",
            "prediction": "Finds the tokens of a text that another model has replaced.", **splits.describe_cleaning(),
        }  # fmt: skip

    def summary(self, splits: ReplacedText) -> str:
        return "original or replaced"


class ReplacedTokenDetection(TextTask):
    """Replaced-token detection (ELECTRA, arXiv 2003.10555): a discriminator finds the tokens that a generator sampled.

    Tokens are masked as for masked language modelling. The generator predicts them, and a token that is drawn from each
    of its predictions takes the place of the mask. The discriminator, a classifier of tokens, reads this text. It is
    the model that is trained for further tasks. The generator is trained together with it, and is saved beside it.

    The labels of the items, all tokens but padding, are the tokens of the text at the masked ones, which the generator
    learns. Which tokens are replaced depends on its samples and is therefore a part of the outputs.

    Args:
        name: names the task in records and directories.
        data: a file or a folder, as `data_dir`.
        data_dir: a folder or a file of text; None for `hub_id`, or the built-in sentences.
        mask: the tokens that are chosen; their replacement is what the generator reads.
        generator: the size and the start of the generator.
        options: the other fields of `SequenceSettings`, without `pair`.

    Raises:
        ValueError: for an option that is out of range.
    """

    kinds = ("replaced_tokens",)
    auto_class = "AutoModelForTokenClassification"

    def __init__(
        self,
        *,
        name: str = "rtd",
        mask: Masking | None = None,
        generator: Generator | None = None,
        data: str | Path | None = None,
        data_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        if options.get("pair") is not None:
            raise OptionError("pair", show_value(options["pair"]), "null, because a discriminator has one head")
        if mask is not None and mask.shuffle:
            raise OptionError("mask.shuffle", show_value(mask.shuffle), "0, because a generator fills masks alone")
        data_dir = data_dir if data is None else data
        self.settings = settings = SequenceSettings(
            mask=mask or MASK, data_dir=None if data_dir is None else str(data_dir), **options
        )
        self.generator = generator or Generator()
        self.info = TaskInfo(
            name=name, kind=self.kinds[0], auto_class=self.auto_class, likelihood="softmax", decoder="detection",
            max_length=settings.max_length, builtin=settings.builtin, raw_text=self.raw_text, fixed_inputs=False,
            replaces_tokens=True,
        )  # fmt: skip

    def read(self, cache_dir: Path) -> ReplacedText:
        return ReplacedText(open_corpus(self.settings, cache_dir), self.settings)

    def assemble(self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedModel":
        """Returns the discriminator and its generator as one model.

        Raises:
            UserError: for a generator that does not suit the discriminator or the text.
        """
        from distill.models.checks import check_length

        joint = self.generator.join(model, tokenizer)
        check_length(joint.head(GENERATOR), tokenizer, self.info.max_length, who="generator")
        return joint

    def select(self, batch: Batch) -> Items:
        """All tokens but padding, in the order of the batch, labelled with the tokens of the text at masked ones."""
        mask, labels = batch["attention_mask"], batch["labels"].flatten()
        index = mask.flatten().nonzero().squeeze(-1)
        return Items(
            batch=batch, row=index // mask.shape[1], labels=labels[index], labelled=labels[index] != IGNORED,
            index=index,
        )  # fmt: skip

    def run(self, model: "PreTrainedModel", batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Runs the generator on the masked tokens, and the discriminator on those that are drawn in their place."""
        from distill.models.chunked_logits import run_encoder_pass
        from distill.models.forward import collect_outputs, run_model
        from distill.models.heads import heads_of

        models, masked = heads_of(model), items.masked_tokens()
        generated = run_encoder_pass(models[GENERATOR], batch, masked)
        if len(masked) <= (generated.chunk_size or 0):
            generated = generated.at(masked)
        ids = torch.where(batch["labels"] != IGNORED, batch["labels"], batch["input_ids"]).flatten()
        sampled = ids.index_put((masked.index,), self._sample(generated, masked))
        output = run_model(models[DISCRIMINATOR], {**batch, "input_ids": sampled.view_as(batch["input_ids"])}, needs)
        outputs = collect_outputs(output, output.logits.flatten(0, 1)[items.index])
        return replace(outputs, replaced=(sampled != ids)[items.index], generator=generated)

    @torch.no_grad()
    def _sample(self, generated: Outputs, masked: Items) -> "Tensor":
        """Returns a token for each masked one.

        The noise of a sequence depends on the seed and on its tokens alone: not on the batch that it is in, so that
        dev is always scored on the same noise, and not on the step, so that a resumed training draws the same.
        """
        rows, counts = masked.row.unique_consecutive(return_counts=True)
        ids, attention = masked["input_ids"].cpu(), masked["attention_mask"].cpu().bool()
        samples, first = [masked.labels[:0]], 0
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            logits = generated.at(masked.part(first, first + count)).logits
            assert logits is not None
            tokens = ids[row][attention[row]].numpy().astype(np.int64)
            samples.append(sample_tokens(logits, zlib.crc32(tokens.tobytes(), self.settings.seed)))
            first += count
        return torch.cat(samples)


def _entropy(share: float) -> float:
    """Returns the entropy of a share in nats, 0 for none and all."""
    return -sum(part * float(np.log(part)) for part in (share, 1 - share) if part > 0)
