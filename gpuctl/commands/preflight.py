"""`gpuctl preflight`: is this machine fit to serve?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuctl import options
from inventory.machine import Machine


@click.command(
    help="""Is the container (or this machine) fit to serve, and if not, what one thing is wrong?

    CUDA is tried through its driver; a healthy NVML alone proves nothing. Nothing is ever changed.

    \b
    Examples:
      gpuctl preflight ct200              a container of the inventory
      gpuctl preflight --quiet            in cron: prints nothing when all is well
      gpuctl preflight --local            this machine, without inventory
      gpuctl preflight --expect gpus=8    state what must be there
    """
)
@options.container_argument(required=False)
@options.inventory_option
@click.option("--local", is_flag=True, help="Check this machine, whatever the inventory says.")
@click.option(
    "--level",
    type=click.Choice(["quick", "standard", "full"]),
    default="standard",
    show_default=True,
    help="quick: files and NVML; standard: and CUDA's start; full: and a context, copies and a kernel.",
)
@click.option(
    "--expect", multiple=True, metavar="KEY=VALUE", help="gpus, name, power_limit_w, driver; repeatable."
)
@options.json_option
@options.quiet_option
def preflight(
    ct: str | None,
    inventory: tuple[Path, ...],
    local: bool,
    level: str,
    expect: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> int:
    """See the command's help."""
    from gpuctl.link import Link
    from gpuctl.remote import LocalMachine
    from gpuctl.stages.preflight import expectations

    stated = _expectations(expect)
    if local or (ct is None and not options.find_files(inventory)):
        return _check(LocalMachine(), stated, level, as_json=as_json, quiet=quiet)
    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        return _check(
            link.ct, expectations(link.container, link.thresholds) | stated, level, as_json=as_json, quiet=quiet
        )


def _check(machine: Machine, expect: dict[str, Any], level: str, *, as_json: bool, quiet: bool) -> int:
    import json

    from checks.report import Report
    from checks.text import lines
    from gpuctl.stages.preflight import TIMEOUT_S

    report = machine.call("checks.preflight", {"expect": expect, "level": level}, timeout_s=TIMEOUT_S)
    code = int(report["exit_code"])
    if as_json:
        click.echo(json.dumps(report, indent=2))
    elif code or not quiet:
        for line in lines(Report.from_json(report)):
            click.echo(line)
    return code


def _expectations(words: tuple[str, ...]) -> dict[str, Any]:
    from inventory.errors import UsageError

    known = {"gpus": int, "name": str, "power_limit_w": float, "driver": str}
    stated: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise UsageError(
                f"--expect {word!r} is not KEY=VALUE with a known key", hint=f"known keys: {', '.join(known)}"
            )
        try:
            stated[key] = known[key](value)
        except ValueError:
            raise UsageError(
                f"--expect {key}: {value!r} is not a number", hint=f"for example: --expect {key}=8"
            ) from None
    return stated
