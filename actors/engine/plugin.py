"""What vLLM loads in each of its processes (entry point `vllm.general_plugins`): our transport, and that a process that
is killed leaves nothing behind.

Keep it light: it is imported at every start of every vLLM process.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import threading
import time

TRANSPORT = "agent_rft_shm"
PARENT_POLL_S = 1.0
PR_SET_PDEATHSIG = 1
"""Of Linux: the signal that a process gets when the thread that started it ends."""


def register() -> None:
    """Register the shared-memory weight transport and, in vLLM's child processes, end with the parent."""
    from tqdm import tqdm
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if TRANSPORT not in WeightTransferEngineFactory._registry:  # no public way to ask
        WeightTransferEngineFactory.register_engine(TRANSPORT, "actors.weights.transport", "ShmWeightTransferEngine")
    if multiprocessing.parent_process() is not None:
        # Ends also a process that stands still, and no other way does; the thread below, one whose parent went before.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
        # Else a progress bar makes one for several processes, whose name in /dev/shm a killed process cannot remove.
        tqdm.set_lock(threading.RLock())
        # Called after the callbacks of what is loaded later. Those of what was loaded before, and the interpreter's own
        # end, would only free memory, for two seconds.
        atexit.register(os._exit, 0)


def _end_with_parent(parent: int) -> None:
    """An engine actor that is killed (-9) cannot stop its children; without this they hold their memory for ever."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
