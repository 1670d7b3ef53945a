"""Trials of graders and tools for clients: all routes of a process share `agent_rft.actors.grading.slots`.

A call of a trial ends after ten minutes, as at OpenAI, even if its endpoint has a longer `timeout_s`: the client waits
for the response with an open connection.
"""

from __future__ import annotations

import asyncio
from functools import partial

from agent_rft.actors.grading.pool import GraderPool
from agent_rft.actors.grading.slots import Slot, TrialSlots
from agent_rft.cluster.preflight.form_check import check_grader
from agent_rft.serve.stores.keys import ApiKey
from agent_rft.spec.graders import GraderSpec, grader_for_trial
from agent_rft.spec.operator.config import Operator


class Trials:
    """What the operator lets clients try."""

    def __init__(self, operator: Operator, slots: TrialSlots | None = None) -> None:
        self.operator = operator.for_trial()
        self.slots = slots or TrialSlots(operator.limits.max_trial_calls)

    def slot(self, key: ApiKey) -> Slot:
        """Waits for a slot; raises NoSlot, which is answered with 429."""
        return partial(self.slots.slot, key.id)

    async def grader(self, spec: GraderSpec, key: ApiKey) -> GraderPool:
        """The grader, within what the operator allows; its parts wait for slots.

        Raises:
            InvalidJob: it is invalid or not allowed.
        """
        await self.check(spec)
        return GraderPool(grader_for_trial(spec), operator=self.operator, slot=self.slot(key))

    async def check(self, spec: GraderSpec) -> None:
        """Check a grader without calling anything.

        Raises:
            InvalidJob: it is invalid or not allowed.
        """
        await asyncio.to_thread(check_grader, spec, self.operator)
