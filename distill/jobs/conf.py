"""The objects that our YAML files create, by their names."""

from collections.abc import Iterator
from functools import cache

from distill.installation import config_directory


@cache
def known_targets() -> frozenset[str]:
    """Returns every `_target_` of our YAML files. Those of Hydra's own plugins are not part of a run."""
    import yaml  # type: ignore[import-untyped]

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: set[str] = set()
    for path in sorted(config_directory().rglob("*.yaml")):
        if path.relative_to(config_directory()).parts[0] != "hydra":
            content = yaml.load(path.read_text(encoding="utf-8"), loader)
            found |= {str(node["_target_"]) for name, node in walk_mappings(content) if "_target_" in node}
    return frozenset(found)


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
