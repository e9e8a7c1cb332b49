"""`sapwood completion`: the script that makes a shell complete commands, options and topics."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    \b
    bash:  eval "$(sapwood completion bash)"      in ~/.bashrc
    zsh:   eval "$(sapwood completion zsh)"       in ~/.zshrc
    fish:  sapwood completion fish | source       in ~/.config/fish/config.fish
    """
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"there is no completion for {shell}")
    command = context.find_root().command
    click.echo(made(command, {}, "sapwood", "_SAPWOOD_COMPLETE").source())
