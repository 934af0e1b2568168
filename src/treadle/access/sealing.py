"""Authenticated encryption under the server's key, for reasoning that clients carry between turns.

AES-256-GCM; the token is `tdl1.` and the URL-safe base64 of a 12-byte nonce followed by the ciphertext. The key comes
from the configuration or is made once and kept beside the data, readable by its owner only.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from treadle.errors import InvalidRequest

_PREFIX = "tdl1."
_NONCE = 12


def load_key(configured: str, data_dir: Path) -> bytes:
    """The 32-byte key: derived from the configured secret, else read from or written to `secret.key`."""
    if configured:
        return sha256(configured.encode()).digest()
    path = data_dir / "secret.key"
    try:
        return _checked(path.read_bytes(), path)
    except FileNotFoundError:
        pass
    data_dir.mkdir(parents=True, exist_ok=True)
    fresh = data_dir / f"secret.key.{os.getpid()}.{os.urandom(4).hex()}"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(os.urandom(32))
    try:
        os.link(fresh, path)  # fails if another process was faster; then its key is the key
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return _checked(path.read_bytes(), path)


def _checked(key: bytes, path: Path) -> bytes:
    if len(key) != 32:
        raise ValueError(f"{path} must hold exactly 32 bytes")
    return key


class KeySealer:
    """The Sealer port under one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, text: str) -> str:
        nonce = os.urandom(_NONCE)
        sealed = nonce + self._cipher.encrypt(nonce, text.encode(), None)
        return _PREFIX + urlsafe_b64encode(sealed).decode()

    def unseal(self, sealed: str) -> str | None:
        if not sealed.startswith(_PREFIX):
            return None
        try:
            raw = urlsafe_b64decode(sealed[len(_PREFIX) :])
            return self._cipher.decrypt(raw[:_NONCE], raw[_NONCE:], None).decode()
        except (ValueError, InvalidTag):
            raise InvalidRequest(
                "The encrypted content could not be verified: it was changed, or sealed under another key.",
                param="input",
                code="invalid_encrypted_content",
            ) from None
