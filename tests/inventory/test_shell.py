"""Commands on this machine, and in a container by way of `pct` (a stand-in that keeps the container in a folder)."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from inventory import shell as shell_module
from inventory.errors import CannotLook, Failed
from inventory.lines import Lines
from inventory.machine import Completed, Shell
from inventory.model import Ssh
from inventory.shell import LocalShell, PctShell
from inventory.ssh import SshShell

PCT = """\
#!/bin/sh
# As the real one: exec passes streams and exit status through, errors of pct itself are 255 or 2.
what=$1; vmid=$2; shift 2
case $vmid in
  201) echo "CT 201 not running" >&2; exit 255;;
  202) echo "Configuration file 'nodes/pve/lxc/202.conf' does not exist" >&2; exit 2;;
esac
case $what in
  exec) shift; exec "$@";;
  push) [ "$3" = --perms ] || exit 99
        case $2 in */refuse/*) echo "failed to create destination file: Permission denied" >&2; exit 255;; esac
        cp "$1" "$2" && chmod "$4" "$2";;
esac
"""


@pytest.fixture
def with_pct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "pct").write_text(PCT)
    (folder / "pct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(shell_module, "PUSH_FOLDER", str(tmp_path / "waiting"))
    return tmp_path / "waiting"


@pytest.fixture(params=["local", "pct", "ssh"])
def any_shell(request: pytest.FixtureRequest, with_pct: Path, client_key: Path, tmp_path: Path) -> Any:
    """The three shells answer alike."""
    if request.param == "local":
        yield LocalShell()
    elif request.param == "pct":
        yield PctShell(LocalShell(), 200)
    else:
        sshd = request.getfixturevalue("sshd")
        (tmp_path / "known_hosts").write_text(sshd.line + "\n")
        ssh = Ssh(address="127.0.0.1", port=sshd.port, key=str(client_key), known_hosts="known_hosts")
        with SshShell.connect(ssh, base=tmp_path) as made:
            yield made


class TestAnyShell:
    def test_exit_status_and_streams(self, any_shell: Shell) -> None:
        done = any_shell.run(("sh", "-c", "echo out; echo err >&2; exit 7"))
        assert done == Completed(7, b"out\n", b"err\n")

    def test_arguments_arrive_as_written(self, any_shell: Shell) -> None:
        words = ("a b", "", "$HOME", "`id`", "'\"", "*")
        assert any_shell.run(("printf", "%s|", *words)).text() == "".join(f"{word}|" for word in words)

    def test_input_and_output_larger_than_a_pipe(self, any_shell: Shell) -> None:
        data = os.urandom(1024 * 1024)
        done = any_shell.run(("sh", "-c", "head -c 3000000 /dev/zero >&2; cat"), stdin=data, timeout_s=30)
        assert (done.rc, done.stdout == data, len(done.stderr)) == (0, True, 3_000_000)

    def test_lines_come_as_they_are_written(self, any_shell: Shell) -> None:
        seen: list[tuple[float, bytes]] = []
        done = any_shell.run(
            ("sh", "-c", "echo one; sleep 0.7; printf 'two\\n\\nend'"),
            on_line=lambda line: seen.append((time.monotonic(), line)),
        )
        assert [line for _, line in seen] == [b"one", b"two", b"", b"end"]
        assert seen[1][0] - seen[0][0] > 0.4
        assert done.stdout == b""

    def test_the_time_limit_is_kept(self, any_shell: Shell) -> None:
        began = time.monotonic()
        with pytest.raises(CannotLook, match="did not end within"):
            any_shell.run(("sleep", "30"), timeout_s=0.5)
        assert time.monotonic() - began < 5

    def test_an_unknown_program_is_a_result_and_no_exception(self, any_shell: Shell) -> None:
        assert any_shell.run(("no-such-program",)).rc == 127

    def test_put_makes_folders_replaces_and_leaves_nothing_else(self, any_shell: Shell, tmp_path: Path) -> None:
        target = tmp_path / "new folder" / "deep" / "file"
        any_shell.put(b"first and longer", str(target))
        any_shell.put(b"second", str(target), mode=0o600)
        assert target.read_bytes() == b"second"
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        assert [path.name for path in target.parent.iterdir()] == ["file"]

    def test_put_onto_a_folder_is_told_and_leaves_nothing(self, any_shell: Shell, tmp_path: Path) -> None:
        (tmp_path / "there" / "file" / "x").mkdir(parents=True)
        with pytest.raises(Failed, match="can't be written"):
            any_shell.put(b"x", str(tmp_path / "there" / "file"))
        assert [path.name for path in (tmp_path / "there").iterdir()] == ["file"]


class TestLocal:
    def test_a_killed_command_tells_its_signal(self) -> None:
        assert LocalShell().run(("sh", "-c", "kill -9 $$")).rc == -9

    @pytest.mark.slow
    def test_the_whole_group_ends_with_its_time_limit(self, tmp_path: Path) -> None:
        script = f"trap '' TERM; sleep 60 & echo $! > {tmp_path / 'pid'}; wait"
        with pytest.raises(CannotLook):
            LocalShell().run(("sh", "-c", script), timeout_s=0.5)
        pid = int((tmp_path / "pid").read_text())
        end = time.monotonic() + 3
        state = "?"
        while state not in ("Z", "gone") and time.monotonic() < end:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                state = "gone"
            time.sleep(0.05)
        assert state in ("Z", "gone")

    def test_a_daemon_that_keeps_the_streams_open_is_not_waited_for(self, tmp_path: Path) -> None:
        began = time.monotonic()
        done = LocalShell().run(("sh", "-c", "setsid sleep 6 & echo up"), timeout_s=30)
        assert done.stdout == b"up\n"
        assert time.monotonic() - began < 4

    def test_an_error_in_on_line_ends_the_command(self) -> None:
        def fail(line: bytes) -> None:
            raise ValueError("enough")

        began = time.monotonic()
        with pytest.raises(ValueError, match="enough"):
            LocalShell().run(("sh", "-c", "echo x; exec sleep 20"), on_line=fail)
        assert time.monotonic() - began < 5

    def test_a_file_that_is_no_program_is_126(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("x")
        done = LocalShell().run((str(tmp_path / "data"),))
        assert (done.rc, b"Permission denied" in done.stderr) == (126, True)

    def test_a_zero_byte_in_an_argument_is_told(self) -> None:
        with pytest.raises(Failed, match="can't be started"):
            LocalShell().run(("echo", "a\0b"))


class TestPct:
    def test_a_stopped_container_can_not_be_looked_into(self, with_pct: Path) -> None:
        with pytest.raises(CannotLook, match="container 201 on this machine is not running") as caught:
            PctShell(LocalShell(), 201).run(("true",))
        assert caught.value.hint == "start it: `pct start 201`"

    def test_an_unknown_container_is_told(self, with_pct: Path) -> None:
        with pytest.raises(CannotLook, match="this machine has no container 202"):
            PctShell(LocalShell(), 202).run(("true",))

    def test_an_exit_status_of_the_command_itself_is_no_fault_of_pct(self, with_pct: Path) -> None:
        for rc in (2, 255):
            done = PctShell(LocalShell(), 200).run(("sh", "-c", f"echo some trouble >&2; exit {rc}"))
            assert (done.rc, done.stderr) == (rc, b"some trouble\n")

    def test_a_host_without_pct_is_no_proxmox_node(self, sshd: Any, client_key: Path, tmp_path: Path) -> None:
        (tmp_path / "known_hosts").write_text(sshd.line + "\n")
        ssh = Ssh(address="127.0.0.1", port=sshd.port, key=str(client_key), known_hosts="known_hosts")
        for host in (LocalShell(), SshShell.connect(ssh, base=tmp_path)):
            with pytest.raises(CannotLook, match="has no `pct`"):
                PctShell(host, 200).run(("true",))
            host.close()

    def test_nothing_waits_on_the_host_after_a_push(self, with_pct: Path, tmp_path: Path) -> None:
        PctShell(LocalShell(), 200).put(b"x" * 100_000, str(tmp_path / "in" / "file"))
        assert list(with_pct.iterdir()) == []

    def test_a_refused_push_shows_pct_s_own_words_and_cleans_up(self, with_pct: Path, tmp_path: Path) -> None:
        with pytest.raises(Failed, match="Permission denied"):
            PctShell(LocalShell(), 200).put(b"x", str(tmp_path / "refuse" / "file"))
        assert list(with_pct.iterdir()) == []
        assert list((tmp_path / "refuse").iterdir()) == []

    def test_the_file_is_private_while_it_waits(self, with_pct: Path, tmp_path: Path) -> None:
        modes: list[int] = []

        class Watching(LocalShell):
            def run(self, argv: tuple[str, ...], **options: Any) -> Completed:
                modes.extend(stat.S_IMODE(path.stat().st_mode) for path in with_pct.glob("*"))
                return super().run(argv, **options)

        PctShell(Watching(), 200).put(b"secret", str(tmp_path / "token"), mode=0o644)
        assert set(modes) == {0o600}


class TestLines:
    def collect(self, *pieces: bytes) -> list[bytes]:
        seen: list[bytes] = []
        lines = Lines(seen.append)
        for piece in pieces:
            lines.feed(piece)
        lines.end()
        return seen

    def test_pieces_are_joined_at_newlines_only(self) -> None:
        assert self.collect(b"a", b"b\nc", b"\n", b"\n", b"d") == [b"ab", b"c", b"", b"d"]

    def test_an_ended_last_line_is_not_told_twice(self) -> None:
        assert self.collect(b"a\n") == [b"a"]

    def test_a_line_without_end_comes_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("inventory.lines.LONGEST", 10)
        assert self.collect(*[b"x" * 6] * 5) == [b"x" * 12, b"x" * 12, b"x" * 6]
