"""How exact and how cheap gpuctl's client is, beside a plain httpx2 client that was measured in the same run.

.venv/bin/python benchmarks/bench_client.py
.venv/bin/python benchmarks/bench_client.py --rates 100,200,400 --concurrency 64
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

SCENARIOS = (1, 4, 16)
"""Tokens a chunk, as speculation makes them."""
TOKENS = 128
TRUE_TOK_S = 100.0


def events(tokens: int, per_chunk: int) -> list[bytes]:
    """The stream of one answer, one event a chunk, in the shape of vLLM with continuous usage."""
    made = []
    for number in range(per_chunk, tokens + 1, per_chunk):
        usage = {"prompt_tokens": 20, "completion_tokens": number, "total_tokens": 20 + number}
        made.append({"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [{"index": 0, "delta": {"content": " word" * per_chunk}, "logprobs": None,
                                  "finish_reason": None}], "usage": usage})  # fmt: skip
    made.append({**made[-1], "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in made]


async def serve() -> None:
    """The truth: `POST /TOKENS/PER_CHUNK/TOK_S/v1/chat/completions` streams on an absolute schedule."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(row.split(":")[1]) for row in head.split("\r\n") if row.lower().startswith("content-length")
        )
        await reader.readexactly(length)
        tokens, per_chunk, tok_s = (float(word) for word in head.split(" ")[1].split("/")[1:4])
        pieces = events(int(tokens), int(per_chunk))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        began = loop.time() + 0.1
        for number, piece in enumerate(pieces[:-1]):
            # In the order of an engine's steps: a chunk comes when its last token is ready.
            await asyncio.sleep(max(0.0, began + number * per_chunk / tok_s - loop.time()))
            writer.write(piece)
        writer.write(pieces[-1] + b"data: [DONE]\n\n")
        writer.close()

    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def ours(url: str, requests: int, concurrency: int, tokens: int) -> dict[str, Any]:
    """gpuctl's own load."""
    from bench.client import Address
    from bench.load import Loader, Plan
    from inventory.machine import ignore

    plan = Plan(
        address=Address.of(url), model="m", prompts=("x",), max_tokens=tokens, requests=requests,
        concurrency=concurrency, warmups=0, think=None, nonce="n", timeout_s=120.0,
    )  # fmt: skip
    outcome = Loader(plan, ignore).run()
    rates = [one.sample.decode_tok_s for one in outcome.good if one.sample.decode_tok_s]
    return {"rates": rates, "tokens": outcome.tokens[0], "bound": outcome.client.bound}


def peer(url: str, requests: int, concurrency: int, tokens: int) -> dict[str, Any]:
    """What most clients do: lines from a library, N from usage, (N - 1) tokens after the first event."""
    import httpx2

    rates: list[float] = []
    total = 0
    lock = threading.Lock()
    left = iter(range(requests))

    def slot() -> None:
        nonlocal total
        with httpx2.Client(timeout=120) as client:
            while next(left, None) is not None:
                first = last = n = 0.0
                body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": tokens}
                with client.stream("POST", url + "/v1/chat/completions", json=body) as answer:
                    for line in answer.iter_lines():
                        if not line.startswith("data: {"):
                            continue
                        data = json.loads(line[6:])
                        n = data["usage"]["completion_tokens"]
                        if data["choices"][0]["delta"].get("content"):
                            last = time.perf_counter()
                            first = first or last
                with lock:
                    rates.append((n - 1) / (last - first))
                    total += int(n)

    threads = [threading.Thread(target=slot) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"rates": rates, "tokens": total, "bound": False}


CLIENTS = {"gpuctl": ours, "httpx2": peer}


def child(words: list[str]) -> None:
    """One client in a process of its own, so that its CPU time is its own."""
    name, url, *numbers = words
    before = resource.getrusage(resource.RUSAGE_SELF)
    answer = CLIENTS[name](url, *(int(number) for number in numbers))
    after = resource.getrusage(resource.RUSAGE_SELF)
    answer["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps(answer))


def measured(
    name: str, port: int, *, requests: int, concurrency: int, tokens: int, per_chunk: int, tok_s: float
) -> Any:
    url = f"http://127.0.0.1:{port}/{tokens}/{per_chunk}/{tok_s}"
    argv = [sys.executable, __file__, "--child", name, url, str(requests), str(concurrency), str(tokens)]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True).stdout)


def part_one(port: int) -> None:
    print(f"1. decode rate of {TOKENS} tokens at a true {TRUE_TOK_S:.0f} tok/s, 6 requests, 2 at a time")
    for per_chunk in SCENARIOS:
        shape = {"requests": 6, "concurrency": 2, "tokens": TOKENS, "per_chunk": per_chunk, "tok_s": TRUE_TOK_S}
        errors = {}
        for name in CLIENTS:
            median = statistics.median(measured(name, port, **shape)["rates"])
            errors[name] = 100 * (median / TRUE_TOK_S - 1)
        told = "  ".join(f"{name} {error:+6.2f} %" for name, error in errors.items())
        print(f"   {per_chunk:2} tokens a chunk: {told}")


def part_two(port: int, rates: list[int], concurrency: int) -> None:
    print(f"2. {concurrency} streams at a time, one token a chunk, {concurrency} requests of 256 tokens")
    for tok_s in rates:
        shape = {"requests": concurrency, "concurrency": concurrency, "tokens": 256, "per_chunk": 1}
        found = {name: measured(name, port, tok_s=float(tok_s), **shape) for name in CLIENTS}
        chunks = concurrency * 257
        base = found["httpx2"]["cpu_s"]
        for name, answer in found.items():
            error = 100 * (statistics.median(answer["rates"]) / tok_s - 1)
            cpu = 1e4 * answer["cpu_s"] / chunks
            bound = "  says it was the bottleneck" if answer["bound"] else ""
            print(f"   {concurrency * tok_s:6} chunks/s offered  {name:7} {cpu:6.3f} s CPU per 10,000 chunks"
                  f"  {answer['cpu_s'] / base:5.2f} x  decode {error:+6.2f} %{bound}")  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve())
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="25,100", help="tokens a second and stream")
    parser.add_argument("--concurrency", type=int, default=64)
    asked = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    truth = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert truth.stdout is not None
        port = int(truth.stdout.readline())
        part_one(port)
        part_two(port, [int(rate) for rate in asked.rates.split(",")], asked.concurrency)
    finally:
        truth.kill()
        truth.wait()


if __name__ == "__main__":
    main()
