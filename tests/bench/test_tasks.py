"""The checkers of the fixed tasks: right answers in several dresses, wrong and hostile ones."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bench.sandbox import evaluate
from bench.tasks import PLANETS, PROMPTS, SUM, code_of, judge
from inventory.model import Task

FIB = "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"
QSORT = (
    "def qsort(items):\n    if len(items) < 2:\n        return items\n    p, *rest = items\n"
    "    return qsort([x for x in rest if x < p]) + [p] + qsort([x for x in rest if x >= p])"
)
RINGED = ("Jupiter", "Saturn", "Uranus", "Neptune")
ANSWER = json.dumps([{"name": n, "position": i, "has_rings": n in RINGED} for i, n in enumerate(PLANETS, 1)])


def right(task: Task, text: str, *, finish: str = "stop") -> tuple[bool, str]:
    verdict = judge(task, text, finish=finish, reasoning=False)
    return verdict.right, verdict.why


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (Task.FIB, f"Here it is:\n```python\n{FIB}\n```\nIt adds."),
        (Task.FIB, FIB),
        (Task.FIB, f"```\n{FIB}"),
        (Task.FIB, f"```python\nfrom typing import List\n{FIB}\n```\nUse:\n```bash\npython fib.py\n```"),
        (Task.QSORT, f"```python\n{QSORT}\nprint(qsort([2, 1]))\n```"),
        (Task.QSORT, "```py\ndef qsort(items):\n    items.sort()\n```"),
        (Task.ARITH, f"17 + 25 = 42\n...\nAnswer: {SUM}"),
        (Task.ARITH, f"**Answer:** ${SUM}$"),
        (Task.ARITH, f"The total is {SUM}."),
        (Task.JSON, ANSWER),
        (Task.JSON, f"```json\n{ANSWER}\n```"),
        (Task.JSON, f"Sure! {ANSWER} That is all."),
    ],
)
def test_a_right_answer_is_right(task: Task, text: str) -> None:
    assert right(task, text) == (True, "")


@pytest.mark.parametrize(
    ("task", "text", "why"),
    [
        (Task.FIB, "```python\ndef fib(n):\n    return n\n```", "gives [0, 1, 2"),
        (Task.FIB, "I would rather not.", "the code fails: SyntaxError"),
        (Task.FIB, "```python\ndef other(n):\n    return n\n```", "NameError"),
        (Task.FIB, "```python\nwhile True: pass\n```", "out of time"),
        (Task.QSORT, "```python\ndef qsort(items):\n    return items\n```", "gives [3, 1, 2], not [1, 2, 3]"),
        (Task.ARITH, "Answer: 528", f"says 528, not {SUM}"),
        (Task.ARITH, "no idea", "no number"),
        (Task.JSON, "Mercury, Venus", "not JSON"),
        (Task.JSON, "[1, 2]", "not an array of eight planets"),
        (Task.JSON, ANSWER.replace("Venus", "Vulcan"), "element 2"),
        (Task.JSON, ANSWER.replace("true", '"yes"'), "element 5"),
        (Task.JSON, "[" * 100_000, "not"),
        (Task.FIB, "   ", "the answer is empty"),
    ],
)
def test_a_wrong_answer_is_wrong_and_says_why(task: Task, text: str, why: str) -> None:
    verdict, said = right(task, text)
    assert verdict is False
    assert why in said


def test_a_cut_answer_says_that_it_was_cut() -> None:
    assert right(Task.FIB, "```python\ndef fib(n):\n    if n", finish="length")[1].startswith(
        "cut by the token budget"
    )


def test_an_answer_that_never_left_the_reasoning_says_so() -> None:
    verdict = judge(Task.FIB, "", finish="length", reasoning=True)
    assert verdict.why == "the budget ended inside the reasoning"


def test_the_sum_is_the_one_the_prompt_asks_for() -> None:
    assert SUM == 530
    numbers = [17 + 8 * k for k in range(10)]
    assert all(str(number) in PROMPTS[Task.ARITH].text for number in numbers)
    assert sum(numbers) == SUM


def test_code_blocks_marked_python_win_over_others() -> None:
    assert code_of("```\na\n```\n```python\nb\n```") == "b"


def test_hostile_code_can_not_write_run_or_connect(tmp_path: Path) -> None:
    target = tmp_path / "owned"
    for code in (
        f"open({str(target)!r}, 'w').write('x')",
        f"import os; os.system('touch {target}')",
        f"import subprocess; subprocess.run(['touch', {str(target)!r}])",
        "import socket; socket.create_connection(('127.0.0.1', 1))",
        "import os; os.fork()",
    ):
        assert evaluate(code, []).error != "", code
    assert not target.exists()


def test_code_that_takes_all_memory_or_never_ends_is_stopped() -> None:
    began = time.monotonic()
    assert evaluate("x = 'a' * 10**10", []).error.startswith("MemoryError")
    assert (
        evaluate("import time; time.sleep(60)", [], timeout_s=1.0).error == "out of time: still running after 1 s"
    )
    assert time.monotonic() - began < 20


def test_output_of_the_code_does_not_disturb_the_values() -> None:
    ran = evaluate("print('{\"values\": [9]}')\ndef f():\n    return 1", ["f()"])
    assert (ran.values, ran.error) == ((1,), "")
