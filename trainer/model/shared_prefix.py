"""What packed sequences begin with in common is computed once: the tokens of a batch become those of a tree.

Rollouts of a row have one prompt, and rows of an agent mostly have its instructions and tools before the question. A
token's state depends only on the tokens before it, so shared tokens have the same states in each sequence, and their
gradient is the sum of those that they have in each: the same as without sharing, but for rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MIN_SHARED: Final = 16
"""Fewer shared tokens are not worth an attention call of their own."""
MIN_SAVING: Final = 0.1
"""Share of the tokens. Attention to a shared part takes a mask, and computes what that hides too."""
MAX_LENGTH: Final = 2048
"""Tokens of the longest sequence, whose mask takes 16 MiB in float32."""
NO_PARENT: Final = -1


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """N tokens of packed sequences as T <= N tokens of segments, each of which starts or continues another one.

    For example, if two tokens are enough, the sequences 10 11 12 13 and 10 11 20 become

        kept      0 1 2 3 6           T = 5: the segments 10 11, 12 13 and 20
        places    0 1 2 3 0 1 4       N = 7
        lengths   2, 2, 1
        parents  -1, 0, 0

    Attributes:
        kept: [T] int64, the index in N of each token that is computed.
        places: [N] int64, the index in T of each token's state.
        lengths: Tokens of each segment, in the order of T.
        parents: The segment before it that each one continues, or NO_PARENT.
    """

    kept: NDArray[np.int64]
    places: NDArray[np.int64]
    lengths: tuple[int, ...]
    parents: tuple[int, ...]

    @classmethod
    def if_it_pays(cls, token_ids: NDArray[np.int64], lengths: Sequence[int]) -> PrefixTree | None:
        """The tree, if the sequences have enough in common, and none is too long."""
        if max(lengths) > MAX_LENGTH:
            return None
        tree = cls.of(token_ids, lengths)
        return tree if len(tree.kept) <= (1 - MIN_SAVING) * len(token_ids) else None

    @classmethod
    def of(cls, token_ids: NDArray[np.int64], lengths: Sequence[int], min_shared: int = MIN_SHARED) -> PrefixTree:
        """token_ids [N] of sequences with these lengths. Fewer than `min_shared` tokens are not shared."""
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
            end = first + _num_common([rows[row][first:] for row in group])
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


def _num_common(rows: Sequence[NDArray[np.int64]]) -> int:
    """With how many equal tokens all rows begin."""
    first, *others = rows
    length = min(map(len, rows))
    for other in others:
        different = np.flatnonzero(first[:length] != other[:length])
        length = int(different[0]) if len(different) else length
    return length
