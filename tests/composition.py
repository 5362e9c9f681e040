"""Composition of configurations without the work that Hydra repeats: half of the seconds of a command of a test."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.hydra import Hydra
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf, flag_override

ROOT = Path(__file__).resolve().parents[1]
FIXED = ("pkg://", "structured://", f"file://{ROOT / 'conf'}")  # The sources whose files no test changes.


@contextmanager
def quick_composition() -> Iterator[None]:
    """Reads each YAML once a process, and composes once a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", _load_config)
        patch.setattr(CachingConfigRepository, "__init__", _create_repository)
        patch.setattr(ConfigLoaderImpl, "_embed_result_config", staticmethod(_embed_config))
        patch.setattr(Hydra, "get_mode", _get_mode)
        patch.setattr(defaults_list, "_create_interpolation_map", _create_interpolation_map)
        yield


_LOAD_CONFIG = ConfigRepository.load_config
_GET_MODE = Hydra.get_mode
_INTERPOLATION_MAP = defaults_list._create_interpolation_map
_loaded = dict[tuple[str, str], bytes]()


def _load_config(repository: ConfigRepository, config_path: str) -> ConfigResult | None:
    """Returns a copy of the parsed file, because a composition takes its nodes. Pickle copies faster than `copy`."""
    source = repository._find_object_source(config_path, ObjectType.CONFIG)
    name = "" if source is None else f"{source.scheme()}://{source.path}"
    if not name.startswith(FIXED):
        return _LOAD_CONFIG(repository, config_path)
    if (name, config_path) not in _loaded:
        _loaded[name, config_path] = pickle.dumps(_LOAD_CONFIG(repository, config_path))
    result: ConfigResult = pickle.loads(_loaded[name, config_path])
    return result


def _create_repository(repository: CachingConfigRepository, delegate: ConfigRepository) -> None:
    """Copies the repository alone, whose list of sources is replaced, and not the sources."""
    repository.delegate, repository.cache = copy.copy(delegate), {}


def _embed_config(result: ConfigResult, package_override: str | None) -> ConfigResult:
    """Returns a configuration below the name of its package."""
    package = result.header["package"] if package_override is None else package_override
    if not package:
        return result
    config = OmegaConf.create()
    with flag_override(config, "no_deepcopy_set_nodes", True):
        OmegaConf.update(config, package, pickle.loads(pickle.dumps(result.config)), merge=False)
    embedded = copy.copy(result)
    embedded.config = config
    return embedded


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
