"""What vLLM would do by itself: its defaults, the profile it sizes its KV cache by, and what that profile leaves out.

Read in the sources of vLLM 0.26 and compared with real starts on an H200 (`benchmarks/vllm_rows.py`).
"""
