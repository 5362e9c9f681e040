"""The options of `python -m distill.edge`, in groups of what they are for."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distill.edge.generation_options import SIDES

GENERATE, SEARCH = "generate", "search"  # Before the texts.
# The options that `generate` alone has.
GENERATION = ("max_new_tokens", "temperature", "top_p", "seed", "beams", "stop", "repetition_penalty", "truncate")
Add = Callable[..., Any]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options and the texts of a command."""
    parser = argparse.ArgumentParser(prog="python -m distill.edge", description="Predict with an exported bundle.")
    parser.add_argument("bundle", help="directory with bundle.json")
    parser.add_argument(
        "text", nargs="*",
        help="texts, or texts separated by tabs: the two of a pair, or a question and its choices; by default lines of "
        f"standard input. After {GENERATE} they are prompts, and after {SEARCH} queries",
    )  # fmt: skip
    for title, description, add_options in (
        ("model", None, _add_model),
        ("input and output", None, _add_formats),
        ("predictions", None, _add_predictions),
        (SEARCH, f"options after BUNDLE {SEARCH}, for a bundle of vectors", _add_search),
        (GENERATE, f"options after BUNDLE {GENERATE}, for a bundle that writes text", _add_generation),
        ("evaluation", "metrics on labelled rows, in place of predictions", _add_evaluation),
        ("page", "a page for browsers, in place of predictions", _add_page),
    ):
        add_options(parser.add_argument_group(title, description).add_argument)
    return parser.parse_intermixed_args(arguments)  # Options may stand between the texts.


def _add_model(add: Add) -> None:
    add("--model", help="such as fp32, int8 or openvino; by default the recommended one")
    add("--threads", type=int, help="number of threads; by default one for each usable core")
    add("--batch-size", type=int, help="texts in a forward pass; by default as many as the bundle recommends")
    add(
        "--max-length", type=int, metavar="N",
        help="tokens that texts are cut to, fewer than the bundle reads: a long text then takes less time and memory",
    )  # fmt: skip


def _add_formats(add: Add) -> None:
    add("--json", action="store_true", help="one JSON object a line, with all probabilities")
    add(
        "--jsonl", action="store_true",
        help='each line is a record in JSON, such as {"question": ..., "context": ...}, and gives a JSON object',
    )  # fmt: skip
    add(
        "--refuse-long", action="store_true",
        help="end at a text of more tokens than the bundle reads, and do not cut it",
    )  # fmt: skip


def _add_predictions(add: Add) -> None:
    add(
        "--top-k", type=int, metavar="K",
        help=f"pieces for each mask, of a bundle that fills masks; with {GENERATE}: sample from the K best tokens; "
        f"with {SEARCH}: texts to find, by default 10",
    )  # fmt: skip
    add(
        "--rounds", type=int, metavar="T",
        help="of predictions of the masks of a text, each of which masks the least certain tokens again; by default 1, "
        "or as many as the bundle has",
    )  # fmt: skip
    add(
        "--lengths", type=int, metavar="N",
        help="likeliest lengths of a text to write, of which the best text is taken, of a bundle that predicts lengths",
    )  # fmt: skip
    add("--explain", action="store_true", help="what the probability of a text's class loses without each of its words")


def _add_search(add: Add) -> None:
    add("--corpus", type=Path, metavar="FILE", help="the texts among which to search, one on each line")


def _add_evaluation(add: Add) -> None:
    add(
        "--evaluate", type=Path, metavar="FILE",
        help="labelled rows as the task was trained from: .csv, .tsv, .jsonl, .parquet, for tags also CoNLL, and for "
        "questions also the JSON of SQuAD",
    )  # fmt: skip
    add("--text-column", action="append", metavar="NAME", help="of a text; again for each further one")
    add(
        "--as-text", action="store_true",
        help="for tags: predict the text of the words, which the bundle splits itself",
    )  # fmt: skip
    add(
        "--label-column", action="append", metavar="NAME",
        help="of the label; again for each further label that has a column of 0 and 1. Columns of CoNLL are numbers",
    )  # fmt: skip


def _add_generation(add: Add) -> None:
    add("--max-new-tokens", type=int, metavar="N", help="tokens to write at most; by default as many as the bundle has")
    add("--temperature", type=float, metavar="T", help="sample; by default the most probable token is taken each time")
    add("--top-p", type=float, metavar="P", help="sample from the fewest tokens that have P of the probability")
    add("--seed", type=int, metavar="N", help="repeat the sampled tokens")
    add("--beams", type=int, metavar="N", help="sequences of a beam search")
    add("--stop", action="append", metavar="TEXT", help="end before this text; again for each further one")
    add("--repetition-penalty", type=float, metavar="X", help="more than 1 makes tokens that were there less probable")
    add("--truncate", choices=SIDES, help="end at which to cut a prompt of more tokens than the model has positions")
    add("--stream", action="store_true", help="write pieces as they come, with line breaks as they are")


def _add_page(add: Add) -> None:
    add("--web", action="store_true", help="write the page; the text is the folder's name")
    add("--single-file", action="store_true", help="one HTML file in place of a folder")
    add("--libraries", type=Path, default=Path("node_modules"), help="of JavaScript, default %(default)s")
