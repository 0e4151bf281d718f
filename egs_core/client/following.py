"""`egs watch follow`: a command of this user's, started here whenever a rule of the site server says `hook`. The server
starts nothing; it is asked again and again what its rules did."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from egs_core.client.http import SiteClient, Unreachable, trusted_owners, where_to_look
from egs_core.client.places import Address
from egs_core.client.watching import DoneView, Watching
from egs_core.errors import EgsError, InputError, listed

LOOK_S = 2.0
RULE, SUBJECT, TEXT = "EGS_WATCH_RULE", "EGS_WATCH_SUBJECT", "EGS_WATCH_TEXT"
Key = tuple[float, str, str]
NO_RULES = "the server has no rules: `egs serve --rules FILE`"


def follow_rules(address: Address, command: Sequence[str], rules: Collection[str], say: Callable[[str], None]) -> None:
    """Never returns by itself. rules: their names, none for all. Raises EgsError for a server without rules, or with
    none of this name, and for a command that cannot be started. InputError for one that is not there."""
    if shutil.which(command[0]) is None:
        raise InputError(command[0], "there is no such command", "name one that is in PATH, or by its path")
    client = SiteClient(address, trusted_owners())
    seen: frozenset[Key] | None = None
    has_told = False
    while True:
        try:
            found = client.watching()
            has_told = False
        except Unreachable as error:
            if not has_told:
                say(f"the server does not answer; waiting for it ({error}){where_to_look(error)}")
            has_told = True
        else:
            check(found, rules)
            if seen is None:
                hooks = [one.name for one in found.rules if "hook" in one.do and (not rules or one.name in rules)]
                say(f"{command[0]} is started whenever {listed(hooks)} fires, until Ctrl-C")
            known = frozenset(map(_key, found.done))
            for one in news(found, rules, known if seen is None else seen):  # what was before it began is no news
                start(command, one, say)
            seen = known
        time.sleep(LOOK_S)


def check(found: Watching, rules: Collection[str]) -> None:
    """Raises EgsError where nothing will ever be started."""
    if not found.is_on:
        raise EgsError(NO_RULES)
    named = [one for one in found.rules if not rules or one.name in rules]
    if missing := sorted(set(rules) - {one.name for one in found.rules}):
        raise EgsError(f"the server has no rule {missing[0]!r}: `egs watch` lists them")
    if not any("hook" in one.do for one in named):
        raise EgsError("none of these rules has `hook` among what it does: add it to its `do`")


def news(found: Watching, rules: Collection[str], seen: Collection[Key]) -> Iterator[DoneView]:
    """The hooks among what rules did that are not known yet, the oldest first; those of a dry run as well."""
    for one in found.done:
        if one.action == "hook" and (not rules or one.rule in rules) and _key(one) not in seen:
            yield one


def start(command: Sequence[str], one: DoneView, say: Callable[[str], None]) -> None:
    """To its end, one after the other: two of them never meet. A failure is said."""
    what = f"rule {one.rule}: {one.text}"
    if one.outcome != "done":
        say(f"{what}: a dry run, {command[0]} is not started")
        return
    say(f"{what}: {command[0]} is started")
    told = {RULE: one.rule, SUBJECT: one.subject, TEXT: one.text}
    try:
        code = subprocess.run(command, env=os.environ | told, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        raise EgsError(f"{command[0]}: {error.strerror}") from None
    if code:
        say(f"{command[0]} has ended with exit code {code}")


def _key(one: DoneView) -> Key:
    return one.at, one.rule, one.subject
