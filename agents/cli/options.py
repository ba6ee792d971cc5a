"""Options that several commands share, and the settings they lead to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from streams.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

_FLAGS = {
    "state": ("worker.state", "--state"),
    "kafka": ("kafka.bootstrap", "--kafka"),
    "allow_private": ("fetch.allow_private", "--allow-private"),
    "connect_to": ("fetch.connect_to", "--connect-to"),
    "out": ("export.out", "--out"),
    "only_crawl": ("export.crawl", "--crawl"),
}


def cluster_options(command: F) -> F:
    """`--state` and `--kafka`: which broker."""
    for option in (
        click.option("--kafka", metavar="HOST:PORT", help="A Kafka of yours instead of the embedded broker."),
        click.option("--state", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
                     help="Folder of the embedded broker and of the workers' tables."),
    ):  # fmt: skip
        command = option(command)
    return command


def address_options(command: F) -> F:
    """`--allow-private` and `--connect-to`: which addresses may be crawled."""
    for option in (
        click.option("--connect-to", multiple=True, metavar="HOST:PORT:ADDR:PORT", callback=_check_connect_to,
                     help="Connect to ADDR:PORT when HOST:PORT is asked for, as in curl."),
        click.option("--allow-private", is_flag=True, default=None,
                     help="Crawl private, loopback and link-local addresses too."),
    ):  # fmt: skip
        command = option(command)
    return command


def _check_connect_to(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        if text.count(":") < 3:
            raise click.BadParameter(f"{text!r} is not HOST:PORT:ADDR:PORT")
    return value


def given(**options: Any) -> dict[str, tuple[str, Any]]:
    """The settings among a command's options that were given, as `configuration.load` takes them."""
    flags = {}
    for option, value in options.items():
        if value in (None, ()):
            continue
        dotted, flag = _FLAGS[option]
        flags[dotted] = (flag, value.absolute() if isinstance(value, Path) else value)
    return flags


def settings_of(**options: Any) -> Settings:
    """The effective settings of a command with these options. Raises `SettingsError`."""
    from agents.cli.configuration import load, override

    settings = load(given(**options))
    return override(settings, {"worker.state": settings.worker.state.absolute()})
