"""The wire: one job in, JSON lines out, in this process and in the zip application."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuctl.agent import JOBS, find, run_job
from gpuctl.bundle import OURS, build
from gpuctl.remote import FOLDER, RemoteMachine
from inventory.errors import CannotLook, ConnectionLost, Failed, GpuctlError, Refused, UsageError
from inventory.machine import Answer, Completed, ignore

BARE = getattr(sys, "_base_executable", sys.executable)


def run_zip(request: bytes, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    # -I -S: nothing of this virtual environment may help.
    argv = [BARE, "-I", "-S", str(build().path)]
    return subprocess.run(argv, input=request, capture_output=True, timeout=60, env=env or {}, check=False)


def last_line(output: bytes) -> dict[str, Any]:
    value = json.loads(output.splitlines()[-1])
    assert isinstance(value, dict)
    return value


def test_every_job_of_the_registry_exists() -> None:
    for name in JOBS:
        assert callable(find(name))


def test_an_unknown_job_is_a_usage_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        run_job("host.fact", {}, ignore)
    assert "host.facts" in caught.value.hint


def test_a_fault_of_our_own_is_told_with_its_place_and_without_a_traceback() -> None:
    with pytest.raises(Failed, match=r"job checks.preflight broke: .* \(at "):
        run_job("checks.preflight", {"level": object()}, ignore)


def test_the_zip_application_answers_under_a_bare_python_without_our_environment() -> None:
    done = run_zip(b'{"job":"agent.hello"}')
    assert done.returncode == 0, done.stderr
    assert (
        last_line(done.stdout)["value"]["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    )


def test_the_zip_application_can_import_every_job_and_its_libraries() -> None:
    modules = sorted(
        {target.split(":")[0] for target in JOBS.values()} | {"huggingface_hub", "pynvml", "tenacity"}
    )
    code = f"import sys; sys.path.insert(0, sys.argv[1])\nfor m in {modules!r}: __import__(m)"
    argv = [BARE, "-I", "-S", "-c", code, str(build().path)]
    done = subprocess.run(argv, capture_output=True, timeout=60, env={"HF_HUB_DISABLE_XET": "1"}, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_the_zip_application_holds_nothing_compiled_and_nothing_of_the_admin_side() -> None:
    names = zipfile.ZipFile(build().path).namelist()
    assert not [name for name in names if name.endswith((".so", ".pyd")) or ".so." in name]
    assert not [
        name for name in names if name.startswith(("gpuctl/lab", "gpuctl/commands", "pydantic", "paramiko"))
    ]
    assert set(OURS) <= {name.split("/")[0] for name in names}


def test_the_zip_application_is_built_once_and_named_by_its_content() -> None:
    first, second = build(), build()
    assert first == second
    assert first.path.stat().st_mtime_ns == second.path.stat().st_mtime_ns


def test_a_job_that_is_not_json_gets_an_error_on_the_wire() -> None:
    done = run_zip(b"not json")
    assert done.returncode == 64
    assert last_line(done.stdout)["kind"] == "usage"


DONE = Completed(0, b"", b"")


def answer(*lines: bytes, completed: Completed = DONE) -> Any:
    seen: list[Any] = []
    collected = Answer("ct200", seen.append)
    for line in lines:
        collected.feed(line)
    return collected.value(completed)


def test_an_error_keeps_its_kind_hint_and_exit_code_over_the_wire() -> None:
    sent = Refused("no room: 52 GB wanted", hint="evict", detail=("a", "b"))
    with pytest.raises(Refused) as caught:
        answer(json.dumps({"type": "error", **sent.to_json()}).encode())
    assert (caught.value.hint, caught.value.detail, caught.value.exit_code) == (
        "evict",
        ("a", "b"),
        sent.exit_code,
    )


def test_an_answer_that_never_came_shows_the_other_sides_last_words() -> None:
    with pytest.raises(ConnectionLost) as caught:
        answer(b"Segmentation fault", completed=Completed(139, b"", b"core dumped\n"))
    assert caught.value.detail == ("Segmentation fault", "core dumped")


class FakeShell:
    """A shell to a machine that has python3, and refuses a script that was not put there."""

    where = "ct200"

    def __init__(self, rc: int | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.runs: list[tuple[str, ...]] = []
        self._rc = rc

    def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        on_line: Callable[[bytes], None] | None = None,
    ) -> Completed:
        self.runs.append(argv)
        if self._rc is not None:
            return Completed(self._rc, b"", b"sh: python3: not found\n")
        if argv[-1] not in self.files:
            return Completed(2, b"", f"python3: can't open file '{argv[-1]}': [Errno 2] No such file".encode())
        assert on_line is not None
        on_line(b'{"type":"progress","done":1}')
        on_line(json.dumps({"type": "result", "value": json.loads(stdin)["args"]}).encode())
        return Completed(0, b"", b"")

    def put(self, data: bytes, path: str, *, mode: int = 0o644) -> None:
        self.files[path] = data


def test_the_zip_application_is_pushed_only_when_it_is_not_there_yet() -> None:
    shell = FakeShell()
    machine = RemoteMachine(shell, build)
    events: list[Any] = []
    assert machine.call("agent.hello", {"x": 1}, emit=events.append) == {"x": 1}
    assert machine.call("agent.hello", {"x": 2}) == {"x": 2}
    assert list(shell.files) == [f"{FOLDER}/{build().name}"]
    assert len(shell.runs) == 3
    assert events == [{"type": "progress", "done": 1}]


def test_a_machine_without_python3_is_told_as_such() -> None:
    with pytest.raises(CannotLook, match="python3 cannot be run") as caught:
        RemoteMachine(FakeShell(rc=127), build).call("agent.hello")
    assert "apt install python3" in caught.value.hint


def test_jobs_over_the_wire_do_not_see_secrets_in_argv() -> None:
    shell = FakeShell()
    RemoteMachine(shell, build).call("agent.hello", {"token": "hf_secret"})
    assert not [word for argv in shell.runs for word in argv if "hf_secret" in word]


@pytest.mark.parametrize("error", [Failed("a"), Refused("b"), CannotLook("c"), UsageError("d")])
def test_every_error_kind_survives_the_round_trip(error: GpuctlError) -> None:
    again = GpuctlError.from_json(error.to_json())
    assert type(again) is type(error)
    assert again.message == error.message


def test_a_print_of_a_library_never_lands_between_the_json_lines(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import gpuctl.agent as a; import gpuctl.hello as h\n"
        "real = h.hello\n"
        "def noisy(args, emit):\n    print('noise'); return real(args, emit)\n"
        "h.hello = noisy\nsys.exit(a.main())"
    )
    argv = [BARE, "-I", "-S", "-c", code, str(build().path)]
    done = subprocess.run(
        argv, input=b'{"job":"agent.hello"}', capture_output=True, timeout=60, env=dict(os.environ), check=False
    )
    assert done.stdout.count(b"\n") == 1
    assert b"noise" in done.stderr
