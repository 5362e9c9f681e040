"""Models of transformers: forward passes, heads over a vocabulary, quicker kernels for a CPU."""
