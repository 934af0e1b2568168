"""Starts the processes of a measurement and reads what they cost. Linux only: figures come from /proc."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_START_SECONDS = 30.0


class Process:
    """A running process, watched from outside."""

    def __init__(self, command: list[str], env: dict[str, str], health: str) -> None:
        started = time.perf_counter()
        self._popen = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
        self.pid = self._popen.pid
        while True:
            try:
                urllib.request.urlopen(health, timeout=1)
                break
            except OSError:
                if self._popen.poll() is not None or time.perf_counter() - started > _START_SECONDS:
                    raise RuntimeError(f"{command} did not start") from None
                time.sleep(0.005)
        self.start_seconds = time.perf_counter() - started

    def cpu_ms(self) -> float:
        """CPU time so far of all threads, in milliseconds."""
        total = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                total += int(Path(f"/proc/{self.pid}/task/{task}/schedstat").read_text().split()[0])
            except OSError:
                continue
        return total / 1e6

    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")

    def stop(self) -> None:
        self._popen.send_signal(signal.SIGINT)
        try:
            self._popen.wait(15)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def upstream() -> Iterator[tuple[Process, str]]:
    """The scripted model server and its base URL."""
    port = free_port()
    command = [sys.executable, str(_ROOT / "bench" / "upstream.py"), "--port", str(port)]
    process = Process(command, dict(os.environ), f"http://127.0.0.1:{port}/v1/models")
    try:
        yield process, f"http://127.0.0.1:{port}/v1"
    finally:
        process.stop()


@contextmanager
def server(upstream_url: str, data: Path, settings: Mapping[str, str] | None = None) -> Iterator[tuple[Process, int]]:
    """A Treadle server over the scripted upstream, and its port. `settings`: further environment variables."""
    port = free_port()
    kept = {k: v for k, v in os.environ.items() if not k.endswith(("_API_KEY", "_URL"))}
    env = {**kept, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": upstream_url, "TREADLE_DATA_DIR": str(data)}
    env |= settings or {}
    command = [sys.executable, "-m", "treadle", "serve", "--port", str(port)]
    process = Process(command, env, f"http://127.0.0.1:{port}/v1/health")
    try:
        yield process, port
    finally:
        process.stop()
