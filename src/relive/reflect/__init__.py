"""Reflection: what experience teaches, written as candidate lessons."""
