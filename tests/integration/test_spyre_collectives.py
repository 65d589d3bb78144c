"""``spyreccl`` over two processes, and vLLM's communicator over it: what it overrides, what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = '''
import sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from stepshape.adapters.emulator import spyre
from stepshape.adapters.emulator.spyre.collectives import register_spyreccl
from stepshape.domain.spyre_limits import LimitBroken


def refused(call):
    try:
        call()
    except (LimitBroken, NotImplementedError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def card(rank, width=64):
    return torch.full((2, width), float(rank + 1), dtype=torch.float16).to("spyre")


def rank_main(rank, port, queue):
    torch.set_num_threads(1)
    spyre.load()
    register_spyreccl()
    register_spyreccl()
    backend = "cpu:gloo,spyre:spyreccl"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
    from stepshape.adapters.vllm.spyre.communicator import SpyreCommunicator

    groups = dist.new_group([0, 1], backend="gloo"), dist.new_group([0, 1], backend=backend)
    alone = [dist.new_group([each], backend=backend) for each in (0, 1)][rank]
    ours = SpyreCommunicator(groups[0], torch.device("cpu"), groups[1], "tp:0")
    said = {}
    x = card(rank)
    dist.broadcast(x, 0)
    said["broadcast"] = x.cpu().unique().tolist()
    if rank == 0:
        dist.send(card(8), 1)
    else:
        x = card(rank)
        dist.recv(x, 0)
        said["recv"] = x.cpu().unique().tolist()
    said["reduced"] = ours.all_reduce(card(rank)).cpu().unique().tolist()
    said["reduced on the host"] = ours.all_reduce(torch.tensor([float(rank)])).tolist()
    said["gathered"] = ours.all_gather(card(rank)).cpu()[0, ::64].tolist()
    narrow = ours.all_gather(card(rank, 24))
    said["gathered narrow"] = [str(narrow.device.type), narrow.cpu()[0].tolist() == [1.0] * 24 + [2.0] * 24]
    said["gathered rows"] = ours.all_gather(card(rank), 0).cpu()[:, 0].tolist()
    with torch.inference_mode():
        options = {"backend": spyre.checking_backend(), "dynamic": False, "fullgraph": True}
        reduce = torch.compile(lambda x: ours.all_reduce(x * 2) + 1, **options)
        said["compiled"] = reduce(card(rank)).cpu().unique().tolist()
    said["width"] = refused(lambda: dist.all_reduce(card(rank, 24)))
    said["group"] = refused(lambda: dist.all_reduce(card(rank), group=alone))
    said["scatter"] = refused(lambda: ours.reduce_scatter(card(rank)))
    queue.put((rank, said))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    workers = [context.Process(target=rank_main, args=(rank, int(sys.argv[1]), queue)) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    said = dict(queue.get() for _ in workers)
    for worker in workers:
        worker.join()
    print([worker.exitcode for worker in workers])
    print(repr(said[1]))
    print(said[0]["reduced"])
'''


def test_two_ranks(tmp_path: Path) -> None:
    from ast import literal_eval

    from ..e2e.test_spyre_serve import free_port
    from .test_spyre_engines import spyre_environment

    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(free_port())],
        env={**spyre_environment(tmp_path / "metadata"), "STEPSHAPE_SPYRE_CARDS": "2"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    codes, said, reduced = (literal_eval(line) for line in done.stdout.splitlines()[-3:])
    assert codes == [0, 0] and reduced == [3.0], done.stderr[-3000:]
    assert said["broadcast"] == [1.0] and said["recv"] == [9.0]
    assert said["reduced"] == [3.0] and said["reduced on the host"] == [1.0]
    assert said["gathered"] == [1.0, 2.0] and said["gathered rows"] == [1.0, 1.0, 2.0, 2.0]
    assert said["gathered narrow"] == ["spyre", True]
    assert said["compiled"] == [7.0]
    assert said["width"].startswith("LimitBroken: collective-width")
    assert said["group"].startswith("LimitBroken: collective-world")
    assert said["scatter"].startswith("NotImplementedError: the cards have no reduce_scatter")
    assert os.environ.get("STEPSHAPE_SPYRE_CARDS") is None
