"""The stages `host`, `devices` and `container` of a recovery, built on one scout."""

from __future__ import annotations

from collections.abc import Mapping

from inventory.model import Container
from provision.devices.conf_stage import DevicesStage
from provision.devices.consent import Consent
from provision.devices.ct_stage import ContainerStage
from provision.devices.host_stage import HostStage
from provision.devices.scout import Scout
from provision.pipeline import Stage, StageName


def stages(
    scout: Scout, container: Container, vmid: int, limit_s: float, consent: Consent
) -> Mapping[StageName, Stage]:
    """The three stages, in their order. `limit_s`: for a start or stop of the container."""
    return {
        StageName.HOST: HostStage(scout, container, vmid),
        StageName.DEVICES: DevicesStage(scout, container, vmid, consent),
        StageName.CONTAINER: ContainerStage(scout, container, vmid, limit_s, consent),
    }
