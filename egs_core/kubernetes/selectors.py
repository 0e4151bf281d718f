"""What a selector of devices (CEL) says of a device, for the part of CEL that selectors are commonly written in.

    device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'
    device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')
    device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0
    cel.bind(d, device.attributes['gpu.nvidia.com'], has(d.profile) && d.profile in ['1g.10gb', '2g.20gb'])

CEL is close enough to Python's grammar to be parsed by its parser, of which the few nodes below are looked at; nothing
is run. Of what is none of them nothing is said: the scheduler, which knows all of CEL, has the last word anyway.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from egs_core.kubernetes.objects import quantity
from egs_core.kubernetes.pods import Facts
from egs_core.kubernetes.texts import kept_within

MOST_BYTES = 10 * 1024
MOST_LETTERS = 256 * 1024
"""Of all selectors that are kept as they were parsed, which takes up to 200 bytes a letter."""
_TEXT = re.compile(
    r"""(?P<text>[rR]?(?:\"(?:\\.|[^"\\])*\"|'(?:\\.|[^'\\])*'))|(?P<remark>//[^\n]*)"""
    r"""|(?P<sign>&&|\|\||!(?!=)|[?#`:])|(?P<name>[A-Za-z_]\w*)|(?P<other>\s+|.)""",
    re.DOTALL,
)
_SIGNS = {"&&": " and ", "||": " or ", "!": "~"}
_NAMES = {"true": "True", "false": "False", "null": "None"}
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_COSTLY = re.compile(r"\)[*+{]|\(\?(?!i\)|:)|\\[1-9]")
_REPEATS, _CHOICES = re.compile(r"[*+{]"), re.compile(r"[?|]")
MOST_REPEATS, MOST_CHOICES = 2, 10
MOST_PATTERN, MOST_SEARCHED = 256, 64  # letters; a device's attribute has at most 64


class Quantity(msgspec.Struct, frozen=True, order=True):
    """Of a capacity."""

    value: float


class Version(msgspec.Struct, frozen=True, order=True):
    """Three numbers; what follows them in a version is not understood."""

    value: tuple[int, int, int]


class _NotKnownError(Exception):
    """It is written in what is not understood here."""


class _NotThereError(Exception):
    """The scheduler would say that the expression fails: the device is not taken."""


def is_selected(expression: str, facts: Facts) -> bool | None:
    """Whether a selector takes the device; None where that is not known here."""
    tree = _parsed(expression)
    if tree is None:
        return None
    try:
        return _value(tree, {"device": facts}) is True
    except _NotThereError:
        return False
    except (_NotKnownError, RecursionError):
        return None


def version_of(text: str) -> Version | None:
    """A version as attributes have it; None for one that is not understood here."""
    found = _VERSION.fullmatch(text)
    return None if found is None else Version((int(found[1]), int(found[2]), int(found[3])))


@kept_within(1024, MOST_LETTERS, len)
def _parsed(expression: str) -> ast.expr | None:
    """As an expression of Python's; None for what is none."""
    if len(expression) > MOST_BYTES:
        return None
    words = []
    for found in _TEXT.finditer(expression):
        kind, word = found.lastgroup, found[0]
        if kind == "sign" and word not in _SIGNS:
            return None  # of the other signs each means something else in Python
        words.append(_SIGNS[word] if kind == "sign" else _NAMES.get(word, word) if kind == "name" else word)
        if kind == "remark":
            words[-1] = " "
    try:
        return ast.parse(f"({''.join(words)}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() as found):
            return found
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BoolOp(op=op, values=values):
            return _all_or_any(isinstance(op, ast.Or), values, names)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return not _truth(_value(operand, names))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as found)):
            return -found
        case ast.List(elts=values):
            return [_value(one, names) for one in values]
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compared(op, _value(left, names), _value(right, names))
        case ast.Attribute(value=of, attr=name):
            return _member(_value(of, names), name)
        case ast.Subscript(value=of, slice=key):
            return _member(_value(of, names), _value(key, names))
        case ast.Call(func=func, args=arguments, keywords=[]):
            return _called(func, arguments, names)
    raise _NotKnownError


def _all_or_any(is_or: bool, values: list[ast.expr], names: Mapping[str, Any]) -> bool:
    """What decides by itself does so, also where another part fails or is not understood."""
    failed: list[Exception] = []
    for one in values:
        try:
            if _truth(_value(one, names)) is is_or:
                return is_or
        except (_NotThereError, _NotKnownError) as error:
            failed.append(error)
    if failed:
        raise next((one for one in failed if isinstance(one, _NotKnownError)), failed[0])
    return not is_or


def _truth(found: Any) -> bool:
    if not isinstance(found, bool):
        raise _NotThereError
    return found


def _member(of: Any, name: Any) -> Any:
    if isinstance(of, Facts):
        if name == "driver":
            return of.driver
        if name in ("attributes", "capacity"):
            return _Domains(getattr(of, name))
    elif isinstance(of, _Domains):
        return of.found.get(name, {})  # as for the scheduler: a domain that the device has nothing of is empty
    elif isinstance(of, Mapping):
        if name in of:
            return of[name]
        raise _NotThereError
    raise _NotKnownError


class _Domains(msgspec.Struct, frozen=True):
    found: Mapping[str, Mapping[str, Any]]


def _compared(op: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(op, ast.In):
        if isinstance(right, _Domains):
            return left in right.found
        if isinstance(right, Mapping):
            return left in right
        if isinstance(right, list):
            return any(_equal(left, one) for one in right)
        raise _NotKnownError
    if isinstance(op, ast.Eq | ast.NotEq):
        return _equal(left, right) is isinstance(op, ast.Eq)
    if _sort(left) != _sort(right) or _sort(left) == "":
        raise _NotThereError
    orders: dict[type, Callable[[Any, Any], bool]] = {
        ast.Lt: lambda one, other: one < other,
        ast.LtE: lambda one, other: one <= other,
        ast.Gt: lambda one, other: one > other,
        ast.GtE: lambda one, other: one >= other,
    }
    if type(op) not in orders:
        raise _NotKnownError
    return bool(orders[type(op)](left, right))


def _equal(left: Any, right: Any) -> bool:
    return _sort(left) == _sort(right) and bool(left == right)


def _sort(found: Any) -> str:
    """Values of one sort can be compared."""
    if isinstance(found, bool):
        return "bool"
    if isinstance(found, int | float):
        return "number"
    return type(found).__name__ if isinstance(found, str | Quantity | Version) else ""


def _called(func: ast.expr, arguments: list[ast.expr], names: Mapping[str, Any]) -> Any:
    match func:
        case ast.Name(id="has") if len(arguments) == 1 and isinstance(arguments[0], ast.Attribute):
            of = _value(arguments[0].value, names)
            if not isinstance(of, Mapping):
                raise _NotKnownError
            return arguments[0].attr in of
        case ast.Attribute(value=ast.Name(id="cel"), attr="bind") if len(arguments) == 3:
            if not isinstance(arguments[0], ast.Name):
                raise _NotKnownError
            return _value(arguments[2], {**names, arguments[0].id: _value(arguments[1], names)})
        case ast.Name(id="quantity" | "semver" as made) if len(arguments) == 1:
            stated = _value(arguments[0], names)
            if made == "quantity":
                return Quantity(quantity(stated))
            found = version_of(stated) if isinstance(stated, str) else None
            if found is None:
                raise _NotKnownError
            return found
        case ast.Attribute(value=of_node, attr=name):
            return _method(_value(of_node, names), name, [_value(one, names) for one in arguments])
    raise _NotKnownError


def _method(of: Any, name: str, arguments: list[Any]) -> Any:
    if isinstance(of, str):
        plain: dict[str, Callable[..., Any]] = {
            "startsWith": of.startswith,
            "endsWith": of.endswith,
            "contains": of.__contains__,
            "lowerAscii": of.lower,
            "upperAscii": of.upper,
            "matches": lambda pattern: _is_found(pattern, of),
        }
        wanted = 0 if name.endswith("Ascii") else 1
        if name in plain and len(arguments) == wanted and all(isinstance(one, str) for one in arguments):
            return plain[name](*arguments)
    elif isinstance(of, Quantity | Version) and len(arguments) == 1:
        (other,) = arguments
        if type(of) is not type(other):
            raise _NotThereError
        a, b = of.value, other.value
        orders = {"isGreaterThan": a > b, "isLessThan": a < b, "compareTo": (a > b) - (a < b)}  # type: ignore[operator]  # of one type
        if name in orders:
            return orders[name]
    raise _NotKnownError


def _is_found(pattern: str, text: str) -> bool:
    """As far as it cannot take long: patterns are whoever's who may make a claim, and this is no RE2."""
    many = len(_REPEATS.findall(pattern)) > MOST_REPEATS or len(_CHOICES.findall(pattern)) > MOST_CHOICES
    if _COSTLY.search(pattern) or many or len(pattern) > MOST_PATTERN or len(text) > MOST_SEARCHED:
        raise _NotKnownError
    try:
        return re.search(pattern, text) is not None
    except (re.error, OverflowError):
        raise _NotKnownError from None
