"""Start, status and stop of a real process that is an engine by its HTTP answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inventory import reentry
from inventory.errors import Failed, Refused
from inventory.launch import Launch
from provision.engine import job, procs, state

pytestmark = pytest.mark.slow  # as a whole: many short waits and processes


def ignore(event: Mapping[str, Any]) -> None:
    del event


def start(launch: Launch, **more: Any) -> dict[str, Any]:
    return job.start({"launch": launch.to_json(), **more}, ignore)


def status(launch: Launch) -> dict[str, Any]:
    return job.status({"launch": launch.to_json(env=False)}, ignore)


def until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def session_gone(pid: int) -> bool:
    return procs.session(pid) == ()


def test_start_makes_it_ready_and_a_second_start_changes_nothing(fake: Any) -> None:
    launch = fake.launch("serve")
    assert status(launch)["state"] == "stopped"
    first = start(launch)
    assert first["started"] is True
    found = status(launch)
    assert (found["state"], found["pid"], found["key"]) == ("ready", first["pid"], launch.key)
    assert found["stranger"] == ""
    again = start(launch)
    assert (again["started"], again["pid"]) == (False, first["pid"])


def test_stop_ends_the_process_and_frees_the_port(fake: Any) -> None:
    launch = fake.launch("serve")
    pid = start(launch)["pid"]
    answer = job.stop({}, ignore)
    assert answer == {"stopped": True, "pid": pid, "forced": False}
    assert session_gone(pid)
    assert procs.port_free(fake.port)
    assert job.stop({}, ignore)["stopped"] is False


def test_stop_kills_an_engine_that_ignores_sigterm(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.spawn.end, "__kwdefaults__", {"grace_s": 0.3, "kill_s": 10.0})
    pid = start(fake.launch("stubborn"))["pid"]
    assert job.stop({}, ignore) == {"stopped": True, "pid": pid, "forced": True}
    assert session_gone(pid)


def test_stop_ends_the_children_of_the_engine_too(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.spawn.end, "__kwdefaults__", {"grace_s": 0.3, "kill_s": 10.0})
    pid = start(fake.launch("children"))["pid"]
    assert len(procs.session(pid)) == 2
    job.stop({}, ignore)
    assert session_gone(pid)


def test_children_of_a_leader_that_died_are_ended_before_a_new_start(fake: Any) -> None:
    launch = fake.launch("children")
    pid = start(launch)["pid"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(procs.session(pid)) == 1
    assert status(launch)["state"] == "stopped"
    second = start(launch)
    assert second["started"] is True
    assert session_gone(pid)


def test_an_engine_that_dies_at_start_is_reported_with_its_lines_and_a_diagnosis(fake: Any) -> None:
    with pytest.raises(Failed) as caught:
        start(fake.launch("die"))
    error = caught.value
    assert "ended with exit status 3 before it was ready" in error.message
    assert "nvidia-uvm" in error.message
    assert "recover" in error.hint
    assert error.detail[-1].startswith("RuntimeError: CUDA unknown error")
    assert state.read() is None


def test_an_engine_that_ends_quietly_is_a_failed_start(fake: Any) -> None:
    with pytest.raises(Failed, match="exit status 0 before it was ready"):
        start(fake.launch("exit0"))


def test_a_program_that_does_not_exist_is_named(fake: Any) -> None:
    launch = fake.launch("serve")
    with pytest.raises(Failed) as caught:
        start(replace(launch, argv=("/no/such/engine", *launch.argv[1:])))
    assert "its program or a file it needs is missing" in caught.value.message
    assert any("/no/such/engine" in line for line in caught.value.detail)


def test_an_engine_whose_log_stands_still_is_given_up_and_leaves_no_process(fake: Any) -> None:
    pids: list[int] = []

    def remember(event: Mapping[str, Any]) -> None:
        known = state.read()
        assert known is not None
        pids.append(known.pid)

    with pytest.raises(Failed, match="its log has stood still") as caught:
        job.start({"launch": fake.launch("hang", stall_s=0.6).to_json()}, remember)
    assert any("fake engine begins hang" in line for line in caught.value.detail)
    assert state.read() is None
    assert procs.port_free(fake.port)
    assert session_gone(pids[0])


def test_an_engine_that_talks_but_never_answers_meets_the_ceiling(fake: Any) -> None:
    events: list[Mapping[str, Any]] = []
    launch = fake.launch("chatter", ready_s=1.5, stall_s=30.0)
    with pytest.raises(Failed, match="was not ready after"):
        job.start({"launch": launch.to_json()}, events.append)
    told = [event for event in events if event["type"] == "progress"]
    assert told
    assert told[-1]["what"] == "engine"
    assert "still loading" in told[-1]["line"]


def test_a_port_held_by_a_stranger_is_refused_with_its_holder(fake: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", fake.port))
        other.listen()
        with pytest.raises(Refused, match=f"port {fake.port} is in use by pid {os.getpid()} "):
            start(fake.launch("serve"))
        assert f"pid {os.getpid()}" in status(fake.launch("serve"))["stranger"]


def test_an_absent_model_is_refused_by_name(fake: Any) -> None:
    fake.model_file.unlink()
    launch = fake.launch("serve")
    assert status(launch)["missing"] == [fake.model]
    with pytest.raises(Refused, match=r"/dev/shm/models/fake\.gguf is absent"):
        start(launch)


def test_another_command_line_restarts_the_engine(fake: Any) -> None:
    first = start(fake.launch("serve"))
    other = fake.launch("serve", OTHER="1")
    assert status(other)["key"] != other.key
    second = start(other)
    assert second["started"] is True
    assert session_gone(first["pid"])
    assert status(other)["key"] == other.key


def test_a_replaced_model_is_seen_and_restarts_the_engine(fake: Any) -> None:
    launch = fake.launch("serve")
    first = start(launch)
    assert status(launch)["model_changed"] is False
    fresh = fake.model_file.with_suffix(".new")
    fresh.write_bytes(b"other weights")
    fresh.replace(fake.model_file)
    assert status(launch)["model_changed"] is True
    assert start(launch)["pid"] != first["pid"]


def test_secrets_of_the_environment_reach_the_engine_but_no_file(fake: Any) -> None:
    launch = fake.launch("serve", HF_TOKEN="env:HF_TOKEN").with_env({"HF_TOKEN": "s3cr3t-value"})
    pid = start(launch)["pid"]
    assert b"HF_TOKEN=s3cr3t-value" in Path(f"/proc/{pid}/environ").read_bytes()
    for path in state.folder().iterdir():
        assert b"s3cr3t-value" not in path.read_bytes(), path
    assert "s3cr3t" not in repr(launch)


def test_an_engine_of_an_earlier_boot_is_not_touched(fake: Any) -> None:
    launch = fake.launch("serve")
    pid = start(launch)["pid"]
    (fake.root / "proc/sys/kernel/random/boot_id").write_text("boot-two\n")
    assert status(launch)["state"] == "stopped"
    assert job.stop({}, ignore)["stopped"] is False
    assert procs.session(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_reused_pid_is_not_taken_for_the_engine(fake: Any) -> None:
    launch = fake.launch("serve")
    start(launch)
    known = state.read()
    assert known is not None
    job.stop({}, ignore)
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        state.write(replace(known, pid=victim.pid))
        assert status(launch)["state"] == "stopped"
        assert job.stop({}, ignore)["stopped"] is False
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def run_start_elsewhere(launch: Launch) -> subprocess.Popen[bytes]:
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from provision.engine import job; "
        "job.start({'launch': json.loads(sys.argv[2])}, lambda event: None)"
    )
    argv = [sys.executable, "-c", code, reentry.home(), json.dumps(launch.to_json())]
    return subprocess.Popen(argv, stderr=subprocess.DEVNULL)


def test_a_start_that_was_killed_is_continued_with_the_same_process(fake: Any) -> None:
    launch = fake.launch("slow")
    runner = run_start_elsewhere(launch)
    until(lambda: state.read() is not None)
    runner.kill()
    runner.wait()
    known = state.read()
    assert known is not None
    until(known.alive)
    assert status(launch)["state"] in ("starting", "ready")
    answer = start(launch)
    assert (answer["started"], answer["pid"]) == (False, known.pid)
    assert status(launch)["state"] == "ready"


def test_a_start_killed_before_the_pid_is_written_leaves_no_process(fake: Any) -> None:
    launch = fake.launch("serve")
    code = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from provision.engine import job, state\n"
        "def killed(known):\n"
        "    print(known.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "state.write = killed\n"
        "job.start({'launch': json.loads(sys.argv[2])}, lambda event: None)\n"
    )
    argv = [sys.executable, "-c", code, reentry.home(), json.dumps(launch.to_json())]
    done = subprocess.run(argv, stdout=subprocess.PIPE, timeout=30)
    assert done.returncode == -9
    pid = int(done.stdout)
    until(lambda: session_gone(pid))
    assert state.read() is None
    assert procs.port_free(fake.port)


def test_a_killed_start_of_another_method_is_replaced(fake: Any) -> None:
    runner = run_start_elsewhere(fake.launch("hang"))
    until(lambda: state.read() is not None)
    runner.kill()
    runner.wait()
    known = state.read()
    assert known is not None
    answer = start(fake.launch("serve"))
    assert answer["started"] is True
    assert session_gone(known.pid)


def test_an_interrupt_during_the_wait_leaves_no_process(fake: Any) -> None:
    pids: list[int] = []

    def interrupt(event: Mapping[str, Any]) -> None:
        known = state.read()
        assert known is not None
        pids.append(known.pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.start({"launch": fake.launch("hang").to_json()}, interrupt)
    assert session_gone(pids[0])
    assert state.read() is None


def test_an_engine_that_stopped_answering_is_unresponsive_and_restarted(fake: Any) -> None:
    launch = fake.launch("serve")
    pid = start(launch)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        found = status(launch)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert found["state"] == "unresponsive"
    assert start(launch, restart=True)["pid"] != pid


def test_logs_give_the_last_lines(fake: Any) -> None:
    start(fake.launch("serve"))
    answer = job.logs({"lines": 1}, ignore)
    assert answer["lines"] == ["fake engine begins serve"]


def test_an_unreadable_state_counts_as_no_engine(fake: Any) -> None:
    state.folder().mkdir(parents=True)
    (state.folder() / "state.json").write_text("{broken")
    assert status(fake.launch("serve"))["state"] == "stopped"
    (state.folder() / "state.json").write_text('{"schema_version": 99}')
    assert start(fake.launch("serve"))["started"] is True
