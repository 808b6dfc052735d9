"""The certificate of a Proxmox node, verified before a byte of a request leaves: by CA, by fingerprint, or both."""

from __future__ import annotations

import datetime
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inventory.errors import CannotLook, ConfigError
from inventory.model import Api

if TYPE_CHECKING:
    from requests.adapters import HTTPAdapter

_GOT = re.compile(r'got "([0-9a-f]{64})"')
_EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""


class CertificateExpired(ssl.SSLError):
    """The certificate has the pinned fingerprint, but its time is over (or has not begun)."""


def adapter(api: Api, *, base: Path) -> HTTPAdapter:
    """The only https transport of a session. `base`: folder for a relative `ca_file`.

    With a fingerprint alone, the chain and the name are not looked at: the one pinned certificate says more than
    both. The check sits in the connection itself, so no request can be made without it.
    """
    from requests.adapters import HTTPAdapter

    ca_file = base / Path(api.ca_file).expanduser() if api.ca_file else None
    if ca_file is not None and not ca_file.is_file():
        raise ConfigError(
            f"the CA file {ca_file} of {api.url} does not exist", hint="set api.ca_file to a PEM file"
        )
    fingerprint = api.fingerprint.replace(":", "").lower()
    if ca_file is None and not fingerprint:
        raise ConfigError(
            f"{api.url} has neither ca_file nor fingerprint, so its certificate can't be verified",
            hint="the node shows its fingerprint with `pvenode cert info`",
        )

    class Pinned(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            if fingerprint:
                kwargs["assert_fingerprint"] = fingerprint
            # A context of our own: urllib3 would load all CAs of the system into its own, 60 ms, to trust none of them.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if ca_file is None:
                context.check_hostname = False
            kwargs["ssl_context"] = context
            super().init_poolmanager(*args, **kwargs)
            self.poolmanager.pool_classes_by_scheme = {"https": _pool_class()}

        def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
            # What the session thinks of verification does not count here.
            return super().build_connection_pool_key_attributes(request, str(ca_file) if ca_file else False, cert)

        def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
            super().cert_verify(conn, url, str(ca_file) if ca_file else False, cert)  # type: ignore[no-untyped-call]

    return Pinned()


def _pool_class() -> Any:
    """A connection pool whose connections also look at the dates: with a pinned certificate OpenSSL does not."""
    from urllib3.connection import HTTPSConnection
    from urllib3.connectionpool import HTTPSConnectionPool

    class Connection(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            _check_dates(self.sock.getpeercert(binary_form=True))  # type: ignore[union-attr]

    class Pool(HTTPSConnectionPool):
        ConnectionCls = Connection

    return Pool


def _check_dates(der: bytes | None) -> None:
    from cryptography import x509

    if der is None:
        raise ssl.SSLError("the server sent no certificate")
    certificate = x509.load_der_x509_certificate(der)
    now = datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        raise CertificateExpired(f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if now < certificate.not_valid_before_utc:
        raise CertificateExpired(f"is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")


def _causes(error: BaseException) -> list[BaseException]:
    """The error and everything it wraps: requests and urllib3 put the cause into args, reason or context."""
    found: list[BaseException] = []
    todo: list[Any] = [error]
    while todo:
        one = todo.pop()
        if isinstance(one, BaseException) and one not in found:
            found.append(one)
            todo.extend((*one.args, getattr(one, "reason", None), one.__cause__, one.__context__))
    return found


def refusal(error: BaseException, api: Api) -> CannotLook:
    """Why the certificate was refused, in words."""
    causes = _causes(error)
    text = " ".join(str(cause) for cause in causes)
    for cause in causes:
        if isinstance(cause, CertificateExpired):
            return _expired(api, str(cause.args[-1]))
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code == _EXPIRED:
                return _expired(api, "has expired")
            return CannotLook(
                f"the certificate of {api.url} is not accepted: {cause.verify_message}",
                hint=f"is {api.ca_file} the CA that signed it, and is the name in the url one of its names?",
            )
    got = _GOT.search(text)
    if got:
        shown = ":".join(re.findall("..", got.group(1).upper()))
        return CannotLook(
            f"the certificate of {api.url} has another fingerprint than the inventory: {shown}",
            hint="someone may be in between. If the certificate was renewed, compare with `pvenode cert info` on the "
            "node's console and set api.fingerprint; nothing was sent",
        )
    if "WRONG_VERSION_NUMBER" in text or "wrong version number" in text:
        return CannotLook(f"{api.url} does not speak TLS", hint="the Proxmox API is at https://NODE:8006")
    last = causes[-1]
    return CannotLook(f"no TLS connection to {api.url}: {str(last) or type(last).__name__}")


def _expired(api: Api, said: str) -> CannotLook:
    now = datetime.datetime.now(datetime.UTC)
    return CannotLook(
        f"the certificate of {api.url} {said} (this machine's clock says {now:%Y-%m-%d %H:%M} UTC)",
        hint="renew it on the node: `pvecm updatecerts --force && systemctl restart pveproxy`, then set the new "
        "fingerprint in the inventory; or correct the clock here",
    )
