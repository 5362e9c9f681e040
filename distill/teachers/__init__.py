"""The teacher, fine-tuned if necessary, and the cache of its outputs."""
