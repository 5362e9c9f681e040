"""Gives the search dialog of the theme a name for screen readers."""

from typing import Any

DIALOG = 'data-md-component="search" role="dialog"'


def on_post_page(output: str, **options: Any) -> str:
    """Returns the page with the name."""
    return output.replace(DIALOG, f'{DIALOG} aria-label="Search"')
