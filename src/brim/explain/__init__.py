"""Why a server ran out of memory: facts from recordings, logs and snapshots, a cause with its evidence, and a fix."""
