"""What an installation of the core takes on disk, without the extras `knowledge` and `local`.

    python bench/install_size.py

Makes a virtual environment in a temporary folder, installs this tree into it, and adds up the files; pip itself, which
every environment has, is not counted. Exit code 1 over the budget.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

BUDGET_MB = 130
_ROOT = Path(__file__).parent.parent


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        before = size_mb(Path(folder))
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(_ROOT)], check=True)
        total = size_mb(Path(folder)) - before
        shown = [p for p in Path(folder).glob("lib/python*/site-packages/*") if p.is_dir()]
        for entry in sorted(shown, key=size_mb, reverse=True)[:8]:
            print(f"  {entry.name:30} {size_mb(entry):6.1f} MB")
    print(f"core install {total:.0f} MB, budget {BUDGET_MB} MB  {'ok' if total <= BUDGET_MB else 'OVER'}")
    return 0 if total <= BUDGET_MB else 1


if __name__ == "__main__":
    sys.exit(main())
