"""One file for each picture: the load, the policy, and what came of it."""
