#!/bin/sh
# All checks of `make lint`. Later checks run even if an earlier one fails, so that one call shows every problem.
set -u
status=0
for check in "ruff check ." "ruff format --check ." "mypy" "lint-imports"; do
    $check || status=1
done
exit $status
