"""Request signatures as in Standard Webhooks: they prove who sent a request, and that the request is unchanged.

A signature is the HMAC-SHA256 of `id.timestamp.body`. Each request has one signature per secret of the job, so that the
old and the new secret are both valid while a secret is replaced.
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
"""Key lengths that Standard Webhooks allows."""


class Signer:
    """Signer of a job's requests to its endpoints."""

    def __init__(self, secrets: Sequence[SecretStr]) -> None:
        """Create a signer that signs with each of the `secrets`.

        Raises:
            UserError: A secret is not `whsec_` followed by base64 of 24 to 64 bytes.
        """
        self._keys = tuple(_decode_key(secret) for secret in secrets)

    def sign(self, call_id: str, payload: bytes, now: float) -> dict[str, str]:
        """Return the signature headers for one attempt of a call at Unix time `now`."""
        message_id = call_id.replace(".", "%2E")  # the signed text separates its parts with dots
        timestamp = str(int(now))
        signed = f"{message_id}.{timestamp}.".encode() + payload
        digests = (hmac.digest(key, signed, "sha256") for key in self._keys)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
        }


def create_signer(reinforcement: Reinforcement) -> Signer | None:
    """Return the signer for a job's calls; None if the job has no signing secret.

    Raises:
        UserError: A secret is invalid.
    """
    secrets = _list_secrets(reinforcement)
    return Signer(secrets) if secrets else None


def find_secret_problems(reinforcement: Reinforcement) -> Iterator[str]:
    """Yield a message for each invalid signing secret of a job; messages do not contain secrets."""
    for secret in _list_secrets(reinforcement):
        try:
            _decode_key(secret)
        except UserError as error:
            yield error.message


def _list_secrets(reinforcement: Reinforcement) -> tuple[SecretStr, ...]:
    secret = reinforcement.signing_secret
    return secret if isinstance(secret, tuple) else () if secret is None else (secret,)


def _decode_key(secret: SecretStr) -> bytes:
    text = secret.get_secret_value()
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(PREFIX) or len(key) not in KEY_BYTES:
        raise UserError(f"a signing secret must be {PREFIX} followed by base64 of 24 to 64 random bytes")
    return key
