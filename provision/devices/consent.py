"""What the user lets the stages do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Style(StrEnum):
    """How NVIDIA nodes are to be passed in: as the configuration does now, or by `dev[n]`."""

    KEEP = "keep"
    DEV = "dev"


GRACE_S: Final = 60.0
"""How long a container may take to shut down before it is stopped."""


@dataclass(frozen=True, slots=True)
class Consent:
    """What the user lets the stages do to a container that runs."""

    restart: bool = True
    live: bool = False
    """Change the device rules of the running container (lxc-cgroup) where that spares a restart."""
    grace_s: float = GRACE_S
    prefer: Style = Style.KEEP
