"""What one server consists of: its state, its services and its listening socket.

How a server is deployed is in `serve.deployment` and `serve.local`.
"""
