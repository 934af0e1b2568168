"""Makes the virtual environment that the Makefile works in, with nothing but the standard library.

Usage: python3 scripts/make_venv.py FOLDER

Debian and Ubuntu split `venv` off from python3. Where it is missing, `virtualenv` is taken if there is one; else the
message says what to install. Exit status 1 means no environment was made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

OLDEST = (3, 11)


def interpreter(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def works(folder: Path) -> bool:
    """Whether `folder` holds an environment whose Python starts, is new enough and has pip."""
    python = interpreter(folder)
    if not python.exists():
        return False
    probe = f"import sys, pip; sys.exit(sys.version_info < {OLDEST})"
    return subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0


def attempt(command: list[str]) -> str:
    """Runs `command`; returns what it complained about, empty on success."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}")


def main(folder: Path) -> int:
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        print(f"Treadle needs Python 3.11 or newer; {sys.executable} is {found}.")
        print("Name a newer one:  make PYTHON=python3.12 ...")
        return 1
    if works(folder):
        return 0
    faults: list[str] = []
    for module, extra in (("venv", ["--clear"]), ("virtualenv", ["--clear"])):
        if find_spec(module) is None:
            faults.append(f"{module}: not installed for {sys.executable}")
            continue
        fault = attempt([sys.executable, "-m", module, *extra, str(folder)])
        if not fault and works(folder):
            return 0
        faults.append(f"{module}: {fault or 'made an environment without pip'}")
    print("Could not make a virtual environment:", *faults, sep="\n  ")
    print("On Debian or Ubuntu:            apt-get install python3-venv")
    print("With pip but without rights:    python3 -m pip install --user virtualenv")
    print("With another Python:            make PYTHON=/path/to/python3 ...")
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
