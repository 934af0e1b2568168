"""The real command in a process of its own, on pipes or on a terminal, for tests of `ingest` and `search`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from treadle.testing.server import settings_for

PATIENCE = 30.0


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def has(self, status: str) -> list[str]:
        """The paths of this status, in JSON."""
        return sorted(file["path"] for file in self.json["files"] if file["status"] == status)


@dataclass
class Shell:
    """Runs `treadle` in `folder`. The environment configures nothing but what `variables` say."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, *arguments: str | bytes, code: int | None = 0, program: str = "") -> Done:
        """The command run to its end. `program` is Python that runs before it, in the same process."""
        done = subprocess.run(
            self._command(program, arguments),
            capture_output=True,
            timeout=PATIENCE,
            cwd=self.folder,
            env=self.environment(),
            check=False,
        )
        found = Done(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert code is None or found.code == code, found
        assert "Traceback" not in found.err, found.err
        return found

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command("", arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self.environment(),
        )

    def on_terminal(self, *arguments: str, columns: int = 80, told: Callable[[bytes], bool] | None = None) -> Done:
        """All that a terminal of that width is sent, in `err`. Ctrl-C is typed once `told` says so of it."""
        pty = pytest.importorskip("pty", reason="there are no such terminals here")
        import fcntl
        import struct
        import termios

        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        running = subprocess.Popen(
            self._command("", arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.folder,
            env=self.environment(),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        sent, until = b"", time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < until, sent
            try:
                part = os.read(ours, 65_536)
            except OSError:  # how Linux says that nobody has the other end any more
                break
            if not part:
                break
            sent += part
            if told is not None and told(sent):
                told = None
                os.write(ours, b"\x03")
        os.close(ours)
        code = running.wait(PATIENCE)
        return Done(code, "", sent.decode().replace("\r\n", "\n"))

    def environment(self) -> dict[str, str]:
        kept = ("PATH", "HOME", "TMPDIR", "PYTHONPATH", "LANG", "LC_ALL", "SYSTEMROOT")
        return {name: os.environ[name] for name in kept if name in os.environ} | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONUTF8": "1",
            **self.variables,
        }

    def _command(self, program: str, arguments: tuple[str | bytes, ...]) -> list[str | bytes]:
        if not program:
            return [sys.executable, "-m", "treadle", *arguments]
        code = f"{program}\nimport sys\nfrom treadle.cli.main import main\nsys.exit(main(sys.argv[1:]))"
        return [sys.executable, "-c", code, *arguments]


def interrupted(running: subprocess.Popen[bytes]) -> Done:
    """What it says after Ctrl-C."""
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)
    return Done(running.returncode, out.decode(), err.decode())


def at(url: str, folder: Path) -> Shell:
    """A shell whose commands use the server at `url`."""
    return Shell(folder, {"TREADLE_URL": url})


def alone(data: Path, folder: Path, *extra: str) -> Shell:
    """A shell without a server: embedded models, and the data in `data`."""
    data.mkdir(exist_ok=True)
    settings_for(data, "http://127.0.0.1:1/v1", "server: {port: 0}", *extra)
    return Shell(folder, {"TREADLE_CONFIG": str(data / "treadle.yaml")})
