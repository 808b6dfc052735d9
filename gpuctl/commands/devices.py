"""`gpuctl devices`: show, plan and repair a container's access to its GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpuctl import options
from gpuctl.answer import preview_json, print_json, say_preview
from inventory.errors import CannotLook, Exit
from provision.pipeline import StageName

SPAN = (StageName.CONNECT, StageName.HOST, StageName.DEVICES, StageName.CONTAINER)


@click.group(
    help="""A container's access to its GPUs: device nodes, their numbers, the rules in its configuration.

    \b
    Examples:
      gpuctl devices show ct200      what is there, what is wrong
      gpuctl devices plan ct200      what would be changed
      gpuctl devices apply ct200     change it
      gpuctl devices facts ct200     everything read, as JSON, for a report
    """
)
def devices() -> None:
    """See the group's help."""


@devices.command(help="Show what is there and what is wrong; change nothing.")
@options.container_argument(required=False)
@options.inventory_option
@options.json_option
def show(ct: str | None, inventory: tuple[Path, ...], as_json: bool) -> int:
    """Like `plan`; exit code 2 when something would have to be changed."""
    return _look(ct, inventory, as_json, code_when_steps=int(Exit.FAILED))


@devices.command(help="Show what would be changed; change nothing.")
@options.container_argument(required=False)
@options.inventory_option
@options.json_option
def plan(ct: str | None, inventory: tuple[Path, ...], as_json: bool) -> int:
    """The stages host, devices and container of a recovery, without making a step."""
    return _look(ct, inventory, as_json, code_when_steps=int(Exit.GOOD))


def _look(ct: str | None, inventory: tuple[Path, ...], as_json: bool, *, code_when_steps: int) -> int:
    from gpuctl import recovery
    from gpuctl.link import Link
    from gpuctl.story import Story
    from provision.pipeline import preview

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        story = Story(lab=link.lab)
        previews = preview(recovery.stages(link, SPAN, wait_s=0), story.report)
    if as_json:
        stages = [preview_json(p) for p in previews]
        print_json({"container": link.name, "lab": link.lab, "stages": stages})
    else:
        say_preview(link.mark + link.name, previews, "devices are as they should be")
    blocked = next((p.blocked for p in previews if p.blocked), None)
    if blocked:
        return int(blocked.exit_code)
    return code_when_steps if any(p.steps for p in previews) else int(Exit.GOOD)


@devices.command(help="Make the changes that 'plan' shows.")
@options.container_argument(required=False)
@options.inventory_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@options.json_option
@options.quiet_option
@click.pass_context
def apply(ctx: click.Context, /, **words: Any) -> int:
    """The same as `gpuctl recover CT --from host --until container`."""
    from gpuctl.commands.recover import recover

    code = ctx.invoke(recover, **words, first="host", last="container", dry_run=False, wait=None)
    return int(code or 0)


@devices.command(help="Print everything that was read, as JSON; no secrets are in it.")
@options.container_argument(required=False)
@options.inventory_option
@click.option("--json", "as_json", is_flag=True, help="The only form there is; accepted for symmetry.")
def facts(ct: str | None, inventory: tuple[Path, ...], as_json: bool) -> int:  # noqa: ARG001
    """Facts of API, host and container; a part that can't be read says why instead."""
    from gpuctl.link import Link

    loaded = options.loaded(inventory)
    with Link(loaded, options.pick(loaded, ct)) as link:
        vmid, node = link.container.vmid, link.node
        status = link.api.status(node, vmid)
        answer: dict[str, Any] = {
            "container": link.name,
            "vmid": vmid,
            "lab": link.lab,
            "proxmox": {"version": link.api.version(), "node": node, "status": status.status, "lock": status.lock},
            "host": link.host.call("host.facts", {"vmid": vmid}),
        }
        try:
            wanted = list(link.container.devices.wanted)
            answer["inside"] = link.ct.call("ct.device_facts", {"nodes": wanted})
        except CannotLook as error:
            answer["inside"] = {"unreadable": error.message}
    print_json(answer)
    return int(Exit.GOOD)
