"""GGUF files: headers, the files of a model, and a header as the config of its family."""
