"""`gpuctl stage`: bring weights into memory, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuctl import options
from gpuctl.answer import preview_json, print_json, say_preview
from inventory.errors import Exit, UsageError


@click.command(
    help="""Bring the weights of a container (or any repository) into /dev/shm, every file verified by its digest.

    Nothing appears under its final name before it is verified and complete. What is right already is left alone.

    \b
    Examples:
      gpuctl stage ct200
      gpuctl stage ct200 --dry-run
      gpuctl stage --repo Qwen/Qwen3.6-27B --to /dev/shm/models/Qwen3.6-27B --cache /var/cache/models
    """
)
@options.container_argument(required=False)
@options.inventory_option
@click.option("--repo", metavar="OWNER/NAME", help="Stage this repository on this machine.")
@click.option("--revision", default="main", show_default=True, help="With --repo: branch, tag or commit.")
@click.option("--to", metavar="DIR", help="With --repo: target folder.")
@click.option("--cache", default="", metavar="DIR", help="With --repo: folder on disk that survives a reboot.")
@click.option("--include", multiple=True, metavar="GLOB", help="With --repo: take only these files; repeatable.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="With --repo: leave these out; repeatable.")
@click.option("--endpoint", default="", metavar="URL", help="With --repo: a mirror of the Hub.")
@click.option("--token", default="", metavar="REF", help="With --repo: env:NAME, file:PATH or command:ARGV.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@options.json_option
@options.quiet_option
def stage(
    ct: str | None, inventory: tuple[Path, ...], dry_run: bool, as_json: bool, quiet: bool, **one: Any
) -> int:
    """See the command's help."""
    if one["repo"]:
        return _run(_single(one), "this machine", dry_run=dry_run, as_json=as_json, quiet=quiet)
    from gpuctl.link import Link
    from gpuctl.recovery import weights_stage

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        made = weights_stage(link)
        if made is None:
            raise UsageError(
                f"{link.name} has no weights in the inventory",
                hint=f"add containers.{link.name}.weights, or give --repo and --to",
            )
        with link.exclusive("stage"):
            return _run(made, link.name, lab=link.lab, dry_run=dry_run, as_json=as_json, quiet=quiet)


def _single(one: dict[str, Any]) -> Any:
    """Stage of one repository on this machine."""
    from gpuctl.remote import LocalMachine
    from inventory.model import Weights
    from inventory.secret import resolve
    from provision.weights.stage import WeightsStage

    if not one["to"]:
        raise UsageError(
            "--repo needs --to", hint="for example: --to /dev/shm/models/" + one["repo"].split("/")[-1]
        )
    token = resolve(one["token"], base=Path.cwd()).reveal() if one["token"] else ""
    names = ("repo", "revision", "to", "cache", "include", "exclude", "endpoint")
    return WeightsStage(LocalMachine(), (Weights(**{name: one[name] for name in names}),), (token,))


def _run(made: Any, where: str, *, lab: bool = False, dry_run: bool, as_json: bool, quiet: bool) -> int:
    from gpuctl.story import Story
    from provision.pipeline import preview, run

    story = Story(quiet=quiet or as_json, lab=lab)
    mark = "lab: " if lab else ""
    if dry_run:
        previews = preview((made,), story.report)
        blocked = previews[0].blocked
        if as_json:
            print_json({"container": where, "lab": lab, "dry_run": True, "stages": [preview_json(previews[0])]})
        else:
            say_preview(mark + where, previews, "the weights are staged and verified")
        return int(blocked.exit_code if blocked else Exit.GOOD)
    outcome = run((made,), story.report, story.emit)[0]
    if as_json:
        print_json(
            {
                "container": where,
                "lab": lab,
                "dry_run": False,
                "stages": [{"stage": "weights", "found": list(outcome.found), "changed": list(outcome.changed)}],
            }
        )
    elif not quiet:
        for line in outcome.changed or outcome.found:
            click.echo(mark + line)
    return int(Exit.GOOD)
