"""Stored results of the benchmark job: listed, set aside, compared with a baseline."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobkit import Engine, arguments, ignore

from bench import job, store
from bench.baseline import find, key_of
from bench.result import Result
from inventory.errors import Failed, Refused

BOOT = "11111111-aaaa-bbbb-cccc-000000000001"
OTHER = "22222222-aaaa-bbbb-cccc-000000000002"


@pytest.fixture
def engine(wire: Any) -> Engine:
    return Engine(wire)


@pytest.fixture
def made(serve: Any, engine: Engine, tmp_path: Path) -> Callable[..., Result]:
    """Measures quickly and gives the stored result."""
    truth = serve(engine)

    def make(**more: Any) -> Result:
        few = {"repeats": 1, "tasks": ["json"], "max_tokens": [4], **more}
        for _ in range(10):
            result = Result.from_json(job.run(arguments(truth.url, tmp_path, **few), ignore))
            # On a busy machine all four tokens may be read at once, which has no rate.
            if result.decode is not None:
                break
            shutil.rmtree(tmp_path / result.run_id)
        return result

    return make


def test_results_of_other_boots_and_foreign_files_are_strangers_and_set_aside(
    made: Callable[..., Result], tmp_path: Path
) -> None:
    mine, old = made(), made(boot_id=OTHER)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "legacy.json").write_text(json.dumps({"boot_id": OTHER, "tok_s": 26.2}))
    (tmp_path / "half").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/result.json").write_text('{"schema_version": 1, "boot')
    (tmp_path / "future").mkdir()
    (tmp_path / "future/result.json").write_text(json.dumps({"schema_version": 99, "boot_id": BOOT}))
    (tmp_path / ".staging-999999999-x").mkdir()
    (tmp_path / f".staging-{os.getpid()}-x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / mine.run_id)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/result.json").write_text(json.dumps({"schema_version": 1, "boot_id": "../../etc"}))

    listed = job.results({"results": str(tmp_path), "boot_id": BOOT}, ignore)
    assert [one["run_id"] for one in listed["current"]] == [mine.run_id]
    strangers = {Path(one["path"]).name: (one["boot"], one["why"]) for one in listed["strangers"]}
    assert strangers[old.run_id] == (OTHER, "measured in another boot")
    assert strangers["legacy.json"][0] == OTHER
    assert strangers["notes.txt"][0] == strangers["evil"][0] == strangers["half"][0] == "unknown"
    assert "schema 99" in strangers["future"][1]
    assert set(strangers) == {
        old.run_id, "legacy.json", "notes.txt", "half", "torn", "future", ".staging-999999999-x", "link", "evil",
    }  # fmt: skip

    moved = job.set_aside({"results": str(tmp_path), "boot_id": BOOT}, ignore)["moved"]
    assert len(moved) == len(strangers)
    left = {entry.name for entry in tmp_path.iterdir()}
    assert left == {mine.run_id, "earlier-boots", f".staging-{os.getpid()}-x"}
    assert (tmp_path / "earlier-boots" / OTHER / old.run_id / "result.json").exists()
    assert (tmp_path / "earlier-boots/unknown/notes.txt").read_text() == "hello"
    assert job.set_aside({"results": str(tmp_path), "boot_id": BOOT}, ignore) == {"moved": []}
    assert [one.run_id for one in store.earlier(tmp_path)] == [old.run_id]


def test_setting_aside_overwrites_nothing(tmp_path: Path) -> None:
    for text in ("one", "two"):
        (tmp_path / "notes.txt").write_text(text)
        store.set_aside(tmp_path, BOOT)
    kept = sorted(path.read_text() for path in (tmp_path / "earlier-boots/unknown").iterdir())
    assert kept == ["one", "two"]


def test_one_run_is_shown_also_after_it_was_set_aside(made: Callable[..., Result], tmp_path: Path) -> None:
    result = made(boot_id=OTHER)
    args = {"results": str(tmp_path), "run": result.run_id}
    assert Result.from_json(job.results(args, ignore)["result"]) == result
    store.set_aside(tmp_path, BOOT)
    assert Result.from_json(job.results(args, ignore)["result"]) == result
    for name in ("nope", "..", "../x"):
        with pytest.raises(Refused, match="no readable run"):
            job.results({"results": str(tmp_path), "run": name}, ignore)


def test_a_folder_that_does_not_exist_has_no_results(tmp_path: Path) -> None:
    listed = job.results({"results": str(tmp_path / "none"), "boot_id": BOOT}, ignore)
    assert listed == {"current": [], "strangers": []}


def test_a_result_that_can_not_be_written_is_told(made: Callable[..., Result], tmp_path: Path) -> None:
    result = made()
    (tmp_path / "file").write_text("")
    with pytest.raises(Failed, match="cannot be written"):
        store.save(tmp_path / "file", result)
    with pytest.raises(Failed, match="cannot be written"):
        store.save(tmp_path, result)


def test_a_baseline_is_a_proven_auto_result_of_the_same_configuration(made: Callable[..., Result]) -> None:
    first = made()
    same = made(boot_id=OTHER)
    other_length, no_lab = made(max_tokens=[5]), made(lab=False)
    key = key_of(first)
    assert key_of(same) == key
    assert key not in (key_of(other_length), key_of(no_lab))
    everything = (first, same, other_length, no_lab)
    assert find(everything, key, BOOT) == first
    assert find(everything, key) == max(first, same, key=lambda result: result.started_at)
    assert find((made(method="mtp"),), key) is None
    assert find((), key) is None
