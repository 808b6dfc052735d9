"""A tiny real HTTP server as "custom" engine, and a root of its own for every test."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.engines.registry import launch as make_launch
from inventory.launch import Launch
from inventory.model import Engine, EngineKind, Method
from provision.engine import job, procs, state

FAKE = """
import http.server, os, signal, subprocess, sys, time
port, mode = int(sys.argv[1]), sys.argv[2]
print("fake engine begins", mode, flush=True)
if mode == "die":
    print("loading weights", flush=True)
    print("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment", flush=True)
    sys.exit(3)
if mode == "exit0":
    sys.exit(0)
if mode == "hang":
    time.sleep(600)
if mode == "chatter":
    while True:
        print("still loading", time.monotonic(), flush=True)
        time.sleep(0.05)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "children":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if mode == "slow":
    time.sleep(1.0)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"data": [{"id": "fake"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def processes_with(text: str) -> list[int]:
    """Living processes whose command line holds `text`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and text in procs.name(int(folder.name)):
            found.append(int(folder.name))
    return found


class Fake:
    """Makes launches of the fake engine on one free port."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.root = root
        self.script = folder / "fake_engine.py"
        self.script.write_text(FAKE)
        self.model = "/dev/shm/models/fake.gguf"
        self.model_file = root / "dev/shm/models/fake.gguf"
        self.model_file.parent.mkdir(parents=True)
        self.model_file.write_bytes(b"weights")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def launch(self, mode: str, *, ready_s: float = 30.0, stall_s: float = 20.0, **env: str) -> Launch:
        command = (sys.executable, str(self.script), "{port}", mode)
        engine = Engine(
            kind=EngineKind.CUSTOM, model=self.model, command=command, port=self.port, env=env,
            ready_timeout_s=ready_s, stall_timeout_s=stall_s,
        )  # fmt: skip
        return make_launch(engine, Method.AUTO, 1)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    root = tmp_path / "root"
    boot = root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("boot-one\n")
    monkeypatch.setenv("GPUCTL_ROOT", str(root))
    yield Fake(tmp_path, root)
    boot.write_text("boot-one\n")
    job.stop({}, lambda event: None)
    for pid in processes_with(str(tmp_path)):
        os.kill(pid, 9)
    assert state.read() is None
