"""What the user reads when the Hub says no: separate sentences, hints and exit codes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gpuctl.lab.hub import HubRepo
from gpuctl.lab.hub.sample import FILES, NAME
from inventory.errors import CannotLook, ConfigError, Exit, GpuctlError, Refused

if TYPE_CHECKING:
    from tests.provision.weights.conftest import Bench

GATED = HubRepo(NAME, dict(FILES), gated=True, readers=("hf_reader",))


def test_gated_without_a_token(bench: Bench) -> None:
    bench.restart(GATED)
    with pytest.raises(ConfigError, match="gated and no access token") as error:
        bench.stage()
    assert "accept its terms" in error.value.hint
    assert error.value.exit_code is Exit.CONFIG
    assert [seen for seen in bench.hub.requests if "/resolve/" in seen.path] == []


def test_gated_with_a_token_that_was_not_granted(bench: Bench) -> None:
    bench.restart(GATED, HubRepo("lab/other", {"a.txt": b"a"}, gated=True, readers=("hf_stranger",)))
    with pytest.raises(Refused, match="has not been granted access") as error:
        bench.stage(token="hf_stranger")
    assert "ask for access" in error.value.hint


def test_gated_with_a_reader_s_token(bench: Bench) -> None:
    bench.restart(GATED)
    assert bench.stage(token="hf_reader")["source"] == "hub"
    assert bench.files() == FILES


def test_a_token_that_the_hub_does_not_know(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="does not accept the access token") as error:
        bench.stage(token="hf_expired")
    assert "hf_expired" not in str(error.value.to_json())


def test_no_such_repository(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="has no repository lab/none, or it is private"):
        bench.stage(repo="lab/none")


def test_no_such_repository_with_a_good_token(bench: Bench) -> None:
    bench.restart(GATED)
    with pytest.raises(ConfigError, match=r"has no repository lab/none$"):
        bench.stage(repo="lab/none", token="hf_reader")


def test_no_such_revision(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="has no revision 'v9'"):
        bench.stage(revision="v9")


def test_a_selection_that_matches_nothing_names_what_is_there(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="no file matches") as error:
        bench.stage(include=["*.ggfu"])
    assert "config.json" in error.value.hint


def test_a_hub_that_cannot_be_reached_is_unknown_not_failed(bench: Bench) -> None:
    bench.hub.close()
    began = time.monotonic()
    with pytest.raises(CannotLook, match="cannot be reached") as error:
        bench.stage()
    assert error.value.exit_code is Exit.UNKNOWN
    assert time.monotonic() - began < 10


def test_offline_by_the_environment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CannotLook, match="HF_HUB_OFFLINE"):
        bench.stage()


def test_a_plan_shows_the_same_reason_as_the_stage(bench: Bench) -> None:
    bench.restart(GATED)
    with pytest.raises(GpuctlError) as error:
        bench.stage()
    assert bench.status()["blocked"] == error.value.to_json()


def test_the_library_s_token_is_not_given_to_a_named_endpoint(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_machine")
    bench.stage()
    assert {seen.authorized for seen in bench.hub.requests} == {False}


def test_a_token_is_not_sent_to_the_origin_it_is_redirected_to(bench: Bench) -> None:
    from gpuctl.lab.hub import serve

    bench.hub.close()
    bench.hub = serve((GATED,), cdn=True)
    bench.stage(token="hf_reader")
    assert bench.files() == FILES
    assert {seen.authorized for seen in bench.hub.requests if seen.cdn} == {False}
    assert {seen.authorized for seen in bench.hub.requests if not seen.cdn} == {True}


@pytest.mark.parametrize("pickled", ["pytorch_model.bin", "model.pt", "sub/weights.ckpt"])
def test_pickled_weights_are_refused_unless_named(bench: Bench, pickled: str) -> None:
    bench.restart(HubRepo(NAME, {**FILES, pickled: b"pickle"}))
    with pytest.raises(Refused, match="run code") as error:
        bench.stage()
    suffix = "*." + pickled.rsplit(".", 1)[1]
    assert suffix in error.value.hint
    bench.stage(exclude=[suffix])
    assert bench.files() == FILES
    bench.stage(include=["config.json", suffix])
    assert pickled in bench.files()


@pytest.mark.parametrize(
    "path",
    [
        "../evil",
        "a/../../evil",
        "/etc/evil",
        "a//b",
        "a/./b",
        "nul\0",
        "new\nline",
        "back\\slash",
        "x" * 256,
        "/".join(["d" * 200] * 6),
        ".gpuctl-ready.json",
        "sub/.gpuctl-parts/x",
    ],
)
def test_path_tricks_are_refused_before_a_byte_is_written(bench: Bench, path: str) -> None:
    bench.restart(HubRepo(NAME, {**FILES, path: b"evil"}))
    with pytest.raises(Refused, match="lists a file named"):
        bench.stage()
    assert not bench.target.exists()
    assert bench.left_in_parent() == set()
    assert [seen for seen in bench.hub.requests if "/resolve/" in seen.path] == []


def test_a_name_that_is_a_file_and_a_folder_is_refused(bench: Bench) -> None:
    bench.restart(HubRepo(NAME, {"a": b"file", "a/b": b"inside"}))
    with pytest.raises(Refused, match="as a file and as a folder"):
        bench.stage()


@pytest.mark.parametrize("repo", ["", "../x", "a/b/c", "a b/c", "owner/na--me", "http://x/y"])
def test_a_repository_name_that_is_none_is_refused(bench: Bench, repo: str) -> None:
    with pytest.raises(ConfigError, match="not a repository name"):
        bench.stage(repo=repo)


@pytest.mark.parametrize("to", ["", "relative", "/", "/a/../b", "/nul\0"])
def test_a_target_that_is_no_absolute_folder_is_refused(bench: Bench, to: str) -> None:
    with pytest.raises(ConfigError, match="target folder"):
        bench.stage(to=to)


def test_an_unwritable_target_is_said_with_its_path(bench: Bench) -> None:
    bench.target.parent.parent.mkdir(parents=True)
    bench.target.parent.write_text("a file where a folder should be")
    with pytest.raises(GpuctlError, match="models"):
        bench.stage()
