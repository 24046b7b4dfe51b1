"""Leases: the processes on one device tell each other what they hold and what they will take."""
