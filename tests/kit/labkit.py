"""A lab of one's own, and the way to run gpuctl on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GPUCTL = str(Path(sys.executable).parent / "gpuctl")


@dataclass(frozen=True)
class Lab:
    """A running lab and the folders that belong to it."""

    folder: Path

    @property
    def inventory(self) -> Path:
        return self.folder / "gpuctl.yaml"

    @property
    def conf(self) -> Path:
        return self.folder / "host/rootfs/etc/pve/nodes/pve/lxc/200.conf"

    def command(self, *words: str) -> list[str]:
        return [GPUCTL, *words]

    def run(
        self, *words: str, timeout: float = 120, inventory: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """gpuctl with this lab's inventory, bounded."""
        return subprocess.run(
            [GPUCTL, *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"GPUCTL_INVENTORY": str(inventory or self.inventory)},
            check=False,
        )

    def json(self, *words: str, timeout: float = 120) -> dict[str, Any]:
        done = self.run(*words, "--json", timeout=timeout)
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer

    def lab(self, word: str, *more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [GPUCTL, "lab", word, "--dir", str(self.folder), *more],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    def variant(self, name: str, *replacements: tuple[str, str]) -> Path:
        """The lab's inventory with some text replaced, as a file beside it."""
        text = self.inventory.read_text()
        for old, new in replacements:
            assert old in text, old
            text = text.replace(old, new)
        path = self.folder / name
        path.write_text(text)
        return path
