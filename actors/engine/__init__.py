"""The vLLM engine: sampling, adapters and slots. Chats, grammars, vLLM's workers and shared engines have a room each.

Nothing that knows tools, graders or the episode loop: an engine turns tokens into tokens.
"""

import logging

# At its import on CPUs vLLM warns about Triton. It sets its own level once an engine starts.
logging.getLogger("vllm").setLevel(logging.ERROR)
# On CPUs there is no triton, which torch would report at each start.
logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
