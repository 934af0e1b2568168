#!/bin/sh
# Codex CLI with its default settings over HTTP and WebSocket against a fresh server: text, and a tool loop that runs a
# command here.
# The npm package is large (over 400 MB) and installed once; CODEX=/path/to/codex uses another copy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
if [ -z "${CODEX:-}" ]; then
    [ -d "$here/codex/node_modules" ] || (cd "$here/codex" && npm install --no-audit --no-fund --silent)
    CODEX=$here/codex/node_modules/.bin/codex
fi
export CODEX
exec "$python" "$here/with_server.py" "$python" "$here/codex_judge.py"
