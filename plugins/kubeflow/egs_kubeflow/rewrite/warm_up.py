"""Runs in a container of a task's image, before the task: imports modules and reads files, so that its node has them in
memory. Whatever fails costs a line, never a run. The container has Python and nothing of EGS."""

import importlib
import json
import sys

wanted = json.loads(sys.argv[1])
for name in wanted["modules"]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(f"egs: module {name}: {error}", flush=True)
for path in wanted["files"]:
    try:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass
    except OSError as error:
        print(f"egs: file {path}: {error}", flush=True)
