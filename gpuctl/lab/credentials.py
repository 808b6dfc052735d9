"""Keys of one lab, made at its first start: TLS certificate, SSH host and client key, the password of root@pam."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import secrets
import uuid
from typing import TYPE_CHECKING

from gpuctl.lab.state import LabDir, write_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from gpuctl.lab.pve.auth import Users


def ensure(lab: LabDir) -> None:
    """Make what is absent."""
    if not lab.cert.exists() or not lab.key.exists():
        _make_certificate(lab)
    for name in ("host_key", "client_key"):
        if not (lab.ssh / name).exists():
            _make_ssh_key(lab, name)
    if not lab.password.exists():
        lab.password.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(lab.password, (secrets.token_urlsafe(18) + "\n").encode(), mode=0o600)
    for path in (lab.api_token, lab.visitor_token):
        if not path.exists():
            write_file(path, f"{uuid.uuid4()}\n".encode(), mode=0o600)


def users(lab: LabDir) -> Users:
    """Who may use the API: root@pam, a token that can look, start and stop, and one that may do nothing."""
    from gpuctl.lab.pve.auth import Grant, Token, User, Users

    token = Token(secret=lab.api_token.read_text().strip(), privsep=False)
    visitor = Token(secret=lab.visitor_token.read_text().strip(), privsep=False)
    return Users(
        {
            "root@pam": User(password=lab.password.read_text().strip()),
            "gpuctl@pve": User(tokens={"lab": token}),
            "visitor@pve": User(tokens={"none": visitor}),
        },
        (Grant("/", "gpuctl@pve", frozenset({"VM.Audit", "VM.PowerMgmt", "Sys.Audit"})),),
    )


def write_known_hosts(lab: LabDir, port: int) -> None:
    """The line that makes a client accept this lab's host key on `port`."""
    key = (lab.ssh / "host_key.pub").read_text().split()
    write_file(lab.ssh / "known_hosts", f"[127.0.0.1]:{port} {key[0]} {key[1]}\n".encode())


def fingerprint(lab: LabDir) -> str:
    """SHA-256 of the certificate as Proxmox shows it: `AA:BB:...`."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    certificate = x509.load_pem_x509_certificate(lab.cert.read_bytes())
    digest = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest().upper()
    return ":".join(digest[index : index + 2] for index in range(0, len(digest), 2))


def _make_certificate(lab: LabDir) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key: ec.EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pve (gpuctl lab)")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.DNSName("pve"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=730))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_file(lab.key, private, mode=0o600)
    write_file(lab.cert, certificate.public_bytes(encoding))


def _make_ssh_key(lab: LabDir, name: str) -> None:
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment=f"gpuctl lab {name}")
    lab.ssh.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_file(lab.ssh / name, key.export_private_key(), mode=0o600)
    write_file(lab.ssh / f"{name}.pub", key.export_public_key())
