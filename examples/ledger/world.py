"""Corpus of yearly reports of made-up companies, the same for the same seed.

500 companies x 8 years x 3 statements make 12,000 documents, at paths such as `vorzen/2013/income`. A document has its
path in the first line, then three lines with a metric and its four-digit value. Training, validation and test have
different companies, so they share no document.
"""

import random
from collections.abc import Collection
from typing import Final, Literal

from examples.ledger.vocabulary import STATEMENTS, SYLLABLES, YEARS, split

Split = Literal["train", "validation", "test"]

NUM_COMPANIES: Final = 500
SPLITS: Final[dict[Split, slice]] = {
    "train": slice(0, 400),
    "validation": slice(400, 420),
    "test": slice(420, NUM_COMPANIES),
}


class World:
    """Companies and their documents.

    Changing the order of random draws changes every document. The weights in `base/` were trained on seed 0.
    """

    def __init__(
        self, seed: int = 0, *, num_companies: int = NUM_COMPANIES, excluded: Collection[str] = frozenset()
    ) -> None:
        """Create `num_companies` companies, or fewer if there are not enough of the 2,256 names without `excluded`."""
        rng = random.Random(seed)
        names = [a + b for a in SYLLABLES for b in SYLLABLES if a != b and len(split(a + b)) == 2]
        rng.shuffle(names)
        self.companies = [name for name in dict.fromkeys(names) if name not in excluded][:num_companies]
        self.values: dict[str, dict[str, int]] = {}
        """Values by path and metric, in the order in which the documents list them."""
        for company in self.companies:
            for year in YEARS:
                for statement, metrics in STATEMENTS.items():
                    order = metrics[:]
                    rng.shuffle(order)
                    self.values[f"{company}/{year}/{statement}"] = {metric: rng.randint(1000, 9999) for metric in order}
        self.documents = {
            path: "\n".join([path, *(f"{metric} {value}" for metric, value in lines.items())])
            for path, lines in self.values.items()
        }
        self._known = frozenset(self.companies)

    def __contains__(self, company: str) -> bool:
        return company in self._known

    def companies_in(self, split: Split) -> list[str]:
        """Return the companies of one split. The world must have `NUM_COMPANIES` companies."""
        return self.companies[SPLITS[split]]
