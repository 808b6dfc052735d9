"""A lab for the tests of a module, and the ground-truth server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from labkit import Lab
from truthkit import serve

__all__ = ["lab", "serve"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One lab for a module's tests, gone afterwards with every process in it."""
    made = Lab(tmp_path_factory.mktemp("lab") / "lab")
    try:
        made.lab("up")
        yield made
    finally:
        made.lab("down", "--purge")
