"""The objects that our YAML files create, by their names, and the files that a YAML file inherits from."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from distill.installation import config_directory


@cache
def known_targets() -> frozenset[str]:
    """Returns every `_target_` of our YAML files. Those of Hydra's own plugins are not part of a run."""
    found: set[str] = set()
    for path in sorted(config_directory().rglob("*.yaml")):
        if path.relative_to(config_directory()).parts[0] != "hydra":
            content = read_yaml(path)
            found |= {str(node["_target_"]) for name, node in walk_mappings(content) if "_target_" in node}
    return frozenset(found)


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the content of a YAML file, without that of the files that it inherits from."""
    import yaml  # type: ignore[import-untyped]

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader) or {}


def list_bases(path: Path) -> list[Path]:
    """Returns the YAML files of its own group that a file inherits from, in the order of its `defaults`."""
    named = [entry for entry in read_yaml(path).get("defaults", ()) if isinstance(entry, str) and entry != "_self_"]
    return [path.parent / f"{entry.partition('@')[0]}.yaml" for entry in named if not entry.startswith("/")]


def walk_mappings(value: object, name: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    """Yields every mapping in a value with its full name, such as `objective.terms.soft`; those of Hydra are left out.

    Items of a list are named by their number.
    """
    if isinstance(value, dict):
        yield name, value
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if (name, key) != ("", "hydra"):
                yield from walk_mappings(inner, f"{name}.{key}" if name else str(key))
