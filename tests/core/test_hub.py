"""Requests to the Hub that fail."""

import datasets
import pytest

from distill.core import storage
from distill.core.errors import UnreachableError


def test_one_timeout_does_not_leave_later_runs_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def check_file(*arguments: object, **options: object) -> None:
        if not asked:
            raise UnreachableError("the Hub does not respond")

    def load_dataset(*arguments: object, **options: object) -> str:
        asked.append(datasets.config.HF_HUB_OFFLINE)
        return "data"

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(storage, "check_hub_file", check_file)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert [storage.load_hub_dataset("owner/name", "data set", advice="") for _ in range(2)] == ["data", "data"]
    assert asked == [True, False]


def test_a_data_set_may_have_a_revision_and_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(storage, "check_hub_file", lambda *names, **options: calls.append((names, options)))
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **options: calls.append((names, options)))
    storage.load_hub_dataset("owner/name@refs/convert/parquet:small", "data set", advice="")
    assert calls == [
        (("owner/name", ".gitattributes"), {"kind": "dataset", "revision": "refs/convert/parquet"}),
        (("owner/name", "small"), {"revision": "refs/convert/parquet"}),
    ]
