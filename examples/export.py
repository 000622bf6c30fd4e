"""Export a model to a URL in three formats that are written by C++ and Rust, and load each back.

    python examples/export.py                      # an S3 server of its own on this machine
    python examples/export.py --root s3://bucket/export
    python examples/export.py --root /some/folder  # the same program on a local disk

TorchScript, safetensors and torch.package want real paths: ``staged_local`` gives them one, and sends what they
wrote to the URL when the block ends well. If a block raises, the URL keeps what it had.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator

import torch
from safetensors.torch import load_file, save_file
from torch.package import PackageExporter, PackageImporter

from remoteio import staged_local


def make_model() -> torch.nn.Module:
    """A small model, the same at every call."""
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).eval()


def export_torchscript(model: torch.nn.Module, url: str) -> None:
    """Write the model for programs that have no Python."""
    with staged_local(url, "w") as path:
        torch.jit.script(model).save(path)


def load_torchscript(url: str) -> torch.nn.Module:
    """Load it back."""
    with staged_local(url, "r") as path:
        loaded: torch.nn.Module = torch.jit.load(path)
        return loaded


def export_safetensors(model: torch.nn.Module, url: str) -> None:
    """Write the weights in two files and an index, which goes up last."""
    weights = model.state_dict()
    names = sorted(weights)
    with staged_local(url, "w") as folder:
        for number, part in enumerate((names[:2], names[2:])):
            save_file({name: weights[name] for name in part}, f"{folder}/model-{number}.safetensors")
        with open(f"{folder}/model.safetensors.index.json", "w") as file:
            file.write('{"files": 2}\n')


def load_safetensors(url: str) -> torch.nn.Module:
    """Load them into a model."""
    model = make_model()
    with staged_local(url, "r") as folder:
        weights = [load_file(f"{folder}/model-{number}.safetensors") for number in range(2)]
    model.load_state_dict({**weights[0], **weights[1]})
    return model


def export_package(model: torch.nn.Module, url: str) -> None:
    """Write the model with its pickle in one archive."""
    with staged_local(url, "w") as path, PackageExporter(path) as exporter:
        exporter.extern("torch.**")
        exporter.save_pickle("model", "model.pkl", model)


def load_package(url: str) -> torch.nn.Module:
    """Load it back."""
    with staged_local(url, "r") as path:
        loaded: torch.nn.Module = PackageImporter(path).load_pickle("model", "model.pkl")
        return loaded


@contextlib.contextmanager
def default_root() -> Iterator[str]:
    """The URL of a place on an S3 server of our own, where one is installed; else in memory."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from tests.servers import SeaweedFS

    if SeaweedFS.program() is None:
        yield "memory://export"
        return
    with SeaweedFS() as server:
        os.environ.update(server.environment())
        yield f"{server.base}/export"


def main() -> None:
    """Export, load back, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", help="a folder or URL to export to (default: an S3 server of our own)")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = args.root.rstrip("/") if args.root else stack.enter_context(default_root())
        if "://" not in root:
            os.makedirs(f"{root}/weights", exist_ok=True)
        model = make_model()
        sample = torch.linspace(-1, 1, 8).unsqueeze(0)
        for name, export, load in (
            ("model.ts", export_torchscript, load_torchscript),
            ("weights/", export_safetensors, load_safetensors),
            ("model.package", export_package, load_package),
        ):
            url = f"{root}/{name}"
            export(model, url)
            same = torch.equal(load(url)(sample), model(sample))
            print(f"{url}: {'loaded back, the same' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
