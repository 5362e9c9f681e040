"""Labels of a language model that are lost or paid twice, where its server fails and the labelling is killed.

    python -m benchmarks.labelling

A server of the tests replies to 5,000 texts. A fifth of its replies have one of ten faults, and SIGKILL ends the
labelling ten times at random. The table has the texts without a label, and those that were paid twice, as the server
counts them; the price is that of a dry run before, beside the sum of all replies.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.llm_server import FAULTS, LlmServer

PRICE = {"input": 0.15, "output": 0.60}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=10)
    arguments = parser.parse_args()
    chance = random.Random(0)
    faulty = {number: chance.choice(FAULTS) for number in range(arguments.texts) if chance.random() < 0.2}
    marks = iter(sorted(chance.sample(range(arguments.texts // 20, arguments.texts * 9 // 10), arguments.kills)))
    reached, mark = threading.Event(), [next(marks)]

    def fault(text: str, request: int) -> str | None:
        if len(server.paid) >= mark[0]:
            reached.set()
        return faulty.get(int(text.split()[2])) if request == 1 else None

    def answer(text: str) -> str:
        return json.dumps({"label": "refund" if "money" in text else "other"})

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place, LlmServer(answer, fault=fault) as server:
        lines = ["text"]
        for number in range(arguments.texts):
            words = " ".join(chance.choices(["please", "order", "parcel", "late"], k=chance.randrange(1, 60)))
            lines.append(f"{'money' if number % 2 else 'hello'} number {number} {words}")
        Path(place, "texts.csv").write_text("\n".join(lines))
        command = [
            sys.executable, "-m", "distill", "job=label", "data=texts.csv", f"label.endpoint={server.url}",
            "label.model=tiny", "label.classes={refund: asks for money back, other: anything else}",
            "label.price={input: 0.15, output: 0.60}", "label.timeout=2",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        dry = subprocess.run(
            [*command, "dry_run=true"], cwd=place, env=environment, capture_output=True, text=True, check=True
        )
        for _ in range(arguments.kills):
            process = subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.DEVNULL)
            reached.wait()
            process.send_signal(signal.SIGKILL)
            process.wait()
            mark[0] = next(marks, arguments.texts)
            reached.clear()
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=True)
        labels = [json.loads(line) for line in Path(place, "labels.jsonl").read_text().splitlines()]
        right = sum(row["label"] == json.loads(answer(row["text"]))["label"] for row in labels)
        expected = float(dry.stdout.partition("Price    $")[2].partition(" ")[0])
        paid = (PRICE["input"] * server.usage[0] + PRICE["output"] * server.usage[1]) / 1e6
        twice = sum(number > 1 for number in server.paid.values())
    print(done.stdout)
    print("| texts | faulty replies | kills | labels lost | labels wrong | paid twice | dry run | all replies | s |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    print(
        f"| {arguments.texts:,} | {len(faulty):,} | {arguments.kills} | {arguments.texts - len(labels)} | "
        f"{len(labels) - right} | {twice} | ${expected:.4f} | ${paid:.4f} | {time.monotonic() - started:.0f} |"
    )


if __name__ == "__main__":
    main()
