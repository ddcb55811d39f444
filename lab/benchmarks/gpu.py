"""Copies to a GPU: bandwidth from a leased slot, and steps/s with pictures, overlapped and not.

    python lab/benchmarks/gpu.py [--megabytes 64 512] [--num-envs 1024] [--bursts 9] [--smoke]

The limit is a plain cudaMemcpyAsync from memory of cudaHostAlloc. The rivals of a group take turns in one
run.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
import shoal.torch
from shoal.torch import Prefetcher, pin, to_device
from shoal_lab.bench.interleave import interleave

PICTURE = 84 * 84 * 4
HOST_TO_DEVICE = 1


def bandwidth(megabytes: int, bursts: int) -> None:
    rows = megabytes * 2**20 // PICTURE
    size = rows * PICTURE
    lent = {name: shoal.make_vec("Pixels-v0", rows) for name in ("pinned", "pageable")}
    pin(lent["pinned"])
    slots = {name: torch.from_numpy(envs.reset(seed=0)[0]) for name, envs in lent.items()}
    assert slots["pinned"].is_pinned() and not slots["pageable"].is_pinned()
    assert slots["pinned"].numel() == size
    staging = torch.empty_like(slots["pageable"], pin_memory=True)
    target = torch.empty(slots["pinned"].shape, dtype=torch.uint8, device="cuda")
    runtime = cuda_runtime()
    host = ctypes.c_void_p()
    assert runtime.cudaHostAlloc(ctypes.byref(host), ctypes.c_size_t(size), 0) == 0
    ctypes.memset(host, 1, size)
    arguments = ctypes.c_void_p(target.data_ptr()), host, ctypes.c_size_t(size), HOST_TO_DEVICE, None

    def limit() -> None:
        assert runtime.cudaMemcpyAsync(*arguments) == 0

    def staged() -> None:
        staging.copy_(slots["pageable"])
        target.copy_(staging, non_blocking=True)

    asked: dict[str, Callable[[], object]] = {
        "cudaMemcpyAsync from cudaHostAlloc": limit,
        "leased slot, pinned": lambda: target.copy_(slots["pinned"], non_blocking=True),
        "leased slot, pageable": lambda: target.copy_(slots["pageable"], non_blocking=True),
        "copied to torch's pinned memory first": staged,
    }
    returned: dict[str, list[float]] = {name: [] for name in asked}

    def whole(name: str, call: Callable[[], object]) -> Callable[[], None]:
        def copy() -> None:
            begin = time.perf_counter()
            call()
            returned[name].append(time.perf_counter() - begin)
            torch.cuda.synchronize()

        return copy

    times = interleave({name: whole(name, call) for name, call in asked.items()}, bursts, 0.05)
    best = times["cudaMemcpyAsync from cudaHostAlloc"]
    print(f"\n{size / 2**20:.0f} MB to the device, {bursts} bursts each, medians")
    for name, taken in times.items():
        speed, ratio = size / taken.median_s / 1e9, taken.speedup(best)
        after_ms = statistics.median(returned[name]) * 1e3
        print(f"  {name:40} {speed:7.1f} GB/s  {ratio:5.2f} of the limit  call returns in {after_ms:7.3f} ms")
    ratio = times["leased slot, pinned"].speedup(times["leased slot, pageable"])
    print(f"  pinned is {ratio:.1f} times pageable")
    assert runtime.cudaFreeHost(host) == 0
    for envs in lent.values():
        envs.close()


def cuda_runtime() -> ctypes.CDLL:
    """Returns the CUDA runtime that torch has loaded."""
    torch.cuda.init()
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"\S*libcudart[^/\s]*$", maps, re.MULTILINE)
    return ctypes.CDLL(found.group() if found else "libcudart.so")


def network(actions: int) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
    ).cuda().half()  # fmt: skip


def stepping(num_envs: int, bursts: int, steps: int) -> None:
    probe = shoal.make_vec("Pixels-v0", 1)
    actions = int(probe.single_action_space.n)
    probe.close()
    policy = network(actions)

    def graphed(rows: int) -> Callable[[Any], Any]:
        """Returns the policy as one CUDA graph, because launching its kernels one by one takes longer."""
        picture = torch.zeros((rows, 84, 84, 4), dtype=torch.uint8, device="cuda")

        @torch.no_grad()
        def chosen() -> Any:
            return policy(picture.permute(0, 3, 1, 2).half() / 255).argmax(1)

        for _ in range(3):
            chosen()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer = chosen()

        def choose(seen: Any) -> Any:
            picture.copy_(seen)
            graph.replay()
            return answer

        return choose

    choose, choose_half = graphed(num_envs), graphed(num_envs // 2)

    plain = shoal.make_vec("Pixels-v0", num_envs)
    pinned = shoal.make_vec("Pixels-v0", num_envs)
    pin(pinned)
    halves = Prefetcher(shoal.make_vec("Pixels-v0", num_envs, batch_size=num_envs // 2), "cuda", seed=0)
    last = {envs: envs.reset(seed=0)[0] for envs in (plain, pinned)}

    def in_turn(envs: Any, move: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            seen = last[envs]
            for _ in range(steps):
                seen, *_ = envs.step(choose(move(seen)).cpu().numpy())
            last[envs] = seen

        return run

    def overlapped() -> None:
        for _ in range(2 * steps):
            halves.send(choose_half(next(halves).observations))

    def only_steps() -> None:
        for _ in range(steps):
            alone.step(still)

    alone, still = shoal.make_vec("Pixels-v0", num_envs), np.zeros(num_envs, np.int64)
    alone.reset(seed=0)
    there = to_device(last[plain].copy(), "cuda")

    def only_policy() -> None:
        for _ in range(steps):
            choose(there).cpu()

    rivals: dict[str, Callable[[], object]] = {
        "environments alone": only_steps,
        "policy alone": only_policy,
        "pageable, in turn": in_turn(plain, lambda seen: torch.from_numpy(seen).to("cuda")),
        "pinned, in turn": in_turn(pinned, lambda seen: to_device(seen, "cuda")),
        "Prefetcher, two halves": overlapped,
    }
    times = interleave(rivals, bursts, 0.3)
    print(f"\nPixels-v0 x {num_envs}, a policy of DQN's size in float16, {bursts} bursts each, medians")
    for name, taken in times.items():
        each = taken.median_s / steps
        ratio = taken.speedup(times["pageable, in turn"])
        print(f"  {name:40} {num_envs / each / 1e6:7.3f} M steps/s   {each * 1e6:8.0f} us   {ratio:5.2f}")


def replay(bursts: int, batch: int = 256) -> None:
    buffer = shoal.ReplayBuffer(20_000, {"obs": (np.uint8, (84, 84, 4)), "reward": (np.float32, ())})
    rows = {"obs": np.ones((1000, 84, 84, 4), np.uint8), "reward": np.zeros(1000, np.float32)}
    for _ in range(20):
        buffer.extend(rows)

    def plain() -> None:
        drawn = buffer.sample(batch)
        {name: torch.from_numpy(array).to("cuda") for name, array in drawn.items()}
        torch.cuda.synchronize()

    def pinned() -> None:
        buffer.sample(batch, device="cuda")
        torch.cuda.synchronize()

    times = interleave({"gathered, then moved": plain, 'sample(device="cuda")': pinned}, bursts, 0.1)
    print(f"\nreplay, batches of {batch} pictures to the device, {bursts} bursts each, medians")
    for name, taken in times.items():
        speed = batch * PICTURE / taken.median_s / 1e9
        ratio = taken.speedup(times["gathered, then moved"])
        print(f"  {name:40} {taken.median_s * 1e6:8.0f} us   {speed:5.1f} GB/s   {ratio:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--bursts", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: small sizes, one short turn of each"
    )
    args = parser.parse_args()
    if args.smoke:
        args.megabytes, args.num_envs, args.bursts, args.steps = [8], [64], 1, 1
    if not torch.cuda.is_available():
        raise SystemExit("this measures the way to a GPU, and torch finds none")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for megabytes in args.megabytes:
        bandwidth(megabytes, args.bursts)
    for num_envs in args.num_envs:
        stepping(num_envs, args.bursts, args.steps)
    replay(args.bursts)


if __name__ == "__main__":
    main()
