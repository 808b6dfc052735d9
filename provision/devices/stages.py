"""The stages `host`, `devices` and `container` of a recovery, in one place to import from."""

from __future__ import annotations

from provision.devices.conf_stage import DevicesStage
from provision.devices.ct_stage import ContainerStage
from provision.devices.host_stage import HostStage

__all__ = ["ContainerStage", "DevicesStage", "HostStage"]
