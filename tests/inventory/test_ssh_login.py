"""Who is let in over SSH, and what is said when nobody is: host keys, logins, unreachable machines."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from inventory.errors import CannotLook, ConfigError, Exit
from inventory.model import Ssh
from inventory.ssh import SshShell


def entry(sshd: Any, key: Path | str, **changes: Any) -> Ssh:
    values = {"address": "127.0.0.1", "port": sshd.port, "key": str(key), "known_hosts": "known_hosts"}
    return Ssh(**{**values, "connect_timeout_s": 5.0, **changes})


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


def test_an_answer_that_comes_before_anybody_waits_for_it_is_not_lost(
    sshd: Any, client_key: Path, known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import paramiko

    send = paramiko.Transport._send_message

    def send_and_dawdle(transport: paramiko.Transport, message: paramiko.Message) -> None:
        send(transport, message)
        # Long enough for the answer to be here before paramiko makes the event that it should set.
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.2)

    monkeypatch.setattr(paramiko.Transport, "_send_message", send_and_dawdle)
    with SshShell.connect(entry(sshd, client_key), base=known.parent) as shell:
        assert shell.run(("echo", "in")).stdout == b"in\n"


class TestDialledAhead:
    def test_the_first_user_takes_over_the_login_that_was_begun(
        self, sshd: Any, client_key: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "known_hosts").write_text(sshd.line + "\n")
        shell = SshShell.to(entry(sshd, client_key), base=tmp_path)
        shell.dial()
        assert shell.run(("true",)).rc == 0
        assert len(sshd.logins) == 1
        shell.close()

    def test_its_error_is_told_to_the_first_user_and_then_tried_again(
        self, sshd: Any, client_key: Path, tmp_path: Path
    ) -> None:
        shell = SshShell.to(entry(sshd, client_key), base=tmp_path)
        shell.dial()
        with pytest.raises(CannotLook, match="its host key is not known"):
            shell.run(("true",))
        (tmp_path / "known_hosts").write_text(sshd.line + "\n")
        assert shell.run(("true",)).rc == 0
        shell.close()
