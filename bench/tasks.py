"""The fixed, versioned prompts of a benchmark and the checks of their answers.

A wrong answer is recorded, never an error: a small model is often wrong, and a broken engine always.
Changing a prompt or a check means a new version: results of different versions are not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench.sandbox import evaluate
from inventory.model import Task


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right, and if not, what is wrong with it in one sentence."""

    right: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task."""

    task: Task
    version: int
    text: str
    check: Callable[[str], Verdict]


_FENCE: Final = re.compile(r"```[ \t]*([A-Za-z0-9_+-]*)[^\n]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)


def blocks(answer: str) -> tuple[tuple[str, str], ...]:
    """Fenced blocks as (language, text); a block that the token budget cut open goes to the end."""
    return tuple((match[1].lower(), match[2]) for match in _FENCE.finditer(answer))


def code_of(answer: str) -> str:
    """The Python code of an answer: its fenced blocks (those marked python if any are), else all of it."""
    found = blocks(answer)
    python = [text for language, text in found if language in ("python", "py", "python3")]
    return "\n\n".join(python or [text for _, text in found] or [answer])


def _run(answer: str, expressions: list[str], expected: list[Any]) -> Verdict:
    ran = evaluate(code_of(answer), expressions)
    if ran.error:
        return Verdict(False, f"the code fails: {ran.error}")
    for expression, got, want in zip(expressions, ran.values, expected, strict=True):
        if got != want:
            return Verdict(False, f"{expression} gives {str(got)[:60]}, not {str(want)[:60]}")
    return Verdict(True)


def check_fib(answer: str) -> Verdict:
    """`fib(n)` is right for 0..20 and for 90, which an exponential recursion does not reach in time."""
    numbers = [0, 1]
    while len(numbers) <= 90:
        numbers.append(numbers[-1] + numbers[-2])
    return _run(answer, ["[fib(n) for n in range(21)]", "fib(90)"], [numbers[:21], numbers[90]])


def check_qsort(answer: str) -> Verdict:
    """`qsort(items)` sorts; one that sorts in place and returns None is accepted."""
    cases: list[list[int]] = [[], [1], [3, 1, 2], [5, 5, 1, 5], [9, -2, 7, 0, -2, 13, 4], list(range(50, 0, -1))]
    call = "(lambda items: (lambda out: items if out is None else list(out))(qsort(items)))"
    expressions = [f"{call}({case})" for case in cases]
    return _run(answer, expressions, [sorted(case) for case in cases])


SUM: Final = sum(range(17, 97, 8))


def check_arith(answer: str) -> Verdict:
    """The last number of the answer, or the one after "Answer:", is the sum."""
    marked = re.findall(r"answer\s*(?:is)?\s*[:=]?\s*\**\s*\$?\s*(-?[\d,]*\d)", answer, re.IGNORECASE)
    numbers = marked or re.findall(r"-?[\d,]*\d", answer)
    if not numbers:
        return Verdict(False, "no number in the answer")
    got = numbers[-1].replace(",", "")
    return Verdict(True) if got == str(SUM) else Verdict(False, f"says {got}, not {SUM}")


PLANETS: Final = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")


def check_json(answer: str) -> Verdict:
    """A JSON array of the eight planets in order, each with name, position and has_rings of the right types."""
    found = [text for language, text in blocks(answer) if language in ("json", "")]
    text = found[-1] if found else answer[max(0, answer.find("[")) : answer.rfind("]") + 1] or answer
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Verdict(False, f"not JSON: {error}")
    if not isinstance(data, list) or len(data) != len(PLANETS):
        return Verdict(False, "not an array of eight planets")
    for position, (planet, name) in enumerate(zip(data, PLANETS, strict=True), 1):
        if not isinstance(planet, Mapping):
            return Verdict(False, f"element {position} is not an object")
        shape = (planet.get("name"), planet.get("position"), type(planet.get("has_rings")))
        if shape != (name, position, bool):
            return Verdict(False, f"element {position} is {json.dumps(planet)[:80]}")
    return Verdict(True)


# Short, because every request pays for reading its prompt; open-ended, so that a long budget is used.
PROMPTS: Final[Mapping[Task, Prompt]] = {
    Task.FIB: Prompt(
        Task.FIB,
        1,
        "Write a Python function fib(n) that returns the n-th Fibonacci number, fib(0) being 0, with a loop. "
        "Then explain it step by step.",
        check_fib,
    ),
    Task.QSORT: Prompt(
        Task.QSORT,
        1,
        "Write a Python function qsort(items) that returns a new sorted list by quicksort, without library sorting. "
        "Then explain it step by step.",
        check_qsort,
    ),
    Task.ARITH: Prompt(
        Task.ARITH,
        1,
        "Add 17, 25, 33, 41, 49, 57, 65, 73, 81 and 89. Write each partial sum on a line of its own and end with "
        "the line: Answer: TOTAL",
        check_arith,
    ),
    Task.JSON: Prompt(
        Task.JSON,
        1,
        "List the eight planets by distance from the sun as a JSON array of objects with the keys name, position "
        "(1 to 8) and has_rings (true or false). Answer with the JSON only.",
        check_json,
    ),
}
"""By task; the order of the inventory's list decides the order of the run."""


def judge(task: Task, text: str, *, finish: str, reasoning: bool) -> Verdict:
    """Check an answer; an empty one after reasoning is told apart from a plain empty one."""
    if not text.strip():
        inside = (
            "the budget ended inside the reasoning" if reasoning and finish == "length" else "the answer is empty"
        )
        return Verdict(False, inside)
    verdict = PROMPTS[task].check(text)
    if not verdict.right and finish == "length":
        return Verdict(False, f"cut by the token budget; {verdict.why}")
    return verdict
