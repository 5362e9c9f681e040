"""Prediction with a bundle, which requires onnxruntime, tokenizers and numpy but not torch.

Both names are imported when they are first used, so that the light modules of this package need none of the three.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distill.edge.bundle import Bundle
    from distill.edge.index import Index

__all__ = ["Bundle", "Index"]


def __getattr__(name: str) -> Any:
    if name == "Bundle":
        from distill.edge.bundle import Bundle

        return Bundle
    if name == "Index":
        from distill.edge.index import Index

        return Index
    raise AttributeError(f"module 'distill.edge' has no attribute {name!r}")
