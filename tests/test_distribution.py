"""The wheel holds exactly our five packages, and nothing else answers to their names."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = {"gpuctl", "provision", "checks", "bench", "inventory"}


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_each_package_is_the_one_of_this_project(name: str, project: Path) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    assert Path(spec.origin) == project / name / "__init__.py"


def test_no_other_distribution_brings_a_package_of_our_names() -> None:
    owners = importlib.metadata.packages_distributions()
    assert {name: set(owners.get(name, ["gpuctl"])) for name in PACKAGES} == {
        name: {"gpuctl"} for name in PACKAGES
    }


def test_it_can_not_be_uploaded_by_accident() -> None:
    assert "Private :: Do Not Upload" in importlib.metadata.metadata("gpuctl").get_all("Classifier", [])


@pytest.mark.slow
def test_the_wheel_holds_exactly_our_packages_with_their_data(project: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    argv = [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(project)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert {
        "inventory/example.yaml",
        "inventory/lab.yaml",
        "gpuctl/lab/pve/api.json",
        "gpuctl/lab/driver/native/libcuda_lab.c",
    } <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_the_locked_requirements_pin_every_package_by_hash(project: Path) -> None:
    for lock in sorted((project / "requirements").glob("*.lock")):
        text = lock.read_text()
        assert "://" not in text, f"{lock.name} names a host"
        for block in text.replace("\\\n", " ").splitlines():
            assert "==" in block and "--hash=sha256:" in block, f"{lock.name}: {block[:60]}"
