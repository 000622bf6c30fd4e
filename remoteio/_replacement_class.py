"""What stands in for a class: calling it may give an object of another class, that counts as one of it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["MARK", "build_class"]

# The attribute by which a class tells the place of the class that its objects count as.
MARK = "__remoteio_in_place_of__"


def build_class(place: str, original: type, call: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> type:
    """Make the stand-in of a class from which nobody can inherit.

    Args:
        place: Where people find it.
        original: The class.
        call: Answers a call of it, with positional and keyword arguments.
    """

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return call(args, kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original) or getattr(type(instance), MARK, None) == place

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return subclass is cls or issubclass(subclass, original) or getattr(subclass, MARK, None) == place

        def __getattr__(cls, name: str) -> Any:
            return getattr(original, name)

        def __repr__(cls) -> str:
            return repr(original)

    namespace: dict[str, Any] = {"__doc__": original.__doc__, "__module__": original.__module__}
    with contextlib.suppress(TypeError, ValueError):  # not every class tells
        namespace["__signature__"] = inspect.signature(original)
    made = Meta(original.__name__, (), namespace)
    made.__qualname__ = original.__qualname__
    return made
