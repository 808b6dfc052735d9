"""The diary of runs and the lock that keeps two of them apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl.journal import KEEP, earlier, folder, open_journal
from gpuctl.lock import exclusive
from inventory.errors import Refused


def test_a_finished_run_is_known_as_finished() -> None:
    journal = open_journal("ct200", argv=["recover"])
    journal.write("stage", stage="host", phase="started")
    journal.end("done")
    seen = earlier("ct200")
    assert seen is not None and seen.finished
    entries = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert [e["what"] for e in entries] == ["start", "stage", "end"]
    assert all("t" in e and "s" in e for e in entries)


def test_a_killed_run_is_known_by_its_last_stage_even_with_half_a_line_at_its_end() -> None:
    journal = open_journal("ct200")
    journal.write("stage", stage="host", phase="started")
    journal.write("stage", stage="weights", phase="started")
    with journal.path.open("ab") as file:
        file.write(b'{"t":1,"what":"sta')
    seen = earlier("ct200")
    assert seen is not None
    assert (seen.finished, seen.stage) == (False, "weights")


def test_old_journals_are_dropped() -> None:
    where = folder("ct200")
    for number in range(KEEP + 5):
        (where / f"2020-01-01T00-00-{number:02d}Z-1.jsonl").write_text("")
    open_journal("ct200").end("done")
    assert len(list(where.glob("*.jsonl"))) <= KEEP + 1


def test_a_journal_is_readable_by_its_owner_alone() -> None:
    journal = open_journal("ct200")
    assert journal.path.stat().st_mode & 0o077 == 0


def test_a_second_run_on_the_same_container_is_refused_and_told_who_holds_it() -> None:
    code = "from gpuctl.lock import exclusive\nwith exclusive('ct200', 'stage ct200'):\n    pass"
    with exclusive("ct200", "recover ct200"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
        )
        assert "gpuctl recover ct200" in done.stderr
        with exclusive("ct201", "recover ct201"):
            pass


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom gpuctl.lock import exclusive\n"
        "with exclusive('ct200', 'recover ct200'):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=30, check=False)
    assert done.returncode == -9
    with exclusive("ct200", "recover ct200"):
        pass


def test_the_holder_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        exclusive("ct200", "recover ct200"),
        pytest.raises(Refused, match=r"pid \d+, for \d+ s"),
        exclusive("ct200", "bench ct200"),
    ):
        pass
