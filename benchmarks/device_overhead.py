"""What a CUDA process takes before the first weight: driver, context, kernels, workspaces, and graph capture.

These are the figures behind the `context`, `workspace` and `graphs` items of a plan. Needs a GPU and torch:

    python benchmarks/device_overhead.py [--out FILE] [--commit HASH]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20


def used_bytes() -> int:
    """Memory of the card in use, as the driver reports it (on an idle machine: this process)."""
    import pynvml

    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def commit() -> str:
    """The commit of this checkout; "unknown" on a machine that has only the files."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def grown(action: Callable[[], object]) -> int:
    """Driver memory that an action took beyond what torch's allocator reserved for tensors."""
    import torch

    torch.cuda.synchronize()
    before = used_bytes() - torch.cuda.memory_reserved()
    action()
    torch.cuda.synchronize()
    return used_bytes() - torch.cuda.memory_reserved() - before


def measure() -> dict[str, object]:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    idle = used_bytes()

    import torch

    torch.cuda.init()
    torch.cuda.synchronize()
    context = used_bytes() - idle
    free, usable = torch.cuda.mem_get_info()

    hidden, inner, layers = 4096, 14336, 8
    bf16 = torch.bfloat16
    x = torch.randn(256, hidden, device="cuda", dtype=bf16)
    up = [torch.randn(inner, hidden, device="cuda", dtype=bf16) * 0.01 for _ in range(layers)]
    down = [torch.randn(hidden, inner, device="cuda", dtype=bf16) * 0.01 for _ in range(layers)]
    q = torch.randn(4, 32, 512, 128, device="cuda", dtype=bf16)
    sdpa = torch.nn.functional.scaled_dot_product_attention

    reserved = torch.cuda.memory_reserved()
    gemm = grown(lambda: x @ up[0].T)
    gemm_workspace = torch.cuda.memory_reserved() - reserved
    attention = grown(lambda: sdpa(q, q, q, is_causal=True))
    logits = torch.randn(64, 128256, device="cuda", dtype=torch.float32)
    sampler = grown(lambda: torch.multinomial(torch.softmax(logits.sort(-1).values.cumsum(-1), -1), 1))

    def step(rows: int) -> torch.Tensor:
        y = x[:rows]
        for a, b in zip(up, down, strict=True):
            y = y + torch.nn.functional.silu(y @ a.T) @ b.T
            y = y * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(bf16)
        return y

    pool = torch.cuda.graph_pool_handle()
    graphs = []
    per_graph = []
    reserved_before = torch.cuda.memory_reserved()
    for rows in (256, 128, 64, 32, 16, 8):
        step(rows)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()

        def capture(graph: torch.cuda.CUDAGraph = graph, rows: int = rows) -> None:
            with torch.cuda.graph(graph, pool=pool):
                step(rows)
            graph.replay()

        per_graph.append(grown(capture))
        graphs.append(graph)
    nodes = layers * 9
    return {
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()},
        "commit": commit(),
        "nvml_total_bytes": total,
        "cuda_total_bytes": usable,
        "hidden_by_driver_bytes": total - usable,
        "idle_used_bytes": idle,
        "context_bytes": context,
        "free_after_context_bytes": free,
        "gemm_bytes": gemm,
        "gemm_workspace_bytes": gemm_workspace,
        "attention_bytes": attention,
        "sampler_bytes": sampler,
        "graph_bytes_each": per_graph,
        "graph_nodes_each": nodes,
        "graph_pool_reserved_bytes": torch.cuda.memory_reserved() - reserved_before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="for a machine that has only the files", default=None)
    arguments = parser.parse_args()
    found = measure()
    found["commit"] = arguments.commit or found["commit"]
    for name, value in found.items():
        shown = f"{value / MIB:12.1f} MiB" if isinstance(value, int) and name.endswith("bytes") else value
        print(f"{name:28} {shown}")
    print(json.dumps(found))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
