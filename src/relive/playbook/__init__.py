"""The playbook: what past experience puts back into prompts."""
