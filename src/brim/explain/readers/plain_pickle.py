"""A pickle read as plain containers, and as nothing else.

In: bytes. Out: dicts, lists, tuples, sets, texts and numbers. No name of a module is looked up, no object is built and
no function is called: an opcode that would do so ends the reading. Opcodes are counted, so that a small file cannot
become a large structure; what was built by then is returned, and said to be incomplete.
"""

from __future__ import annotations

import io
import pickletools
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 64 << 20
_MOST_OPCODES = 1_500_000  # of some 64 bytes each at most, and texts that are in the file
_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    {
        *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES"),
        *("SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)
_EMPTY: dict[str, type[Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS, _GETS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"}), frozenset({"GET", "BINGET", "LONG_BINGET"})


class NotPlain(Exception):
    """Why a file cannot be read as a pickle of plain containers."""


@dataclass(frozen=True, slots=True)
class PlainPickle:
    """What was built: the whole, or, of one that was cut, the parts."""

    roots: tuple[Any, ...]
    problem: str = ""  # why it is not complete


def read_plain(data: bytes) -> PlainPickle:
    builder = _Builder()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if count == _MOST_OPCODES:
                return PlainPickle(builder.parts(), f"only its first {_MOST_OPCODES:,} opcodes were read")
            if opcode.name == "STOP":
                return PlainPickle((builder.pop(),))
            builder.run(opcode.name, argument)
    except NotPlain:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        return PlainPickle(builder.parts(), f"it is damaged ({type(error).__name__})")
    return PlainPickle(builder.parts(), "it is cut off")


class _Builder:
    """The machine of a pickle, without the opcodes that build objects."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def parts(self) -> tuple[Any, ...]:
        return tuple(one for one in self._stack if isinstance(one, dict | list))

    def pop(self) -> Any:
        return self._stack.pop()

    def run(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in _PUTS:
            self._memo[int(argument)] = stack[-1]
        elif name in _GETS:
            stack.append(self._memo[int(argument)])
        elif name not in ("PROTO", "FRAME"):
            self._collect(name)

    def _collect(self, name: str) -> None:
        """Opcodes that put what is on the stack into containers."""
        stack = self._stack
        if name == "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
        elif name in _TUPLES:
            count = _TUPLES[name]
            values = tuple(stack[-count:])
            del stack[-count:]
            stack.append(values)
        elif name == "POP":
            stack.pop()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in ("APPENDS", "SETITEMS", "ADDITEMS", "TUPLE", "LIST", "DICT", "POP_MARK"):
            self._from_mark(name)
        else:
            raise NotPlain(f"it holds something that is no plain data (opcode {name}); it was not run")

    def _from_mark(self, name: str) -> None:
        stack, values = self._stack, []
        while (value := stack.pop()) is not _MARK:
            values.append(value)
        values.reverse()
        pairs = zip(values[::2], values[1::2], strict=False)
        if name == "APPENDS":
            stack[-1].extend(values)
        elif name == "SETITEMS":
            stack[-1].update(pairs)
        elif name == "ADDITEMS":
            stack[-1].update(values)
        elif name == "TUPLE":
            stack.append(tuple(values))
        elif name == "LIST":
            stack.append(values)
        elif name == "DICT":
            stack.append(dict(pairs))
