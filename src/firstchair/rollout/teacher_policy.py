"""A scripted expert as a policy, in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from firstchair.core.clock import utc_now
from firstchair.rollout.policy import Actor, PolicyReply, PolicyRequest
from firstchair.traces.session import ModelCall


class TeacherPolicy:
    """Asks ``teacher.act`` for every decision."""

    def __init__(self, teacher: Actor, *, name: str = "teacher"):
        self._teacher, self.name = teacher, name

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """The expert's actions; one that raises is an error of that episode alone."""
        return [self._act(request) for request in requests]

    def _act(self, request: PolicyRequest) -> PolicyReply:
        started, clock = utc_now(), time.perf_counter()
        try:
            action = self._teacher.act(request.messages, request.tools)
        except Exception as error:  # noqa: BLE001 - the rollout boundary: recorded as this episode's error
            return PolicyReply(error=f"{type(error).__name__}: {error}")
        call = ModelCall(
            call_id=request.request_id,
            provider="scripted",
            model=self.name,
            started_at=started,
            latency_ms=(time.perf_counter() - clock) * 1000,
        )
        return PolicyReply(action=action, call=call)
