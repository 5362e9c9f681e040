"""Prediction with a bundle, which requires onnxruntime, tokenizers and numpy but not torch.

`Bundle` and `Index` are imported when they are first used, because the light modules beside them need none of these.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distill.edge.bundle import Bundle
    from distill.edge.index import Index


__all__ = ["Bundle", "Index"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'distill.edge' has no attribute {name!r}")
    return getattr(import_module(f"distill.edge.{name.lower()}"), name)
