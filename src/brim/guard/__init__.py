"""Policies: which request is admitted, which is preempted. Pure functions of records."""
