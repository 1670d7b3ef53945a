"""Prefix sharing: a common prefix of packed sequences is computed only once.

Rollouts of a row share the prompt, and rows of an agent usually share its instructions and tools. A token's state
depends only on the token and the tokens before it, so a shared token has the same state in each sequence. The gradient
of this state is the sum of its gradients in these sequences. The result therefore differs only by rounding from a
computation without sharing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MIN_SHARED: Final = 16
"""Minimum length of a shared prefix; a shorter prefix is not worth a separate attention call."""
MIN_SAVING: Final = 0.1
"""Minimum share of tokens that sharing must save.

A smaller saving is not worth the cost: attention to a shared prefix needs a mask, and computes scores that the mask
discards."""
MAX_SHARED_LENGTH: Final = 2048
"""Maximum sequence length for sharing; a mask of this length takes 16 MiB in float32."""
NO_PARENT: Final = -1


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Packed sequences as a tree of segments: of N tokens, only T are computed.

    For example, with min_shared 2, the sequences 10 11 12 13 and 10 11 20 become

        computed        0 1 2 3 6           T = 5: the segments 10 11, 12 13 and 20
        state_indices   0 1 2 3 0 1 4       N = 7
        lengths         2, 2, 1
        parents        -1, 0, 0

    Attributes:
        computed: [T] int64, the index of each computed token among all N tokens.
        state_indices: [N] int64, the index of each token's state among the T computed tokens.
        lengths: Number of tokens of each segment. The T computed tokens are in the order of the segments.
        parents: The index of the earlier segment that each segment continues, or NO_PARENT.
    """

    computed: NDArray[np.int64]
    state_indices: NDArray[np.int64]
    lengths: tuple[int, ...]
    parents: tuple[int, ...]

    @classmethod
    def from_tokens_if_smaller(cls, token_ids: NDArray[np.int64], lengths: Sequence[int]) -> PrefixTree | None:
        """Build the tree; return None if sharing saves too few tokens or a sequence is too long."""
        if max(lengths) > MAX_SHARED_LENGTH:
            return None
        tree = cls.from_tokens(token_ids, lengths)
        return tree if len(tree.computed) <= (1 - MIN_SAVING) * len(token_ids) else None

    @classmethod
    def from_tokens(
        cls, token_ids: NDArray[np.int64], lengths: Sequence[int], min_shared: int = MIN_SHARED
    ) -> PrefixTree:
        """Build the tree of token_ids [N] with these lengths; share only prefixes of at least `min_shared` tokens."""
        starts = np.cumsum([0, *lengths[:-1]])
        rows = np.split(token_ids, starts[1:])
        places = np.empty(len(token_ids), np.int64)
        kept: list[NDArray[np.int64]] = []
        parents: list[int] = []
        num_kept = 0
        # Groups of rows that are equal before token `first`, where segment `parent` ends.
        open_groups = [(list(range(len(rows))), 0, NO_PARENT)]
        while open_groups:
            group, first, parent = open_groups.pop()
            end = first + _common_length([rows[row][first:] for row in group])
            if end > first and (len(group) == 1 or end - first >= min_shared):
                kept.append(np.arange(first, end) + starts[group[0]])
                for row in group:
                    places[starts[row] + first : starts[row] + end] = np.arange(num_kept, num_kept + end - first)
                num_kept += end - first
                parents.append(parent)
                first, parent = end, len(parents) - 1
            branches = defaultdict[int, list[int]](list)
            for row in group:
                if end < len(rows[row]):
                    branches[int(rows[row][end])].append(row)
                elif first < end:
                    open_groups.append(([row], first, parent))
            open_groups += [(branch, first, parent) for branch in reversed(branches.values())]
        return cls(np.concatenate(kept), places, tuple(map(len, kept)), tuple(parents))


def _common_length(rows: Sequence[NDArray[np.int64]]) -> int:
    """Return the length of the longest common prefix of all rows."""
    first, *others = rows
    length = min(map(len, rows))
    for other in others:
        different = np.flatnonzero(first[:length] != other[:length])
        length = int(different[0]) if len(different) else length
    return length
