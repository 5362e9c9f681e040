"""Whether the file that +student=auto recommends is the best, and whether its score on test is what dev promises.

    python -m benchmarks.chosen_student path/to/sweep

`sweep` is the directory of a finished `+student=auto` for classes with a test, whose runs are where they were written.
Dev and test are drawn anew from the rows of both, 20 times: the choice of each draw is made on its dev, and scored on
its test. The predictions are those of the recommended files.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow.parquet

from distill.records.choice import Candidate, Choice
from distill.training.statistics import wilson_interval

SAMPLES = 20


def read_right(candidate: Candidate) -> tuple[np.ndarray, np.ndarray]:
    """Returns which rows of dev and test are of dev, and which the recommended file predicts rightly, both `[N]`."""
    rows = pyarrow.parquet.read_table(candidate.directory / "predictions.parquet").to_pylist()
    rows = [row for row in rows if row["split"] in ("dev", "test")]
    right = [row[f"{candidate.format}_prediction"] == row["label"] for row in rows]
    return np.array([row["split"] == "dev" for row in rows]), np.array(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    choice = Choice.read(parser.parse_args().sweep)
    assert choice is not None
    is_dev, _ = read_right(choice.candidates[0])
    right = np.array([read_right(candidate)[1] for candidate in choice.candidates])
    costs = [candidate.ms or candidate.mb for candidate in choice.candidates]

    def choose(dev: np.ndarray) -> int:
        reached = right[:, dev].mean(axis=1)
        good = np.flatnonzero(100 * (reached.max() - reached) <= choice.tolerance + 1e-9).tolist()
        return min(good, key=costs.__getitem__)

    for candidate, of in zip(choice.candidates, right, strict=True):
        print(f"{candidate.name:22} dev {of[is_dev].mean():.4f} test {of[~is_dev].mean():.4f} {candidate.ms} ms")
    chosen, tested = choose(is_dev), right[:, ~is_dev].mean(axis=1)
    lead = 100 * (tested.max() - tested[chosen])
    print(f"chosen {choice.candidates[chosen].name}: {lead:.1f} points behind the best on test")
    random, inside, behind = np.random.default_rng(0), 0, []
    for _ in range(SAMPLES):
        dev = random.permutation(is_dev)
        taken = choose(dev)
        low, high = wilson_interval(float(right[taken, dev].mean()), int(dev.sum()))
        reached = right[:, ~dev].mean(axis=1)
        inside += bool(low <= reached[taken] <= high)
        behind.append(100 * (reached.max() - reached[taken]))
    print(
        f"{inside} of {SAMPLES} draws inside the interval of dev; {np.mean(behind):.2f} points behind the best on test"
    )


if __name__ == "__main__":
    main()
