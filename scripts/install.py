"""Installs this checkout into the environment of the running Python, and says in one line when the network is missing.

Usage: .venv/bin/python scripts/install.py '.[EXTRA,...]'

pip names every attempt and every package; whoever runs `make` for the first time needs only the reason.
"""

from __future__ import annotations

import subprocess
import sys

_UNREACHABLE = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "Failed to establish a new connection",
    "No route to host",
)


def reason(output: str) -> str:
    """One line for what pip said, if it is that the package index cannot be reached; else empty."""
    if not any(word in output for word in _UNREACHABLE):
        return ""
    return (
        "error: the package index cannot be reached. The first set-up needs a network connection, or a folder of "
        "wheels: PIP_NO_INDEX=1 PIP_FIND_LINKS=folder make ..."
    )


def main(requirement: str) -> int:
    print(f"installing {requirement} ...", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", requirement]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(reason(done.stdout) or done.stdout.strip(), file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
