"""What goes wrong on real machines, each on the lab: one clear sentence, a hint, the right exit code, nothing lost."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from labkit import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(180)]

WEIGHTS = "lab/SmolLM2-135M-Instruct-GGUF"
CA = "fingerprint: "


@pytest.fixture(scope="module")
def healthy(lab: Lab) -> Lab:
    """A lab whose devices are right and whose weights are staged, so that only the trouble at hand is seen."""
    done = lab.run("recover", "ct200", "--yes", "--until", "weights")
    assert done.returncode == 0, done.stderr
    return lab


def fails(
    done: subprocess.CompletedProcess[str], code: int, *said: str, hint: str = "hint: "
) -> subprocess.CompletedProcess[str]:
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    for words in said:
        assert words in text, f"{words!r} is not in: {text}"
    assert hint in text, text
    assert "Traceback" not in text
    return done


def recover(lab: Lab, inventory: Path | None = None, *words: str) -> subprocess.CompletedProcess[str]:
    return lab.run("recover", "ct200", "--yes", "--until", "container", *words, inventory=inventory)


def test_an_unreachable_host(healthy: Lab) -> None:
    inventory = healthy.folder / "unreachable.yaml"
    inventory.write_text(re.sub(r"https://127\.0\.0\.1:\d+", "https://127.0.0.1:1", healthy.inventory.read_text()))
    fails(recover(healthy, inventory), 3, "https://127.0.0.1:1", "refused")


def test_a_wrong_password(healthy: Lab) -> None:
    wrong = healthy.folder / "secrets" / "wrong"
    wrong.write_text("not the password\n")
    wrong.chmod(0o600)
    inventory = healthy.variant("password.yaml", ("secrets/root-pam", "secrets/wrong"))
    done = fails(recover(healthy, inventory), 3, "refuses the password of root@pam")
    assert "not the password" not in done.stdout + done.stderr


def test_a_secret_that_others_can_read(healthy: Lab) -> None:
    loose = healthy.folder / "secrets" / "loose"
    shutil.copy(healthy.folder / "secrets" / "root-pam", loose)
    loose.chmod(0o644)
    inventory = healthy.variant("loose.yaml", ("secrets/root-pam", "secrets/loose"))
    fails(recover(healthy, inventory), 78, "loose", "chmod 600")


def test_a_token_without_rights(healthy: Lab) -> None:
    inventory = healthy.variant(
        "token.yaml",
        ("user: root@pam", "user: visitor@pve"),
        ("password: file:secrets/root-pam", "token_name: none\n      token_value: file:secrets/visitor-pve-none"),
    )
    fails(recover(healthy, inventory), 3, "visitor@pve!none", "VM.Audit")


def test_a_token_that_may_look_start_and_stop_is_enough_beside_ssh(healthy: Lab) -> None:
    inventory = healthy.variant(
        "least.yaml",
        ("user: root@pam", "user: gpuctl@pve"),
        ("password: file:secrets/root-pam", "token_name: lab\n      token_value: file:secrets/gpuctl-pve-lab"),
    )
    done = recover(healthy, inventory)
    assert done.returncode == 0, done.stderr


def test_a_changed_host_key(healthy: Lab) -> None:
    known = healthy.folder / "ssh" / "changed_hosts"
    key = (healthy.folder / "ssh" / "client_key.pub").read_text().split()
    line = (healthy.folder / "ssh" / "known_hosts").read_text().split()
    known.write_text(f"{line[0]} {key[0]} {key[1]}\n")
    inventory = healthy.variant("changed.yaml", ("ssh/known_hosts", "ssh/changed_hosts"))
    fails(recover(healthy, inventory), 3, "changed_hosts:1", "SHA256:")


def test_an_unknown_host_key_shows_the_line_to_add(healthy: Lab) -> None:
    empty = healthy.folder / "ssh" / "no_hosts"
    empty.write_text("")
    inventory = healthy.variant("unknown.yaml", ("ssh/known_hosts", "ssh/no_hosts"))
    line = (healthy.folder / "ssh" / "known_hosts").read_text().strip()
    fails(recover(healthy, inventory), 3, line)


def test_a_certificate_that_is_not_the_pinned_one(healthy: Lab) -> None:
    text = healthy.inventory.read_text()
    pinned = text[text.index(CA) + len(CA) :].split("\n")[0].strip().strip("'\"")
    inventory = healthy.variant("pinned.yaml", (pinned, ":".join(["AB"] * 32)))
    fails(recover(healthy, inventory), 3, "another fingerprint", pinned)


def test_an_expired_certificate(healthy: Lab) -> None:
    tls = healthy.folder / "tls"
    kept = {path: path.read_bytes() for path in (tls / "cert.pem", tls / "key.pem")}
    try:
        fingerprint = expired(tls)
        healthy.lab("down")
        healthy.lab("up")
        assert fingerprint in healthy.inventory.read_text()
        fails(recover(healthy), 3, "expired on 2020-01-02")
    finally:
        for path, data in kept.items():
            path.write_bytes(data)
        healthy.lab("down")
        healthy.lab("up")
    assert healthy.run("recover", "ct200", "--yes", "--until", "weights").returncode == 0


def expired(folder: Path) -> str:
    """Put a certificate of 2020 into `folder`; its fingerprint as Proxmox shows it."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pve")])
    day = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(day)
        .not_valid_after(day + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def test_an_unknown_container(healthy: Lab) -> None:
    fails(healthy.run("recover", "ct201", "--yes"), 64, "ct201", "did you mean 'ct200'")
    inventory = healthy.variant("vmid.yaml", ("vmid: 200", "vmid: 201"))
    fails(recover(healthy, inventory), 2, "201", hint="200")


def test_a_vmid_that_is_a_virtual_machine(healthy: Lab) -> None:
    inventory = healthy.variant("vm.yaml", ("vmid: 200", "vmid: 300"))
    fails(recover(healthy, inventory), 2, "300", "virtual machine")


@pytest.fixture
def conf(healthy: Lab) -> Iterator[Path]:
    """The container's configuration, put back afterwards."""
    before = healthy.conf.read_bytes()
    yield healthy.conf
    healthy.conf.write_bytes(before)


def test_a_container_locked_by_a_backup(healthy: Lab, conf: Path) -> None:
    conf.write_bytes(b"lock: backup\n" + conf.read_bytes())
    fails(recover(healthy), 2, "locked by Proxmox (backup)")


def test_a_cluster_without_quorum(healthy: Lab) -> None:
    marker = healthy.folder / "no-quorum"
    marker.touch()
    try:
        before = healthy.conf.read_bytes()
        fails(recover(healthy), 2, "no quorum")
        assert healthy.conf.read_bytes() == before
    finally:
        marker.unlink()
    assert recover(healthy).returncode == 0


def test_too_little_room_is_said_before_the_first_byte(healthy: Lab, conf: Path) -> None:
    raw = b"lxc.mount.entry: tmpfs dev/shm tmpfs size=64m,mode=1777 0 0\n"
    head, _, tail = conf.read_bytes().partition(b"\n[")
    conf.write_bytes(head + b"\n" + raw + (b"\n[" + tail if tail else b""))
    healthy.lab("reboot")
    done = healthy.run("recover", "ct200", "--yes", "--until", "weights")
    fails(done, 2, "98.4 MB", "/dev/shm")
    assert not list((healthy.folder / "ct/200/rootfs/dev/shm").glob("**/*.gguf"))


def test_after_all_that_room_is_made_the_next_run_goes_on(healthy: Lab) -> None:
    healthy.lab("reboot")
    done = healthy.run("recover", "ct200", "--yes", "--until", "weights")
    assert done.returncode == 0, done.stderr


def test_a_gated_repository_without_a_token(healthy: Lab) -> None:
    inventory = healthy.variant(
        "gated.yaml",
        (WEIGHTS, "lab/gated-model"),
        ('include: ["*.gguf"]', "include: []"),
        ("135M-Instruct-GGUF\n", "g\n"),
    )
    done = healthy.run("recover", "ct200", "--yes", "--until", "weights", inventory=inventory)
    fails(done, 78, "gated", "lab/gated-model")


def engine_variant(lab: Lab, name: str, script: str, *more: str) -> Path:
    """The inventory with an engine of kind `custom`."""
    command = f'kind: custom\n      command: ["python3", "-c", {script!r}]'
    lines = ("kind: llama.cpp", command + "".join(f"\n      {line}" for line in more))
    return lab.variant(name, lines, ("      venv: /opt/engine\n", ""))


def test_an_engine_that_dies_at_its_start_shows_its_last_lines(healthy: Lab) -> None:
    script = "import sys; print('loading shards'); print('CUDA out of memory', file=sys.stderr); sys.exit(3)"
    inventory = engine_variant(healthy, "dies.yaml", script)
    done = healthy.run("recover", "ct200", "--yes", "--until", "engine", inventory=inventory)
    fails(done, 2, "| CUDA out of memory", "exit status 3")


def test_an_engine_that_never_becomes_ready(healthy: Lab) -> None:
    inventory = engine_variant(
        healthy,
        "never.yaml",
        "import time; print('warming up', flush=True); time.sleep(600)",
        "ready_timeout_s: 3",
    )
    done = healthy.run("recover", "ct200", "--yes", "--until", "engine", inventory=inventory)
    fails(done, 2, "3 s", "warming up")
    # Nothing of it is left: the right engine starts on the same port.
    assert healthy.run("recover", "ct200", "--yes", "--until", "engine").returncode == 0
