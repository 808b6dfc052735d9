"""The unit that makes the nodes at boot: a valid one by systemd's own words, ours only, installed once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from inventory.errors import ConfigError
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
