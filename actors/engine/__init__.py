"""The vLLM engine: sampling, adapters and slots; subpackages for chats, grammars, vLLM's workers and shared engines.

Does not depend on tools, graders or the episode loop: an engine turns tokens into tokens.
"""

import logging

# On CPUs, importing vLLM warns about Triton. vLLM sets its log level again when an engine starts.
logging.getLogger("vllm").setLevel(logging.ERROR)
# On CPUs, torch would report at each start that Triton is missing.
logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
