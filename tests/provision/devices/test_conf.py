"""The document of a configuration: lossless, and read as the real parser reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.errors import GpuctlError, Refused
from provision.devices.config import conf, edits

Recorded = Callable[[Mapping[str, str]], bytes]

PIECES = st.sampled_from(
    [
        b"lxc.cgroup2.devices.allow: c 511:* rwm", b"lxc.cgroup.devices.allow = c 195:* rwm", b"memory: 1", b"[snap]",
        b"[pve:pending]", b"[PVE:PENDING] ", b"[s]", b"# text", b"#\xff\xfe", b"oops", b"", b"  ", b"\r",
        b"\n", b"\r\n",
        b"dev0: /dev/nvidia0,mode=0666", b"lxc: x", b"unprivileged: 1", b"lock: backup", b"delete: dev0,onboot", b":",
        b"=",
        b"lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file", b"\x00", b"description: a%0Ab%",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.binary(max_size=300),
    st.lists(PIECES, max_size=30).map(b"".join),
    st.lists(PIECES, max_size=30).map(b"\n".join),
)


@given(TEXTS)
def test_any_bytes_come_back_as_they_were(data: bytes) -> None:
    assert conf.render(conf.parse(data)) == data


@given(st.text(alphabet=st.characters(max_codepoint=255), max_size=200))
def test_text_is_one_character_a_byte(text: str) -> None:
    assert conf.parse(text).render() == text.encode("latin-1")


@given(TEXTS)
def test_every_view_of_any_bytes_can_be_asked_for(data: bytes) -> None:
    document = conf.parse(data)
    for view in (document.main, document.pending, document.next_start, *document.snapshots.values()):
        if view is not None:
            conf.devices(view)
    assert isinstance(document.unprivileged, bool)
    assert all(line.kind is conf.Kind.MALFORMED for line in document.malformed)


def test_a_plain_lxc_key_before_a_raw_line_is_fatal_as_in_the_real_parser() -> None:
    assert "line 2" in conf.parse("lxc: x\nlxc.cgroup2.devices.allow: a\n").fatal
    assert conf.parse("lxc.cgroup2.devices.allow: a\nlxc: x\n").fatal == ""
    assert conf.parse("lxc: x\nlxc.environment.runtime: A=1\n").fatal == ""  # kept in a list of its own


def test_runtime_environment_is_one_value_of_its_own_as_in_the_real_parser() -> None:
    view = conf.parse("env: A=1\nlxc.environment.runtime: B=2\nlxc.arch: x\nlxc.environment.runtime = C\n").main
    assert view.values == {"env": "A=1\0B=2\0C"}
    assert [line.key for line in view.raw] == ["lxc.arch"]


def test_a_pending_section_takes_the_place_of_a_plain_pending_key() -> None:
    assert conf.parse("pending: x\n").main.values == {"pending": "x"}
    assert conf.parse("pending: x\n[pve:pending]\nmemory: 1\n").main.values == {}


def test_a_description_of_blanks_only_is_a_plain_key_to_the_real_parser() -> None:
    assert conf.parse("description:  \n").main.description == " "
    assert conf.parse("#x\ndescription:  \n").main.description == "x\n"


def test_a_pending_deletion_of_all_raw_lines_is_seen() -> None:
    text = "lxc.cgroup2.devices.allow: c 195:* rwm\n#note\n[pve:pending]\ndelete: lxc description\n"
    assert conf.parse(text).next_start == conf.View({}, ())


def test_a_megabyte_of_blanks_is_read_in_time() -> None:
    began = time.monotonic()
    conf.parse(b"lxc.apparmor.raw: " + b" " * 1_000_000 + b"x\nmemory:" + b" " * 1_000_000 + b"1\n")
    assert time.monotonic() - began < 2.0


def test_pending_raw_lines_replace_all_main_ones_at_the_next_start() -> None:
    main = "lxc.cgroup2.devices.allow: c 195:* rwm\nonboot: 1\n"
    text = main + "[pve:pending]\ndelete: onboot\nlxc.cgroup2.devices.allow: c 511:* rwm\n"
    view = conf.parse(text).next_start
    assert [line.value for line in view.raw] == ["c 511:* rwm"]
    assert "onboot" not in view.values


@pytest.mark.parametrize(
    ("text", "answer"),
    [("", False), ("unprivileged: 1\n", True), ("unprivileged: no\n", False), ("unprivileged: yes\n", True),
     ("unprivileged: 1\nunprivileged: 0\n", False), ("lxc.idmap: u 0 100000 65536\n", True),
     ("[snap]\nunprivileged: 1\n", False)],
)  # fmt: skip
def test_unprivileged_is_the_key_or_any_raw_idmap_of_the_main_section(text: str, answer: bool) -> None:
    assert conf.parse(text).unprivileged is answer


RULE = "lxc.cgroup2.devices.allow"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("memory: 1\n", "memory: 1\nK: v\n"),
        ("memory: 1", "memory: 1\nK: v"),
        ("", "K: v\n"),
        ("memory: 1\n\n[snap]\nmemory: 2\n", "memory: 1\nK: v\n\n[snap]\nmemory: 2\n"),
        ("[snap]\nmemory: 2\n", "K: v\n[snap]\nmemory: 2\n"),
        ("memory: 1\n[s]\nmemory: 2\n", "memory: 1\nK: v\n[s]\nmemory: 2\n"),
        ("lxc.arch: a\nmemory: 1\n", "lxc.arch: a\nK: v\nmemory: 1\n"),
        ("memory: 1\r\n\r\n[snap]\r\n", "memory: 1\r\nK: v\r\n\r\n[snap]\r\n"),
        ("# \xfc\xdf\xe9\n", "# \xfc\xdf\xe9\nK: v\n"),
    ],
)
def test_a_new_line_goes_into_the_main_section_in_the_files_own_style(before: str, after: str) -> None:
    got = edits.edit(conf.parse(before), [edits.Insert("lxc.environment", "v")]).render().decode("latin-1")
    assert got == after.replace("K", "lxc.environment")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{RULE}: c 511:* rwm\n", f"{RULE}: NEW\n"),
        (f"{RULE} = c 511:* rwm  \t\n", f"{RULE} = NEW  \t\n"),
        (f"{RULE}:c 511:* rwm\r\nx\r\n", f"{RULE}:NEW\r\nx\r\n"),
        (f"{RULE}: c 511:* rwm", f"{RULE}: NEW"),
    ],
)
def test_a_changed_value_keeps_separator_blanks_and_line_end(before: str, after: str) -> None:
    assert edits.edit(conf.parse(before), [edits.Change(1, RULE, "NEW")]).render() == after.encode()


def test_a_renamed_key_keeps_everything_else() -> None:
    document = conf.parse("lxc.cgroup.devices.allow = c 195:* rwm \n")
    done = edits.edit(document, [edits.Change(1, RULE, "c 195:* rwm")])
    assert done.render() == f"{RULE} = c 195:* rwm \n".encode()


@pytest.mark.parametrize("number", [0, 2, 3, 4, 99])
def test_a_line_outside_the_main_sections_settings_is_refused(number: int) -> None:
    document = conf.parse("memory: 1\n# note\n[snap]\nlxc.arch: x\n")
    with pytest.raises(Refused):
        edits.edit(document, [edits.Remove(number)])


@given(
    TEXTS, st.lists(st.tuples(st.integers(-1, 40), st.sampled_from(["remove", "change", "insert"])), max_size=4)
)
def test_edits_leave_every_other_line_as_it_was(data: bytes, words: list[tuple[int, str]]) -> None:
    document = conf.parse(data)
    made: list[edits.Edit] = []
    for number, word in words:
        if word == "insert":
            made.append(edits.Insert("lxc.environment", "A=1"))
        else:
            made.append(edits.Remove(number) if word == "remove" else edits.Change(number, "memory", "7"))
    try:
        done = edits.edit(document, made)
    except GpuctlError:
        return
    touched = {item.number for item in made if not isinstance(item, edits.Insert)}
    kept = [line.body for line in document.lines if line.number not in touched]
    left = [
        line.body for line in done.lines if line.body.rstrip("\r") not in ("lxc.environment: A=1", "memory: 7")
    ]
    assert [b for b in kept if b.rstrip("\r") not in ("lxc.environment: A=1", "memory: 7")] == [
        b for b in left if b in kept
    ]
    inserted = [line for line in done.lines if line.body.rstrip("\r") == "lxc.environment: A=1"]
    assert all(line.section == 0 for line in inserted)


@pytest.mark.slow
def test_a_line_added_to_any_recorded_file_is_all_that_the_parser_sees_differ(
    conf_vectors: list[dict[str, Any]], recorded: Recorded
) -> None:
    for vector in conf_vectors:
        before = conf.parse(recorded(vector["input"]))
        after = edits.edit(before, [edits.Insert("lxc.environment", "GPUCTL=1")])
        assert len(after.sections) == len(before.sections)
        hidden = vector["name"] == "internal/lxc-key-last"  # a plain `lxc:` line forgets every raw line
        mine = [] if hidden else [("lxc.environment", "GPUCTL=1")]
        for old, new in zip(before.views, after.views, strict=True):
            listed = [(line.key, line.value) for line in new.raw]
            assert sorted(listed) == sorted([(line.key, line.value) for line in old.raw] + mine), vector["name"]
            assert (new.values, new.description) == (old.values, old.description)
            mine = []
        assert len(after.malformed) == len(before.malformed)
        gone = after.render().replace(b"lxc.environment: GPUCTL=1", b"", 1).split()
        assert gone == before.render().split()
