"""One level-1 lab for a module's tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from labkit import GPUCTL, Lab
from level1kit import Level1

from gpuctl.lab import real
from gpuctl.lab.state import open_dir
from inventory.errors import Refused


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running level-1 lab, gone afterwards with every process in it."""
    try:
        real.require()
    except Refused as error:
        pytest.skip(str(error))
    made = Lab(tmp_path_factory.mktemp("level1") / "lab")
    argv = [GPUCTL, "lab", "up", "--level", "1", "--dir", str(made.folder)]
    try:
        started = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        if "device rules are not enforced on this machine" in started.stderr:
            pytest.skip(started.stderr.splitlines()[0])
        assert started.returncode == 0, started.stderr
        yield made
    finally:
        made.lab("down", "--purge")


@pytest.fixture
def ct(lab: Lab, connect: Any) -> Level1:
    """The lab's container and an ssh connection to its host."""
    return Level1(lab, lambda: connect(open_dir(lab.folder)))
