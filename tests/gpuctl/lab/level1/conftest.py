"""One level-1 lab for a module's tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from labkit import Lab
from level1kit import Level1

from gpuctl.lab.state import open_dir


def _unable() -> str:
    if os.getuid() != 0:
        return "needs root"
    absent = [
        name for name in ("lxc-start", "sshd", "cc") if not shutil.which(name, path=f"{os.defpath}:/usr/sbin")
    ]
    return f"needs {', '.join(absent)}" if absent else ""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running level-1 lab, gone afterwards with every process in it."""
    if why := _unable():
        pytest.skip(why)
    made = Lab(tmp_path_factory.mktemp("level1") / "lab")
    try:
        made.lab("up", "--level", "1")
        yield made
    finally:
        made.lab("down", "--purge")


@pytest.fixture
def ct(lab: Lab, connect: Any) -> Level1:
    """The lab's container and an ssh connection to its host."""
    return Level1(lab, lambda: connect(open_dir(lab.folder)))
