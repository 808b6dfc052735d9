"""The command line: a lazy group of commands and the one boundary where errors become text and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import os
import sys
from typing import Final, NoReturn

import click

from gpuctl import __version__
from inventory.errors import Exit, Failed, GpuctlError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "recover": ("gpuctl.commands.recover:recover", "Bring a container back to a proven state after a reboot."),
    "preflight": (
        "gpuctl.commands.preflight:preflight",
        "Is this machine fit to serve? With --quiet silent when it is.",
    ),
    "bench": ("gpuctl.commands.bench:bench", "How fast is it, measured so that the number survives doubt?"),
    "stage": ("gpuctl.commands.stage:stage", "Bring weights into /dev/shm, verified."),
    "devices": ("gpuctl.commands.devices:devices", "Show, plan and repair a container's access to its GPUs."),
    "engine": ("gpuctl.commands.engine:engine", "Start, stop and look at the inference server."),
    "inventory": ("gpuctl.commands.inventory:inventory", "Check, show and begin an inventory."),
    "results": ("gpuctl.commands.results:results", "Look at stored measurements."),
    "lab": ("gpuctl.commands.lab:lab", "An embedded Proxmox-like host to try everything on, without a GPU."),
    "completion": ("gpuctl.commands.completion:completion", "Print the shell completion script."),
}
"""Command -> (`module:object`, one line for `--help`); a module is imported only when its command runs."""

EXIT_CODES: Final = (
    "Exit codes: 0 good, 1 warning, 2 critical or failed, 3 unknown (could not look), "
    "64 wrong usage, 78 wrong inventory or configuration, 130 interrupted."
)

PACKAGE_DOC: Final = f"""\
Bring a rebooted GPU machine back to a proven state, or say precisely why not.

\b
  gpuctl recover ct200            devices, weights, CUDA, engine, baseline
  gpuctl preflight --quiet        in cron: is this machine fit?
  gpuctl bench ct200              how fast, against the verified baseline
  gpuctl lab up                   an embedded host to try it on

{EXIT_CODES}
"""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry[0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        if command.epilog is None:
            command.epilog = EXIT_CODES
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"Did you mean '{near[0]}'?" if near else "See 'gpuctl --help'."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, help=PACKAGE_DOC, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuctl")
def root() -> None:
    """Top of the command tree."""


def _say(error: GpuctlError, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps({"schema_version": 1, "error": error.to_json()}, indent=2))
        return
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(error.message, err=True)
    for line in error.detail:
        click.echo(f"  | {line}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of the `gpuctl` program; returns only by exiting."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = root.main(words, prog_name="gpuctl", standalone_mode=False)
    except GpuctlError as error:
        _say(error, "--json" in words)
        sys.exit(int(error.exit_code))
    except click.UsageError as error:
        if error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(error.format_message(), err=True)
        sys.exit(int(Exit.USAGE))
    except click.ClickException as error:
        error.show()
        sys.exit(int(Exit.FAILED))
    except (click.Abort, KeyboardInterrupt):
        click.echo("\ninterrupted; run the same command again to continue", err=True)
        sys.exit(int(Exit.INTERRUPTED))
    except BrokenPipeError:
        # The reader of our stdout has gone (`| head`); point stdout at nothing so that exit stays silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(int(Exit.GOOD))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            _fault(error, words)
        place = f" to write {error.filename}" if error.filename else ""
        _say(Failed(f"no space left on device{place}", hint="make room and run it again"), "--json" in words)
        sys.exit(int(Exit.FAILED))
    except Exception as error:
        _fault(error, words)
    sys.exit(int(code) if isinstance(code, int) else int(Exit.GOOD))


def _fault(error: Exception, words: list[str]) -> NoReturn:
    """An error that is ours: told in a line, or in full for whoever asked for that."""
    if os.environ.get("GPUCTL_DEBUG"):
        raise error
    from gpuctl.agent import fault

    _say(fault("gpuctl " + (words[0] if words else ""), error), "--json" in words)
    sys.exit(int(Exit.FAILED))


def run() -> NoReturn:
    """The console script: `main`, then the end without taking the interpreter apart, which costs 0.1 s."""
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(Exit.FAILED)
    # Whoever asked to be called at the end is called, as the interpreter would.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # What could not be written was told by `main`; a reader that has gone wants nothing more.
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)
