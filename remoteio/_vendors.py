"""The vendors' own protocols, registered with fsspec by name when their package is installed."""

from __future__ import annotations

import importlib.util

# scheme -> (top-level package, class)
VENDORS = {
    "dfs": ("pangudfs_client", "pangudfs_client.high_level_client.extern.fsspec.PanguDfs"),
    "mega": ("megatensors", "megatensors._hub.mega_file_system.MegaFileSystem"),
}


def installed() -> tuple[str, ...]:
    """The schemes whose vendor package is installed. Nothing is imported to find out."""
    return tuple(scheme for scheme, (package, _) in VENDORS.items() if importlib.util.find_spec(package) is not None)


def register() -> None:
    """Tell fsspec the class of each installed vendor's scheme, unless somebody else has.

    fsspec imports the class when a URL first needs it. Where no vendor is installed, fsspec
    is not imported either.
    """
    schemes = installed()
    if not schemes:
        return
    from fsspec.registry import known_implementations, register_implementation, registry

    for scheme in schemes:
        if scheme not in registry and scheme not in known_implementations:
            register_implementation(scheme, VENDORS[scheme][1], clobber=False)
