"""Prediction with a bundle, which requires onnxruntime, tokenizers and numpy but not torch."""

from distill.edge.bundle import Bundle
from distill.edge.index import Index

__all__ = ["Bundle", "Index"]
