"""The wire: one job in, JSON lines out, in this process and in the zip application."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


def test_a_fault_of_our_own_is_told_with_its_place_and_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        JOBS, "broken", "gpuctl.hello:boot_id"
    )  # takes no arguments, so calling it as a job breaks
    with pytest.raises(Failed, match=r"job broken broke: TypeError: .* \(at gpuctl\.agent:\d+\)"):
        run_job("broken", {}, ignore)


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
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import gpuctl.agent; gpuctl.agent.settle()\n"
        f"for m in {modules!r}: __import__(m)"
    )
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


def test_the_zip_application_serves_several_jobs_in_one_run() -> None:
    done = run_zip(b'{"job":"agent.hello"}\n{"job":"nonsense"}\n{"job":"agent.hello"}\n')
    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert kinds == ["began", "result", "began", "error", "began", "result"]


def test_a_job_that_is_not_json_gets_an_error_on_the_wire() -> None:
    done = run_zip(b"not json")
    assert done.returncode == 64
    assert last_line(done.stdout)["kind"] == "usage"


def answer(*lines: bytes) -> Answer:
    seen: list[Any] = []
    collected = Answer("ct200", seen.append)
    for line in lines:
        collected.feed(line)
    return collected


def test_an_error_keeps_its_kind_hint_and_exit_code_over_the_wire() -> None:
    sent = Refused("no room: 52 GB wanted", hint="evict", detail=("a", "b"))
    with pytest.raises(Refused) as caught:
        answer(json.dumps({"type": "error", **sent.to_json()}).encode()).value()
    assert (caught.value.hint, caught.value.detail, caught.value.exit_code) == (
        "evict",
        ("a", "b"),
        sent.exit_code,
    )


def test_an_answer_that_never_came_shows_the_other_sides_last_words() -> None:
    error = answer(b"Segmentation fault").lost(Completed(139, b"", b"core dumped\n"))
    assert error.detail == ("Segmentation fault", "core dumped")


class FakeShell:
    """A shell to a machine that has python3, and refuses a script that was not put there.

    `dies_after`: the far process ends after so many answers, as when its container is restarted.
    """

    where = "ct200"

    def __init__(self, rc: int | None = None, dies_after: int = 1000, begins: bool = True) -> None:
        self.files: dict[str, bytes] = {}
        self.runs: list[tuple[str, ...]] = []
        self.jobs: list[Any] = []
        self._rc = rc
        self._dies_after = dies_after
        self._begins = begins

    def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | Iterator[bytes] = b"",
        timeout_s: float = 60.0,
        on_line: Callable[[bytes], None] | None = None,
    ) -> Completed:
        self.runs.append(argv)
        if self._rc is not None:
            return Completed(self._rc, b"", b"sh: python3: not found\n")
        if argv[-1] not in self.files:
            return Completed(2, b"", f"python3: can't open file '{argv[-1]}': [Errno 2] No such file".encode())
        assert on_line is not None and not isinstance(stdin, bytes)
        for number, line in enumerate(stdin):
            if number == self._dies_after:
                if self._begins:
                    on_line(b'{"type":"began"}')
                return Completed(137, b"", b"Killed\n")
            job = json.loads(line)
            self.jobs.append(job["args"])
            on_line(b'{"type":"began"}')
            on_line(b'{"type":"progress","done":1}')
            if job["args"].get("hang"):
                continue
            on_line(json.dumps({"type": "result", "value": job["args"]}).encode())
        return Completed(0, b"", b"")

    def put(self, data: bytes, path: str, *, mode: int = 0o644) -> None:
        self.files[path] = data


def test_the_zip_application_is_pushed_once_and_takes_job_after_job() -> None:
    shell = FakeShell()
    machine = RemoteMachine(shell, build)
    events: list[Any] = []
    assert machine.call("agent.hello", {"x": 1}, emit=events.append) == {"x": 1}
    assert machine.call("agent.hello", {"x": 2}) == {"x": 2}
    assert list(shell.files) == [f"{FOLDER}/{build().name}"]
    assert len(shell.runs) == 2  # the first found no file; the second served both jobs
    assert events == [{"type": "progress", "done": 1}]
    machine.close()


def test_a_session_that_ended_between_two_jobs_is_opened_again() -> None:
    machine = RemoteMachine(FakeShell(dies_after=1, begins=False), build)
    assert [machine.call("agent.hello", {"x": x}) for x in range(3)] == [{"x": 0}, {"x": 1}, {"x": 2}]


def test_a_job_that_had_begun_is_not_repeated_when_its_process_dies() -> None:
    shell = FakeShell(dies_after=1)
    machine = RemoteMachine(shell, build)
    machine.call("agent.hello", {"x": 1})
    with pytest.raises(ConnectionLost, match="exit status 137"):
        machine.call("agent.hello", {"x": 2})
    assert shell.jobs == [{"x": 1}]


def test_a_job_without_an_answer_is_given_up_in_time_and_the_next_one_gets_a_new_session() -> None:
    machine = RemoteMachine(FakeShell(), build)
    with pytest.raises(CannotLook, match=r"no answer within 0\.2 s"):
        machine.call("agent.hello", {"hang": True}, timeout_s=0.2)
    assert machine.call("agent.hello", {"x": 1}) == {"x": 1}


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
    assert done.stdout.count(b"\n") == 2
    assert b"noise" in done.stderr


def test_calls_from_several_threads_are_made_one_after_the_other() -> None:
    shell = FakeShell()
    machine = RemoteMachine(shell, build)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda x: machine.call("agent.hello", {"x": x}), range(32)))
    assert answers == [{"x": x} for x in range(32)]
    assert len(shell.runs) == 2
