"""Without namespaces: which words of a command are moved below the machine's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuctl.lab import plain

ROOT = Path("/srv/lab/host/rootfs")


@pytest.mark.parametrize(
    ("word", "moved"),
    [
        ("/var/lib/gpuctl/x", f"{ROOT}/var/lib/gpuctl/x"),
        ("--out=/dev/shm", f"--out={ROOT}/dev/shm"),
        ("/dev/nvidia-uvm", f"{ROOT}/dev/nvidia-uvm"),
        ("/etc/pve/lxc/200.conf", f"{ROOT}/etc/pve/lxc/200.conf"),
        ("cat /tmp/a > /tmp/b", f"cat {ROOT}/tmp/a > {ROOT}/tmp/b"),
        ("/usr/bin/env", "/usr/bin/env"),
        ("/dev/null", "/dev/null"),
        ("/variable", "/variable"),
        ("relative/var/x", "relative/var/x"),
        ("http://host/var/x", "http://host/var/x"),
        (f"{ROOT}/var/x", f"{ROOT}/var/x"),
    ],
)
def test_only_paths_of_the_machine_itself_are_moved(word: str, moved: str) -> None:
    assert plain.translate_words((word,), ROOT) == (moved,)
    assert plain.translate_words((moved,), ROOT) == (moved,)


def test_a_quoted_line_stays_one_word_in_a_folder_with_a_blank() -> None:
    assert plain.translate_line("cat /var/x", Path("/a b/rootfs")) == "cat '/a b/rootfs/var/x'"


def test_a_program_gets_the_words_as_typed() -> None:
    words = ("exec", "200", "--", "/var/x", "a=/tmp/b")

    assert plain.take_back(plain.translate_words(words, ROOT), ROOT) == words


def test_shared_memory_is_empty_after_each_start_and_gone_at_the_end(tmp_path: Path) -> None:
    plain.fresh_shm(tmp_path, "0123456789", "pve")
    (tmp_path / "dev/shm/file").touch()
    first = (tmp_path / "dev/shm").resolve()

    plain.fresh_shm(tmp_path, "0123456789", "pve")
    assert list((tmp_path / "dev/shm").iterdir()) == []
    second = (tmp_path / "dev/shm").resolve()
    plain.remove_shm(tmp_path)

    assert not first.exists()
    assert not second.exists()
