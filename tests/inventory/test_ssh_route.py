"""The way to a machine over SSH: `~/.ssh/config` and jump hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import CannotLook, ConfigError, ConnectionLost
from inventory.model import Ssh
from inventory.ssh import SshShell


def entry(sshd: Any, key: Path | str, **changes: Any) -> Ssh:
    values = {"address": "127.0.0.1", "port": sshd.port, "key": str(key), "known_hosts": "known_hosts"}
    return Ssh(**{**values, "connect_timeout_s": 5.0, **changes})


class TestConfigFile:
    def write(self, home: Path, text: str) -> None:
        (home / ".ssh").mkdir(exist_ok=True)
        (home / ".ssh" / "config").write_text(text)

    def test_an_alias_brings_name_port_user_key_and_known_hosts(
        self, sshd: Any, client_key: Path, tmp_path: Path, home: Path
    ) -> None:
        (home / "hosts").write_text(sshd.line + "\n")
        self.write(
            home,
            f"Host gpubox\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User alice\n"
            f"  IdentityFile {client_key}\n  UserKnownHostsFile ~/hosts\n",
        )
        with SshShell.connect(Ssh(address="gpubox"), base=tmp_path) as shell:
            assert shell.where == f"alice@127.0.0.1:{sshd.port}"
        assert sshd.logins == ["alice"]

    def test_the_inventory_beats_the_file(
        self, sshd: Any, known: Path, client_key: Path, tmp_path: Path, home: Path
    ) -> None:
        self.write(home, "Host *\n  Port 1\n  User nobody\n  IdentityFile /nowhere\n")
        SshShell.connect(entry(sshd, client_key, user="bob"), base=tmp_path).close()
        assert sshd.logins == ["bob"]

    def test_without_any_word_about_it_the_user_is_root(
        self, sshd: Any, known: Path, client_key: Path, tmp_path: Path
    ) -> None:
        SshShell.connect(entry(sshd, client_key), base=tmp_path).close()
        assert sshd.logins == ["root"]

    def test_a_host_key_alias_is_looked_up(self, sshd: Any, client_key: Path, tmp_path: Path, home: Path) -> None:
        self.write(home, "Host 127.0.0.1\n  HostKeyAlias box\n")
        (tmp_path / "known_hosts").write_text(f"box {sshd.public}\n")
        SshShell.connect(entry(sshd, client_key), base=tmp_path).close()

    def test_a_broken_file_is_a_configuration_error(
        self, sshd: Any, client_key: Path, tmp_path: Path, home: Path
    ) -> None:
        self.write(home, "Host a\n  Match\nHostName\n")
        with pytest.raises(ConfigError, match="config"):
            SshShell.connect(entry(sshd, client_key), base=tmp_path)

    def test_a_jump_by_the_file(
        self, sshd: Any, new_sshd: Callable[..., Any], known: Path, client_key: Path, tmp_path: Path, home: Path
    ) -> None:
        bastion = new_sshd()
        known.write_text(f"{sshd.line}\n{bastion.line}\n")
        self.write(
            home,
            f"Host 127.0.0.1\n  ProxyJump hop\nHost hop\n  HostName 127.0.0.1\n  Port {bastion.port}\n  User carol\n",
        )
        SshShell.connect(entry(sshd, client_key), base=tmp_path).close()
        assert (bastion.logins, sshd.logins) == (["carol"], ["root"])


class TestJump:
    def test_the_second_connection_goes_through_the_first(
        self, sshd: Any, new_sshd: Callable[..., Any], known: Path, client_key: Path, tmp_path: Path
    ) -> None:
        bastion = new_sshd()
        known.write_text(f"{sshd.line}\n{bastion.line}\n")
        ssh = entry(sshd, client_key, jump=f"carol@127.0.0.1:{bastion.port}")
        with SshShell.connect(ssh, base=tmp_path) as shell:
            assert shell.run(("echo", "through")).stdout == b"through\n"
            assert bastion.forwarded == [("127.0.0.1", sshd.port)]
            shell.put(b"x" * 300_000, str(tmp_path / "file"))
            assert (tmp_path / "file").stat().st_size == 300_000

    def test_an_unknown_bastion_is_refused_too(
        self, sshd: Any, new_sshd: Callable[..., Any], known: Path, client_key: Path, tmp_path: Path
    ) -> None:
        bastion = new_sshd()
        with pytest.raises(CannotLook, match=f"{bastion.port}: its host key is not known"):
            SshShell.connect(entry(sshd, client_key, jump=f"c@127.0.0.1:{bastion.port}"), base=tmp_path)
        assert not sshd.connections

    def test_a_target_that_the_bastion_cannot_reach_is_told(
        self, new_sshd: Callable[..., Any], client_key: Path, tmp_path: Path
    ) -> None:
        bastion = new_sshd()
        (tmp_path / "known_hosts").write_text(bastion.line + "\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ssh = Ssh(
            address="127.0.0.1",
            port=port,
            key=str(client_key),
            known_hosts="known_hosts",
            jump=f"c@127.0.0.1:{bastion.port}",
        )
        with pytest.raises(CannotLook, match=f"the jump host can't reach 127.0.0.1:{port}"):
            SshShell.connect(ssh, base=tmp_path)

    def test_a_bastion_that_drops_is_a_lost_connection(
        self, sshd: Any, new_sshd: Callable[..., Any], known: Path, client_key: Path, tmp_path: Path
    ) -> None:
        bastion = new_sshd()
        known.write_text(f"{sshd.line}\n{bastion.line}\n")
        with SshShell.connect(entry(sshd, client_key, jump=f"c@127.0.0.1:{bastion.port}"), base=tmp_path) as shell:
            threading.Timer(0.3, bastion.drop).start()
            with pytest.raises(ConnectionLost):
                shell.run(("sleep", "30"))


def _python(code: str, home: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True,
        env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    return done.stdout.strip()


def test_a_configuration_that_asks_a_program_is_followed(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text('Match host pve1 exec "true"\n  HostName 192.0.2.7\n')
    code = (
        "from pathlib import Path; from inventory.model import Ssh; from inventory.ssh_target import route\n"
        "print(route(Ssh(address='pve1'), base=Path('.'))[-1].address)"
    )
    assert _python(code, tmp_path) == "192.0.2.7"


@pytest.mark.parametrize(
    ("config", "loaded"), [("Host pve1\n  HostName 192.0.2.7\n", "['paramiko']"), (None, "[]")]
)
def test_without_such_a_line_paramiko_comes_only_when_needed_and_without_what_it_does_not_need(
    config: str | None, loaded: str, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh/config").write_text(config)
    code = (
        "import sys; from pathlib import Path; from inventory.model import Ssh\n"
        "from inventory.ssh_target import route\n"
        "route(Ssh(address='pve1'), base=Path('.'))\n"
        "print([name for name in ('paramiko', 'invoke', 'unittest') if name in sys.modules])"
    )
    assert _python(code, tmp_path) == loaded
