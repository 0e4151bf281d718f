"""Features of a framework's private API as data: what is there, what is left out, what a user is told."""

from __future__ import annotations

import warnings

import pytest

from egs_core.adapter import Check, private_api_checks
from egs_core.compat import Feature, Features, is_known_version

VARIABLE = "EGS_TEST_WITHOUT"


def broken() -> bool:
    raise AttributeError("the module has moved")


FEATURES = Features(
    VARIABLE,
    Feature("ready", "ObjectRef._on_ready", lambda: True, "one thread in ray.wait", "ends are found by polling"),
    Feature("kv", "internal_kv", lambda: True, "a file", "the journal does not survive its node"),
    Feature("moved", "elsewhere", broken, "none", "nothing is ordered"),
)


def test_a_probe_that_fails_means_that_the_feature_is_missing() -> None:
    """Neither False nor an exception of a probe is an error: the caller takes its fallback."""
    assert [FEATURES.has(feature.name) for feature in FEATURES] == [True, True, False]
    assert [feature.name for feature in FEATURES.missing()] == ["moved"]


def test_a_probe_that_only_warns_does_not_fail() -> None:
    """Where warnings are errors, as under `python -W error`, an API that is deprecated is still there; a probe that
    fails behind its warning is missing all the same, and what warns elsewhere is an error as before."""

    def deprecated() -> bool:
        warnings.warn("use the other one", DeprecationWarning, stacklevel=2)
        return True

    def deprecated_and_gone() -> bool:
        return deprecated() and broken()

    old = Features(VARIABLE, Feature("old", "", deprecated, "", ""), Feature("gone", "", deprecated_and_gone, "", ""))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [feature.name for feature in old.missing()] == ["gone"]
        with pytest.raises(DeprecationWarning):
            deprecated()


def test_a_feature_can_be_left_out_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is read at each use, blanks do not matter."""
    monkeypatch.setenv(VARIABLE, " kv , moved ")
    assert [FEATURES.has(feature.name) for feature in FEATURES] == [True, False, False]
    monkeypatch.delenv(VARIABLE)
    assert FEATURES.has("kv")


def test_doctor_says_what_is_lost() -> None:
    """One line where all is found, else one for each missing feature."""
    assert private_api_checks(FEATURES) == [Check("private API: moved", False, "nothing is ordered")]
    whole = Features(VARIABLE, FEATURES["ready"], FEATURES["kv"])
    assert private_api_checks(whole) == [Check("private API", True, "all 2 uses found")]


def test_a_version_can_be_made_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests, and for users of a build that says a version and is another."""
    assert FEATURES.knows("2.60.1", ("2.60",))
    monkeypatch.setenv(VARIABLE, "version")
    assert not FEATURES.knows("2.60.1", ("2.60",))


def test_two_features_of_one_name_are_a_mistake() -> None:
    """A table that hides one of its entries is refused when it is made."""
    with pytest.raises(ValueError, match="two features of one name"):
        Features(VARIABLE, FEATURES["kv"], FEATURES["kv"])


@pytest.mark.parametrize(
    ("found", "known"), [("2.60.1", True), ("2.60", True), ("2.6", False), ("2.600.1", False), ("nightly", False)]
)
def test_a_version_is_known_by_its_minor_number(found: str, known: bool) -> None:
    """2.6 is not 2.60, and what is no version is unknown."""
    assert is_known_version(found, ("2.59", "2.60")) is known
