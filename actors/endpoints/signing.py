"""Signatures of requests, as Standard Webhooks has them: a receiver knows who sent a request, and that it is unchanged.

Signed is `id.timestamp.body`, with HMAC-SHA256; each of a job's secrets gives one signature, so that a secret can be
replaced while both are valid.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterator, Sequence

from pydantic import SecretStr

from agent_rft.errors import UserError
from agent_rft.spec.job import Reinforcement

PREFIX = "whsec_"
KEY_BYTES = range(24, 65)
"""The lengths of keys that Standard Webhooks allows."""


class Signer:
    """Signs the requests of a job."""

    def __init__(self, secrets: Sequence[SecretStr]) -> None:
        """Set up signing with all `secrets`.

        Raises:
            UserError: one is not a `whsec_` followed by base64 of 24 to 64 bytes.
        """
        self._keys = tuple(_key(secret) for secret in secrets)

    def headers(self, call_id: str, payload: bytes, now: float) -> dict[str, str]:
        """The headers of one attempt of a call, which is made at `now`, in seconds since the epoch."""
        message_id = call_id.replace(".", "%2E")  # the dot separates what is signed
        timestamp = str(int(now))
        signed = f"{message_id}.{timestamp}.".encode() + payload
        digests = (hmac.digest(key, signed, "sha256") for key in self._keys)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
        }


def signer_of(reinforcement: Reinforcement) -> Signer | None:
    """The signer of a job's calls; None if it has no secret.

    Raises:
        UserError: a secret is invalid.
    """
    secrets = _secrets(reinforcement)
    return Signer(secrets) if secrets else None


def secret_mistakes(reinforcement: Reinforcement) -> Iterator[str]:
    """What is wrong with a job's signing secrets, without showing them."""
    for secret in _secrets(reinforcement):
        try:
            _key(secret)
        except UserError as error:
            yield error.message


def _secrets(reinforcement: Reinforcement) -> tuple[SecretStr, ...]:
    given = reinforcement.signing_secret
    return given if isinstance(given, tuple) else () if given is None else (given,)


def _key(secret: SecretStr) -> bytes:
    text = secret.get_secret_value()
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(PREFIX) or len(key) not in KEY_BYTES:
        raise UserError(f"a signing secret must be {PREFIX} followed by base64 of 24 to 64 random bytes")
    return key
