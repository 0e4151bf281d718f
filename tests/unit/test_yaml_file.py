"""The reader of users' YAML files: as PyYAML reads it, with lines, and bounded whatever is in it."""

from __future__ import annotations

import pytest
import yaml

from egs_core.errors import InputError
from egs_core.yaml_file import read_documents, read_yaml

TEXT = """\
# first
a: {b: [1, 2.5, "3", yes, ~, 2024-01-02]}
c: |
  text
  more
d: &d [x, 'y z', !!str 5]
e: *d
---
- second
- {f: 0x10}
"""


def test_values_are_those_of_pyyaml() -> None:
    """Scalars of all kinds, nested values, aliases and a second document."""
    assert [value for value, _ in read_documents(TEXT, "p")] == list(yaml.safe_load_all(TEXT))


def test_every_value_has_its_line() -> None:
    """Keys and items by path; a path that is not there has the nearest one's."""
    (_, first), (_, second) = read_documents(TEXT, "p")
    assert (first["a",], first["a", "b"], first["a", "b", 2], first["e",]) == (2, 2, 2, 7)
    assert (second[()], second[1, "f"]) == (9, 10)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\n---\nb: 2\n", "p line 3: is no YAML: there is a second document"),
        ("a: &a [*a]", "p line 1: is no YAML: no value 'a' before its alias"),
        ("a: *b", "p line 1: is no YAML: no value 'b'"),
        ("? [a]\n: 1", "p line 1: a key that is no text"),
        ("a: 1\na: 2", "p line 2: 'a' is there twice"),
        ("a:\n  - !!python/object:os.system x", r"p line 2: a\[0\]: could not determine a constructor"),
        ("a: " + "9" * 5000, "p line 1: a: is too long for a number"),
        ("a: 2024-13-45", "p line 1: a: month must be in"),
        ("[" * 500_000, "p line 1: is nested too deeply"),
        ("x: &x [1]\n" + "x0: &x0 [*x, *x]\n" + "".join(f"x{n}: &x{n} [{f'*x{n - 1}, ' * 9}1]\n" for n in range(1, 9)),
         "aliases stand for too much"),
    ],
)  # fmt: skip
def test_bad_text_is_one_error(text: str, problem: str) -> None:
    """Each names the place and the line, and none takes long or brings the interpreter down."""
    with pytest.raises(InputError, match=problem):
        read_yaml(text, "p")


def test_an_empty_text_has_no_value() -> None:
    """Neither a document nor an error."""
    assert read_yaml("# nothing\n", "p") == (None, {})
