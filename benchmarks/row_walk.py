"""How many files of the package does one row of a CSV file pass, from the file to the loss of a student?

    python benchmarks/row_walk.py

Reads, tokenizes and batches the rows of a small file, runs a toy student and computes hard labels and soft targets of a
toy teacher. Prints the files whose functions are called on the way, and counts them and the pairs of files of which the
second one is entered again from the first. Options, console and errors do not count, which every file may call.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "distill"
ASIDE = ("options.py", "console.py", "errors.py")
ROWS = "text,label\n" + "".join(
    f"a {word} film {number},{label}\n" for label, word in enumerate(("good", "bad")) for number in range(8)
)


def main() -> None:
    """Prints the files in the order in which they are entered first, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="another checkout")
    root = parser.parse_args().root
    sys.path.insert(0, str(root))
    with tempfile.TemporaryDirectory() as directory:
        walk_row(Path(directory))  # Imports what is imported late.
        entered = record(root / PACKAGE, lambda: walk_row(Path(directory)))
    files = list(dict.fromkeys(entered))
    print("\n".join(files))
    print(f"files {len(files)}, returns {count_returns(entered)}")


def walk_row(directory: Path) -> None:
    """Takes rows from a CSV file to the loss."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from distill.data import batches
    from distill.kinds import Classification
    from distill.losses import HardLabels, Objective, SoftTargets
    from distill.teachers.signal import Live
    from distill.text.vocabulary import train_word_pieces
    from distill.training.module import DistillationModule

    (directory / "rows.csv").write_text(ROWS)
    task: Any = Classification(text="text", data=directory / "rows.csv", dev_fraction=0.25, max_length=16)
    tokenizer = train_word_pieces(["a good bad film"] * 4, 60)
    examples = task.encode(task.read(directory), tokenizer, None)
    [[batch, *_], *_] = batches.all_loaders(examples, batch_size=4)["train"]
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    student, teacher = (BertForSequenceClassification(config) for _ in range(2))
    objective = Objective(soft=SoftTargets(), hard=HardLabels())
    signal = Live(teacher, task, objective, reason="a walk")
    module = DistillationModule(student=student, objective=objective, task=task, signal=signal)
    assert torch.isfinite(module.losses(batch)[0])


def record(package: Path, walk: Any) -> list[str]:
    """Returns the files of the package in the order of the calls, one that is called several times in a row once."""
    entered: list[str] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(package):
            name = str(path.relative_to(package))
            if name not in ASIDE and entered[-1:] != [name]:
                entered.append(name)

    sys.setprofile(profile)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return entered


def count_returns(entered: list[str]) -> int:
    """Returns how often a file is entered again from another one, each pair of files counted once."""
    seen: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    for before, name in zip(["", *entered], entered, strict=False):
        if name in seen:
            pairs.add((before, name))
        seen.add(name)
    return len(pairs)


if __name__ == "__main__":
    main()
