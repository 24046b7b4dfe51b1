"""From a model's config to a `ModelSpec`. The only package that reads raw config dicts."""
