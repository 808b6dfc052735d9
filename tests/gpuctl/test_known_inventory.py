"""A checked inventory is remembered by its content: quicker, never staler, and never a door for anything else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl import known_inventory
from inventory.errors import ConfigError
from inventory.loader import load as check

TEXT = """\
hosts:
  pve1:
    api: {url: "https://pve1:8006", user: root@pam, password: "file:secret", ca_file: ca.pem}
    ssh: {address: pve1}
containers:
  ct200: {host: pve1, vmid: 200, weights: [{repo: a/b, to: /dev/shm/m}], engine: {kind: vllm, model: /dev/shm/m}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gpuctl.yaml"
    path.write_text(TEXT)
    return path


def _kept() -> list[Path]:
    return sorted((known_inventory.dirs.cache() / "inventory").glob("*.pickle"))


def _forget() -> None:
    for path in _kept():
        path.unlink()


def test_what_is_recalled_equals_what_was_checked(file: Path) -> None:
    _forget()
    first, second = known_inventory.load((file,)), known_inventory.load((file,))
    assert first == second == check((file,))
    assert len(_kept()) == 1
    assert _kept()[0].stat().st_mode & 0o077 == 0


def test_the_second_command_needs_neither_pydantic_nor_yaml(file: Path) -> None:
    known_inventory.load((file,))
    code = (
        "import sys; from pathlib import Path; from gpuctl.known_inventory import load\n"
        "assert load((Path(sys.argv[1]),)).inventory.containers['ct200'].vmid == 200\n"
        "print([name for name in ('pydantic', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=30, check=True,
        env=dict(os.environ),
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_a_changed_file_is_checked_again_and_its_mistake_told(file: Path) -> None:
    known_inventory.load((file,))
    file.write_text(TEXT.replace("vmid: 200", "vmid: 201"))
    assert known_inventory.load((file,)).inventory.containers["ct200"].vmid == 201
    file.write_text(TEXT.replace("vmid: 200", "vmid: 2"))
    with pytest.raises(ConfigError):
        known_inventory.load((file,))


@pytest.mark.parametrize("damage", [b"", b"\x80", pickle.dumps(("x", "y", {}))])
def test_a_damaged_memory_is_not_believed(file: Path, damage: bytes) -> None:
    _forget()
    known_inventory.load((file,))
    _kept()[0].write_bytes(damage)
    assert known_inventory.load((file,)) == check((file,))


def test_a_memory_that_names_anything_but_the_model_makes_nothing(file: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "trap"),)

    _forget()
    known_inventory.load((file,))
    _kept()[0].write_bytes(pickle.dumps((Trap(), "", {})))
    assert known_inventory.load((file,)) == check((file,))
    assert not (tmp_path / "trap").exists()


def test_a_secret_in_clear_is_refused_and_not_copied(file: Path) -> None:
    _forget()
    file.write_text(TEXT.replace("kind: vllm,", "kind: vllm, env: {HF_TOKEN: hf_literal},"))
    with pytest.raises(ConfigError):
        known_inventory.load((file,))
    assert _kept() == []


def test_only_a_few_are_kept(file: Path) -> None:
    _forget()
    for vmid in range(200, 215):
        file.write_text(TEXT.replace("vmid: 200", f"vmid: {vmid}"))
        known_inventory.load((file,))
    assert len(_kept()) == known_inventory.KEPT


def test_without_a_cache_folder_it_is_checked_like_ever(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert known_inventory.load((file,)) == check((file,))


def test_the_newest_stays_although_the_clock_was_set_back(file: Path) -> None:
    _forget()
    for vmid in range(200, 200 + known_inventory.KEPT):
        file.write_text(TEXT.replace("vmid: 200", f"vmid: {vmid}"))
        known_inventory.load((file,))
    for path in _kept():
        os.utime(path, (4e9, 4e9))
    before = set(_kept())
    file.write_text(TEXT.replace("vmid: 200", "vmid: 300"))
    known_inventory.load((file,))
    assert len(set(_kept()) - before) == 1
