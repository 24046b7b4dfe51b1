"""One file per tool that writes quantised checkpoints: each reads its config's fields into a `Quantisation`."""
