"""Commands and options for processes that share a device (`brim.reserve`)."""
