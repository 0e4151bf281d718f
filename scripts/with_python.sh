#!/bin/sh
# Runs a script with a Python that EGS supports (3.11 to 3.13): sh scripts/with_python.sh SCRIPT
# PYTHON=… in the environment chooses one; else the active `python3` if it is supported, then the newest found.
# A candidate must really run: a version manager's shim may exist and yet answer "command not found".
set -eu

describe='import sys; print("%d.%d" % sys.version_info[:2])'
complete='import ensurepip, venv'
found=""

script=$1
shift
if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.13 python3.12 python3.11
fi
for candidate in "$@"; do
    version=$("$candidate" -c "$describe" 2>/dev/null </dev/null) || continue
    case "$version" in
        3.11 | 3.12 | 3.13)
            if "$candidate" -c "$complete" 2>/dev/null; then
                exec "$candidate" "$script"
            fi
            found="$found $candidate is $version but lacks venv (on Debian and Ubuntu: install python$version-venv);"
            ;;
        *) found="$found $candidate is $version;" ;;
    esac
done

found="${found%;}"
echo "error: EGS needs Python 3.11, 3.12 or 3.13; found:${found:- no Python at all} (choose one with PYTHON=…)" >&2
exit 2
