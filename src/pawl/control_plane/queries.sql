-- The statements of the control plane. Every change of status is a compare-and-set; the transition stands above it.

-- name: insert_task
-- (none) -> queued, or (none) -> running where a slot was free
INSERT INTO task (
  id, kind, agent, status, priority, created_at_ms, queue_deadline_ms, started_at_ms, heartbeat_at_ms,
  heartbeat_mono_ms, deadline_at_ms, deadline_mono_ms, timeout_ms, retries_left, attempt, retry_of, idempotency_key,
  key_scope, key_place, request_sha256, creator, chain, depth, principal, parent_id, mode, policy_sha256, budget_id,
  goal_id, labels, source, prompt, cwd, env, inputs, owner_pid, owner_start, owner_boot
) VALUES (
  ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
) RETURNING *;

-- name: insert_policy
INSERT INTO policy (sha256, document) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: policy
SELECT document FROM policy WHERE sha256 = ?;

-- name: record_policy
-- no change of status: the policy was narrowed between admission and start
UPDATE task SET policy_sha256 = ? WHERE id = ? AND status = 'running'
  AND owner_pid = ? AND owner_start = ? AND owner_boot = ? RETURNING *;

-- name: insert_label
INSERT INTO task_label (key, value, task_seq) VALUES (?, ?, ?);

-- name: insert_input
INSERT INTO task_input (task_seq, name, sha256, size_bytes) VALUES (?, ?, ?, ?);

-- name: inputs
SELECT name, sha256, size_bytes FROM task_input WHERE task_seq = ? ORDER BY name;

-- name: by_id
SELECT * FROM task WHERE id = ?;

-- name: status_of
SELECT status FROM task WHERE id = ?;

-- name: by_prefix
-- ids sort as text, so a prefix is a range of the unique index
SELECT id FROM task WHERE id >= ? AND id < ? ORDER BY id LIMIT 6;

-- name: by_key
-- all that were asked for with it, in the order in which they were
SELECT * FROM task WHERE key_scope = ? AND idempotency_key = ? ORDER BY key_place;

-- name: retry_of
SELECT id FROM task WHERE retry_of = ?;

-- name: counts
SELECT status, tasks FROM task_count WHERE tasks > 0;

-- name: queued_agents
SELECT agent, count(*) FROM task INDEXED BY task_queued WHERE status = 'queued' GROUP BY agent;

-- name: next_of_agent
SELECT priority, seq FROM task INDEXED BY task_queued
WHERE status = 'queued' AND agent = ? ORDER BY priority DESC, seq LIMIT ?;

-- name: claim
-- queued -> running; a sub-agent has its parent's deadline where that is nearer, and no heartbeat
UPDATE task SET status = 'running', owner_pid = :pid, owner_start = :start, owner_boot = :boot, started_at_ms = :now,
  heartbeat_at_ms = iif(kind = 'subagent', NULL, :now), heartbeat_mono_ms = iif(kind = 'subagent', NULL, :mono),
  deadline_at_ms = min(:now + timeout_ms, iif(kind = 'subagent', coalesce(
    (SELECT p.deadline_at_ms FROM task p WHERE p.id = task.parent_id), :now + timeout_ms), :now + timeout_ms)),
  deadline_mono_ms = min(:mono + timeout_ms, iif(kind = 'subagent', coalesce(
    (SELECT p.deadline_mono_ms FROM task p WHERE p.id = task.parent_id), :mono + timeout_ms), :mono + timeout_ms))
WHERE seq = :seq AND status = 'queued' RETURNING *;

-- name: expired
SELECT id FROM task INDEXED BY task_queue_deadline
WHERE status = 'queued' AND queue_deadline_ms IS NOT NULL AND queue_deadline_ms <= ? ORDER BY queue_deadline_ms LIMIT 500;

-- name: next_queue_deadline
SELECT min(queue_deadline_ms) FROM task INDEXED BY task_queue_deadline
WHERE status = 'queued' AND queue_deadline_ms IS NOT NULL;

-- name: record_worker
-- no change of status; also on a row that was cancelled meanwhile, so that clean-up knows whom to end
UPDATE task SET worker_pid = ?, worker_start = ?, worker_boot = ?
WHERE id = ? AND owner_pid = ? AND owner_start = ? AND owner_boot = ? AND worker_pid IS NULL AND status NOT IN ('queued', 'paused');

-- name: promise
-- the settlement intent, only while the row is running and still this owner's
INSERT INTO settlement_intent
SELECT t.id, t.owner_pid, t.owner_start, t.owner_boot, :status, :exit_code, :signal, :error_code, :error_message,
  :output_sha256, :output_bytes, :stderr_sha256, :stderr_bytes, :truncated, :leftovers, :ended_at_ms, :now
FROM task t
WHERE t.id = :id AND t.status = 'running' AND t.owner_pid = :pid AND t.owner_start = :start AND t.owner_boot = :boot
ON CONFLICT (task_id) DO UPDATE SET owner_pid = excluded.owner_pid, owner_start = excluded.owner_start,
  owner_boot = excluded.owner_boot, status = excluded.status, exit_code = excluded.exit_code,
  signal = excluded.signal, error_code = excluded.error_code, error_message = excluded.error_message,
  output_sha256 = excluded.output_sha256, output_bytes = excluded.output_bytes,
  stderr_sha256 = excluded.stderr_sha256, stderr_bytes = excluded.stderr_bytes, truncated = excluded.truncated,
  leftovers = excluded.leftovers, ended_at_ms = excluded.ended_at_ms, created_at_ms = excluded.created_at_ms;

-- name: settle
-- running -> completed | failed, where the owner and the intent are unchanged
UPDATE task SET status = i.status, finished_at_ms = max(coalesce(i.ended_at_ms, :now), started_at_ms), exit_code = i.exit_code, signal = i.signal,
  error_code = i.error_code, error_message = i.error_message, output_sha256 = i.output_sha256,
  output_bytes = i.output_bytes, stderr_sha256 = i.stderr_sha256, stderr_bytes = i.stderr_bytes,
  truncated = i.truncated, cleanup = CASE WHEN i.leftovers THEN 'pending' END
FROM settlement_intent i
WHERE task.id = :id AND task.status = 'running' AND i.task_id = task.id
  AND task.owner_pid = :pid AND task.owner_start = :start AND task.owner_boot = :boot
  AND i.owner_pid = :pid AND i.owner_start = :start AND i.owner_boot = :boot
  AND i.status = :status AND i.output_sha256 = :output_sha256 AND i.output_bytes = :output_bytes
RETURNING *;

-- name: forget_promise
DELETE FROM settlement_intent WHERE task_id = ?;

-- name: intent
SELECT * FROM settlement_intent WHERE task_id = ?;

-- name: end_queued
-- queued -> cancelled | failed
UPDATE task SET status = :status, finished_at_ms = :now, error_code = :code, error_message = :message
WHERE id = :id AND status = 'queued' RETURNING *;

-- name: end_paused
-- paused -> cancelled
UPDATE task SET status = :status, finished_at_ms = :now, error_code = :code, error_message = :message
WHERE id = :id AND status = 'paused' RETURNING *;

-- name: end_running
-- running -> cancelled | timed_out | failed | lost, decided by its owner or by recovery in the place of a dead one
UPDATE task SET status = :status, finished_at_ms = :now, error_code = :code, error_message = :message,
  cleanup = CASE WHEN :processes THEN 'pending' END
WHERE id = :id AND status = 'running' AND owner_pid = :pid AND owner_start = :start AND owner_boot = :boot
RETURNING *;

-- name: clean
-- no change of status: its processes are proven ended, and what they left is kept
UPDATE task SET cleanup = 'done', cleanup_report = :report, exit_code = coalesce(exit_code, :exit_code),
  signal = coalesce(signal, :signal), output_sha256 = coalesce(output_sha256, :output_sha256),
  output_bytes = coalesce(output_bytes, :output_bytes), stderr_sha256 = coalesce(stderr_sha256, :stderr_sha256),
  stderr_bytes = coalesce(stderr_bytes, :stderr_bytes), truncated = max(truncated, :truncated)
WHERE id = :id AND cleanup = 'pending' RETURNING *;

-- name: take_over
-- no change of status: a dead owner's row, running or to be cleaned up after, becomes ours
UPDATE task SET owner_pid = :pid, owner_start = :start, owner_boot = :boot,
  worker_pid = coalesce(worker_pid, :worker_pid), worker_start = coalesce(worker_start, :worker_start),
  worker_boot = coalesce(worker_boot, :worker_boot),
  heartbeat_at_ms = iif(kind = 'subagent', NULL, :now), heartbeat_mono_ms = iif(kind = 'subagent', NULL, :mono)
WHERE id = :id AND (status = 'running' OR cleanup = 'pending')
  AND owner_pid = :old_pid AND owner_start = :old_start AND owner_boot = :old_boot
RETURNING *;

-- name: running
SELECT * FROM task INDEXED BY task_running WHERE status = 'running' ORDER BY seq;

-- name: to_clean
SELECT * FROM task INDEXED BY task_cleanup WHERE cleanup = 'pending' ORDER BY seq;

-- name: stale_intents
SELECT task_id FROM settlement_intent i WHERE NOT EXISTS
  (SELECT 1 FROM task t WHERE t.id = i.task_id AND t.status = 'running');

-- name: beat
UPDATE task SET heartbeat_at_ms = ?, heartbeat_mono_ms = ?
WHERE id = ? AND status = 'running' AND kind <> 'subagent' AND owner_pid = ? AND owner_start = ? AND owner_boot = ?;

-- name: subagents
-- what ends with its parent, however that ends
SELECT id, status, owner_pid, owner_start, owner_boot FROM task INDEXED BY task_parent
WHERE parent_id = ? AND kind = 'subagent' AND finished_at_ms IS NULL ORDER BY seq;

-- name: below
-- all that lives below a task, or below an earlier attempt of it, however deep and through whatever has ended
WITH RECURSIVE
  attempt (id) AS (
    SELECT :id
    UNION SELECT t.retry_of FROM task t JOIN attempt a ON t.id = a.id WHERE t.retry_of IS NOT NULL),
  below (id) AS (
    SELECT t.id FROM attempt a CROSS JOIN task t INDEXED BY task_parent ON t.parent_id = a.id
    UNION SELECT t.id FROM below b CROSS JOIN task t INDEXED BY task_parent ON t.parent_id = b.id)
SELECT t.id, t.status, t.owner_pid, t.owner_start, t.owner_boot FROM below b CROSS JOIN task t ON t.id = b.id
WHERE t.finished_at_ms IS NULL ORDER BY t.seq;

-- name: children
SELECT id, agent, kind, status FROM task INDEXED BY task_parent WHERE parent_id = ? ORDER BY seq LIMIT ?;

-- name: children_count
SELECT count(*) FROM task INDEXED BY task_parent WHERE parent_id = ?;

-- name: is_viewer
SELECT 1 FROM task_viewer WHERE alias = ? AND task_seq = ?;

-- name: by_prefix_of
-- the same for one agent, to whom the other tasks do not exist
SELECT id FROM task t WHERE id >= ? AND id < ?
  AND EXISTS (SELECT 1 FROM task_viewer v WHERE v.alias = ? AND v.task_seq = t.seq) ORDER BY id LIMIT 6;

-- name: counts_of
SELECT t.status, count(*) FROM task_viewer v JOIN task t ON t.seq = v.task_seq WHERE v.alias = ? GROUP BY t.status;

-- name: list_of
-- newest first, of what one agent may see
SELECT t.* FROM task_viewer v JOIN task t ON t.seq = v.task_seq
WHERE v.alias = :viewer AND v.task_seq < :before
  AND (:statuses IS NULL OR t.status IN (SELECT value FROM json_each(:statuses)))
  AND (:agent IS NULL OR t.agent = :agent)
  AND (:kind IS NULL OR t.kind = :kind)
  AND (:labels IS NULL OR NOT EXISTS (
    SELECT 1 FROM json_each(:labels) w WHERE NOT EXISTS (
      SELECT 1 FROM task_label l WHERE l.task_seq = t.seq AND l.key = w.key AND l.value = w.value)))
ORDER BY v.task_seq DESC LIMIT :limit;

-- name: holders
-- whose budgets an action of a task counts against: its own and, where it is bounded, those above it; nearest first
WITH RECURSIVE holder (id, agent, budget_id, mode, parent_id, policy_sha256, distance) AS (
  SELECT id, agent, budget_id, mode, parent_id, policy_sha256, 0 FROM task WHERE id = :id
  UNION ALL
  SELECT t.id, t.agent, t.budget_id, t.mode, t.parent_id, t.policy_sha256, h.distance + 1
  FROM holder h JOIN task t ON t.id = h.parent_id WHERE h.mode = 'bounded')
SELECT h.id, h.agent, h.budget_id,
  json_extract(p.document, '$.max_actions_per_hour'), json_extract(p.document, '$.max_cost_per_day_micros'),
  (SELECT CAST(total(s.amount) AS INTEGER) FROM spent s
    WHERE s.holder_id = h.budget_id AND s.what = 'action' AND s.at_ms > :now - 3600000),
  (SELECT CAST(total(s.amount) AS INTEGER) FROM spent s
    WHERE s.holder_id = h.budget_id AND s.what = 'cost' AND s.at_ms > :now - 86400000)
FROM holder h LEFT JOIN policy p ON p.sha256 = h.policy_sha256 ORDER BY h.distance;

-- name: spend
INSERT INTO spent (holder_id, what, at_ms, amount, task_id) VALUES (?, ?, ?, ?, ?);

-- name: forget_spent
-- what has left its span, whoever spent it
DELETE FROM spent WHERE what = ? AND at_ms <= ?;

-- name: spent
SELECT at_ms, amount FROM spent WHERE holder_id = ? AND what = ? AND at_ms > ? ORDER BY at_ms;

-- name: insert_usage
INSERT INTO usage (task_id, at_ms, tokens, cost_micros, model, request_key) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: usage_by_model
-- total and not sum: that raises where a program reports more than an integer holds
SELECT model, CAST(total(tokens) AS INTEGER), CAST(total(cost_micros) AS INTEGER) FROM usage WHERE task_id = ? GROUP BY model ORDER BY model;

-- name: record_usage
UPDATE task SET usage = ? WHERE id = ?;

-- name: usage_of_tree
WITH RECURSIVE tree (id) AS (
  SELECT :id UNION SELECT t.id FROM tree b CROSS JOIN task t INDEXED BY task_parent ON t.parent_id = b.id)
SELECT count(DISTINCT tree.id), CAST(total(u.tokens) AS INTEGER), CAST(total(u.cost_micros) AS INTEGER)
FROM tree LEFT JOIN usage u ON u.task_id = tree.id;

-- name: record_progress
-- no change of status; it is a sign of life too
UPDATE task SET progress = :progress, heartbeat_at_ms = iif(kind = 'subagent', NULL, :now),
  heartbeat_mono_ms = iif(kind = 'subagent', NULL, :mono)
WHERE id = :id AND status = 'running';

-- name: refusals
-- what a task asked for and was refused
SELECT * FROM event INDEXED BY event_subject WHERE subject_id = ? AND seq > 0 AND event = 'refused' ORDER BY seq LIMIT ?;

-- name: refused_already
SELECT 1 FROM event INDEXED BY event_subject WHERE subject_id = ? AND event = 'refused'
  AND json_extract(details, '$.code') = ? AND json_extract(details, '$.agent') = ?;

-- name: cancelled_above
-- whether something above a task was cancelled in its time
WITH RECURSIVE above (id) AS (
  SELECT :parent
  UNION SELECT t.parent_id FROM above a JOIN task t ON t.id = a.id WHERE t.parent_id IS NOT NULL
  UNION SELECT t.id FROM above a JOIN task t ON t.retry_of = a.id)
SELECT 1 FROM above a JOIN task t ON t.id = a.id WHERE t.status = 'cancelled' AND t.finished_at_ms >= :since LIMIT 1;

-- name: first_event
SELECT * FROM event INDEXED BY event_subject WHERE subject_id = ? AND seq > 0 AND event = 'submitted' ORDER BY seq LIMIT 1;

-- name: unsandboxed
SELECT * FROM event INDEXED BY event_subject WHERE subject_id = ? AND seq > 0 AND event = 'unsandboxed'
ORDER BY seq LIMIT 1;

-- name: list
-- newest first; a NULL parameter asks for nothing
SELECT * FROM task t
WHERE t.seq < :before
  AND (:statuses IS NULL OR t.status IN (SELECT value FROM json_each(:statuses)))
  AND (:agent IS NULL OR t.agent = :agent)
  AND (:kind IS NULL OR t.kind = :kind)
  AND (:labels IS NULL OR NOT EXISTS (
    SELECT 1 FROM json_each(:labels) w WHERE NOT EXISTS (
      SELECT 1 FROM task_label l WHERE l.task_seq = t.seq AND l.key = w.key AND l.value = w.value)))
ORDER BY t.seq DESC LIMIT :limit;

-- name: list_live
-- the same for statuses that partial indexes know
SELECT * FROM task t
WHERE t.status = :status AND t.seq < :before
  AND (:agent IS NULL OR t.agent = :agent)
  AND (:kind IS NULL OR t.kind = :kind)
  AND (:labels IS NULL OR NOT EXISTS (
    SELECT 1 FROM json_each(:labels) w WHERE NOT EXISTS (
      SELECT 1 FROM task_label l WHERE l.task_seq = t.seq AND l.key = w.key AND l.value = w.value)))
ORDER BY t.seq DESC LIMIT :limit;

-- name: last_event
SELECT seq, hash FROM event ORDER BY seq DESC LIMIT 1;

-- name: insert_event
INSERT INTO event (seq, at_ms, actor, subject_kind, subject_id, event, from_status, to_status, reason, details, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: events_after
SELECT * FROM event WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: last_events
SELECT * FROM event ORDER BY seq DESC LIMIT ?;

-- name: last_events_of
SELECT * FROM event INDEXED BY event_subject WHERE subject_id = ? ORDER BY seq DESC LIMIT ?;

-- name: events_of
SELECT * FROM event INDEXED BY event_subject WHERE subject_id = ? AND seq > ? ORDER BY seq LIMIT ?;
