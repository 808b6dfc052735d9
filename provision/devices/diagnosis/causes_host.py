"""Why the driver is not loaded on the host, or does not serve its cards."""

from __future__ import annotations

from collections.abc import Iterator

from provision.devices.diagnosis import driver
from provision.devices.diagnosis.cause import Cause, CauseId, are, several
from provision.devices.facts import HostFacts, Pci, State

_BLACKLIST = "blacklist nouveau in /etc/modprobe.d, run update-initramfs -u, and reboot the host"
_VFIO = "take the card out of the vfio-pci ids in /etc/modprobe.d and off every VM, and reboot the host"


def why_not_loaded(host: HostFacts) -> tuple[Cause, ...]:
    """Why no driver holds major 195; the first is the root. Never empty."""
    taken = foreign(host, None)
    module = host.module("nvidia")
    if module is not None and module.on_disk is False and not module.loaded:
        cause = not_built(host, "nvidia")
        if taken is not None and all(name == "nouveau" for _, name in host.foreign):
            return (cause.leads_to("nouveau has taken the cards"),)
        return (cause,) if taken is None else (cause, taken)
    if taken is not None and not taken.note:
        return (taken,)
    found = (*flavours(host, None), *refused(host))
    if found:
        return found
    if host.pci and not _gpus(host):
        told = tuple(f"{f.address} 10de:{f.device} class {f.kind}" for f in host.pci)
        return (Cause(CauseId.NO_GPU, "there is no NVIDIA GPU on the host's PCI bus", told, hint=_SEATED),)
    said = tuple(t.text for t in driver.log(host.kernel_log.text) if t.what == "no-gpu")
    if said and not host.pci:
        return (Cause(CauseId.NO_GPU, "the NVIDIA driver found no GPU on the host", said, hint=_SEATED),)
    older = older_module(host, broken=True)
    if older is not None:
        return (older,)
    return (
        Cause(
            CauseId.DRIVER_NOT_LOADED,
            "the NVIDIA driver is not loaded on the host",
            ("/proc/devices has no character major 195", *said),
            "no container of this host has a GPU",
            hint="on the host: `modprobe nvidia` and `dmesg | grep -i -e nvrm -e nvidia` say why",
        ),
    )


_SEATED = "see `lspci -d 10de:` on the host: power, seat and BIOS settings of the card, or a VM that has it"


def _gpus(host: HostFacts) -> tuple[Pci, ...]:
    return tuple(f for f in host.pci if f.display)


def not_built(host: HostFacts, name: str) -> Cause:
    """The module has no file for the running kernel: why, as far as dkms and the headers tell."""
    builds = driver.dkms(host.dkms.text)
    mine = tuple(b for b in builds if b.kernel == host.kernel)
    evidence = tuple(b.line for b in builds) or (f"no {name}.ko below /lib/modules/{host.kernel}",)
    if host.dkms.state is State.ABSENT and host.headers is not None:
        return Cause(
            CauseId.DRIVER_NOT_INSTALLED,
            f"kernel {host.kernel} has no NVIDIA module, and dkms, which would build one, is not installed",
            ("dkms: not found", *evidence),
            hint=f"on the host: apt install dkms proxmox-headers-{host.kernel}, then install the driver with dkms",
        )
    if host.dkms.state is State.PRESENT and not builds:
        return Cause(
            CauseId.DRIVER_NOT_INSTALLED,
            f"kernel {host.kernel} has no NVIDIA module, and dkms knows none that it could build",
            ("dkms status names no nvidia module", *evidence),
            hint="on the host: install NVIDIA's driver with dkms",
        )
    text = f"the host's kernel {host.kernel} has no NVIDIA module: it was not built for this kernel"
    hint = f"on the host: apt install proxmox-headers-{host.kernel}, then dkms autoinstall"
    if host.headers is False:
        text += f", whose headers are not installed (proxmox-headers-{host.kernel})"
    elif any(b.state == "broken" for b in builds):
        text += ", and dkms has lost its source"
        hint = "on the host: install the driver's dkms package again, then dkms autoinstall"
    elif mine:
        text = f"dkms has the NVIDIA module {mine[0].state} but not installed for the host's kernel {host.kernel}"
        hint = f"on the host: dkms install {mine[0].module}/{mine[0].version} -k {host.kernel}"
    elif host.headers is True:
        text += ", although its headers are installed"
        hint = "on the host: dkms autoinstall; when it fails, make.log below /var/lib/dkms/nvidia says why"
    return Cause(CauseId.DRIVER_NOT_BUILT, text, evidence, "no container of this host has a GPU", hint=hint)


def refused(host: HostFacts, more: str = "") -> Iterator[Cause]:
    """The kernel would not take the module; `more`: what a tool said besides the log."""
    said = driver.log(f"{host.kernel_log.text}\n{more}")
    # "verification failed" alone only taints the kernel; the module is loaded all the same.
    kinds = {"rejected", "refused-key", "lockdown"} | ({"unverified"} if host.secure_boot else set())
    lines = tuple(told.text for told in said if told.what in kinds)
    module = host.module("nvidia")
    if lines and not (module is not None and module.loaded):
        who = "the kernel" if host.secure_boot is False else "Secure Boot"
        yield Cause(
            CauseId.SECURE_BOOT,
            f"{who} refuses the NVIDIA module: it is not signed with a key that this host trusts",
            lines,
            "no container of this host has a GPU",
            hint="on the host: mokutil --import /var/lib/dkms/mok.pub, reboot and enrol the key at the console; or "
            "turn Secure Boot off in the firmware",
        )


def flavours(host: HostFacts, count: int | None) -> Iterator[Cause]:
    """Cards that the installed driver can't serve; a note when `count` others are served (None: never)."""
    said = driver.log(host.kernel_log.text)
    have = driver.flavour(host)
    for needed, what in (("open", "needs-open"), ("proprietary", "needs-closed")):
        told = {t.address: t for t in said if t.what == what}
        cards = {address: t.value for address, t in told.items()}
        if have and not told:
            cards = {f.address: f.device for f in _gpus(host) if _must_be(f) == needed}
        if not cards or have == needed:
            continue
        names = several(f"{address} (10de:{device.lower()})" for address, device in cards.items())
        which = "open" if needed == "open" else "proprietary"
        other = "proprietary" if needed == "open" else "open"
        why = "it has only those" if needed == "open" else "it is older than Turing and has no GSP"
        yield Cause(
            CauseId.WRONG_FLAVOUR,
            f"the GPU at {names} needs NVIDIA's {which} kernel module, and the host has the {other} one",
            tuple(t.text for t in told.values()) or (f"{names}: {why}", f"module: {have}"),
            "the driver does not start that GPU",
            _served(host, cards, count),
            f"on the host: install the {which} flavour of the same driver version, then reboot",
        )
    old = {t.address: t for t in said if t.what in ("unsupported", "legacy")}
    for address, told_ in old.items():
        branch = f"it belongs to the {told_.value} drivers" if told_.what == "legacy" else "it is not on its list"
        yield Cause(
            CauseId.CARD_NOT_SUPPORTED,
            f"the host's NVIDIA driver {driver.version(host)} does not support the GPU".replace("  ", " ")
            + (f" at {address}" if address else "")
            + f": {branch}",
            (told_.text,),
            "the driver does not start that GPU",
            _served(host, {address: ""}, count),
            "on the host: install a driver branch that supports this card",
        )


def _must_be(card: Pci) -> str:
    try:
        number = int(card.device, 16)
    except ValueError:
        return ""
    return "open" if number >= driver.BLACKWELL else "proprietary" if 0 < number < driver.TURING else ""


def _served(host: HostFacts, bad: dict[str, str], count: int | None) -> bool:
    """Whether the driver shows as many other GPUs as are needed."""
    good = [g for g in host.gpus if not g.excluded and not any(driver.same_gpu(g.bus, b) for b in bad)]
    return count is not None and count <= len(good)


def foreign(host: HostFacts, count: int | None) -> Cause | None:
    """GPUs that another driver has; a note when the driver still shows `count` (None: needs all there are)."""
    if not host.foreign:
        return None
    names = several(name for _, name in host.foreign)
    addresses = [address for address, _ in host.foreign]
    left = len(_gpus(host)) - len(addresses)
    noun = "the GPU at" if len(addresses) == 1 else "the GPUs at"
    text = f"{noun} {several(addresses)} {are(addresses)} bound to {names}, so the NVIDIA driver can't have it"
    if left:
        text += f"; {left} other{'s are' if left > 1 else ' is'} left to it"
    enough = (count is not None and count <= len(host.gpus)) or (left > 0 and not host.gpus)
    said = tuple(t.text for t in driver.log(host.kernel_log.text) if t.what == "not-probed")
    return Cause(
        CauseId.FOREIGN_DRIVER,
        text,
        (*(f"{address}: driver {name}" for address, name in host.foreign), *said),
        note=enough,
        hint=_VFIO if "vfio-pci" in names else _BLACKLIST,
    )


def not_loaded(host: HostFacts, name: str) -> Cause:
    """A driver of its own number that is not there although the driver itself is loaded."""
    module = host.module("nvidia_uvm") if name == "nvidia-uvm" else None
    evidence = (f"/proc/devices has no {name}",)
    if module is not None and module.on_disk is False:
        return not_built(host, "nvidia-uvm").with_evidence(*evidence)
    if name == "nvidia-uvm":
        if (rejected := next(refused(host), None)) is not None:
            return rejected.with_evidence(*evidence)
        lines = tuple(t.text for t in driver.log(host.kernel_log.text) if t.what == "symbols")
        same = module is not None and module.disk_version == driver.version(host)
        if (older := older_module(host, broken=True)) is not None and not same:
            return older.with_evidence(*evidence, *lines).leads_to("nvidia-uvm of the new version can't be loaded")
        text = "nvidia-uvm is not loaded on the host: it is loaded when first used, not at boot"
        return Cause(CauseId.DRIVER_NOT_LOADED, text, evidence, "nvidia-smi answers, but CUDA does not start")
    return Cause(
        CauseId.DRIVER_NOT_LOADED,
        f"{name} is not loaded on the host: {_WITHOUT.get(name, 'the driver has not registered it')}",
        evidence,
    )


_WITHOUT = {
    "nvidia-nvswitch": "the driver registers it only where it finds an NVSwitch",
    "nvidia-caps-imex-channels": "the driver registers it only when IMEX channels are asked for "
    "(NVreg_ImexChannelCount)",
}


def older_module(host: HostFacts, *, broken: bool) -> Cause | None:
    """The driver on disk was upgraded and the old one is still loaded."""
    module = host.module("nvidia")
    loaded = driver.version(host)
    if (
        module is None
        or not module.loaded
        or not module.disk_version
        or not loaded
        or module.disk_version == loaded
    ):
        return None
    return Cause(
        CauseId.MODULE_OLDER,
        f"the host's driver was changed to {module.disk_version}, but {loaded} is still loaded",
        (f"loaded: {loaded}", f"on disk for kernel {host.kernel}: {module.disk_version}"),
        note=not broken,
        hint="reboot the host, or stop all containers with a GPU and load the driver anew",
    )


def peer_to_peer(host: HostFacts) -> Cause | None:
    """IOMMU on and ACS redirecting: GPUs can't reach each other's memory as NCCL expects."""
    translated = [f.address for f in host.pci if f.display and f.iommu.startswith("DMA")]
    if not host.acs_redirect or len(translated) < 2:
        return None
    return Cause(
        CauseId.PEER_TO_PEER,
        f"the IOMMU translates for {len(translated)} GPUs and ACS redirects their traffic at "
        f"{several(host.acs_redirect)}: peer-to-peer copies may hang or be wrong (NCCL)",
        tuple(f"{f.address}: IOMMU group of type {f.iommu}" for f in host.pci if f.display and f.iommu),
        note=True,
        hint="boot the host with iommu=pt, or turn ACS off for these bridges in the firmware",
    )
