"""vLLM's model runner as an engine that can be sized: its KV cache, its worst steps, its teardown."""
