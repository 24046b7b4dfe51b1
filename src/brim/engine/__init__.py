"""The serving engine: runs a model inside the memory that was planned for it."""
