"""What every actor needs: calls, channels, metrics, timing and the watchdog.

Nothing that knows endpoints, engines, graders or rollouts: this room imports no other room of `actors`.
"""
