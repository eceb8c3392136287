"""``status``: how the daemon is doing, or everything about one task."""

from __future__ import annotations

from pawl.cli.call import Call
from pawl.cli.commands.events import rows as event_rows
from pawl.cli.commands.tasks import leftovers, why
from pawl.cli.output import clean
from pawl.cli.render import age, counted, cut, joined, spent, took
from pawl.values import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STATUSES = ("running", "queued", "paused", "completed", "failed", "timed_out", "lost", "cancelled")
_EXCERPT = 160  # characters of a prompt that are shown
_EVENTS_MAX = 200


def status(call: Call, *, task: str | None) -> int:
    if task is None:
        overview = call.ask("daemon.status")
        call.show(overview, [] if call.json else _overview(call, overview))
        return 0
    client = call.client()
    found = client.call("task.get", id=task)
    if call.json:
        call.show(found, [])
        return 0
    happened = client.call("event.list", subject=found["id"], limit=_EVENTS_MAX)
    call.show(None, _task(call, found) + _children(call, found) + _events(call, happened))
    return 0


def _overview(call: Call, overview: dict[str, Any]) -> list[str]:
    daemon = overview["daemon"]
    lines = call.screen.facts(
        [
            (
                "daemon",
                f"pid {daemon['pid']}, {_since(call, daemon['started_at'])}, version {daemon['version']}"
                + (", stopping: it takes no new work" if daemon.get("stopping") else ""),
            ),
            ("home", daemon["home"]),
            ("tasks", _counts(call, overview.get("tasks") or {})),
            ("last start", recovery(daemon.get("recovery") or {}) or "nothing was left to mend"),
            *((name, _plain(overview.get(name))) for name in ("cron", "sop", "work")),
        ]
    )
    findings = overview.get("findings") or []
    if findings:
        lines += ["", "needs attention:"]
        lines += [f"  {_finding(one)}" for one in findings]
    if not any((overview.get("tasks") or {}).values()):
        lines += ["", f"Nothing has run here yet. Try:  {call.command('delegate echo hello --wait')}"]
    return lines


def _since(call: Call, started_at: str) -> str:
    return f"up {age(started_at)}" if call.screen.terminal else f"since {started_at}"


def _counts(call: Call, tasks: dict[str, int]) -> str:
    known = [name for name in _STATUSES if tasks.get(name)] + [name for name in tasks if name not in _STATUSES]
    return ", ".join(f"{tasks[name]} {call.screen.status(name)}" for name in known if tasks[name]) or "none"


def recovery(summary: dict[str, Any]) -> str | None:
    """What a start had to mend, in its own words; nothing if there was nothing."""
    return _plain(summary)


def _plain(values: Any) -> str | None:
    """``3 adopted, 1 lost``: the counts that are not zero, for shapes that this page does not know."""
    if not isinstance(values, dict):
        return None
    counts = {key: value for key, value in values.items() if isinstance(value, int) and value}
    return ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in counts.items()) or None


def _finding(finding: dict[str, Any]) -> str:
    subject = finding.get("subject")
    about = f" ({clean(str(subject))})" if subject else ""
    return f"{clean(str(finding['message']))}{about}  [{finding['code']}]"


def _task(call: Call, task: dict[str, Any]) -> list[str]:
    screen = call.screen
    code = task.get("exit_code")
    facts = [
        ("task", task["id"]),
        ("status", screen.status(task["status"]) + ("" if code is None else f", exit code {code}")),
        ("reason" if task["status"] == "cancelled" else "error", clean(why(task) or "")),
        ("next", _next(call, task)),
        ("agent", f"{clean(task['agent'])} ({task['kind']}{_attempt(task)})"),
        ("prompt", _excerpt(task.get("prompt"))),
        ("progress", _progress(call, task.get("progress"))),
        ("used", _used(task)),
        ("created", screen.when(task.get("created_at")) if task.get("created_at") else None),
        ("started", screen.when(task.get("started_at")) if task.get("started_at") else None),
        ("finished", _finished(call, task)),
        ("deadline", None if task.get("finished_at") else screen.until(task.get("deadline_at"))),
        ("directory", task.get("cwd")),
        ("worker", _process(task.get("worker"))),
        ("owner", _process(task.get("owner"))),
        ("output", _output(task)),
        ("labels", joined(task.get("labels") or {})),
        ("parent", task.get("parent_id")),
        ("creator", _creator(task)),
        ("policy", _policy(call, task)),
        ("retry of", task.get("retry_of")),
        ("retries", f"{task['retries_left']} left" if task.get("retries_left") else None),
        ("key", clean(task.get("idempotency_key") or "")),
        ("left over", "; ".join(leftovers(task))),
    ]
    return screen.facts([(name, _plainly(name, value) if value else None) for name, value in facts])


def _plainly(name: str, value: object) -> str:
    """A fact as text that is safe to show; the status has its colour already."""
    return str(value) if name == "status" else clean(str(value), one_line=True)


def _next(call: Call, task: dict[str, Any]) -> str | None:
    """What to do about it."""
    short = call.screen.id(task["id"])
    return {
        "queued": f"it waits for a free slot; {call.command(f'cancel {short}')} takes it back",
        "running": call.command(f"logs -f {short}"),
        "completed": call.command(f"result {short}"),
        "failed": call.command(f"logs --stderr {short}"),
        "timed_out": "delegate it again with a longer --timeout",
        "lost": "whether it did its work is not known; look, then delegate it again",
    }.get(task["status"])


def _attempt(task: dict[str, Any]) -> str:
    return f", attempt {task['attempt']}" if task.get("attempt", 1) > 1 else ""


def _excerpt(prompt: Any) -> str | None:
    return cut(clean(" ".join(str(prompt).split()), one_line=True), _EXCERPT) if prompt else None


def _finished(call: Call, task: dict[str, Any]) -> str | None:
    if not task.get("finished_at"):
        return None
    time = took(task.get("started_at"), task["finished_at"])
    return call.screen.when(task["finished_at"]) + (f", took {time}" if time else "")


def _process(process: dict[str, Any] | None) -> str | None:
    return f"pid {process['pid']}" if process else None


def _output(task: dict[str, Any]) -> str | None:
    parts = []
    for name, key in (("", "output"), (" on stderr", "stderr")):
        if task.get(key):
            parts.append(f"{size_text(task[key]['size_bytes'])}{name}")
    return ", ".join(parts) + (" (cut at the limit)" if task.get("truncated") else "") if parts else None


def _creator(task: dict[str, Any]) -> str | None:
    creator = clean(str(task.get("creator") or ""))
    principal = task.get("principal")
    return f"{creator} ({clean(str(principal))})" if creator and principal else creator or None


def _progress(call: Call, progress: dict[str, Any] | None) -> str | None:
    if not progress:
        return None
    phase = f"{progress['phase']}: " if progress.get("phase") else ""
    return f"{phase}{progress['text']} ({call.screen.when(progress['at'])})"


def _used(task: dict[str, Any]) -> str | None:
    """What it reported to have used, of which models, and its tree where that is more than itself."""
    own, tree = task.get("usage"), task.get("usage_tree") or {}
    parts = []
    if own:
        named = list(own.get("models") or ())
        models = "" if named == ["unknown"] else ", ".join(named)  # what was reported without --model
        parts.append(spent(own.get("tokens"), own.get("cost")) + (f" ({models})" if models else ""))
    below = task.get("children") or tree.get("tasks", 1) > 1
    if below and (tree.get("tokens") or tree.get("cost")):
        tasks = f" of {counted(tree['tasks'], 'task')}" if tree.get("tasks") else ""
        parts.append(f"{spent(tree.get('tokens'), tree.get('cost'))} for its tree{tasks}")
    return "; ".join(parts) or None


def _policy(call: Call, task: dict[str, Any]) -> str | None:
    digest = task.get("policy_sha256")
    if not digest:
        return None
    mode = f", {task['mode']}" if task.get("mode") else ""
    return f"{digest[:12]}…{mode} ({call.command('why ' + call.screen.id(task['id']))})"


def _children(call: Call, task: dict[str, Any]) -> list[str]:
    children = task.get("children") or []
    if not children:
        return []
    screen = call.screen
    rows = [(screen.id(each["id"]), each["status"], each["agent"], each["kind"]) for each in children]
    more = task.get("children_more")
    return [
        "",
        "it started:",
        *screen.table(("ID", "STATUS", "AGENT", "KIND"), rows, status=1, whole=0),
        *([f"and {more} more"] if more else []),
    ]


def _events(call: Call, events: list[dict[str, Any]]) -> list[str]:
    return ["", *event_rows(call, events, subject=False)] if events else []
