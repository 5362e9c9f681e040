"""Upgrades the saved configurations of earlier versions."""

from collections.abc import Callable
from typing import cast

from omegaconf import DictConfig, OmegaConf

from distill.training.settings import ADDED

# `_target_` of an earlier version -> its current name.
RENAMED = {
    "distill.benchmark.Settings": "distill.benchmark.settings.BenchmarkSettings",
    "distill.export.Settings": "distill.export.settings.ExportSettings",
    "distill.fitting.Settings": "distill.training.settings.TrainerSettings",
    "distill.masking.Masking": "distill.text.masking.Masking",
    "distill.settings.Settings": "distill.training.settings.TrainerSettings",
    "distill.tasks.LanguageModelTask": "distill.tasks.MaskedLM",
    "teachers.cache.OutputCache": "distill.teaching.output_cache.OutputCache",
}

# Options of tasks over rows that earlier versions lack, with the values that mean the same.
UNLABELLED = {"unlabelled": None, "unlabelled_share": 0.5, "bank": None, "missing": "drop"}

Node = dict[str, object]  # A mapping of a configuration.


def upgrade(config: DictConfig) -> DictConfig:
    """Returns the configuration of a run with the names of this version."""
    values = cast(Node, _walk(OmegaConf.to_container(config), _upgrade_node))
    values["logger"] = _upgrade_logger(cast(Node, values.get("logger") or {}))
    upgraded = OmegaConf.create(values)
    assert isinstance(upgraded, DictConfig)
    upgraded.setdefault("dry_run", False)
    upgraded.setdefault("budget", {"_target_": "distill.benchmark.budget.Budget", "mb": None, "ms": None})
    upgraded.setdefault("record", {"_target_": "distill.records.settings.RecordSettings", "texts": True})
    upgraded.setdefault("augment", {"name": "none"})
    upgraded.setdefault("seeds", 1)
    upgraded.setdefault("baseline", False)
    for name in ("teacher", "substitute"):
        if name in upgraded:
            upgraded[name].setdefault("accept_weak", False)
            if upgraded[name].get("cache"):
                upgraded[name].cache.setdefault("hidden", False)
    return upgraded


def _upgrade_logger(node: Node) -> Node:
    """Returns the loggers by name; earlier versions had one, a class of Lightning."""
    target = node.get("_target_")
    if target is None:
        return node
    if target == "lightning.pytorch.loggers.WandbLogger":
        kept: Node = {name: node[name] for name in ("project", "mode") if name in node}
        return {"wandb": {"_target_": "distill.records.loggers.Wandb"} | kept}
    return {"csv": {"_target_": "distill.records.loggers.Csv"}}


def _walk(value: object, change: Callable[[Node], Node]) -> object:
    """Applies `change` to every mapping, the inner ones first."""
    if isinstance(value, dict):
        return change({key: _walk(inner, change) for key, inner in value.items()})
    return [_walk(inner, change) for inner in value] if isinstance(value, list) else value


def _upgrade_node(node: Node) -> Node:
    target = node.get("_target_")
    if target == "distill.tasks.SequenceTask":  # Split into two classes.
        regression = node.pop("regression", False)
        if regression:
            node.pop("labels", None)
        target = f"distill.tasks.{'Regression' if regression else 'Classification'}"
    if target in ("distill.tasks.Classification", "distill.tasks.Regression"):
        node = {**node, **{key: node.get(key, value) for key, value in UNLABELLED.items()}}
    elif target == "students.bilstm.from_teacher":  # It receives the task.
        node.pop("text", None)
    if not isinstance(target, str):
        return node
    target = RENAMED.get(target, target)
    if target == "distill.export.settings.ExportSettings":
        node.pop("per_channel", None)  # Always since then.
        if "reduce_range" in node:
            node["target"] = "avx2" if node.pop("reduce_range") else "vnni"
    added = ADDED if target == "distill.training.settings.TrainerSettings" else {}
    return {**added, **node, "_target_": target}
