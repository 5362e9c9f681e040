"""Training: the module, its settings, checkpoints, progress and processes."""
