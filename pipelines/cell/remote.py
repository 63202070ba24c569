"""Objects of the program, used by the tests from another process.

Plain data crosses by value; anything else stays where it is and is used through `Remote`. Each side decodes with an
unpickler that can build plain data alone: what a program sends can be wrong, but can neither run code in the tests'
process nor bring a comparison of its own along. `Remote` compares equal to nothing but another `Remote`, and knows no
arithmetic and no order, for the same reason.
"""

import builtins
import collections
import datetime
import decimal
import fractions
import io
import operator
import pickle
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Ended", "Peer", "Remote", "RemoteError"]

_PLAIN = {type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset}
_TYPES = (*_PLAIN, complex)  # classes that may cross: calling one of them builds plain data and no more
_BASES: tuple[Any, ...] = (int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_MUTABLE = (list, dict, set, bytearray)
_STATE: dict[type, Callable[[Any], tuple]] = {
    complex: lambda x: (x.real, x.imag),
    range: lambda x: (x.start, x.stop, x.step),
    decimal.Decimal: lambda x: (str(x),),
    fractions.Fraction: lambda x: (x.numerator, x.denominator),
    collections.deque: lambda x: (list(x), x.maxlen),
    collections.OrderedDict: lambda x: (list(x.items()),),
    collections.Counter: lambda x: (dict(x),),
    datetime.date: lambda x: (x.year, x.month, x.day),
    datetime.time: lambda x: (x.hour, x.minute, x.second, x.microsecond),
    datetime.datetime: lambda x: (x.year, x.month, x.day, x.hour, x.minute, x.second, x.microsecond),
    datetime.timedelta: lambda x: (x.days, x.seconds, x.microseconds),
}
_BY_NAME = {kind.__name__: kind for kind in _STATE}
_VERBS: dict[str, Callable[..., Any]] = {
    "call": lambda target, /, *args, **kwargs: target(*args, **kwargs),
    "get": getattr, "set": setattr, "iter": iter, "next": next, "len": len, "item": operator.getitem,
    "set_item": operator.setitem, "equal": operator.eq, "str": str, "repr": repr, "bool": bool,
}  # fmt: skip


class Ended(BaseException):
    """The program's process is gone, or has called for its end."""


class RemoteError(Exception):
    """An exception of the program's own class, or one that this side cannot build."""


class _Rich(Exception):
    """Something that is not plain data."""


class _PlainPickler(pickle.Pickler):
    """The fast path: exact built-in types never get here."""

    def reducer_override(self, obj: object) -> Any:
        raise _Rich


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, peer: "Peer") -> None:
        super().__init__(file, 5)
        self.peer = peer

    def persistent_id(self, obj: Any) -> tuple | None:
        kind = type(obj)
        if kind in _PLAIN:
            return None
        if kind is Remote:
            return ("theirs", object.__getattribute__(obj, "_number"))
        if kind is type and obj in _TYPES:
            return ("type", obj.__name__)
        if kind in _STATE:
            return (kind.__name__, *_STATE[kind](obj))
        if kind.__module__ == "numpy" and hasattr(obj, "tolist"):
            return ("numpy" if kind.__name__ == "ndarray" else "plain", obj.tolist())
        for base in _BASES:
            if isinstance(obj, base):
                return ("plain", base(obj))
        return ("mine", self.peer.keep(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, peer: "Peer") -> None:
        super().__init__(file)
        self.peer = peer

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: Any) -> Any:
        tag, *state = pid
        if tag == "plain":
            return state[0]
        if tag == "mine":
            return Remote(self.peer, int(state[0]))
        if tag == "theirs":
            return self.peer.kept[int(state[0])]
        if tag == "type":
            return next(kind for kind in _TYPES if kind.__name__ == state[0])
        if tag == "numpy":
            import numpy

            return numpy.array(state[0])
        return _BY_NAME[tag](*state)


class Remote:
    """An object of the other side: called, read, set, iterated; never compared with a value of this side."""

    __slots__ = ("_number", "_peer")

    def __init__(self, peer: "Peer", number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        return _ask(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "set", name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _ask(self, "call", *args, **kwargs)

    def __eq__(self, other: object) -> Any:
        return _ask(self, "equal", other) if type(other) is Remote else NotImplemented

    __hash__ = object.__hash__

    def __iter__(self) -> Any:
        return _ask(self, "iter")

    def __next__(self) -> Any:
        return _ask(self, "next")

    def __len__(self) -> int:
        return _ask(self, "len")

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "set_item", key, value)

    def __bool__(self) -> bool:
        return _ask(self, "bool") is True

    def __str__(self) -> str:
        return _ask(self, "str")

    def __repr__(self) -> str:
        return _ask(self, "repr")


def _ask(remote: Remote, verb: str, /, *args: Any, **kwargs: Any) -> Any:
    peer, number = object.__getattribute__(remote, "_peer"), object.__getattribute__(remote, "_number")
    return peer.ask(number, verb, *args, **kwargs)


class Peer:
    """One end of the line. `open_handed`: the other side may do anything with what it was given; else only call it.

    `ended` stays true once the other side has gone, whatever was made of the exception.
    """

    def __init__(self, line: socket.socket, open_handed: bool, names: dict[str, Any] | None = None) -> None:
        self._line, self._open_handed, self._names = line, open_handed, names
        self.kept: list[Any] = []
        self.ended = False

    def keep(self, obj: Any) -> int:
        """The number under which the other side knows an object."""
        self.kept.append(obj)
        return len(self.kept) - 1

    def names(self, wanted: list[str]) -> dict[str, Any]:
        """Those of `wanted` that the other side's module has, with what they are."""
        return self._converse(("names", wanted))

    def ask(self, number: int, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        """Have the other side do `verb` to its object; its exception is raised here, its changes are copied back."""
        try:
            return self._converse(("do", number, verb, args, kwargs), args)
        except StopIteration:
            if verb == "next":
                raise
            raise RemoteError("StopIteration") from None  # it would end a loop over the test's cases

    def serve(self) -> None:
        """Answer the other side until it hangs up."""
        try:
            while True:
                self._answer(self._receive())
        except Ended:
            return

    def _converse(self, request: tuple, args: tuple = ()) -> Any:
        if self.ended:
            raise Ended
        self._send(request)
        while True:
            kind, *content = self._receive()
            if kind == "result":
                value, changed = content
                for place, now in changed.items():
                    _copy_into(args[place], now)
                return value
            if kind == "raise":
                raise _exception(*content)
            if kind == "exit":
                self.ended = True
                raise Ended
            self._answer((kind, *content))

    def _answer(self, message: tuple) -> None:
        try:
            reply: tuple = ("result", *self._do(*message))
            sys.stdout.flush()  # the process may be killed as soon as the tests have what they want
            self._send(reply)
        except Exception as error:
            self._send(("raise", type(error).__name__, _text(error)))
        except Ended:
            raise
        except BaseException:
            self._send(("exit",))
            raise

    def _do(self, kind: str, *content: Any) -> tuple[Any, dict[int, Any]]:
        if kind == "names":
            names = self._names or {}
            return {name: names[name] for name in content[0] if name in names}, {}
        number, verb, args, kwargs = content
        if not self._open_handed and (verb != "call" or not callable(self.kept[number])):
            raise PermissionError("an object of the tests can be called, no more")
        before = {place: self._dump(arg) for place, arg in enumerate(args) if type(arg) in _MUTABLE}
        value = _VERBS[verb](self.kept[number], *args, **kwargs)
        return value, {place: args[place] for place, was in before.items() if self._dump(args[place]) != was}

    def _dump(self, message: Any) -> bytes:
        file = io.BytesIO()
        try:
            _PlainPickler(file, 5).dump(message)
        except _Rich:
            file = io.BytesIO()
            _Pickler(file, self).dump(message)
        return file.getvalue()

    def _send(self, message: Any) -> None:
        data = self._dump(message)
        try:
            self._line.sendall(struct.pack("Q", len(data)) + data)
        except OSError:
            self.ended = True
            raise Ended from None

    def _receive(self) -> tuple:
        (length,) = struct.unpack("Q", self._read(8))
        return _Unpickler(io.BytesIO(self._read(length)), self).load()

    def _read(self, length: int) -> bytes:
        parts = []
        while length:
            try:
                part = self._line.recv(min(length, 1 << 20))
            except OSError:
                part = b""
            if not part:
                self.ended = True
                raise Ended
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def _copy_into(mine: Any, now: Any) -> None:
    if type(now) is not type(mine):
        return
    if isinstance(mine, (list, bytearray)):
        mine[:] = now
    elif isinstance(mine, (dict, set)):
        mine.clear()
        mine.update(now)


def _exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except Exception:
            pass
    return RemoteError(f"{name}: {text}")


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
