"""`gpuctl results`: look at stored measurements."""

from __future__ import annotations

from pathlib import Path

import click

from gpuctl.answer import print_json
from inventory.errors import Exit, Refused


@click.group(
    help="""The measurements kept on this machine, each with everything needed to doubt it.

    \b
    Examples:
      gpuctl results list
      gpuctl results list ct200 --json
      gpuctl results show 20261130T194903Z-1a2b3c4d-auto
    """
)
def results() -> None:
    """See the group's help."""


def _folders(ct: str | None) -> tuple[Path, ...]:
    from gpuctl.stages.bench import home

    top = home("x").parent
    if ct is not None:
        return (top / ct,)
    return tuple(sorted(path for path in top.glob("*/") if path.is_dir()))


@results.command("list", help="One line a measurement, oldest first; results of different boots are never mixed.")
@click.argument("ct", required=False, metavar="[CT]")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def list_(ct: str | None, as_json: bool) -> int:
    """All that is kept here, or one container's."""
    from bench.store import everything
    from bench.summary import brief

    found = [(folder.name, result) for folder in _folders(ct) for result in everything(folder)]
    if as_json:
        print_json({"results": [{"container": name, **brief(result)} for name, result in found]})
        return int(Exit.GOOD)
    if not found:
        click.echo("no results are kept on this machine yet; 'gpuctl bench' makes one")
    for name, result in found:
        click.echo(f"{result.run_id}  {name}  boot {result.boot_id[:8]}  {brief(result)['line']}")
    return int(Exit.GOOD)


@results.command(help="One measurement: table, configuration read back, warnings.")
@click.argument("run", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def show(run: str, as_json: bool) -> int:
    """RUN is a run id of `list`, or its beginning when only one begins so."""
    from bench.store import everything
    from bench.summary import line, table

    found = [(f.name, r) for f in _folders(None) for r in everything(f) if r.run_id.startswith(run)]
    exact = [pair for pair in found if pair[1].run_id == run] or found
    if len(exact) != 1:
        known = ", ".join(result.run_id for _, result in found[:5])
        raise Refused(
            f"{len(exact)} results begin with {run!r}" if exact else f"no result is called {run!r}",
            hint=f"they are: {known}" if exact else "see 'gpuctl results list'",
        )
    name, result = exact[0]
    if as_json:
        print_json({"container": name, "result": result.to_json()})
        return int(Exit.GOOD)
    click.echo(line(result))
    click.echo(
        f"{name}, boot {result.boot_id}, {result.started_at}, {result.kind} {result.engine_version}".rstrip()
    )
    for row in table(result):
        click.echo(row)
    click.echo(f"method {result.method}: {result.proof.why}")
    for warning in result.warnings:
        click.echo(f"warning: {warning}")
    return int(Exit.GOOD)
