"""`gpuctl inventory`: the shipped examples are valid, the schema is one, and the API writes a first inventory."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from labkit import GPUCTL, Lab


def gpuctl(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([GPUCTL, *words], capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


@pytest.mark.parametrize("name", ["example.yaml", "lab.yaml"])
def test_the_shipped_inventories_are_valid(name: str, project: Path, tmp_path: Path) -> None:
    done = gpuctl("inventory", "validate", str(project / "inventory" / name), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "valid; 1 host, 1 container" in done.stdout


def test_show_fills_in_defaults_and_keeps_secrets_as_references(project: Path, tmp_path: Path) -> None:
    example = str(project / "inventory" / "example.yaml")
    done = gpuctl("inventory", "show", "ct200", "--json", "--inventory", example, cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert answer["containers"]["ct200"]["engine"]["ready_timeout_s"] > 0
    assert answer["hosts"]["pve1"]["api"]["token_value"].startswith("file:")


def test_the_schema_describes_every_key_for_editors(tmp_path: Path) -> None:
    schema = json.loads(gpuctl("inventory", "schema", cwd=tmp_path).stdout)
    assert schema["$schema"].endswith("2020-12/schema")
    undescribed = [
        f"{name}.{key}"
        for name, part in schema["$defs"].items()
        for key, value in part.get("properties", {}).items()
        if "description" not in value
    ]
    assert undescribed == []


def test_all_mistakes_are_told_at_once_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "gpuctl.yaml").write_text(
        "containers:\n  ct200:\n    host: pve9\n    vmid: two hundred\n    weigths: []\n"
    )
    done = gpuctl("inventory", "validate", cwd=tmp_path)
    assert done.returncode == 78
    for place in (
        "gpuctl.yaml:3: [containers.ct200.host]",
        "gpuctl.yaml:4: [containers.ct200.vmid]",
        "gpuctl.yaml:5:",
    ):
        assert place in done.stderr
    assert "weights" in done.stderr  # the nearest known key


@pytest.mark.lab
@pytest.mark.slow
def test_a_first_inventory_is_written_from_the_api_and_is_valid(lab: Lab, tmp_path: Path) -> None:
    text = lab.inventory.read_text()
    url = re.search(r"https://\S+", text)
    pinned = re.search(r"(?:[0-9A-F]{2}:){31}[0-9A-F]{2}", text)
    assert url and pinned
    words = ("--api", url[0], "--fingerprint", pinned[0], "--password", f"file:{lab.folder}/secrets/root-pam")
    done = gpuctl("inventory", "init", *words, "--output", "first.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "first.yaml").read_text()
    assert "vmid: 200" in written and "300" not in written  # the virtual machine is none of ours
    valid = gpuctl("inventory", "validate", "first.yaml", cwd=tmp_path)
    assert valid.returncode == 0, valid.stderr
    again = gpuctl("inventory", "init", *words, "--output", "first.yaml", cwd=tmp_path)
    assert again.returncode == 64
    assert (tmp_path / "first.yaml").read_text() == written
