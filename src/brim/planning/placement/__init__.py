"""Where the parts of a model are: pipeline stages, replicas, experts, adapters, layers and KV in host memory."""
