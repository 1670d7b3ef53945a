"""`python -m agent_rft` is the command `agent-rft`."""

from agent_rft.cli.main import main

main()
