#!/bin/sh
# Every check of `make lint`; all of them run even when one fails, so that one call shows all there is to mend.
set -u
status=0
for check in "ruff check ." "ruff format --check ." "mypy" "lint-imports"; do
    $check || status=1
done
exit $status
