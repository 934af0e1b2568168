"""The benchmark as a gate: few requests, and half as much again allowed, so that only real regressions fail it.

python bench/smoke.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from run import main

if __name__ == "__main__":
    sys.exit(main(["--quick", "--slack", "1.5"]))
