"""Where the repository's own files are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "examples" / "ledger"
BASE = LEDGER / "base"
"""The ledger example's model: 0.56M parameters, in Hugging Face's form."""
