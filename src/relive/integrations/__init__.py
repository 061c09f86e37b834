"""Adapters to other libraries: each imports what it adapts, and nothing imports them."""
