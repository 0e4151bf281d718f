"""What EGS writes as YAML is read alike by PyYAML, by the core schema of YAML 1.2, and by Go's yaml.v2 and yaml.v3."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kfp import compiler

from egs_kubeflow.convert.documents import dump_documents, load_documents
from egs_kubeflow.yaml_text import dump_like_kfp, dump_objects
from tests.unit.kubeflow.made_site import made_up

WORDS = {
    "yaml.v2": "y Y yes Yes YES on On ON true True TRUE n N no No NO off Off OFF false False FALSE ~ null Null NULL "
    ".nan .NaN .NAN .inf .Inf .INF +.inf +.Inf +.INF -.inf -.Inf -.INF <<",
    "yaml.v3": "true True TRUE false False FALSE ~ null Null NULL .nan .NaN .NAN .inf .Inf .INF +.inf +.Inf +.INF "
    # and those of YAML 1.1 where a bool is wanted
    "-.inf -.Inf -.INF << y Y n N yes Yes YES no No NO on On ON off Off OFF",
    "core 1.2": "null Null NULL ~ true True TRUE false False FALSE .inf .Inf .INF +.inf -.inf .nan .NaN .NAN",
}
FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
DATE = r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}.*)?"


def go_integer(text: str) -> bool:
    """`strconv.ParseInt(text, 0, 64)`: with 0b, 0o, 0x or a leading 0 in front."""
    digits = text.lstrip("+-") if text[:1] in ("+", "-") and text[1:2] not in ("+", "-") else text
    patterns = (r"[1-9][0-9]*|0", r"0[bB][01]+", r"0[oO]?[0-7]+", r"0[xX][0-9a-fA-F]+")
    return any(re.fullmatch(pattern, digits) for pattern in patterns)


def is_no_text(reader: str, text: str) -> bool:
    """Whether a reader takes a bare scalar for something else, by the rules of its resolver (`resolve.go`)."""
    if text == "" or text in WORDS[reader].split():
        return True
    if reader == "core 1.2":
        return re.fullmatch(rf"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+|{FLOAT}", text) is not None
    plain = text.replace("_", "")
    is_number = go_integer(plain) or re.fullmatch(FLOAT, plain) is not None
    return text[0] in "+-.0123456789" and (is_number or re.fullmatch(DATE, text) is not None)


def bare(text: str) -> list[str]:
    """The scalars of a YAML text that stand there without quotes."""
    events = yaml.parse(text, Loader=yaml.SafeLoader)
    return [event.value for event in events if isinstance(event, yaml.ScalarEvent) and event.style is None]


NEAR = st.one_of(
    st.sampled_from([word for words in WORDS.values() for word in words.split()]),
    st.from_regex(r"\A[-+]?(0[xXoObB])?[0-9_]{1,4}(\.[0-9_]{0,2})?([eE][-+]?[0-9]{1,3})?\Z"),
    st.from_regex(r"\A[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ][0-9]{1,2}:[0-9]{2}:[0-9]{2}(Z|\.5)?)?\Z"),
    st.from_regex(r"\A[0-9]{1,8}[eE][0-9]{1,3}\Z"),
    st.text("yYnNoOeEfFtTrRuUsSaA01._-+:~ xX", min_size=1, max_size=6),
    st.text(max_size=10),
)


@pytest.mark.slow  # many examples
@settings(deadline=None, max_examples=400)
@given(texts=st.lists(NEAR, min_size=1, max_size=20, unique=True), dump=st.sampled_from([dump_like_kfp, dump_objects]))
def test_text_is_text_for_every_reader(texts: list[str], dump: Any) -> None:
    """As a key and as a value; and PyYAML reads what was written."""
    written = dump([{text: text for text in texts}])
    assert yaml.safe_load(written) == {text: text for text in texts}
    wrong = [(reader, text) for text in bare(written) for reader in WORDS if is_no_text(reader, text)]
    assert wrong == []


def test_numbers_and_words_stay_what_they_are() -> None:
    """Only text is quoted, and only where it must be."""
    assert dump_like_kfp(
        [{"a": 1, "b": 2.5, "c": True, "d": None, "e": "2.16.1", "f": "node", "g": "12345678e012"}]
    ) == ("a: 1\nb: 2.5\nc: true\nd: null\ne: 2.16.1\nf: node\ng: '12345678e012'\n")


@pytest.mark.parametrize(
    "text", ["y", "n", "1e3", "0o17", "1_000", "0b1", "12345678e012", "2026-01-02", "+.INF", "1:30"]
)
def test_what_go_reads_otherwise_is_quoted(text: str) -> None:
    """A node label `gpu: n` stays text in Kubernetes."""
    assert dump_objects([{"gpu": text}]) == f"gpu: '{text}'\n"


def test_a_pipeline_is_written_as_kfp_writes_it(tmp_path: Path) -> None:
    """Byte for byte, with its platform: what a rewrite changes is then all that differs in git."""
    path = tmp_path / "made-up.yaml"
    compiler.Compiler().compile(made_up, str(path))
    assert dump_documents(load_documents(path)) == path.read_text()
