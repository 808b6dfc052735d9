"""One https session with the Proxmox VE API: login, renewal, retries of reads, and errors with Proxmox's own text."""

from __future__ import annotations

import contextlib
import email.utils
import re
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from inventory import secret
from inventory.errors import CannotLook, ConfigError, Failed, GpuctlError
from inventory.model import Api
from inventory.proxmox_tls import adapter, refusal

if TYPE_CHECKING:
    import requests

RENEW_S = 3600.0
"""Age at which a ticket is replaced; it is valid for two hours."""
CONNECT_S = 10.0
READ_TRIES = 3
_PRIVILEGE = re.compile(r"\((/[^\s,]*), ([\w.|, ]+)\)")
_LOST_STATUS = frozenset({502, 503, 504, 595, 596, 597, 598, 599})
"""Answers of a proxy (Proxmox's own uses 595-599) whose other side gave none: the action may have happened."""


class ApiFault(Failed):
    """The API answered with an error; `status` is the HTTP status, `text` Proxmox's own words."""

    def __init__(self, message: str, *, status: int, text: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.text = text


class NoAnswer(CannotLook):
    """A request was sent and no answer came: whether it was carried out is not known."""


class Wire:
    """Requests to one API. Reads are repeated when the connection fails under them, writes never."""

    def __init__(self, api: Api, *, base: Path) -> None:
        """Resolves the secret; no connection is made yet."""
        self._api = api
        parts = urlsplit(api.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self._root = f"https://{host}:{parts.port or 8006}/api2/json"
        if bool(api.password) == bool(api.token_value):
            raise ConfigError(
                f"{api.url} needs either a password or a token", hint="see `gpuctl inventory schema`"
            )
        self._secret = secret.resolve(api.password or api.token_value, base=base)
        self._session, self._resource = _session(api, base, self._root, self._see)
        self._ticket = _Ticket(api.timeout_s)
        self._clock_offset_s = 0.0
        if api.token_value:
            value = f"PVEAPIToken={self.who}={self._secret.reveal()}"
            self._session.headers["Authorization"] = value

    @property
    def who(self) -> str:
        """`USER@REALM` or `USER@REALM!TOKEN`."""
        return f"{self._api.user}!{self._api.token_name}" if self._api.token_value else self._api.user

    @property
    def where(self) -> str:
        return f"Proxmox API {self._api.url}"

    def server_time_s(self) -> float:
        """The node's clock now, to about a second, from the Date header of its last answer."""
        return time.time() + self._clock_offset_s

    def close(self) -> None:
        self._session.close()

    def login(self) -> None:
        """Get a ticket, if this is a password login. Raises `CannotLook` when the password is refused."""
        if self._api.token_value:
            return
        form = {"username": self._api.user, "password": self._secret.reveal()}
        self._session.auth = _Ticket(self._api.timeout_s)
        try:
            answer = self._once("POST", ("access", "ticket"), form)
        except ApiFault as fault:
            if fault.status != 401:
                raise
            raise CannotLook(
                f"{self.where} refuses the password of {self._api.user}: {fault.text}",
                hint="check api.user (with its realm: root@pam) and what api.password refers to",
            ) from None
        if answer.get("NeedTFA"):
            raise CannotLook(
                f"{self.where} wants a second factor for {self._api.user}",
                hint="use an API token (api.token_name, api.token_value) instead of the password",
            )
        self._ticket = _Ticket(self._api.timeout_s, answer["ticket"], answer["CSRFPreventionToken"])
        self._session.auth = self._ticket

    def get(self, *path: str | int, **params: Any) -> Any:
        """Read. Raises `CannotLook` for everything that prevents reading, with Proxmox's own text."""
        import tenacity

        retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(NoAnswer),
            stop=tenacity.stop_after_attempt(READ_TRIES) | tenacity.stop_after_delay(self._api.timeout_s),
            wait=tenacity.wait_exponential(multiplier=0.3, max=2.0),
            reraise=True,
        )
        try:
            return retry(self._fresh, "GET", path, params)
        except ApiFault as fault:
            raise CannotLook(fault.message, hint=fault.hint) from fault

    def post(self, *path: str | int, **form: Any) -> Any:
        """Write, once. Raises `ApiFault` when refused and `NoAnswer` when nobody knows."""
        return self._fresh("POST", path, form)

    def put(self, *path: str | int, **form: Any) -> Any:
        """As `post`, with PUT."""
        return self._fresh("PUT", path, form)

    def _fresh(self, method: str, path: tuple[str | int, ...], values: dict[str, Any]) -> Any:
        """With a ticket that is not too old. A 401 means that nothing was done, so asking again is safe."""
        by_password = not self._api.token_value
        if by_password and self._ticket.age_s() > RENEW_S:
            self.login()
        try:
            return self._once(method, path, values)
        except ApiFault as fault:
            if fault.status == 401 and by_password:
                self.login()
                return self._once(method, path, values)
            if fault.status == 401:
                raise CannotLook(
                    f"{self.where} refuses the token {self.who}: {fault.text}",
                    hint="check api.token_name and api.token_value, and that user and token are enabled",
                ) from None
            raise

    def _once(self, method: str, path: tuple[str | int, ...], values: dict[str, Any]) -> Any:
        import requests

        # Proxmox takes 1 and 0 for booleans, and nothing else.
        plain = {key: int(value) if isinstance(value, bool) else value for key, value in values.items()}
        call = getattr(self._resource, method.lower())
        if method != "GET":
            # A kept connection may be closed by the other side just as we write, and nobody would know what was done.
            self._session.get_adapter(self._root).poolmanager.clear()
        try:
            return call(*(str(part) for part in path), **plain)
        except requests.exceptions.SSLError as error:
            raise refusal(error, self._api) from None
        except requests.exceptions.ConnectTimeout:
            raise CannotLook(
                f"{self.where} does not answer within {CONNECT_S:g} s", hint="is the node on and the url right?"
            ) from None
        except requests.exceptions.Timeout:
            raise NoAnswer(f"{self.where} gave no answer within {self._api.timeout_s:g} s") from None
        except requests.exceptions.RequestException as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> GpuctlError:
        from urllib3.exceptions import NameResolutionError, NewConnectionError

        cause = error.args[0] if error.args else error
        reason = getattr(cause, "reason", cause)
        if isinstance(reason, NameResolutionError):
            return CannotLook(f"the name in {self._api.url} is not known", hint="check api.url in the inventory")
        if isinstance(reason, NewConnectionError):
            said = str(reason).rsplit(": ", 1)[-1]
            return CannotLook(
                f"{self.where} can't be reached: {said}",
                hint="is the node up and pveproxy running? A node that is still booting opens the port late",
            )
        return NoAnswer(f"{self.where}: the connection broke: {reason}")

    def _see(self, response: requests.Response, **_: Any) -> None:
        """Called with every answer before proxmoxer sees it (it would drop the `message` of the body)."""
        with contextlib.suppress(KeyError, ValueError, TypeError):
            date = email.utils.parsedate_to_datetime(response.headers["Date"])
            self._clock_offset_s = date.timestamp() - time.time()
        status = response.status_code
        try:
            body = response.json()
        except ValueError:
            body = None
        if 200 <= status < 300:
            if not isinstance(body, dict) or "data" not in body:
                raise CannotLook(f"{self._api.url} does not answer like a Proxmox VE API", hint="check api.url")
            return
        text = _text(response.reason or "", body if isinstance(body, dict) else {})
        if status in _LOST_STATUS:
            raise NoAnswer(f"{self.where}: status {status}: {text or 'the node behind the proxy gave no answer'}")
        path = urlsplit(response.url).path.removeprefix("/api2/json")
        if status == 403:
            raise ApiFault(f"{self.who} may not: {text}", status=status, text=text, hint=_grant(text, self.who))
        raise ApiFault(f"{self.where}: {text} ({status}, {path})", status=status, text=text)


class _Ticket:
    """Authentication of proxmoxer's session by ticket; an empty one logs in."""

    def __init__(self, timeout_s: float, ticket: str = "", csrf: str = "") -> None:
        self.timeout = (min(CONNECT_S, timeout_s), timeout_s)
        self.verify_ssl = True
        self._ticket = ticket
        self._csrf = csrf
        self._born = time.monotonic()

    def age_s(self) -> float:
        return time.monotonic() - self._born if self._ticket else float("inf")

    def get_cookies(self) -> Any:
        from requests.cookies import cookiejar_from_dict

        return cookiejar_from_dict(  # type: ignore[no-untyped-call]
            {"PVEAuthCookie": self._ticket} if self._ticket else {}
        )

    def __call__(self, request: Any) -> Any:
        if request.method != "GET" and self._csrf:
            request.headers["CSRFPreventionToken"] = self._csrf
        return request


def _session(api: Api, base: Path, root: str, see: Any) -> tuple[Any, Any]:
    """proxmoxer's session and resource with our transport and our login in it.

    proxmoxer's own login would send the password by a session of its own, past our certificate check.
    """
    with warnings.catch_warnings():
        # The import switches off urllib3's warnings for the whole process.
        from proxmoxer.backends.https import JsonSerializer, ProxmoxHttpSession
        from proxmoxer.core import ProxmoxResource

    class Session(ProxmoxHttpSession):  # type: ignore[misc, unused-ignore]
        def get_redirect_target(self, resp: Any) -> None:
            # Never carry a password to another place.
            return None

    session = Session()
    # No proxies, .netrc or CA bundles from the environment: the inventory says how the node is reached.
    session.trust_env = False
    session.adapters.clear()
    session.mount("https://", adapter(api, base=base))
    session.auth = _Ticket(api.timeout_s)
    session.headers["accept"] = "application/json"
    session.hooks["response"].append(see)
    return session, ProxmoxResource(base_url=root, session=session, serializer=JsonSerializer())


def _text(reason: str, body: dict[str, Any]) -> str:
    """Proxmox's own words: `message` where there is one (since 2025), else the reason line, and every bad parameter."""
    message = str(body.get("message") or reason).strip()
    errors = body.get("errors")
    if isinstance(errors, dict) and errors:
        message += " " + "; ".join(f"{key}: {str(value).strip()}" for key, value in sorted(errors.items()))
    return " ".join(message.split())


def _grant(text: str, who: str) -> str:
    needed = _PRIVILEGE.search(text)
    if needed is None:
        return "log in as root@pam with its password, or do this step over SSH"
    path, privileges = needed.groups()
    kind = "--tokens" if "!" in who else "--users"
    return (
        f"it needs {privileges.replace('|', ' or ')} on {path}: give it a role with that privilege, "
        f"`pveum acl modify {path} {kind} '{who}' --roles ROLE`"
    )
