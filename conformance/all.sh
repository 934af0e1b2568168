#!/bin/sh
# Every judge, one after the other; ends with one line for each.
#   conformance/all.sh [OPEN_RESPONSES_CHECKOUT [OGX_SOURCE_ARCHIVE]]
# SKIP="codex node" leaves judges out.
set -u
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
summary="" status=0

judge() {
    name=$1
    shift
    case " ${SKIP:-} " in *" $name "*)
        summary="$summary\n  $name: left out"
        return ;;
    esac
    echo "== $name"
    if "$@"; then
        summary="$summary\n  $name: passed"
    else
        summary="$summary\n  $name: FAILED"
        status=1
    fi
}

judge python "$python" -m pytest -q "$here/../tests/conformance"
judge node "$here/run_node.sh"
judge codex "$here/run_codex.sh"
if [ -n "${1:-}" ]; then
    judge open-responses "$here/run_open_responses.sh" "$1"
else
    summary="$summary\n  open-responses: left out (give a checkout of its repository as argument)"
fi
if [ -n "${2:-}" ]; then
    judge ogx "$here/run_ogx.sh" "$2"
else
    summary="$summary\n  ogx: left out (give its unpacked source archive as second argument)"
fi
printf "\n== summary$summary\n"
exit $status
