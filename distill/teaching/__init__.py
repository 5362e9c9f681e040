"""The teacher: fine-tuned or adopted, and its outputs, computed once."""
