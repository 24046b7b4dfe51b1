"""One file per kind of family: each reads its config's fields and builds layers out of `brim.model.blocks`."""
