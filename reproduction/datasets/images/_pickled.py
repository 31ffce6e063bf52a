"""Data from a pickle, without running it.

A pickle is a program: loading it runs it. This reads the program as text, follows the instructions that build dicts,
lists, numbers, strings and arrays of bytes, and refuses all others by name; nothing is imported or called.
"""

from __future__ import annotations

import math
import pickletools
from typing import Any

import numpy as np

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {"BININT", "BININT1", "BININT2", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"}
_ARRAY, _TYPE, _ENCODE = "array", "type", "encode"
# What arrays consist of in pickles of Python 2, and in those that Python 3 writes for it.
_NAMES = {
    "numpy.core.multiarray _reconstruct": _ARRAY,
    "numpy._core.multiarray _reconstruct": _ARRAY,
    "numpy ndarray": _ARRAY,
    "numpy dtype": _TYPE,
    "_codecs encode": _ENCODE,
}


class _Name(str):
    """A name that the pickle would import."""


class _Pending(str):
    """An array or a number type that was created, but not filled yet."""


def parse(content: bytes) -> Any:
    """The content of a pickle; byte strings of Python 2 become bytes.

    Args:
        content: of the file.

    Example:
        >>> parse(b"\\x80\\x02}U\\x06labels]K\\x03as.")
        {b'labels': [3]}
        >>> parse(b"cos\\nsystem\\nU\\x02ls\\x85R.")
        Traceback (most recent call last):
        ValueError: it names 'os.system', which data does not need: none of it was run
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name in ("BINSTRING", "SHORT_BINSTRING"):
            stack.append(argument.encode("latin-1"))  # as pickletools decoded it
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[argument])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "TUPLE":
            items = _since_mark(stack)
            stack.append(tuple(items))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else _since_mark(stack)
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else _since_mark(stack)
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(_allowed(argument))
        elif name == "STACK_GLOBAL":
            module, attribute = stack.pop(-2), stack.pop()
            stack.append(_allowed(f"{module} {attribute}"))
        elif name == "REDUCE":
            called, arguments = stack.pop(-2), stack.pop()
            stack.append(_create(called, arguments))
        elif name == "BUILD":
            created, state = stack.pop(-2), stack.pop()
            stack.append(_fill(created, state))
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it uses the instruction {name}, which data does not need: none of it was run")
    raise ValueError("it has no end")


def _since_mark(stack: list[Any]) -> list[Any]:
    """Take everything above the last mark off the stack, and the mark."""
    start = max(i for i, item in enumerate(stack) if item is _MARK)
    items = stack[start + 1 :]
    del stack[start:]
    return items


def _allowed(name: str) -> _Name:
    if name not in _NAMES:
        raise ValueError(f"it names {name.replace(' ', '.')!r}, which data does not need: none of it was run")
    return _Name(_NAMES[name])


def _create(called: Any, arguments: Any) -> Any:
    if not isinstance(called, _Name):
        raise ValueError(f"it calls {type(called).__name__}, which data does not need: none of it was run")
    if called == _ENCODE:  # how Python 3 writes bytes for Python 2
        text, encoding = arguments
        if encoding != "latin1":
            raise ValueError(f"it holds bytes encoded as {encoding!r}, expected 'latin1'")
        return text.encode("latin-1")
    if called == _TYPE and arguments[0] not in ("u1", b"u1"):
        raise ValueError(f"it holds an array of {arguments[0]!r}, expected unsigned bytes, 'u1'")
    return _Pending(called)


def _fill(created: Any, state: Any) -> Any:
    if not isinstance(created, _Pending):
        raise ValueError(f"it fills {type(created).__name__}, which data does not need: none of it was run")
    if created == _TYPE:
        return created  # its state is the byte order, which does not matter for one byte per number
    _, shape, kind, columns_first, content = state
    if not isinstance(kind, _Pending) or kind != _TYPE or not isinstance(content, bytes):
        raise ValueError("it holds an array that is not of unsigned bytes")
    if math.prod(shape) != len(content):
        raise ValueError(f"it holds an array of {tuple(shape)} numbers in {len(content):,} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if columns_first else "C")
