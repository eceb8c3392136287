"""What decides: whether a request is taken, and how a delegated task is done."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pawl.config import AgentConfig, Config
from pawl.control_plane import store
from pawl.control_plane.engine import ControlPlane
from pawl.control_plane.model import NewTask, PolicyText, Task
from pawl.control_plane.statements import Q
from pawl.control_plane.store import Submitted
from pawl.control_plane.work import Inline, Plan, Program, Refusal
from pawl.engines.delegation import program
from pawl.engines.delegation.admission import Admitting, no_option, no_sandbox
from pawl.engines.delegation.inputs import opened
from pawl.engines.delegation.model import OPERATOR, Admission, Caller, Request, SpawnRequest
from pawl.engines.delegation.places import box, settled
from pawl.errors import (
    AgentDisabled,
    AgentNotFound,
    InvalidParams,
    PawlError,
    PolicyDisjoint,
    RefusedByPolicy,
    SandboxUnavailable,
    StorageError,
)
from pawl.ids import PREFIX_CHARACTERS_MIN, new_id
from pawl.log import logger
from pawl.policy import Policy, Sourced, narrow, of
from pawl.policy.narrow import within
from pawl.runner import sandbox
from pawl.runner.sandbox import Offer
from pawl.runner.spool import Spool
from pawl.storage import Artifact

log = logger("delegation")
KINDS = ("delegate", "subagent")
_POLICIES_KEPT = 1000
_REMEMBERED = (RefusedByPolicy, AgentDisabled)  # an unknown name is none of ours, and there are too many of them


class Delegation:
    """The delegation engine of one daemon. ``config`` answers with the configuration in force."""

    def __init__(self, plane: ControlPlane, config: Callable[[], Config]) -> None:
        self._plane = plane
        self._config = config
        self._policies: dict[str, Policy] = {}  # those that were read or made, by digest
        self._texts: dict[Policy, PolicyText] = {}
        self._own: dict[str, Sourced] = {}  # what the configuration below gives each agent's work
        self._own_of: Config | None = None
        self._offer: Offer | None = None

    # --- requests ---------------------------------------------------------------------------------------------------

    async def delegate(self, request: Request, caller: Caller) -> Submitted:
        """Take a request: its task is stored, and started where a slot is free, when this returns.

        Raises ``agent_not_found``, ``agent_disabled``, the refusals of ``admission``, ``caller_ended``,
        ``task_not_found`` (the parent), ``idempotency_conflict``, ``invalid_params`` (an input that cannot be read, a
        parent that a task named and is not) and storage errors; then nothing was stored.
        """
        return (await self.fan_out([request], caller))[0]

    async def fan_out(self, requests: Sequence[Request], caller: Caller) -> list[Submitted]:
        """The same for several requests, in order: all are taken, or none is."""
        parents = [await self._parent(request, caller) for request in requests]
        before = await self._taken_before(requests, caller, parents)
        if before:
            return before
        actions = sum(request.actions for request in requests)
        policy = await self._policy_of_caller(caller)
        admitted = []
        for request in requests:
            try:
                admitted.append((request, await self._admitting().delegate(request, caller, policy, actions)))
            except PawlError as error:
                await self._remember(caller, request.agent, error)
                raise
        new = [
            self._new_task(request, caller, admission, parent, await self._take_inputs(request, caller, policy))
            for (request, admission), parent in zip(admitted, parents, strict=True)
        ]
        return await self._submit(new, caller)

    async def spawn(self, request: SpawnRequest, caller: Caller) -> Submitted:
        """Take a request for a sub-agent of the calling task.

        Raises ``inside_only``, ``spawn_nested``, ``spawn_denied``, ``policy_widens``, and what ``delegate`` does.
        """
        if caller.task is not None and request.request_key is not None:
            before = await self._by_key(caller.task.id, request.request_key, [_spawn_digest(request)])
            if before:
                return before[0]
        policy = await self._policy_of_caller(caller)
        try:
            admission = await self._admitting().spawn(request, caller, policy)
        except PawlError as error:
            await self._remember(caller, caller.creator, error)
            raise
        assert caller.task is not None
        return (await self._submit([self._new_subagent(request, caller.task, caller.depth, admission)], caller))[0]

    async def _taken_before(
        self, requests: Sequence[Request], caller: Caller, parents: list[str | None]
    ) -> list[Submitted]:
        """What an idempotency key brings back: asked first, since a repetition passes no gate and costs nothing."""
        key = requests[0].idempotency_key
        if key is None or not await self._plane.reader.all(Q.by_key, (caller.key_scope, key)):
            return []
        policy = await self._policy_of_caller(caller)
        digests: list[str | None] = []
        for request, parent_id in zip(requests, parents, strict=True):
            inputs = await self._take_inputs(request, caller, policy)
            digests.append(_digest(request, None if caller.task else parent_id, inputs))
        return await self._by_key(caller.key_scope, key, digests)

    async def _by_key(self, whose: str, key: str, digests: list[str | None]) -> list[Submitted]:
        rows = await self._plane.reader.all(Q.by_key, (whose, key))
        return [Submitted(task, False) for task in store.same_request(rows, key, digests)] if rows else []

    async def _submit(self, new: list[NewTask], caller: Caller) -> list[Submitted]:
        try:
            return await self._plane.submit_all(new)
        except PawlError as error:  # what was admitted together with others may find the budget used up now
            await self._remember(caller, new[0].agent, error)
            raise

    async def _remember(self, caller: Caller, agent: str, error: PawlError) -> None:
        """Keep a refusal for `pawl why`. It is no reason to fail otherwise if that cannot be written."""
        if caller.task is None or not isinstance(error, _REMEMBERED):
            return
        details = {"agent": agent, "code": error.code, "gates": error.details.get("gates", [])}
        try:
            await self._plane.writer.submit(store.refuse, caller.task.id, error.message, details)
        except StorageError as fault:
            log.warning("cannot remember a refusal", task=caller.task.id, code=error.code, error=fault.message)

    def unattended(
        self, agent: str, prompt: bytes, *, kind: str, timeout_ms: int | None, retries: int, principal: str,
        source: dict[str, Any], labels: dict[str, str],
    ) -> NewTask:  # fmt: skip
        """A task for an agent that the operator wants done at some time or on some occasion, under the agent's own
        policy. Raises ``agent_not_found``, ``agent_disabled`` and ``sandbox_unavailable``."""
        target = self._config().agent(agent)
        if not target.enabled:
            raise AgentDisabled(f"cannot start work for {agent}: it is disabled in the configuration", agent=agent)
        own = self.configured(agent)
        assert own is not None, "the configuration has the agent"
        policy = settled(own.policy, self._config())
        return NewTask(
            id=new_id(),
            kind=kind,
            agent=agent,
            prompt=prompt,
            timeout_ms=timeout_ms or target.timeout_ms,
            creator=OPERATOR,
            principal=principal,
            retries=retries,
            cwd=policy.workspace,
            policy=self._stored(policy),
            labels=json.dumps(labels),
            source=json.dumps(source),
        )

    # --- policies ---------------------------------------------------------------------------------------------------

    async def policy_of(self, task: Task) -> Policy:
        """The effective policy that a task was admitted or started under. Rows older than policies have that of their
        agent."""
        text = await self._text(task)
        if text is not None:
            return text
        own = self.configured(task.agent)
        if own is not None:
            return own.policy
        raise AgentNotFound(f"cannot tell the policy of {task.id}: the agent {task.agent} is not configured any more")

    def configured(self, agent: str) -> Sourced | None:
        """What the configuration in force says to an agent's work; None where there is no such agent."""
        config = self._config()
        if config is not self._own_of:
            self._own_of, self._own = config, {}
        if agent not in self._own and agent in config.agents:
            self._own[agent] = of(config, agent)
        return self._own.get(agent)

    async def _text(self, task: Task) -> Policy | None:
        if task.policy_sha256 is None:
            return None
        if task.policy_sha256 not in self._policies:
            found = await self._plane.policy_text(task)
            assert found is not None
            self._stored(Policy.parse(found.document))
        return self._policies[task.policy_sha256]

    def _stored(self, policy: Policy) -> PolicyText:
        """A policy as it is stored. What was read or made is remembered, within bounds: a program may ask for ever new
        ones."""
        if policy not in self._texts:
            if len(self._texts) >= _POLICIES_KEPT:
                self._texts.clear()
                self._policies.clear()
            self._texts[policy] = PolicyText(policy.sha256, policy.document)
            self._policies[self._texts[policy].sha256] = policy
        return self._texts[policy]

    async def _policy_of_caller(self, caller: Caller) -> Policy | None:
        if caller.task is None:
            return None
        # as it is now: between admission and start its policy may have been narrowed
        return await self.policy_of(await self._plane.settlement.row(caller.task.id))

    async def workspaces(self, caller: Caller) -> list[str]:
        """The directories that a caller's older results may lie in: a task's own, for the operator all there are."""
        if caller.task is None:
            return sorted({policy.workspace for policy in self._config().policies.values() if policy.workspace})
        own = (await self.policy_of(caller.task)).workspace or caller.task.cwd
        return [own] if own else []

    def _admitting(self) -> Admitting:
        now_ms = self._plane.timers.clock.wall_ms()
        return Admitting(
            self._config(), self._plane.reader, now_ms, self.sandbox_offer, self.configured, self._plane.home
        )

    @property
    def offer(self) -> Offer | None:
        """What this machine was found to offer in sandboxes; None where nobody has asked yet."""
        return self._offer

    async def sandbox_offer(self) -> Offer:
        """What this machine offers in sandboxes. What works is asked once, while its program is there; what does not
        may have been mended."""
        if self._offer is None or not self._offer.works or not os.access(self._offer.program or "", os.X_OK):
            self._offer = await asyncio.to_thread(sandbox.available)
        return self._offer

    # --- how its tasks are done -------------------------------------------------------------------------------------

    async def plan(self, task: Task, spool: Spool, command: tuple[str, ...] = ()) -> Plan:
        """How an agent's task is done: by the agent in force at its start, or in its place by ``command``, under what
        its policy was at its admission and is now, whichever is narrower."""
        config = self._config()
        agent = config.agents.get(task.agent)
        if agent is None:
            return Refusal("agent_not_found", f"the agent {task.agent} is not configured any more")
        if command:
            agent = agent.model_copy(update={"command": command, "prompt": "stdin"})
        elif agent.builtin:
            return Inline(task.prompt)
        if agent.prompt == "argument" and b"\0" in task.prompt:
            return Refusal("prompt_not_an_argument", "the prompt holds a zero byte, which no argument can")
        if task.creator != OPERATOR and program.reads_as_option(agent, task.prompt):  # it did not at the admission
            raise no_option(agent.name)
        admitted = await self.policy_of(task)
        fixed = task.policy_sha256 is not None and admitted.sandbox != "off"
        if fixed:
            for place in filter(None, (admitted.workspace, task.cwd)):
                sandbox.unmoved(place)
        own = self.configured(task.agent)
        policy = admitted
        if own is not None and own.policy != admitted:
            policy = self._narrowed(admitted, own.policy)
        if not fixed or policy.workspace != admitted.workspace:
            policy = settled(policy, config)
        cwd = task.cwd or policy.workspace
        if policy.workspace != admitted.workspace and policy.workspace is not None:
            cwd = cwd if cwd is not None and within(cwd, policy.workspace) else policy.workspace
        env = program.environment(
            task, spool, self._plane.home, agent, policy, cwd or "", json.loads(task.env), os.environ
        )
        if task.retry_of is not None:
            env["PAWL_IDEMPOTENCY_KEY"] = await self._first_key(task)
        cwd = cwd or env["HOME"]
        if policy.sandbox != "off" and not (fixed and task.cwd):
            cwd, _ = sandbox.resolve(cwd)
        env["PAWL_WORKSPACE"] = policy.workspace or cwd
        argv = command or program.arguments(agent, policy, task, spool, cwd)
        return Program(
            argv=argv,
            env=env,
            cwd=cwd,
            prompt=task.prompt if agent.prompt in ("stdin", "file") and not command else None,
            reads_prompt=agent.prompt == "stdin" and not command,
            max_output_bytes=policy.max_output_bytes,
            limits=program.limits(policy),
            wrapper=await self._wrapper(policy, spool, cwd, argv, env["PATH"]),
            policy=None if policy == admitted and task.policy_sha256 is not None else self._stored(policy),
            bare=partial(self._may_be_bare, task.id) if policy.sandbox == "preferred" else None,
        )

    def _narrowed(self, admitted: Policy, now: Policy) -> Policy:
        try:
            return narrow(Sourced(admitted, {}), now, "the configuration in force").policy
        except PolicyDisjoint:
            raise PolicyDisjoint(
                f"cannot start it: it was admitted for the workspace {admitted.workspace}, and the configuration now "
                f"says {now.workspace}; ask for it again",
                field="workspace",
            ) from None

    async def max_output_of(self, task: Task) -> int:
        """The output cap of a task, in bytes."""
        try:
            return (await self.policy_of(task)).max_output_bytes
        except AgentNotFound:
            return self._config().policies["default"].max_output_bytes

    async def _first_key(self, task: Task) -> str:
        """The key of the request that a retry belongs to: the first attempt's."""
        first = task.budget_id or task.id
        row = await self._plane.reader.one(Q.by_id, (first,))
        return first if row is None else program.key_of(Task._make(row))

    def slots_of(self, agent: str) -> int | None:
        """How many tasks of an agent may run at once, by its own setting."""
        known = self._config().agents.get(agent)
        return None if known is None else known.max_concurrent

    async def _wrapper(
        self, policy: Policy, spool: Spool, cwd: str, argv: tuple[str, ...], path: str
    ) -> tuple[str, ...]:  # fmt: skip
        """The words that put a program into the sandbox of its policy. Raises ``sandbox_unavailable``."""
        if policy.sandbox == "off":
            return ()
        offer = await self.sandbox_offer()
        if not offer.works or offer.program is None:
            if policy.sandbox == "required":
                raise no_sandbox(offer)
            await self._note_bare(spool.task_id, offer)
            return ()
        if policy.workspace is not None and not os.path.isdir(policy.workspace):
            raise SandboxUnavailable(f"cannot make the sandbox: the workspace {policy.workspace} is not there")
        found = shutil.which(argv[0], path=path)
        made = box(policy, self._plane.home, spool.files, cwd, *([found] if found else []))
        return sandbox.wrapper(offer.program, made, by_descriptor=offer.by_descriptor)

    async def _may_be_bare(self, task_id: str) -> bool:
        """Whether a task that prefers a sandbox may start without, since its own could not be made: where this machine
        makes none any more. Where it does, it is this one that is wrong, and it fails."""
        self._offer = None
        offer = await self.sandbox_offer()
        if not offer.works:
            await self._note_bare(task_id, offer)
        return not offer.works

    async def _note_bare(self, task_id: str, offer: Offer) -> None:
        """Not silently: `pawl why` and the audit log tell of it."""
        await self._plane.writer.submit(store.note, task_id, "unsandboxed", offer.reason)

    # --- rows -------------------------------------------------------------------------------------------------------

    def _new_task(
        self, request: Request, caller: Caller, admission: Admission, parent_id: str | None,
        inputs: list[tuple[str, Artifact]],
    ) -> NewTask:  # fmt: skip
        agent = self._config().agent(request.agent)
        policy = admission.policy.policy
        return NewTask(
            id=new_id(),
            kind="delegate",
            agent=request.agent,
            prompt=request.prompt,
            timeout_ms=request.timeout_ms or agent.timeout_ms,
            creator=caller.creator,
            principal=caller.principal,
            priority=request.priority,
            queue_timeout_ms=request.queue_timeout_ms,
            retries=request.retries,
            cwd=admission.cwd,
            env=json.dumps(request.env) if request.env else "{}",
            chain=json.dumps(caller.chain) if caller.chain else "[]",
            depth=caller.depth,
            parent_id=parent_id,
            mode=admission.mode,
            policy=self._stored(policy),
            labels=json.dumps(request.labels) if request.labels else "{}",
            source=json.dumps(request.source) if request.source else "{}",
            idempotency_key=request.idempotency_key,
            key_scope=caller.key_scope,
            key_place=request.place,
            request_sha256=_digest(request, None if caller.task else parent_id, inputs)
            if request.idempotency_key
            else None,
            inputs=tuple(inputs),
            asked_by=caller.task.id if caller.task else None,
            actions=request.actions,
            why=admission.gates,
        )

    def _new_subagent(self, request: SpawnRequest, parent: Task, depth: int, admission: Admission) -> NewTask:
        """A sub-agent's row leaves creator, chain and principal absent: it is its parent, once more."""
        agent: AgentConfig = self._config().agent(parent.agent)
        env: dict[str, str] = json.loads(parent.env)
        if request.overrides.env is not None:
            env = {name: value for name, value in env.items() if name in request.overrides.env}
        return NewTask(
            id=new_id(),
            kind="subagent",
            agent=parent.agent,
            prompt=request.prompt,
            timeout_ms=request.timeout_ms or agent.timeout_ms,
            creator=None,
            principal=None,
            priority=parent.priority,
            cwd=admission.cwd,
            env=json.dumps(env) if env else "{}",
            depth=depth,
            parent_id=parent.id,
            mode="bounded",
            policy=self._stored(admission.policy.policy),
            source=json.dumps(request.source) if request.source else "{}",
            idempotency_key=request.request_key,
            key_scope=parent.id,
            request_sha256=_spawn_digest(request) if request.request_key else None,
            asked_by=parent.id,
            actions=1,
            why=admission.gates,
        )

    async def _parent(self, request: Request, caller: Caller) -> str | None:
        """What a new task hangs below: the calling task, which may name no other; the operator may name any."""
        named = request.parent_id
        if caller.task is None:
            return None if named is None else (await self._plane.find(named)).id
        own = caller.task.id
        if named is not None and not (own.startswith(named) and len(named) >= PREFIX_CHARACTERS_MIN):
            raise InvalidParams(
                f"cannot hang it below {named}: what a task asks for is its own child; leave the parent out",
                parent=named, own=own,
            )  # fmt: skip
        return own

    async def _take_inputs(
        self, request: Request, caller: Caller, policy: Policy | None
    ) -> list[tuple[str, Artifact]]:  # fmt: skip
        names = [os.path.basename(path) for path in request.inputs]
        for name in names:
            if names.count(name) > 1:
                raise InvalidParams(f"cannot take two inputs of the name {name}: they lie in one directory", name=name)
        own = self._admitting().inputs_from(caller.task, policy)
        return [await self._take_input(path, own) for path in request.inputs]

    async def _take_input(self, path: str, within: list[str] | None) -> tuple[str, Artifact]:
        """Copy an input file into the artifact store, so that the task has it whatever happens to the file."""
        with opened(path, within) as found:
            staged = await self._plane.artifacts.stage_open(found.descriptor, found.size_bytes)
            if found.changed(staged.artifact.size_bytes):
                self._plane.artifacts.discard(staged)
                raise StorageError(f"cannot take the input {path}: it changed while it was read", path=path)
        await self._plane.artifacts.publish(staged)
        return os.path.basename(path), staged.artifact


def _digest(request: Request, parent_id: str | None, inputs: list[tuple[str, Artifact]]) -> str:
    """What an idempotency key stands for: everything that was asked, but not from where it was asked."""
    body = [
        request.agent, hashlib.sha256(request.prompt).hexdigest(), request.timeout_ms, request.queue_timeout_ms,
        request.retries, request.priority, request.cwd, sorted(request.env.items()), parent_id,
        sorted(request.labels.items()), sorted((name, artifact.sha256) for name, artifact in inputs),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _spawn_digest(request: SpawnRequest) -> str:
    body = [hashlib.sha256(request.prompt).hexdigest(), request.timeout_ms, request.overrides]
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()
