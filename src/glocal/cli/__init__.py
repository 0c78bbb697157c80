"""The command line: one command per file, each of which imports what it needs only when it runs."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from io import TextIOWrapper
from typing import NoReturn

import typer

from glocal.cli.app import app_
from glocal.cli.bench import bench
from glocal.cli.compare import compare
from glocal.cli.convert import convert
from glocal.cli.cost import cost
from glocal.cli.eval import eval_
from glocal.cli.explain import explain
from glocal.cli.export import export
from glocal.cli.listing import list_
from glocal.cli.papers import papers
from glocal.cli.predict import predict
from glocal.cli.recipes import recipes
from glocal.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Local structure and cheap global context for any vision transformer.",
)
for command in (compare, train, predict, explain, recipes, cost, bench, export, convert, papers):
    app.command()(command)
app.command("app")(app_)
app.command("list")(list_)
app.command("eval")(eval_)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Show the version and stop.")) -> None:
    """Print the version when asked."""
    if show:
        from glocal import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> NoReturn:
    """Run a command; a mistake the user can mend ends in one clear message and exit code 2."""
    from glocal.errors import GlocalError

    # Pillow's word for a large photo; what is too large is an error of its own. A filter for all is for programs alone.
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a file's name, or our own dashes, may not be in the output's alphabet
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # while a failure can still be told
    except GlocalError as error:
        typer.echo(f"glocal: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        _output_failed(error)
    sys.exit(0)


def _output_failed(error: OSError) -> NoReturn:
    """Tell that there is no room for what is written; where no one reads on, as behind `| head`, say nothing."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left once more at its end
    if error.errno == errno.EPIPE:
        sys.exit(1)
    typer.echo(f"glocal: {error.filename or 'output'} cannot be written: {error.strerror}. Make room.", err=True)
    sys.exit(2)
