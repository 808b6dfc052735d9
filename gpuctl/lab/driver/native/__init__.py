"""Builds the lab's libcuda.so.1 in C, which opens the device nodes itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from inventory.errors import Failed, Refused

LIBRARY: Final = "libcuda.so.1"
PLACE: Final = "/opt/gpuctl-lab/native"
"""The folder with the library, as a container sees it; its processes have it in `GPUCTL_LAB_NATIVE`."""
SOURCE: Final = Path(__file__).parent / "libcuda_lab.c"
BUILD_LIMIT_S: Final = 60.0


def build(folder: Path, *, compiler: str = "cc") -> Path:
    """Compile the library into `folder`, which is made; returns its path.

    Raises `Refused` when there is no compiler, `Failed` with its words when it fails or takes over a minute.
    """
    found = shutil.which(compiler)
    if found is None:
        raise Refused(
            f"a level-1 lab compiles a small library and finds no C compiler {compiler!r}",
            hint="install gcc and libc6-dev, or take level 0",
        )
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / LIBRARY
    staging = folder / f".{LIBRARY}.{os.getpid()}"
    flags = ("-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}")
    try:
        done = subprocess.run(
            [found, *flags, "-o", str(staging), str(SOURCE)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=BUILD_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise Failed(
                f"{found} could not compile {SOURCE.name}: exit status {done.returncode}",
                hint="the C library's headers belong to it: install libc6-dev",
                detail=tuple(done.stderr.splitlines()[:12]),
            )
        staging.replace(target)
    except subprocess.TimeoutExpired as error:
        raise Failed(
            f"{found} took more than {BUILD_LIMIT_S:g} s for {SOURCE.name}", hint="try again on a calmer machine"
        ) from error
    finally:
        staging.unlink(missing_ok=True)
    return target
