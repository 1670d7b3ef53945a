"""Trial runs of graders and tools for clients. All routes of a process share one `TrialSlots`.

A trial call may take at most ten minutes, as in OpenAI's API. A longer `timeout_s` of an endpoint has no effect.
"""

from __future__ import annotations

import asyncio
from functools import partial

from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.grading.trial_slots import Slot, TrialSlots
from agent_rft.cluster.checks.endpoint_checks import check_grader
from agent_rft.serve.stores.key_store import ApiKey
from agent_rft.spec.graders import GraderSpec, limit_trial_grader
from agent_rft.spec.operator.operator_config import OperatorConfig


class TrialFactory:
    """Creates graders and slots for trial runs, within the operator's limits."""

    def __init__(self, operator: OperatorConfig, slots: TrialSlots | None = None) -> None:
        self.operator = operator.limit_to_trial()
        self.slots = slots or TrialSlots(operator.limits.max_trial_calls)

    def slot(self, key: ApiKey) -> Slot:
        """Return a factory for context managers that hold a slot for the key.

        Entering a context manager raises NoFreeSlot (status 429) if no slot is free in time.
        """
        return partial(self.slots.hold_slot, key.id)

    async def make_grader(self, spec: GraderSpec, key: ApiKey) -> GraderPool:
        """Return a grader for one trial, within the operator's limits. Its sandboxes and calls wait for slots.

        Raises:
            InvalidJob: The grader is invalid, or the operator does not allow it.
        """
        await self.check_grader(spec)
        return GraderPool(limit_trial_grader(spec), operator=self.operator, slot=self.slot(key))

    async def check_grader(self, spec: GraderSpec) -> None:
        """Check the settings of a grader, without running it or calling an endpoint.

        Raises:
            InvalidJob: The grader is invalid, or the operator does not allow it.
        """
        await asyncio.to_thread(check_grader, spec, self.operator)
