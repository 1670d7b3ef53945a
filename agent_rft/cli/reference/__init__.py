"""What the reference pages and `agent-rft explain` say: collected from where each thing is declared.

Apart from the exit codes nothing is declared here, and no route, job or model is touched.
"""
