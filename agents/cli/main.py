"""`fyke`: the command line. Errors that a person can mend leave it as one message and an exit code (`errors.Exit`)."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

import agents
import streams
from agents.cli import admin, audit, control, crawl, doctor, failures, inspect, rules, seed, state, why, worker
from streams.errors import Exit, FykeError


class _Fault(click.ClickException):
    """A `FykeError` on its way to the terminal."""

    def __init__(self, error: FykeError) -> None:
        super().__init__("\n  ".join((str(error), *getattr(error, "__notes__", ()))))
        self.exit_code = error.exit_code

    def show(self, file: Any = None) -> None:
        """Print it, without a traceback."""
        click.echo(f"fyke: {self.message}", err=True, file=file)


class Program(click.Group):
    """The group of all commands; turns errors into messages and exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except FykeError as error:
            raise _Fault(error) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(Exit.INTERRUPTED) from None


def _release() -> str:
    try:
        return version("fyke")
    except PackageNotFoundError:
        return "0+unknown"  # run from a source tree that was not installed


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(_release(), prog_name="fyke")
def cli() -> None:
    """Crawl the web through Kafka: seeds in, records out.

    \b
    fyke crawl https://example.org/     crawl a site into ./fyke-out/example.org
    fyke crawl --demo                   crawl a small site that is served on this machine
    fyke resume                         go on with the crawl that was interrupted
    """  # noqa: D301 - \b keeps click from wrapping the examples
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it says as a warning reaches people as a fault


for _command in (
    crawl.crawl, crawl.resume, seed.seed, rules.rules, inspect.status, why.why, failures.failures, control.pause,
    control.unpause, control.cancel, control.forget, audit.audit, worker.worker, admin.broker, admin.topics,
    admin.clean, state.state, doctor.doctor, inspect.schema, inspect.config,
):  # fmt: skip
    cli.add_command(_command)


def _check_packages() -> None:
    """`streams` and `agents` are common names: another distribution may have put its own in front of ours."""
    ours = Path(agents.__file__ or "").parents[1]
    theirs = Path(streams.__file__ or "").parents[1]
    if ours != theirs:
        click.echo(
            f"fyke: the package `streams` comes from {theirs}, not from Fyke in {ours}\n"
            "  Install Fyke into an environment of its own: pipx install fyke",
            err=True,
        )
        sys.exit(Exit.ENVIRONMENT)


def main() -> None:
    """The console script."""
    _check_packages()
    cli()


if __name__ == "__main__":
    main()
