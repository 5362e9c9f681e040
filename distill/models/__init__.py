"""Models of transformers: loading, forward passes, heads over a vocabulary and faster CPU kernels."""
