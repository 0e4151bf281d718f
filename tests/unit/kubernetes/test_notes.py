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


def test_a_long_line_is_said_whole_and_one_that_ends_otherwise_is_another() -> None:
    """What is wrong often stands at the end, as after an image of a long name; only what is longer than any of these
    is cut."""
    said: list[str] = []
    note = Notes(said.append).note
    for problem in ("x" * 5000 + " is lost", "x" * 5000 + " is lost", "x" * 5000 + " is gone"):
        note("image " + "y" * 3000, problem)
    assert said == [f"image {'y' * 3000}: {'x' * 5000} {how}" for how in ("is lost", "is gone")]
    note("image", "z" * 2 * LONGEST)
    assert len(said[-1]) == LONGEST
    assert said[-1].endswith("z…")


def test_texts_that_tenants_write_are_remembered_in_a_bounded_number_and_length() -> None:
    """Ever new names of claims and images, of any length, cost no more; what is heard all the time is said once."""
    said: list[str] = []
    notes = Notes(said.append)
    for number in range(3 * MOST):
        notes.note("volume kept", "lost")
        notes.note("x" * LONGEST + f" volume {number}", "y" * LONGEST + f" lost {number}")
    assert said.count("volume kept: lost") == 1
    assert len(said) == 3 * MOST + 1
    assert len(notes._said) == MOST
    assert {(len(about), len(problem)) for about, problem in notes._said.items()} == {(32, 32)}
