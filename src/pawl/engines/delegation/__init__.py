"""Delegation: work that somebody hands to an agent.

Owns: what a request to delegate must be, who is recorded as its creator, and how a task becomes a program with its
arguments, environment, directory and prompt.
Does not own: the row and the running of it (the control plane), which agents there are (the configuration).
Authoritative for: nothing that is stored; its tasks are the control plane's.
Invariants: alias, chain and depth of a caller come from its own row, never from what it says; a program gets the
variables that its policy names and nothing else of the daemon's environment.
Clock: wall, for budgets.
"""
