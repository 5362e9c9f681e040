"""Throughput and losses of the server under load, compared with serving one record at a time.

    python benchmarks/serving.py BUNDLE

Each variant is a server of its own, and the two take turns. CLIENTS connections send one text after the other, until
REQUESTS are answered in all. Every answer is compared with `Bundle.predict` of the text alone. At the end, servers are
stopped by SIGTERM while the clients send, five times.
"""

import argparse
import asyncio
import json
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from machine import describe_machine

from distill.edge import Bundle

SENTENCE = "the film is a moving and quietly funny story of two people who find each other"


@dataclass
class Load:
    """The answers that the clients got."""

    statuses: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    wrong: int = 0
    largest: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return sum(self.statuses.values()) / self.seconds


def make_texts(number: int) -> list[str]:
    """Returns different texts of about 17 tokens."""
    random = np.random.default_rng(0)
    return [" ".join(random.permutation(SENTENCE.split())[:15]) for _ in range(number)]


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> tuple[int, bool, object]:
    """Sends one text; returns status, whether the connection ends, and the body."""
    body = json.dumps({"texts": [text]}).encode()
    writer.write(
        b"POST /predict HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    )  # fmt: skip
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = re.search(r"content-length: (\d+)", head)
    assert length is not None
    content = json.loads(await reader.readexactly(int(length[1])))
    return int(head.split()[1]), "connection: close" in head, content


async def run_client(port: int, texts: list[str], expected: dict[str, float], load: Load, end: int | None) -> None:
    """Sends texts until `end` answers came to all clients, or an answer ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while end is None or sum(load.statuses.values()) < end:
        text = texts[(number := number + 7) % len(texts)]
        started = time.perf_counter()
        try:
            status, is_last, content = await send(reader, writer, text)
        except (OSError, asyncio.IncompleteReadError):
            load.lost += 1
            return
        load.milliseconds.append(1000 * (time.perf_counter() - started))
        load.statuses[status] += 1
        if status == 200:
            [prediction] = content["predictions"]  # type: ignore[index]
            error = abs(prediction["probabilities"][prediction["label"]] - expected[f"{text} {prediction['label']}"])
            load.largest = max(load.largest, error)
            load.wrong += error > 0.05
        if is_last:
            return
    writer.close()


async def measure(options: argparse.Namespace, *arguments: str, clients: int, stop_after: int | None = None) -> Load:
    """Starts a server, loads it, and stops it by SIGTERM; with `stop_after`, while the clients send."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "distill.serve", options.bundle, "--port", "0", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    port = int((await server.stdout.readline()).decode().rpartition(":")[2])
    load, end = Load(), None if stop_after else options.requests
    started = time.perf_counter()
    work = asyncio.gather(*(run_client(port, options.texts, options.expected, load, end) for _ in range(clients)))
    if stop_after:
        while sum(load.statuses.values()) < stop_after:
            await asyncio.sleep(0.01)
        server.send_signal(signal.SIGTERM)
    await work
    load.seconds = time.perf_counter() - started
    if not stop_after:
        server.send_signal(signal.SIGTERM)
    code = await server.wait()
    p50, p99 = np.percentile(load.milliseconds, [50, 99])
    print(
        f"{' '.join(arguments) or 'default':40s} {clients:3d} clients  {load.rate:7.0f}/s  "
        f"p50 {p50:6.1f} ms  p99 {p99:6.1f} ms  {dict(load.statuses)}  lost {load.lost}  wrong {load.wrong}  "
        f"largest difference {load.largest:.4f}  exit code {code}", flush=True,
    )  # fmt: skip
    return load


async def run(options: argparse.Namespace) -> None:
    """Runs every variant."""
    for clients in options.clients:
        ratios = []
        for _ in range(options.rounds):
            alone = await measure(options, "--batch-records", "1", clients=clients)
            together = await measure(options, clients=clients)
            ratios.append(together.rate / alone.rate)
        spread = f"{min(ratios):.2f}x to {max(ratios):.2f}x"
        print(f"{clients} clients: what waits together is {np.median(ratios):.2f}x as fast ({spread})", flush=True)
    await measure(options, "--waiting", "16", clients=64)
    for _ in range(5):
        await measure(options, clients=64, stop_after=options.requests // 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=1, help="of both variants in turns; the median ratio is shown")
    options = parser.parse_args()
    print(describe_machine())
    options.texts = make_texts(500)
    predictions = [Bundle(options.bundle).predict([text])[0] for text in options.texts]
    options.expected = {
        f"{text} {label}": value
        for text, prediction in zip(options.texts, predictions, strict=True)
        for label, value in prediction["probabilities"].items()
    }
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
