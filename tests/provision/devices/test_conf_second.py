"""Two readers of the same grammar, ours and the lab's, written apart: they agree on nasty files."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuctl.lab.pve import conf as second
from provision.devices.config import conf

KEYS = [
    "memory",
    "dev0",
    "dev00",
    "env",
    "lxc",
    "pending",
    "snapshots",
    "digest",
    "delete",
    "description",
    "snapstate",
    "parent",
    "a1_",
    "a_1",
    "A",
    "foo-bar",
]
RAW = [
    "lxc.cgroup2.devices.allow",
    "lxc.cgroup.devices.allow",
    "lxc.mount.entry",
    "lxc.environment.runtime",
    "lxc.idmap",
    "lxc.rootfs.path",
    "lxc.tty.dir",
    "lxc.limit.x",
    "lxc.aa_profile",
    "lxc.bogus",
    "lxc.",
    "lxc.cgroup2.Dev",
]
VALUES = [
    "",
    " ",
    "x",
    "0",
    "prepare",
    "delete",
    "a,b;c",
    "c 511:* rwm",
    "/dev/nvidia0,mode=0666",
    "%C3%BC%zz",
    "\xff\xfe",
    "snapstate: prepare",
    "\x00",
    "y" * 3000,
    "a \t b",
    "\r",
    "=",
    ":",
]
NAMES = [
    "snap",
    "SNAP",
    "s",
    "a/b",
    "pending",
    "Pending",
    "pve:pending",
    "PVE:Pending",
    "pve:other",
    "1a",
    "a_b-c",
    "\xfc1",
    "",
]
LINES = st.one_of(
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(KEYS),
        st.sampled_from([":", ": ", " : ", "=", ":\t", ""]),
        st.sampled_from(VALUES),
        st.sampled_from(["", " ", "\t", "\r"]),
    ),
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(RAW),
        st.sampled_from([":", ": ", " = ", "=", " : ", ":=", " "]),
        st.sampled_from(VALUES),
        st.sampled_from(["", " ", "\x0b"]),
    ),
    st.builds(
        "{}[{}]{}".format,
        st.sampled_from(["", "", "", " "]),
        st.sampled_from(NAMES),
        st.sampled_from(["", "", " ", "x", "\xa0"]),
    ),
    st.builds("#{}".format, st.sampled_from([value for value in VALUES if value != "\xff\xfe"])),
    st.text(alphabet=st.characters(max_codepoint=255), max_size=6),
)
FILES = st.tuples(
    st.lists(LINES, max_size=12), st.sampled_from(["\n", "\n", "\r\n"]), st.sampled_from(["", "\n", "\n\n"])
).map(lambda item: (item[1].join(item[0]) + item[2]).encode("latin-1"))


def _set(view: conf.View) -> dict[str, Any]:
    found: dict[str, Any] = dict(view.values)
    if view.raw and "lxc" not in found:
        found["lxc"] = [[line.key, line.value] for line in view.raw]
    return found | ({"description": view.description} if view.description else {})


def _text(data: Any) -> Any:
    """Numbers as text: that reader makes numbers of some values, ours does not."""
    if isinstance(data, dict):
        return {key: _text(value) for key, value in data.items()}
    return [list(map(str, pair)) for pair in data] if isinstance(data, list) else str(data)


@pytest.mark.slow
@settings(max_examples=500, derandomize=True, database=None, deadline=None)
@given(FILES)
def test_both_readers_find_the_same_values_sections_and_malformed_lines(data: bytes) -> None:
    mine = conf.parse(data)
    try:
        theirs = second.parse_conf(data, 200)
    except second.ConfError:
        # The real parser keeps lxc.environment.runtime in a list of its own, so that line is no reason to die.
        assume(b"lxc.environment.runtime" not in data)
        assert mine.fatal
        return
    assert not mine.fatal
    found = _text(theirs.to_json())
    whole = {
        "digest": mine.digest,
        "pending": _set(mine.pending) if mine.pending else {},
        "snapshots": {name: _set(view) for name, view in mine.snapshots.items()},
    } | _set(mine.main)
    assert whole == found
    rejected = [text for text in theirs.warnings if "deprecated" not in text and "renamed" not in text]
    assert len(mine.malformed) == len([text for text in rejected if "parse value of" not in text])
