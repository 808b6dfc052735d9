"""Run a model's Python code in a bounded subprocess and evaluate expressions in it.

Not a wall against an attacker: limits on time, memory and files, no environment, an empty folder, no network
where the kernel lets us leave it, and an audit hook that refuses files, processes and sockets. Enough for
code that a benchmarked model wrote to an innocent prompt.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

TIMEOUT_S: Final = 10.0
CPU_S: Final = 3
MEMORY: Final = 512 * 1024 * 1024

_INNER: Final = """
import json, os, resource, sys
job = json.loads(sys.stdin.read())
out = os.dup(1)
null = os.open("/dev/null", os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(null, fd)
for kind, limit in ((resource.RLIMIT_CPU, job["cpu_s"]), (resource.RLIMIT_AS, job["memory"]),
                    (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 16)):
    resource.setrlimit(kind, (limit, limit))
sys.setrecursionlimit(2000)
import collections, copy, functools, heapq, itertools, math, operator, random, re, string, typing
try:
    import ctypes
    ctypes.CDLL(None).unshare(0x10000000 | 0x40000000)
except Exception:
    pass
refused = ("subprocess", "os.", "socket", "ctypes", "shutil", "pty", "signal", "tempfile", "winreg", "mmap")
def hook(event, args):
    if event.startswith(refused) and event not in ("os.listdir", "os.scandir"):
        raise PermissionError("not allowed: " + event)
    if event == "open" and (not isinstance(args[1], str) or args[1].strip("rbt")):
        raise PermissionError("not allowed: writing")
answer = {"error": "", "values": []}
space = {"__name__": "answer"}
sys.addaudithook(hook)
try:
    exec(compile(job["code"], "answer", "exec"), space)
    for expression in job["expressions"]:
        answer["values"].append(eval(expression, space))
    text = json.dumps(answer)
except BaseException as error:
    text = json.dumps({"error": type(error).__name__ + ": " + str(error)[:200], "values": []})
os.write(out, text.encode())
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """Values of the expressions, or why there are none."""

    values: tuple[Any, ...]
    error: str = ""


def evaluate(code: str, expressions: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> Ran:
    """Execute `code`, then evaluate each expression (JSON-able results). Never raises for what the code does."""
    job = {"code": code, "expressions": list(expressions), "cpu_s": CPU_S, "memory": MEMORY}
    with tempfile.TemporaryDirectory(prefix="gpuctl-answer-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _INNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(json.dumps(job).encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Ran((), f"out of time: still running after {timeout_s:.0f} s")
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    try:
        answer = json.loads(out)
    except ValueError:
        return Ran((), f"ended with exit status {process.returncode} (out of time or memory)")
    return Ran(tuple(answer["values"]), str(answer["error"]))
