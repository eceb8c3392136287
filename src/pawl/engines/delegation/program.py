"""A task as a program: its arguments, its environment, its limits and the sandbox around it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from pawl.config import AgentConfig
from pawl.config.agents import PLACEHOLDER
from pawl.control_plane.model import Task
from pawl.engines.delegation.model import OPERATOR
from pawl.home import Home
from pawl.policy import Policy
from pawl.runner.launcher import Limits
from pawl.runner.spool import Spool

# A program without these finds neither its tools nor its files nor its language: they are there in any case.
_ALWAYS = ("PATH", "HOME", "LANG")


def reads_as_option(agent: AgentConfig, prompt: bytes) -> bool:
    """Whether an agent's program would take this prompt for one of its options. Behind a ``--`` it does not.

    Only the prompt can be that: what else of a request comes to stand for a placeholder begins with ``/`` (paths) or as
    the names of tools do.
    """
    return agent.prompt == "argument" and prompt.startswith(b"-") and agent.command[-1:] != ("--",)


def arguments(agent: AgentConfig, policy: Policy, task: Task, spool: Spool, cwd: str) -> tuple[str, ...]:
    """The command of an agent for one task: placeholders filled in, the prompt added where it is an argument."""
    values = _values(agent, policy, task, spool, cwd)
    command = tuple(PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word) for word in agent.command)
    if agent.prompt == "argument":
        return (*command, os.fsdecode(task.prompt))
    if agent.prompt == "file" and not any("prompt_file" in PLACEHOLDER.findall(word) for word in agent.command):
        return (*command, spool.prompt)
    return command


def environment(
    task: Task, spool: Spool, home: Home, agent: AgentConfig, policy: Policy, cwd: str, extra: Mapping[str, str],
    outside: Mapping[str, str],
) -> dict[str, str]:  # fmt: skip
    """The whole environment of a task's program. ``outside`` is the daemon's own, of which the policy passes some;
    ``extra`` is what was asked for with the task."""
    found = {name: outside[name] for name in policy.env if name in outside}
    for name in _ALWAYS:
        if name not in found:
            found[name] = _default(name)
    found.update(extra)
    found.update(
        PAWL_HOME=home.path,
        PAWL_SOCKET=home.socket,
        PAWL_TASK_ID=task.id,
        PAWL_AGENT=task.agent,
        PAWL_DEPTH=str(task.depth),
        PAWL_IDEMPOTENCY_KEY=key_of(task),
        PAWL_TASK_DIR=spool.files,
        PAWL_WORKSPACE=policy.workspace or cwd,
    )
    if policy.allowed_tools is not None:
        found["PAWL_ALLOWED_TOOLS"] = ",".join(policy.allowed_tools)
    if policy.denied_tools:
        found["PAWL_DENIED_TOOLS"] = ",".join(policy.denied_tools)
    if policy.always_ask:
        found["PAWL_ALWAYS_ASK"] = ",".join(policy.always_ask)
    if agent.model is not None:
        found["PAWL_MODEL"] = agent.model
    return found


def key_of(task: Task) -> str:
    """Under which key a program may ask others for something once: that of its request where no other work can have it
    too. What tasks choose are keys within their own work, and several that were asked for at once share one."""
    own = task.idempotency_key if task.key_scope == OPERATOR and task.key_place == 0 else None
    return own or task.id


def limits(policy: Policy) -> Limits | None:
    """The limits that the system holds its processes to; None where there are none."""
    found = Limits(
        cpu_s=None if policy.cpu_ms is None else max(1, policy.cpu_ms // 1000),
        memory_bytes=policy.memory_bytes,
        processes=policy.processes,
        open_files=policy.open_files,
    )
    return None if found == Limits() else found


def _values(agent: AgentConfig, policy: Policy, task: Task, spool: Spool, cwd: str) -> dict[str, str]:
    """What stands for the placeholders of a command. One that has no value here is left as it is written."""
    values = {
        "denied_tools": ",".join(policy.denied_tools),
        "always_ask": ",".join(policy.always_ask),
        "workspace": policy.workspace or cwd,
        "agent": task.agent,
        "task_id": task.id,
        "task_dir": spool.files,
        "depth": str(task.depth),
    }
    if policy.allowed_tools is not None:
        values["allowed_tools"] = ",".join(policy.allowed_tools)
    if agent.model is not None:
        values["model"] = agent.model
    if agent.prompt == "file":
        values["prompt_file"] = spool.prompt
    return values


def _default(name: str) -> str:
    if name == "PATH":
        return os.defpath
    if name == "LANG":
        return "C.UTF-8"
    return pwd.getpwuid(os.geteuid()).pw_dir
