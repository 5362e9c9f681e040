"""Names by which a server may be addressed."""

import ipaddress
from collections.abc import Collection


def is_known_host(host: str | None, hosts: Collection[str] | None) -> bool:
    """Returns whether a server may be addressed so: with any of `hosts`, as localhost, or by a loopback address.

    A page whose name leads to this machine could otherwise ask the server. Browsers always name the host.
    """
    if hosts is None or host is None:
        return True
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.lower().removesuffix(".")
    return name in hosts or is_loopback(name)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
