"""The start of a bundle in a process of its own: seconds until the first answer, and the peak of its memory."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict, cast

from distill.edge.decoder import Record
from distill.errors import UserError

# The peak of this program alone; `ru_maxrss` would begin with that of the process that starts it.
PROGRAM = """
import json, sys, time
begun = time.perf_counter()
from distill.edge import Bundle
imported = time.perf_counter()
bundle = Bundle(sys.argv[1], model=sys.argv[2], threads=int(sys.argv[3]))
loaded = time.perf_counter()
bundle.predict([json.loads(sys.argv[4])])
answered = time.perf_counter()
try:
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
except OSError:
    peak = None
print(json.dumps({
    "import_s": imported - begun, "load_s": loaded - imported, "first_answer_s": answered - loaded,
    "peak_bytes": peak,
}))
"""


class StartCost(TypedDict):
    """Seconds of a bundle's start, and its memory.

    Attributes:
        total_s: from the start of Python to the answer.
        import_s: of the import of `distill.edge`.
        load_s: of loading the bundle, with the SHA-256 of its files.
        first_answer_s: of one record.
        peak_bytes: the peak of resident memory; None where the system does not tell.
    """

    total_s: float
    import_s: float
    load_s: float
    first_answer_s: float
    peak_bytes: int | None


def measure_start(bundle: Path, model: str, *, threads: int, record: Record) -> StartCost:
    """Starts a process that loads a bundle and answers one record.

    Raises:
        UserError: if it fails.
    """
    command = [sys.executable, "-c", PROGRAM, str(bundle), model, str(threads), json.dumps(record)]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        reason = next(iter(done.stderr.strip().splitlines()[-1:]), "")
        raise UserError(f"{bundle} cannot be started with the model {model}: {reason}")
    return cast(StartCost, {"total_s": seconds, **json.loads(done.stdout)})
