"""The user's prompts in every form, and what is said of a file that holds none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.prompts import read
from inventory.errors import UsageError


@pytest.mark.parametrize(
    "text",
    [
        "one\n\n  two \n",
        "\ufeffone\r\ntwo\r\n",
        '{"prompt": "one"}\n{"id": 7, "question": "two"}\n',
        json.dumps(["one", "two"]),
        json.dumps([{"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "x"}]},
                    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]}]),
    ],
    ids=["lines", "bom-crlf", "json-lines", "list", "sharegpt"],
)  # fmt: skip
def test_prompts_are_read_in_their_order(text: str, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(text.encode())
    assert read(tmp_path / "p") == ("one", "two")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "no prompt in"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1, 2", "begins like a JSON list"),
        (b'{"prompt": "x"}\n{"prompt": 3}', "p:2 holds no prompt"),
        (b'ok\n{"prompt":', "p:2 begins like JSON"),
        (b'[{"conversations": [{"from": "gpt", "value": "x"}]}]', "element 1 holds no prompt"),
    ],
)
def test_a_file_without_prompts_is_told_with_the_place(data: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(data)
    with pytest.raises(UsageError, match=told):
        read(tmp_path / "p")


def test_an_absent_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "absent")
