"""The story of a run on stderr: one line per thing found, planned, changed; live progress on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import click

from provision.pipeline import Phase, Report

_LABEL: Final[dict[Phase, tuple[str, str]]] = {
    Phase.FOUND: ("found", "cyan"),
    Phase.PLANNED: ("plan", "yellow"),
    Phase.LATER: ("later", "yellow"),
    Phase.CHANGED: ("changed", "green"),
    Phase.VERIFIED: ("verified", "green"),
    Phase.WARNING: ("warning", "yellow"),
    Phase.ADVICE: ("advice", "cyan"),
    Phase.BLOCKED: ("blocked", "red"),
    Phase.UNKNOWN: ("unknown", "red"),
}
"""Phases that make a line of their own; the others only move the story on."""

_EVERY_S: Final = 5.0
"""Off a terminal a progress line comes at most so often."""


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def progress_text(event: Mapping[str, Any]) -> str:
    """One line for a progress event of a job; empty when it has nothing to say."""
    match event.get("what"):
        case "weights":
            done, total = float(event.get("done") or 0), float(event.get("total") or 0)
            share = f"{100 * done / total:3.0f} %" if total else "  ? %"
            rate = float(event.get("rate_bps") or 0)
            left = f", {(total - done) / rate:.0f} s left" if rate and total > done else ""
            name = str(event.get("file", ""))
            return f"{share} of {_bytes(total)} at {_bytes(rate)}/s{left}  {name}"
        case "engine":
            return f"{float(event.get('seconds') or 0):4.0f} s  {event.get('line', '')}"
        case "bench":
            speed = f"  {float(event['tok_s']):.1f} tok/s" if event.get("tok_s") else ""
            where = " ".join(str(event[key]) for key in ("phase", "task") if event.get(key))
            return f"{where} {event.get('run', '?')}/{event.get('runs', '?')}{speed}"
        case "load":
            speed = f"  {float(event['events_s']):.0f} events/s" if event.get("events_s") else ""
            return f"{event.get('phase')} {event.get('run', '?')}/{event.get('runs', '?')}{speed}"
    return str(event.get("line") or event.get("message") or "")


class Story:
    """Tells a run as it happens. `quiet` keeps everything but errors to itself; `lab` is said before all else."""

    def __init__(self, *, quiet: bool = False, lab: bool = False, stream: Any = None) -> None:
        self._quiet = quiet
        self._preface = "lab: this is the embedded host; nothing below was measured on a GPU" if lab else ""
        self._stream = stream if stream is not None else sys.stderr
        self._live = bool(getattr(self._stream, "isatty", lambda: False)()) and not quiet
        self._stage = ""
        self._shown = 0
        self._last = 0.0

    def report(self, report: Report) -> None:
        """Tell one report; the stage's name is printed once, before its first line."""
        if report.phase is Phase.CHANGING and self._live:
            self._status(report.line + " ...")
        label = _LABEL.get(report.phase)
        if label is None:
            return
        name = "" if report.stage == self._stage else str(report.stage)
        self._stage = report.stage
        self.line(f"{name:<10}", f"{label[0]:<9}", report.line, colour=label[1])
        for part in report.more:
            self.line(" " * 10, " " * 9, f"  {part}")

    def line(self, left: str, label: str, text: str, *, colour: str = "") -> None:
        """A line of the story."""
        if self._quiet:
            return
        self._begin()
        click.echo(
            f"{click.style(left, bold=True)} {click.style(label, fg=colour or None)} {text}".rstrip(),
            file=self._stream,
        )

    def say(self, text: str) -> None:
        """A free line outside the stages."""
        if not self._quiet:
            self._begin()
            click.echo(text, file=self._stream)

    def clear(self) -> None:
        """Take the progress line away: an answer follows."""
        self._status("")

    def _begin(self) -> None:
        """Clear the progress line; say the preface once."""
        self._status("")
        if self._preface:
            click.echo(self._preface, file=self._stream)
            self._preface = ""

    def emit(self, event: Mapping[str, Any]) -> None:
        """Show a job's progress: in place on a terminal, else a line now and then."""
        if self._quiet or event.get("type") not in ("progress", "note"):
            return
        text = progress_text(event)
        if not text:
            return
        if event["type"] == "note":
            self.line(" " * 10, f"{'note':<9}", text, colour="yellow")
        elif self._live:
            self._status(text)
        elif time.monotonic() - self._last >= _EVERY_S:
            self._last = time.monotonic()
            self.line(" " * 10, f"{'...':<9}", text)

    def _status(self, text: str) -> None:
        if not self._live or (not text and not self._shown):
            return
        width = max(20, _columns() - 21)
        shown = text[:width]
        self._stream.write("\r" + " " * 20 + shown + " " * max(0, self._shown - len(shown)) + "\r")
        self._stream.flush()
        self._shown = len(shown)


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
