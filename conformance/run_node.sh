#!/bin/sh
# openai-node and Vercel's AI SDK against a fresh server. Needs node 20 or newer; npm packages are installed once.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -d "$here/node/node_modules" ] || (cd "$here/node" && npm install --no-audit --no-fund --silent)
status=0
for judge in openai_node ai_sdk; do
    "$python" "$here/with_server.py" node "$here/node/$judge.mjs" || status=1
done
exit $status
