"""Building the function that stands in for one original.

A replacement has the original's own signature, compiled from text: that is what keeps a
local call inside a scope nearly as fast as outside. A plain ``str`` without ``":/"`` goes to
the original at once; anything else goes through the route that the caller hands in.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from remoteio._patches import Patch
from remoteio._replacement_class import build_class

__all__ = ["FRAMES_TO_CALLER", "Route", "build"]

# What a replacement hands everything to that may be a URL:
# the patch, the original, the positional and the keyword arguments.
Route = Callable[[Patch, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

# `warnings.warn` does not count the frames of files with both of these words in their name, so that a
# warning with a stacklevel names the line that called the replacement, as if the replacement were not there.
_FILENAME = "<remoteio replacement of {}; importlib _bootstrap>"

# The stacklevel of a warning, raised in a function called by the route, that names the replacement's caller.
FRAMES_TO_CALLER = 3

_KEPT_ATTRIBUTES = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__", "__type_params__")


class _Module:
    """What a replacement that must not bind is bound to: the stand-in of the built-in's module.

    It pickles as the module itself, so that the method pickles as the original's name and
    is read back without this package too.
    """

    def __init__(self, name: str) -> None:
        self.__remoteio_module__ = name

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__remoteio_module__,)

    def __copy__(self) -> _Module:
        return self

    def __deepcopy__(self, memo: object) -> _Module:
        return self

    def __repr__(self) -> str:
        return f"<module {self.__remoteio_module__!r}>"


def build(patch: Patch, original: Callable[..., Any], route: Route) -> Callable[..., Any]:
    """Make the replacement of one original.

    Args:
        patch: The row of the table.
        original: What stands in the place now; any callable.
        route: What answers when an argument may be a URL.

    Returns:
        A function, or a bound method where the original does not bind in a class.
    """
    if isinstance(original, type):
        return build_class(patch.places[0], original, lambda args, kwargs: route(patch, original, args, kwargs))
    binds = hasattr(type(original), "__get__") and not isinstance(original, (MethodType, staticmethod))
    if isinstance(original, staticmethod):
        original = original.__func__
    signature = _exact_signature(patch, original)
    # FunctionType where the original is one, so that what looks at the type sees no difference.
    function = _compile(patch, original, signature, route, receiver=not binds)
    _dress(function, original, shown=signature)
    if binds:
        return function
    module = patch.places[0].partition(":")[0]
    owner = _Module(module)
    method = MethodType(function, owner)
    setattr(owner, patch.name, method)
    return method


def _exact_signature(patch: Patch, original: Callable[..., Any]) -> inspect.Signature | None:
    """The original's own signature, if it has the parameters that can be URLs where they belong."""
    try:
        signature = inspect.signature(original, follow_wrapped=False)
    except (TypeError, ValueError):  # not every callable tells
        return None
    parameters = list(signature.parameters.values())
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    names = [p.name for p in parameters]
    for url in patch.urls:
        if url.name not in names or (url.position is not None and names.index(url.name) != url.position):
            return None
    return signature


def _compile(
    patch: Patch, original: Callable[..., Any], signature: inspect.Signature | None, route: Route, *, receiver: bool
) -> FunctionType:
    if signature is None:
        head, body = "*args, **kwargs", "    return route(patch, original, args, kwargs)\n"
        if receiver:
            head = f"_module, /, {head}"
        parameters: list[inspect.Parameter] = []
    else:
        parameters = list(signature.parameters.values())
        head = _parameters_text(parameters, receiver)
        given = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        call = ", ".join([*(p.name for p in given), *(f"{p.name}={p.name}" for p in named)])
        args = "".join(f"{p.name}, " for p in given)
        kwargs = ", ".join(f"{p.name!r}: {p.name}" for p in named)
        body = (
            f"    if {_plainly_local(patch)}:\n"
            f"        return original({call})\n"
            f"    return route(patch, original, ({args}), {{{kwargs}}})\n"
        )
    namespace: dict[str, Any] = {}
    text = (
        f"def make(patch, original, route):\n  def {patch.name}({head}):\n"
        + "".join(f"  {line}\n" for line in body.splitlines())
        + f"  return {patch.name}\n"
    )
    exec(compile(text, _FILENAME.format(patch.name), "exec"), {}, namespace)
    function: FunctionType = namespace["make"](patch, original, route)
    given_defaults = tuple(p.default for p in parameters if p.kind is not p.KEYWORD_ONLY and p.default is not p.empty)
    function.__defaults__ = given_defaults or None
    named_defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
    function.__kwdefaults__ = named_defaults or None
    return function


def _parameters_text(parameters: list[inspect.Parameter], receiver: bool) -> str:
    """A parameter list; the defaults are placeholders, the real objects are set afterwards."""
    parts: list[str] = ["_module"] if receiver else []
    positional_only = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    parts += [_parameter_text(p) for p in positional_only]
    if parts and (receiver or positional_only):
        parts.append("/")
    parts += [_parameter_text(p) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = [_parameter_text(p) for p in parameters if p.kind is p.KEYWORD_ONLY]
    if named:
        parts += ["*", *named]
    return ", ".join(parts)


def _parameter_text(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}=None"


def _plainly_local(patch: Patch) -> str:
    """The test that lets nearly every local call through."""
    if patch.name == "open" and sys.flags.warn_default_encoding:
        return "False"  # the built-in would name the replacement's line in its EncodingWarning
    tests = []
    for url in patch.urls:
        if url.position is None:
            tests.append(f"{url.name} is None")
        else:
            tests.append(f"{url.name}.__class__ is str and ':/' not in {url.name}")
    if patch.name == "open":
        tests.append("buffering != 1")  # the built-in may warn, see `open_locally`
    return " and ".join(tests)


def _dress(function: FunctionType, original: Callable[..., Any], *, shown: inspect.Signature | None) -> None:
    """Give a replacement the original's name, document, module and attributes."""
    for name in _KEPT_ATTRIBUTES:
        value = getattr(original, name, None)
        if value is not None or (name == "__doc__" and hasattr(original, name)):
            setattr(function, name, value)
    # A callable object keeps in its class what a function keeps in itself.
    if not isinstance(original, FunctionType) and hasattr(original, "avoids_symlink_attacks"):
        function.__dict__["avoids_symlink_attacks"] = original.avoids_symlink_attacks
    function.__dict__.update(getattr(original, "__dict__", {}))
    text = getattr(original, "__text_signature__", None)
    if text is not None:
        function.__dict__["__text_signature__"] = text
    if shown is None:
        try:
            function.__dict__["__signature__"] = inspect.signature(original)
        except (TypeError, ValueError):
            function.__dict__.pop("__signature__", None)
