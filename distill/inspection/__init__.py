"""Looks inside trained models: attention, heads, layers and predictions of one model, or of two beside each other.

Every question has a module with functions of tensors and arrays. `subjects` opens the models and runs them over a
split, `inspection` asks all questions, and `report` writes the page.
"""
