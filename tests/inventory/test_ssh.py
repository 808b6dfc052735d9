"""SSH against a real server (asyncssh) whose commands are real processes."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from inventory.errors import CannotLook, ConfigError, ConnectionLost, Exit, Failed, Refused
from inventory.model import Ssh
from inventory.ssh import SshShell


@pytest.fixture
def known(tmp_path: Path, sshd: Any) -> Path:
    file = tmp_path / "known_hosts"
    file.write_text(f"# lab\n{sshd.line}\n")
    return file


def entry(sshd: Any, key: Path | str, **changes: Any) -> Ssh:
    values = {"address": "127.0.0.1", "port": sshd.port, "key": str(key), "known_hosts": "known_hosts"}
    return Ssh(**{**values, "connect_timeout_s": 5.0, **changes})


@pytest.fixture
def shell(sshd: Any, known: Path, client_key: Path, tmp_path: Path) -> Iterator[SshShell]:
    made = SshShell.connect(entry(sshd, client_key), base=tmp_path)
    yield made
    made.close()


class TestCommands:
    def test_exit_status_and_both_streams_stay_apart(self, shell: SshShell) -> None:
        done = shell.run(("sh", "-c", "echo out; echo err >&2; exit 7"))
        assert (done.rc, done.stdout, done.stderr) == (7, b"out\n", b"err\n")

    def test_every_argument_arrives_as_written(self, shell: SshShell) -> None:
        words = ("a b", "", "$HOME", "`id`", "';\"", "*", "\\", "line\nbreak", "ü")
        done = shell.run(("printf", "%s\\0", *words))
        assert done.stdout.decode().split("\0")[:-1] == list(words)

    def test_big_outputs_on_both_streams_at_once(self, shell: SshShell) -> None:
        size = 8 * 1024 * 1024
        done = shell.run(("sh", "-c", f"head -c {size} /dev/zero >&2; head -c {size} /dev/zero"), timeout_s=60)
        assert (done.rc, len(done.stdout), len(done.stderr)) == (0, size, size)

    def test_big_input_comes_back_unchanged(self, shell: SshShell) -> None:
        data = os.urandom(1024 * 1024)
        assert shell.run(("cat",), stdin=data, timeout_s=30).stdout == data

    def test_a_command_that_reads_none_of_its_input_ends(self, shell: SshShell) -> None:
        assert shell.run(("true",), stdin=b"x" * 4_000_000, timeout_s=30).rc == 0

    def test_no_input_means_end_of_file(self, shell: SshShell) -> None:
        assert shell.run(("cat",), timeout_s=10).stdout == b""

    def test_lines_arrive_while_the_command_runs(self, shell: SshShell) -> None:
        seen: list[tuple[float, bytes]] = []
        done = shell.run(
            ("sh", "-c", "echo one; sleep 1; printf 'two\\nthree'"),
            on_line=lambda line: seen.append((time.monotonic(), line)),
        )
        assert [line for _, line in seen] == [b"one", b"two", b"three"]
        assert seen[1][0] - seen[0][0] > 0.5
        assert done.stdout == b""

    def test_an_error_in_on_line_ends_the_command_and_comes_out(self, shell: SshShell) -> None:
        def fail(line: bytes) -> None:
            raise ValueError("enough")

        with pytest.raises(ValueError, match="enough"):
            shell.run(("sh", "-c", "echo x; sleep 20"), on_line=fail)
        assert shell.run(("echo", "next")).stdout == b"next\n"

    def test_a_killed_command_is_not_a_lost_connection(self, sshd: Any, shell: SshShell) -> None:
        assert shell.run(("exec", "sh", "-c", "kill -9 $$")).rc in (-1, 137)
        assert shell.run(("true",)).rc == 0

    def test_the_time_limit_ends_a_silent_command(self, shell: SshShell) -> None:
        began = time.monotonic()
        with pytest.raises(CannotLook, match="`sleep` did not end within 1 s"):
            shell.run(("sleep", "30"), timeout_s=1)
        assert time.monotonic() - began < 4
        assert shell.run(("echo", "next")).stdout == b"next\n"

    def test_the_time_limit_ends_a_talkative_command(self, shell: SshShell) -> None:
        with pytest.raises(CannotLook, match="did not end within 1 s"):
            shell.run(("yes",), timeout_s=1, on_line=lambda _: None)

    def test_a_child_that_keeps_the_streams_open_is_not_waited_for(self, shell: SshShell) -> None:
        began = time.monotonic()
        done = shell.run(("sh", "-c", "echo started"), timeout_s=20)
        assert done.stdout == b"started\n"
        assert time.monotonic() - began < 5

    def test_several_threads_share_one_connection(self, sshd: Any, shell: SshShell) -> None:
        found: dict[int, bytes] = {}

        def work(number: int) -> None:
            found[number] = shell.run(("sh", "-c", f"sleep 0.2; echo {number}")).stdout

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert found == {number: f"{number}\n".encode() for number in range(6)}
        assert len(sshd.connections) == 1


class TestLoss:
    def test_a_connection_that_drops_under_a_command_is_told(self, sshd: Any, shell: SshShell) -> None:
        threading.Timer(0.3, sshd.drop).start()
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="dropped while `sleep` ran") as caught:
            shell.run(("sleep", "30"))
        assert time.monotonic() - began < 5
        assert caught.value.exit_code is Exit.UNKNOWN

    def test_a_drop_while_output_flows_is_told(self, sshd: Any, shell: SshShell) -> None:
        threading.Timer(0.3, sshd.drop).start()
        with pytest.raises(ConnectionLost):
            shell.run(("sh", "-c", "while :; do echo x; sleep 0.01; done"))

    def test_the_next_command_connects_anew(self, sshd: Any, shell: SshShell) -> None:
        sshd.drop()
        time.sleep(0.3)
        assert shell.run(("echo", "back")).stdout == b"back\n"

    def test_a_closed_shell_can_be_used_again(self, shell: SshShell) -> None:
        shell.close()
        shell.close()
        assert shell.run(("true",)).rc == 0


class TestHostKeys:
    def connect(self, sshd: Any, client_key: Path, tmp_path: Path, **changes: Any) -> None:
        SshShell.connect(entry(sshd, client_key, **changes), base=tmp_path).close()

    def test_an_unknown_key_is_refused_with_the_line_to_add(
        self, sshd: Any, client_key: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(CannotLook, match="its host key is not known") as caught:
            self.connect(sshd, client_key, tmp_path)
        fingerprint = sshd.key.get_fingerprint()
        assert fingerprint in caught.value.message
        assert caught.value.detail == (sshd.line,)
        assert f"{tmp_path / 'known_hosts'}: {sshd.line}" in caught.value.hint

    def test_adding_that_line_is_enough(self, sshd: Any, client_key: Path, tmp_path: Path) -> None:
        with pytest.raises(CannotLook) as caught:
            self.connect(sshd, client_key, tmp_path)
        (tmp_path / "known_hosts").write_text(caught.value.detail[0] + "\n")
        self.connect(sshd, client_key, tmp_path)

    def test_a_changed_key_names_both_fingerprints_and_the_line(
        self, sshd: Any, client_key: Path, tmp_path: Path
    ) -> None:
        other = asyncssh.generate_private_key("ssh-ed25519")
        line = f"[127.0.0.1]:{sshd.port} {' '.join(other.export_public_key().decode().split()[:2])}"
        (tmp_path / "known_hosts").write_text(f"\n# old\n{line}\n")
        with pytest.raises(CannotLook, match="CHANGED") as caught:
            self.connect(sshd, client_key, tmp_path)
        for part in (sshd.key.get_fingerprint(), other.get_fingerprint(), f"{tmp_path / 'known_hosts'}:3"):
            assert part in caught.value.message
        assert not sshd.logins

    def test_a_key_of_another_type_only_is_a_changed_key(
        self, sshd: Any, client_key: Path, tmp_path: Path
    ) -> None:
        other = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
        line = f"[127.0.0.1]:{sshd.port} {' '.join(other.export_public_key().decode().split()[:2])}"
        (tmp_path / "known_hosts").write_text(line + "\n")
        with pytest.raises(CannotLook, match=r"CHANGED.*ecdsa-sha2-nistp256"):
            self.connect(sshd, client_key, tmp_path)

    def test_one_of_two_written_keys_is_enough(self, sshd: Any, client_key: Path, tmp_path: Path) -> None:
        other = asyncssh.generate_private_key("ssh-ed25519")
        line = f"[127.0.0.1]:{sshd.port} {' '.join(other.export_public_key().decode().split()[:2])}"
        (tmp_path / "known_hosts").write_text(f"{line}\n{sshd.line}\n")
        self.connect(sshd, client_key, tmp_path)

    def test_a_revoked_key_is_refused_even_if_it_is_known(
        self, sshd: Any, client_key: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "known_hosts").write_text(f"{sshd.line}\n@revoked {sshd.line}\n")
        with pytest.raises(CannotLook, match="revoked"):
            self.connect(sshd, client_key, tmp_path)

    def test_the_key_of_the_same_address_on_another_port_does_not_count(
        self, sshd: Any, client_key: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "known_hosts").write_text(f"127.0.0.1 {sshd.public}\n[127.0.0.1]:1 {sshd.public}\n")
        with pytest.raises(CannotLook, match="not known"):
            self.connect(sshd, client_key, tmp_path)

    def test_an_rsa_host_key_works(self, new_sshd: Callable[..., Any], client_key: Path, tmp_path: Path) -> None:
        sshd = new_sshd(kind="ssh-rsa")
        (tmp_path / "known_hosts").write_text(sshd.line + "\n")
        self.connect(sshd, client_key, tmp_path)


class TestLogin:
    @pytest.fixture(autouse=True)
    def _known(self, known: Path) -> None:
        return

    def test_a_refused_key_is_one_sentence(self, sshd: Any, tmp_path: Path) -> None:
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "wrong"))
        with pytest.raises(CannotLook, match="refuses the login as root") as caught:
            SshShell.connect(entry(sshd, tmp_path / "wrong"), base=tmp_path)
        assert f"the key {tmp_path / 'wrong'}" in caught.value.message
        assert caught.value.exit_code is Exit.UNKNOWN

    def test_no_key_at_all_is_a_refused_login(self, sshd: Any, tmp_path: Path) -> None:
        with pytest.raises(CannotLook, match=r"refuses the login as root \(tried the default keys"):
            SshShell.connect(entry(sshd, ""), base=tmp_path)

    def test_a_key_with_a_passphrase_asks_for_the_agent(self, sshd: Any, tmp_path: Path) -> None:
        key = asyncssh.generate_private_key("ssh-ed25519")
        (tmp_path / "locked").write_bytes(key.export_private_key(passphrase="secret", rounds=64))
        with pytest.raises(CannotLook) as caught:
            SshShell.connect(entry(sshd, tmp_path / "locked"), base=tmp_path)
        assert "ssh-add" in caught.value.hint

    def test_a_key_file_that_is_no_key_is_told(self, sshd: Any, tmp_path: Path) -> None:
        (tmp_path / "junk").write_text("not a key\n")
        with pytest.raises(CannotLook):
            SshShell.connect(entry(sshd, tmp_path / "junk"), base=tmp_path)

    def test_a_missing_key_is_a_configuration_error(self, sshd: Any, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="does not exist"):
            SshShell.connect(entry(sshd, tmp_path / "gone"), base=tmp_path)

    def test_a_default_key_is_found(self, sshd: Any, client_key: Path, tmp_path: Path, home: Path) -> None:
        (home / ".ssh").mkdir()
        (home / ".ssh" / "id_ed25519").write_bytes(client_key.read_bytes())
        SshShell.connect(entry(sshd, ""), base=tmp_path).close()

    @pytest.mark.skipif(shutil.which("ssh-agent") is None, reason="ssh-agent is not installed")
    def test_a_key_of_the_agent_is_used(
        self, sshd: Any, client_key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        socket_file = tmp_path / "agent"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket_file)], stdout=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 5
            while not socket_file.exists() and time.monotonic() < end:
                time.sleep(0.01)
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket_file))
            subprocess.run(["ssh-add", "-q", str(client_key)], check=True, timeout=10, stderr=subprocess.DEVNULL)
            SshShell.connect(entry(sshd, ""), base=tmp_path).close()
            # A named key that is refused does not keep the agent's from being tried.
            asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "wrong"))
            SshShell.connect(entry(sshd, tmp_path / "wrong"), base=tmp_path).close()
        finally:
            agent.terminate()
            agent.wait(5)

    def test_paths_start_at_the_folder_of_the_inventory(self, sshd: Any, client_key: Path, tmp_path: Path) -> None:
        (tmp_path / "keys").mkdir()
        (tmp_path / "keys" / "mine").write_bytes(client_key.read_bytes())
        SshShell.connect(entry(sshd, Path("keys/mine")), base=tmp_path).close()


class TestReach:
    def test_a_closed_port_is_refused(self, tmp_path: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with pytest.raises(CannotLook, match=f"127.0.0.1:{port} refuses connections"):
            SshShell.connect(Ssh(address="127.0.0.1", port=port), base=tmp_path)

    def test_a_silent_port_ends_at_the_limit_without_noise(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        noise: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: noise.append(record.getMessage())  # type: ignore[method-assign]
        monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(1)
            began = time.monotonic()
            with pytest.raises(CannotLook, match=r"no SSH banner within 0\.6 s"):
                SshShell.connect(
                    Ssh(address="127.0.0.1", port=silent.getsockname()[1], connect_timeout_s=0.6), base=tmp_path
                )
            assert time.monotonic() - began < 4
        time.sleep(0.3)
        assert "Traceback" not in capfd.readouterr().err
        assert not noise

    def test_a_server_that_hangs_up_at_once_is_told(self, tmp_path: Path) -> None:
        with socket.socket() as rude:
            rude.bind(("127.0.0.1", 0))
            rude.listen(4)

            def hang_up() -> None:
                connection, _ = rude.accept()
                connection.close()

            threading.Thread(target=hang_up, daemon=True).start()
            with pytest.raises(CannotLook, match="closed the connection before saying anything"):
                SshShell.connect(Ssh(address="127.0.0.1", port=rude.getsockname()[1]), base=tmp_path)

    def test_a_server_that_stops_after_the_banner_ends_at_the_limit(self, tmp_path: Path) -> None:
        with socket.socket() as stuck:
            stuck.bind(("127.0.0.1", 0))
            stuck.listen(1)

            def greet() -> None:
                connection, _ = stuck.accept()
                connection.sendall(b"SSH-2.0-stuck\r\n")
                time.sleep(5)
                connection.close()

            threading.Thread(target=greet, daemon=True).start()
            began = time.monotonic()
            with pytest.raises(CannotLook, match=r"does not finish the SSH login within 0\.8 s"):
                SshShell.connect(
                    Ssh(address="127.0.0.1", port=stuck.getsockname()[1], connect_timeout_s=0.8), base=tmp_path
                )
            assert time.monotonic() - began < 4

    def test_an_unknown_name_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(CannotLook, match=r"the name no-such-host\.invalid is not known"):
            SshShell.connect(Ssh(address="no-such-host.invalid"), base=tmp_path)


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


class TestPut:
    def test_folders_are_made_and_mode_and_bytes_are_right(self, shell: SshShell, tmp_path: Path) -> None:
        data = os.urandom(500_000)
        shell.put(data, str(tmp_path / "a" / "b" / "c.bin"), mode=0o600)
        file = tmp_path / "a" / "b" / "c.bin"
        assert file.read_bytes() == data
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [path.name for path in file.parent.iterdir()] == ["c.bin"]

    def test_an_existing_file_is_replaced_as_a_whole(self, shell: SshShell, tmp_path: Path) -> None:
        target = tmp_path / "file"
        target.write_text("old and longer")
        inode = target.stat().st_ino
        shell.put(b"", str(target))
        assert target.read_bytes() == b""
        assert target.stat().st_ino != inode

    def test_a_file_system_that_fixes_modes_is_no_failure(
        self, new_sshd: Callable[..., Any], client_key: Path, tmp_path: Path
    ) -> None:
        sshd = new_sshd(chmod_fails=True)
        (tmp_path / "known_hosts").write_text(sshd.line + "\n")
        with SshShell.connect(entry(sshd, client_key), base=tmp_path) as shell:
            shell.put(b"conf", str(tmp_path / "200.conf"), mode=0o644)
            assert (tmp_path / "200.conf").read_bytes() == b"conf"

    def test_a_secret_is_not_left_where_others_may_read_it(
        self, new_sshd: Callable[..., Any], client_key: Path, tmp_path: Path
    ) -> None:
        sshd = new_sshd(chmod_fails=True)
        (tmp_path / "known_hosts").write_text(sshd.line + "\n")
        with SshShell.connect(entry(sshd, client_key), base=tmp_path) as shell:
            (tmp_path / "private").mkdir()
            with pytest.raises(Refused, match="can't be made private"):
                shell.put(b"secret", str(tmp_path / "private" / "token"), mode=0o600)
            assert list((tmp_path / "private").iterdir()) == []

    def test_a_folder_in_the_way_is_told_and_nothing_is_left(self, shell: SshShell, tmp_path: Path) -> None:
        (tmp_path / "a" / "file").mkdir(parents=True)
        with pytest.raises(Failed, match="can't be written"):
            shell.put(b"x", str(tmp_path / "a" / "file"))
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]

    def test_a_drop_while_writing_is_a_lost_connection(self, sshd: Any, shell: SshShell, tmp_path: Path) -> None:
        shell.put(b"", str(tmp_path / "warm"))
        threading.Timer(0.15, sshd.drop).start()
        with pytest.raises(ConnectionLost):
            for number in range(50):
                shell.put(b"x" * 4_000_000, str(tmp_path / f"file{number}"))
