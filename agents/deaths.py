"""Tells what a worker died of, and waits until this process has heard it too."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from agents.io.culprit import Culprit
from streams.codecs import encode
from streams.deaths import Death
from streams.topics import DEATHS

if TYPE_CHECKING:
    from pathlib import Path

    from agents.delivery import Delivery
    from streams.deaths import Deaths

log = logging.getLogger(__name__)


class Told(Protocol):
    """What is asked of `agents.broadcast`."""

    @property
    def deaths(self) -> Deaths:
        """All that was told."""

    async def catch_up(self) -> None:
        """Return when all that is told now has been heard."""


async def tell(delivery: Delivery, told: Told, *deaths: Death) -> None:
    """Return when all workers can know it and this one does; at once if there is nothing to tell."""
    if not deaths:
        return
    for sent in [await delivery.send(DEATHS, encode(death), partition=0) for death in deaths]:
        await sent
    await told.catch_up()


async def find_culprit(folder: Path, stage: str, delivery: Delivery, told: Told) -> Culprit:
    """The worker's own `Culprit`; it is told to all of which body the worker's last process died, if of any."""

    async def died(url: str) -> None:
        await tell(delivery, told, Death(stage=stage, url=url, at=delivery.clock.now()))

    culprit = Culprit(folder, stage, lambda url: told.deaths.of_body(url, delivery.clock.now()), died)
    if culprit.found:
        log.error("the last process of this worker died while it decoded %s", culprit.found)
        await died(culprit.found)
        culprit.told()
    return culprit
