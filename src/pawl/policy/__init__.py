"""Policies: what an agent's work may do, and what becomes of that when work is handed on.

Owns: the effective policy of a task as a value, its canonical text and digest, and how one is cut down to another.
Does not own: the keys of the configuration file, the budgets that policies limit, the rows that record a digest.
Authoritative for: what "narrower" means.
Invariants: what is narrowed is at most either of both; what is asked for on top only narrows; equal meaning has an
equal digest.
Clock: none.
"""

from pawl.policy.model import Policy, Sourced
from pawl.policy.narrow import Overrides, beyond, narrow, override
from pawl.policy.source import of

__all__ = ["Overrides", "Policy", "Sourced", "beyond", "narrow", "of", "override"]
