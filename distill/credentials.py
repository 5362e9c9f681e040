"""Passwords in URLs: found, hidden and refused, because runs and reports are shared."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.-]*://"
_URL = re.compile(rf"{_SCHEME}(?:(?!{_SCHEME})\S)*")
_SECRET_NAME = re.compile(
    r"(token|secret|signature|password|passwd|credentials?|(access|account|api)_?key(_?id)?)$"
    r"|(^|[-_.])(sig|key|pass|pwd|auth)$",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"(?<=[?&;#])(?P<name>[^=?&;#\s]+)=(?P<value>[^&;#\s]+)")
HIDDEN = "***"


def hide_secrets(text: str) -> str:
    """Returns a text in which passwords of URLs are `***`: of a user, and of parameters such as `?token=`."""
    return _URL.sub(lambda url: _hide(url.group()), text)


def has_secret(text: str) -> bool:
    """Returns whether a text has a URL with a password."""
    return hide_secrets(text) != text


def _hide(url: str) -> str:
    scheme, _, rest = url.partition("://")
    end = re.search(r"[/?#]", rest)
    host = rest[: end.start()] if end else rest
    if "@" not in host and re.search(r":(?!\d*$)[^]]*$", host):  # A password with a slash ends the host too early.
        host = rest.rpartition("@")[0] + "@" if "@" in rest else host
    rest = rest[len(host) :]
    user, at, name = host.rpartition("@")
    if at:
        account, colon, password = user.partition(":")
        if scheme.lower() in ("http", "https"):  # A token may be the user.
            user = HIDDEN
        elif colon and password:
            user = f"{account}:{HIDDEN}"
    return f"{scheme}://{user}{at}{name}{_PARAMETER.sub(_hide_parameter, rest)}"


def _hide_parameter(found: re.Match[str]) -> str:
    name = found["name"]
    return f"{name}={HIDDEN}" if _SECRET_NAME.search(unquote(name)) else found.group()


def describe_refusal(option: str, text: str) -> str | None:
    """Returns why an option is refused whose value has a URL with a password; None if it has none."""
    if not has_secret(text):
        return None
    scheme = next(url.group() for url in _URL.finditer(text) if has_secret(url.group())).partition("://")[0]
    variable = f"FSSPEC_{re.sub(r'[^A-Z0-9]', '_', scheme.upper())}_PASSWORD"
    if option.rpartition(".")[2] == "tracking_uri":
        instead = "set MLFLOW_TRACKING_URI instead, which no file names"
    elif scheme.lower() in ("http", "https"):
        instead = "download the files and give their path"
    else:
        instead = f"leave it out of the URL and set {variable}, or the variables that the package of the storage reads"
    return (
        f"{option} has a URL with a password or a token, which config.yaml, run.json and names of directories would "
        f"show: {instead}"
    )


def find_texts(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields every text in mappings and lists with its full name, such as `task.data_dir`."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str):
                yield name, key
            yield from find_texts(inner, f"{name}.{key}" if name else str(key))
