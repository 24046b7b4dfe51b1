"""One file for each kind of source: what its lines or records mean, as facts."""
