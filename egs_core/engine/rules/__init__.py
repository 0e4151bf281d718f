"""Answers without effects: what fits, what quotas allow, who is in the way."""
