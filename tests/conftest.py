"""What every test gets: own XDG folders, no inventory and no colour from the surroundings."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("xdg")
    for variable in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(home / variable.lower()))
    # The cache holds only what can be made again (the zip application); one for all tests saves building it.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg-cache"))
    for variable in ("GPUCTL_INVENTORY", "GPUCTL_ROOT", "HF_TOKEN", "HF_HOME", "HF_ENDPOINT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(scope="session")
def project() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).parent.parent
