"""The job inside the container: its device nodes and the driver's libraries."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inventory.machine import ignore
from provision.devices.facts import CtFacts, NodeKind
from provision.devices.observe import ct_job


def _write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.mark.parametrize("name", ["EPERM", "EACCES", "ENXIO", "EIO", "ENODEV", ""])
def test_inside_each_node_is_opened_and_its_errno_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    real_lstat, real_open = os.lstat, os.open

    def lstat(path: Any, **more: Any) -> Any:
        if str(path).endswith("/dev/nvidia0"):
            return SimpleNamespace(
                st_mode=stat.S_IFCHR | 0o660, st_rdev=os.makedev(195, 0), st_uid=65534, st_gid=44, st_ctime=5.0
            )
        return real_lstat(path, **more)

    def open_(path: Any, given: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith("/dev/nvidia0"):
            if name:
                raise OSError(getattr(errno, name), "")
            return real_open("/dev/null", given)
        return real_open(path, given, *rest, **more)

    monkeypatch.setattr(os, "lstat", lstat)
    monkeypatch.setattr(os, "open", open_)
    node = CtFacts.from_json(ct_job.facts({"nodes": ["nvidia0"]}, ignore)).node("/dev/nvidia0")
    assert (node.kind, node.number, node.mode, node.opened) == (NodeKind.CHAR, (195, 0), 0o660, name)


@pytest.mark.root
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_a_link_in_the_container_counts_as_what_it_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/real", 0o020000 | 0o666, os.makedev(1, 3))
    (tmp_path / "dev/nvidia0").symlink_to("real")
    (tmp_path / "dev/nvidia1").symlink_to("gone")
    inside = CtFacts.from_json(ct_job.facts({"nodes": ["nvidia0"]}, ignore))
    node = inside.node("/dev/nvidia0")
    assert (node.kind, node.number, node.opened, node.why) == (NodeKind.CHAR, (1, 3), "", "a link to real")
    lost = inside.node("/dev/nvidia1")
    assert (lost.kind, lost.opened) == (NodeKind.SYMLINK, None)
    assert "gone, which leads to nothing" in lost.why


def _libraries() -> tuple[str, ...]:
    return CtFacts.from_json(ct_job.facts({}, ignore)).libraries


def test_library_versions_in_the_container_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    names = ("libcuda.so.595.45.04", "libcuda.so.1", "libnvidia-ml.so.595.45.04", "libc.so.6", "libcudart.so.12.1")
    _write(tmp_path, {f"usr/lib/x86_64-linux-gnu/{name}": "" for name in names})
    (tmp_path / "usr/lib64").mkdir()
    (tmp_path / "usr/lib64/libcuda.so.1").symlink_to("gone")
    assert _libraries() == ("libcuda.so.595.45.04", "libnvidia-ml.so.595.45.04")


def test_a_leftover_library_that_no_loader_takes_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    _write(folder, {f"libcuda.so.{version}": "" for version in ("570.148.06", "570.148.08")})
    assert _libraries() == ("libcuda.so.570.148.06", "libcuda.so.570.148.08")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.570.148.08")
    assert _libraries() == ("libcuda.so.570.148.08",)
    # Debian's alternatives: a chain of whole paths.
    (folder / "libcuda.so.1").unlink()
    (folder / "libcuda.so.1").symlink_to("/etc/alternatives/glx--libcuda.so.1")
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "etc/alternatives/glx--libcuda.so.1").symlink_to("/usr/lib/x86_64-linux-gnu/libcuda.so.570.148.06")
    assert _libraries() == ("libcuda.so.570.148.06",)


def test_folders_of_the_loaders_cache_are_searched_but_not_cuda_compat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    _write(tmp_path, {"opt/nv/libcuda.so.1.1.1": "", "usr/local/cuda/compat/libcuda.so.9.9.9": ""})
    cache = b"glibc-ld.so.cache1.1\x02\0\0\0\xff\0libcuda.so.1\0/opt/nv/libcuda.so.1\0libcuda.so.1\0"
    cache += b"/usr/local/cuda/compat/libcuda.so.1\0libc.so.6\0/lib/x86_64-linux-gnu/libc.so.6\0"
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(cache)
    assert ct_job.cached_folders(cache) == ("/opt/nv",)
    assert _libraries() == ("libcuda.so.1.1.1",)
    (tmp_path / "etc/ld.so.cache").write_bytes(os.urandom(300_000))
    assert _libraries() == ()


def test_the_loaders_cache_of_this_machine_is_read() -> None:
    cache = Path("/etc/ld.so.cache").read_bytes()
    folder = ct_job.cached_folders(cache.replace(b"/libc.so.6\0", b"/libcuda.so.1\0", 1))
    assert folder and folder[0].startswith(("/lib", "/usr/lib"))
