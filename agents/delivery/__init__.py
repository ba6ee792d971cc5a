"""The only code that sends or acks: the producer, the ordered acker, and the loop that runs a stage on Faust."""

from __future__ import annotations

from agents.delivery.acker import Slot
from agents.delivery.core import Delivery
from agents.delivery.runner import StageRunner
from agents.delivery.stage import Batch, Shard, Stage

__all__ = ["Batch", "Delivery", "Shard", "Slot", "Stage", "StageRunner"]
