"""The objects that the configuration of an earlier run may create, because the run may be a stranger's.

These are the objects that our YAML files name, those of the command itself, and with `trust=[my_package]` the classes
and functions of that package. Code that comes with weights runs with `trust=[PATH]`, the path or id of the weights.
"""

import importlib
import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from omegaconf import DictConfig, OmegaConf

from distill.errors import OptionError, UserError
from distill.jobs.conf import known_targets, walk_mappings
from distill.options import show_value

_WEIGHTS = ("path", "paths", "tokenizer", "encoder")  # Options that name weights or files beside them.


def read_trust(config: DictConfig) -> list[str]:
    """Returns what the command trusts.

    Raises:
        UserError: for other values than a list of names.
    """
    value = OmegaConf.to_container(config.trust, resolve=True) if OmegaConf.is_list(config.trust) else config.trust
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(name, str) and name for name in value):
        return value
    raise OptionError("trust", show_value(value), "a list of packages and of weights, like [my_package]")


def targets(config: DictConfig) -> set[str]:
    """Returns every `_target_` of the configuration of a command, which the user has typed or written."""
    content = OmegaConf.to_container(config, resolve=False)
    return {str(node["_target_"]) for _, node in walk_mappings(content) if "_target_" in node}


def check_targets(config: DictConfig, *, source: object, trust: Sequence[str], own: Collection[str] = ()) -> None:
    """Checks every object that a saved configuration names, before one of them is created.

    Args:
        config: without references.
        source: the file that it is from, for messages.
        trust: packages, and paths or ids of weights.
        own: further names that may be created, those of the command itself.

    Raises:
        UserError: for an object that is not known and not trusted.
    """
    for name, node in walk_mappings(OmegaConf.to_container(config, resolve=False)):
        if "_target_" in node:
            _check_target(node["_target_"], f"{name}._target_", source, trust, own)
        if node.get("trust_remote_code") not in (None, False):
            _check_remote_code(node, f"{name}.trust_remote_code", source, trust)


def _check_target(target: object, option: str, source: object, trust: Sequence[str], own: Collection[str]) -> None:
    if not isinstance(target, str):
        raise UserError(f"{source} is damaged: {option} is {show_value(target)}, expected the name of an object")
    if target in own or target in known_targets():
        return
    package = next((package for package in trust if target.startswith(f"{package}.")), None)
    if package is None:
        first = target.partition(".")[0]
        raise UserError(
            f"{source} would run {option}={target}, which no YAML of distill names: if you trust the run and that "
            f"code, add trust=[{first}]"
        )
    found = _find(target, package)
    module = getattr(found, "__module__", None)
    if not (inspect.isclass(found) or inspect.isroutine(found)) or not _is_inside(module, package):
        raise UserError(
            f"{source} would run {option}={target}, which is no class or function of {package} itself but "
            f"{_describe(found)}: expected one of {package}, or of a package that trust= names too"
        )


def _find(target: str, package: str) -> object:
    """Returns the object of a name, whose modules are all inside a package that is trusted; None if it is missing."""
    if not re.fullmatch(r"\w+(\.\w+)+", target):
        return None
    try:
        found: object = importlib.import_module(package)
        path = package
        for name in target[len(package) + 1 :].split("."):
            path = f"{path}.{name}"
            if inspect.ismodule(found) and found.__name__ == path.rpartition(".")[0] and not hasattr(found, name):
                importlib.import_module(path)
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found


def _is_inside(module: object, package: str) -> bool:
    return isinstance(module, str) and (module == package or module.startswith(f"{package}."))


def _describe(found: object) -> str:
    if found is None:
        return "missing"
    if inspect.ismodule(found):
        return f"the module {found.__name__}"
    if inspect.isclass(found) or inspect.isroutine(found):
        return f"one of {getattr(found, '__module__', None) or 'Python'}"
    return f"an object of {type(found).__name__}"


def _check_remote_code(node: Mapping[str, object], option: str, source: object, trust: Sequence[str]) -> None:
    missing = [place for name in _WEIGHTS for place in _places(node.get(name)) if place not in trust]
    if missing:
        raise UserError(
            f"{source} would run Python code that comes with {missing[0]}, because of {option}: if you trust it, add "
            f"trust=[{','.join(missing)}]"
        )


def _places(value: object) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _places(inner)
    elif value is not None:
        yield str(value)
