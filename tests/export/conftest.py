"""The toy bundles of a device."""

from tests.edge.conftest import write

__all__ = ["write"]
