"""Real vLLM on the CPU with Brim's worker: `make test-vllm`, in environments of their own."""
