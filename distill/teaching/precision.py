"""The precision of a teacher's forward passes, where a probe chooses it."""

import copy
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.contracts import Examples, Task
from distill.data.batching import scoring_steps
from distill.losses.term import get_logits
from distill.models.forward import to_device
from distill.teaching.columns import pack_logits
from distill.training.module import freeze
from distill.training.settings import has_bf16

PROBED = 64  # Examples.
# Of a difference, as a share of the standard deviation. That of a student's logits in bf16-mixed is 0.4%, by rounding.
# With 2% a soft target is off by 2e-4 nats at most for each unit of the logits' variance, far less than a student is.
TOLERANCE = 0.02


class PrecisionChoice(NamedTuple):
    """`float32` or `bfloat16`, and the reason in words."""

    precision: str
    reason: str


def choose_precision(model: PreTrainedModel, task: Task, examples: Examples, device: torch.device) -> PrecisionChoice:
    """Returns `bfloat16` if the hardware computes it and the outputs differ little from those in float32.

    Hardware with bf16 takes about half the time, which is not measured, so that equal runs choose alike on a busy
    machine.

    Args:
        model: the teacher in float32.
        examples: a split of which `PROBED` examples are compared.
    """
    if not has_bf16(device):
        return PrecisionChoice("float32", f"this {device.type} does not compute bfloat16 in hardware")
    error = measure_error(model, task, examples, device)
    differs = f"its outputs differ by {error:.2%} from float32, at most {TOLERANCE:.0%} may"
    if error <= TOLERANCE:
        return PrecisionChoice("bfloat16", differs)
    return PrecisionChoice("float32", f"in bfloat16 {differs}")


@torch.inference_mode()
def measure_error(model: PreTrainedModel, task: Task, examples: Examples, device: torch.device) -> float:
    """Returns the difference of the outputs in bfloat16, of logits or of the last hidden states, whichever is larger.

    It is the root mean square of the difference, as a share of the standard deviation of the outputs in float32.
    """
    exact, rounded = (freeze(copy.deepcopy(model).to(device, dtype)) for dtype in (torch.float32, torch.bfloat16))
    of_logits, of_states = _Difference(), _Difference()
    chosen = np.unique(np.linspace(0, len(examples) - 1, PROBED).astype(int))
    for rows in scoring_steps(examples.lengths[chosen]):
        batch = to_device(examples[chosen[rows].tolist()], device)
        items = task.select(batch)
        expected, outputs = (task.run(each, batch, items, frozenset({"hidden_states"})) for each in (exact, rounded))
        for part in items.parts(expected.chunk_size):
            both = (pack_logits(get_logits(of.at(part)), part.valid)["logits"] for of in (expected, outputs))
            of_logits.add(*both)
        if expected.hidden_states is not None and outputs.hidden_states is not None:
            mask = batch["attention_mask"].bool()
            of_states.add(expected.hidden_states[-1][mask], outputs.hidden_states[-1][mask])
    return max(of_logits.share(), of_states.share())


@dataclass
class _Difference:
    """Sums over the numbers of outputs in float32 and in another precision."""

    number: int = 0
    total: float = 0.0
    squares: float = 0.0
    errors: float = 0.0

    def add(self, expected: Tensor, outputs: Tensor) -> None:
        """Adds outputs of one shape."""
        expected = expected.double()
        self.number += expected.numel()
        self.total += float(expected.sum())
        self.squares += float(expected.square().sum())
        self.errors += float((outputs.double() - expected).square().sum())

    def share(self) -> float:
        """Returns the root mean square of the difference as a share of the standard deviation; 0 without outputs."""
        variance = self.squares - self.total**2 / max(1, self.number)
        if self.errors == 0:
            return 0.0
        return math.sqrt(self.errors / variance) if variance > 0 else math.inf
