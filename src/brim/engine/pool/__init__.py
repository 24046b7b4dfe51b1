"""Everything of an engine that has a KV size: built, served from, freed."""
