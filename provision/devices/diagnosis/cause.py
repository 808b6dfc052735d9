"""What a diagnosis is made of: the names of causes, one cause, and the scene that is judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from inventory.errors import Failed
from provision.devices import wanted
from provision.devices.config import conf
from provision.devices.facts import CtFacts, GuestFacts, HostFacts


class CauseId(StrEnum):
    """Stable names of causes."""

    # what could not be looked at, or is somewhere else
    NOT_LOOKED = "not-looked"
    NO_CONFIGURATION = "no-configuration"
    EMPTY_CONFIGURATION = "empty-configuration"
    OTHER_NODE = "other-node"
    TWO_OWNERS = "two-owners"
    PROXMOX_CANNOT_READ = "proxmox-cannot-read"
    # the driver on the host
    NO_GPU = "no-gpu"
    DRIVER_NOT_INSTALLED = "driver-not-installed"
    DRIVER_NOT_BUILT = "driver-not-built"
    SECURE_BOOT = "secure-boot"
    WRONG_FLAVOUR = "wrong-flavour"
    CARD_NOT_SUPPORTED = "card-not-supported"
    FOREIGN_DRIVER = "foreign-driver"
    DRIVER_NOT_LOADED = "driver-not-loaded"
    MODULE_OLDER = "module-older"
    # the nodes on the host
    NODES_FORBIDDEN = "nodes-forbidden"
    NO_MODPROBE = "no-modprobe"
    HOST_NODE = "host-node"
    HOST_NODE_NUMBER = "host-node-number"
    HOST_NODE_KIND = "host-node-kind"
    GPU_MISSING = "gpu-missing"
    GPU_EXCLUDED = "gpu-excluded"
    GPU_FAULT = "gpu-fault"
    # the configuration
    HIDDEN_LINES = "hidden-lines"
    STALE_RULE = "stale-rule"
    STRANGER_RULE = "stranger-rule"
    OLD_RULE = "old-rule"
    MISSING_RULE = "missing-rule"
    DENY_RULE = "deny-rule"
    LEGACY_KEY = "legacy-key"
    MISSPELT_KEY = "misspelt-key"
    BAD_RULE = "bad-rule"
    MALFORMED_LINE = "malformed-line"
    FALSE_HEADER = "false-header"
    STRAY_LINE = "stray-line"
    NOT_PASSED_IN = "not-passed-in"
    NO_TARGET = "no-target"
    PENDING_REPLACES = "pending-replaces"
    PENDING_CHANGES = "pending-changes"
    WILL_NOT_START = "will-not-start"
    # the running container
    STARTED_TOO_EARLY = "started-too-early"
    REGULAR_FILE = "regular-file"
    WRONG_NUMBER = "wrong-number"
    NOT_INSIDE = "not-inside"
    DENIED = "denied"
    REVOKED = "revoked"
    OWNER_OR_MODE = "owner-or-mode"
    NODEV = "nodev"
    LIBRARY_VERSION = "library-version"
    # what keeps gpuctl from acting, and what is only worth knowing
    NOT_RUNNING = "not-running"
    LOCKED = "locked"
    NO_QUORUM = "no-quorum"
    HA_MANAGED = "ha-managed"
    UNSEEN = "unseen"
    PEER_TO_PEER = "peer-to-peer"


ON_HOST: Final = frozenset(
    {
        CauseId.NO_GPU, CauseId.DRIVER_NOT_INSTALLED, CauseId.DRIVER_NOT_BUILT, CauseId.SECURE_BOOT,
        CauseId.WRONG_FLAVOUR, CauseId.CARD_NOT_SUPPORTED, CauseId.FOREIGN_DRIVER, CauseId.DRIVER_NOT_LOADED,
        CauseId.MODULE_OLDER, CauseId.NODES_FORBIDDEN, CauseId.NO_MODPROBE, CauseId.HOST_NODE,
        CauseId.HOST_NODE_NUMBER, CauseId.HOST_NODE_KIND, CauseId.GPU_MISSING, CauseId.PEER_TO_PEER,
    }
)  # fmt: skip
"""Causes about the host's driver and nodes, the same for every container of it."""

RESTART_USELESS: Final = frozenset(
    {
        CauseId.WRONG_FLAVOUR, CauseId.CARD_NOT_SUPPORTED, CauseId.FOREIGN_DRIVER, CauseId.GPU_MISSING,
        CauseId.GPU_EXCLUDED, CauseId.GPU_FAULT, CauseId.LIBRARY_VERSION, CauseId.MODULE_OLDER, CauseId.DENY_RULE,
    }
)  # fmt: skip
"""While one of these is a cause (and not only a note), starting the container anew changes nothing."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is wrong: a sentence, the lines it was read from, and what follows from it.

    `note`: worth knowing, but nothing is broken by it. `hint`: what to do about it, when gpuctl can't.
    """

    id: CauseId
    text: str
    evidence: tuple[str, ...] = ()
    follows: str = ""
    note: bool = False
    hint: str = ""

    def leads_to(self, *texts: str) -> Cause:
        """The same cause with more that follows from it."""
        told = dict.fromkeys(text for text in (self.follows, *texts) if text)
        return replace(self, follows="; ".join(told))

    def with_evidence(self, *lines: str) -> Cause:
        """The same cause with more evidence."""
        return replace(self, evidence=tuple(dict.fromkeys((*self.evidence, *lines))))

    def error(self) -> Failed:
        """The cause as the reason why something can't be done."""
        more = (f"so {self.follows}",) if self.follows else ()
        return Failed(self.text, hint=self.hint, detail=(*self.evidence, *more))


def root(causes: Iterable[Cause]) -> Cause | None:
    """The one cause to say first; None when nothing is wrong."""
    return next((cause for cause in causes if not cause.note), None)


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that one diagnosis looks at. `known` holds no driver while /proc/devices can't be read."""

    name: str
    host: HostFacts
    document: conf.Document
    known: wanted.Drivers
    goal: wanted.Wanted
    count: int
    """GPUs that the container is expected to have."""
    inside: CtFacts | None = None
    guest: GuestFacts | None = None
    started_s: float | None = None
    """When the container was started, seconds since the epoch."""

    @property
    def items(self) -> tuple[wanted.Want, ...]:
        return self.goal.nodes

    @property
    def free(self) -> bool:
        """Whether Proxmox lets it have every device, so that rules don't matter (LXC's userns.conf)."""
        return self.document.unprivileged

    @property
    def kind(self) -> str:
        return "unprivileged" if self.free else "privileged"

    @property
    def running(self) -> bool | None:
        """None when nobody said it."""
        if self.inside is not None:
            return True
        return None if self.guest is None else self.guest.status == "running"

    @property
    def hooked(self) -> tuple[conf.Line, ...]:
        """Lines that may bring nodes in unseen: hooks and included files."""
        return tuple(x for x in self.document.main.raw if x.key.startswith(("lxc.hook.", "lxc.include")))


def several(words: Iterable[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    found = list(dict.fromkeys(words))
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} {last} {found[-1]}" if found else ""


def are(words: Iterable[str]) -> str:
    """`is` or `are`."""
    return "is" if len(set(words)) == 1 else "are"


def shown(line: conf.Line) -> str:
    """A line as evidence."""
    return f"line {line.number}: {line.body.strip()}"
