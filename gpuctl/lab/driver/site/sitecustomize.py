"""Start-up hook of every lab process: device nodes answer as a kernel would, CUDA and NVML come from the stand-in.

This folder goes on PYTHONPATH. Only `os` and `sys` are loaded here; the NVML and CUDA parts are read when a
process loads `ctypes` and asks for one of the two libraries. Standard library only, none of our packages.
"""

import sys


def _start() -> None:
    from lab_driver import loader, nodes

    if nodes.level() == 1:
        from lab_driver import real_nodes

        real_nodes.install()
    else:
        nodes.install()
    loader.install()


# A broken hook must not print a traceback into every process of the lab; without it the nodes are plain files,
# which the checks report as such.
try:
    _start()
except Exception:
    sys.lab_driver_failed = True  # type: ignore[attr-defined]
