"""The CUDA probe before a library of compiled C, loaded by its soname as the real one is."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from checks import job
from checks.probes import runner

UUID = "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
SOURCE = Path(__file__).parent / "libcuda.c"

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler on this machine")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lib")
    argv = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libcuda.so.1"), str(SOURCE)]
    subprocess.run(argv, check=True, timeout=60)
    return folder


def test_every_argument_arrives_as_c_expects_it(library: Path) -> None:
    probe = replace(job.CUDA, words=(f"use={UUID}",), env={**job.CUDA.env, "LD_LIBRARY_PATH": str(library)})
    reads = runner.run((probe,))["cuda"]
    assert reads.trouble == ()
    assert {key: reading.text for key, reading in reads.readings.items() if not reading.ok} == {}
    assert reads.value("uuid", 0) == UUID
    assert (reads.value("name", 0), reads.value("bus_id", 0)) == ("C card", "0000:c1:00.0")
    assert reads.value("memory", 0) == 96 * 1024**3
    assert reads.value("copy", 0) == {"bytes": 1 << 20, "wrong": 0, "first_wrong": -1}
    assert reads.value("kernel", 0) == {"bytes": 4096 * 4, "wrong": 0, "first_wrong": -1}
    assert reads.value("library") == str(library / "libcuda.so.1")


def test_a_gpu_that_was_not_named_gets_no_context(library: Path) -> None:
    probe = replace(job.CUDA, words=("use=GPU-other",), env={**job.CUDA.env, "LD_LIBRARY_PATH": str(library)})
    reads = runner.run((probe,))["cuda"]
    assert reads.value("name", 0) == "C card"
    assert reads.get("context", 0) is None


def test_a_missing_symbol_is_told_by_its_name(library: Path, tmp_path: Path) -> None:
    text = SOURCE.read_text().replace("cuModuleLoadData", "cuModuleLoadDataOld")
    (tmp_path / "old.c").write_text(text)
    argv = ["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "old.c")]
    subprocess.run(argv, check=True, timeout=60)
    probe = replace(job.CUDA, words=(f"use={UUID}",), env={**job.CUDA.env, "LD_LIBRARY_PATH": str(tmp_path)})
    reading = runner.run((probe,))["cuda"].get("kernel", 0)
    assert reading is not None
    assert reading.text == "cuModuleLoadData: this driver has no such function"
