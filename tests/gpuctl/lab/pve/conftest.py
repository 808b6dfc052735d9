"""A running API over TLS in front of a node that lives in memory, and the recordings to compare with."""

from __future__ import annotations

import base64
import datetime
import http.client
import ipaddress
import json
import ssl
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpuctl.lab.pve.auth import ROLES, Grant, Token, User, Users
from gpuctl.lab.pve.backend import DeviceStat, NodeFacts, NodeKind
from gpuctl.lab.pve.memory import MemoryBackend
from gpuctl.lab.pve.server import RunningServer, serve

DATA = Path(__file__).parents[3] / "data" / "pve"
PAST = 1_000_000_000


def _users() -> Users:
    def user(password: str | None = None, expire: int = 0, enabled: bool = True, **tokens: Token) -> User:
        return User(password=password, expire=expire, enabled=enabled, tokens=tokens)

    secret = "11111111-2222-3333-4444-555555555555"
    return Users(
        users={
            "root@pam": user("x", full=Token(secret, privsep=False), sep=Token(secret)),
            "ops@pve": user(
                "right-password", tok=Token(secret, privsep=False), exp=Token(secret, privsep=False, expire=PAST)
            ),
            "audit@pve": user(tok=Token(secret, privsep=False)),
            "low@pve": user(tok=Token(secret, privsep=False)),
            "off@pve": user(enabled=False, tok=Token(secret, privsep=False)),
            "old@pve": user(expire=PAST, tok=Token(secret, privsep=False)),
        },
        grants=(
            Grant("/", "ops@pve", ROLES["PVEAdmin"]),
            Grant("/vms/200", "audit@pve", ROLES["PVEAuditor"]),
            Grant("/vms", "root@pam!sep", ROLES["PVEVMAdmin"]),
        ),
    )


@dataclass(slots=True)
class Lab:
    """The server with what it stands on; `reset` gives a scenario its own start."""

    server: RunningServer
    backend: MemoryBackend
    cert: Path
    secret: str
    reported: bool = True

    @property
    def conf(self) -> Path:
        return self.backend.conf_dir / "200.conf"

    def reset(self, conf: bytes | None, *, running: bool = False, devices: dict[str, Any] | None = None) -> None:
        for old in self.backend.conf_dir.iterdir():
            old.unlink()
        if conf is not None:
            self.conf.write_bytes(conf)
        kinds = {"c": NodeKind.CHAR, "b": NodeKind.BLOCK}
        self.backend.devices = {
            path: DeviceStat(kinds.get(kind, NodeKind.OTHER), major, minor)
            for path, (kind, major, minor) in (devices or {}).items()
        }
        self.backend.started = {200: self.backend.booted + 10} if running else {}
        self.backend.start_lines = self.backend.start_warnings = ()
        self.backend.cluster, self.backend.read_only, self.backend.stubborn = None, False, False
        self.backend.machines, self.backend.plugged = {}, []
        self.server.site.tasks.clear()
        self.reported = True


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pve (lab)")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="session")
def running_lab(certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    cert, key = certificate
    numbers = NodeFacts(
        memory_total=25276063744, memory_used=5746126848, disk_total=270553174016, disk_used=47491420160
    )
    backend = MemoryBackend(tmp_path_factory.mktemp("node"), numbers=numbers)
    holder: list[Lab] = []
    server = serve(
        backend,
        cert=cert,
        key=key,
        users=_users(),
        lock_timeout_s=0.3,
        statistics=lambda: holder[0].reported,
    )
    holder.append(Lab(server, backend, cert, "11111111-2222-3333-4444-555555555555"))
    yield holder[0]
    server.close()


@pytest.fixture
def lab(running_lab: Lab) -> Lab:
    running_lab.reset(None)
    return running_lab


@pytest.fixture(scope="session")
def recorded() -> Callable[[str], list[dict[str, Any]]]:
    def load(name: str) -> list[dict[str, Any]]:
        lines = (DATA / f"{name}.jsonl").read_text(encoding="ascii").splitlines()
        return [json.loads(line) for line in lines]

    return load


@pytest.fixture(scope="session")
def as_bytes() -> Callable[[Any], bytes | None]:
    def decode(value: dict[str, str] | None) -> bytes | None:
        if value is None:
            return None
        if "text" in value:
            return value["text"].encode()
        if "b64" in value:
            return base64.b64decode(value["b64"])
        return zlib.decompress(base64.b64decode(value["zb64"]))

    return decode


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave."""

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture
def call(lab: Lab) -> Iterator[Callable[..., Answer]]:
    """Make one call, as root@pam by ticket or as a named token, over one kept connection."""
    context = ssl.create_default_context(cafile=str(lab.cert))
    connection = http.client.HTTPSConnection("127.0.0.1", lab.server.port, timeout=10, context=context)

    def send(method: str, path: str, form: Any = None, *, token: str = "", headers: Any = None) -> Answer:
        authority = lab.server.site.authority
        if token:
            credentials = {"Authorization": f"PVEAPIToken={token}={lab.secret}"}
        else:
            cookie = f"PVEAuthCookie={quote(authority.ticket('root@pam'), safe='')}"
            credentials = {"Cookie": cookie, "CSRFPreventionToken": authority.csrf("root@pam")}
        body = None if form is None else urlencode(form)
        kind = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request(
            method, f"/api2/json{path}", body=body, headers={**credentials, **kind, **(headers or {})}
        )
        response = connection.getresponse()
        return Answer(response.status, response.reason, dict(response.getheaders()), response.read())

    yield send
    connection.close()
