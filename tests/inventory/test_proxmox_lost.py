"""A start whose answer was lost: its task is looked for, and the call is never repeated."""

from __future__ import annotations

import time
from typing import Any

import pytest

from inventory.errors import CannotLook
from inventory.proxmox import ProxmoxApi

CT = "/nodes/pve/lxc/200"
UPID = "UPID:pve:000000BC:0007C08F:6B0D716B:vzstart:200:root@pam:"


class TestLostAnswer:
    @pytest.fixture(params=["dropped", "596", "late"])
    def lost(self, request: pytest.FixtureRequest, scripted: Any) -> Any:
        return {
            "dropped": scripted.DROP,
            "596": scripted.Reply(596, "Connection timed out"),
            "late": scripted.Reply(wait_s=2.5),
        }[request.param]

    def test_case_32_the_task_is_found_again_and_the_call_not_repeated(
        self, pve: Any, connect: Any, scripted: Any, lost: Any
    ) -> None:
        api = connect(pve, timeout_s=1.0)
        pve.on("POST", f"{CT}/status/start", lost)
        old = {"upid": "UPID:old", "type": "vzstart", "starttime": time.time() - 100}
        new = {"upid": UPID, "type": "vzstart", "starttime": int(time.time()) + 1}
        pve.on("GET", "/nodes/pve/tasks", scripted.data([old, new]))
        pve.on("GET", f"/nodes/pve/tasks/{UPID}/status", scripted.data({"status": "stopped", "exitstatus": "OK"}))
        pve.on("GET", f"{CT}/status/current", "read-lxc-list/03-current")
        assert api.start("pve", 200, timeout_s=10) == ()
        assert len(pve.asked("POST", f"{CT}/status/start")) == 1

    @pytest.mark.slow
    def test_without_a_task_the_wanted_state_is_enough(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        pve.on("POST", f"{CT}/status/start", scripted.DROP)
        pve.on("GET", "/nodes/pve/tasks", scripted.data([]))
        pve.on("GET", f"{CT}/status/current", "read-lxc-list/03-current")
        assert api.start("pve", 200, timeout_s=10) == ()
        assert len(pve.asked("POST", f"{CT}/status/start")) == 1

    @pytest.mark.slow
    def test_without_a_task_and_the_state_it_is_unknown(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        pve.on("POST", f"{CT}/status/start", scripted.DROP)
        pve.on("GET", "/nodes/pve/tasks", scripted.data([]))
        pve.on("GET", f"{CT}/status/current", "read-lxc-stopped/01-current")
        with pytest.raises(CannotLook, match="the answer to start was lost"):
            api.start("pve", 200, timeout_s=10)
        assert len(pve.asked("POST", f"{CT}/status/start")) == 1
