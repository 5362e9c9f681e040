"""Labelled rows: tables, the Hub, the built-in sentences, tokens and batches."""
