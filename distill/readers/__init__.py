"""Rows of CSV, TSV and JSONL, lines of text, and the meaning of labels, as training and devices read them alike."""
