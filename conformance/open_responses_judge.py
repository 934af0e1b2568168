"""Runs the compliance suite in `SUITE` against `TREADLE_URL` and prints one line for each of its `TESTS`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SECONDS = 120


def main() -> int:
    wanted = os.environ["TESTS"].split(",")
    command = [os.environ["BUN"], "run", "bin/compliance-test.ts", "--json", "--filter", os.environ["TESTS"]]
    command += ["--base-url", os.environ["TREADLE_URL"] + "/v1", "--api-key", "none"]
    command += ["--model", os.environ["TREADLE_MODEL"]]
    done = subprocess.run(command, cwd=os.environ["SUITE"], capture_output=True, timeout=SECONDS, check=False)
    try:
        results = {result["id"]: result for result in json.loads(done.stdout)["results"]}
    except (ValueError, KeyError):
        print(done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), sep="\n")
        print("Open Responses: the suite did not run")
        return 1
    passed = 0
    for name in wanted:
        result = results.get(name, {"status": "missing"})
        passed += result["status"] == "passed"
        reasons = " | ".join(result.get("errors") or ())[:400]
        print(f"PASS {name}" if result["status"] == "passed" else f"FAIL {name}: {result['status']} {reasons}")
    print(f"Open Responses: {passed} passed, {len(wanted) - passed} failed")
    return 0 if passed == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
