"""SOP: procedures with steps, routes and gates. So far their definitions; nothing runs them yet.

Owns: what a folder with ``SOP.toml`` and ``SOP.md`` means: the procedure as values, what follows a step, when a person
is asked, which events start it, and everything in it that does not say what it seems to.
Does not own: the files, which are their authors' and are only read; agents, policies and schedules, which the
configuration and cron know and which are handed in by name.
Authoritative for: nothing that is stored.
Invariants: what ZeroClaw loads is loaded with the same meaning; no text makes the reader raise; one bad folder keeps no
other from loading; whatever is read otherwise than it is written is a finding.
Clock: none.
"""
