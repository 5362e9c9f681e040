"""Texts as they are compared with others."""


def normalize_text(text: str) -> str:
    """Returns a text as it is compared with others, without its case and its white space."""
    return " ".join(text.casefold().split())
