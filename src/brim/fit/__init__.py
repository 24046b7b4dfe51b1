"""The KV cache sized by measurement and proven before the first request."""
