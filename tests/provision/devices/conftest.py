"""A host and its container in memory, and the recorded configurations of the real Proxmox code."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from devicekit import ALLOW, BASE, World, char, make_container, make_host, nodes_for, proc_devices, raw_conf

from inventory.model import Container
from provision.devices.change import conf_file

RECORDED = Path(__file__).parents[2] / "data" / "pve"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A host right after a reboot: nvidia-uvm not loaded, its number moved from 511 to 509, container started."""
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    made = World(tmp_path)
    made.conf.parent.mkdir(parents=True)
    made.conf.write_text(
        raw_conf(195, 511, gpus=2) + "\n[fresh]\nmemory: 1\nlxc.cgroup2.devices.allow: c 511:* rwm\n"
    )
    made.nodes = {node.path: node for node in nodes_for(None, 2)}
    made.begin()
    return made


@pytest.fixture
def container() -> Container:
    return make_container(2)


@pytest.fixture
def make() -> SimpleNamespace:
    """The builders of this file; tests can't import a conftest."""
    return SimpleNamespace(
        host=make_host, container=make_container, conf=raw_conf, char=char, proc=proc_devices, nodes=nodes_for,
        base=BASE, allow=ALLOW,
    )  # fmt: skip


def _recorded(field_: Mapping[str, str]) -> bytes:
    if "text" in field_:
        return field_["text"].encode()
    if "b64" in field_:
        return base64.b64decode(field_["b64"])
    return zlib.decompress(base64.b64decode(field_["zb64"]))


@pytest.fixture(scope="session")
def recorded() -> Callable[[Mapping[str, str]], bytes]:
    """Turns a recorded bytes field into bytes."""
    return _recorded


@pytest.fixture(scope="session")
def conf_vectors() -> list[dict[str, Any]]:
    """What the real parser made of 179 configurations."""
    return list(_lines("conf-vectors.jsonl"))


@pytest.fixture(scope="session")
def value_vectors() -> list[dict[str, Any]]:
    """What the real code made of 289 single values."""
    return list(_lines("value-vectors.jsonl"))


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with (RECORDED / name).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


@pytest.fixture
def conf_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder with the configuration of container 200."""
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    path = Path(str(tmp_path) + conf_file.path_of(200))
    path.parent.mkdir(parents=True)
    path.write_text(raw_conf(195, 511))
    return tmp_path
