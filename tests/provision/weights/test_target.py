"""The target folder: what is believed, what is found damaged, what is mended, what is never touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuctl.lab.hub import HubRepo
from gpuctl.lab.hub.sample import FILES, FIRST, NAME, SECOND, TINY
from inventory.errors import GpuctlError

if TYPE_CHECKING:
    from tests.provision.weights.conftest import Bench


def flip(path: Path, at: int) -> None:
    """Flip one bit and put the modification time back, as a bad memory cell or a careful tool would."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_cold_stage_brings_the_very_bytes_and_says_from_where(bench: Bench) -> None:
    done = bench.stage()
    assert bench.files() == FILES
    size = sum(len(data) for data in FILES.values())
    assert (done["source"], done["files"], done["bytes"], done["fetched"]) == ("hub", len(FILES), size, size)
    assert done["commit"] == bench.hub.commit(NAME)
    assert (bench.target / ".gpuctl-ready.json").is_file()


def test_what_is_staged_already_makes_no_request(bench: Bench) -> None:
    bench.stage()
    before = len(bench.hub.requests)
    assert bench.status()["state"] == "ready"
    assert bench.stage()["source"] == "already"
    assert len(bench.hub.requests) == before


def test_after_a_reboot_the_cache_is_enough(bench: Bench) -> None:
    bench.stage()
    bench.hub.close()
    shutil.rmtree(bench.target.parent)
    facts = bench.status()
    assert (facts["state"], facts["source"], facts["fetch"]) == ("absent", "cache", 0)
    done = bench.stage()
    assert (done["source"], done["fetched"]) == ("cache", 0)
    assert bench.files() == FILES


def test_a_status_changes_nothing_on_disk(bench: Bench) -> None:
    assert bench.status()["state"] == "absent"
    assert not bench.target.parent.exists()
    assert not bench.cache.exists()


def test_a_truncated_file_with_its_old_time_is_found_and_mended_alone(bench: Bench) -> None:
    bench.stage()
    victim = bench.target / FIRST
    times = victim.stat()
    os.truncate(victim, 1000)
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    facts = bench.status()
    assert facts["state"] == "damaged"
    assert facts["reasons"] == [f"{FIRST} has 1000 bytes instead of {len(FILES[FIRST])}"]
    done = bench.stage()
    assert (done["source"], done["copied"]) == ("cache", len(FILES[FIRST]))
    assert bench.files() == FILES
    assert bench.status()["state"] == "ready"


def test_a_flipped_bit_with_its_old_time_is_found_by_a_quick_look(bench: Bench) -> None:
    bench.stage()
    flip(bench.target / SECOND, 5000)
    facts = bench.status()
    assert facts["state"] == "damaged"
    assert SECOND in facts["reasons"][0]
    bench.stage()
    assert bench.files() == FILES
    assert bench.status(verify="full")["state"] == "ready"


def test_a_full_verification_reads_every_byte(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the change time says nothing (here: the look at it is switched off)."""
    bench.stage()
    flip(bench.target / SECOND, 5000)
    from provision.weights import verify

    monkeypatch.setattr(verify, "_look", lambda target, manifest: ((), frozenset()))
    assert bench.status()["state"] == "ready"
    facts = bench.status(verify="full")
    assert facts["state"] == "damaged"
    assert "sha256" in facts["reasons"][0]


def test_a_file_that_was_only_touched_is_read_once_and_kept(bench: Bench) -> None:
    bench.stage()
    (bench.target / FIRST).chmod(0o600)
    (bench.target / FIRST).chmod(0o644)
    inode = (bench.target / FIRST).stat().st_ino
    assert bench.status()["state"] == "damaged"
    assert bench.stage()["source"] == "already"
    assert (bench.target / FIRST).stat().st_ino == inode
    assert bench.status()["state"] == "ready"


@pytest.mark.parametrize("name", ["config.json", FIRST])
def test_a_missing_file_is_brought_alone_and_the_others_keep_their_memory(bench: Bench, name: str) -> None:
    bench.stage(cache="")
    (bench.target / name).unlink()
    kept = {path: (bench.target / path).stat().st_ino for path in FILES if path != name}
    done = bench.stage(cache="")
    assert done["fetched"] == len(FILES[name])
    assert bench.files() == FILES
    assert {path: (bench.target / path).stat().st_ino for path in kept} == kept


def test_a_damaged_marker_does_not_cost_the_weights(bench: Bench) -> None:
    bench.stage()
    (bench.target / ".gpuctl-ready.json").write_text("{")
    assert bench.status()["state"] == "damaged"
    assert bench.stage()["source"] == "cache"
    assert bench.files() == FILES


def test_a_symlink_instead_of_a_file_is_damage(bench: Bench, tmp_path: Path) -> None:
    bench.stage()
    shutil.move(bench.target / FIRST, tmp_path / "elsewhere")
    (bench.target / FIRST).symlink_to(tmp_path / "elsewhere")
    assert "not a regular file" in bench.status()["reasons"][0]
    bench.stage()
    assert not (bench.target / FIRST).is_symlink()
    assert bench.files() == FILES


def test_another_revision_replaces_the_target_and_reuses_equal_files(bench: Bench) -> None:
    bench.stage()
    changed = {**FILES, "config.json": b"{}\n"}
    commit = bench.hub.push(HubRepo(NAME, changed, refs=("next",)))
    inode = (bench.target / FIRST).stat().st_ino
    assert bench.status(revision="next")["state"] == "stale"
    done = bench.stage(revision="next")
    assert (done["commit"], done["fetched"]) == (commit, 3)
    assert bench.files() == changed
    assert (bench.target / FIRST).stat().st_ino == inode
    assert bench.status(revision="next")["state"] == "ready"
    assert bench.left_in_parent() == set()


def test_a_file_that_a_new_revision_dropped_is_gone(bench: Bench) -> None:
    bench.stage()
    fewer = {path: data for path, data in FILES.items() if path != "config.json"}
    bench.hub.push(HubRepo(NAME, fewer))
    bench.stage(refresh=True)
    assert bench.files() == fewer


def test_a_branch_that_moved_is_followed_only_when_asked(bench: Bench) -> None:
    first = bench.stage()["commit"]
    second = bench.hub.push(HubRepo(NAME, {**FILES, "config.json": b"{}\n"}))
    assert bench.stage()["commit"] == first
    assert bench.status(refresh=True)["state"] == "stale"
    assert bench.stage(refresh=True)["commit"] == second
    assert bench.stage(refresh=True)["source"] == "already"


def test_a_full_commit_id_needs_no_network_once_staged(bench: Bench) -> None:
    commit = bench.stage()["commit"]
    bench.hub.close()
    assert bench.stage(revision=commit)["source"] == "already"


def test_a_selection_takes_only_what_it_names(bench: Bench) -> None:
    bench.stage(include=["*.json", "sub/"], exclude=["model.*"])
    assert set(bench.files()) == {"config.json", "sub/empty.txt"}
    assert bench.status()["state"] == "stale"
    bench.stage()
    assert bench.files() == FILES


def test_of_two_models_the_unchanged_one_is_not_touched(bench: Bench) -> None:
    from provision.weights.job import stage

    draft = HubRepo("lab/draft", {"draft.gguf": FILES[FIRST]})
    bench.restart(TINY, draft)
    first = bench.args()["weights"][0]
    second = {**first, "repo": "lab/draft", "to": str(bench.target.with_name("draft"))}
    stage({"weights": [first, second]})
    (bench.target.with_name("draft") / "draft.gguf").unlink()
    done = stage({"weights": [first, second]})["staged"]
    assert [one["source"] for one in done] == ["already", "cache"]


def test_a_damaged_cache_file_is_put_aside_said_and_fetched_again(bench: Bench) -> None:
    bench.stage()
    shutil.rmtree(bench.target.parent)
    blobs = [path for path in (bench.cache / "lab--tiny" / "blobs").iterdir() if path.stat().st_size > 10_000]
    flip(blobs[0], 4000)
    done = bench.stage()
    assert bench.files() == FILES
    assert (done["source"], done["fetched"]) == ("hub", blobs[0].stat().st_size)
    assert "damaged" in bench.notes()
    quarantined = list((bench.cache / "lab--tiny" / "quarantine").iterdir())
    assert [path.name for path in quarantined] == [blobs[0].name]
    shutil.rmtree(bench.target.parent)
    bench.hub.close()
    assert bench.stage()["source"] == "cache"


def test_a_damaged_cache_without_network_is_said_and_leaves_nothing(bench: Bench) -> None:
    bench.stage()
    bench.hub.close()
    shutil.rmtree(bench.target.parent)
    blobs = [path for path in (bench.cache / "lab--tiny" / "blobs").iterdir() if path.stat().st_size > 10_000]
    flip(blobs[0], 4000)
    with pytest.raises(GpuctlError, match="cannot be reached"):
        bench.stage()
    assert "damaged" in bench.notes()
    assert not bench.target.exists()
    assert bench.left_in_parent() == set()


def test_a_truncated_cache_file_is_fetched_again(bench: Bench) -> None:
    bench.stage()
    shutil.rmtree(bench.target.parent)
    for path in (bench.cache / "lab--tiny" / "blobs").iterdir():
        if path.stat().st_size > 10_000:
            os.truncate(path, 10_000)
    assert bench.stage()["source"] == "hub"
    assert bench.files() == FILES


def test_progress_events_count_to_the_total(bench: Bench) -> None:
    bench.stage()
    total = sum(len(data) for data in FILES.values())
    last = [event for event in bench.events if event["type"] == "progress"][-1]
    assert (last["what"], last["done"], last["total"]) == ("weights", total, total)


def test_the_token_is_in_no_file_event_or_value(bench: Bench) -> None:
    secret = "hf_neverseen"
    bench.restart(HubRepo(NAME, dict(FILES), gated=True, readers=(secret,)))
    done = bench.stage(token=secret)
    texts = [str(done), str(bench.status(token=secret)), str(bench.events)]
    for folder in (bench.target.parent, bench.cache):
        texts += [path.read_text() for path in folder.rglob("*") if path.suffix == ".json" or "lock" in path.name]
    assert texts
    assert not [text for text in texts if secret in text]


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_odd_places_are_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A target on a disk and a cache in memory both work, and are both said."""
    from provision.weights import room

    mounts = f"22 1 0:20 / / rw - {kind} x rw\n"
    monkeypatch.setattr(room, "_read", lambda path: mounts if path == "/proc/self/mountinfo" else None)
    notes = " ".join(bench.stage()["notes"])
    assert ("not in memory" in notes) == (kind == "ext4")
    assert ("gone after a reboot" in notes) == (kind == "tmpfs")
    assert ("MemAvailable could not be read" in notes) == (kind == "tmpfs")
