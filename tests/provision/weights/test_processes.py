"""Real processes: killed at any moment, two at once, interrupted, on a real small tmpfs."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuctl.lab.hub import Fault, FaultKind, HubRepo
from gpuctl.lab.hub.sample import FILES, FIRST, NAME, SECOND

pytestmark = pytest.mark.slow  # as a whole: many short waits and processes

if TYPE_CHECKING:
    from tests.provision.weights.conftest import Bench

CHILD = str(Path(__file__).with_name("child.py"))
ROOT = str(Path(__file__).parents[3])
SLOW = [Fault(FaultKind.SLOW, name, times=None, rate=1_500_000) for name in (FIRST, SECOND)]


def argv(bench: Bench, *, blind: bool = False, **more: Any) -> list[str]:
    """A stage in a process of its own; `blind` switches its look at the room off."""
    return [sys.executable, CHILD, json.dumps({"args": bench.args(**more), "believe_in_room": blind})]


def start(words: list[str]) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def finish(process: subprocess.Popen[bytes], timeout_s: float = 30) -> dict[str, Any]:
    out, err = process.communicate(timeout=timeout_s)
    assert out, err.decode()
    return dict(json.loads(out))


def wait_for_bytes(folder: Path, count: int, timeout_s: float = 20) -> None:
    """Until the part files below `folder` hold so many bytes."""
    end = time.monotonic() + timeout_s
    while sum(path.stat().st_size for path in folder.rglob("*.part") if path.exists()) < count:
        assert time.monotonic() < end, "the part files do not grow"
        time.sleep(0.01)


@pytest.mark.parametrize("with_cache", [True, False], ids=["cache", "no cache"])
def test_a_killed_stage_goes_on_where_it_was(bench: Bench, with_cache: bool) -> None:
    more: dict[str, Any] = {} if with_cache else {"cache": ""}
    bench.fault(*SLOW)
    process = start(argv(bench, **more))
    wait_for_bytes(bench.cache if with_cache else bench.target.parent, 1_000_000)
    process.kill()
    process.communicate(timeout=10)
    assert not bench.target.exists()
    assert bench.status(**more)["state"] == "partial"
    bench.hub.faults.clear()
    before = len(bench.hub.requests)
    bench.stage(**more)
    asked = [seen.range for seen in bench.hub.requests[before:] if seen.path.endswith(".safetensors")]
    assert asked
    assert all(int(value.removeprefix("bytes=").rstrip("-")) > 100_000 for value in asked)
    assert bench.files() == FILES
    assert bench.left_in_parent() == set()


def test_an_interrupted_stage_ends_within_a_second_and_goes_on_later(bench: Bench) -> None:
    bench.fault(*(Fault(FaultKind.STALL, name, times=None, at=500_000, seconds=20) for name in (FIRST, SECOND)))
    process = start(argv(bench, cache=""))
    wait_for_bytes(bench.target.parent, 900_000)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert time.monotonic() - began < 2.0  # one second, and what a busy machine adds
    bench.restart()
    bench.stage(cache="")
    assert bench.gets(FIRST)[0].startswith("bytes=")
    assert bench.files() == FILES


@pytest.mark.slow
def test_killed_at_any_moment_the_target_is_whole_or_absent(bench: Bench) -> None:
    """Each round: kill a stage (cold or warm) after a random time; then look, finish, and compare all bytes."""
    moments = random.Random(7)
    slow = [Fault(FaultKind.SLOW, name, times=None, rate=3_000_000) for name in (FIRST, SECOND)]
    caught = 0
    for round_ in range(10):
        shutil.rmtree(bench.target.parent, ignore_errors=True)
        if round_ % 2 == 0:
            shutil.rmtree(bench.cache, ignore_errors=True)
        bench.fault(*slow)
        process = start(argv(bench))
        cold = round_ % 2 == 0
        if cold:
            wait_for_bytes(bench.target.parent, 1)
        else:
            while not bench.target.parent.exists():
                assert process.poll() is None
                time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.6 if cold else 0.03))
        process.kill()
        process.communicate(timeout=10)
        caught += not bench.target.exists()
        if bench.target.exists():
            assert bench.files() == FILES
            assert bench.status(verify="full")["state"] == "ready"
        bench.hub.faults.clear()
        bench.stage()
        assert bench.files() == FILES
        assert bench.left_in_parent() == set()
    assert caught >= 3, "too few kills hit a stage at work for this to prove anything"


def test_of_two_stages_at_once_one_waits_and_finds_it_done(bench: Bench) -> None:
    bench.fault(*SLOW)
    both = [start(argv(bench)) for _ in range(2)]
    values = [finish(process) for process in both]
    sources = sorted(value["staged"][0]["source"] for value in values)
    assert sources == ["already", "hub"]
    assert len(bench.gets(FIRST)) == 1
    assert bench.files() == FILES


def test_two_targets_of_one_cache_fetch_once(bench: Bench) -> None:
    bench.fault(*SLOW)
    other = str(bench.target.with_name("other"))
    both = [start(argv(bench)), start(argv(bench, to=other))]
    sources = sorted(finish(process)["staged"][0]["source"] for process in both)
    assert sources == ["cache", "hub"]
    assert len(bench.gets(FIRST)) == 1


def on_tmpfs(bench: Bench, size: str, words: list[str]) -> list[str]:
    """Run `words` in a mount namespace of its own, with a tmpfs of `size` where the target's parent is."""
    script = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && "$@"; rc=$?; ls -A "$TMPFS" >&2; exit $rc'
    parent = str(bench.target.parent)
    bench.target.parent.mkdir(parents=True)
    return ["env", f"TMPFS={parent}", "unshare", "-Urm", "sh", "-c", script, "sh", size, parent, *words]


def can_unshare() -> bool:
    try:
        probe = ["unshare", "-Urm", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
        return subprocess.run(probe, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="no user and mount namespaces here (unshare -Urm)")


@needs_namespaces
def test_too_little_room_on_a_real_tmpfs_is_refused_before_the_first_byte(bench: Bench) -> None:
    value = finish(start(on_tmpfs(bench, "2m", argv(bench, cache=""))))
    assert value["error"]["kind"] == "refused"
    assert "do not fit into" in value["error"]["message"]
    assert "(tmpfs) leaves 2.1 MB, 9" in value["error"]["message"]
    assert value["error"]["message"].endswith("kB too little")
    assert "remount,size=" in value["error"]["hint"]
    assert [seen.path for seen in bench.hub.requests if "/resolve/" in seen.path] == []


@needs_namespaces
def test_enough_room_on_a_real_tmpfs_is_used(bench: Bench) -> None:
    value = finish(start(on_tmpfs(bench, "4m", argv(bench, cache=""))))
    assert value["staged"][0]["source"] == "hub"


@needs_namespaces
@pytest.mark.parametrize("with_cache", [True, False], ids=["cache", "no cache"])
def test_a_tmpfs_that_fills_meanwhile_is_a_clear_error_and_is_left_empty(bench: Bench, with_cache: bool) -> None:
    more: dict[str, Any] = {} if with_cache else {"cache": ""}
    words = argv(bench, blind=True, **more)
    process = start(on_tmpfs(bench, "2m", words))
    out, err = process.communicate(timeout=30)
    error = json.loads(out)["error"]
    assert error["kind"] == "refused"
    assert "no room left" in error["message"]
    left = set(err.decode().split())
    assert left == {".tiny.gpuctl-lock"}


@needs_namespaces
def test_a_damaged_file_is_mended_where_it_does_not_fit_twice(bench: Bench) -> None:
    """3 MB of weights on a tmpfs of 4 MB: the bad shard's memory is needed for the good one."""
    cut = f"truncate -s 1000000 {bench.target / FIRST}"
    words = on_tmpfs(bench, "4m", ["sh", "-c", f'"$@" && {cut} && "$@"', "sh", *argv(bench)])
    process = start(words)
    out, err = process.communicate(timeout=30)
    first, second = out.decode().replace("}{", "}\n{").splitlines()
    assert json.loads(first)["staged"][0]["source"] == "hub", err.decode()
    again = json.loads(second)["staged"][0]
    assert (again["source"], again["copied"]) == ("cache", len(FILES[FIRST]))


@pytest.mark.root
def test_a_real_memory_cgroup_is_the_limit_that_is_named(bench: Bench) -> None:
    """64 MB into a cgroup of 120 MB, half of it for buffers: refused with that limit, instead of a SIGKILL half way."""
    home = Path("/sys/fs/cgroup/memory")
    group = home / f"gpuctl-test-{os.getpid()}"
    if os.geteuid() != 0 or not (home / "memory.limit_in_bytes").exists():
        pytest.skip("needs root and a version 1 memory controller")
    bench.restart(HubRepo(NAME, {"big.gguf": os.urandom(64_000_000)}))
    to = f"/dev/shm/gpuctl-test-{os.getpid()}/tiny"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("120000000")
        script = f'echo $$ > {group}/tasks && exec "$@"'
        value = finish(start(["sh", "-c", script, "sh", *argv(bench, cache="", to=to)]))
        assert "the memory limit of 120.0 MB" in value["error"]["message"]
        assert "not charged" in value["error"]["hint"]
    finally:
        shutil.rmtree(Path(to).parent, ignore_errors=True)
        group.rmdir()
