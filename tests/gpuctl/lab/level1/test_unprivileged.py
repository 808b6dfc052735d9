"""An unprivileged container: device rules allow everything there, mode and owner decide."""

from __future__ import annotations

import re

import pytest
from level1kit import OLD, UVM, Level1, allow, entries

pytestmark = [pytest.mark.root, pytest.mark.lab, pytest.mark.slow]

NAMES = (*(f"nvidia{index}" for index in range(8)), "nvidiactl", "nvidia-uvm-tools")


def devices(uvm: str) -> tuple[str, ...]:
    """All nodes by dev[n]; `uvm`: options of /dev/nvidia-uvm."""
    return (*(f"dev{n}: /dev/{name},mode=0666" for n, name in enumerate(NAMES)), f"dev10: {UVM},{uvm}")


def test_its_root_is_another_user_outside(ct: Level1) -> None:
    ct.start(*entries(), unprivileged=True)

    assert ct.host("pct exec 200 -- cat /proc/self/uid_map").split() == ["0", "100000", "65536"]
    seen = ct.inside()
    assert (seen[UVM]["owner"], seen[UVM]["opened"], seen["cuda"]) == ("65534:65534", ct.through, 0)


def test_a_stale_rule_does_no_harm_and_is_not_called_the_cause(ct: Level1) -> None:
    ct.start(*allow("c 195:* rwm", f"c {OLD}:* rwm"), *entries(), unprivileged=True)
    assert ct.inside()["cuda"] == 0

    shown = ct.show()

    assert "still allows" not in shown
    assert ct.lab.run("devices", "show", "ct200").returncode == 0


def test_a_private_node_of_the_host_is_eacces_and_the_rule_is_not_blamed(ct: Level1) -> None:
    ct.start(*allow("c 195:* rwm", f"c {OLD}:* rwm"), *entries(), unprivileged=True, host=f"chmod 0660 {UVM}")
    seen, before = ct.inside(), ct.process()
    assert (seen[UVM]["mode"], seen[UVM]["opened"], seen["cuda"]) == ("0o660", "EACCES", 999)
    assert ct.nvml() == "8"

    story = ct.apply()

    assert "still allows" not in story
    assert re.search(r"mode 0660: an unprivileged container gets EACCES", story)
    # The container has the host's own node, so the mode alone was to be changed.
    assert (ct.inside()["cuda"], ct.process()) == (0, before)


def test_a_node_missing_at_start_is_the_plain_file_here_too(ct: Level1) -> None:
    ct.start(*entries(), unprivileged=True, host=f"rm {UVM}")
    assert ct.inside()[UVM]["kind"] == "file"

    story = ct.apply()

    assert "plain file" in story
    assert ct.inside()["cuda"] == 0


def test_dev_n_gives_mode_and_owner_as_seen_inside(ct: Level1) -> None:
    ct.start(*devices("mode=0600,uid=5"), unprivileged=True)

    seen = ct.inside()[UVM]

    assert (seen["kind"], seen["mode"], seen["owner"], seen["number"]) == ("char", "0o600", "5:0", f"{ct.major}:0")
    # Root inside holds every right over owners that its map has.
    assert seen["opened"] == ct.through


def test_dev_n_without_a_mode_is_for_the_containers_root_alone(ct: Level1) -> None:
    ct.start(*devices("gid=0"), unprivileged=True)

    assert (ct.inside()[UVM]["mode"], ct.inside()[UVM]["owner"]) == ("0o660", "0:0")
    code = f"import os; os.setgid(1000); os.setuid(1000); os.open({UVM!r}, os.O_RDWR)"
    tried = ct.client.run(f'pct exec 200 -- python3 -I -c "{code}"')
    assert "PermissionError: [Errno 13]" in tried.err
    assert ct.inside()["cuda"] == 0
