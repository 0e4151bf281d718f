"""What the controller says of what is wrong: once, and with bounded memory."""

from __future__ import annotations

from egs_core.kubernetes.notes import LONGEST, MOST, Notes


def test_each_is_said_once_until_it_is_another_or_was_well() -> None:
    """As a controller looks each second, and says what it sees each time."""
    said: list[str] = []
    note = Notes(said.append).note
    for problem in ("lost", "lost", "", "", "lost", "gone", "lost"):
        note("volume a/b", problem)
    assert said == [f"volume a/b: {problem}" for problem in ("lost", "lost", "gone", "lost")]


def test_texts_that_tenants_write_are_remembered_in_a_bounded_number_and_length() -> None:
    """Ever new names of claims and images, of any length, cost no more; what is heard all the time is said once."""
    said: list[str] = []
    notes = Notes(said.append)
    for number in range(3 * MOST):
        notes.note("volume kept", "lost")
        notes.note(f"volume {number} " + "x" * 10 * LONGEST, "lost " + "y" * 10 * LONGEST)
    assert said.count("volume kept: lost") == 1
    assert len(said) == 3 * MOST + 1
    assert len(notes._said) == MOST
    assert max(len(about) + len(problem) for about, problem in notes._said.items()) <= 2 * LONGEST
