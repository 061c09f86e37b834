"""Environments: tasks that an agent can be run on."""
