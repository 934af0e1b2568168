"""Starts the processes of a measurement and reads what they cost. Linux only: figures come from /proc."""

from __future__ import annotations

import contextlib
import os
import re
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

    def __init__(self, command: list[str], env: dict[str, str], health: str, patience: float = _START_SECONDS) -> None:
        """Waits until `health` answers, for at most `patience` seconds."""
        started = time.perf_counter()
        self._popen = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
        self.pid = self._popen.pid
        while True:
            try:
                urllib.request.urlopen(health, timeout=1)
                break
            except OSError:
                if self._popen.poll() is not None or time.perf_counter() - started > patience:
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
        """Ends it, and what it leaves behind."""
        self._popen.send_signal(signal.SIGINT)
        try:
            self._popen.wait(15)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Family:
    """A running process with all that it started, by its id."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def cpu_seconds(self) -> float:
        """CPU time so far, that of children which have ended included. Ticks of 10 ms."""
        ticks = 0
        for pid in self._members():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """What is shared among processes counts once."""
        total = 0
        for pid in self._members():
            try:
                found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            except OSError:
                continue
            total += int(found.group(1)) if found else 0
        return total / 1024

    def _members(self) -> list[int]:
        found = [self._pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    found += map(int, task.read_text().split())
                except OSError:
                    continue
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def upstream(port: int = 0) -> Iterator[tuple[Process, str]]:
    """The scripted model server and its base URL. `port` 0: one that is free."""
    port = port or free_port()
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
