"""The boot unit is installed once, extended, shown and removed; what is not ours is never overwritten."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inventory.errors import CannotLook, ConfigError, Failed, Refused
from inventory.machine import ignore
from provision.devices.change import boot_unit_files, change_job
from provision.devices.planning import boot_unit

PROGRAM = "/usr/bin/nvidia-modprobe"
UVM = (PROGRAM, "-u", "-c", "0")
needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
needs_systemctl = pytest.mark.skipif(shutil.which("systemctl") is None, reason="no systemctl on this machine")


def _exec(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("ExecStart=")]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    program = Path(str(tmp_path) + PROGRAM)
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    return tmp_path


def _job(action: str, **more: Any) -> Any:
    return change_job.boot_unit({"action": action, **more}, ignore)


def _file(root: Path) -> Path:
    return Path(str(root) + boot_unit.PATH)


TEXT = boot_unit.unit_text((UVM,))


@needs_systemctl
class TestInstalling:
    """With the machine's own systemctl, on a tree of files."""

    def test_it_is_shown_installed_once_and_removed_once(self, root: Path) -> None:
        assert _job("show") == {
            "path": boot_unit.PATH, "text": "", "installed": False, "enabled": False, "changed": False,
        }  # fmt: skip
        answer = _job("install", text=TEXT)
        assert (answer["installed"], answer["enabled"], answer["changed"]) == (True, True, True)
        assert _file(root).read_text() == answer["text"] == TEXT
        assert (root / f"etc/systemd/system/multi-user.target.wants/{boot_unit.NAME}").is_symlink()
        before = _file(root).stat().st_mtime_ns
        assert _job("install", text=TEXT)["changed"] is False
        assert _file(root).stat().st_mtime_ns == before
        assert _job("show")["enabled"] is True
        gone = _job("remove")
        assert (gone["installed"], gone["enabled"], gone["changed"]) == (False, False, True)
        assert [path.name for path in (root / "etc/systemd/system").rglob("*gpuctl*")] == []
        assert _job("remove")["changed"] is False

    def test_a_unit_that_was_disabled_is_enabled_again(self, root: Path) -> None:
        _job("install", text=TEXT)
        (root / f"etc/systemd/system/multi-user.target.wants/{boot_unit.NAME}").unlink()
        assert _job("show")["enabled"] is False
        assert _job("install", text=TEXT)["changed"] is True
        assert _job("show")["enabled"] is True

    def test_a_second_container_adds_its_nodes(self, root: Path) -> None:
        _job("install", text=TEXT)
        answer = _job("install", text=boot_unit.unit_text(((PROGRAM, "-c", "3"),)))
        assert _exec(answer["text"]) == [f"ExecStart={PROGRAM} -c 3", f"ExecStart={PROGRAM} -u -c 0"]
        assert answer["text"] == _file(root).read_text()

    def test_several_at_once_lose_nothing(self, root: Path) -> None:
        texts = [boot_unit.unit_text(((PROGRAM, "-c", str(n)),)) for n in range(6)]
        threads = [threading.Thread(target=_job, args=("install",), kwargs={"text": text}) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        minors = " ".join(f"-c {n}" for n in range(6))
        assert _exec(_file(root).read_text()) == [f"ExecStart={PROGRAM} {minors}"]

    @pytest.mark.parametrize("action", ["install", "remove"])
    def test_a_unit_of_that_name_that_is_not_ours_is_left_alone(self, root: Path, action: str) -> None:
        _file(root).write_text("[Service]\nExecStart=/bin/true\n")
        with pytest.raises(Refused, match="was not made by gpuctl"):
            _job(action, text=TEXT)
        assert _file(root).read_text() == "[Service]\nExecStart=/bin/true\n"
        assert _job("show")["installed"] is True

    def test_a_masked_unit_is_not_ours(self, root: Path) -> None:
        _file(root).symlink_to("/dev/null")
        with pytest.raises(Refused):
            _job("install", text=TEXT)
        assert _file(root).is_symlink()
        assert _job("show")["enabled"] is False

    def test_a_unit_of_ours_that_someone_made_call_something_else_is_not_extended(self, root: Path) -> None:
        _file(root).write_text(TEXT + "ExecStart=/bin/sh\n")
        with pytest.raises(ConfigError):
            _job("install", text=TEXT)

    def test_lines_beside_the_calls_never_get_in(self, root: Path) -> None:
        answer = _job("install", text=TEXT.replace("[Install]", "ExecStop=/bin/sh -c reboot\n[Install]"))
        assert answer["text"] == TEXT

    def test_a_unit_whose_program_is_not_there_is_not_installed(self, root: Path) -> None:
        Path(str(root) + PROGRAM).unlink()
        with pytest.raises(Refused, match="nvidia-modprobe is not there"):
            _job("install", text=TEXT)
        assert not _file(root).exists()

    @pytest.mark.parametrize("action", [None, "start", ""])
    def test_other_actions_are_refused(self, root: Path, action: Any) -> None:
        with pytest.raises(ConfigError):
            _job(action)


class TestSystemctl:
    """With a systemctl that behaves badly."""

    @pytest.fixture
    def systemctl(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("PATH", f"{root}/bin:{os.environ['PATH']}")

        def make(body: str) -> None:
            path = root / "bin/systemctl"
            path.write_text(f'#!/bin/sh\necho "$@" >> {root}/calls\n{body}\n')
            path.chmod(0o755)

        return make

    def test_a_failing_enable_tells_its_own_words(self, root: Path, systemctl: Any) -> None:
        systemctl(
            'case "$*" in *is-enabled*) echo disabled; exit 1;; '
            '*) echo "Failed to enable unit: Unit is bad" >&2; exit 1;; esac'
        )
        with pytest.raises(Failed, match=r"systemctl .*enable .* failed with exit status 1") as caught:
            _job("install", text=TEXT)
        assert caught.value.detail == ("Failed to enable unit: Unit is bad",)

    def test_an_enable_that_did_nothing_is_not_believed(self, root: Path, systemctl: Any) -> None:
        systemctl('case "$*" in *is-enabled*) echo disabled; exit 1;; *) exit 0;; esac')
        with pytest.raises(Failed, match="not enabled now"):
            _job("install", text=TEXT)

    def test_a_systemctl_that_hangs_is_given_up(
        self, root: Path, systemctl: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        systemctl("exec sleep 30")
        monkeypatch.setattr(boot_unit_files, "LIMIT_S", 0.3)
        _file(root).write_text(TEXT)
        with pytest.raises(Failed, match=r"did not end within 0\.3 s"):
            _job("show")

    def test_a_failing_disable_keeps_the_file(self, root: Path, systemctl: Any) -> None:
        _file(root).write_text(TEXT)
        systemctl('case "$*" in *is-enabled*) echo enabled;; *) exit 1;; esac')
        with pytest.raises(Failed, match="disable"):
            _job("remove")
        assert _file(root).read_text() == TEXT

    def test_what_systemctl_can_not_say_is_no_answer(self, root: Path, systemctl: Any) -> None:
        _file(root).write_text(TEXT)
        systemctl('echo "Failed to connect to bus" >&2; exit 1')
        with pytest.raises(Failed, match="is-enabled") as caught:
            _job("show")
        assert caught.value.detail == ("Failed to connect to bus",)

    def test_a_file_that_can_not_be_read_is_unknown(self, root: Path) -> None:
        _file(root).mkdir()
        with pytest.raises(CannotLook, match="can't be read"):
            _job("show")

    def test_systemd_reads_its_files_anew_where_it_runs(
        self, root: Path, systemctl: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a host (no GPUCTL_ROOT) that systemd has booted: the calls, in order."""
        systemctl(f'case "$*" in is-enabled*) cat {root}/state 2>/dev/null || echo disabled;; '
                  f"enable*) echo enabled > {root}/state;; disable*) rm {root}/state;; esac")  # fmt: skip
        unit = root / "unit"
        monkeypatch.delenv("GPUCTL_ROOT")
        monkeypatch.setattr(boot_unit, "PATH", str(unit))
        monkeypatch.setattr(boot_unit_files, "LOCK", str(root / "lock"))
        real = boot_unit_files.look.node
        booted = SimpleNamespace(kind="directory")
        monkeypatch.setattr(
            boot_unit_files.look, "node", lambda path: booted if path == "/run/systemd/system" else real(path)
        )
        _job("install", text=TEXT.replace("/usr/", f"{root}/usr/"))
        _job("remove")
        calls = [line.split()[0] for line in (root / "calls").read_text().splitlines()]
        assert calls == ["daemon-reload", "enable", "is-enabled", "is-enabled", "disable", "daemon-reload"]
