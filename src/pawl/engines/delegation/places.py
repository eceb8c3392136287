"""Where work in a sandbox takes place: real places, fixed when it is admitted and compared when it starts.

A path is only words: whoever may write to a directory on its way may put a link there, and a sandbox that was made by
the words would open what the link leads to. So a policy is admitted with the real path of its workspace, a task with
the real path of its directory, and neither may be another place by the start. The moment that is left between this
comparison and the mount is the keeper's to close (``spawn``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import pawl
from pawl.config import Config, PolicyConfig
from pawl.config.agents import defeats_sandbox
from pawl.errors import SandboxUnavailable
from pawl.home import Home
from pawl.policy import Policy
from pawl.policy.narrow import within
from pawl.runner import sandbox
from pawl.runner.sandbox import Sandbox

# Where this interpreter and this package lie, so that `pawl` can be called from inside a sandbox wherever they are.
_OURSELVES = (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.abspath(pawl.__file__))))


def settled(policy: Policy, config: Config, *callers: Policy) -> Policy:
    """The policy with the real path of its workspace, where it has a sandbox.

    Raises ``sandbox_unavailable`` where a link leads there that a task in a sandbox may have put there: one in the
    workspace of any policy of the configuration or of the callers; and where the place defeats the sandbox.
    """
    if policy.sandbox == "off" or policy.workspace is None:
        return policy
    real, links = sandbox.resolve(policy.workspace)
    open_to_tasks = _workspaces((*config.policies.values(), *callers))
    for link, _ in links:
        if any(within(os.path.dirname(link), each) for each in open_to_tasks):
            raise SandboxUnavailable(
                f"cannot make the sandbox: the workspace {policy.workspace} goes through the link {link}, which a task "
                "may have put there; remove it, or name the real path",
                path=policy.workspace, link=link,
            )  # fmt: skip
    if defeats_sandbox(real):  # one that a target without a sandbox brought, or a link
        raise SandboxUnavailable(
            f"cannot make the sandbox: the workspace {real} leaves it nothing to hold back; name another",
            path=real,
        )
    return policy._replace(workspace=real)


def box(policy: Policy, home: Home, files: str, cwd: str, *programs: str) -> Sandbox:
    """The sandbox of a task with this policy, own directory and directory to work in, for these programs."""
    workspace = () if policy.workspace is None else (policy.workspace,)
    return Sandbox(
        writable=(*workspace, files),
        readable=(os.path.dirname(home.socket), *_OURSELVES, *programs),
        protected=(home.path, home.data, home.run, home.logs),
        network=policy.network == "on",
        cwd=cwd,
        fixed=(*workspace, cwd),
    )


def _workspaces(policies: Iterable[Policy | PolicyConfig]) -> list[str]:
    return [each.workspace for each in policies if each.sandbox != "off" and each.workspace is not None]
