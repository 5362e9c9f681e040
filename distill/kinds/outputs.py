"""A teacher whose outputs stand in a table: no model runs, and an example without outputs learns from its label."""

import hashlib
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor
from transformers import PreTrainedModel

from distill.core.console import print_line
from distill.core.contracts import TAUGHT, Batch, EncodedSplits, Items, Outputs
from distill.core.errors import UserError, first_line
from distill.data.batches import MixedExamples, TokenizedExamples
from distill.data.splits import LabelledData, Split
from distill.kinds.kind import UNLABELLED, Kind
from distill.kinds.known import Key


@dataclass(frozen=True, eq=False)
class KnownReading:
    """The outputs of the examples of a split.

    Args:
        logits: of the items of all examples in turn, `[T, C]`.
        firsts: the first item of each example, `[N]`.
    """

    task: Kind
    logits: Tensor
    firsts: Tensor

    @property
    def digest(self) -> str:
        """Stands for the outputs."""
        return hashlib.sha256(self.logits.numpy().tobytes()).hexdigest()

    def run(self, model: PreTrainedModel, batch: Batch, items: Items, needs: frozenset[str]) -> Outputs:
        """Returns the outputs for a batch; the model, an encoder, runs only for those that terms `need` besides."""
        places = self.firsts[items.example_id().cpu()] + self.task.place(items).cpu()
        logits = self.logits[places.clamp(max=len(self.logits) - 1)]
        if items.valid is not None:
            logits = logits[:, : items.valid.shape[1]]
        outputs = self.task.run(model, batch, items, needs) if needs else Outputs()
        return replace(outputs, logits=logits.to(items.labels.device))


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


@dataclass(frozen=True)
class Labelling:
    """The file in JSON beside a table: the model that gave its outputs, and the cost of a call of it where it is known.

    Args:
        schema: of the file. Other keys are ignored.
        milliseconds: median of one call.
    """

    schema: Literal[1]
    model: str
    dollars_per_million_texts: Amount
    milliseconds: Amount

    @classmethod
    def read(cls, path: Path) -> "Labelling | None":
        """Returns the content of a file, None without one that has a schema; raises UserError for an unfitting one."""
        try:
            content = path.read_bytes()
            if b'"schema"' not in content:
                return None
            return TypeAdapter(cls).validate_json(content, strict=True)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = first_line(error)
            if isinstance(error, ValidationError):
                [first, *_] = error.errors()
                reason = ": ".join([*map(str, first["loc"]), first["msg"]])
            raise UserError(
                f"{path} is no record of a labelling ({reason}), expected schema 1, model, dollars_per_million_texts "
                "and milliseconds (numbers or null): label again, or give it another name"
            ) from error

    def record(self) -> dict[str, Any]:
        """Returns the fields of the `teacher` of run.json."""
        return {name: value for name, value in vars(self).items() if name != "schema"}


@dataclass(frozen=True, eq=False)
class KnownOutputs:
    """The outputs of a table.

    Args:
        source: names the table in messages.
        found: the outputs `[k, C]` by the texts of an item.
        temperature: divides the logits.
        has_distributions: whether they are no labels with a probability that was given to all of them.
        labelling: the model that gave them; None where nothing is known of it.
    """

    source: str
    found: Mapping[Key, np.ndarray]
    temperature: float = 1.0
    has_distributions: bool = False
    labelling: Labelling | None = None

    def look_up(self, task: Kind, split: Split) -> list[np.ndarray | None]:
        """Returns the outputs `[k, C]` of the items of each example, None for one without."""
        examples = []
        for keys in task.known_keys(split):
            known = [self.found[key] for key in keys if key in self.found]
            examples.append(task.join_known(known) if len(known) == len(keys) else None)
        return examples

    def match(
        self, task: Kind, data: LabelledData, examples: EncodedSplits
    ) -> tuple[EncodedSplits, dict[str, KnownReading]]:
        """Returns the examples, with those that the table has no outputs of, and their outputs by the digest of each.

        Raises:
            UserError: for a split that is scored, or texts without labels, of which not all have outputs.
        """
        matched, readings = dict(examples), dict[str, KnownReading]()
        for name, of_split in examples.items():
            if isinstance(of_split, MixedExamples):
                labelled, first = self._match(task, name, of_split.labelled, data.splits["train"])
                rows = data.pool.fit_share(len(data.splits["train"])).shuffled()
                pool, second = self._match(task, UNLABELLED, of_split.pool, rows, like=labelled)
                matched[name] = of_split.with_parts(labelled, pool)
                readings |= {labelled.digest: first, pool.digest: second, of_split.digest: _join(first, second)}
            else:
                assert isinstance(of_split, TokenizedExamples)
                matched[name], readings[of_split.digest] = self._match(task, name, of_split, data.splits[name])
        return matched, readings

    def _match(
        self, task: Kind, name: str, examples: TokenizedExamples, split: Split, *, like: TokenizedExamples | None = None
    ) -> tuple[TokenizedExamples, KnownReading]:
        outputs = self.look_up(task, split)
        known = np.array([each is not None for each in outputs])
        if not known.all() and (name != "train" or not known.any()):
            text = reprlib.repr(split.texts[int(np.argmin(known))])
            raise UserError(
                f"{self.source} has no outputs for {int((~known).sum()):,} of {len(known):,} examples of {name}, the "
                f"first of them {text}: add their rows, or leave the texts out of the data"
            )
        if not known.all():
            print_line(
                f"Teacher: {self.source} has outputs for {int(known.sum()):,} of {len(known):,} examples of train; the "
                "others learn from their labels"
            )
        if not known.all() or (like is not None and like.is_taught_in_part):
            examples = examples.with_column(TAUGHT, known.astype(np.int8), of_tokens=False)
        width = next(each for each in outputs if each is not None).shape[1]
        filled = [np.zeros((1, width)) if each is None else each for each in outputs]
        return examples, _stack(task, filled, self.temperature)


def _stack(task: Kind, outputs: list[np.ndarray], temperature: float) -> KnownReading:
    """Returns the reading of outputs `[k, C]`, which may have other numbers of classes."""
    width, counts = max(each.shape[1] for each in outputs), np.array([len(each) for each in outputs])
    logits = np.zeros((counts.sum(), width), dtype=np.float32)
    firsts = counts.cumsum() - counts
    for first, each in zip(firsts, outputs, strict=True):
        logits[first : first + len(each), : each.shape[1]] = each / temperature
    return KnownReading(task, torch.from_numpy(logits), torch.from_numpy(firsts))


def _join(labelled: KnownReading, pool: KnownReading) -> KnownReading:
    """Returns the outputs of both parts of a split, of which those of the pool follow the others."""
    firsts = torch.cat([labelled.firsts, pool.firsts + len(labelled.logits)])
    return replace(labelled, logits=torch.cat([labelled.logits, pool.logits]), firsts=firsts)
