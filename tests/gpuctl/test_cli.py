"""Words to calls, errors to exit codes, and a help that comes at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from gpuctl.cli import COMMANDS, EXIT_CODES, root

GPUCTL = str(Path(sys.executable).parent / "gpuctl")


def gpuctl(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([GPUCTL, *words], capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


def test_help_loads_no_command_and_no_heavy_library() -> None:
    code = (
        "import sys\nfrom gpuctl.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = ('pydantic', 'paramiko', 'proxmoxer', 'rich', 'huggingface_hub', 'yaml', 'asyncssh', 'requests')\n"
        "bad = [m for m in sys.modules if m.startswith('gpuctl.commands') or m.split('.')[0] in heavy]\n"
        "print(bad, file=sys.stderr)\nsys.exit(len(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def commands(group: click.Group, *path: str) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    with click.Context(group) as ctx:
        for name in group.list_commands(ctx):
            command = group.get_command(ctx, name)
            assert command is not None
            found.append(((*path, name), command))
            if isinstance(command, click.Group):
                found.extend(commands(command, *path, name))
    return found


@pytest.mark.parametrize("path", [p for p, _ in commands(root)], ids=" ".join)
def test_every_command_has_a_help_text(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        root.main([*path, "--help"], prog_name="gpuctl")
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


@pytest.mark.parametrize("name", [n for n in COMMANDS if n != "completion"])
def test_the_help_of_each_main_command_has_examples_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        root.main([name, "--help"], prog_name="gpuctl")
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert EXIT_CODES.split(":")[0] in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("recove",), "Did you mean 'recover'?"),
        (("recover", "--untill", "host"), "--until"),
        (("recover", "--until", "hosts"), "'hosts' is not one of"),
        (("recover", "ct200", "--from", "bench", "--until", "host"), "lies after"),
        (("preflight", "--local", "--expect", "gpu=8"), "known keys"),
        (("preflight", "--local", "--expect", "gpus=many"), "not a number"),
        (("stage", "--repo", "a/b"), "--to"),
    ],
)
def test_wrong_words_end_with_64_one_sentence_and_a_hint(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = gpuctl(*words, cwd=tmp_path)
    assert done.returncode == 64, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_any_inventory_it_says_how_to_get_one(tmp_path: Path) -> None:
    done = gpuctl("recover", "ct200", cwd=tmp_path)
    assert done.returncode == 78
    assert "gpuctl inventory init" in done.stderr


def test_errors_are_json_when_json_was_asked_for(tmp_path: Path) -> None:
    done = gpuctl("recover", "ct200", "--json", cwd=tmp_path)
    assert done.returncode == 78
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    assert answer["error"]["exit_code"] == 78


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(shell: str) -> None:
    done = gpuctl("completion", shell)
    assert done.returncode == 0
    assert "_GPUCTL_COMPLETE" in done.stdout


def test_completion_offers_commands_and_containers(tmp_path: Path, project: Path) -> None:
    (tmp_path / "gpuctl.yaml").write_text((project / "inventory" / "example.yaml").read_text())

    def complete(words: str, index: int) -> str:
        env = {"_GPUCTL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
        return subprocess.run(
            [GPUCTL], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env, check=False
        ).stdout

    assert "recover" in complete("gpuctl rec", 1)
    assert "ct200" in complete("gpuctl recover ct", 2)


def test_an_answer_that_cannot_be_written_is_a_failure_in_words() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [GPUCTL, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: no space left on device", "hint: make room and run it again"]
