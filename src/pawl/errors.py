"""Every error Pawl raises on purpose, as one tree.

    PawlError                     exit  meaning
    ├── UsageError                   2  wrong usage, invalid input, configuration or document
    ├── DaemonUnreachable            3  no daemon answers at this home
    ├── NotFound                     4  no such task, agent, job, run, work item
    ├── RefusedByState               5  already terminal, illegal transition, conflict
    ├── RefusedByPolicy              6  not allowed to this caller
    ├── WaitTimeout                124  the wait ran out; the work goes on
    ├── StorageError                 1  the disk or the database said no
    └── InternalError                1  a bug; the log has the details

``code`` is stable: scripts may match on it. The docstring of a class is its entry in the error reference
(``docs/reference/errors.md`` is made from this file): what happened, whose fault it is, what to do.

This module is on the command line's fast path: it imports nothing.
"""

from __future__ import annotations


class PawlError(Exception):
    """Something Pawl was asked to do could not be done."""

    code = "internal"
    exit_code = 1
    retryable = False

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def as_json(self) -> dict[str, object]:
        """The error object of the contract: code, message, retryable, details."""
        return {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            "details": self.details,
        }


class InternalError(PawlError):
    """A bug in Pawl. The daemon's log has the traceback; please report it."""


class RemoteError(PawlError):
    """An error that the daemon answered with, as the client sees it: same code, same exit status."""

    def __init__(self, code: str, message: str, exit_code: int, retryable: bool, details: dict[str, object]) -> None:
        super().__init__(message, **details)
        self.code = code
        self.exit_code = exit_code
        self.retryable = retryable


# --- exit 2: wrong usage or invalid input -----------------------------------------------------------------


class UsageError(PawlError):
    """The command or its arguments are wrong. Nothing was done; the message says what is expected."""

    code = "usage"
    exit_code = 2


class InvalidParams(UsageError):
    """A request to the daemon has a missing, unknown or malformed parameter. Nothing was done."""

    code = "invalid_params"


class InvalidValue(UsageError):
    """A duration, size or other value cannot be read. The message shows the right form."""

    code = "invalid_value"


class AmbiguousId(UsageError):
    """An id prefix is shorter than 8 characters or fits several things. ``details.matches`` lists some of them."""

    code = "ambiguous_id"


class InvalidConfig(UsageError):
    """The configuration file has faults. ``details.faults`` lists each with its line; nothing was changed."""

    code = "config_invalid"


class SopInvalid(UsageError):
    """The procedure does not load. ``details.findings`` say why, as ``pawl sop validate`` does."""

    code = "sop_invalid"


class SopDirUnreadable(UsageError):
    """The directory of the procedures (``[sop] dir``) cannot be listed. The message has the system's reason."""

    code = "sop_dir_unreadable"


class HomeRefused(UsageError):
    """The home directory cannot be used: wrong owner, not a directory, a test clock file where none may be."""

    code = "home_refused"


class SocketPathTooLong(UsageError):
    """No socket path under the system's limit could be found for this home. Use a shorter ``--home``."""

    code = "socket_path_too_long"


class ProtocolError(UsageError):
    """What arrived on the socket is not a JSON-RPC 2.0 request. The connection may be closed."""

    code = "protocol_error"


class ProtocolMismatch(ProtocolError):
    """Client and daemon speak different protocol versions. Restart the daemon with the version you call."""

    code = "protocol_mismatch"


class FrameTooLarge(ProtocolError):
    """One request is larger than the frame limit. Hand large prompts over as files (``--input``)."""

    code = "frame_too_large"


class UnknownMethod(ProtocolError):
    """The daemon has no such method; it may be older than the client."""

    code = "unknown_method"


# --- exit 3 -------------------------------------------------------------------------------------------------


class DaemonUnreachable(PawlError):
    """No daemon answers at this home. Start one with ``pawl daemon start``."""

    code = "daemon_unreachable"
    exit_code = 3
    retryable = True


# --- exit 4: not found --------------------------------------------------------------------------------------


class NotFound(PawlError):
    """There is nothing of that name or id."""

    code = "not_found"
    exit_code = 4


class TaskNotFound(NotFound):
    """No task has this id or id prefix at this home."""

    code = "task_not_found"


class AgentNotFound(NotFound):
    """No agent of that name is configured. ``pawl agent list`` shows those there are."""

    code = "agent_not_found"


class CronJobNotFound(NotFound):
    """No job has this name. Text with white space in it, or a leading ``@``, is read as a schedule."""

    code = "cron_job_not_found"


class SopNotFound(NotFound):
    """No procedure has this name. ``pawl sop list`` shows those there are, and those that do not load."""

    code = "sop_not_found"


# --- exit 5: refused by state -------------------------------------------------------------------------------


class RefusedByState(PawlError):
    """What was asked does not fit the present state; the message names that state."""

    code = "refused_by_state"
    exit_code = 5


class CronJobExists(RefusedByState):
    """Another job has this name already. ``--replace`` puts the new one in its place."""

    code = "cron_job_exists"


class CronJobDeclared(RefusedByState):
    """The configuration file declares this job, so it is changed there. ``details`` name the file and the line."""

    code = "cron_job_declared"


class CronJobDisabled(RefusedByState):
    """The job cannot fire as it is: its schedule cannot be read or is over, its zone is unknown, its agent is gone."""

    code = "cron_job_disabled"


class FireRefused(RefusedByState):
    """Another fire of the job goes on and its ``overlap`` is ``skip``. The refusal is on record as a skipped fire."""

    code = "fire_refused"


class AgentDisabled(RefusedByState):
    """The agent is configured with ``enabled = false`` and takes no new work."""

    code = "agent_disabled"


class TaskNotEnded(RefusedByState):
    """The task has not ended and has no result yet. ``pawl wait`` waits for it, ``pawl logs`` shows what is there."""

    code = "task_not_ended"
    retryable = True


class IdempotencyConflict(RefusedByState):
    """The idempotency key was used before with a different request. Nothing was started."""

    code = "idempotency_conflict"


class AlreadyRunning(RefusedByState):
    """Another daemon holds this home. ``details.pid`` names it."""

    code = "daemon_already_running"


class Stopping(RefusedByState):
    """The daemon is stopping and takes no new work. Try again when it runs again."""

    code = "daemon_stopping"
    retryable = True


class TooManyConnections(RefusedByState):
    """The daemon serves no more connections at once: to one task 64, to all tasks together 800, and 900 in all. Nothing
    was done; try again when some have closed."""

    code = "too_many_connections"
    retryable = True


class CallerEnded(RefusedByState):
    """The task that asked has ended: it was cancelled, or timed out, or its connection was kept by somebody else. What
    it asks for would belong to nobody."""

    code = "caller_ended"


class Exists(RefusedByState):
    """A file is there already and would have been overwritten. Nothing was changed."""

    code = "already_exists"


# --- exit 6: refused by policy ------------------------------------------------------------------------------


class RefusedByPolicy(PawlError):
    """This caller may not do that."""

    code = "refused_by_policy"
    exit_code = 6


class PeerRefused(RefusedByPolicy):
    """The socket was opened by another user. Only the home's owner and root may talk to its daemon."""

    code = "peer_refused"


class OperatorOnly(RefusedByPolicy):
    """A program inside a task asked for something that only the operator may do, such as stopping the daemon."""

    code = "operator_only"


class InsideOnly(RefusedByPolicy):
    """The command speaks of the task that calls it (``spawn``, ``usage``, ``progress``), and no task called it."""

    code = "inside_only"


class DepthExceeded(RefusedByPolicy):
    """The calling task is as deep as ``max_depth`` of its own policy or of the target's allows: it may start none."""

    code = "depth_exceeded"


class ActionsExhausted(RefusedByPolicy):
    """The tree of tasks has asked for ``max_actions_per_hour`` things within an hour. ``details.retry_at`` says when
    the next may be asked for; the message names the task whose budget it is."""

    code = "actions_exhausted"


class CostExhausted(RefusedByPolicy):
    """The tree of tasks has reported ``max_cost_per_day`` within a day, and starts nothing more until some of that is
    a day old (``details.retry_at``)."""

    code = "cost_exhausted"


class DelegationForbidden(RefusedByPolicy):
    """The policy of the calling task forbids delegation, as every policy does that does not say
    ``delegation = "allow"``."""

    code = "delegation_forbidden"


class NotReachable(RefusedByPolicy):
    """The calling agent may not hand work to that one: they have different policies, and ``delegates`` of the caller
    does not name it."""

    code = "not_reachable"


class ApprovalNeeded(RefusedByPolicy):
    """An independent target has tools that need a person's approval (``always_ask``), and nobody would be asked."""

    code = "approval_needed"


class PolicyWidens(RefusedByPolicy):
    """Something that was asked for from inside a task goes beyond what that task may do itself. ``details.field``
    names it. Nothing was started."""

    code = "policy_widens"


class PolicyDisjoint(RefusedByPolicy):
    """Caller and target have policies with nothing in common where something is needed: two workspaces of which
    neither lies in the other. ``details.field`` names it."""

    code = "policy_disjoint"


class PromptIsOption(RefusedByPolicy):
    """A task asked for work with a prompt that begins with ``-``, of an agent that gets its prompt as an argument: its
    program would take it for an option. ``prompt = "stdin"`` or ``"file"``, or ``"--"`` as the last word of its
    command, makes such prompts harmless."""

    code = "prompt_is_option"


class SandboxUnavailable(RefusedByPolicy):
    """The policy asks for a sandbox and none can be made that keeps to it: this machine makes none
    (``sandbox = "required"``), or a link has changed where its workspace or its directory lies. Nothing was started;
    ``pawl doctor`` says what is missing."""

    code = "sandbox_unavailable"


class SpawnNested(RefusedByPolicy):
    """A sub-agent asked for a sub-agent. They are one deep."""

    code = "spawn_nested"


class SpawnDenied(RefusedByPolicy):
    """The policy of the calling task names ``spawn`` among its ``denied_tools``."""

    code = "spawn_denied"


# --- exit 124 -----------------------------------------------------------------------------------------------


class WaitTimeout(PawlError):
    """The wait ran out of time. The work goes on untouched; wait again whenever you like."""

    code = "wait_timeout"
    exit_code = 124
    retryable = True


# --- exit 1: storage ----------------------------------------------------------------------------------------


class StorageError(PawlError):
    """The database or a file could not be read or written. The message has the system's reason."""

    code = "storage_error"
    retryable = True


class DiskFull(StorageError):
    """The disk is full. Nothing was stored; free some space and try again: running work settles by itself then."""

    code = "disk_full"


class StorageReadOnly(StorageError):
    """The home cannot be written to (read-only file system or missing permission)."""

    code = "storage_read_only"


class DatabaseDamaged(StorageError):
    """SQLite says that the database file is damaged. It was left as it is: restore a backup or move it aside."""

    code = "database_damaged"
    retryable = False


class DatabaseNewer(StorageError):
    """The database was written by a newer Pawl. It was left untouched; use that version."""

    code = "database_newer"
    retryable = False


class ArtifactMissing(StorageError):
    """The bytes that a row refers to are gone from the artifact store. They are not made up."""

    code = "artifact_missing"
    retryable = False


class ArtifactAltered(StorageError):
    """The bytes in the artifact store do not match their digest. They are not passed off as the result."""

    code = "artifact_altered"
    retryable = False
