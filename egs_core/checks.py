"""What `egs doctor` shows of an adapter: its framework's version and private API. Standard library and msgspec."""

from __future__ import annotations

import msgspec

from egs_core.compat import Features


class Check(msgspec.Struct, frozen=True):
    """One line of `egs doctor`. A check that is not ok says in `detail` what to do about it."""

    name: str
    ok: bool
    detail: str = ""


def version_check(
    framework: str, found: str, known: tuple[str, ...], features: Features, instead: str = "EGS only observes"
) -> Check:
    """Whether EGS was tried with this version of a framework. instead: what happens with another one."""
    if features.knows(found, known):
        return Check(framework, True, found)
    return Check(framework, False, f"{found} is not a version EGS was tried with ({', '.join(known)}): {instead}")


def private_api_checks(features: Features) -> list[Check]:
    """One line where all of an adapter's features are available; else one for each that is not, with what is lost."""
    missing = features.missing()
    if not missing:
        return [Check("private API", True, f"all {len(features)} uses found")]
    return [Check(f"private API: {feature.name}", False, feature.lost) for feature in missing]
