"""Configuration: what ``config.toml`` says, checked and with its defaults filled in.

Owns: the keys of the file, their defaults, limits and units; the words for what is wrong with a file.
Does not own: where the file lies (``home``), when it is read again (the daemon), and what schedules, time
zones, programs and procedures mean (the engines): a job whose schedule cannot be read is well formed here.
Authoritative for: whether a file is well formed.

Invariants:

* A ``Config`` is sound: every policy and every delegate that an agent names exists; the agent ``echo`` and
  the policy ``default`` always do.
* A ``Config`` does not change. A new file makes a new one; a bad file makes none.
* Every fault of a file is reported, not only the first; one that concerns a key has its line.
* Nothing but ``InvalidConfig`` comes out of ``load``, whatever the file holds.

Clock: none.
"""

from pawl.config.faults import Fault
from pawl.config.load import check, load
from pawl.config.model import AgentConfig, Config, PolicyConfig

__all__ = ["AgentConfig", "Config", "Fault", "PolicyConfig", "check", "load"]
