"""Tests that no request makes the service fail or leads it outside its directory, with fewer than the benchmark has."""

import json
import os
import subprocess
import sys

from benchmarks import service_fuzz


def test_no_drawn_request_fails_or_leads_outside() -> None:
    count = os.environ.get("DISTILL_FUZZ", "40")
    command = [sys.executable, service_fuzz.__file__, "--requests", count, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcome = json.loads(done.stdout)
    assert outcome["faults"] == []
    assert done.returncode == 0
    assert outcome["requests"] >= int(count)
    assert outcome["accepted"] >= 2  # Two are taken before the first drawn request.
    assert len(outcome["statuses"]) > 3
