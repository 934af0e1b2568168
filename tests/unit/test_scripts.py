"""What `make` says when it cannot set up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_without_network_the_set_up_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["no-such-builder"]\nbuild-backend = "no.such"\n[project]\nname = "x"\n'
    )
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{reserved.getsockname()[1]}/simple"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        environ |= {"PIP_INDEX_URL": index, "PIP_RETRIES": "1", "PIP_CONFIG_FILE": os.devnull}
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "install.py"), "."],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    assert done.stderr.startswith("error: the package index cannot be reached.")
    assert done.stderr.count("\n") == 1


def test_make_serve_tells_the_program_that_make_called_it() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--always-make", "serve", "SERVE_ARGS=--port 9000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout.splitlines()[-1].endswith("treadle go --from-make --port 9000")
