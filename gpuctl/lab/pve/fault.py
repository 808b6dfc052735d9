"""What a Proxmox call can end with besides a value: an HTTP status, a message and errors per parameter."""

from __future__ import annotations

from collections.abc import Mapping


class Fault(Exception):
    """An answer that is not a value. `message` ends with a newline, as Proxmox's own texts do.

    The first line of `message` becomes the HTTP reason; `errors` maps a parameter to its text. `bodiless`
    answers carry nothing but the status line.
    """

    def __init__(
        self, status: int, message: str, errors: Mapping[str, str] | None = None, *, bodiless: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.bodiless = bodiless
        self.message = message if message.endswith("\n") else message + "\n"
        self.errors = dict(errors or {})


def failed(text: str) -> Fault:
    """A call that started and died: status 500 with the text."""
    return Fault(500, text)


def bad_parameters(errors: Mapping[str, str]) -> Fault:
    """Status 400 with every bad parameter and why."""
    return Fault(400, "Parameter verification failed.", errors)


def unauthorized(text: str) -> Fault:
    """Status 401 without a body, as for a missing or wrong ticket or token."""
    return Fault(401, text, bodiless=True)


def forbidden(what: str) -> Fault:
    """Status 403; `what` is the path and privileges, or a sentence."""
    return Fault(403, f"Permission check failed ({what})")
