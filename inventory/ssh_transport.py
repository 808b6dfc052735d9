"""A paramiko transport that logs in without dawdling: known host key types first, the login service asked for once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import paramiko

_TICK_S = 0.05


def factory(known_kinds: Iterable[str], timeout_s: float) -> Callable[..., paramiko.Transport]:
    """For `SSHClient.connect(transport_factory=...)`. `known_kinds`: host key types that are written down.

    paramiko's plain transport asks for the login service before every single key, and some servers hang up at the
    second; its newer one asks once, but then looks for the answer only every 0.1 s, and for ever.
    """
    import paramiko
    from paramiko.common import cMSG_SERVICE_REQUEST
    from paramiko.transport import ServiceRequestingTransport

    # The type stubs know neither the class well nor what it offers to subclasses.
    parent: Any = ServiceRequestingTransport

    handler: Any = paramiko.auth_handler.AuthOnlyHandler

    class Handler(handler):  # type: ignore[misc]
        """Answers wait until somebody waits for them.

        paramiko makes the event of a login only after it has sent the request: an answer that is faster (loopback, a
        busy machine) sets nothing, and the login then waits in vain until its limit.
        """

        def __init__(self, transport: paramiko.Transport) -> None:
            super().__init__(transport)
            self._awaited = threading.Event()

        def wait_for_response(self, event: threading.Event) -> Any:
            self._awaited.set()
            try:
                return super().wait_for_response(event)
            finally:
                self._awaited.clear()

        @property
        def _client_handler_table(self) -> dict[int, Callable[[paramiko.Message], Any]]:
            return {kind: self._once_awaited(parse) for kind, parse in super()._client_handler_table.items()}

        def _once_awaited(self, parse: Callable[[paramiko.Message], Any]) -> Callable[[paramiko.Message], Any]:
            def run(message: paramiko.Message) -> Any:
                self._awaited.wait(timeout_s)
                return parse(message)

            return run

    preferred = set(known_kinds)
    if "ssh-rsa" in preferred:
        preferred |= {"rsa-sha2-512", "rsa-sha2-256"}

    class Transport(parent):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._accepted = threading.Event()
            super().__init__(*args, **kwargs)
            options = self.get_security_options()
            options.key_types = sorted(options.key_types, key=lambda kind: kind not in preferred)

        def _parse_service_accept(self, message: paramiko.Message) -> None:
            super()._parse_service_accept(message)
            self._accepted.set()

        def get_auth_handler(self) -> Any:
            return Handler(self)

        def ensure_session(self) -> None:
            if not self.is_active():
                raise paramiko.SSHException("the connection is closed")
            if self._service_userauth_accepted:
                return
            request = paramiko.Message()
            request.add_byte(cMSG_SERVICE_REQUEST)
            request.add_string("ssh-userauth")
            self._send_message(request)
            end = time.monotonic() + timeout_s
            while not self._accepted.wait(_TICK_S):
                if not self.is_active():
                    raise self.get_exception() or paramiko.SSHException("the server hung up before the login")
                if time.monotonic() > end:
                    raise paramiko.SSHException("timeout before the login")
            self.auth_handler = self.get_auth_handler()

    made: Callable[..., paramiko.Transport] = Transport
    return made
