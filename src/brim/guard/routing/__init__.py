"""Which replica a request goes to, by what each holds and by when it can start."""
