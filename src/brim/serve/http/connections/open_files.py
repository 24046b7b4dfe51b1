"""Open files: a process may have so many, and every connection is one."""

from __future__ import annotations

import resource

_OWN_FILES = 256  # of the model, the libraries, the worker processes and what comes and goes


def connections_allowed(wanted: int) -> int:
    """As many as wanted, or as the limit of open files allows; the soft limit of this process is raised for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return min(wanted, max(1, raised - _OWN_FILES))
