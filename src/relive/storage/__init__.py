"""The durable store of experiences."""
