"""OGX's own integration tests against a fresh Treadle, with OGX's recordings behind it.

python conformance/ogx_judge.py DIR [PYTEST ARGUMENT...]

DIR is the unpacked source archive; `OGX_PYTHON` is an interpreter with OGX and its test requirements. A test that
fails passes here if `ogx_expected.md` names it, with a reason; one that is named there and passes is reported too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from ogx_backend import DIMENSIONS, MODELS, Recordings
from with_server import treadle

from treadle.ports import SearchResult
from treadle.testing import ScriptedUpstream
from treadle.testing.web import FakeWeb

HERE = Path(__file__).parent
SUITES = ("tests/integration/responses", "tests/integration/conversations", "tests/integration/batches")
VECTORS = tuple(
    f"tests/integration/vector_io/test_{name}.py" for name in ("openai_vector_stores", "vector_io", "vector_io_filters")
)
"""What they find depends on the embedding model, so they run with the embedded one."""
EMBEDDED = ("local/all-minilm-l6-v2", 384)
CONNECTOR = "http://localhost:5199/sse"
"""Where the test of connectors starts its server."""

_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) tests/integration/(\S+?)(?: - .*)?$", re.MULTILINE)
_NAMED = re.compile(r"^\| `([^`]+)` \| (Sometimes)?", re.MULTILINE)


def settings(upstream_url: str, search_url: str) -> str:
    """The server's configuration: as little as the tests demand."""
    return f"""
models: {{openai: {{kind: openai_chat, url: "{upstream_url}"}}}}
outgoing: {{allow: [127.0.0.1, localhost]}}
connectors: [{{connector_id: test-mcp-connector, url: "{CONNECTOR}"}}]
mcp: {{untrusted: false}}
knowledge: {{wait_seconds: 30}}
web_search: {{kind: searxng, url: "{search_url}"}}
"""


def run(archive: Path, url: str, arguments: list[str]) -> str:
    """What pytest prints; without arguments, for all suites."""
    if not arguments:
        return run(archive, url, list(SUITES)) + run(archive, url, list(VECTORS))
    vectors = any("vector_io" in argument for argument in arguments)
    embedding, dimensions = EMBEDDED if vectors else (f"openai/{MODELS[-1]}", DIMENSIONS)
    model = f"openai/{MODELS[0]}"
    command = [os.environ["OGX_PYTHON"], "-m", "pytest", "-p", "no:cacheprovider", "--timeout=40", "-rA", "--tb=short"]
    command += [f"--stack-config={url}", "--inference-mode=live", f"--text-model={model}", f"--vision-model={model}"]
    command += [f"--embedding-model={embedding}", f"--embedding-dimension={dimensions}", "-p", "ogx_plugin"]
    command += arguments
    paths = os.pathsep.join([str(archive), str(HERE), os.environ.get("OGX_PYTHONPATH", "")]).rstrip(os.pathsep)
    env = {**os.environ, "PYTHONPATH": paths, "OGX_TEST_INFERENCE_MODE": "live", "OPENAI_API_KEY": "none"}
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = "127.0.0.1,localhost"
    done = subprocess.run(command, cwd=archive, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode(errors="replace")


def verdict(printed: str, expected: dict[str, str]) -> int:
    """Prints what matters of the outcomes; 0 only if there is no failure that is not expected, and no surprise."""
    outcomes = {name: outcome for outcome, name in _OUTCOME.findall(printed) if outcome != "SKIPPED"}
    fell = {name for name, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")}
    named = {name: next((one for one in expected if _covers(one, name)), None) for name in outcomes}
    problems = sorted(name for name in fell if named[name] is None)
    surprises = sorted(one for one in set(named.values()) - {named[name] for name in fell} if one and not expected[one])
    for name in problems:
        print(f"FAIL {name}")
    for one in surprises:
        print(f"PASS {one}: passes now, ogx_expected.md says it cannot")
    counts = Counter(outcomes.values())
    print(
        f"OGX: {counts['PASSED']} passed, {len(problems)} failed, {len(fell) - len(problems)} failed as expected"
        f"{f', {len(surprises)} passed against expectation' if surprises else ''}"
    )
    if not counts["PASSED"]:
        print(printed[-2000:], file=sys.stderr)
    return 1 if problems or surprises or not counts["PASSED"] else 0


def _covers(entry: str, name: str) -> bool:
    """Whether an entry of the list means a test: by its whole name, or without the parameters for all of them."""
    return entry == name or name.startswith(f"{entry}[")


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    archive = Path(sys.argv[1]).resolve()
    recordings = Recordings(archive)
    expected = dict(_NAMED.findall((HERE / "ogx_expected.md").read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory(prefix="treadle-ogx-") as data_dir:
        upstream = ScriptedUpstream(default=recordings, models=MODELS, dimensions=DIMENSIONS)
        with upstream, FakeWeb() as web:
            web.results = [SearchResult("https://www.example.org/", "An example", "What a search may find.")]
            with treadle(upstream.url, data_dir, settings(upstream.url, web.origin)) as url:
                printed = run(archive, url, sys.argv[2:])
    if log := os.environ.get("OGX_LOG"):
        Path(log).write_text(printed, encoding="utf-8")
    print(f"{recordings.hits} model requests answered from recordings, {recordings.misses} by rules")
    return verdict(printed, expected)


if __name__ == "__main__":
    sys.exit(main())
