"""Composition of configurations without the work that Hydra repeats: half of the seconds of a command of a test."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hydra._internal import defaults_list
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.hydra import Hydra
from hydra.plugins.config_source import ConfigResult

ROOT = Path(__file__).resolve().parents[1]
FIXED = ("pkg://", f"file://{ROOT / 'conf'}")  # The sources whose files no test changes.


@contextmanager
def quick_composition() -> Iterator[None]:
    """Reads each YAML once a process, and composes once a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", _load_config)
        patch.setattr(Hydra, "get_mode", _get_mode)
        patch.setattr(defaults_list, "_create_interpolation_map", _create_interpolation_map)
        yield


_LOAD_CONFIG = ConfigRepository.load_config
_GET_MODE = Hydra.get_mode
_INTERPOLATION_MAP = defaults_list._create_interpolation_map
_loaded: dict[tuple[str, ...], ConfigResult | None] = {}


def _load_config(repository: ConfigRepository, config_path: str) -> ConfigResult | None:
    """Returns a copy of the parsed file, because a composition takes its nodes."""
    sources = [f"{source.scheme()}://{source.path}" for source in repository.get_sources()]
    if not all(source.startswith((*FIXED, "structured://")) for source in sources):
        return _LOAD_CONFIG(repository, config_path)
    key = (*sources, config_path)
    if key not in _loaded:
        _loaded[key] = _LOAD_CONFIG(repository, config_path)
    return copy.deepcopy(_loaded[key])


def _get_mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
    """Returns None, as Hydra does after it has composed everything, unless something can set `hydra.mode`."""
    if any("hydra" in override or "experiment" in override for override in overrides):
        return _GET_MODE(hydra, config_name, overrides)
    return None


def _create_interpolation_map(overrides: Any, elements: list[Any], self_added: bool) -> Any:
    """Returns the choices that a defaults list refers to, or None where it refers to none and they are not read."""
    if any(element.is_interpolation() for element in elements if not element.is_self()):
        return _INTERPOLATION_MAP(overrides, elements, self_added)
    return None
