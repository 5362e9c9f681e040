"""Predict with a bundle: onnxruntime, tokenizers and numpy, and never torch."""

from distill.edge.bundle import Bundle

__all__ = ["Bundle"]
