"""The weights of a teacher that is adapted to a text before its fine-tuning, trained once and cached."""

import gc
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import CSVLogger

from distill.console import format_duration, print_line
from distill.contracts import Data
from distill.models.added_words import Growth, grow_vocabulary
from distill.models.loading import ENCODER, Start, load_directory
from distill.models.pooling import write_modules
from distill.stages import stages
from distill.storage.cache import entry_key, has_intact_entry, new_entry
from distill.storage.files import write_json
from distill.teaching import language_model
from distill.teaching.adaptation import Adaptation, renamed
from distill.teaching.language_model import TextTraining
from distill.teaching.output_cache import library_versions
from distill.teaching.source import Weights
from distill.training import checkpoints

FORMAT = 1  # Of an adapted teacher in the cache.
_METADATA = "distill.json"  # Beside its weights.


class AdaptedWeights:
    """The weights of a teacher after an adaptation: an encoder without a head, and its tokenizer.

    Until `train` was called, or an earlier run has trained them, they are those before it, with the new vocabulary.

    Args:
        weights: those before.
        adaptation: the settings of the training.
        data: of the task.
    """

    is_new = False

    def __init__(self, weights: Weights, adaptation: Adaptation, data: Data, cache_dir: Path) -> None:
        self.weights, self.adaptation, self.cache_dir = weights, adaptation, cache_dir
        self.name, self.precision, self.trust_remote_code = weights.name, weights.precision, weights.trust_remote_code
        self.seconds = 0.0
        with renamed():
            self.text = adaptation.read(data, cache_dir)
            text = self.text.sha256
        self._key = entry_key("adapted", FORMAT, library_versions(), weights.fingerprint(), text, adaptation.key())
        self.directory = cache_dir / "teachers" / f"{weights.name}-{adaptation.name}-text-{self._key[:16]}"

    def locate(self) -> Path | None:
        """Returns the directory of the weights, before the training those that it begins with."""
        return self.directory if self.is_trained() else self.weights.locate()

    def resolved(self) -> str:
        """Returns the name in records, that of the weights before."""
        return self.weights.resolved()

    def fingerprint(self) -> str:
        """Returns a digest of everything that the training depends on."""
        return self._key

    def width(self) -> int:
        """Returns the size of the hidden states."""
        return self.weights.width()

    def load(
        self,
        auto_class: str,
        labels: Sequence[str] | None,
        texts: Iterable[str],
        *,
        problem_type: str | None = None,
    ) -> Start:
        """Returns the model with a head for `labels`, which is new, and its tokenizer."""
        if self.is_trained():
            start = load_directory(
                self.directory, auto_class, labels, trust_remote_code=self.trust_remote_code, problem_type=problem_type
            )
        else:
            start = self._grow(self.weights.load(auto_class, labels, texts, problem_type=problem_type))
        return replace(start, fits=False, reason="its encoder is adapted and the head is not")

    def is_trained(self) -> bool:
        """Returns whether the adapted teacher is in the cache and intact."""
        return has_intact_entry(self.directory, "the adapted teacher")

    def train(self, run_directory: Path, *, resume: bool, dry_run: bool) -> None:
        """Trains and caches the encoder, once, or in a dry run prints how long it takes."""
        if self.is_trained():
            print_line(f"Teacher: adapted before, read from {self.directory}")
            return
        with renamed():
            self._train(run_directory, resume=resume, dry_run=dry_run)

    def _train(self, run_directory: Path, *, resume: bool, dry_run: bool) -> None:
        started = time.perf_counter()
        print_line(f"Teacher: {self.resolved()} is adapted to {self.adaptation} first")
        task = self.adaptation.text
        start = language_model.load_language_model(self.weights, task, self.text, seed=self.adaptation.trainer.seed)
        start = self._grow(start)
        training = TextTraining.prepare(
            task, self.text, start, objective=None, settings=self.adaptation.trainer, cache_dir=self.cache_dir
        )
        estimate = training.estimate_seconds()
        stages.expect(teacher=estimate)
        steps, size = training.module.total_steps, self.adaptation.trainer.step_size()
        precision = self.adaptation.trainer.resolved_precision()
        print_line(f"         {steps:,} steps of {size}, {precision}, about {format_duration(estimate)}, once")
        if dry_run:
            return
        directory = run_directory / "teacher" / "adaptation"
        before = self._measure(training) if start.fits else None
        fit = training.fit(
            directory / "checkpoints", CSVLogger(str(directory), name="", version=""), title="teacher",
            identity={"data": self.text.sha256, "start": self.weights.fingerprint()}, resume=resume,
        )  # fmt: skip
        metrics = self._measure(training)
        self.seconds = time.perf_counter() - started
        record = {
            "text": str(self.adaptation), "name": self.adaptation.name, "sha256": self.text.sha256,
            **({} if self._growth is None else self._growth.record()), "metrics": metrics, "before": before,
            "steps": fit.steps, "seconds": self.seconds,
        }  # fmt: skip
        self._save(replace(start, model=training.module.student.cpu().eval()), record)
        checkpoints.remove(directory / "checkpoints")  # The result is in the cache.
        gc.collect()  # Module and trainer refer to each other and to the optimizer's state.

    def _measure(self, training: TextTraining) -> dict[str, float]:
        """Returns the metrics of the language model on the held-out text."""
        metrics: dict[str, float] = training.data.scoring.metrics(training.evaluate())
        return metrics

    def record(self) -> dict[str, Any] | None:
        """Returns the training for run.json; None if it is not in the cache."""
        with suppress(FileNotFoundError):
            record: dict[str, Any] = json.loads((self.directory / _METADATA).read_text(encoding="utf-8"))
            return record
        return None

    @cached_property
    def _growth(self) -> Growth | None:
        start = self.weights.load(self.adaptation.text.info.auto_class, None, self.text.texts())
        return language_model.choose_growth(start.tokenizer, self.text, self.adaptation.add_words)

    def _grow(self, start: Start) -> Start:
        """Returns the model with the vocabulary that it has after the training."""
        return start if self._growth is None else grow_vocabulary(start, self._growth.words)

    def _save(self, trained: Start, record: dict[str, Any]) -> None:
        """Caches the trained encoder with its tokenizer, and the pooler that a language model does not have."""
        torch.manual_seed(self.adaptation.trainer.seed)  # For a pooler that the weights lack.
        encoder = self._grow(self.weights.load(ENCODER, None, self.text.texts())).model
        missing, unexpected = encoder.load_state_dict(trained.model.base_model.state_dict(), strict=False)
        left = [name for name in missing if not name.startswith("pooler.")] + list(unexpected)
        if left:
            raise RuntimeError(f"the encoder of {self.resolved()} has other tensors with its head: {', '.join(left)}")
        with new_entry(self.directory) as temporary:
            encoder.save_pretrained(temporary)
            trained.tokenizer.save_pretrained(temporary)
            write_modules(encoder, temporary)
            write_json(temporary / _METADATA, record)
