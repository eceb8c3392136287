"""``list`` and ``cancel``, and what a task looks like on one line."""

from __future__ import annotations

from pawl.cli.call import Call, given
from pawl.cli.client import listed
from pawl.cli.output import clean
from pawl.cli.render import counted, took
from pawl.errors import RefusedByState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEADS = ("ID", "STATUS", "AGENT", "KIND", "CREATED", "TOOK", "NOTE")
_NEWEST = 50  # what is listed where nothing says how many
_SOME = 3  # ids of what lives on that are told
_KIND, _USUAL = 3, "delegate"  # a column that says the same in every row is left out on a terminal


def list_tasks(
    call: Call, *, status: list[str], agent: str | None, kind: str | None, label: list[tuple[str, str]],
    limit: int | None, all: bool,
) -> int:  # fmt: skip
    filters = given(statuses=status, agent=agent, kind=kind, labels=dict(label))
    tasks = listed(call.client(), None if all else limit or _NEWEST, **filters)
    call.show(tasks, rows(call, tasks) if tasks else [])
    if not tasks:
        call.note("no task is like that" if filters else f"no tasks yet: {call.command('delegate echo hello')}")
    return 0


def rows(call: Call, tasks: list[dict[str, Any]]) -> list[str]:
    """Tasks as a table."""
    screen = call.screen
    heads, found = list(_HEADS), [_row(call, task) for task in tasks]
    if screen.terminal and all(task["kind"] == _USUAL for task in tasks):
        del heads[_KIND]
        for row in found:
            del row[_KIND]
    return screen.table(heads, found, status=1, whole=0)


def cancel(call: Call, *, tasks: list[str], reason: str | None) -> int:
    # Ending processes takes as long as it takes: the daemon bounds it by its kill grace.
    ended = call.client(patience_s=None).call("task.cancel", ids=tasks, **given(reason=reason))
    document = ended[0] if len(tasks) == 1 and len(ended) == 1 else ended
    call.show(document, [_outcome(call, task) for task in ended])
    for task in ended:
        for left in leftovers(task):
            call.note(f"{task['id']}: could not end {left}")
        if living := task.get("living_below"):
            call.note(f"{task['id']}: {_living(call, living, task.get('living_below_more') or 0)}")
    otherwise = [task for task in ended if task["outcome"] not in {"cancelled", "already_cancelled"}]
    if not otherwise:
        return 0
    raise RefusedByState(
        "; ".join(f"cannot cancel task {task['id']}: it had already {_ended_as(task)}" for task in otherwise),
        tasks={task["id"]: task["status"] for task in otherwise},
    )


def leftovers(task: dict[str, Any]) -> list[str]:
    """The processes of a task that could not be ended."""
    left = (task.get("leftovers") or {}).get("left") or []
    return [_process(one) for one in left]


def why(task: dict[str, Any]) -> str | None:
    """In a few words why a task ended as it did, if that was not well."""
    error = task.get("error")
    if error:
        return str(error.get("message") or error.get("code"))
    if task["status"] == "cancelled" and task.get("reason"):
        return str(task["reason"])
    if task["status"] == "failed" and task.get("exit_code") is not None:
        return f"exit code {task['exit_code']}"
    return None


def _row(call: Call, task: dict[str, Any]) -> list[str | None]:
    screen = call.screen
    return [
        screen.id(task["id"]),
        task["status"],
        task["agent"],
        task["kind"],
        screen.when(task["created_at"]),
        took(task.get("started_at"), task.get("finished_at")),
        why(task) or " ".join(f"{key}={value}" for key, value in (task.get("labels") or {}).items()),
    ]


def _outcome(call: Call, task: dict[str, Any]) -> str:
    line = f"{task['id']}  {str(task['outcome']).replace('_', ' ', 1)}"
    if not task.get("ended_below"):
        return line
    below = counted(len(task["ended_below"]) + (task.get("ended_below_more") or 0), "task") + " below it"
    return f"{line}, and {below}" if task["outcome"] == "cancelled" else f"{line}; {below} cancelled"


def _living(call: Call, ids: list[str], beyond: int) -> str:
    """What lives on below a task that had ended before, and how to end it too. ``beyond``: how many have no id here."""
    count = len(ids) + beyond
    more = f", and {count - _SOME} more" if count > _SOME else ""
    some = call.command(f"cancel {' '.join(ids[:_SOME])}")
    return f"{counted(count, 'task')} below it still run{'s' if count == 1 else ''}: {some}{more}"


def _ended_as(task: dict[str, Any]) -> str:
    words = {"timed_out": "timed out", "lost": "been lost"}
    return words.get(task["status"], str(task["status"]))


def _process(process: Any) -> str:
    if isinstance(process, dict):
        name = clean(str(process.get("command") or process.get("name") or ""), one_line=True)
        return f"process {process.get('pid', '?')} {name}".strip()
    return f"process {process}"
