"""Serve a GGUF file with the llama.cpp server inside xllamacpp until SIGTERM; runs in the engine's own venv.

It takes the flags of `llama-server` that gpuctl uses, so that an inventory's `args` mean the same for both.
It imports nothing but the standard library and xllamacpp: only these exist where it runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def threads_default() -> int:
    """Half of the usable cores: ggml's threads spin, and with one per core on a busy machine it crawls."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def batch_threads_default() -> int:
    """The cores nobody uses now: a prompt is worked off in one go, so more threads pay, but only on free cores."""
    cores = len(os.sched_getaffinity(0))
    busiest = 0
    for _ in range(5):
        time.sleep(0.02)
        try:
            running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
            busiest = max(busiest, int(running) - 1)  # one of them is this process
        except (OSError, ValueError, IndexError):
            return threads_default()
    return max(threads_default(), cores - busiest)


def parser() -> argparse.ArgumentParser:
    """The flags; the last one given wins."""
    flags = argparse.ArgumentParser(prog="serve_llama", allow_abbrev=False)
    flags.add_argument("--model", "-m", required=True)
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, required=True)
    flags.add_argument("--alias", default="")
    flags.add_argument("--threads", "-t", type=int, default=threads_default())
    flags.add_argument(
        "--threads-batch", "-tb", type=int, default=0, help="0: the cores that are free at the start"
    )
    flags.add_argument("--ctx-size", "--ctx", "-c", type=int, default=4096)
    flags.add_argument("--parallel", "-np", type=int, default=1)
    flags.add_argument("--metrics", action="store_true")
    flags.add_argument("--slots", action="store_true")
    flags.add_argument("--props", action="store_true")
    flags.add_argument("--spec-type", default="none")
    flags.add_argument("--model-draft", "-md", default="")
    flags.add_argument("--draft-max", type=int, default=0)
    # Forces an acceptance length, changing the text: for tests of the measuring chain only.
    flags.add_argument("--spec-synth-len", type=float, default=0.0)
    return flags


def configure(flags: argparse.Namespace, xllamacpp: Any) -> Any:
    """The server's parameters. Raises SystemExit for a method this build does not know."""
    params = xllamacpp.CommonParams()
    params.model.path = flags.model
    params.n_ctx = flags.ctx_size
    params.n_parallel = flags.parallel
    params.cpuparams.n_threads = flags.threads
    params.cpuparams_batch.n_threads = flags.threads_batch or batch_threads_default()
    params.hostnames = [flags.host]
    params.port = flags.port
    params.endpoint_metrics = flags.metrics
    params.endpoint_props = flags.props
    params.endpoint_slots = flags.slots
    # The build calls itself b0-unknown; a tag of /v1/models is how a client learns what serves.
    params.model_tags = {f"xllamacpp {xllamacpp.__version__}"}
    if flags.alias:
        params.model_alias = {flags.alias}
    if flags.spec_type != "none":
        name = "COMMON_SPECULATIVE_TYPE_" + flags.spec_type.upper().replace("-", "_")
        kinds = xllamacpp.common_speculative_type
        if not hasattr(kinds, name):
            raise SystemExit(f"error: this xllamacpp does not know --spec-type {flags.spec_type}")
        params.speculative.types = [getattr(kinds, name)]
    if flags.model_draft:
        params.speculative.draft.mparams.path = flags.model_draft
    if flags.draft_max:
        params.speculative.draft.n_max = flags.draft_max
    if flags.spec_synth_len:
        params.speculative.synth_len = flags.spec_synth_len
    return params


def main(argv: list[str]) -> int:
    """Serve; returns 0 after SIGTERM or SIGINT, 1 when the server did not come up."""
    flags = parser().parse_args(argv)

    def stop(_signum: int, _frame: object) -> None:
        # The C++ server has no way to end inside a living process; leaving is its stop.
        sys.stderr.flush()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        import xllamacpp
    except ImportError as error:
        sys.stderr.write(f"error: {sys.prefix} has no usable xllamacpp: {error}\n")
        return 1
    sys.stderr.write(f"serve_llama: xllamacpp {xllamacpp.__version__}, {flags.threads} threads, {flags.model}\n")
    sys.stderr.flush()
    try:
        server = xllamacpp.Server(configure(flags, xllamacpp))
    except RuntimeError as error:
        sys.stderr.write(f"error: the server did not start: {error}\n")
        return 1
    sys.stderr.write(f"serve_llama: listening on {server.listening_address}\n")
    sys.stderr.flush()
    while True:
        time.sleep(3600)
