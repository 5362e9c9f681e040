"""Has the file of each model type the outputs of torch at every length, in float32 and int8, padded on either side?

    python benchmarks/parity.py [modernbert eurobert ...]

Models of four layers with random weights and the head for texts, by default those types of `tests/models/test_types.py`
whose students are exported. Each length from 3 to 78 tokens is read alone, and in a batch of three texts. The columns
are the largest difference of a logit to torch in float32, as a share of the largest logit: of texts alone, of batches
that are padded on the right and on the left, and of the int8 file for the same texts, by the recipe `smoothed`.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from distill.edge.bundle_files import session, this_target, weight_bits
from distill.export.onnx import export_model
from distill.export.quantization import RECIPES, RecipeInput
from distill.models.forward import exported_inputs, run_exported
from tests.conftest import randomize
from tests.models import test_types

LENGTHS = range(3, test_types.LONGEST - 1)  # The positions of some begin behind that of the padding.
BATCH, END = 3, 3


def draw(random: np.random.Generator, tokens: int, batch: int, length: int, side: str) -> dict[str, np.ndarray]:
    """Returns random texts, the first of so many tokens and the others shorter, which are padded on a side.

    Each ends with the token that ends a text, which the head of a BART reads.
    """
    ids = random.integers(5, tokens, (batch, length))
    mask = np.ones_like(ids)
    for row in range(batch):
        padding = random.integers(0, length - 2) if row else 0
        mask[row, slice(length - padding, None) if side == "right" else slice(padding)] = 0
        ids[row, np.flatnonzero(mask[row])[-1]] = END
    ids[mask == 0] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


@torch.no_grad()
def compare(model: Any, file: Any, names: list[str], tokens: int, *, batch: int, side: str) -> float:
    """Returns the largest difference of a file to torch over all lengths, as a share of the largest logit."""
    random, largest, scale = np.random.default_rng(0), 0.0, 0.0
    for length in LENGTHS:
        feed = {name: array for name, array in draw(random, tokens, batch, length, side).items() if name in names}
        expected = run_exported(model, {name: torch.from_numpy(array) for name, array in feed.items()}).numpy()
        largest = max(largest, float(np.abs(file.run(["logits"], feed)[0] - expected).max()))
        scale = max(scale, float(np.abs(expected).max()))
    return largest / scale


def measure(name: str, tokenizer: PreTrainedTokenizerBase) -> list[float]:
    """Returns the differences of a type."""
    model, tokens = randomize(test_types.create_model(name, tokenizer)), len(tokenizer)
    names = exported_inputs(model, tokenizer)
    ways: list[dict[str, Any]] = [{"batch": 1, "side": "right"}]
    ways += [{"batch": BATCH, "side": side} for side in ("right", "left")]
    with tempfile.TemporaryDirectory() as directory:
        fp32, int8 = Path(directory) / "model.onnx", Path(directory) / "model.int8.onnx"
        export_model(model, fp32, tokenizer=tokenizer, generates=False)
        texts = draw(np.random.default_rng(1), tokens, 8, test_types.LONGEST, "right")
        RECIPES["smoothed"].write(RecipeInput(fp32, weight_bits(this_target()), lambda: [texts]), int8)
        files = [session(path, 1) for path in (fp32, int8)]
        exact = [compare(model, files[0], names, tokens, **way) for way in ways]
        return [*exact, compare(model, files[1], names, tokens, **ways[0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    exported = [name for name, kind in test_types.TYPES.items() if not kind.refused and not kind.unexported]
    parser.add_argument("types", nargs="*", default=exported)
    tokenizer = test_types.create_tokenizer()
    table = Table(title=describe_machine())
    for column in ("type", "alone", "padded right", "padded left", "int8"):
        table.add_column(column)
    for name in parser.parse_args().types:
        try:
            row = [f"{difference:.1e}" for difference in measure(name, tokenizer)]
        except Exception as error:  # Of any library; the others are measured.
            row = [f"{type(error).__name__}: {error}".splitlines()[0][:90], "", "", ""]
        table.add_row(name, *row)
        print(name, *row, file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
