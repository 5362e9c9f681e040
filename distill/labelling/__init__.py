"""Labels from a language model at an endpoint: questions, answers, their probabilities, and their cost."""
