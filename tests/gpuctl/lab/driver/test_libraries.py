"""The lab's NVML and CUDA before real clients: CUDA fails exactly while nvidia-uvm is not usable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Python = Callable[..., Any]


def test_healthy_lab_has_both_libraries(libraries: Python) -> None:
    assert libraries() == [2, 2]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"run/lab-device-rules": "c 195:* rwm\n"}, [2, -999]),
        ({"dev/nvidia-uvm": "lab-node c 509:0 mode=0666 uid=0 gid=0\n"}, [2, -999]),
        ({"dev/nvidia-uvm": None}, [2, -999]),
        ({"dev/nvidia-uvm": ""}, [2, -999]),
        ({"dev/nvidia1": None}, [1, 1]),
        ({"dev/nvidia0": None, "dev/nvidia1": None}, [0, -100]),
        ({"dev/nvidiactl": None}, [-9, -100]),
        ({"run/lab-device-rules": ""}, [-999, -100]),
        ({"proc/driver/nvidia/version": None}, [-9, -100]),
        ({"etc/gpuctl-lab/scenario.json": '{"rc": {"nvmlInitWithFlags": 18, "cuInit": 803}}'}, [-18, -803]),
    ],
)
def test_libraries_follow_the_nodes(
    libraries: Python, root: Path, change: dict[str, str | None], answer: list[int]
) -> None:
    for name, content in change.items():
        (root / name).unlink(missing_ok=True)
        if content is not None:
            (root / name).write_text(content)
    assert libraries() == answer


def test_nvidia_ml_py_reads_a_card(python: Python) -> None:
    seen = python(
        "import pynvml as n\nn.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(1)\n"
        "m = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)\n"
        "print(json.dumps([n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion(), n.nvmlDeviceGetName(h),"
        " n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetPciInfo(h).busId, m.total, m.used, n.nvmlDeviceGetMemoryInfo(h).used,"
        " n.nvmlDeviceGetComputeRunningProcesses(h), n.nvmlDeviceGetPowerManagementLimitConstraints(h),"
        " n.nvmlDeviceGetCudaComputeCapability(h), n.nvmlDeviceGetFieldValues(h, [230, 1])[1].nvmlReturn,"
        " n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID('GPU-00000001-1111-2222-3333-444444444444')),"
        " n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId('0000:02:00.0')), n.nvmlDeviceGetTemperatureV(h, 0)]))"
    )
    reserved = 600 * 1024**2
    assert seen == [
        *("595.45.04", 13020, "Card 1 (lab)", "GPU-00000001-1111-2222-3333-444444444444", "00000000:02:00.0"),
        *(96 * 1024**3, 0, reserved, [], [150000, 600000], [12, 0], 3, 1, 1, 31),
    ]


def test_processes_on_a_card_are_listed(python: Python, root: Path) -> None:
    values = {"0": {"processes": [{"pid": 77, "memory": 5}, {"pid": 78, "memory": 6}]}}
    (root / "etc/gpuctl-lab/scenario.json").write_text(json.dumps({"values": values}))
    seen = python(
        "import pynvml as n\nn.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n"
        "print(json.dumps([[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)]))"
    )
    assert seen == [[77, 5], [78, 6]]


def test_what_the_stand_in_does_not_have_is_missing_as_in_a_real_library(python: Python) -> None:
    seen = python(
        "import ctypes, pynvml as n\nn.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n"
        "def code(call):\n    try:\n        call()\n        return 0\n"
        "    except n.NVMLError as p:\n        return p.value\n"
        "print(json.dumps([code(lambda: n.nvmlDeviceSetPersistenceMode(h, 1)),"
        " code(lambda: n.nvmlDeviceResetGpuLockedClocks(h)),"
        " hasattr(ctypes.CDLL('libcuda.so.1'), 'cuMemAllocManaged'), ctypes.CDLL(None).getpid() == os.getpid()]))"
    )
    assert seen == [13, 13, False, True]


def test_before_init_and_after_a_fork_cuda_says_not_initialised(python: Python) -> None:
    seen = python(
        "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\nn = ctypes.c_int()\n"
        "before = cuda.cuDeviceGetCount(ctypes.byref(n))\ncuda.cuInit(0)\npid = os.fork()\n"
        "if pid == 0:\n    os._exit(cuda.cuDeviceGetCount(ctypes.byref(n)))\n"
        "print(json.dumps([before, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]))"
    )
    assert seen == [3, 3]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1", ["Card 1 (lab)"]),
        ("1,0", ["Card 1 (lab)", "Card 0 (lab)"]),
        ("0,7,1", ["Card 0 (lab)"]),
        ("GPU-00000001", ["Card 1 (lab)"]),
        ("", None),
        ("-1", None),
    ],
)
def test_visible_devices_drops_everything_from_the_first_invalid_entry(
    python: Python, visible: str, names: list[str] | None
) -> None:
    seen = python(
        "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\nrc, n = cuda.cuInit(0), ctypes.c_int()\n"
        "cuda.cuDeviceGetCount(ctypes.byref(n))\nb = ctypes.create_string_buffer(99)\n"
        "print(json.dumps(rc or [(cuda.cuDeviceGetName(b, 99, i), b.value.decode())[1] for i in range(n.value)]))",
        CUDA_VISIBLE_DEVICES=visible,
    )
    assert seen == (100 if names is None else names)


MEMORY = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
c, p = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0)
no_context = cuda.cuMemAlloc_v2(ctypes.byref(p), 64)
cuda.cuCtxSetCurrent(c)
"""


def test_memory_holds_bytes_and_refuses_what_was_not_allocated(python: Python) -> None:
    seen = python(
        MEMORY + "assert cuda.cuMemAlloc_v2(ctypes.byref(p), 64) == 0\nback = ctypes.create_string_buffer(64)\n"
        "codes = [no_context, cuda.cuMemcpyHtoD_v2(p, ctypes.c_char_p(b'x' * 64), 64),"
        " cuda.cuMemcpyDtoH_v2(back, ctypes.c_uint64(p.value + 32), 32), cuda.cuMemcpyDtoH_v2(back, p, 65),"
        " cuda.cuMemAlloc_v2(ctypes.byref(p), 1 << 40), cuda.cuMemFree_v2(1234)]\n"
        "print(json.dumps([codes, back.raw[:33].decode()]))"
    )
    assert seen == [[201, 0, 0, 1, 2, 1], "x" * 32 + "\0"]


def test_only_the_probe_kernel_can_be_computed(python: Python) -> None:
    other = b".version 6.4\n.target sm_52\n.entry other(.param .u64 p, .param .u32 n, .param .u32 s) { ret; }"
    seen = python(
        MEMORY + "m, f = ctypes.c_void_p(), ctypes.c_void_p()\n"
        "codes = [cuda.cuModuleLoadData(ctypes.byref(m), ctypes.c_char_p(b'no ptx'))]\n"
        f"codes.append(cuda.cuModuleLoadData(ctypes.byref(m), ctypes.c_char_p({other!r})))\n"
        "codes.append(cuda.cuModuleGetFunction(ctypes.byref(f), m, ctypes.c_char_p(b'nothing')))\n"
        "codes.append(cuda.cuModuleGetFunction(ctypes.byref(f), m, ctypes.c_char_p(b'other')))\n"
        "codes.append(cuda.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, None, (ctypes.c_void_p * 3)(), None))\n"
        "print(json.dumps(codes))"
    )
    assert seen == [218, 0, 500, 0, 801]


def test_without_the_labs_cards_the_real_loader_answers(python: Python, root: Path) -> None:
    (root / "etc/gpuctl-lab/gpus.json").unlink()
    seen = python(
        "import ctypes\ntry:\n    found = type(ctypes.CDLL('libnvidia-ml.so.1')) is ctypes.CDLL\n"
        "except OSError:\n    found = True\nprint(json.dumps(found))"
    )
    assert seen is True


def test_a_hanging_call_hangs_and_a_child_can_be_killed(python: Python, root: Path) -> None:
    (root / "etc/gpuctl-lab/scenario.json").write_text('{"hang": ["cuInit"]}')
    seen = python(
        "import subprocess\ncode = 'import ctypes; ctypes.CDLL(\"libcuda.so.1\").cuInit(0)'\n"
        "try:\n    subprocess.run([sys.executable, '-c', code], timeout=1)\n    print(json.dumps('returned'))\n"
        "except subprocess.TimeoutExpired:\n    print(json.dumps('hung'))"
    )
    assert seen == "hung"
