"""Facts fit to be attached to a public report: what may hold a secret is left out, line numbers stay."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from provision.devices.config import conf
from provision.devices.facts import Content, HostFacts

LEFT_OUT: Final = "(left out)"

_SHOWN: Final = re.compile(
    r"(?i)(nvidia|nouveau|vfio|iommu|pci|module|modprobe|blacklist|lockdown|efi|hugepage|mitigations)"
)
"""Words of the kernel's command line that a diagnosis needs; others may hold an address with its password."""


def configuration(text: str) -> str:
    """A configuration without comments, description and environment: people keep passwords there."""
    document = conf.parse(text)
    out = []
    for line in document.lines:
        body = line.body
        if line.kind is conf.Kind.COMMENT:
            body = f"#{LEFT_OUT}"
        elif line.kind is conf.Kind.MALFORMED and not any(
            word in body for word in ("lxc.cgroup", "lxc.mount", "/dev/")
        ):
            # Often the rest of a comment that lost its `#`; that there is such a line still matters.
            body = f"?{LEFT_OUT}"
        elif line.key == "description" or line.key.startswith("lxc.environment"):
            body = body[: line.at[0]] + LEFT_OUT + body[line.at[1] :]
        out.append(body + line.eol)
    return "".join(out)


def command_line(content: Content) -> Content:
    """The kernel's command line without the words that say nothing about GPUs."""
    shown = [word if _SHOWN.search(word.partition("=")[0]) else LEFT_OUT for word in content.text.split()]
    return replace(content, text=" ".join(shown))


def host(facts: HostFacts) -> HostFacts:
    """Facts of a host without secrets; `conf_digest` stays that of the real file."""
    return replace(
        facts,
        conf=replace(facts.conf, text=configuration(facts.conf.text)),
        cmdline=command_line(facts.cmdline),
        extra={},
    )
