"""What the reference pages and `agent-rft explain` say: collected from where each thing is declared.

Nothing here is declared, and no route, job or model is touched.
"""
