"""Where a server runs already, for commands that use one: TREADLE_URL and TREADLE_API_KEY. No settings of a server."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

URL_VARIABLE = "TREADLE_URL"
KEY_VARIABLE = "TREADLE_API_KEY"


class Remote(msgspec.Struct, frozen=True):
    """A server's address and a key for it; either may be empty."""

    url: str = ""
    key: str = ""


def remote_of(environ: Mapping[str, str] | None = None) -> Remote:
    """What the environment says."""
    environ = os.environ if environ is None else environ
    return Remote(environ.get(URL_VARIABLE, "").strip(), environ.get(KEY_VARIABLE, "").strip())
