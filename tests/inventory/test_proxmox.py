"""What the Proxmox API says and does: recorded answers of a real node, over real TLS."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from inventory.errors import CannotLook, Failed, Refused
from inventory.proxmox import ProxmoxApi

CT = "/nodes/pve/lxc/200"
STARTED = {
    name: f"/nodes/pve/tasks/{upid}"
    for name, upid in {
        "missing": "UPID:pve:000000B7:0007C03F:6B0D716A:vzstart:200:root@pam:",
        "locked": "UPID:pve:000000B8:0007C054:6B0D716B:vzstart:200:root@pam:",
        "warnings": "UPID:pve:000000BC:0007C08F:6B0D716B:vzstart:200:root@pam:",
        "shutdown": "UPID:pve:000000C1:0007C0E3:6B0D716C:vzshutdown:200:root@pam:",
    }.items()
}


class TestReads:
    def test_the_container_is_found_on_its_node(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/cluster/resources", "read-resources/01-vm")
        guest = api.locate(200)
        assert (guest.node, guest.name, guest.kind, guest.status) == ("pve", "ct200", "lxc", "stopped")
        assert api.containers() == (guest,)
        assert pve.asked("GET", "/cluster/resources")[0].query == "type=vm"

    def test_right_after_a_boot_a_container_has_no_name_yet(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/cluster/resources", "read-resources-nostat/01-vm")
        assert (api.locate(200).name, api.locate(200).status) == ("", "unknown")

    def test_an_unknown_vmid_lists_the_known_ones(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/cluster/resources", "read-resources/01-vm")
        with pytest.raises(Failed, match=r"knows no container 999; it knows 200 ct200"):
            api.locate(999)

    def test_a_login_that_sees_nothing_is_told_about_its_rights(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/cluster/resources", "read-resources/03-low")
        with pytest.raises(CannotLook) as caught:
            api.locate(200)
        assert "VM.Audit" in caught.value.hint

    def test_a_virtual_machine_is_refused(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        entry = {"type": "qemu", "vmid": 200, "node": "pve", "name": "win", "status": "running"}
        pve.on("GET", "/cluster/resources", scripted.data([entry]))
        with pytest.raises(Failed, match=r"VMID 200 \(win\) on node pve is a virtual machine"):
            api.locate(200)
        assert api.containers() == ()

    def test_nodes_and_their_status(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/nodes", "read-nodes/01-nodes-ticketcket").on(
            "GET", "/nodes/pve/status", "read-node-status/01-ticket"
        )
        assert api.nodes() == ("pve",)
        assert api.node_status("pve").kernel == "6.17.2-1-pve"

    def test_a_missing_privilege_is_named_with_its_path(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/nodes/pve/status", "read-node-status/02-sep")
        with pytest.raises(CannotLook) as caught:
            api.node_status("pve")
        assert "Permission check failed (/nodes/pve, Sys.Audit)" in caught.value.message
        assert "needs Sys.Audit on /nodes/pve" in caught.value.hint

    def test_a_lock_and_ha_are_seen(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", f"{CT}/status/current", "read-lxc-stopped/01-current")
        status = api.status("pve", 200)
        assert (status.status, status.lock, status.ha) == ("stopped", "backup", False)

    def test_the_live_configuration_is_asked_for_with_a_number(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", f"{CT}/config", "read-pending/02-current1")
        view = api.config("pve", 200)
        assert pve.asked("GET", f"{CT}/config")[0].query == "current=1"
        assert view.values["dev0"] == "/dev/nvidia0"
        assert view.values["unprivileged"] == "1"
        assert "digest" not in view.values
        assert view.digest == "26854db352a897a53747fcec84a6d1732fc63182"

    def test_pending_values_can_be_merged_in(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", f"{CT}/config", "read-pending/01-config")
        assert api.config("pve", 200, current=False).values["memory"] == "8192"
        assert pve.asked("GET", f"{CT}/config")[0].query == "current=0"

    def test_raw_keys_keep_their_order(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", f"{CT}/config", "start-pending-raw/03-config")
        view = api.config("pve", 200)
        assert view.raw == (("lxc.cgroup2.devices.allow", "c 511:* rwm"),)
        assert "lxc" not in view.values

    def test_pending_changes_are_listed(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", f"{CT}/pending", "read-pending/04-pending")
        waiting = {entry["key"] for entry in api.pending("pve", 200) if "pending" in entry or "delete" in entry}
        assert waiting == {"dev0", "memory", "onboot", "tty"}

    def test_a_missing_container_shows_proxmox_own_text(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/nodes/pve/lxc/999/config", "unknown-vmid/01-config")
        with pytest.raises(CannotLook, match=r"Configuration file 'nodes/pve/lxc/999.conf' does not exist"):
            api.config("pve", 999)

    def test_ended_tasks_do_not_count_as_running(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/nodes/pve/tasks", "task-list/01-list")
        assert api.running_tasks("pve") == ()

    def test_a_running_task_is_seen(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        entry = {
            "upid": "UPID:pve:1:2:3:startall::root@pam:",
            "type": "startall",
            "user": "root@pam",
            "starttime": 9,
        }
        pve.on("GET", "/nodes/pve/tasks", scripted.data([{**entry, "status": "RUNNING"}]))
        (task,) = api.running_tasks("pve")
        assert (task.kind, task.user, task.started_s) == ("startall", "root@pam", 9.0)

    def test_a_single_node_says_nothing_about_quorum(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/cluster/status", "read-resources/06-cluster-status")
        assert api.quorate() is None

    def test_no_right_to_ask_about_quorum_is_no_error(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("GET", "/cluster/status", "read-resources/07-cluster-status-sep")
        assert api.quorate() is None

    @pytest.mark.parametrize("value", [0, 1])
    def test_a_cluster_says_whether_it_is_quorate(
        self, pve: Any, api: ProxmoxApi, scripted: Any, value: int
    ) -> None:
        pve.on("GET", "/cluster/status", scripted.data([{"type": "node"}, {"type": "cluster", "quorate": value}]))
        assert api.quorate() is bool(value)


class TestCalls:
    """Each call costs a round trip of the admin's line, so none is made that was not asked for."""

    def test_one_container_s_state_takes_three_calls(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        pve.on("GET", f"{CT}/status/current", "read-lxc-stopped/01-current")
        pve.on("GET", "/nodes/pve/tasks", scripted.data([]))
        pve.on("GET", "/cluster/status", "read-resources/06-cluster-status")
        api.status("pve", 200), api.running_tasks("pve"), api.quorate()
        asked = [(request.method, request.path, request.query) for request in pve.requests]
        assert asked == [
            ("POST", "/access/ticket", ""),
            ("GET", f"{CT}/status/current", ""),
            ("GET", "/nodes/pve/tasks", "source=active"),
            ("GET", "/cluster/status", ""),
        ]

    def test_a_token_logs_in_without_a_call(self, pve: Any, connect: Any) -> None:
        token = {"password": "", "user": "ops@pve", "token_name": "tok", "token_value": "env:PVE_TOKEN"}
        pve.on("GET", f"{CT}/status/current", "read-lxc-stopped/01-current")
        connect(pve, **token).status("pve", 200)
        assert [request.path for request in pve.requests] == [f"{CT}/status/current"]

    @pytest.mark.slow
    def test_case_32_an_answer_after_seven_seconds_is_waited_for_by_default(
        self, pve: Any, connect: Any, scripted: Any
    ) -> None:
        from inventory.model import Api

        recorded = scripted.recorded("read-resources/01-vm")
        pve.on("GET", "/cluster/resources", dataclasses.replace(recorded, wait_s=7.0))
        assert connect(pve, timeout_s=Api(url="x").timeout_s).locate(200).name == "ct200"
        assert len(pve.asked("GET", "/cluster/resources")) == 1


class TestTasks:
    def test_case_28_a_running_task_has_no_exit_status_and_is_waited_for_and_so_is_the_state(
        self, pve: Any, api: ProxmoxApi, scripted: Any
    ) -> None:
        pve.on("POST", f"{CT}/status/start", "start-warnings/01-start")
        running = scripted.data({"status": "running"})
        done = scripted.data({"status": "stopped", "exitstatus": "OK"})
        pve.on("GET", f"{STARTED['warnings']}/status", running, running, done)
        stopped = scripted.recorded("read-lxc-stopped/01-current")
        pve.on("GET", f"{CT}/status/current", stopped, "read-lxc-list/03-current")
        assert api.start("pve", 200, timeout_s=10) == ()
        assert len(pve.asked("GET", f"{CT}/status/current")) == 2

    def test_case_27_warnings_are_no_failure_and_are_told(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("POST", f"{CT}/status/start", "start-warnings/01-start")
        pve.on("GET", f"{STARTED['warnings']}/status", "start-warnings/02-status")
        pve.on("GET", f"{STARTED['warnings']}/log", "start-warnings/03-log")
        pve.on("GET", f"{CT}/status/current", "read-lxc-list/03-current")
        assert api.start("pve", 200, timeout_s=10) == ("made-up warning one", "made-up warning two")

    def test_a_failed_task_is_a_failure_although_http_says_200(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("POST", f"{CT}/status/start", "start-missing-node/01-start")
        pve.on("GET", f"{STARTED['missing']}/status", "start-missing-node/02-status")
        pve.on("GET", f"{STARTED['missing']}/log", "start-missing-node/03-log")
        with pytest.raises(Failed) as caught:
            api.start("pve", 200, timeout_s=10)
        assert caught.value.message == "container 200 on pve: start failed: Device /dev/nvidia9 does not exist"
        assert caught.value.detail == ("TASK ERROR: Device /dev/nvidia9 does not exist",)
        assert "nvidia-modprobe" in caught.value.hint

    @pytest.mark.parametrize("exitstatus", ["WARNINGS: x", "WARNINGS: 1 ", "unexpected status", "ok", ""])
    def test_case_27_only_ok_and_a_number_of_warnings_are_success(
        self, pve: Any, api: ProxmoxApi, scripted: Any, exitstatus: str
    ) -> None:
        pve.on("POST", f"{CT}/status/start", "start-warnings/01-start")
        done = scripted.data({"status": "stopped", "exitstatus": exitstatus})
        pve.on("GET", f"{STARTED['warnings']}/status", done)
        pve.on("GET", f"{STARTED['warnings']}/log", "start-warnings/03-log")
        with pytest.raises(Failed, match="start failed: " + (exitstatus or "the task gave no exit status")):
            api.start("pve", 200, timeout_s=10)

    def test_a_backup_lock_is_a_refusal(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("POST", f"{CT}/status/start", "start-locked/01-start")
        pve.on("GET", f"{STARTED['locked']}/status", "start-locked/02-status")
        pve.on("GET", f"{STARTED['locked']}/log", "start-locked/03-log")
        with pytest.raises(Refused, match=r"CT is locked \(backup\)") as caught:
            api.start("pve", 200, timeout_s=10)
        assert "backup has ended" in caught.value.hint

    def test_no_quorum_is_explained(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        pve.on("POST", f"{CT}/status/start", scripted.Reply(500, "cluster not ready - no quorum?"))
        with pytest.raises(Failed, match="no quorum") as caught:
            api.start("pve", 200, timeout_s=10)
        assert "other nodes" in caught.value.hint

    def test_a_missing_privilege_is_a_refusal(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("POST", f"{CT}/status/start", "put-token-weak/02-audit-start")
        with pytest.raises(Refused) as caught:
            api.start("pve", 200, timeout_s=10)
        assert "needs VM.PowerMgmt on /vms/200" in caught.value.hint

    def test_every_bad_parameter_is_shown(self, pve: Any, api: ProxmoxApi) -> None:
        pve.on("POST", f"{CT}/status/start", "start-params/02-skiplock-true")
        with pytest.raises(Failed, match=r"Parameter verification failed. skiplock: type check"):
            api.start("pve", 200, timeout_s=10)

    def test_the_reason_line_is_enough_when_the_body_is_empty(
        self, pve: Any, api: ProxmoxApi, scripted: Any
    ) -> None:
        pve.on("POST", f"{CT}/status/start", scripted.Reply(500, "something broke"))
        with pytest.raises(Failed, match="something broke"):
            api.start("pve", 200, timeout_s=10)

    @pytest.mark.parametrize("action", ["start", "stop"])
    def test_what_is_already_so_is_no_error(self, pve: Any, api: ProxmoxApi, scripted: Any, action: str) -> None:
        said = "CT 200 already running" if action == "start" else "CT 200 not running"
        body = json.dumps({"data": None, "message": said + "\n"})
        pve.on("POST", f"{CT}/status/{action}", scripted.Reply(500, said, body))
        assert getattr(api, action)("pve", 200, timeout_s=10) == ()

    def test_a_shutdown_gives_the_container_a_little_less_time_than_we_wait(
        self, pve: Any, api: ProxmoxApi
    ) -> None:
        pve.on("POST", f"{CT}/status/shutdown", "shutdown-ok/01-shutdown")
        pve.on("GET", f"{STARTED['shutdown']}/status", "shutdown-ok/02-status")
        pve.on("GET", f"{CT}/status/current", "read-lxc-stopped/01-current")
        assert api.shutdown("pve", 200, timeout_s=60) == ()
        assert pve.asked("POST", f"{CT}/status/shutdown")[0].body == "timeout=55"

    def test_a_task_that_never_ends_is_unknown_with_its_log(
        self, pve: Any, api: ProxmoxApi, scripted: Any
    ) -> None:
        pve.on("POST", f"{CT}/status/start", "start-warnings/01-start")
        pve.on("GET", f"{STARTED['warnings']}/status", scripted.data({"status": "running"}))
        pve.on("GET", f"{STARTED['warnings']}/log", "start-warnings/03-log")
        with pytest.raises(CannotLook, match=r"did not end within 0\.5 s") as caught:
            api.start("pve", 200, timeout_s=0.5)
        assert caught.value.detail[0] == "WARN: made-up warning one"

    def test_a_task_may_be_unknown_for_a_moment(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        body = json.dumps(
            {"data": None, "message": "Parameter verification failed.\n", "errors": {"upid": "no such task"}}
        )
        pve.on("POST", f"{CT}/status/start", "start-warnings/01-start")
        unknown = scripted.Reply(400, "Parameter verification failed.", body)
        pve.on("GET", f"{STARTED['warnings']}/status", unknown, "start-warnings/02-status")
        pve.on("GET", f"{STARTED['warnings']}/log", "start-warnings/03-log")
        pve.on("GET", f"{CT}/status/current", "read-lxc-list/03-current")
        assert len(api.start("pve", 200, timeout_s=10)) == 2

    def test_a_task_that_ended_well_without_effect_is_a_failure(
        self, pve: Any, api: ProxmoxApi, scripted: Any
    ) -> None:
        pve.on("POST", f"{CT}/status/start", "start-warnings/01-start")
        done = scripted.data({"status": "stopped", "exitstatus": "OK"})
        pve.on("GET", f"{STARTED['warnings']}/status", done)
        pve.on("GET", f"{CT}/status/current", "read-lxc-stopped/01-current")
        with pytest.raises(Failed, match="ended well, but it is still stopped"):
            api.start("pve", 200, timeout_s=0.5)
