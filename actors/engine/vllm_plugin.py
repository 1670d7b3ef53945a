"""The plugin that vLLM loads in each of its processes (entry point `vllm.general_plugins`).

The plugin registers our weight transport, and makes vLLM's child processes end with their parent. Every vLLM process
imports this module at its start, so the import must be fast.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import threading
import time

from agent_rft.actors.engine.vllm_internals import allow_matrix_tiles, register_transport

TRANSPORT = "agent_rft_shm"
WORKER_EXTENSION = "agent_rft.actors.engine.worker.worker_extension.WorkerExtension"
PARENT_POLL_S = 1.0
PR_SET_PDEATHSIG = 1
"""Linux's prctl option for the signal that a process gets when its parent thread ends."""


def register() -> None:
    """Register the shared-memory weight transport and make vLLM's child processes end with their parent."""
    from tqdm import tqdm

    register_transport(TRANSPORT, "agent_rft.actors.engine.worker.weight_receiver", "ShmWeightTransferEngine")
    if multiprocessing.parent_process() is not None:
        # Only a signal ends a process that hangs. The thread below handles a parent that died before this line.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
        allow_matrix_tiles()
        # By default tqdm creates a multiprocessing lock, whose file in /dev/shm a killed process cannot remove.
        tqdm.set_lock(threading.RLock())
        # Runs after the callbacks of modules loaded later. The callbacks of earlier modules and the interpreter's
        # teardown would only free memory, for two seconds.
        atexit.register(os._exit, 0)


def _end_with_parent(parent: int) -> None:
    """Exit when the parent has ended. An engine actor that is killed cannot stop its child processes."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
