"""Running labs for tests: on free ports, in a folder of their own, in each way of keeping processes apart."""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuctl.lab import manage, namespaces, real
from gpuctl.lab.state import LabDir, LabInfo, open_dir
from inventory.errors import Refused

_LOOK = """
import errno, json, os, stat, sys
def look(path):
    try:
        found = os.stat(path)
    except OSError as error:
        return errno.errorcode[error.errno]
    if not stat.S_ISCHR(found.st_mode):
        return "file" if stat.S_ISREG(found.st_mode) else "other"
    number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return f"{number} {stat.S_IMODE(found.st_mode):04o} opens"
    except OSError as error:
        return f"{number} {stat.S_IMODE(found.st_mode):04o} {errno.errorcode[error.errno]}"
print(json.dumps([look(path) for path in sys.argv[1:]]))
"""
FREE_PORTS = {"api": 0, "ssh": 0, "hub": 0, "engine": 0}


@dataclass(frozen=True)
class Ran:
    rc: int
    out: str
    err: str


class Client:
    """One SSH connection to a lab, as gpuctl makes it."""

    def __init__(self, lab: LabDir, **login: Any) -> None:
        import paramiko

        info = manage.running(lab)
        self.port = info.ports["ssh"]
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ssh = paramiko.SSHClient()
        self.ssh.load_host_keys(str(lab.ssh / "known_hosts"))
        self.ssh.connect(
            "127.0.0.1",
            port=self.port,
            username="root",
            sock=sock,
            timeout=10,
            allow_agent=False,
            look_for_keys=False,
            **(login or {"key_filename": str(lab.ssh / "client_key")}),
        )

    def run(self, line: str, stdin: bytes = b"", timeout_s: float = 30) -> Ran:
        given, out, err = self.ssh.exec_command(line, timeout=timeout_s)
        if stdin:
            given.write(stdin)
        given.channel.shutdown_write()
        texts = out.read().decode(), err.read().decode()
        return Ran(out.channel.recv_exit_status(), *texts)

    def ok(self, line: str, stdin: bytes = b"") -> str:
        ran = self.run(line, stdin)
        assert ran.rc == 0, f"{line}: {ran}"
        return ran.out

    def look(self, *names: str, inside: bool = True) -> list[str]:
        """What /dev/NAME is to a process that opens it: `195:0 0666 opens`, `... EPERM`, `file` or `ENOENT`."""
        words = ["python3", "-c", _LOOK, *(f"/dev/{name}" for name in names)]
        found = json.loads(self.ok(shlex.join([*(("pct", "exec", "200", "--") if inside else ()), *words])))
        assert isinstance(found, list)
        return found

    def uvm_major(self) -> str:
        """The major of nvidia-uvm, empty when it is not loaded."""
        return self.run("grep nvidia-uvm /proc/devices").out.partition(" nvidia")[0].strip()

    def close(self) -> None:
        self.ssh.close()


def _require(isolation: str) -> None:
    if isolation == "lxc":
        try:
            real.require()
        except Refused as error:
            pytest.skip(str(error))
    environ = {name: value for name, value in os.environ.items() if name != "GPUCTL_LAB_ISOLATION"}
    if isolation == "namespaces" and namespaces.isolation(environ) != "namespaces":
        pytest.skip("this user may not make namespaces here")


def _start(folder: Path, isolation: str) -> LabDir:
    _require(isolation)
    lab = open_dir(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUCTL_LAB_ISOLATION", isolation)
        manage.up(lab, FREE_PORTS)
    return lab


@pytest.fixture(scope="module", params=["namespaces", "plain", pytest.param("lxc", marks=pytest.mark.root)])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabDir]:
    """A running lab, shared by the tests of a module: in namespaces, without, and (level 1) of real nodes and LXC."""
    made = open_dir(tmp_path_factory.mktemp("lab") / "state")
    try:
        yield _start(made.root, request.param)
    finally:
        manage.down(made, purge=True)


@pytest.fixture(scope="module")
def isolated_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabDir]:
    """A running lab in namespaces, shared by the tests of a module."""
    made = open_dir(tmp_path_factory.mktemp("lab") / "state")
    try:
        yield _start(made.root, "namespaces")
    finally:
        manage.down(made, purge=True)


@pytest.fixture(scope="session")
def start_in() -> Callable[[Path, str], LabDir]:
    """A function (folder, isolation) -> LabDir; who calls it stops the lab."""
    return _start


@pytest.fixture
def start_lab(tmp_path: Path) -> Iterator[Any]:
    """A function (name, isolation) -> LabDir that starts labs of this test alone; all are stopped after it."""
    made: list[LabDir] = []

    def start(name: str, isolation: str = "namespaces") -> LabDir:
        made.append(open_dir(tmp_path / name))
        return _start(made[-1].root, isolation)

    try:
        yield start
    finally:
        for lab in made:
            manage.down(lab)


@pytest.fixture
def client(lab: LabDir) -> Iterator[Client]:
    """A connection to the shared lab."""
    made = Client(lab)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def info(lab: LabDir) -> LabInfo:
    """What lab.json says now."""
    return manage.running(lab)


@pytest.fixture
def connect() -> Iterator[Any]:
    """A function (lab, **login) -> Client; all are closed after the test."""
    made: list[Client] = []

    def make(lab: LabDir, **login: Any) -> Client:
        made.append(Client(lab, **login))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.close()
