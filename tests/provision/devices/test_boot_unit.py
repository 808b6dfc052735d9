"""The unit that makes the nodes at boot: a valid one by systemd's own words, ours only, installed once."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inventory.errors import CannotLook, ConfigError, Failed, Refused
from inventory.machine import ignore
from provision.devices.change import boot_unit_files, change_job
from provision.devices.planning import boot_unit
from provision.devices.wanted import want

PROGRAM = "/usr/bin/nvidia-modprobe"
UVM = (PROGRAM, "-u", "-c", "0")
needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
needs_systemctl = pytest.mark.skipif(shutil.which("systemctl") is None, reason="no systemctl on this machine")


def _exec(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("ExecStart=")]


class TestText:
    def test_each_kind_of_node_gets_its_call_and_modeset_may_fail(self, make: SimpleNamespace) -> None:
        names = (
            "nvidia-modeset", "nvidia-caps/nvidia-cap2", "nvidia-nvswitchctl", "nvidia-nvlink", "nvidia1",
            "nvidia-uvm-tools", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "nvidia0", "nvidia-nvswitch3",
        )  # fmt: skip
        argvs = boot_unit.argvs(make.host(make.base), tuple(want(name) for name in names))
        assert _exec(boot_unit.unit_text(argvs)) == [
            f"ExecStart={PROGRAM} -c 0 -c 1 -c 255",
            f"ExecStart={PROGRAM} -u -c 0",
            f"ExecStart={PROGRAM} -f /proc/driver/nvidia/capabilities/mig/config",
            f"ExecStart={PROGRAM} -f /proc/driver/nvidia/capabilities/mig/monitor",
            f"ExecStart={PROGRAM} -l",
            f"ExecStart={PROGRAM} -s -c 3 -c 255",
            f"ExecStart=-{PROGRAM} -m",
        ]

    def test_the_program_is_where_this_host_has_it(self, make: SimpleNamespace) -> None:
        host = make.host(make.base, modprobe="/opt/nv/bin/nvidia-modprobe")
        assert boot_unit.argvs(host, (want("nvidia-uvm"),)) == (("/opt/nv/bin/nvidia-modprobe", "-u", "-c", "0"),)
        for odd in ("", "nvidia-modprobe", "/tmp/x y/nvidia-modprobe", "/tmp/a%b/nvidia-modprobe"):
            host = make.host(make.base, modprobe=odd)
            assert boot_unit.argvs(host, (want("nvidia-uvm"),)) == (UVM,)

    def test_what_no_call_makes_is_said(self, make: SimpleNamespace) -> None:
        nodes = tuple(
            want(n) for n in ("nvidia-caps-imex-channels/channel0", "nvidia-caps/nvidia-cap30", "dri/card0")
        )
        assert boot_unit.argvs(make.host(make.base), nodes) == ()
        first, second = boot_unit.left_out(nodes)
        assert "NVreg_CreateImexChannel0=1" in first
        assert second.startswith("/dev/nvidia-caps/nvidia-cap30 is not made at boot")
        assert boot_unit.left_out((want("nvidia-uvm"), want("nvidia0"))) == ()

    def test_many_gpus_fit_into_calls_of_at_most_64(self, make: SimpleNamespace) -> None:
        argvs = boot_unit.argvs(make.host(make.base), tuple(want(f"nvidia{n}") for n in range(100)))
        assert all(argv.count("-c") <= 64 for argv in argvs)
        assert sorted(int(w) for argv in argvs for w in argv if w.isdigit()) == [*range(100), 255]

    def test_it_runs_before_proxmox_and_before_ha_start_guests(self) -> None:
        text = boot_unit.unit_text((UVM,))
        assert "\nBefore=pve-guests.service pve-ha-lrm.service\n" in text
        assert "\nType=oneshot\nRemainAfterExit=yes\n" in text
        assert "\nWantedBy=multi-user.target\n" in text
        assert "gpuctl devices boot-unit HOST --remove" in text

    def test_a_second_container_adds_and_never_takes_away(self) -> None:
        first = boot_unit.unit_text(((PROGRAM, "-c", "0", "-c", "255"), UVM))
        second = boot_unit.unit_text(((PROGRAM, "-c", "1", "-c", "255"), (PROGRAM, "-m")))
        both = boot_unit.merged(first, second)
        assert _exec(both) == [
            f"ExecStart={PROGRAM} -c 0 -c 1 -c 255", f"ExecStart={PROGRAM} -u -c 0", f"ExecStart=-{PROGRAM} -m"
        ]  # fmt: skip
        assert boot_unit.merged(both, first) == both
        assert boot_unit.merged("", first) == first

    @pytest.mark.parametrize(
        "argv",
        [
            (), ("nvidia-modprobe", "-u"), ("/bin/sh", "-c", "reboot"), (PROGRAM, "-c", "0\nExecStart=/bin/sh"),
            (PROGRAM, "-f", "%n"), ("/tmp/nvidia-modprobe\n", "-u"), (PROGRAM, "-i", "0"),
        ],
    )  # fmt: skip
    def test_nothing_but_calls_of_ours_gets_into_a_unit(self, argv: tuple[str, ...]) -> None:
        with pytest.raises(ConfigError):
            boot_unit.unit_text((UVM, argv))

    def test_a_unit_that_makes_nothing_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="would make no node"):
            boot_unit.unit_text(())


@needs_analyze
class TestBySystemd:
    """With systemd's own `systemd-analyze verify`, which also builds the transaction of a start."""

    def _verify(self, folder: Path, text: str, **others: str) -> tuple[int, str]:
        folder.mkdir(exist_ok=True)
        for name, body in {boot_unit.NAME: text, **others}.items():
            (folder / name).write_text(body)
            (folder / name).chmod(0o644)
        units = [str(folder / name) for name in (boot_unit.NAME, *others)]
        argv = ["systemd-analyze", "verify", "--man=no", *units]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, "".join(f"{line}\n" for line in done.stderr.splitlines() if "/lib/" not in line)

    @pytest.fixture
    def text(self, tmp_path: Path) -> str:
        program = tmp_path / "nvidia-modprobe"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        path = str(program)
        return boot_unit.unit_text(((path, "-c", "0", "-c", "255"), (path, "-u", "-c", "0"), (path, "-m")))

    def test_nothing_is_wrong_with_it(self, tmp_path: Path, text: str) -> None:
        assert self._verify(tmp_path / "units", text) == (0, "")
        wrong = self._verify(tmp_path / "units", text.replace("oneshot", "onshot"))[1]
        assert "onshot" in wrong, "verify would not see a fault"

    def test_it_makes_no_cycle_with_the_units_of_proxmox(self, tmp_path: Path, text: str) -> None:
        """Their order as in pve-manager 9.2 (services/pve-guests.service) and pve-ha-manager."""
        others = {
            "pve-guests.service": "After=pveproxy.service pvestatd.service lxc.service pve-ha-lrm.service\n"
            f"Wants=pve-ha-lrm.service pveproxy.service {boot_unit.NAME}\n",
            "pve-ha-lrm.service": "After=pve-cluster.service pveproxy.service\n",
            "pveproxy.service": "After=pve-cluster.service\nWants=pve-cluster.service\n",
            "pve-cluster.service": "After=network.target local-fs.target\n",
        }
        others = {name: f"[Unit]\n{body}[Service]\nExecStart=/bin/true\n" for name, body in others.items()}
        assert self._verify(tmp_path / "units", text, **others) == (0, "")
        late = text.replace("After=", "After=pve-guests.service ")
        assert "ordering cycle" in self._verify(tmp_path / "units", late, **others)[1]


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
