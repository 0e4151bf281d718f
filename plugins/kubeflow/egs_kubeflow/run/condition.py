"""The conditions of `dsl.If`, as kfp writes them into a compiled pipeline: a small part of CEL.

    !(inputs.parameter_values['pipelinechannel--flip-Output'] == 'heads') && int(inputs.parameter_values['n']) > 3

They are parsed into Python's own syntax tree, of which only the nodes that such a condition needs are evaluated.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from egs_core.errors import InputError

_TOKENS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|&&|\|\||!=|!|\btrue\b|\bfalse\b|\bnull\b""", re.DOTALL)
_INPUT = re.compile(r"inputs\.parameter_values\['(?:pipelinechannel--)?([^']*)'\]")
_AS_PYTHON = {"&&": " and ", "||": " or ", "!": " not ", "true": "True", "false": "False", "null": "None"}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "double": float, "string": str, "bool": bool}


def is_met(condition: str, inputs: Mapping[str, Any], place: str) -> bool:
    """Whether the condition of a task holds for the task's inputs. Raises InputError that names `place`."""
    python = _TOKENS.sub(lambda token: _AS_PYTHON.get(token[0], token[0]), condition)
    try:
        return bool(_value(ast.parse(python.strip(), mode="eval").body, inputs))
    except (SyntaxError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise InputError(place, f"its condition {condition!r} cannot be evaluated: {error}") from None


def in_words(condition: str) -> str:
    """As its author knows it.

    >>> in_words("!(inputs.parameter_values['pipelinechannel--flip-Output'] == 'heads')")
    "!(flip-Output == 'heads')"
    """
    return _INPUT.sub(r"\1", condition)


def _value(node: ast.expr, inputs: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.BoolOp(ast.And(), values):
            return all(_value(value, inputs) for value in values)
        case ast.BoolOp(ast.Or(), values):
            return any(_value(value, inputs) for value in values)
        case ast.UnaryOp(ast.Not(), operand):
            return not _value(operand, inputs)
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, inputs)
        case ast.Compare(left, [compare], [right]) if type(compare) in _COMPARE:
            return _COMPARE[type(compare)](_value(left, inputs), _value(right, inputs))
        case ast.Call(ast.Name(name), [argument], []) if name in _CASTS:
            return _CASTS[name](_value(argument, inputs))
        case ast.Subscript(ast.Attribute(ast.Name("inputs"), "parameter_values"), ast.Constant(str(name))):
            return inputs[name]
    raise ValueError(f"{ast.unparse(node)} is not understood")
