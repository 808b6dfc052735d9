"""Programs, readers and open() that hang, fail or talk too much: each has a limit and harms no other."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.devices.facts import Node, NodeKind
from provision.devices.observe import ct_open, program, side_by_side

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a script on a PATH that holds nothing else."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def put(name: str, text: str) -> None:
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    return put


# programs


def test_a_program_tells_its_words_and_exit_status_in_the_plain_locale(install: Install) -> None:
    install("tell", 'echo "$1 $LC_ALL"; echo error >&2; exit 3')
    assert program.output(("tell", "a b; c")) == (3, "a b; c C\n")


def test_a_program_that_is_missing_or_no_program_says_nothing(install: Install, tmp_path: Path) -> None:
    assert program.output(("tell",)) is None
    assert not program.installed("tell")
    (tmp_path / "bin/tell").write_bytes(b"\x7fELF no program")
    (tmp_path / "bin/tell").chmod(0o755)
    assert program.output(("tell",)) is None


@pytest.mark.parametrize("script", ["exec sleep 30", "sleep 30 & wait", "echo begun; exec >&-; exec sleep 30"])
def test_a_program_that_hangs_is_killed_with_what_it_started(install: Install, script: str) -> None:
    install("hang", script)
    began = time.monotonic()
    assert program.output(("hang",), 0.3) is None
    assert time.monotonic() - began < 2


def test_a_program_that_never_stops_talking_is_ended(install: Install) -> None:
    install("talk", "exec cat /dev/zero")
    assert program.output(("talk",), 20) is None


def test_binary_output_is_text_of_one_character_a_byte(install: Install) -> None:
    install("garbage", "printf '\\377\\000\\200'")
    assert program.output(("garbage",)) == (0, "\xff\0\x80")


# readers


def test_a_reader_that_fails_or_hangs_hides_no_other() -> None:
    def fails(found: dict[str, Any]) -> None:
        found["before"] = 1
        raise ValueError("bad file")

    def hangs(found: dict[str, Any]) -> None:
        found["first"] = 2
        time.sleep(5)
        found["late"] = 3

    began = time.monotonic()
    found, problems = side_by_side.read(
        {"one": fails, "two": hangs, "three": lambda found: found.update(good=4)}, 0.2
    )
    assert time.monotonic() - began < 2
    assert found == {"before": 1, "first": 2, "good": 4}
    assert problems == ("one can't be read: ValueError bad file", "two gave no answer in 0.2 s")


# opening nodes


def _nodes(*names: str) -> list[Node]:
    return [Node(f"/dev/{name}", NodeKind.CHAR, 195, 0) for name in names]


def _pretend(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Callable[[int], int]]) -> None:
    real = os.open

    def open_(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        answer = answers.get(str(path))
        return answer(flags) if answer else real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", open_)


def _refuse(code: int) -> Callable[[int], int]:
    def refuse(flags: int) -> int:
        # With O_NONBLOCK the driver would answer before it has looked at the GPU.
        right = flags == os.O_RDWR | os.O_CLOEXEC
        raise OSError(code if right else errno.EINVAL, "")

    return refuse


def _hang(flags: int) -> int:
    time.sleep(600)
    return 0


def test_a_node_whose_open_hangs_is_unreadable_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _pretend(
        monkeypatch,
        {
            "/dev/nvidia0": _hang,
            "/dev/nvidia1": _refuse(errno.EIO),
        },
    )
    began = time.monotonic()
    zero, one, *_ = ct_open.opened(_nodes("nvidia0", "nvidia1"), 0.5)
    assert time.monotonic() - began < 2.5
    assert (zero.kind, zero.why, zero.opened) == (NodeKind.UNREADABLE, "no answer in 0.5 s", None)
    assert zero.number == (195, 0)
    assert (one.kind, one.opened) == (NodeKind.CHAR, "EIO")


def test_no_child_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[int] = []
    real = os.fork

    def fork() -> int:
        children.append(pid := real())
        return pid

    monkeypatch.setattr(os, "fork", fork)
    _pretend(monkeypatch, {"/dev/nvidia0": _hang})
    ct_open.opened(_nodes("nvidia0"), 0.2)
    with pytest.raises(ChildProcessError):
        os.waitpid(children[0], os.WNOHANG)


def test_a_child_that_no_signal_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.kill
    spared: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: spared.append(pid))
    _pretend(monkeypatch, {"/dev/nvidia0": _hang})
    began = time.monotonic()
    assert ct_open.opened(_nodes("nvidia0"), 0.2)[0].kind is NodeKind.UNREADABLE
    assert 0.6 < time.monotonic() - began < 3
    real(spared[0], signal.SIGKILL)
    os.waitpid(spared[0], 0)


def test_the_process_that_opens_holds_none_of_our_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, sink = os.pipe()
    os.set_inheritable(sink, True)
    seen = tmp_path / "seen"

    def tell(flags: int) -> int:
        seen.write_text(" ".join(str(_target(n)) for n in range(400)))
        raise OSError(errno.EPERM, "")

    pipe = str(_target(sink))
    _pretend(monkeypatch, {"/dev/nvidia0": tell})
    try:
        assert ct_open.opened(_nodes("nvidia0"))[0].opened == "EPERM"
    finally:
        os.close(source)
        os.close(sink)
    assert pipe.startswith("pipe:")
    assert pipe not in seen.read_text()


def _target(number: int) -> Path | None:
    link = Path(f"/proc/self/fd/{number}")
    return link.readlink() if link.is_symlink() else None


def test_only_character_devices_are_opened_and_never_a_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, {"/dev/watchdog0": _hang, "/dev/nvidia0": _hang})
    regular = Node("/dev/nvidia0", NodeKind.REGULAR)
    assert ct_open.opened((*_nodes("watchdog0"), regular), 0.5) == (*_nodes("watchdog0"), regular)


def test_real_nodes_answer_with_the_kernels_own_errno() -> None:
    null, missing = Node("/dev/null", NodeKind.CHAR, 1, 3), Node("/dev/never-there", NodeKind.CHAR)
    assert [node.opened for node in ct_open.opened((null, missing))] == ["", "ENOENT"]
