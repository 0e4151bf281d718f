"""YAML that every reader understands alike: PyYAML, and what Kubernetes and Kubeflow Pipelines read it with.

Text stays text for YAML 1.1, YAML 1.2 and Go (`sigs.k8s.io/yaml`, yaml.v2, yaml.v3): `y`, `n`, `1e3` and `0o17`, which
PyYAML writes bare, are a boolean and numbers there. They are quoted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

AMBIGUOUS = re.compile(
    r"""^(?: y | n | yes | no | on | off | true | false | null | ~ | << | =
        | [-+]?\.(?: inf | nan )
        | [-+]?0x[0-9a-f_]+ | [-+]?0o[0-7_]+ | [-+]?0b[01_]+
        | (?=.*[0-9]) [-+]?[0-9_]*\.?[0-9_]*(?: e[-+]?[0-9_]+ )?
        | [-+]?[0-9][0-9_]*(?: :[0-5]?[0-9] )+(?: \.[0-9_]* )?
        | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?: [t\ ].* )?
    )$""",
    re.IGNORECASE | re.VERBOSE | re.ASCII,
)
"""Text that some reader takes for something else when it is not quoted."""


def dump_like_kfp(documents: Iterable[Any]) -> str:
    """The text as kfp's own compiler writes it, so that what is compared line by line differs in what was changed."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=True))


def dump_objects(documents: Iterable[Any]) -> str:
    """Objects of Kubernetes: keys in their order, lines as they are."""
    return str(yaml.dump_all(documents, Dumper=_ObjectDumper, sort_keys=False, width=1000))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML is not typed
    """Not libyaml's: that breaks lines elsewhere than kfp does. No aliases: kfp's compiler writes none, and equal parts
    here may be one object."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True


class _ObjectDumper(_Dumper):
    """Texts of several lines as people write them."""


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_implicit_resolver("tag:egs,ambiguous", AMBIGUOUS, None)
_ObjectDumper.add_implicit_resolver("tag:egs,ambiguous", AMBIGUOUS, None)
_ObjectDumper.add_representer(str, _text)
