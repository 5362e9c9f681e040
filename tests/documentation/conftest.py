"""The built site, and the module that writes the option reference."""

import importlib.util
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import distill

ROOT = Path(distill.__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def reference() -> Iterator[ModuleType]:
    """Returns the module that writes the option reference."""
    for package in ("griffe", "mkdocs"):
        pytest.importorskip(package, reason="the reference is written with the packages of the extra docs")
    file = ROOT / "docs" / "hooks" / "options.py"
    specification = importlib.util.spec_from_file_location("option_reference", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["option_reference"] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["option_reference"]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of the site, built without a warning and without a connection."""
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package, reason="the site is built with the packages of the extra docs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    def refuse(*arguments: object) -> None:
        raise OSError("the build opened a connection")

    directory = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.chdir(ROOT)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(directory), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    return directory
