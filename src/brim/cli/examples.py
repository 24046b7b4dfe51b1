"""Commands that work, shown at the end of each `--help`; a test reads every line with the parser of its command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

OVERVIEW = (
    ("brim plan qwen3-8b --gpu rtx-4090", "does it fit, and how many tokens of KV cache?"),
    ("brim plan qwen3-8b --gpu h100 --engine vllm", "the same as a command of vLLM"),
    ("brim plan qwen3-32b --concurrency 64 --max-len 8k", "which GPUs would do, and how many?"),
    ("brim plan ./my-model --gpu 2xl40s --kv-dtype fp8", "a directory with a config.json, on two GPUs"),
    ("brim fit ./my-model", "measured on the GPU of this machine"),
    ("brim serve ./my-model", "serve it over OpenAI's API"),
    ("brim explain vllm.log", "why it ran out of memory, and what prevents it"),
    ("brim models", "what is known by name; brim gpus too"),
)
EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "plan": (
        ("brim plan qwen3-8b --gpu rtx-4090 --engine vllm", "does it fit, as a command of vLLM"),
        ("brim plan qwen3-32b --concurrency 64 --max-len 8k", "which GPUs hold that, and how many"),
        ("brim plan llama-3.1-70b --gpu 4xh100 --weights fp8", "four GPUs, weights in fp8"),
        ("brim plan qwen3-8b llama-3.1-8b --gpu l4,l40s --json", "a comparison, for programs"),
    ),
    "trace": (
        ("brim trace qwen3-8b --tokens 8192", "the peak of a prefill of 8,192 tokens"),
        ("brim trace qwen3-8b --phase decode --batch 64 --context 4k", "64 requests, 4,096 tokens each"),
        ("brim trace ./my-model --svg trace.svg", "a picture of live bytes by owner"),
    ),
    "fit": (
        ("brim fit ./my-model", "on the GPU of this machine"),
        ("brim fit Qwen/Qwen3-8B --max-len 16k --json", "from the hub, for requests of 16,384 tokens"),
        ("brim fit --memory 512MiB", "brim-tiny, on the CPU"),
        ("brim fit Qwen/Qwen3-8B --engine vllm", "a size that vLLM has proven, and its flag"),
    ),
    "generate": (
        ("brim generate --prompt 'Count: 1, 2, 3,'", "brim-tiny, which is in the package"),
        ("brim generate Qwen/Qwen3-8B --prompt 'Why is the sky blue?' --max-tokens 200", "streamed"),
        ("brim generate ./my-model --input prompts.txt --json", "the prompts of a file, batched"),
    ),
    "chat": (
        ("brim chat ./my-model", "in this terminal"),
        ("brim chat qwen3-8b --url http://127.0.0.1:8000", "with a server, by the model's name there"),
        ("brim chat --system 'Answer in one sentence.'", "brim-tiny, with an instruction"),
    ),
    "serve": (
        ("brim serve", "brim-tiny on http://127.0.0.1:8000, on the CPU too"),
        ("brim serve Qwen/Qwen3-8B --max-len 16k --max-seqs 128", "from the hub, on the GPU"),
        ("brim serve ./my-model --host 0.0.0.0 --api-key-file keys", "for other machines, with keys"),
        ("brim serve --config serve.toml --port 9000", "options from a file; the flag overrides it"),
    ),
    "top": (
        ("brim top", "the server on this machine, live"),
        ("brim top --url http://gpu-1:8000 --once", "another, once"),
        ("brim top --json", "for programs"),
    ),
    "explain": (
        ("brim explain vllm.log", "a log of an engine that ran out of memory"),
        ("brim explain server.log nvidia-smi.txt --json", "files of one incident, for programs"),
        ("brim explain --diff monday.log tuesday.log", "what changed between two starts"),
    ),
    "watch": (
        ("brim watch --url http://127.0.0.1:8000 --pid 4242 --log vllm.log", "beside a vLLM server"),
        ("brim watch --seconds 600 --record incident.brim", "for ten minutes, into a file"),
    ),
    "bench": (
        ("brim bench --concurrency 32 --requests 500", "32 clients that wait for their answers"),
        ("brim bench --rate 4 --duration 60s --slo-ttft 500ms --slo-tpot 50ms", "arrivals, and goodput"),
        ("brim bench --replay requests.log --speed 2 --json", "a recorded load, twice as fast"),
    ),
    "vllm": (
        ("brim vllm serve Qwen/Qwen3-8B --max-model-len 16384", "vLLM, sized and proven by Brim"),
        ("brim vllm serve ./my-model --gpu-memory-utilization 0.9", "the fraction is a cap"),
    ),
    "hold": (
        ("brim hold 6GiB -- python embedder.py", "6 GiB of GPU 0 for another process"),
        ("brim hold --gpu 1 --role trainer 20GiB -- ./train.sh", "of another GPU, by a name"),
    ),
    "leases": (
        ("brim leases", "on all devices"),
        ("brim leases --gpu 0 --json", "on one, for programs"),
    ),
    "models": (
        ("brim models", "names, sizes and contexts"),
        ("brim models --families --json", "the model types that are read, for programs"),
    ),
    "gpus": (
        ("brim gpus", "names and memory"),
        ("brim gpus --json", "for programs"),
    ),
    "completion": (
        ("brim completion bash > ~/.local/share/bash-completion/completions/brim", "where bash looks"),
        ("brim completion zsh > ~/.zfunc/_brim", "a folder of $fpath"),
        ("brim completion fish > ~/.config/fish/completions/brim.fish", "where fish looks"),
    ),
}
_COLUMN = 54


def in_columns(examples: Sequence[tuple[str, str]]) -> str:
    """A command and what it does in each line; below each other where the command is long."""
    return "\n".join(
        f"  {command:<{_COLUMN}} {meaning}" if len(command) <= _COLUMN else f"  {command}\n  {'':{_COLUMN}} {meaning}"
        for command, meaning in examples
    )
