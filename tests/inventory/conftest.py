"""Real servers on loopback for the doors to the world."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


def _module(name: str) -> ModuleType:
    """A module of this folder; tests are not packages, so it has no import name of its own."""
    full = f"tests_inventory_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder and no agent: the keys of whoever runs the tests must not decide them."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture(scope="session")
def scripted() -> ModuleType:
    return _module("scripted_api")


@pytest.fixture(scope="session")
def good_certificate(scripted: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return scripted.certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def pve(scripted: ModuleType, good_certificate: Any) -> Iterator[Any]:
    """A scripted Proxmox API that knows the login."""
    api = scripted.Api(good_certificate).start()
    yield api
    api.close()


@pytest.fixture(scope="session")
def client_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private key; its public half lies beside it as .pub."""
    import asyncssh

    folder = tmp_path_factory.mktemp("client")
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(folder / "id"))
    key.write_public_key(str(folder / "id.pub"))
    (folder / "id").chmod(0o600)
    return folder / "id"


@pytest.fixture
def new_sshd(client_key: Path) -> Iterator[Callable[..., Any]]:
    """Makes SSH servers that accept `client_key`, and ends them."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(_module("sshd").Sshd(authorized=client_key.with_suffix(".pub"), **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def sshd(new_sshd: Callable[..., Any]) -> Any:
    return new_sshd()


@pytest.fixture
def known(tmp_path: Path, sshd: Any) -> Path:
    file = tmp_path / "known_hosts"
    file.write_text(f"# lab\n{sshd.line}\n")
    return file


def _api_entry(pve: Any, **changes: Any) -> Any:
    from inventory.model import Api

    values = {
        "url": pve.url,
        "user": "root@pam",
        "password": "env:PVE_PASSWORD",
        "fingerprint": pve.cert.fingerprint,
        "timeout_s": 5.0,
    }
    return Api(**{**values, **changes})


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    from inventory.proxmox import ProxmoxApi

    monkeypatch.setenv("PVE_PASSWORD", "correct horse")
    monkeypatch.setenv("PVE_TOKEN", "11111111-2222-3333-4444-555555555555")

    def make(pve: Any, **changes: Any) -> Any:
        return ProxmoxApi.connect(_api_entry(pve, **changes), base=tmp_path)

    return make


@pytest.fixture
def api(pve: Any, connect: Callable[..., Any]) -> Any:
    return connect(pve)
