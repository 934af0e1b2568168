#!/bin/sh
# OGX's own integration tests of responses (with MCP and file search), conversations and vector stores, from the unpacked
# source archive of OGX 1.5.0.
#   conformance/run_ogx.sh DIR [PYTEST ARGUMENT...]
# The archive is only read. Its tests need Python 3.12 and OGX itself on the client's side: both come from OGX_PYTHON,
# or from an environment that is made once from PYTHON312 (by default python3.12).
set -eu
archive=${1:?usage: run_ogx.sh DIR [PYTEST ARGUMENT...], where DIR is the unpacked source archive of OGX 1.5.0}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
if [ -z "${OGX_PYTHON:-}" ]; then
    if [ ! -x "$here/ogx/.venv/bin/pytest" ]; then
        "${PYTHON312:-python3.12}" -m venv "$here/ogx/.venv"
        "$here/ogx/.venv/bin/pip" install -q -r "$here/ogx/requirements.txt"
    fi
    OGX_PYTHON=$here/ogx/.venv/bin/python
fi
export OGX_PYTHON
exec "$python" "$here/ogx_judge.py" "$@"
