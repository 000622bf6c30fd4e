"""The table of ``remote_io(also="torch")``: what torch, safetensors and tokenizers read and write in C++ or Rust.

None of these packages is imported for it. One that is imported later is covered then.
"""

from __future__ import annotations

from remoteio._patches import Parameter, Patch

__all__ = ["MODULES", "PATCHES"]

# Imported when a scope asks for this table.
MODULES: tuple[str, ...] = ()

_FILES = "remoteio._torch_files"
_PACKAGE = "remoteio._torch_package"
_TENSORS = "remoteio._tensors"
_TOKENIZERS = "remoteio._tokenizers"


def _row(name: str, places: tuple[str, ...], parameter: str, position: int, answer: str) -> Patch:
    label = places[0].replace(":", ".").removesuffix(".__init__")
    return Patch(name, places, (Parameter(parameter, position),), answer, table="torch", label=label)


PATCHES: tuple[Patch, ...] = (
    _row("save", ("torch:save", "torch.serialization:save"), "f", 1, f"{_FILES}:save"),
    _row("load", ("torch:load", "torch.serialization:load"), "f", 0, f"{_FILES}:load"),
    _row("save", ("torch.jit:save", "torch.jit._serialization:save"), "f", 1, f"{_FILES}:jit_save"),
    _row("load", ("torch.jit:load", "torch.jit._serialization:load"), "f", 0, f"{_FILES}:jit_load"),
    _row(
        "save",
        ("torch.jit:ScriptModule.save", "torch.jit._script:RecursiveScriptModule.save"),
        "f",
        1,
        f"{_FILES}:script_module_save",
    ),
    _row(
        "save",
        ("torch.jit:ScriptFunction.save", "torch._C:ScriptFunction.save"),
        "filename",
        1,
        f"{_FILES}:script_module_save",
    ),
    _row("save", ("torch.export:save",), "f", 1, f"{_FILES}:export_save"),
    _row("load", ("torch.export:load",), "f", 0, f"{_FILES}:export_load"),
    _row("package_pt2", ("torch.export.pt2_archive._package:package_pt2",), "f", 0, f"{_FILES}:package_pt2"),
    _row("load_pt2", ("torch.export.pt2_archive._package:load_pt2",), "f", 0, f"{_FILES}:load_pt2"),
    _row(
        "package_aoti",
        ("torch._inductor.package:package_aoti", "torch._inductor.package.package:package_aoti"),
        "archive_file",
        0,
        f"{_FILES}:package_aoti",
    ),
    _row(
        "load_package",
        ("torch._inductor.package:load_package", "torch._inductor.package.package:load_package"),
        "path",
        0,
        f"{_FILES}:load_package",
    ),
    _row(
        "__init__",
        ("torch.package:PackageExporter.__init__", "torch.package.package_exporter:PackageExporter.__init__"),
        "f",
        1,
        f"{_PACKAGE}:init_exporter",
    ),
    _row(
        "__init__",
        ("torch.package:PackageImporter.__init__", "torch.package.package_importer:PackageImporter.__init__"),
        "file_or_buffer",
        1,
        f"{_PACKAGE}:init_importer",
    ),
    _row(
        "safe_open",
        ("safetensors:safe_open", "safetensors._safetensors_rust:safe_open"),
        "filename",
        0,
        f"{_TENSORS}:safe_open",
    ),
    _row(
        "serialize_file",
        ("safetensors:serialize_file", "safetensors._safetensors_rust:serialize_file"),
        "filename",
        1,
        f"{_TENSORS}:serialize_file",
    ),
    _row("from_file", ("tokenizers:Tokenizer.from_file",), "path", 0, f"{_TOKENIZERS}:from_file"),
    _row("save", ("tokenizers:Tokenizer.save",), "path", 1, f"{_TOKENIZERS}:save"),
    _row("save", ("tokenizers.models:Model.save",), "folder", 1, f"{_TOKENIZERS}:save_model"),
)
