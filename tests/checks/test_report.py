"""Verdicts, exit codes, causes and the wire form of a report."""

from __future__ import annotations

from typing import Any

import pytest

from checks import registry
from checks.causes import CAUSES, explain
from checks.facts import LEVELS, Expect
from checks.job import look
from checks.report import Finding, Report, Status, verdict_of
from checks.text import headline, lines
from inventory.errors import UsageError


def f(check: str, status: Status, **more: Any) -> Finding:
    return Finding(id=check, status=status, summary=f"{check} is {status}", **more)


def report(*findings: Finding) -> Report:
    explained, roots = explain(findings)
    return Report(level="standard", lab=False, root_causes=roots, findings=explained)


@pytest.mark.parametrize(
    ("statuses", "verdict", "code"),
    [
        ((Status.OK,), "ok", 0),
        ((Status.OK, Status.INFO, Status.NOT_APPLICABLE, Status.SKIPPED), "ok", 0),
        ((Status.OK, Status.WARNING), "warning", 1),
        ((Status.UNKNOWN, Status.WARNING), "unknown", 3),
        ((Status.UNKNOWN, Status.CRITICAL), "critical", 2),
        ((Status.NOT_APPLICABLE, Status.SKIPPED), "unknown", 3),
        ((), "unknown", 3),
    ],
)
def test_unknown_is_louder_than_warning_and_nothing_seen_is_unknown(
    statuses: tuple[Status, ...], verdict: str, code: int
) -> None:
    made = report(*(f(f"x{place}", status) for place, status in enumerate(statuses)))
    assert (made.verdict, made.exit_code) == (verdict, code)


def test_a_report_survives_the_wire() -> None:
    made = report(
        f("dev.nodes", Status.CRITICAL, value={"nodes": ["nvidia-uvm"]}),
        f("cuda.init", Status.CRITICAL, value=999),
    )
    again = Report.from_json(made.to_json())
    assert again.to_json() == made.to_json()
    assert set(made.to_json()) >= {"schema_version", "lab", "verdict", "root_causes", "checks"}


def test_a_denied_node_explains_cuda_and_stays_the_only_critical_one() -> None:
    explained, roots = explain(
        (
            f("dev.nodes", Status.CRITICAL, value={"nodes": ["nvidia-uvm"]}),
            f("cuda.init", Status.CRITICAL, remedy="look at dev.nodes"),
            f("temp", Status.WARNING, gpu=1),
        )
    )
    assert roots == ("dev.nodes",)
    assert (explained[1].status, explained[1].because, explained[1].remedy) == (Status.UNKNOWN, "dev.nodes", "")
    assert verdict_of(explained) is Status.CRITICAL


def test_a_good_finding_is_never_turned_into_a_consequence() -> None:
    explained, _ = explain(
        (f("dev.nodes", Status.CRITICAL, value={"nodes": ["nvidia-uvm"]}), f("cuda.init", Status.OK))
    )
    assert explained[1].status is Status.OK
    assert explained[1].because == ""


def test_a_missing_card_does_not_explain_a_dead_cuda() -> None:
    _, roots = explain(
        (f("dev.nodes", Status.CRITICAL, value={"nodes": ["nvidia3"]}), f("cuda.init", Status.CRITICAL))
    )
    assert roots == ("dev.nodes", "cuda.init")


def test_a_lost_gpu_explains_only_itself() -> None:
    explained, roots = explain(
        (f("gpu.lost", Status.CRITICAL, gpu=2), f("temp", Status.UNKNOWN, gpu=2), f("temp", Status.UNKNOWN, gpu=3))
    )
    assert [finding.because for finding in explained] == ["", "gpu.lost", ""]
    assert roots == ("gpu.lost",)


def test_warnings_are_the_cause_only_when_nothing_graver_is_wrong() -> None:
    assert report(f("temp", Status.WARNING), f("ecc", Status.CRITICAL)).root_causes == ("ecc",)
    assert report(f("temp", Status.WARNING), f("ecc", Status.OK)).root_causes == ("temp",)


def test_text_shows_the_cause_once_with_remedy_and_evidence_and_names_its_consequences() -> None:
    made = report(
        f(
            "dev.nodes",
            Status.CRITICAL,
            value={"nodes": ["nvidia-uvm"]},
            remedy="do this",
            evidence=("open: EPERM",),
        ),
        f("cuda.init", Status.CRITICAL),
        f("nvml.init", Status.OK),
    )
    text = "\n".join(lines(made))
    assert headline(made) == "critical: dev.nodes is critical"
    assert "-> do this" in text
    assert "open: EPERM" in text
    assert "because of dev.nodes: cuda.init" in text
    assert "nvml.init" not in text
    assert "also: 1 good" in text
    assert "nvml.init" in "\n".join(lines(made, verbose=True))


def test_many_gpus_alike_are_shortened() -> None:
    made = report(*(f("persistence", Status.WARNING, gpu=gpu, remedy=f"do {gpu}") for gpu in range(8)))
    text = lines(made)
    assert sum("persistence" in line for line in text) == 4 + 1
    assert any("and 4 more GPUs" in line for line in text)


def test_the_lab_is_named_in_the_first_line() -> None:
    made = Report(level="quick", lab=True, root_causes=(), findings=(f("x", Status.OK),))
    assert lines(made)[0].startswith("lab: ")


@pytest.mark.parametrize(
    "args",
    [
        {"level": "deep"},
        {"expect": {"gpu": 8}},
        {"expect": {"gpus": "8"}},
        {"expect": {"gpus": True}},
        {"expect": {"uuids": "x"}},
    ],
)
def test_wrong_words_are_a_usage_error(args: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        look(args)


def test_expectations_left_out_or_null_are_none() -> None:
    assert Expect.from_json({"gpus": None, "uuids": ["a"]}) == Expect(uuids=("a",))


def test_the_registry_is_sound() -> None:
    ids = [check.id for check in registry.CHECKS]
    assert len(ids) == len(set(ids))
    assert {check.level for check in registry.CHECKS} <= set(LEVELS)
    assert {check.probe for check in registry.CHECKS} <= {"devices", "nvml", "cuda", "use"}
    assert {name for name, _ in CAUSES} <= set(ids)


def test_a_broken_judge_is_an_unknown_finding() -> None:
    broken = registry.Check("x", "quick", "nodes:does_not_exist", "devices", "x")
    (finding,) = broken.run(None)  # type: ignore[arg-type]
    assert finding.status is Status.UNKNOWN
