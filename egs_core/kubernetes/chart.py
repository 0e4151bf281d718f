"""The objects of `manifests` as a Helm chart: the same source, with what differs from cluster to cluster as values.

Its templates know two words alone, `{{ .Values.NAME }}` and `{{ .Release.Namespace }}`, inside of quoted text: no
condition, loop or function. What decides which objects there are (--serve, --preempt, --preload) is decided when the
chart is written. Nothing here touches a file.
"""

from __future__ import annotations

import json
import re

import msgspec
import yaml

from egs_core import __version__
from egs_core.errors import InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.manifests import Installation, objects

NAMESPACE = "{{ .Release.Namespace }}"
NAME = "egs-controller"
TEXT = {"type": "string", "pattern": r"^[^\s'\"]*$"}
NOTES = f"""EGS orders the pods that have the label {names.WORKLOAD}, from the namespace {NAMESPACE}.

Before `helm uninstall`: `egs kubernetes leave --namespace {NAMESPACE}`. It opens every gate first; Helm does not, and
with the controller and its CronJob gone nobody would.
"""


class Value(msgspec.Struct, frozen=True):
    """What may be set when the chart is installed. field: of `Installation`; about: a comment for people."""

    name: str
    field: str
    about: str


VALUES = (
    Value("image", "image", "with egs-core[kubernetes], its entry point `egs`"),
    Value("egsUrl", "url", "the site server that orders the pods"),
    Value("egsTokenSecret", "token_secret", "a Secret in the release's namespace: its `token` is the controller's"),
    Value("egsCaConfigMap", "ca", "a ConfigMap in the release's namespace: the server's certificate is its `ca.crt`"),
    Value("egsQueue", "queue", "of namespaces that have no queue of their name at the site server"),
    Value("clusterName", "cluster_name", "what the site server's people call the cluster, and MultiKueue where it is"),
)


def files(of: Installation) -> dict[str, str]:
    """Text by path within the chart's folder. of: whose namespace is that of the release; what it leaves empty is no
    value. Raises InputError for a text that Helm would read as a template's."""
    values = {value: str(getattr(of, value.field)) for value in VALUES if getattr(of, value.field)}
    if any("{{" in text for text in (*values.values(), *of.arguments, *of.serve)):
        raise InputError("--helm", "'{{' in an argument would be a template's word", "write it in the chart")
    asked = {value.field: f"{{{{ .Values.{value.name} }}}}" for value in values}
    made = msgspec.structs.replace(of, namespace=NAMESPACE, **asked)
    found = {
        "Chart.yaml": _dumped(_about()),
        "values.yaml": "".join(f"# {value.about}\n{_dumped({value.name: text})}" for value, text in values.items()),
        "values.schema.json": json.dumps(_schema([value.name for value in values]), indent=2) + "\n",
        "templates/NOTES.txt": NOTES,
    }
    for number, one in enumerate(objects(made)):
        if one["kind"] != "Namespace":  # Helm's: --create-namespace
            where = one["metadata"].get("namespace", NAMESPACE)
            more = "" if where == NAMESPACE else f"-{where}"
            path = f"templates/{number:02d}-{one['kind'].lower()}-{one['metadata']['name']}{more}.yaml"
            found[path] = _dumped(one)
    return found


def _about() -> dict[str, str]:
    release = re.match(r"\d+\.\d+\.\d+", __version__)
    return {
        "apiVersion": "v2",
        "name": NAME,
        "description": "Opens the scheduling gates of pods in the order of the Elastic GPU Service.",
        "type": "application",
        "version": release[0] if release else "0.0.0",
        "appVersion": __version__,
        "kubeVersion": ">=1.30.0-0",
    }


def _schema(known: list[str]) -> dict[str, object]:
    """A mistyped value is an error of `helm install`."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {**dict.fromkeys(known, TEXT), "global": {"type": "object"}},
        "required": known,
        "additionalProperties": False,
    }


def _dumped(one: object) -> str:
    """Long lines are not folded: a template's word stays in one piece."""
    return str(yaml.safe_dump(one, sort_keys=False, width=1 << 30, allow_unicode=True))
