"""Prediction with a bundle, which requires onnxruntime, tokenizers and numpy but not torch."""

from distill.edge.bundle import Bundle

__all__ = ["Bundle"]
