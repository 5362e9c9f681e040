"""Labelled data: files, checks, splits, tokens and batches."""
