"""The probe kernel: its expected values, and that a real assembler takes it for every card in use."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from checks.probes import ptx


def test_expected_values_are_the_formula() -> None:
    values = struct.unpack("=3I", ptx.expected(3, 5))
    assert values == (5, (2654435761 + 5) % 2**32, (2 * 2654435761 + 5) % 2**32)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas on this machine")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_the_assembler_takes_it(tmp_path: Path, arch: str) -> None:
    (tmp_path / "k.ptx").write_bytes(ptx.SOURCE)
    done = subprocess.run(
        ["ptxas", f"-arch={arch}", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k")],
        capture_output=True,
        timeout=60,
    )
    if b"is not defined for option" in done.stderr:
        pytest.skip(f"this ptxas does not know {arch}")
    assert done.returncode == 0, done.stderr
