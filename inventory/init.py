"""Write a first inventory from what a Proxmox API says exists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from inventory import positions
from inventory.model import Api

if TYPE_CHECKING:
    from inventory.proxmox import Guest

_HEAD = """\
# Written by `gpuctl inventory init`. Check it with `gpuctl inventory validate`.
# `gpuctl inventory schema > gpuctl.schema.json` lets an editor complete and check it.
# Secrets stand here by reference only: env:NAME, file:PATH (mode 600) or command:ARGV.
"""
_REST = """\
    # Keep only the containers that have GPUs. Say what each should be; inventory/example.yaml shows all of it:
    # gpus: {count: 1}
    # weights:
    #   - repo: Qwen/Qwen3.6-27B
    #     to: /dev/shm/models/Qwen3.6-27B
    # engine:
    #   kind: sglang
    #   model: /dev/shm/models/Qwen3.6-27B
    #   venv: /opt/sglang
"""
_API_KEYS = ("url", "user", "password", "token_name", "token_value", "ca_file", "fingerprint")


def write_first_inventory(api: Api, guests: Iterable[Guest]) -> str:
    """YAML text that `inventory.loader` accepts: the nodes that own `guests` as hosts, the guests as containers.

    `api` must be complete (a login, and a CA file or fingerprint). Containers are named `ctVMID`, for names in
    Proxmox can repeat. The SSH address is a guess: the API's host when there is one node, else the node's name.
    """
    listed = sorted(guests, key=lambda guest: guest.vmid)
    nodes = sorted({guest.node for guest in listed}) or [str(urlsplit(api.url).hostname or "pve")]
    hosts = {node: _host_name(node) for node in nodes}
    lines = [_HEAD, "hosts:"]
    for node in nodes:
        address = str(urlsplit(api.url).hostname or node) if len(nodes) == 1 else node
        lines += [f"  {hosts[node]}:", "    api:"]
        for key in _API_KEYS:
            if getattr(api, key):
                lines.append(f"      {key}: {_scalar(getattr(api, key))}")
        lines += [
            "    ssh:",
            f"      address: {_scalar(address)}  # root login; its host key must be in ~/.ssh/known_hosts",
            "      user: root",
        ]
        if len(nodes) > 1 or listed:
            lines.append(f"    node: {_scalar(node)}")
    lines += ["", "containers:" if listed else "containers: {}"]
    for guest in listed:
        said = " ".join(f"{guest.name} {guest.status}".split())
        lines.append(f"  ct{guest.vmid}:" + (f"  # {_comment(said)}" if said else ""))
        lines += [f"    host: {_scalar(hosts[guest.node])}", f"    vmid: {guest.vmid}"]
    return "\n".join(lines) + "\n" + (_REST if listed else "")


def _host_name(node: str) -> str:
    """The node's name where it can be a key of the inventory and is not that of a container."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", node)
    if not re.match(r"[A-Za-z0-9]", name) or re.fullmatch(r"ct\d+", name):
        return f"node-{name.lstrip('.-_') or 'pve'}"
    return name


def _scalar(text: str) -> str:
    """`text` as YAML, quoted only where plain it would mean something else."""
    if re.fullmatch(r"[A-Za-z0-9/][\w./:@=+-]*", text, re.ASCII) and positions.parse(f"k: {text}").data == {
        "k": text
    }:
        return text
    # Not json.dumps: its escapes beyond U+FFFF come in pairs, which YAML does not join again.
    escaped = (
        rf"\U{ord(letter):08x}" if not letter.isprintable() or letter in '"\\' else letter for letter in text
    )
    return f'"{"".join(escaped)}"'


def _comment(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
