"""How distill is installed: the names of its distribution and its wheel, and the command that adds an extra."""

import json
from pathlib import Path

from distill import __version__

PACKAGE = Path(__file__).resolve().parent
DISTRIBUTION = "distill-encoders"
WHEEL = f"{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"


def is_checkout() -> bool:
    """Returns whether this package is run from a checkout, where `conf` is beside it and not inside."""
    return not (PACKAGE / "conf").is_dir()


def config_directory() -> Path:
    """Returns the directory `conf`, which is in the package in a wheel and beside it in a checkout."""
    return (PACKAGE.parent if is_checkout() else PACKAGE) / "conf"


def install_command(extra: str) -> str:
    """Returns the command that installs an extra of distill, which no package index has.

    It names the checkout, or what pip has noted as the origin of the installed distribution (direct_url.json): a wheel,
    a directory or a repository.
    """
    if is_checkout():
        return f"pip install -e '{PACKAGE.parent}[{extra}]'"
    origin = _read_origin()
    if origin is None:
        return f"pip install 'PATH/TO/{WHEEL}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}] @ {origin}'"


def _read_origin() -> str | None:
    """Returns the URL that distill was installed from, as pip takes it; None if the installer noted none."""
    from importlib import metadata  # It is slow to import, and read for a message alone.

    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if text is None:
        return None
    noted = json.loads(text)
    repository = noted.get("vcs_info")
    return f"{repository['vcs']}+{noted['url']}@{repository['commit_id']}" if repository else str(noted["url"])
