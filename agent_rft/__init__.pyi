from agent_rft.untrusted import NoSandbox as NoSandbox
from agent_rft.untrusted import UntrustedRun as UntrustedRun
from agent_rft.untrusted import run_untrusted as run_untrusted
