"""vLLM's own rules: the profile it sizes its KV cache by, what that leaves out, and what its worst load holds.

Read in the sources of vLLM 0.26 and compared with real starts on an H200 (`benchmarks/vllm_rows.py`).
"""
