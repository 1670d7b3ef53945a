"""What of the engine can be seen without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from actors.engine import Engine, EngineConfig
from trainer.errors import EngineFailed

CONFIG = EngineConfig("model", "float32", context_length=64, max_num_seqs=4, seed=0)


def test_weights_that_shared_memory_cannot_hold_are_a_clear_error(tmp_path: Path) -> None:
    engine = Engine(CONFIG, shm=tmp_path / "missing")
    with pytest.raises(EngineFailed, match=r"cannot put 8 bytes of weights into .*missing"):
        engine.stage(np.zeros(8, np.uint8), [("x", "float32", (2,))])


def test_what_was_staged_is_gone_after_shutdown(tmp_path: Path) -> None:
    engine = Engine(CONFIG, shm=tmp_path)
    for _ in range(3):
        engine.stage(np.zeros(8, np.uint8), [("x", "float32", (2,))])
    assert len(list(tmp_path.iterdir())) == 3
    engine.shutdown()
    assert list(tmp_path.iterdir()) == []
