"""Manifests: each against the official schema of its kind, what they say, and how a folder of them is kept."""

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import celpy
import jsonschema
import kubernetes_validate
import pytest
import yaml
from celpy.adapter import json_to_cel
from celpy.celtypes import DoubleType, IntType
from kfp import compiler

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.kubernetes.objects import quantity as amount_of
from egs_kubeflow.convert.documents import documents_of
from egs_kubeflow.manifests.command import uncounted_memory
from egs_kubeflow.manifests.files import files_of, write_files
from egs_kubeflow.manifests.plan import plan_preloads
from egs_kubeflow.manifests.site import quantity
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import Profile, parse_profile
from tests.unit.kubeflow.made_site import SITE, SITE_TEXT, made_up
from tests.unit.kubeflow.made_unwanted import unwanted

KUBERNETES = "1.36"
CRDS = Path(os.environ.get("EGS_KUEUE_CRDS") or Path(os.environ.get("EGS_DATA", "")) / "kueue-crds")
"""Kueue's own `config/components/crd/bases`, of a release: not ours to keep here."""

Object = dict[str, Any]


def made(profile: Profile = SITE) -> dict[str, str]:
    """The files for the made-up pipeline."""
    written = rewrite(documents_of(made_up), profile)
    return files_of(profile, plan_preloads(written.documents, profile.preload, None, "pipeline"))


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return made()


@pytest.fixture(scope="module")
def objects(files: dict[str, str]) -> list[Object]:
    """All objects of Kubernetes and Kueue; the plan and kustomizations are none."""
    found = [one for text in files.values() for one in yaml.safe_load_all(text)]
    return [one for one in found if not one.get("apiVersion", "kustomize").startswith("kustomize")]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """Objects by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def validate(one: Object) -> None:
    """Strictly against Kubernetes' schema of the object's kind."""
    kubernetes_validate.validate(one, KUBERNETES, strict=True)


def changed(one: Object, change: Callable[[Object], Any]) -> Object:
    """A copy in which something is different."""
    other = copy.deepcopy(one)
    change(other)
    return other


def test_every_object_is_valid_by_the_official_schema_of_its_kind(objects: list[Object]) -> None:
    """Kubernetes' own, of every kind that is written; a field that is not there, or of another type, is refused."""
    ours = [one for one in objects if not one["apiVersion"].startswith("kueue")]
    assert {one["kind"] for one in ours} == {
        *("ClusterRole", "ClusterRoleBinding", "ConfigMap", "Namespace", "Pod", "PriorityClass"),
        *("ResourceClaimTemplate", "Role", "RoleBinding", "ServiceAccount"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
    for one in ours:
        validate(one)
        for wrong in (lambda o: o.update(unknown=1), lambda o: o["metadata"].update(labels={"a": 1})):
            with pytest.raises(kubernetes_validate.ValidationError):
                validate(changed(one, wrong))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Pod", lambda o: o["spec"].update(priority="high")),
        ("Pod", lambda o: o["spec"]["containers"][0]["securityContext"].update(capabilites={})),
        ("PriorityClass", lambda o: o.update(value="-100")),
        ("ResourceClaimTemplate", lambda o: o["spec"]["spec"]["devices"]["requests"][0].update(deviceClassName="a")),
        ("ValidatingAdmissionPolicy", lambda o: o["spec"]["validations"][0].pop("expression")),
        ("Role", lambda o: o["rules"][0].update(verbs="get")),
    ],
)
def test_a_wrong_field_deep_inside_is_refused(
    objects: list[Object], kind: str, change: Callable[[Object], Any]
) -> None:
    """The check is strict at every depth, so that a valid object says something."""
    one = next(one for one in objects if one["kind"] == kind)
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(changed(one, change))


def crd_validator(kind: str, version: str) -> Any:
    """Kueue's schema of a kind and version; fields that it does not name are errors, as the API server drops them."""
    for path in CRDS.glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        if spec["names"]["kind"] == kind:
            (schema,) = [one["schema"]["openAPIV3Schema"] for one in spec["versions"] if one["name"] == version]
            return jsonschema.Draft202012Validator(strict(schema))
    raise AssertionError(f"no schema of {kind}")


def strict(schema: Any) -> Any:
    """The schema with `additionalProperties: false` wherever properties are named."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    return found | {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else found


@pytest.mark.skipif(not CRDS.is_dir(), reason="neither EGS_KUEUE_CRDS nor EGS_DATA names a folder with Kueue's CRDs")
def test_what_is_written_for_kueue_is_valid_by_its_crds(objects: list[Object]) -> None:
    """Every kind, strictly, in the version that Kueue stores; a field too many or of another type is refused."""
    ours = [one for one in objects if one["apiVersion"].startswith("kueue")]
    for one in ours:
        check = crd_validator(one["kind"], one["apiVersion"].split("/")[1])
        check.validate(one)
        for wrong in (lambda o: o.update(unknown=1), lambda o: o.update(spec=1, value="1")):
            assert not check.is_valid(changed(one, wrong))
    queue = next(one for one in ours if one["kind"] == "ClusterQueue")
    check = crd_validator("ClusterQueue", "v1beta2")
    assert not check.is_valid(changed(queue, lambda o: o["spec"].update(cohort="all")))
    assert not check.is_valid(changed(queue, lambda o: o["spec"]["preemption"].update(withinClusterQueue="Always")))


def test_a_site_becomes_flavors_queues_and_classes(objects: list[Object]) -> None:
    """Flavors of the pools that have a quota; what a pool lacks is 0; nothing preempts; what exists is not written."""
    flavors = of_kind(objects, "ResourceFlavor")
    assert flavors["a100"]["spec"] == {
        "nodeLabels": {"pool": "a100", "zone": "b"},
        "nodeTaints": [
            {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
            {"key": "team", "value": "a", "effect": "NoSchedule"},
        ],
    }
    assert flavors["cpu"]["spec"] == {"nodeLabels": {"pool": "cpu"}}
    queues = of_kind(objects, "ClusterQueue")
    (group,) = queues["shared"]["spec"]["resourceGroups"]
    assert group["coveredResources"] == ["cpu", "memory", "nvidia.com/gpu"]
    amounts = {one["name"]: [part["nominalQuota"] for part in one["resources"]] for one in group["flavors"]}
    assert amounts == {"cpu": ["31500m", "1Gi", "0"], "a100": ["48", "100", "8"]}
    assert queues["devices"]["spec"]["resourceGroups"][0]["coveredResources"] == ["google.com/tpu"]
    assert queues["shared"]["spec"]["preemption"] == {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}
    assert queues["shared"]["spec"]["cohortName"] == "all"
    local = of_kind(objects, "LocalQueue")
    assert {name: (one["metadata"]["namespace"], one["spec"]) for name, one in local.items()} == {
        "team": ("team-a", {"clusterQueue": "shared"})
    }
    assert {name: one["value"] for name, one in of_kind(objects, "WorkloadPriorityClass").items()} == {"urgent": 1000}
    assert {one["apiVersion"] for one in objects if "kueue" in one["apiVersion"]} == {"kueue.x-k8s.io/v1beta2"}


def test_nodes_and_devices_are_those_of_the_profile(objects: list[Object]) -> None:
    """What a pool's nodes must be like, as data; a claim for each number of devices that a node has."""
    entries = of_kind(objects, "ConfigMap")["egs-nodes"]["data"]
    assert yaml.safe_load(entries["a100"]) == {
        "selector": "pool=a100,zone=b",
        "labels": {"pool": "a100", "zone": "b"},
        "taints": [
            {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
            {"key": "team", "value": "a", "effect": "NoSchedule"},
            {"key": "soft", "effect": "PreferNoSchedule"},
        ],
        "allocatable_at_least": {"nvidia.com/gpu": "2"},
    }
    assert yaml.safe_load(entries["cpu"])["allocatable_at_least"] == {"cpu": "15500m", "memory": "60Gi"}
    claims = of_kind(objects, "ResourceClaimTemplate")
    assert {name: one["spec"]["spec"]["devices"]["requests"][0]["exactly"] for name, one in claims.items()} == {
        f"a100-x{count}": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count}
        for count in (1, 2)
    }
    assert {quantity(n) for n in (0, 0.25, 3 * 2**40, 7 * 2**20 + 1)} == {"0", "250m", "3Ti", "7340033"}


def test_a_profile_that_asks_for_nothing_gets_nothing_of_kueue_or_dra() -> None:
    """Only who may preload, and at what priority."""
    files = made(parse_profile(""" {pools: [{name: gpu, selector: {a: b}, accelerator: nvidia.com/gpu}]} """))
    assert [path for path in files if path.startswith("site/")] == [
        "site/access.yaml",
        "site/nodes.yaml",
        "site/preload-class.yaml",
        "site/kustomization.yaml",
    ]
    granted = [one["rules"] for one in yaml.safe_load_all(files["site/access.yaml"]) if "rules" in one]
    assert "kueue" not in json.dumps(granted)
    assert "resource.k8s.io" not in files["site/access.yaml"]


def test_a_preload_pod_holds_no_gpu_and_makes_way_for_everything(objects: list[Object], files: dict[str, str]) -> None:
    """The task's image on the task's nodes; below the autoscaler's cutoff; a deadline; nothing that needs trust."""
    (preload,) = [one for one in objects if one["kind"] == "PriorityClass"]
    assert preload["value"] < -10
    assert preload["preemptionPolicy"] == "Never"
    pod = yaml.safe_load(files["pipelines/made-up/preload-train.yaml"])
    spec = pod["spec"]
    assert spec["priorityClassName"] == preload["metadata"]["name"]
    assert (spec["activeDeadlineSeconds"], spec["restartPolicy"]) == (600, "Never")
    assert spec["nodeSelector"] == {"pool": "a100", "zone": "b"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    (container,) = spec["containers"]
    assert container["image"] == "trainer:1"
    assert set(container["resources"]["limits"]) == {"cpu", "memory"}
    assert json.loads(container["command"][3]) == {"modules": ["torch"], "files": []}
    assert yaml.safe_load(files["pipelines/made-up/preload-serve.yaml"])["spec"]["containers"][0]["command"] == ["true"]


def test_a_sidecar_is_kept_out_of_preloads(files: dict[str, str]) -> None:
    """It would bring what the guard refuses, and go on when the preload has ended."""
    pod = yaml.safe_load(files["pipelines/made-up/preload-train.yaml"])
    assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"


def test_the_guard_has_the_sites_deadline() -> None:
    """A site whose images take longer may say so."""
    text = made(parse_profile(SITE_TEXT.replace("deadline: 10min", "deadline: 20min")))["site/access.yaml"]
    assert "activeDeadlineSeconds <= 1200" in " ".join(text.split())


def test_a_cluster_queue_without_memory_is_noted() -> None:
    """Pods of a pipeline state memory, and Kueue admits none that asks for what a queue does not count."""
    assert uncounted_memory(parse_profile(SITE_TEXT.replace("gpus: 4", "gpus: 4, memory: 1GiB"))) == []
    (note,) = uncounted_memory(SITE)
    assert "'devices' counts no memory" in note


def test_the_plan_is_data_for_a_controller(files: dict[str, str]) -> None:
    """What to load, where, from when, and until when, with the pod's file."""
    plan = yaml.safe_load(files["pipelines/made-up/plan.yaml"])
    fit = plan["preloads"][0]
    assert fit["begin"]["after"] == "decode-2"
    assert (fit["task"], fit["also_for"], fit["pod"]) == ("train", ["train-2"], "preload-train.yaml")
    assert (fit["image"], fit["modules"], fit["nodeSelector"]) == ("trainer:1", ["torch"], SITE.pools[1].selector)
    assert (fit["takes_s"], fit["takes_is"], fit["needed_s"], fit["needed_is"]) == (
        100.0,
        "the site's",
        360.0,
        "predicted",
    )
    assert (fit["late_s"], fit["deadline_s"]) == (0.0, 600.0)
    assert set(yaml.safe_load(files["pipelines/made-up/kustomization.yaml"])["configMapGenerator"][0]["files"]) == {
        path.rsplit("/", 1)[1] for path in files if path.startswith("pipelines/") and "kustomization" not in path
    }


def compared(first: float, second: float) -> IntType:
    """`compareTo` of the API server's quantities, which the interpreter of CEL lacks."""
    return IntType((first > second) - (first < second))


def test_the_controller_may_make_and_delete_preloads_and_no_other_pods(
    objects: list[Object], files: dict[str, str]
) -> None:
    """The policy's rules, evaluated: its own pods pass, a pod that would gain anything is refused by one of them."""
    (policy,) = of_kind(objects, "ValidatingAdmissionPolicy").values()
    environment = celpy.Environment()
    functions: dict[str, Any] = {
        "quantity": lambda text: DoubleType(amount_of(text)),
        "compareTo": compared,
        "dyn": lambda any_: any_,
    }
    rules = {
        rule["message"]: environment.program(environment.compile(rule["expression"]), functions=functions)
        for rule in policy["spec"]["validations"]
    }

    def refused(pod: Object | None, operation: str = "CREATE", old: Object | None = None) -> list[str]:
        given = {"object": pod, "oldObject": old, "request": {"operation": operation}}
        activation = {name: json_to_cel(value) for name, value in given.items()}
        return [message for message, rule in rules.items() if not rule.evaluate(activation)]

    pod = yaml.safe_load(files["pipelines/made-up/preload-train.yaml"])
    other = changed(pod, lambda o: o["metadata"].pop("labels"))
    assert refused(pod) == refused(None, "DELETE", pod) == []
    assert refused(None, "DELETE", other) == ["the pod is no preload"]
    tries = {what: refused(one) for what, one in unwanted(pod).items()}
    assert {what: why for what, why in tries.items() if len(why) != 1} == {}
    assert {one["reason"] for one in policy["spec"]["validations"]} == {"Forbidden"}
    (condition,) = policy["spec"]["matchConditions"]
    account = f"system:serviceaccount:egs:{next(iter(of_kind(objects, 'ServiceAccount')))}"
    assert condition["expression"] == f"request.userInfo.username == '{account}'"


def test_no_right_is_granted_that_the_policy_does_not_guard(objects: list[Object]) -> None:
    """In the pipelines' namespace pods are all that the controller makes or deletes; elsewhere it reads, but for its
    own leases. Nothing is granted with a star."""
    granted = {
        (one["kind"], one["metadata"].get("namespace"), resource, verb)
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
        for rule in one["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {one for one in granted if one[3] not in ("get", "list", "watch")} == {
        ("Role", "team-a", "pods", "create"),
        ("Role", "team-a", "pods", "delete"),
        ("Role", "team-a", "events", "create"),
        ("Role", "team-a", "events", "patch"),
        ("Role", "egs", "leases", "create"),
        ("Role", "egs", "leases", "update"),
    }
    assert {one[2] for one in granted if one[0] == "ClusterRole"} == {"nodes", "resourceslices"}


def test_the_same_input_gives_the_same_bytes() -> None:
    """In another process too, whatever the order of its sets."""
    program = "from tests.unit.kubeflow.test_kfp_manifests import made; import json, sys; json.dump(made(), sys.stdout)"
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    environment["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [environment.get("PYTHONPATH")])])
    done = subprocess.run(
        [shutil.which("python") or "python", "-c", program], cwd=root, env=environment, capture_output=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == made()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kustomize_builds_what_a_repository_has(files: dict[str, str], objects: list[Object], tmp_path: Path) -> None:
    """The site's objects, and of a pipeline one ConfigMap: no pod is applied."""
    write_files(tmp_path, files)

    def built(folder: str) -> list[Object]:
        command = ["kubectl", "kustomize", str(tmp_path / folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    (config,) = built("pipelines/made-up")
    assert config["kind"] == "ConfigMap"
    assert config["data"]["plan.yaml"] == files["pipelines/made-up/plan.yaml"]
    validate(config)
    of_site = [one for one in objects if one["kind"] != "Pod"]
    key = lambda one: (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"])  # noqa: E731  # sorts
    assert sorted(built("site"), key=key) == sorted(of_site, key=key)


def test_a_folder_is_kept_as_it_should_be(tmp_path: Path) -> None:
    """Only what is different is written; what is no longer said goes; other people's files stay."""
    files = made()
    assert write_files(tmp_path, files) == sorted(files)
    assert write_files(tmp_path, files) == []
    other = tmp_path / "pipelines" / "made-up" / "notes.yaml"
    other.write_text("mine: true\n")
    fewer = {path: text for path, text in files.items() if path != "site/devices.yaml"}
    fewer["site/kueue.yaml"] = files["site/kueue.yaml"] + "# more\n"
    assert write_files(tmp_path, fewer) == ["site/devices.yaml", "site/kueue.yaml"]
    assert not (tmp_path / "site" / "devices.yaml").exists()
    assert other.exists()


def test_nobody_elses_file_is_written_over(tmp_path: Path) -> None:
    """A file of that name without our first line: an error before anything is written."""
    theirs = tmp_path / "site" / "kueue.yaml"
    theirs.parent.mkdir()
    theirs.write_text("apiVersion: v1\n")
    with pytest.raises(InputError, match="not written by this command"):
        write_files(tmp_path, made())
    assert [path.name for path in tmp_path.rglob("*.yaml")] == ["kueue.yaml"]
    assert theirs.read_text() == "apiVersion: v1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the pipeline and the site."""
    compiler.Compiler().compile(made_up, str(tmp_path / "pipeline.yaml"))
    (tmp_path / "site.yaml").write_text(SITE_TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_command_writes_and_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a preload, what the profile does not name yet, and where the files are."""
    command = ["kubeflow", "manifests", "pipeline.yaml", "--profile", "site.yaml", "-o", "gitops"]
    assert run(command) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("trainer:1 for train: ")
    assert "s after decode-2 has started; takes 100 s, needed at 360 s" in said[0]
    assert "queue team: when it is in the cluster, say `exists: true` in the profile" in said
    assert said[-1] == "gitops: 10 files, 10 of them changed"
    assert run([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["changed"] == []
    assert facts["files"] == sorted(str(path.relative_to("gitops")) for path in Path("gitops").rglob("*.yaml"))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["missing.yaml", "--profile", "site.yaml", "-o", "out"], "missing.yaml: cannot be read"),
        (["pipeline.yaml", "--profile", "pipeline.yaml", "-o", "out"], "there is a second document"),
        (["pipeline.yaml", "--profile", "site.yaml", "-o", "site.yaml"], "site.yaml: is no folder"),
        (["pipeline.yaml", "--profile", "site.yaml", "-o", "site.yaml/out"], "cannot be written"),
        (["pipeline.yaml", "--profile", "site.yaml"], "--output"),
        (["pipeline.yaml", "--profile", "site.yaml", "-o", "out", "--history", "site.yaml"], "is no history"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    arguments: list[str], problem: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line on stderr, nothing on stdout and nothing half-written."""
    assert run(["kubeflow", "manifests", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert problem in said.err
    assert said.err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["pipeline.yaml", "site.yaml"]
