"""SSH against OpenSSH's own sshd, where it is installed."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.errors import CannotLook, ConnectionLost
from inventory.model import Ssh
from inventory.ssh import SshShell

SSHD = Path("/usr/sbin/sshd")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SSHD.exists(), reason=f"{SSHD} is not installed")]


class Server:
    """sshd in the foreground on a port of its own, with keys and configuration below `folder`."""

    def __init__(self, folder: Path, client_key: Path) -> None:
        if os.getuid() == 0:
            # Started as root it wants this folder, which the boot scripts make elsewhere.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key")]
        subprocess.run(keygen, check=True, timeout=20)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.public = " ".join((folder / "host_key.pub").read_text().split()[:2])
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host_key'}\n"
            f"AuthorizedKeysFile {client_key.with_suffix('.pub')}\nPidFile {folder / 'pid'}\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
            "Subsystem sftp internal-sftp\n"
        )
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {self.public}\n")
        self.process = subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("sshd did not open its port")

    def children(self) -> list[int]:
        """The whole tree below the listener: a session has a monitor and, for ordinary users, a child."""
        found, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            # A session that has just ended takes its folder along while we read.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{pid}/task").glob("*/children"):
                    todo += [int(word) for word in task.read_text().split()]
            found.append(pid)
        return found[1:]

    def drop(self) -> None:
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self.drop()
        self.process.terminate()
        self.process.wait(5)


@pytest.fixture
def server(tmp_path: Path, client_key: Path) -> Iterator[Server]:
    made = Server(tmp_path, client_key)
    yield made
    made.close()


@pytest.fixture
def ssh(server: Server, client_key: Path) -> Ssh:
    user = getpass.getuser()
    return Ssh(address="127.0.0.1", port=server.port, user=user, key=str(client_key), known_hosts="known_hosts")


@pytest.fixture
def shell(ssh: Ssh, tmp_path: Path) -> Iterator[SshShell]:
    made = SshShell.connect(ssh, base=tmp_path)
    yield made
    made.close()


def test_exit_status_and_both_streams_stay_apart(shell: SshShell) -> None:
    done = shell.run(("sh", "-c", "echo out; echo err >&2; exit 7"))
    assert (done.rc, done.stdout) == (7, b"out\n")
    assert done.stderr.endswith(b"err\n")


def test_big_outputs_and_input_do_not_block_each_other(shell: SshShell) -> None:
    data = os.urandom(1024 * 1024)
    done = shell.run(("sh", "-c", "head -c 8000000 /dev/zero >&2; cat"), stdin=data, timeout_s=60)
    assert (done.rc, done.stdout) == (0, data)
    assert len(done.stderr) >= 8_000_000


def test_a_killed_command_is_not_a_lost_connection(shell: SshShell) -> None:
    assert shell.run(("exec", "sh", "-c", "kill -9 $$")).rc in (-1, 137)
    assert shell.run(("true",)).rc == 0


def test_a_killed_session_is_a_lost_connection(server: Server, shell: SshShell) -> None:
    shell.run(("true",))
    import threading

    threading.Timer(0.5, server.drop).start()
    began = time.monotonic()
    with pytest.raises(ConnectionLost):
        shell.run(("sleep", "30"))
    assert time.monotonic() - began < 5
    assert shell.run(("echo", "back")).stdout == b"back\n"


def test_an_unknown_and_a_changed_host_key_are_refused(ssh: Ssh, server: Server, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("")
    with pytest.raises(CannotLook, match="not known") as caught:
        SshShell.connect(ssh, base=tmp_path)
    assert caught.value.detail == (f"[127.0.0.1]:{server.port} {server.public}",)
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")]
    subprocess.run(keygen, check=True, timeout=20)
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {other}\n")
    with pytest.raises(CannotLook, match="CHANGED"):
        SshShell.connect(ssh, base=tmp_path)


def test_hashed_known_hosts_are_understood(ssh: Ssh, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(tmp_path / "known_hosts")], check=True, timeout=20)
    assert "127.0.0.1" not in (tmp_path / "known_hosts").read_text()
    SshShell.connect(ssh, base=tmp_path).close()


def test_files_are_put_in_one_step(shell: SshShell, tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    shell.put(b"one", str(target), mode=0o600)
    shell.put(b"two", str(target), mode=0o640)
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_stopped_server_ends_at_the_time_limit(server: Server, shell: SshShell) -> None:
    shell.run(("true",))
    for pid in server.children():
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(CannotLook):
        shell.run(("true",), timeout_s=1)
    assert time.monotonic() - began < 5
