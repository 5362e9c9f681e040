"""Tokens a second of the server for several clients at once, compared with the same requests one after the other.

    python benchmarks/generating.py BUNDLE

Each round sends as many requests as there are clients, of TOKENS tokens each, first one after the other and then all at
once, or with `--apart` some milliseconds apart, so that every one joins texts that are being written. The bundle must
write texts of that many tokens: one that ends earlier counts as it is.
"""

import argparse
import asyncio
import json
import signal
import sys
import time

import numpy as np
from machine import describe_machine


async def write(port: int, prompt: str, tokens: int, *, wait: float = 0.0) -> int:
    """Has a text written after some seconds; returns its number of tokens."""
    await asyncio.sleep(wait)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": prompt, "max_new_tokens": tokens}).encode()
    writer.write(
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    )  # fmt: skip
    lines = (await reader.read()).decode().splitlines()
    writer.close()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return len(events[-1]["tokens"])


async def measure(port: int, prompts: list[str], tokens: int, *, at_once: bool, apart: float) -> float:
    """Returns the tokens a second of some clients, which begin some seconds apart where they are at once."""
    started = time.perf_counter()
    if at_once:
        clients = [write(port, prompt, tokens, wait=number * apart) for number, prompt in enumerate(prompts)]
        counts = await asyncio.gather(*clients)
    else:
        counts = [await write(port, prompt, tokens) for prompt in prompts]
    return sum(counts) / (time.perf_counter() - started)


async def run(options: argparse.Namespace) -> None:
    """Starts a server, and measures each number of clients in turns."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "distill.serve", options.bundle, "--port", "0", "--threads", str(options.threads),
        *(["--batch-size", str(options.batch_size)] if options.batch_size else []), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert server.stdout is not None
    while b"serving" not in (line := await server.stdout.readline()):
        print(line.decode(), end="")
    port = int(line.decode().rpartition(":")[2])
    await write(port, options.prompt, 2)
    for clients in options.clients:
        prompts = [f"{options.prompt} {number}" for number in range(clients)]
        ratios, rates = [], []
        for _ in range(options.rounds):
            apart = options.apart / 1000
            alone = await measure(port, prompts, options.tokens, at_once=False, apart=apart)
            together = await measure(port, prompts, options.tokens, at_once=True, apart=apart)
            ratios.append(together / alone)
            rates.append((alone, together))
        alone, together = np.median(rates, axis=0)
        print(
            f"{clients:3d} clients  {together:7.1f} tokens/s at once  {alone:7.1f} one after the other  "
            f"{np.median(ratios):.2f}x ({min(ratios):.2f}x to {max(ratios):.2f}x)", flush=True,
        )  # fmt: skip
    server.send_signal(signal.SIGTERM)
    await server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--apart", type=float, default=0.0, help="milliseconds between the clients' requests")
    parser.add_argument("--rounds", type=int, default=3, help="of both ways in turns; the median ratio is shown")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-size", type=int, help="texts that are written together; by default that of the bundle")
    options = parser.parse_args()
    print(describe_machine())
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
