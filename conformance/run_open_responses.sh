#!/bin/sh
# The Open Responses compliance suite, from a checkout of its repository.
#   conformance/run_open_responses.sh DIR
# The checkout is only read: the suite runs in a copy, with the packages it needs beside it.
set -eu
suite=${1:?usage: run_open_responses.sh DIR, where DIR is a checkout of the Open Responses repository}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
tests=basic-response,assistant-phase,response-output-phase-schema,streaming-response
tests=$tests,system-prompt,tool-calling,image-input,multi-turn
tests=$tests,websocket-response,websocket-sequential-responses,websocket-continuation
tests=$tests,websocket-reconnect-store-false-recovery,websocket-previous-response-not-found
tests=$tests,websocket-failed-continuation-evicts-cache
tests=$tests,compact-response,compact-missing-model,websocket-compact-new-chain
[ -d "$here/open_responses/node_modules" ] || (cd "$here/open_responses" && npm install --no-audit --no-fund --silent)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R "$suite/bin" "$suite/src" "$suite/package.json" "$suite/tsconfig.json" "$copy/"
ln -s "$here/open_responses/node_modules" "$copy/node_modules"
export SUITE="$copy" TESTS="$tests" BUN="$here/open_responses/node_modules/.bin/bun"
"$python" "$here/with_server.py" "$python" "$here/open_responses_judge.py"
