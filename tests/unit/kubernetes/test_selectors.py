"""What selectors of devices say, beside another implementation of CEL."""

from __future__ import annotations

from typing import Any

import pytest

from egs_core.kubernetes.devices import slice_of
from egs_core.kubernetes.objects import quantity
from egs_core.kubernetes.pods import Facts
from egs_core.kubernetes.selectors import is_selected
from tests.unit.kubernetes.made_devices import DRIVER, T4, gpu, mig, resource_slice

OF = f"device.attributes['{DRIVER}']"
UNDERSTOOD = [
    f"device.driver == '{DRIVER}' && {OF}.type == 'gpu'",
    f"device.driver == '{DRIVER}' && {OF}.type == 'mig'",
    f'{OF}["productName"].lowerAscii().matches("^.*a100.*$")',
    f"{OF}.productName.startsWith('Tesla') || {OF}.productName.endsWith('40GB')",
    f"!({OF}.productName.contains('T4'))",
    f"!{OF}.productName.contains('T4') == false",
    f"{OF}.profile == '1g.5gb'",
    f"has({OF}.profile) && {OF}.profile in ['1g.5gb', '2g.10gb']",
    f"'profile' in {OF}",
    "'dra.example.com' in device.attributes",
    "device.attributes['dra.example.com'].size == 1",
    f"{OF}.type == 'gpu' || device.attributes['dra.example.com'].size == 1",
    f"{OF}.type == 1",
    f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0",
    f"device.capacity['{DRIVER}'].memory.isLessThan(quantity('16Gi'))",
    f"device.capacity['{DRIVER}'].multiprocessors.isGreaterThan(quantity('10'))",
    f"{OF}.type == 'gpu' // && false\n && {OF}.uuid != 'a // b'",
    f"cel.bind(d, {OF}, d.type == 'mig' && d.parentUUID == 'GPU-0')",
]
NOT_UNDERSTOOD = [
    f"{OF}.type == 'gpu' ? true : false",
    f"[1, 2].exists(x, x == 1) && {OF}.type == 'gpu'",
    f"{OF}.productName.split(' ').size() == 2",
    f"{OF}.driverVersion.isGreaterThan(semver('1.0.0-beta'))",
    f"{OF}.productName.matches('(A+)+$')",
    f"{OF}.productName.matches('a*b*c*d*e*')",
    f"'{'a' * 40}'.matches('^{'a?' * 40}{'a' * 40}b')",
    f"'{'a' * 9000}'.matches('a*a*b')",
    f"'{'a' * 40}'.matches('{'a|' * 40}b')",
    "device.driver == 'x' ||",
    "(" * 2000 + "true" + ")" * 2000,
    "device",
]


def facts() -> list[Facts]:
    devices = gpu("gpu-0"), gpu("gpu-1", T4, "15Gi"), mig("gpu-2-mig-1g5gb-19-0")
    return [one.facts for one in slice_of(resource_slice("n1", *devices)).devices["n1"]]


def judged(expression: str) -> list[bool]:
    """As cel-python says, with the cluster's own functions as it has them; an error takes no device."""
    celpy = pytest.importorskip("celpy", reason="the interpreter of the policies' rules is not installed")
    double = celpy.celtypes.DoubleType
    functions: dict[str, Any] = {
        "quantity": lambda text: double(quantity(text)),
        "compareTo": lambda one, other: celpy.celtypes.IntType((one > other) - (one < other)),
        "isLessThan": lambda one, other: celpy.celtypes.BoolType(one < other),
        "isGreaterThan": lambda one, other: celpy.celtypes.BoolType(one > other),
        "lowerAscii": lambda text: celpy.celtypes.StringType(text.lower()),
    }
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression), functions=functions)
    found = []
    for one in facts():
        attributes = {
            domain: {k: v for k, v in own.items() if isinstance(v, str)} for domain, own in one.attributes.items()
        }
        capacity = {domain: {k: v.value for k, v in own.items()} for domain, own in one.capacity.items()}
        if ".size ==" in expression:  # for the cluster a domain that a device has nothing of is there, and empty
            attributes.setdefault("dra.example.com", {})
        device = {"driver": one.driver, "attributes": attributes, "capacity": capacity}
        try:
            found.append(bool(program.evaluate({"device": celpy.json_to_cel(device)})))
        except celpy.CELEvalError:
            found.append(False)
    return found


@pytest.mark.parametrize("expression", UNDERSTOOD)
def test_what_is_understood_is_what_another_implementation_says(expression: str) -> None:
    """Of a whole GPU, one of another product and a slice: NVIDIA's own classes and examples, and what parts of them may
    become, with errors of which only some make the whole fail."""
    if "cel.bind" in expression:  # cel-python has no bindings
        assert [is_selected(expression, one) for one in facts()] == [False, False, True]
        return
    assert [is_selected(expression, one) for one in facts()] == [bool(one) for one in judged(expression)]


@pytest.mark.parametrize("expression", NOT_UNDERSTOOD)
def test_of_the_rest_nothing_is_said(expression: str) -> None:
    """Also of patterns that could take for ever, and of what is no expression at all."""
    assert {is_selected(expression, one) for one in facts()} <= {None, False}
    assert None in {is_selected(expression, one) for one in facts()} or expression == "device"


def test_a_version_is_compared_by_its_numbers() -> None:
    """As the driver states it."""
    newer = f"{OF}.driverVersion.isGreaterThan(semver('575.0.0'))"
    assert is_selected(newer, facts()[0]) is True
    assert is_selected(newer.replace("575", "590"), facts()[0]) is False


def test_what_decides_alone_does_so_beside_what_is_not_understood() -> None:
    """So a class of a driver's still tells its devices from others'."""
    beside = f"device.driver == 'nic.example.com' && {OF}.productName.split(' ').size() == 2"
    assert is_selected(beside, facts()[0]) is False
    assert is_selected(beside.replace("nic.example.com", DRIVER), facts()[0]) is None
