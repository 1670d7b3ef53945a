"""Whether an endpoint refuses the job's key or a single call: both are answered with 403.

Its other answers decide. A key that is refused at the first call is a mistake in the job. Once the endpoint has
answered, a 403 concerns the call, unless most of the latest answers are 403: then the key has expired, for example.
"""

from __future__ import annotations

from collections import deque

WINDOW = 64
MIN_ANSWERS = 16
"""The least number of answers for a share: fewer say little, and a call may be forbidden by chance."""
MAX_SHARE = 0.5


class AccessHistory:
    """The latest answers of one endpoint."""

    def __init__(self, has_answered: bool) -> None:
        """`has_answered`: whether the endpoint has answered another client of this run, such as that of the check."""
        self._has_answered = has_answered
        self._forbidden: deque[bool] = deque(maxlen=WINDOW)

    def add(self, *, forbidden: bool) -> None:
        """Record an answer; `forbidden` says that it is a 403."""
        self._has_answered |= not forbidden
        self._forbidden.append(forbidden)

    @property
    def num_forbidden(self) -> int:
        return sum(self._forbidden)

    @property
    def num_answers(self) -> int:
        """How many of the latest answers are recorded."""
        return len(self._forbidden)

    @property
    def refuses_key(self) -> bool:
        """Whether a 403 concerns the key, not the call."""
        if not self._has_answered:
            return True
        return self.num_answers >= MIN_ANSWERS and self.num_forbidden > MAX_SHARE * self.num_answers
