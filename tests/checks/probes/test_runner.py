"""Probes in processes of their own: what they learnt survives, what hangs is given up, nothing is left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from checks.probes import runner
from checks.probes.lines import parse

pytestmark = pytest.mark.slow  # as a whole: many short waits and processes

FRAME = """
import os, signal, sys, time
from checks.probes.writer import run
def main(argv):
    return run(body, argv)
def body(out, words):
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Make a probe from the lines of its body."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(body: str, **options: object) -> runner.Probe:
        lines = dedent(body).strip().replace("\n", "\n    ")
        (tmp_path / "odd_probe.py").write_text(f"{FRAME}    {lines}\n")
        return runner.Probe(name="odd", module="odd_probe", **{"stall_s": 0.6, **options})  # type: ignore[arg-type]

    return make


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_an_orderly_probe_gives_its_readings(probe) -> None:  # type: ignore[no-untyped-def]
    reads = runner.run(
        (probe("out.calling('a')\nout.result('a', value=[1])\nout.result('b', 2, rc=9, text='no')"),)
    )["odd"]
    assert reads.value("a") == [1]
    assert reads.get("b", 2) is not None
    assert reads.value("b", 2) is None
    assert reads.trouble == ()


def test_a_probe_that_never_returns_is_given_up_with_its_call_and_its_results(probe) -> None:  # type: ignore[no-untyped-def]
    started = time.monotonic()
    body = """
        out.result('pid', value=os.getpid())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        out.calling('nvml power', 3)
        time.sleep(60)
    """
    reads = runner.run((probe(body),))["odd"]
    assert time.monotonic() - started < 10
    (ending,) = reads.trouble
    assert (ending.how, ending.call, ending.gpu, ending.pid) == ("hung", "nvml power", 3, 0)
    assert not _alive(reads.value("pid"))


def test_a_named_call_may_take_longer(probe) -> None:  # type: ignore[no-untyped-def]
    reads = runner.run(
        (probe("out.calling('slow')\ntime.sleep(1.2)\nout.result('x', value=1)", calls_s={"slow": 10.0}),)
    )
    assert reads["odd"].value("x") == 1
    assert reads["odd"].trouble == ()


def test_a_crash_is_told_with_signal_and_call(probe) -> None:  # type: ignore[no-untyped-def]
    reads = runner.run((probe("out.result('x', value=1)\nout.calling('bad call', 1)\nos.kill(os.getpid(), 11)"),))[
        "odd"
    ]
    (ending,) = reads.trouble
    assert (ending.how, ending.call, ending.gpu) == ("crashed", "bad call", 1)
    assert "signal 11" in ending.detail
    assert reads.value("x") == 1


def test_an_exception_is_told_with_its_last_line(probe) -> None:  # type: ignore[no-untyped-def]
    (ending,) = runner.run((probe("raise ValueError('what')"),))["odd"].trouble
    assert ending.detail == "exit status 1: ValueError: what"


def test_a_probe_goes_on_without_the_gpu_that_hung(probe) -> None:  # type: ignore[no-untyped-def]
    body = """
        for gpu in range(4):
            if f'skip={gpu}' in words:
                continue
            out.calling('read', gpu)
            if gpu in (1, 2):
                time.sleep(60)
            out.result('read', gpu, value=gpu)
    """
    reads = runner.run((probe(body, skips_gpus=True),))["odd"]
    assert reads.gpus == (0, 3)
    assert [ending.gpu for ending in reads.trouble] == [1, 2]


def test_the_total_budget_ends_a_probe_that_keeps_talking(probe) -> None:  # type: ignore[no-untyped-def]
    started = time.monotonic()
    reads = runner.run((probe("while True:\n    out.calling('again')\n    time.sleep(0.05)"),), total_s=1.5)["odd"]
    assert time.monotonic() - started < 8
    assert [ending.how for ending in reads.trouble] == ["hung"]


def test_environment_changes_reach_only_the_probe(probe, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    made = probe(
        "out.result('env', value=[os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('X')])",
        env={"CUDA_VISIBLE_DEVICES": None, "X": "1"},
    )
    assert runner.run((made,))["odd"].value("env") == [None, "1"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_a_probe_runs_in_its_own_session_and_interpreter(probe) -> None:  # type: ignore[no-untyped-def]
    reads = runner.run((probe("out.result('ids', value=[os.getpid(), os.getsid(0), sys.executable])"),))["odd"]
    pid, session, executable = reads.value("ids")
    assert pid == session != os.getpid()
    assert executable == sys.executable


def test_an_interrupted_run_leaves_no_probe_behind(probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    note = tmp_path / "pid"
    made = probe(f"open({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)", stall_s=30.0)

    really_sleep = time.sleep
    interrupted: list[bool] = []

    def interrupt(seconds: float) -> None:
        if not interrupted and note.exists() and note.read_text():
            interrupted.append(True)
            raise KeyboardInterrupt
        really_sleep(seconds)

    monkeypatch.setattr(runner.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runner.run((made,), total_s=20.0)
    assert not _alive(int(note.read_text()))


def test_torn_and_foreign_lines_are_left_out() -> None:
    readings, under_way, finished = parse(
        b'{"key": "a", "gpu": null, "rc": 0, "value": 1}\nnoise\n[1]\n{"call": "x", "g'
    )
    assert {key: reading.value for key, reading in readings.items()} == {("a", None): 1}
    assert under_way == ("start", None)
    assert not finished
