"""Knowledge distillation for text encoders: from a large teacher to a small ONNX student, measured."""

__version__ = "0.1.0"
