"""The small parts: waiting, locking, writing under a staging name, judging headers, running in threads."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuctl.lab.hub.sample import shard
from inventory.errors import Failed, Refused
from inventory.root import at
from provision.weights import lock, pool
from provision.weights.complete import check_index, check_shards
from provision.weights.digest import Digest
from provision.weights.model import Listing, Manifest, RemoteFile, StagedFile, size_text
from provision.weights.names import check_paths
from provision.weights.patience import Passing, Patience, Stopped, retry_after_s, tries
from provision.weights.place import Sink, Staging, exchange, read_json, used, write_json

FAST = Patience(tries=3, first_wait_s=0.001, max_wait_s=0.002)


def silent(line: str) -> None:
    """A note nobody reads."""


def passing(**more: Any) -> Passing:
    return Passing("it broke", Failed("it broke"), **more)


@pytest.mark.parametrize(
    ("value", "seconds"), [("3", 3.0), ("0", 0.0), ("-1", 0.0), ("soon", None), ("", None), (None, None)]
)
def test_retry_after_in_seconds(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value) == seconds


def test_retry_after_as_a_date_in_the_past_is_now() -> None:
    assert retry_after_s(formatdate(0, usegmt=True)) == 0.0
    ahead = retry_after_s(formatdate(time.time() + 100, usegmt=True))
    assert ahead is not None
    assert 95 < ahead <= 100


def test_tries_in_a_row_without_progress_are_counted() -> None:
    done = 0
    with pytest.raises(Passing):
        for attempt in tries(FAST, threading.Event(), silent):
            with attempt:
                done += 1
                raise passing()
    assert done == 3


def test_progress_starts_the_count_again() -> None:
    done: list[int] = []
    with pytest.raises(Passing):
        for attempt in tries(FAST, threading.Event(), silent, progress=lambda: min(len(done), 10)):
            with attempt:
                done.append(1)
                raise passing()
    assert len(done) == 12


def test_a_stop_ends_the_waiting() -> None:
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        for attempt in tries(Patience(), stop, silent):
            with attempt:
                raise passing(retry_after_s=60.0)
    assert time.monotonic() - began < 5


def test_other_failures_are_not_tried_again() -> None:
    done = 0
    with pytest.raises(Failed):
        for attempt in tries(FAST, threading.Event(), silent):
            with attempt:
                done += 1
                raise Failed("for good")
    assert done == 1


def test_a_lock_is_waited_for_said_and_bounded(tmp_path: Path) -> None:
    told: list[str] = []
    with lock.hold(tmp_path / "l", silent, wait_s=1):
        refused = pytest.raises(Refused, match=f"pid {os.getpid()} still holds")
        with refused, lock.hold(tmp_path / "l", told.append, wait_s=0.3):
            raise AssertionError("two holders")
    assert len(told) == 1
    with lock.hold(tmp_path / "l", silent, wait_s=0):
        pass


def test_a_lock_of_another_boot_is_told_apart(tmp_path: Path) -> None:
    with lock.hold(tmp_path / "l", silent, wait_s=1):
        (tmp_path / "l").write_text(json.dumps({"pid": 7, "boot_id": "another"}))
        refused = pytest.raises(Refused, match="pid 7 of another boot or machine")
        with refused, lock.hold(tmp_path / "l", silent, wait_s=0):
            raise AssertionError("two holders")


def test_a_sink_goes_on_after_what_is_there(tmp_path: Path) -> None:
    first = Sink(tmp_path / "a.part", 10, keep=True)
    first.write(b"01234")
    first.close()
    seen: list[bytes] = []
    second = Sink(tmp_path / "a.part", 10, keep=True)
    second.replay(lambda block: seen.append(bytes(block)))
    second.write(b"56789")
    second.commit(tmp_path / "sub" / "a", durable=True)
    assert seen == [b"01234"]
    assert (tmp_path / "sub" / "a").read_bytes() == b"0123456789"
    assert not (tmp_path / "a.part").exists()


def test_a_sink_longer_than_its_file_starts_again(tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"x" * 11)
    sink = Sink(tmp_path / "a.part", 10, keep=True)
    assert sink.length == 0
    sink.discard()
    assert not (tmp_path / "a.part").exists()


def test_room_is_set_aside_without_changing_the_length() -> None:
    folder = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp") / f"gpuctl-test-{os.getpid()}"
    sink = Sink(folder / "a.part", 1_000_000)
    try:
        assert (folder / "a.part").stat().st_size == 0
        assert used(folder / "a.part") in (0, 1_003_520)  # 0 where the file system cannot
    finally:
        sink.discard()
        folder.rmdir()


def test_two_folders_change_places(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange names")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


@pytest.mark.parametrize("can", [True, False])
def test_publishing_replaces_a_target_whole(tmp_path: Path, can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not can:
        monkeypatch.setattr("provision.weights.place.exchange", lambda one, other: False)
    staging = Staging(tmp_path / "m")
    for folder, name in ((staging.target, "old"), (staging.folder, "new")):
        folder.mkdir()
        (folder / name).touch()
    staging.publish()
    assert [path.name for path in staging.target.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_json_is_written_whole_and_read_or_none(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1}, durable=True)
    assert read_json(tmp_path / "a.json") == {"x": 1}
    (tmp_path / "a.json").write_text("{")
    assert read_json(tmp_path / "a.json") is None
    assert read_json(tmp_path / "none.json") is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_the_git_blob_id_is_git_s() -> None:
    # `printf 'hello\n' | git hash-object --stdin`
    digest = Digest(RemoteFile("a", 6, git_sha1="ce013625030ba8dba906f756967f9e9ca394464a"))
    digest.update(b"hel")
    assert not digest.right()
    digest.update(b"lo\n")
    assert digest.right()
    assert digest.sha256 == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"


def test_a_manifest_s_git_file_is_held_to_both_digests() -> None:
    digest = Digest(RemoteFile("a", 6, sha256="0" * 64, git_sha1="0" * 40))
    digest.update(b"hello\n")
    assert not digest.right()


def one(path: str, data: bytes, folder: Path) -> RemoteFile:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    return RemoteFile(path, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        shard(1, 100)[:-1],
        shard(1, 100) + b"x",
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 2) + b"{{",
        struct.pack("<Q", 10) + b'{"w": null',
    ],
)
def test_a_broken_safetensors_file_is_named(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Failed, match=r"w\.safetensors is broken"):
        check_shards("lab/tiny", tmp_path, (one("w.safetensors", data, tmp_path),))


def test_a_whole_safetensors_file_passes(tmp_path: Path) -> None:
    check_shards("lab/tiny", tmp_path, (one("w.safetensors", shard(1, 100), tmp_path), RemoteFile("x.txt", 1)))


def test_an_index_is_relative_to_its_folder(tmp_path: Path) -> None:
    index = one("sub/model.safetensors.index.json", b'{"weight_map": {"a": "s.safetensors"}}', tmp_path)
    check_index("lab/tiny", tmp_path, (index, RemoteFile("sub/s.safetensors", 1)))
    with pytest.raises(Failed, match=r"names sub/s\.safetensors"):
        check_index("lab/tiny", tmp_path, (index, RemoteFile("s.safetensors", 1)))


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"weight_map": 3}'])
def test_an_index_that_is_none_is_said(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Failed, match="not an index"):
        check_index("lab/tiny", tmp_path, (one("m.safetensors.index.json", data, tmp_path),))


@given(st.text(max_size=40))
def test_no_path_that_passes_leaves_the_folder(path: str) -> None:
    try:
        check_paths("r", (RemoteFile(path, 1),))
    except Refused:
        return
    assert Path(os.path.normpath("/t/" + path)).is_relative_to("/t")
    assert os.path.normpath("/t/" + path) != "/t"


def test_the_first_failure_stops_the_other_threads() -> None:
    stop = threading.Event()

    def fail() -> None:
        raise Failed("first")

    def wait() -> None:
        if stop.wait(10):
            raise Stopped

    began = time.monotonic()
    with pytest.raises(Failed, match="first"):
        pool.run([wait, fail, wait], stop)
    assert time.monotonic() - began < 5


def test_all_tasks_are_run() -> None:
    done: list[int] = []
    tasks: list[Callable[[], None]] = [lambda n=n: done.append(n) for n in range(50)]  # type: ignore[misc]
    pool.run(tasks, threading.Event())
    assert sorted(done) == list(range(50))
    pool.run([], threading.Event())


def test_values_survive_json() -> None:
    file = StagedFile("a", 1, "s", "g", 2, 3)
    manifest = Manifest("r", "main", "c" * 40, ("*.json",), (), (file,), 1.0, 2.0)
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    listing = Listing("r", "c" * 40, (file.remote,), gated=True)
    assert Listing.from_json(json.loads(json.dumps(listing.to_json()))) == listing


@pytest.mark.parametrize("data", [None, {}, [], {"schema_version": 2}, {"schema_version": 1, "repo": "r"}])
def test_a_manifest_of_another_form_is_not_taken(data: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Manifest.from_json(data)


def test_sizes_are_told_in_decimal_units() -> None:
    assert [size_text(n) for n in (0, 999, 98_362_640, 52_000_000_000, 2_000_000_000_000)] == [
        "0 B",
        "999 B",
        "98.4 MB",
        "52.0 GB",
        "2.00 TB",
    ]


def test_a_target_lies_below_the_file_system_s_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", "/lab/ct/200/rootfs/")
    assert at("/dev/shm/m") == "/lab/ct/200/rootfs/dev/shm/m"
