"""Secrets by reference: read safely, never shown."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from pathlib import Path

import pytest

from inventory import secret
from inventory.errors import CannotLook, ConfigError, GpuctlError
from inventory.secret import Secret, is_reference, resolve

VALUE = "s3cr3t-Ä"


def private(path: Path, text: str | bytes = VALUE + "\n", mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


class TestValue:
    def test_it_shows_only_on_demand(self) -> None:
        value = Secret(VALUE)
        assert VALUE not in f"{value} {value!r} {value!s} {value:>20} {[value]}"
        assert value.reveal() == VALUE

    def test_logging_does_not_show_it(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            logging.getLogger("t").warning("%s %r", Secret(VALUE), Secret(VALUE))
        assert VALUE not in caplog.text

    def test_it_can_not_be_pickled(self) -> None:
        with pytest.raises(TypeError):
            pickle.dumps(Secret(VALUE))


class TestEnvironment:
    def test_a_variable_is_read_and_stripped(self, tmp_path: Path) -> None:
        assert resolve("env:PW", base=tmp_path, environ={"PW": f" {VALUE}\n"}).reveal() == VALUE

    def test_a_missing_variable_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="PW is not set"):
            resolve("env:PW", base=tmp_path, environ={})

    def test_an_empty_one_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="empty"):
            resolve("env:PW", base=tmp_path, environ={"PW": " "})


class TestFile:
    def test_a_relative_path_starts_at_the_inventory(self, tmp_path: Path) -> None:
        private(tmp_path / "pw")
        assert resolve("file:pw", base=tmp_path).reveal() == VALUE

    def test_a_tilde_is_the_home_folder(self, tmp_path: Path, home: Path) -> None:
        private(home / "pw")
        assert resolve("file:~/pw", base=tmp_path).reveal() == VALUE

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
    def test_a_file_that_others_may_use_is_refused(self, tmp_path: Path, mode: int) -> None:
        path = private(tmp_path / "my pw", mode=mode)
        with pytest.raises(ConfigError, match=f"mode {mode:04o}") as caught:
            resolve("file:my pw", base=tmp_path)
        assert caught.value.hint == f"chmod 600 '{path}'"

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=f"{tmp_path / 'gone'} can't be read: No such file"):
            resolve("file:gone", base=tmp_path)

    def test_a_folder_and_a_pipe_are_refused_without_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe", 0o600)
        (tmp_path / "folder").mkdir(mode=0o700)
        began = time.monotonic()
        for name in ("pipe", "folder"):
            with pytest.raises(GpuctlError, match="not a regular file"):
                resolve(f"file:{name}", base=tmp_path)
        assert time.monotonic() - began < 1

    def test_two_lines_binary_and_giants_are_refused_without_showing_them(self, tmp_path: Path) -> None:
        for number, text in enumerate((f"{VALUE}\nmore", b"\xff\xfe" + VALUE.encode(), VALUE * 20000)):
            private(tmp_path / str(number), text)
            with pytest.raises(ConfigError) as caught:
                resolve(f"file:{number}", base=tmp_path)
            assert VALUE not in caught.value.message + caught.value.hint


class TestCommand:
    def test_its_output_is_the_secret(self, tmp_path: Path) -> None:
        assert resolve(f"command:printf '%s\\n' '{VALUE}'", base=tmp_path).reveal() == VALUE

    def test_no_shell_looks_at_it(self, tmp_path: Path) -> None:
        assert resolve("command:echo $HOME;id `id`", base=tmp_path).reveal() == "$HOME;id `id`"

    def test_a_relative_program_starts_at_the_inventory(self, tmp_path: Path) -> None:
        script = tmp_path / "give"
        script.write_text(f"#!/bin/sh\necho {VALUE}\n")
        script.chmod(0o700)
        assert resolve("command:./give", base=tmp_path).reveal() == VALUE

    def test_a_failure_shows_neither_output_nor_arguments(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        command = f'command:{sys.executable} -c \'import sys; print("{VALUE}"); sys.exit("{VALUE}")\''
        with pytest.raises(CannotLook, match="exit status 1") as caught:
            resolve(command, base=tmp_path)
        assert VALUE not in str(caught.value.to_json())
        assert VALUE not in "".join(capfd.readouterr())

    def test_a_missing_program_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no-such-program can't be started: No such file"):
            resolve("command:no-such-program x", base=tmp_path)

    def test_it_can_not_wait_for_a_person_or_for_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(secret, "COMMAND_LIMIT_S", 0.3)
        with pytest.raises(ConfigError, match="empty"):
            resolve("command:cat", base=tmp_path)
        with pytest.raises(CannotLook, match=r"did not end within 0\.3 s") as caught:
            resolve("command:sleep 30", base=tmp_path)
        assert "unlock" in caught.value.hint


class TestReference:
    @pytest.mark.parametrize("text", ["env:A", "file:a b", "command:pass show x", "command:curl http://x/y"])
    def test_these_are_references(self, text: str) -> None:
        assert is_reference(text)

    @pytest.mark.parametrize(
        "text", ["", "hunter2", "env:", "file: ", "ENV:A", "file:///etc/x", "https://x", "env:A=b"]
    )
    def test_these_are_not(self, text: str) -> None:
        assert not is_reference(text)

    def test_a_secret_in_clear_is_refused_without_showing_it(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            resolve(VALUE, base=tmp_path)
        assert VALUE not in str(caught.value.to_json())
