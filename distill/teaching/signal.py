"""The signal of a teacher that runs in every step, and that of several teachers, as one signal."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.contracts import TASK_ID, Batch, Items, Learnable, Likelihood, Outputs, Signal
from distill.losses import Objective
from distill.teaching.mixture import mix_logits
from distill.training.module import freeze


class Live(Signal):
    """A teacher that runs for every batch, in evaluation mode, in its own precision and without gradients.

    Args:
        model: moved to the device of the batches.
        objective: names the outputs that are computed.
        reason: the reason why the outputs are not cached.
    """

    seconds = 0.0

    def __init__(self, model: PreTrainedModel, task: Learnable, objective: Objective, *, reason: str) -> None:
        self.model, self.task, self.objective, self.reason = freeze(model), task, objective, reason

    def __getstate__(self) -> dict[str, Any]:
        """Moves the model to the CPU, because it is pickled for processes with other GPUs."""
        self.model.cpu()
        return self.__dict__

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        device = batch["attention_mask"].device
        if self.model.device != device:
            self.model.to(device)
        with self._timed():
            outputs = self.task.run(self.model, batch, items, self.objective.teacher_needs)
        return outputs if outputs.head is None else replace(outputs, head=self._timed()(outputs.head))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Disables gradients and autocast, and adds the duration to `seconds`."""
        start = time.perf_counter()
        with torch.no_grad(), torch.autocast(self.model.device.type, enabled=False):
            yield
        self.seconds += time.perf_counter() - start


class ByTask(Signal):
    """The cached outputs of the teachers of several tasks, in the order of the tasks' numbers."""

    def __init__(self, signals: Sequence[Signal]) -> None:
        self.signals = signals

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        return self.signals[int(batch[TASK_ID][0])](batch, items)


class Mean(Signal):
    """The mean of the cached outputs of several teachers. Hidden states are those of the first one.

    Args:
        shares, likelihood: as in `mix_logits`.
    """

    def __init__(self, signals: Sequence[Signal], shares: Sequence[float], likelihood: Likelihood) -> None:
        self.signals, self.shares, self.likelihood = signals, shares, likelihood

    def __call__(self, batch: Batch, items: Items) -> Outputs:
        outputs = [signal(batch, items) for signal in self.signals]
        members = [cast(Tensor, output.logits) for output in outputs]  # They are not over a vocabulary.

        def soften(span: slice, temperature: float) -> Tensor:
            logits = [member[span] for member in members]
            return mix_logits(logits, self.shares, self.likelihood, temperature=temperature)

        return replace(outputs[0], logits=soften(slice(None), 1.0), soften=soften)
