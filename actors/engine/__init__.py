"""The vLLM engine, which samples tokens for prompts.

The subpackages contain chat serving, grammars, the code in vLLM's workers, and engines that several jobs share. The
input and the output of an engine are tokens. An engine does not depend on tools, graders or rollouts.
"""

import logging

# On CPUs, importing vLLM warns about Triton. vLLM sets its log level again when an engine starts.
logging.getLogger("vllm").setLevel(logging.ERROR)
# On CPUs, torch would report at each start that Triton is missing.
logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
