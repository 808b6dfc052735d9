"""Stage `devices`: the configuration lets the container have its nodes under the numbers of this boot."""

from __future__ import annotations

from dataclasses import dataclass

from inventory.errors import GpuctlError, Refused
from inventory.machine import Emit, Machine
from inventory.model import Container
from provision.devices import conf, diagnose, edits, plan, prepare, rules, wanted
from provision.devices.doors import ProxmoxApi, ct_name, locked, read_host
from provision.devices.facts import HostFacts
from provision.pipeline import Plan, StageName


@dataclass(frozen=True, slots=True)
class EditConf:
    """One rewrite of the configuration: all edits at once, or none."""

    vmid: int
    path: str
    digest: str
    edits: tuple[edits.Edit, ...]
    new: bytes
    lines: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"in {self.path}: {'; '.join(self.lines)}"


@dataclass(frozen=True, slots=True)
class DevicesView:
    """What stage `devices` knows. `quorate`: None when the API can't say."""

    host: HostFacts
    quorate: bool | None


class DevicesStage:
    """The container's configuration lets it have its nodes under the numbers of this boot."""

    name = StageName.DEVICES

    def __init__(self, host: Machine, api: ProxmoxApi, container: Container, vmid: int, node: str) -> None:
        self._host, self._api, self._container = host, api, container
        self._vmid, self._node = vmid, node

    def observe(self) -> DevicesView:
        """Raises `CannotLook` while a driver isn't loaded: its number is what the rules are compared with."""
        host = read_host(self._host, self._vmid)
        if error := prepare.unknown_driver(host, self._container):
            raise error
        return DevicesView(host, self._api.quorate())

    def describe(self, facts: DevicesView) -> tuple[str, ...]:
        document = conf.parse(facts.host.conf.text)
        passed = wanted.passed_paths(document.main)
        mine = [path for path in passed if path.startswith("/dev/nvidia")]
        style = "raw lines" if rules.MOUNT in {passed[path] for path in mine} else "dev[n] entries"
        kind = "unprivileged" if document.unprivileged else "privileged"
        lines = [f"{ct_name(self._vmid)} is {kind}; {len(mine)} NVIDIA nodes are passed in by {style}"]
        found = diagnose.diagnose(ct_name(self._vmid), facts.host, self._container)
        return (*lines, *(cause.text for cause in found if cause.id is not diagnose.CauseId.HOST_NODE))

    def plan(self, facts: DevicesView) -> Plan:
        document = conf.parse(facts.host.conf.text)
        made = plan.conf_plan(document, facts.host, self._container)
        if made.blocked is not None or not made.edits:
            return Plan((), made.blocked, made.later)
        new = edits.edit(document, made.edits).render()
        step = EditConf(self._vmid, facts.host.conf_path, facts.host.conf_digest, made.edits, new, made.lines)
        return Plan((step,), self._forbidden(document, facts))

    def _forbidden(self, document: conf.Document, facts: DevicesView) -> GpuctlError | None:
        if document.lock:
            return locked(self._vmid, document.lock)
        if facts.quorate is False:
            return Refused(
                f"the cluster has no quorum, so {facts.host.conf_path} can't be written",
                hint="bring the other nodes back; see `pvecm status`",
            )
        return None

    def apply(self, step: EditConf, emit: Emit) -> str:
        args = {"vmid": step.vmid, "digest": step.digest, "text": step.new.decode("latin-1")}
        done = self._host.call("host.edit_conf", args, emit=emit, timeout_s=60.0)
        return f"{'; '.join(step.lines)} (backup: {done['backup']})"
