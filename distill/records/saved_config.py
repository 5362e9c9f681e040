"""The config.yaml of a run, which may come from somebody else: it is read as plain values alone.

It has neither references nor aliases, which could stand for gigabytes in a few bytes. A run writes none of them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from distill.errors import UserError, first_line
from distill.storage.files import write_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIG = "config.yaml"
DEEPEST = 50  # Mappings and lists in each other.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # In C it takes a tenth of the time.
_OPENING = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def write_config(directory: Path, config: "DictConfig") -> None:
    """Writes the configuration of a run with the values that its references stand for."""
    from omegaconf import OmegaConf

    write_text(directory / CONFIG, OmegaConf.to_yaml(config, resolve=True))


def read_plain(path: Path) -> dict[str, Any]:
    """Returns the content of a config.yaml.

    Raises:
        UserError: if it cannot be read, is no mapping, or has aliases.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _check_events(text)
        content = yaml.load(text, _LOADER)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it is no mapping")
    return content


def read_config(path: Path) -> "DictConfig":
    """Returns the configuration that a run was started with, as OmegaConf reads it.

    Raises:
        UserError: as `read_plain`, and if it has references.
    """
    from omegaconf import DictConfig, OmegaConf

    _check_references(read_plain(path), path)
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    return config


def _check_events(text: str) -> None:
    """Raises ValueError for YAML that a run does not write, before anything is built from it."""
    depth = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has the alias *{event.anchor}, and config.yaml of a run has no aliases")
        depth += isinstance(event, _OPENING) - isinstance(event, _CLOSING)
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} mappings and lists in each other")


def _check_references(value: object, path: Path) -> None:
    """Raises UserError for a value that stands for another one, or for one of the environment."""
    if isinstance(value, dict | list):
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_references(inner, path)
    elif isinstance(value, str) and "${" in value:
        raise UserError(f"{path} is damaged: it has the reference {value[:60]}, and config.yaml of a run has no ${{")
