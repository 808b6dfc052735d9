"""known_hosts lines: plain, several names, wildcards, negations, hashed, markers."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from inventory.known_hosts import entries_for, fingerprint, host_name

KEY = base64.b64encode(b"a key").decode()


def lines(tmp_path: Path, text: str, name: str) -> list[int]:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return [entry.line for entry in entries_for(name, (file,))]


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("box", "box", True),
        ("BOX", "box", True),
        ("box,10.0.0.1", "10.0.0.1", True),
        ("*.example.net", "a.example.net", True),
        ("*.example.net,!bad.example.net", "bad.example.net", False),
        ("!bad.example.net,*.example.net", "bad.example.net", False),
        ("box?", "box1", True),
        ("box", "box1", False),
        ("[box]:2222", "[box]:2222", True),
        ("[box]:2222", "[box]:22", False),
        ("[box]:2222", "b", False),
        ("box", "[box]:2222", False),
    ],
)
def test_a_pattern_matches_as_openssh_does(tmp_path: Path, pattern: str, name: str, hit: bool) -> None:
    assert bool(lines(tmp_path, f"{pattern} ssh-ed25519 {KEY} comment\n", name)) is hit


def test_a_hashed_name_matches(tmp_path: Path) -> None:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, b"[box]:2222", hashlib.sha1).digest()
    line = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()} ssh-ed25519 {KEY}\n"
    assert lines(tmp_path, line, "[box]:2222") == [1]
    assert lines(tmp_path, line, "box") == []


def test_broken_lines_and_comments_are_passed_over(tmp_path: Path) -> None:
    text = f"# box ssh-ed25519 {KEY}\n\nbox\nbox ssh-ed25519 ***\n|1|x ssh-ed25519 {KEY}\nbox ssh-ed25519 {KEY}\n"
    assert lines(tmp_path, text, "box") == [6]


def test_markers_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"@revoked box ssh-ed25519 {KEY}\n")
    (entry,) = entries_for("box", (tmp_path / "missing", file))
    assert (entry.marker, entry.place) == ("@revoked", f"{file}:1")


def test_a_fingerprint_looks_like_the_one_of_ssh_keygen() -> None:
    blob = base64.b64decode("AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl")
    assert fingerprint(blob) == "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"


def test_only_another_port_is_spelled_out() -> None:
    assert (host_name("box", 22), host_name("box", 2222)) == ("box", "[box]:2222")
