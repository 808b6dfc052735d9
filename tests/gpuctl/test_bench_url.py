"""`gpuctl bench --url` as a user meets it: the answer, the exit code, what is kept, and what bad words lead to."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from labkit import GPUCTL
from truthkit import HEAD, answer, finish, token

from gpuctl import cli

N = 16


@pytest.fixture
def server(serve: Any) -> Any:
    """100 tok/s, one token an event; asks for a key at /v1/models of `secret`."""

    def script(method: str, path: str, body: Any) -> Any:
        if path == "/v1/models":
            return [(0.0, answer("200 OK", b'{"data":[{"id":"tiny"}]}'))]
        if body["model"] != "tiny":
            return [(0.0, answer("404 Not Found", b'{"error":{"message":"no such model"}}'))]
        steps = [(0.02 + 0.01 * number, token("x")) for number in range(N)]
        return [(0.0, HEAD), *steps, (0.2, finish("length", N))]

    return serve(script)


@pytest.fixture
def gpuctl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        out, err = capsys.readouterr()
        return int(str(ended.value.code)), out, err

    return run


def test_the_answer_as_json_and_every_request_kept(server: Any, gpuctl: Any, tmp_path: Path) -> None:
    words = (
        "--max-tokens",
        str(N),
        "--requests",
        "4",
        "--concurrency",
        "1",
        "--concurrency",
        "2",
        "--warmup",
        "0",
    )
    code, out, err = gpuctl("bench", "--url", server.url, *words, "--out", str(tmp_path / "kept"), "--json")
    assert code == 0, err
    one, two = json.loads(out)["loads"]
    assert (one["model"], one["concurrency"], two["concurrency"]) == ("tiny", 1, 2)
    assert one["tokens"] == two["tokens"] == 4 * N
    assert one["decode_tok_s"]["median"] == pytest.approx(100, rel=0.2)
    assert two["total_tok_s"] > 1.2 * one["total_tok_s"]
    folders = sorted((tmp_path / "kept").iterdir())
    assert [folder.name.rpartition("-")[2] for folder in folders] == [f"1x{N}", f"2x{N}"]
    kept = [json.loads(line) for line in (folders[0] / "requests.jsonl").read_text().splitlines()]
    assert [request["n"] for request in kept] == [N] * 4
    assert json.loads((folders[0] / "result.json").read_text())["result"] == one


def test_the_answer_as_text_names_one_stream_and_all(server: Any, gpuctl: Any) -> None:
    code, out, err = gpuctl("bench", "--url", server.url + "/v1", "--max-tokens", str(N), "--requests", "2")
    assert code == 0, err
    assert "one stream" in out
    assert "all streams" in out
    assert "2 ok; 2 by length" in out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--model", "other"), 2, "it serves: tiny"),
        (("--prompt", "a", "--prompts", "b"), 64, "exclude each other"),
        (("--method", "mtp"), 64, "--method does not go with that"),
        (("--key", "sk-123"), 64, "never the key itself"),
        (("--key", "env:GPUCTL_TEST_UNSET"), 78, "GPUCTL_TEST_UNSET"),
        (("--prompts", "/absent"), 64, "No such file"),
    ],
)
def test_wrong_words_are_one_sentence(
    words: tuple[str, ...], code: int, told: str, server: Any, gpuctl: Any
) -> None:
    got, _, err = gpuctl("bench", "--url", server.url, *words)
    assert got == code
    assert told in err
    assert "sk-123" not in err
    assert "Traceback" not in err


def test_options_of_a_load_without_a_server_are_wrong_usage(gpuctl: Any) -> None:
    code, _, err = gpuctl("bench", "--requests", "3")
    assert code == 64
    assert "only --url can do that" in err


def test_an_absent_server_is_told(gpuctl: Any) -> None:
    code, _, err = gpuctl("bench", "--url", "http://127.0.0.1:9")
    assert code == 3
    assert "no server to measure" in err


def test_a_key_goes_into_the_header_and_nowhere_else(
    serve: Any,
    gpuctl: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUCTL_TEST_KEY", "sk-very-secret")
    truth = serve([(0.0, HEAD), (0.01, token("x")), (0.03, token("y")), (0.04, finish("stop", 2))])
    code, out, err = gpuctl(
        "bench", "--url", truth.url, "--model", "m", "--key", "env:GPUCTL_TEST_KEY", "--requests", "1",
        "--out", str(tmp_path), "--json",
    )  # fmt: skip
    assert code in (0, 1), err
    assert any("sk-very-secret" in head for head in truth.heads)
    kept = "".join(path.read_text() for path in tmp_path.rglob("*.json*"))
    assert "sk-very-secret" not in out + err + kept


def test_a_folder_that_cannot_be_written_is_told(server: Any, gpuctl: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = gpuctl(
        "bench", "--url", server.url, "--requests", "1", "--warmup", "0", "--max-tokens", "4",
        "--out", str(tmp_path / "file"),
    )  # fmt: skip
    assert code == 2
    assert "cannot be kept" in err


def test_interrupted_it_gives_what_had_ended(serve: Any, tmp_path: Path) -> None:
    number = count()

    def script(method: str, path: str, body: Any) -> Any:
        if next(number) < 2:
            return [(0.0, HEAD), (0.01, token("x")), (0.03, token("y")), (0.04, finish("stop", 2))]
        return [(0.0, HEAD), (0.01, token("x")), (60.0, finish("stop", 1))]

    truth = serve(script)
    words = ("--model", "m", "--requests", "5", "--warmup", "0", "--json", "--out", str(tmp_path))
    process = subprocess.Popen(
        [GPUCTL, "bench", "--url", truth.url, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while len(truth.requests) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    (load,) = json.loads(out)["loads"]
    assert (load["interrupted"], load["ends"], load["requests_wanted"]) == (True, {"ok": 2}, 5)
    assert len(next(tmp_path.glob("*/requests.jsonl")).read_text().splitlines()) == 2
