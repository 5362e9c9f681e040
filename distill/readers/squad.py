"""Questions about contexts in the nested JSON of SQuAD 1.1 and 2.0."""

import json
from pathlib import Path
from typing import Any

from distill.errors import UserError, first_line
from distill.readers.lines import iterate_lines


def read_articles(path: Path) -> list[dict[str, Any]]:
    """Returns a row for each question of `qas`, with its `context` and the `title` of its article if it has one.

    Raises:
        UserError: for JSON of another form, and for a file without questions.
    """
    try:
        content = json.loads("".join(iterate_lines(path)))
        rows = [
            {"context": paragraph["context"], **({"title": article["title"]} if "title" in article else {}), **question}
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {first_line(error)}") from error
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not in the format of SQuAD ({type(error).__name__}: {first_line(error)}), expected "
            '{"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}; give rows as .jsonl'
        ) from error
    if not rows:
        raise UserError(f"{path} has no questions")
    return rows
