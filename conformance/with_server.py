"""Runs a judge against a fresh Treadle on a free loopback port, with the scripted model server behind it.

python conformance/with_server.py COMMAND [ARGUMENT...]

The command finds `TREADLE_URL` (without /v1) and `TREADLE_MODEL` in its environment; its exit status is ours. Both
servers and the data folder are gone afterwards.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripted_backend import MODEL, answer

from treadle.testing import ScriptedUpstream

START_SECONDS = 20.0
STOP_SECONDS = 10.0


@contextmanager
def treadle(upstream_url: str, data_dir: str, settings: str = "") -> Iterator[str]:
    """A server process; the value is its address. RuntimeError with its output if it does not start.

    `settings` is the text of a configuration file; without it the upstream is found in the environment.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": data_dir,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TREADLE_DATA_DIR": data_dir,
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": upstream_url,
    }
    log_path = Path(data_dir) / "server.log"
    with log_path.open("wb") as log:
        command = [sys.executable, "-m", "treadle", "serve", "--port", str(port)]
        if settings:
            file = Path(data_dir) / "treadle.yaml"
            file.write_text(settings, encoding="utf-8")
            command += ["--config", str(file)]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        if not _healthy(url, process):
            raise RuntimeError(f"the server did not start:\n{log_path.read_text(errors='replace')}")
        yield url
        if process.poll() is not None:
            raise RuntimeError(f"the server ended during the judge:\n{log_path.read_text(errors='replace')}")
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(url: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v1/health", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def main() -> int:
    command = sys.argv[1:]
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="treadle-conformance-") as data_dir:
        with ScriptedUpstream(default=answer, models=[MODEL]) as upstream, treadle(upstream.url, data_dir) as url:
            judge_env = {
                **os.environ,
                "TREADLE_URL": url,
                "TREADLE_MODEL": f"openai/{MODEL}",
                "NO_PROXY": "127.0.0.1,localhost",
                "no_proxy": "127.0.0.1,localhost",
            }
            status = subprocess.run(command, env=judge_env, check=False).returncode
        for fault in upstream.faults:
            print(f"the scripted model server failed: {fault!r}", file=sys.stderr)
        return status or bool(upstream.faults)


if __name__ == "__main__":
    sys.exit(main())
