"""Growth of the time and the memory of a distillation with the number of examples.

    python benchmarks/scaling.py --data DIR --teacher DIR [--sizes 4000,16000,64000] [--json]

Each size is one epoch of distill as in benchmarks/throughput.py, with an empty cache and in a process of its own.
`--teacher` is a BERT that is fine-tuned on SST-2.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import throughput
from rich.console import Console
from rich.table import Table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=throughput.resolve_path)
    parser.add_argument("--teacher", required=True, type=throughput.resolve_path)
    parser.add_argument("--sizes", default="4000,16000,64000")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    options.epochs, options.teacher_precision = 1, "float32"
    rows = []
    with contextlib.ExitStack() as stack:
        options.work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for size in map(int, options.sizes.split(",")):
            options.examples = size
            cache = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            rows.append({"examples": size, **throughput.run_contestant(options, "distill", options.teacher, cache)})
    # The fixed cost is the time at zero examples on the line through the first and the last size.
    sizes, seconds = (np.array([row[key] for row in rows]) for key in ("examples", "seconds"))
    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    fixed = seconds[0] - slope * sizes[0]
    table = Table(title="One epoch, teacher pass included")
    for column in ("examples", "seconds", "ms an example", "without the fixed cost", "peak MB", "padding"):
        table.add_column(column, justify="right")
    for row in rows:
        row["ms_an_example"] = 1e3 * row["seconds"] / row["examples"]
        variable = 1e3 * (row["seconds"] - fixed) / row["examples"]
        table.add_row(
            f"{row['examples']:,}", f"{row['seconds']:.1f}", f"{row['ms_an_example']:.3f}", f"{variable:.3f}",
            f"{row['peak_rss_mb']:,.0f}", f"{row['padding']:.1%}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    growth = rows[-1]["peak_rss_mb"] - rows[0]["peak_rss_mb"]
    ratio = seconds[-1] / seconds[0] / (sizes[-1] / sizes[0])
    print(f"Fixed cost {fixed:.1f} s; time relative to proportional growth {ratio:.2f}; memory {growth:+.0f} MB")
    if options.json:
        print(json.dumps({"rows": rows, "proportion": ratio, "fixed_seconds": fixed, "memory_growth_mb": growth}))


if __name__ == "__main__":
    main()
