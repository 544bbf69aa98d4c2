"""One module for each picture: the load, the policy, and the result."""
