"""What decides: whether a request is taken, and how a delegated task is done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable

from pawl.config import AgentConfig, Config
from pawl.control_plane.engine import ControlPlane
from pawl.control_plane.model import NewTask, Task
from pawl.control_plane.store import Submitted
from pawl.control_plane.work import Inline, Plan, Program, Refusal
from pawl.engines.delegation.environment import environment
from pawl.engines.delegation.model import Caller, Request
from pawl.errors import AgentDisabled, InvalidParams, StorageError
from pawl.ids import new_id
from pawl.runner.launcher import Limits
from pawl.runner.spool import Spool
from pawl.storage import Artifact

KIND = "delegate"
_PROMPT_FILE = "{prompt_file}"


class Delegation:
    """The delegation engine of one daemon. ``config`` answers with the configuration in force."""

    def __init__(self, plane: ControlPlane, config: Callable[[], Config]) -> None:
        self._plane = plane
        self._config = config

    async def delegate(self, request: Request, caller: Caller) -> Submitted:
        """Take a request: its task is stored, and started where a slot is free, when this returns.

        Raises ``agent_not_found``, ``agent_disabled``, ``task_not_found`` (the parent), ``idempotency_conflict``,
        ``invalid_params`` (an input that cannot be read) and storage errors; then nothing was stored.
        """
        agent = self._config().agent(request.agent)
        if not agent.enabled:
            raise AgentDisabled(
                f"cannot delegate to {request.agent}: it is disabled; set enabled = true in [agents.{request.agent}]",
                agent=request.agent,
            )
        parent_id = caller.task_id
        if request.parent_id is not None and caller.task_id is None:
            parent_id = (await self._plane.find(request.parent_id)).id
        names = [os.path.basename(path) for path in request.inputs]
        for name in names:
            if names.count(name) > 1:
                raise InvalidParams(f"cannot take two inputs of the name {name}: they lie in one directory", name=name)
        inputs = [await self._take_input(path) for path in request.inputs]
        return await self._plane.submit(self._new_task(request, caller, agent, parent_id, inputs))

    def plan(self, task: Task, spool: Spool) -> Plan:
        """How a delegated task is done, by the configuration in force at its start."""
        config = self._config()
        agent = config.agents.get(task.agent)
        if agent is None:
            return Refusal("agent_not_found", f"the agent {task.agent} is not configured any more")
        if agent.builtin:
            return Inline(task.prompt)
        if agent.prompt == "argument" and b"\0" in task.prompt:
            return Refusal("prompt_not_an_argument", "the prompt holds a zero byte, which no argument can")
        policy = config.policy_of(agent)
        env = environment(task, spool, self._plane.home, policy.env, json.loads(task.env), os.environ)
        return Program(
            argv=_arguments(agent, task.prompt, spool),
            env=env,
            cwd=task.cwd or policy.workspace or env["HOME"],
            prompt=task.prompt if agent.prompt in ("stdin", "file") else None,
            reads_prompt=agent.prompt == "stdin",
            max_output_bytes=policy.max_output_bytes,
            limits=_limits(agent, config),
        )

    def max_output_of(self, agent: str) -> int:
        """The output cap of an agent's tasks, in bytes."""
        config = self._config()
        known = config.agents.get(agent)
        policy = config.policies["default"] if known is None else config.policy_of(known)
        return policy.max_output_bytes

    def slots_of(self, agent: str) -> int | None:
        """How many tasks of an agent may run at once, by its own setting."""
        known = self._config().agents.get(agent)
        return None if known is None else known.max_concurrent

    def _new_task(
        self, request: Request, caller: Caller, agent: AgentConfig, parent_id: str | None,
        inputs: list[tuple[str, Artifact]],
    ) -> NewTask:  # fmt: skip
        policy = self._config().policy_of(agent)
        return NewTask(
            id=new_id(),
            kind=KIND,
            agent=request.agent,
            prompt=request.prompt,
            timeout_ms=request.timeout_ms or agent.timeout_ms,
            creator=caller.creator,
            principal=caller.principal,
            priority=request.priority,
            queue_timeout_ms=request.queue_timeout_ms,
            retries=request.retries,
            cwd=request.cwd or policy.workspace or request.caller_cwd,
            env=json.dumps(request.env) if request.env else "{}",
            chain=json.dumps(caller.chain) if caller.chain else "[]",
            depth=caller.depth,
            parent_id=parent_id,
            labels=json.dumps(request.labels) if request.labels else "{}",
            source=json.dumps(request.source) if request.source else "{}",
            idempotency_key=request.idempotency_key,
            request_sha256=_digest(request, parent_id, inputs) if request.idempotency_key else None,
            inputs=tuple(inputs),
        )

    async def _take_input(self, path: str) -> tuple[str, Artifact]:
        """Copy an input file into the artifact store, so that the task has it whatever happens to the file."""
        if not os.path.isfile(path) or not os.access(path, os.R_OK):
            raise InvalidParams(f"cannot take the input {path}: it is no file that can be read", path=path)
        size = os.stat(path).st_size
        staged = await self._plane.artifacts.stage_file(os.path.realpath(path), size)
        if staged.artifact.size_bytes != size:
            self._plane.artifacts.discard(staged)
            raise StorageError(f"cannot take the input {path}: it changed while it was read", path=path)
        await self._plane.artifacts.publish(staged)
        return os.path.basename(path), staged.artifact


def _arguments(agent: AgentConfig, prompt: bytes, spool: Spool) -> tuple[str, ...]:
    """The command of an agent for one prompt."""
    if agent.prompt == "argument":
        return (*agent.command, os.fsdecode(prompt))
    if agent.prompt == "file":
        if any(_PROMPT_FILE in word for word in agent.command):
            return tuple(word.replace(_PROMPT_FILE, spool.prompt) for word in agent.command)
        return (*agent.command, spool.prompt)
    return agent.command


def _limits(agent: AgentConfig, config: Config) -> Limits | None:
    limits = config.policy_of(agent).limits
    found = Limits(
        cpu_s=None if limits.cpu_ms is None else max(1, limits.cpu_ms // 1000),
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        open_files=limits.open_files,
    )
    return None if found == Limits() else found


def _digest(request: Request, parent_id: str | None, inputs: list[tuple[str, Artifact]]) -> str:
    """What an idempotency key stands for: everything that was asked, but not from where it was asked."""
    body = [
        request.agent, hashlib.sha256(request.prompt).hexdigest(), request.timeout_ms, request.queue_timeout_ms,
        request.retries, request.priority, request.cwd, sorted(request.env.items()), parent_id,
        sorted(request.labels.items()), sorted((name, artifact.sha256) for name, artifact in inputs),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()
