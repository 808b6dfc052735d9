"""Facts fit to be attached to a public report: what may hold a secret is left out, line numbers stay."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from provision.devices import conf
from provision.devices.facts import Content, HostFacts

LEFT_OUT: Final = "(left out)"

_WORD: Final = re.compile(r"(?i)([^\s=]*(?:pass|secret|token|key|auth)[^\s=]*)=\S+")


def configuration(text: str) -> str:
    """A configuration without comments, description and environment: people keep passwords there."""
    document = conf.parse(text)
    out = []
    for line in document.lines:
        body = line.body
        if line.kind is conf.Kind.COMMENT:
            body = f"#{LEFT_OUT}"
        elif line.kind is conf.Kind.MALFORMED and "nvidia" not in body and "lxc." not in body:
            # Often the rest of a comment that lost its `#`; that there is such a line still matters.
            body = f"?{LEFT_OUT}"
        elif line.key == "description" or line.key.startswith("lxc.environment"):
            body = body[: line.at[0]] + LEFT_OUT + body[line.at[1] :]
        out.append(body + line.eol)
    return "".join(out)


def words(content: Content) -> Content:
    """A text without the values of words such as `password=...`."""
    return replace(content, text=_WORD.sub(rf"\1={LEFT_OUT}", content.text))


def host(facts: HostFacts) -> HostFacts:
    """Facts of a host without secrets; `conf_digest` stays that of the real file."""
    return replace(
        facts,
        conf=replace(facts.conf, text=configuration(facts.conf.text)),
        cmdline=words(facts.cmdline),
        kernel_log=words(facts.kernel_log),
        extra={},
    )
