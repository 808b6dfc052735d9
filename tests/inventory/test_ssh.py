"""Commands and files over SSH, on a real server (asyncssh) whose commands are real processes."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import CannotLook, ConnectionLost, Exit, Failed, Refused
from inventory.model import Ssh
from inventory.ssh import SshShell


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

    def test_output_that_comes_after_the_exit_status_is_not_lost(
        self, shell: SshShell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import paramiko

        receive = paramiko.Channel.recv

        def late(channel: paramiko.Channel, size: int) -> bytes:
            # Some servers report the end first; the data is then still on its way for a moment.
            if not ticks:
                ticks.append(1)
                assert channel.status_event.wait(5)
                raise TimeoutError
            return receive(channel, size)

        ticks: list[int] = []
        monkeypatch.setattr(paramiko.Channel, "recv", late)
        done = shell.run(("sh", "-c", "sleep 1.3; echo late"))
        assert ticks and done.stdout == b"late\n"

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
