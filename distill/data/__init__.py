"""Labelled data: tables, the built-in sentences, tokens and batches."""
