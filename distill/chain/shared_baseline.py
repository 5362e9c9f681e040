"""The trained baseline in the cache, which runs that differ in the teacher or in what is learned from it share."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.console import print_line
from distill.storage.cache import entry_key, has_intact_entry, is_writable, new_entry
from distill.storage.files import write_json
from distill.teaching.output_cache import digest_tensors, library_versions
from distill.training.module import DistillationModule
from distill.training.settings import TrainerSettings

_FORMAT = 2
_METADATA = "baseline.json"
# What a run keeps of the training of its baseline but the checkpoint to resume from. There is a soup in some trainings.
_FILES = ("metrics.csv", "checkpoints/best.ckpt", "checkpoints/soup.ckpt")


@dataclass(frozen=True)
class SharedBaseline:
    """The baseline of a training: its weights, the log and the seconds, in the cache of all runs.

    Args:
        directory: the entry of the cache.
    """

    directory: Path

    @classmethod
    def of(
        cls, module: DistillationModule, settings: TrainerSettings, *, name: str, data: Sequence[str], cache_dir: Path
    ) -> "SharedBaseline":
        """Returns the entry of the baseline that `module` is before its training.

        Args:
            name: of the task.
            data: digests of everything that it learns from and is evaluated on.
        """
        start = {key: tensor.detach().cpu() for key, tensor in module.student.state_dict().items()}
        key = entry_key(
            "baselines", _FORMAT, library_versions(), digest_tensors(start), module.objective.record(), settings.key(),
            module.scoring.metric, [module.total_steps, module.frozen_steps], list(data),
        )  # fmt: skip
        return cls(cache_dir / "baselines" / f"{name}-{key[:16]}")

    def fetch(self, run_directory: Path) -> float | None:
        """Copies what a run keeps into its directory; returns the seconds of the training, None without an entry."""
        if not has_intact_entry(self.directory, "the baseline", needed=False):
            return None
        _copy_files(self.directory, run_directory)
        print_line(f"Baseline: trained before, reused from {self.directory}")
        return float(json.loads((self.directory / _METADATA).read_text(encoding="utf-8"))["seconds"])

    def save(self, run_directory: Path, seconds: float) -> None:
        """Caches the baseline that a run has trained, unless the cache is read-only."""
        if not is_writable(self.directory):
            return
        with new_entry(self.directory) as temporary:
            _copy_files(run_directory, temporary)
            write_json(temporary / _METADATA, {"seconds": seconds})


def _copy_files(source: Path, target: Path) -> None:
    for name in _FILES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
