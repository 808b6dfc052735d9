"""Targets and caches that are refused, and files of somebody else that are never touched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuctl.lab.hub import HubRepo
from gpuctl.lab.hub.sample import FILES, FIRST, NAME, SECOND
from inventory.errors import ConfigError, GpuctlError, Refused

if TYPE_CHECKING:
    from tests.provision.weights.conftest import Bench


def test_files_of_somebody_else_are_never_touched(bench: Bench) -> None:
    bench.target.mkdir(parents=True)
    (bench.target / "thesis.txt").write_text("mine")
    with pytest.raises(Refused, match="not staged by gpuctl"):
        bench.stage()
    assert bench.status()["blocked"]["kind"] == "refused"
    assert (bench.target / "thesis.txt").read_text() == "mine"
    assert bench.hub.requests == []


def test_an_empty_folder_may_be_taken(bench: Bench) -> None:
    bench.target.mkdir(parents=True)
    bench.stage()
    assert bench.files() == FILES


def test_a_symlinked_target_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    bench.target.parent.mkdir(parents=True)
    bench.target.symlink_to(tmp_path / "real")
    with pytest.raises(Refused):
        bench.stage()


def test_a_mount_point_is_refused_with_a_folder_below_it_as_the_hint(bench: Bench) -> None:
    with pytest.raises(Refused, match="mount point") as error:
        bench.stage(to="/proc")
    assert "/proc/tiny" in error.value.hint


def test_a_missing_shard_is_found_before_the_shards_are_fetched(bench: Bench) -> None:
    bench.restart(HubRepo(NAME, {path: data for path, data in FILES.items() if path != SECOND}))
    with pytest.raises(GpuctlError, match=SECOND):
        bench.stage(cache="")
    assert not bench.target.exists()
    assert bench.left_in_parent() == set()


def test_a_shard_that_was_uploaded_truncated_is_refused(bench: Bench) -> None:
    bench.restart(HubRepo(NAME, {**FILES, SECOND: FILES[SECOND][:-100]}))
    with pytest.raises(GpuctlError, match="broken in the repository"):
        bench.stage()
    assert not bench.target.exists()


def test_two_names_of_equal_bytes_are_fetched_once(bench: Bench) -> None:
    files = {"one.gguf": FILES[FIRST], "two.gguf": FILES[FIRST]}
    bench.restart(HubRepo(NAME, dict(files)))
    bench.stage()
    assert bench.files() == files
    assert len(bench.gets("one.gguf")) + len(bench.gets("two.gguf")) == 1
    assert bench.status()["state"] == "ready"


def test_a_cache_in_memory_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="lies in memory"):
        bench.stage(cache="/dev/shm/cache-of-a-test")


@pytest.mark.parametrize(("to", "cache"), [("/a/b", "/a"), ("/a", "/a/b"), ("/a", "/a")])
def test_target_and_cache_must_not_overlap(bench: Bench, to: str, cache: str) -> None:
    with pytest.raises(ConfigError, match="overlap"):
        bench.stage(to=to, cache=cache)


def test_two_models_must_not_share_a_folder(bench: Bench) -> None:
    from provision.weights.job import stage

    entry = bench.args()["weights"][0]
    for other in (entry["to"], entry["to"] + "/inner"):
        with pytest.raises(ConfigError, match="overlapping"):
            stage({"weights": [entry, {**entry, "to": other}]})
    assert bench.hub.requests == []
