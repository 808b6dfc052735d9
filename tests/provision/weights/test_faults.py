"""Every row of the fault table: right bytes or a clear error, never silent damage, never a lost good file."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest

from gpuctl.lab.hub import Fault, FaultKind
from gpuctl.lab.hub.faults import Route
from gpuctl.lab.hub.sample import FILES, FIRST, NAME, SECOND
from inventory.errors import CannotLook, Failed, GpuctlError

pytestmark = pytest.mark.slow  # as a whole: many short waits and processes

if TYPE_CHECKING:
    from tests.provision.weights.conftest import Bench

HALF = 700_000

SURVIVED = {
    "clean close once": [Fault(FaultKind.CLOSE, FIRST, at=HALF)],
    "clean close on three gets": [Fault(FaultKind.CLOSE, FIRST, at=HALF * n // 3) for n in (1, 2, 3)],
    "reset in the body": [Fault(FaultKind.RESET, FIRST, at=HALF)],
    "reset before the body": [Fault(FaultKind.RESET, FIRST, at=0)],
    "range ignored on resume": [Fault(FaultKind.CLOSE, FIRST, at=HALF), Fault(FaultKind.IGNORE_RANGE, FIRST)],
    "206 from another offset": [Fault(FaultKind.CLOSE, FIRST, at=HALF), Fault(FaultKind.WRONG_OFFSET, FIRST)],
    "206 with bytes from elsewhere": [Fault(FaultKind.CLOSE, FIRST, at=HALF), Fault(FaultKind.WRONG_BYTES, FIRST)],
    "416 on resume": [Fault(FaultKind.CLOSE, FIRST, at=HALF), Fault(FaultKind.STATUS, FIRST, status=416, skip=1)],
    "short body": [Fault(FaultKind.SHORT, FIRST, at=10)],
    "long body": [Fault(FaultKind.LONG, FIRST, at=10)],
    "416 again and again": [
        Fault(FaultKind.CLOSE, FIRST, at=HALF),
        Fault(FaultKind.STATUS, FIRST, status=416, times=2, skip=1),
    ],
    "206 from another offset again and again": [
        Fault(FaultKind.CLOSE, FIRST, at=HALF),
        Fault(FaultKind.WRONG_OFFSET, FIRST, times=2),
    ],
    "a login page": [Fault(FaultKind.HTML, FIRST)],
    "a login page on the resume": [Fault(FaultKind.CLOSE, FIRST, at=HALF), Fault(FaultKind.HTML, FIRST, skip=1)],
    "flipped bit in a shard": [Fault(FaultKind.FLIP, FIRST, at=HALF)],
    "flipped bit in config.json": [Fault(FaultKind.FLIP, "config.json", at=3)],
    "another etag on every answer": [
        Fault(FaultKind.CLOSE, FIRST, at=HALF),
        Fault(FaultKind.WRONG_ETAG, FIRST, times=None),
    ],
    "a mirror without the Hub's headers": [
        Fault(FaultKind.BARE, "*", times=None),
        Fault(FaultKind.CLOSE, FIRST, at=HALF),
    ],
    "a mirror without sizes": [Fault(FaultKind.BARE, "*", route=Route.INFO, times=None)],
    "429 on a file": [Fault(FaultKind.STATUS, FIRST, status=429, retry_after="0")],
    "429 on the revision": [Fault(FaultKind.STATUS, NAME, route=Route.INFO, status=429, retry_after="0")],
    "503 on a file": [Fault(FaultKind.STATUS, FIRST, status=503)],
    "503 on the resume": [
        Fault(FaultKind.CLOSE, FIRST, at=HALF),
        Fault(FaultKind.STATUS, FIRST, status=503, skip=1),
    ],
    "500 on the revision": [Fault(FaultKind.STATUS, NAME, route=Route.INFO, status=500)],
    "a stall": [Fault(FaultKind.STALL, FIRST, at=HALF, seconds=1.5)],
    "chunked without length": [Fault(FaultKind.CHUNKED, FIRST)],
}


@pytest.mark.parametrize("with_cache", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("name", SURVIVED)
def test_a_passing_fault_ends_in_the_right_bytes(bench: Bench, name: str, with_cache: bool) -> None:
    bench.fault(*SURVIVED[name])
    done = bench.stage(**({} if with_cache else {"cache": ""}))
    assert bench.files() == FILES
    assert done["source"] == "hub"
    assert bench.left_in_parent() == set()


FATAL: dict[str, tuple[list[Fault], str]] = {
    "clean close always at the same byte": ([Fault(FaultKind.CLOSE, FIRST, times=None, at=HALF)], FIRST),
    "reset always": ([Fault(FaultKind.RESET, FIRST, times=None, at=0)], FIRST),
    "flipped bit always": ([Fault(FaultKind.FLIP, FIRST, times=None, at=HALF)], "sha256"),
    "flipped bit in config.json always": ([Fault(FaultKind.FLIP, "config.json", times=None, at=3)], "git blob id"),
    "wrong digest in the listing": ([Fault(FaultKind.HASH_LIE, FIRST, route=Route.INFO, times=None)], "sha256"),
    "wrong size in the listing": (
        [Fault(FaultKind.SIZE_LIE, FIRST, route=Route.INFO, times=None, at=5)],
        "instead of",
    ),
    "a listed file that is not there": ([Fault(FaultKind.MISSING, FIRST, times=None)], "does not exist"),
    "503 always": ([Fault(FaultKind.STATUS, FIRST, times=None)], "503"),
    "a login page always": ([Fault(FaultKind.HTML, FIRST, times=None)], "text/html"),
    "a stall for ever": ([Fault(FaultKind.STALL, FIRST, times=None, at=0, seconds=3)], "no byte came"),
    "a login page instead of the listing": (
        [Fault(FaultKind.HTML, NAME, route=Route.INFO, times=None)],
        "not a Hub",
    ),
}


@pytest.mark.parametrize("name", FATAL)
def test_a_lasting_fault_is_a_clear_error_and_leaves_nothing(bench: Bench, name: str) -> None:
    faults, said = FATAL[name]
    bench.fault(*faults)
    with pytest.raises(GpuctlError) as error:
        bench.stage()
    assert said in error.value.message
    assert error.value.hint
    assert not bench.target.exists()
    assert bench.left_in_parent() == set()


@pytest.mark.parametrize("name", FATAL)
def test_the_next_stage_after_a_lasting_fault_repairs_everything(bench: Bench, name: str) -> None:
    bench.fault(*FATAL[name][0])
    with pytest.raises(GpuctlError):
        bench.stage()
    bench.hub.faults.clear()
    # A listing that lied is in the cache; asking again is what mends it.
    assert bench.stage(refresh=True)["source"] == "hub"
    assert bench.files() == FILES


def test_a_failed_update_keeps_the_old_weights(bench: Bench) -> None:
    bench.stage()
    from gpuctl.lab.hub import HubRepo

    bench.hub.push(HubRepo(NAME, {**FILES, "config.json": b"{}\n"}))
    bench.fault(Fault(FaultKind.STATUS, "config.json", times=None))
    with pytest.raises(GpuctlError):
        bench.stage(refresh=True)
    assert bench.files() == FILES
    assert bench.status()["state"] == "ready"
    assert bench.left_in_parent() == set()


def test_retry_after_is_waited_for_in_seconds(bench: Bench) -> None:
    bench.fault(Fault(FaultKind.STATUS, FIRST, status=429, retry_after="1"))
    began = time.monotonic()
    bench.stage()
    assert 1.0 <= time.monotonic() - began < 10
    assert "trying again in 1.0 s" in bench.notes()


def test_retry_after_is_waited_for_as_a_date(bench: Bench) -> None:
    bench.fault(
        Fault(
            FaultKind.STATUS,
            NAME,
            route=Route.INFO,
            status=429,
            retry_after=formatdate(time.time() + 2, usegmt=True),
        )
    )
    began = time.monotonic()
    bench.stage()
    assert time.monotonic() - began >= 0.9


def test_a_retry_after_beyond_our_patience_is_an_error_at_once(bench: Bench) -> None:
    bench.fault(Fault(FaultKind.STATUS, FIRST, status=503, retry_after="3600"))
    began = time.monotonic()
    with pytest.raises(CannotLook, match="503"):
        bench.stage()
    assert time.monotonic() - began < 5


def test_a_resume_asks_for_the_rest_only(bench: Bench) -> None:
    bench.fault(Fault(FaultKind.CLOSE, FIRST, at=HALF))
    bench.stage()
    assert bench.gets(FIRST) == ["", f"bytes={HALF}-"]


@pytest.mark.parametrize(
    "hiccup",
    [
        Fault(FaultKind.HTML, FIRST, skip=1),
        Fault(FaultKind.STATUS, FIRST, status=416, skip=1),
        Fault(FaultKind.WRONG_OFFSET, FIRST),
        Fault(FaultKind.STATUS, FIRST, status=503, skip=1),
        Fault(FaultKind.RESET, FIRST),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_one_hiccup_on_the_resume_does_not_cost_what_has_arrived(bench: Bench, hiccup: Fault) -> None:
    bench.fault(Fault(FaultKind.CLOSE, FIRST, at=HALF), hiccup)
    bench.stage()
    assert bench.gets(FIRST) == ["", f"bytes={HALF}-", f"bytes={HALF}-"]


def test_a_flipped_bit_is_said_and_only_that_file_is_fetched_again(bench: Bench) -> None:
    bench.fault(Fault(FaultKind.FLIP, FIRST, at=HALF))
    bench.stage()
    assert bench.gets(FIRST) == ["", ""]
    assert bench.gets(SECOND) == [""]
    assert "not what the Hub lists" in bench.notes()


def test_progress_is_kept_across_runs_when_there_is_a_cache(bench: Bench) -> None:
    bench.fault(Fault(FaultKind.CLOSE, FIRST, times=None, at=HALF))
    with pytest.raises(Failed):
        bench.stage()
    bench.hub.faults.clear()
    before = len(bench.gets(FIRST))
    bench.stage()
    assert bench.gets(FIRST)[before:] == [f"bytes={HALF}-"]
    assert bench.files() == FILES


def test_a_move_of_the_branch_does_not_mix_two_commits(bench: Bench) -> None:
    """The revision is resolved once: files that move meanwhile come from the commit that was resolved."""
    from gpuctl.lab.hub import HubRepo

    old = bench.hub.commit(NAME)
    status = bench.status()
    bench.hub.push(HubRepo(NAME, {**FILES, "config.json": b"{}\n"}))
    done = bench.stage(revision=status["commit"])
    assert done["commit"] == old
    assert bench.files() == FILES
