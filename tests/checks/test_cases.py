"""Every reported fault of cases/: the right verdict, the right root cause, and what must and must not be said."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.job import look
from checks.report import Report, Status
from checks.text import lines

pytestmark = pytest.mark.slow  # as a whole: many short waits and processes

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


def _said(report: Report) -> str:
    parts = [json.dumps(finding.to_json(), ensure_ascii=False) for finding in report.findings]
    return "\n".join([*lines(report, verbose=True), *parts])


def _worst(report: Report, check: str) -> str:
    return str(max((f.status for f in report.findings if f.id == check), key=lambda status: status.gravity))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_gets_its_verdict_and_its_one_cause(path: Path, machine: Callable[[dict[str, Any]], Path]) -> None:
    case = json.loads(path.read_text())
    want = case["want"]
    machine(case["tree"])
    started = time.monotonic()
    report = look(case["args"])
    took = time.monotonic() - started
    said = _said(report)
    assert report.verdict == want["verdict"], said
    assert int(report.exit_code) == want["exit"]
    if "root_causes" in want:
        assert list(report.root_causes) == want["root_causes"], said
    if "critical" in want:
        assert [f.id for f in report.findings if f.status is Status.CRITICAL] == want["critical"], said
    for text in want.get("says", ()):
        assert text in said
    for text in want.get("not", ()):
        # As a word: the digits of some amount of free memory may hold any number.
        assert not re.search(rf"(?<![0-9]){re.escape(text)}(?![0-9])", said), text
    for check, status in want.get("status", {}).items():
        assert _worst(report, check) == status, said
    for check, cause in want.get("because", {}).items():
        bad = [f for f in report.findings if f.id == check and f.status in (Status.UNKNOWN, Status.CRITICAL)]
        assert {f.because for f in bad} == {cause}, said
    if "gpu" in want:
        root = [f.gpu for f in report.findings if f.id in report.root_causes and f.status.gravity > 2]
        assert root == [want["gpu"]], said
    for check, gpus in want.get("ok_gpus", {}).items():
        assert [f.gpu for f in report.findings if f.id == check and f.status is Status.OK] == gpus
    assert report.lab
    assert took < want.get("max_s", 20)
