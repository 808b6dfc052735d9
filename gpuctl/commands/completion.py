"""`gpuctl completion`: the script that makes a shell complete our words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from inventory.errors import Failed

SETUP = {
    "bash": 'eval "$(gpuctl completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(gpuctl completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "gpuctl completion fish > ~/.config/fish/completions/gpuctl.fish",
}


@click.command(
    help="Print the completion script for a shell.\n\n\b\n" + "\n".join(f"  {line}" for line in SETUP.values())
)
@click.argument("shell", type=click.Choice(list(SETUP)))
def completion(shell: str) -> None:
    """Print the script."""
    from gpuctl.cli import root

    cls = get_completion_class(shell)
    if cls is None:
        raise Failed(f"no completion for shell {shell!r}", hint=f"known: {', '.join(SETUP)}")
    made = cls(root, {}, "gpuctl", "_GPUCTL_COMPLETE")
    # `source()` of bash runs `bash --version` first, which an admin machine may lack; the script is the same.
    click.echo(made.source_template % made.source_vars())
