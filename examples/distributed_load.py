"""Load one model in every process of a node, fetched once, train a step, and export it.

    python examples/distributed_load.py                         # 2 processes, an S3 server of its own
    python examples/distributed_load.py --processes 4 --root s3://bucket/run
    torchrun --nproc-per-node 4 examples/distributed_load.py --root s3://bucket/run

Each process stages the model for itself; one of the node fetches it and the others wait for that one. Nothing of
``torch.distributed`` is used for that, so it works before ``init_process_group`` too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from remoteio import staged_local


def write_model(url: str) -> None:
    """What an earlier job left: a TorchScript model."""
    torch.manual_seed(7)
    with staged_local(url, "w") as path:
        torch.jit.script(torch.nn.Linear(64, 1)).save(path)


def work(root: str) -> None:
    """One process of the job."""
    with staged_local(f"{root}/model.ts", "r") as path:
        inode = os.stat(path).st_ino
        model = torch.jit.load(path)
        # Left only when all are in: an entry that nobody caches goes with its last user.
        dist.init_process_group("gloo")
        dist.barrier()
    rank, world = dist.get_rank(), dist.get_world_size()
    inodes = torch.zeros(world, dtype=torch.int64)
    inodes[rank] = inode
    dist.all_reduce(inodes)
    loss = train_step(model, rank)
    if rank == 0:
        print(f"{world} processes read one file: {len(set(inodes.tolist())) == 1}")
        print(f"loss {loss:.4f}")
        with staged_local(f"{root}/trained.ts", "w") as path:
            model.save(path)
    dist.barrier()
    with staged_local(f"{root}/trained.ts", "r") as path:
        trained = torch.jit.load(path)
        dist.barrier()
    same = torch.tensor([all(torch.equal(a, b) for a, b in zip(trained.parameters(), model.parameters(), strict=True))])
    same = same.to(torch.int64)
    dist.all_reduce(same)
    if rank == 0:
        print(f"{int(same)} of {world} processes loaded the export, the same")
    dist.destroy_process_group()


def train_step(model: torch.nn.Module, rank: int) -> float:
    """One step of each process on numbers of its own, with the gradients averaged."""
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(32, 64, generator=generator)
    loss = parallel(x).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss)


@contextlib.contextmanager
def default_root() -> Iterator[str]:
    """The URL of a place on an S3 server of our own."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from tests.servers import SeaweedFS

    with SeaweedFS() as server:
        os.environ.update(server.environment())
        yield f"{server.base}/run"


def main() -> None:
    """Start the job, or be one process of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", help="a URL that all processes reach (default: an S3 server of our own)")
    parser.add_argument("--processes", type=int, default=2, help="how many, where torchrun did not start this")
    args = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        work(args.root.rstrip("/"))
        return
    with contextlib.ExitStack() as stack:
        root = args.root.rstrip("/") if args.root else stack.enter_context(default_root())
        write_model(f"{root}/model.ts")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.processes}"]
        subprocess.run([*torchrun, __file__, "--root", root], check=True)


if __name__ == "__main__":
    main()
