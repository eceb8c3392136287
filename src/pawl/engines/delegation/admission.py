"""Admission: the gates that a request passes, in their order, before anything of it is stored.

For a task that asks from inside: is the agent known and enabled, is it not too deep, does its budget have room, does
its policy allow delegation, does it reach the target, does an independent target need no person's approval; then what
it asks for beyond the defaults, which may only narrow. The operator passes all but the first and the last, the
sandbox's.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from pawl.config import AgentConfig, Config
from pawl.control_plane import budget
from pawl.control_plane.budget import Holder
from pawl.control_plane.model import Task
from pawl.engines.delegation import program
from pawl.engines.delegation.inputs import beyond
from pawl.engines.delegation.model import Admission, Caller, Request, SpawnRequest
from pawl.engines.delegation.places import box, settled
from pawl.engines.delegation.roster import names, reach
from pawl.errors import (
    AgentDisabled,
    ApprovalNeeded,
    DelegationForbidden,
    DepthExceeded,
    InsideOnly,
    NotReachable,
    PawlError,
    PolicyWidens,
    PromptIsOption,
    SandboxUnavailable,
    SpawnDenied,
    SpawnNested,
)
from pawl.home import Home
from pawl.policy import Policy, Sourced, narrow, override
from pawl.policy.narrow import few, within
from pawl.runner import sandbox
from pawl.runner.sandbox import Offer
from pawl.runner.spool import Spool
from pawl.storage import Reader
from pawl.values import duration_text

SPAWN = "spawn"


class Gates:
    """The gates passed so far. One that refuses raises, with all of them in the error's ``details.gates``."""

    def __init__(self) -> None:
        self.passed: list[dict[str, Any]] = []

    def note(self, gate: str, message: str) -> None:
        """This one is passed, and why."""
        self.passed.append({"gate": gate, "outcome": "passed", "message": message})

    def refuse(self, gate: str, error: PawlError) -> PawlError:
        """The error to raise at this gate."""
        error.details["gates"] = [*self.passed, {"gate": gate, "outcome": "refused", "message": error.message}]
        return error


class Admitting:
    """What the gates need to know of the world."""

    def __init__(
        self, config: Config, reader: Reader, now_ms: int, sandbox: Callable[[], Awaitable[Offer]],
        configured: Callable[[str], Sourced | None], home: Home,
    ) -> None:  # fmt: skip
        self._config = config
        self._reader = reader
        self._now_ms = now_ms
        self._sandbox = sandbox
        self._configured = configured
        self._home = home

    async def delegate(self, request: Request, caller: Caller, policy: Policy | None, actions: int) -> Admission:
        """``policy``: the one that the calling task runs under; ``actions``: what the whole call takes."""
        gates = Gates()
        target = self._target(gates, request.agent, caller)
        own = self._configured(target.name)
        assert own is not None, "the gate before has found the agent"
        if caller.task is None or policy is None:
            own = self._settled(gates, own)
            await self._sandbox_there(gates, own.policy)
            return Admission(None, own, (), _directory(request, own.policy, None))
        self._depth(gates, caller, policy, target, own.policy)
        await self._budget(gates, caller.task, actions)
        if policy.delegation != "allow":
            raise gates.refuse(
                "delegation",
                DelegationForbidden(
                    f"cannot delegate from a task of {caller.creator}: its policy forbids delegation; for tasks "
                    f'started after that, set delegation = "allow" in [policies.{self._policy_name(caller.creator)}]',
                    agent=caller.creator,
                ),
            )
        gates.note("delegation", f"the policy of {caller.creator} allows delegation")
        mode = self._reach(gates, caller, target)
        if mode == "independent" and own.policy.always_ask:
            raise gates.refuse(
                "approval",
                ApprovalNeeded(
                    f"cannot delegate to {target.name} independently: it needs a person's approval for "
                    f"{', '.join(own.policy.always_ask)}, and nobody would be asked; take them out of always_ask in "
                    f'[policies.{target.policy}], or reach it with mode = "bounded"',
                    agent=target.name, always_ask=list(own.policy.always_ask),
                ),
            )  # fmt: skip
        if mode == "independent":
            gates.note("approval", "nothing that it may use needs a person's approval")
        effective = own if mode == "independent" else self._narrowed(gates, own, policy, caller)
        self._prompt(gates, target, request.prompt)
        effective = self._settled(gates, effective, policy)
        self._inputs(gates, request, caller.task, policy)
        cwd = _directory(request, effective.policy, mode)
        self._request(gates, request._replace(cwd=request.cwd and cwd), caller.task, target, effective.policy, mode)
        await self._in_sight(gates, cwd, caller.task, policy)
        await self._sandbox_there(gates, effective.policy)
        return Admission(mode, effective, tuple(gates.passed), cwd)

    async def spawn(self, request: SpawnRequest, caller: Caller, policy: Policy | None) -> Admission:
        """A sub-agent of the calling task."""
        gates = Gates()
        task = caller.task
        if task is None or policy is None:
            raise InsideOnly(
                "cannot spawn from outside a task: a sub-agent is one more run of the task's own agent; "
                "use `pawl delegate AGENT`"
            )
        agent = self._target(gates, task.agent, caller, "spawn from a task of")
        if task.kind == "subagent":
            raise gates.refuse(
                "nested",
                SpawnNested(
                    f"cannot spawn from {task.id}: it is a sub-agent itself, and they are one deep", id=task.id
                ),
            )
        gates.note("nested", "the caller is no sub-agent")
        if SPAWN in policy.denied_tools:
            raise gates.refuse(
                "tool",
                SpawnDenied(
                    f"cannot spawn from a task of {agent.name}: its policy has {SPAWN} in denied_tools",
                    agent=agent.name,
                ),
            )
        self._prompt(gates, agent, request.prompt)
        gates.note("tool", f"{SPAWN} is not among the denied tools")
        own = Sourced(policy, dict.fromkeys(Policy._fields, f"its parent's (task {task.id})"))
        try:
            effective = override(own, request.overrides)
        except PolicyWidens as error:
            raise gates.refuse("overrides", error) from None
        self._timeout(gates, request.timeout_ms, agent, "overrides")
        gates.note("overrides", "what was asked for only narrows")
        await self._budget(gates, task, 1)
        await self._sandbox_there(gates, effective.policy)
        return Admission("bounded", effective, tuple(gates.passed), task.cwd)

    # --- the gates, in their order ----------------------------------------------------------------------------------

    def _target(self, gates: Gates, name: str, caller: Caller, what: str = "delegate to") -> AgentConfig:
        among = None if caller.task is None else names(self._config, caller.creator)
        try:
            agent = self._config.agent(name, among)
        except PawlError as error:
            raise gates.refuse("agent", error) from None
        if not agent.enabled:
            raise gates.refuse(
                "agent",
                AgentDisabled(
                    f"cannot {what} {name}: it is disabled; set enabled = true in [agents.{name}]", agent=name
                ),
            )
        gates.note("agent", f"{name} is known and enabled")
        return agent

    def _depth(self, gates: Gates, caller: Caller, policy: Policy, target: AgentConfig, own: Policy) -> None:
        depth = caller.depth - 1
        limits = (
            (policy.max_depth, f"the policy of {caller.creator}"),
            (own.max_depth, f"the policy of {target.name}"),
        )
        limit, whose = min(limits)
        if depth >= limit:
            raise gates.refuse(
                "depth",
                DepthExceeded(
                    f"cannot delegate to {target.name}: the calling task has depth {depth}, and {whose} allows no "
                    f"delegation from depth {limit} on; do the work here, or raise max_depth for later tasks",
                    depth=depth, limit=limit, agent=target.name,
                ),
            )  # fmt: skip
        gates.note("depth", f"the calling task has depth {depth}, below the limit of {limit} ({whose})")

    async def _budget(self, gates: Gates, task: Task, actions: int) -> None:
        holders = await budget.look(self._reader, task.id, self._now_ms)
        for holder in holders:
            if holder.refuses_action(actions) or holder.refuses_cost:
                try:
                    await budget.refuse(self._reader, holder, actions, task.id, self._now_ms)
                except PawlError as error:
                    raise gates.refuse("budget", error) from None
        gates.note("budget", _room(holders))

    def _reach(self, gates: Gates, caller: Caller, target: AgentConfig) -> str:
        agent = self._config.agents.get(caller.creator)
        how = None if agent is None else reach(self._config, agent, target)
        if how is None:
            name = self._policy_name(caller.creator)
            own = caller.creator == target.name
            remedy = (
                "`pawl spawn` runs it again, or name it"
                if own
                else f"{caller.creator} has the policy {name}, {target.name} has {target.policy}; name it"
            )
            raise gates.refuse(
                "reach",
                NotReachable(
                    f"cannot delegate from {caller.creator} to {'itself' if own else target.name}: {remedy} in "
                    f"delegates of [agents.{caller.creator}]",
                    caller=caller.creator, caller_policy=name, agent=target.name, agent_policy=target.policy,
                ),
            )  # fmt: skip
        gates.note("reach", f"{caller.creator} reaches {target.name} ({how.mode}): {how.why}")
        return how.mode

    def _narrowed(self, gates: Gates, own: Sourced, policy: Policy, caller: Caller) -> Sourced:
        assert caller.task is not None
        try:
            effective = narrow(own, policy, f"agent {caller.creator}, task {caller.task.id}")
        except PawlError as error:
            raise gates.refuse("policy", error) from None
        gates.note("policy", "its policy is cut down to the caller's")
        return effective

    def _prompt(self, gates: Gates, target: AgentConfig, prompt: bytes) -> None:
        """An option of the target's program is not for another agent to choose."""
        if program.reads_as_option(target, prompt):
            raise gates.refuse("prompt", no_option(target.name))

    def _settled(self, gates: Gates, effective: Sourced, *callers: Policy) -> Sourced:
        """What is judged and stored from here on is the place, not the words for it."""
        try:
            return effective._replace(policy=settled(effective.policy, self._config, *callers))
        except SandboxUnavailable as error:
            raise gates.refuse("sandbox", error) from None

    def inputs_from(self, caller: Task | None, policy: Policy | None) -> list[str] | None:
        """The real paths of the directories that a caller's inputs must lie in; None where they may lie anywhere."""
        if caller is None or policy is None or policy.sandbox == "off":
            return None
        # the workspace is the real path that it was admitted with: where it leads now does not count
        workspace = [policy.workspace] if policy.workspace else []
        return [os.path.realpath(os.path.join(self._home.spool, caller.id)), *workspace]

    def _inputs(self, gates: Gates, request: Request, caller: Task, policy: Policy) -> None:
        """A first look at the paths; what counts is what is open in the end (``inputs``)."""
        own = self.inputs_from(caller, policy)
        outside = [] if own is None else [path for path in request.inputs if not any(within(path, at) for at in own)]
        if outside:
            raise gates.refuse("request", beyond(*outside))

    def _request(
        self, gates: Gates, request: Request, caller: Task, target: AgentConfig, policy: Policy, mode: str
    ) -> None:
        """What is asked for beyond the defaults: from inside it may only narrow."""
        self._timeout(gates, request.timeout_ms, target, "request")
        if request.priority > caller.priority:
            raise gates.refuse(
                "request",
                PolicyWidens(
                    f"cannot take the priority {request.priority}: the calling task has {caller.priority}, and what it "
                    "starts may not go before it",
                    field="priority", limit=caller.priority,
                ),
            )  # fmt: skip
        free = policy.workspace is None and mode != "independent"  # there a relative command would be the caller's
        if request.cwd is not None and not free and not _inside(request.cwd, policy.workspace):
            where = f"the workspace {policy.workspace}" if policy.workspace else f"{target.name}'s own directory"
            raise gates.refuse(
                "request",
                PolicyWidens(
                    f"cannot work in {request.cwd}: it lies outside {where}",
                    field="cwd", limit=policy.workspace,
                ),
            )  # fmt: skip
        # no list of names that are dangerous is complete: what a program reads of its environment only its owner knows
        beyond = sorted(name for name in request.env if name not in target.accepts_env)
        if beyond:
            has = f"only {', '.join(target.accepts_env)}" if target.accepts_env else "no variable"
            raise gates.refuse(
                "request",
                PolicyWidens(
                    f"cannot set {few(beyond)} for {target.name} from inside a task: it accepts {has} from there; name "
                    f"it in accepts_env of [agents.{target.name}], or hand it over in the prompt or as an input",
                    field="env", beyond=beyond,
                ),
            )  # fmt: skip

    async def _in_sight(self, gates: Gates, cwd: str | None, caller: Task, policy: Policy) -> None:
        """A child's directory is put back into its sandbox, so that a caller in one must not choose what it cannot see
        itself. The directory that it says it is in itself is no better than one that it asks for."""
        if cwd is not None and policy.sandbox != "off" and (await self._sandbox()).works:
            files = Spool(os.path.join(self._home.spool, caller.id)).files
            if not sandbox.shows(box(policy, self._home, files, caller.cwd or "/"), cwd):
                raise gates.refuse(
                    "request",
                    PolicyWidens(
                        f"cannot work in {cwd}: that is hidden from the calling task by its sandbox; say --cwd with a "
                        "directory that it sees, its own (PAWL_TASK_DIR) for example",
                        field="cwd", limit=policy.workspace,
                    ),
                )  # fmt: skip
        gates.note("request", "what was asked for beyond the defaults only narrows")

    def _timeout(self, gates: Gates, timeout_ms: int | None, agent: AgentConfig, gate: str) -> None:
        if timeout_ms is not None and timeout_ms > agent.timeout_ms:
            raise gates.refuse(
                gate,
                PolicyWidens(
                    f"cannot take a timeout of {duration_text(timeout_ms)}: a task of {agent.name} has "
                    f"{duration_text(agent.timeout_ms)}, and from inside a task that can only be shortened",
                    field="timeout", limit_s=agent.timeout_ms / 1000,
                ),
            )  # fmt: skip

    async def _sandbox_there(self, gates: Gates, policy: Policy) -> None:
        if policy.sandbox != "required":
            return
        offer = await self._sandbox()
        if not offer.works:
            raise gates.refuse("sandbox", no_sandbox(offer))
        gates.note("sandbox", "this machine can make the sandbox that the policy requires")

    def _policy_name(self, alias: str) -> str:
        agent = self._config.agents.get(alias)
        return "default" if agent is None else agent.policy


def no_sandbox(offer: Offer) -> SandboxUnavailable:
    """Why a task that requires a sandbox cannot start."""
    return SandboxUnavailable(
        f'cannot start it: its policy says sandbox = "required", and this machine makes none: {offer.reason}',
        reason=offer.reason,
    )


def _directory(request: Request, policy: Policy, mode: str | None) -> str | None:
    """Where it works: a real path where there is a sandbox."""
    found = request.cwd or policy.workspace or (None if mode == "independent" else request.caller_cwd)
    return sandbox.resolve(found)[0] if found is not None and policy.sandbox != "off" else found


def no_option(agent: str) -> PromptIsOption:
    """Why a prompt from inside a task may not begin like an option."""
    return PromptIsOption(
        f"cannot give {agent} a prompt that begins with - from inside a task: it gets its prompt as an argument, and "
        'would read that as an option; begin it otherwise, or set prompt = "stdin" or "file", or write "--" as the '
        f"last word of command, in [agents.{agent}]",
        agent=agent,
    )


def _inside(path: str, workspace: str | None) -> bool:
    return workspace is not None and within(path, workspace)


def _room(holders: list[Holder]) -> str:
    left = [each.max_actions - each.actions for each in holders if each.max_actions is not None]
    return f"{min(left)} more actions fit into this hour" if left else "no budget limits it"
