"""Tests that configurations of earlier versions are upgraded without a change of meaning."""

from typing import Any

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from distill.jobs.build import instantiate
from distill.jobs.upgrade import upgrade
from distill.tasks import Classification, MaskedLM, Regression
from distill.text.masking import Masking

CLASSES = {
    "_target_": "distill.tasks.SequenceTask", "name": "toy", "text": ["one", "two"], "regression": False,
    "labels": ["no", "yes"], "metrics": ["f1"], "max_length": 32,
}  # fmt: skip
NUMBER = {
    "_target_": "distill.tasks.SequenceTask", "name": "toy", "text": "sentence", "regression": True, "labels": None,
    "metrics": ["spearman"],
}  # fmt: skip
VOCABULARY = {
    "_target_": "distill.tasks.LanguageModelTask", "name": "text", "masking": "static", "masks": 3,
    "mask": {"_target_": "distill.masking.Masking", "probability": 0.2, "unit": "whole_word"},
}  # fmt: skip
OLD: dict[str, Any] = {
    "job": "distill",
    "seed": 0,
    "task": CLASSES,
    "teacher": {
        "finetune": {"_target_": "distill.fitting.Settings", "learning_rate": 1e-5, "max_epochs": 1, "batch_size": 8},
        "cache": {"_target_": "teachers.cache.OutputCache", "enabled": "auto", "top_k": 8},
    },
    "student": {
        "name": "bilstm",
        "model": {"_target_": "students.bilstm.from_teacher", "_partial_": True, "text": "${task.text}", "layers": 2},
    },
    "trainer": {"_target_": "distill.settings.Settings", "learning_rate": 1e-4, "max_epochs": 2, "batch_size": 4},
    "export": {"_target_": "distill.export.Settings", "max_drop": 0.02},
    "benchmark": {"_target_": "distill.benchmark.Settings", "batches": [1], "lengths": [16]},
}


def upgrade_old(**changes: Any) -> Any:
    return upgrade(OmegaConf.create(OLD | changes))


def targets(node: Any) -> list[str]:
    """Returns every `_target_` of a configuration."""
    if isinstance(node, dict):
        own = [node["_target_"]] if "_target_" in node else []
        return own + [target for value in node.values() for target in targets(value)]
    return [target for value in node for target in targets(value)] if isinstance(node, list) else []


@pytest.mark.parametrize("task", [CLASSES, NUMBER, VOCABULARY], ids=["classes", "number", "vocabulary"])
def test_every_target_of_an_upgraded_configuration_can_be_imported(task: dict[str, Any]) -> None:
    new_targets = targets(OmegaConf.to_container(upgrade_old(task=task)))
    assert len(new_targets) >= len(targets(OLD | {"task": task}))  # Later versions have more nodes.
    for target in new_targets:
        assert callable(get_object(target)), target


def test_a_sequence_task_becomes_a_classification_or_a_regression() -> None:
    classes, number = (instantiate(upgrade_old(task=task).task) for task in (CLASSES, NUMBER))
    assert isinstance(classes, Classification)
    assert (classes.name, classes.pair, classes.scoring.metric, classes.max_length) == ("toy", True, "f1", 32)
    assert classes.rows.label_names == ("no", "yes")
    assert isinstance(number, Regression)
    assert (number.name, number.pair, number.scoring.metric) == ("toy", False, "spearman")


def test_a_sequence_task_without_a_regression_option_becomes_a_classification() -> None:
    task = {key: value for key, value in CLASSES.items() if key != "regression"}
    assert isinstance(instantiate(upgrade_old(task=task).task), Classification)


def test_a_language_model_task_becomes_a_masked_lm_with_its_options() -> None:
    task = instantiate(upgrade_old(task=VOCABULARY).task)
    assert isinstance(task, MaskedLM)
    assert (task.name, task.settings.masking, task.settings.masks, task.fixed_inputs) == ("text", "static", 3, True)
    assert task.settings.mask == Masking(probability=0.2, unit="whole_word")


def test_settings_and_the_cache_keep_their_values() -> None:
    config = upgrade_old()
    trainer, export, benchmark, finetune, cache = (
        instantiate(node)
        for node in (config.trainer, config.export, config.benchmark, config.teacher.finetune, config.teacher.cache)
    )
    assert (trainer.max_epochs, trainer.batch_size, finetune.max_epochs) == (2, 4, 1)
    assert (config.trainer.ema, config.teacher.finetune.soup, config.trainer.patience) == (0, 1, None)
    assert trainer.added() == {}
    assert (cache.enabled, cache.hidden, cache.top_k) == ("auto", False, 8)
    assert export.max_drop == 0.02
    assert (list(benchmark.batches), list(benchmark.lengths)) == ([1], [16])
    assert (export.abstain, instantiate(config.budget).is_set, instantiate(config.record).texts) == (None, False, True)


def test_the_text_option_of_a_bilstm_is_removed() -> None:
    model = upgrade_old().student.model
    assert "text" not in model
    assert (model._target_, model.layers) == ("students.bilstm.from_teacher", 2)


def test_an_old_run_has_no_baseline_that_it_did_not_name() -> None:
    assert upgrade_old().baseline is False
    assert [upgrade_old(baseline=value).baseline for value in (True, "auto")] == [True, "auto"]


def test_a_configuration_of_this_version_is_unchanged() -> None:
    config = upgrade_old()
    assert config.dry_run is False
    assert upgrade(config) == config
    assert upgrade_old(dry_run=True).dry_run is True


@pytest.mark.parametrize("task", [CLASSES, NUMBER], ids=["classes", "number"])
def test_an_old_run_has_neither_unlabelled_text_nor_copies(task: dict[str, Any]) -> None:
    upgraded = upgrade_old(task=task)
    assert (upgraded.task.unlabelled, upgraded.task.unlabelled_share, upgraded.task.missing) == (None, 0.5, "drop")
    assert upgraded.augment == {"name": "none"}
    old = instantiate(upgraded.task)
    assert (old.has_unlabelled, old.auto_unlabelled, old.bank) == (False, False, None)
    kept = upgrade_old(task={**task, "unlabelled": "texts.txt"}, augment={"name": "other"})
    assert (kept.task.unlabelled, kept.augment.name) == ("texts.txt", "other")


def test_a_task_over_a_vocabulary_gets_no_option_of_rows() -> None:
    assert "unlabelled" not in upgrade_old(task=VOCABULARY).task
