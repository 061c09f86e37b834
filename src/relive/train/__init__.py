"""Training on experience: losses, protection against forgetting, schedules, and the gate before a new policy."""
