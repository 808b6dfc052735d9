"""`gpuctl inventory`: check, show and begin an inventory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from gpuctl import options
from gpuctl.answer import count, print_json
from inventory.errors import Exit, UsageError


@click.group(
    help="""The inventory: which hosts and containers exist, and what each container should be.

    \b
    Examples:
      gpuctl inventory validate
      gpuctl inventory show ct200
      gpuctl inventory schema > gpuctl.schema.json
      gpuctl inventory init --api https://pve1:8006 --user root@pam --password env:PVE_PASSWORD \\
          --fingerprint AA:BB:... > gpuctl.yaml
    """
)
def inventory() -> None:
    """See the group's help."""


@inventory.command(help="Check the files; all mistakes of all files are reported at once.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@options.inventory_option
@options.json_option
@options.quiet_option
def validate(files: tuple[Path, ...], inventory: tuple[Path, ...], as_json: bool, quiet: bool) -> int:
    """Secrets are not resolved: a reference to one that is not there yet is no mistake."""
    loaded = options.loaded(files or inventory)
    names = [str(file) for file in loaded.files]
    hosts, containers = loaded.inventory.hosts, loaded.inventory.containers
    if as_json:
        print_json({"valid": True, "files": names, "hosts": list(hosts), "containers": list(containers)})
    elif not quiet:
        click.echo(
            f"{', '.join(names)}: valid; {count(len(hosts), 'host')}, {count(len(containers), 'container')}"
        )
    return int(Exit.GOOD)


@inventory.command(help="Print what the files mean, with every default filled in. Secrets stay references.")
@options.container_argument(required=False)
@options.inventory_option
@options.json_option
def show(ct: str | None, inventory: tuple[Path, ...], as_json: bool) -> int:
    """The whole inventory, or one container with its host."""
    loaded = options.loaded(inventory)
    data: dict[str, Any] = dataclasses.asdict(loaded.inventory)
    if ct is not None:
        name = options.pick(loaded, ct)
        entry = data["containers"][name]
        data = {"hosts": {entry["host"]: data["hosts"][entry["host"]]}, "containers": {name: entry}}
    plain = json.loads(json.dumps(data))
    if as_json:
        print_json(plain)
    else:
        import yaml

        click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip())
    return int(Exit.GOOD)


@inventory.command(help="Print the JSON Schema, so that an editor completes and checks the YAML.")
def schema() -> int:
    """Draft 2020-12."""
    from inventory.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
    return int(Exit.GOOD)


@inventory.command(help="Ask a Proxmox API for its containers and write a first inventory.")
@click.option("--api", "url", required=True, metavar="URL", help="For example https://pve1:8006.")
@click.option("--user", default="root@pam", show_default=True, help="User with realm.")
@click.option("--password", default="", metavar="REF", help="env:NAME, file:PATH or command:ARGV.")
@click.option("--token-name", default="", help="Name of an API token instead of a password.")
@click.option("--token-value", default="", metavar="REF", help="Its secret by reference.")
@click.option("--ca-file", default="", metavar="FILE", help="CA that signed the node's certificate.")
@click.option("--fingerprint", default="", metavar="AA:BB:...", help="SHA-256 fingerprint of the certificate.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; default: stdout.")
def init(output: Path | None, **words: Any) -> int:
    """An existing file is never overwritten."""
    from inventory.init import write_first_inventory
    from inventory.model import Api
    from inventory.proxmox import ProxmoxApi

    if output is not None and output.exists():
        raise UsageError(f"{output} exists already", hint="choose another name, or move it away first")
    entry = Api(**words)
    api = ProxmoxApi.connect(entry, base=Path.cwd())
    text = write_first_inventory(entry, api.containers())
    if output is None:
        click.echo(text, nl=False)
        return int(Exit.GOOD)
    staging = output.with_name(output.name + ".tmp")
    staging.write_text(text)
    staging.replace(output)
    click.echo(f"wrote {output}; check it, then: gpuctl inventory validate {output}", err=True)
    return int(Exit.GOOD)
