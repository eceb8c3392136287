-- Delegation in full: who may see a task, under which policy it runs, what its tree may spend and has spent.
-- The task table is made anew: creator may be absent from here on, and SQLite cannot take a NOT NULL away.

-- Effective policies, each once, by the digest of its text.
CREATE TABLE policy (
  sha256   TEXT PRIMARY KEY,
  document TEXT NOT NULL,
  CONSTRAINT "a policy is named by its digest" CHECK (length(sha256) = 64)
) STRICT, WITHOUT ROWID;

CREATE TABLE task_new (
  seq               INTEGER PRIMARY KEY,
  id                TEXT    NOT NULL UNIQUE,
  kind              TEXT    NOT NULL,
  agent             TEXT    NOT NULL,
  status            TEXT    NOT NULL,
  priority          INTEGER NOT NULL DEFAULT 0,
  created_at_ms     INTEGER NOT NULL,
  queue_deadline_ms INTEGER,           -- wall: a task still queued then has failed
  started_at_ms     INTEGER,
  finished_at_ms    INTEGER,
  heartbeat_at_ms   INTEGER,           -- wall, for people
  heartbeat_mono_ms INTEGER,           -- monotonic, for the judgement; of the owner's boot
  deadline_at_ms    INTEGER,           -- wall, for people
  deadline_mono_ms  INTEGER,           -- monotonic, for the judgement; of the owner's boot
  timeout_ms        INTEGER NOT NULL,
  retries_left      INTEGER NOT NULL DEFAULT 0,
  attempt           INTEGER NOT NULL DEFAULT 1,
  retry_of          TEXT    REFERENCES task (id) ON DELETE SET NULL,
  idempotency_key   TEXT,
  key_scope         TEXT,              -- whose key it is: the operator's, or the first attempt's of the task that asked
  key_place         INTEGER NOT NULL DEFAULT 0,  -- from 1 on among several that were asked for at once; else 0
  request_sha256    TEXT,
  creator           TEXT,              -- absent for sub-agents, and in rows older than creators
  chain             TEXT    NOT NULL DEFAULT '[]',
  depth             INTEGER NOT NULL DEFAULT 0,
  principal         TEXT,              -- recorded, never consulted
  parent_id         TEXT,
  mode              TEXT,              -- how it is held to what its caller may do; absent for what the operator starts
  policy_sha256     TEXT    REFERENCES policy (sha256),  -- the effective policy that it runs under
  budget_id         TEXT,              -- under which id its budget is kept: its first attempt's
  goal_id           TEXT,
  labels            TEXT    NOT NULL DEFAULT '{}',
  source            TEXT    NOT NULL DEFAULT '{}',
  prompt            BLOB    NOT NULL,
  cwd               TEXT,
  env               TEXT    NOT NULL DEFAULT '{}',
  inputs            INTEGER NOT NULL DEFAULT 0,  -- how many rows of task_input it has
  owner_pid         INTEGER,
  owner_start       TEXT,
  owner_boot        TEXT,
  worker_pid        INTEGER,
  worker_start      TEXT,
  worker_boot       TEXT,
  exit_code         INTEGER,
  signal            INTEGER,
  error_code        TEXT,
  error_message     TEXT,
  output_sha256     TEXT,
  output_bytes      INTEGER,
  stderr_sha256     TEXT,
  stderr_bytes      INTEGER,
  truncated         INTEGER NOT NULL DEFAULT 0,
  cleanup           TEXT,              -- 'pending' while processes of an ended task may still live, then 'done'
  cleanup_report    TEXT,
  inline_output     BLOB,              -- of rows older than artifacts
  progress          TEXT,              -- what it said last of how far it is
  usage             TEXT,              -- the sums of its own reports
  delivered         INTEGER NOT NULL DEFAULT 0,

  CONSTRAINT "a task has a known kind"
    CHECK (kind IN ('delegate', 'subagent', 'cron', 'sop_step', 'work_item', 'goal')),
  CONSTRAINT "a task has a known status"
    CHECK (status IN ('queued', 'running', 'paused', 'completed', 'failed', 'cancelled', 'timed_out', 'lost')),
  CONSTRAINT "a task has a finish time exactly when it has ended"
    CHECK ((status IN ('completed', 'failed', 'cancelled', 'timed_out', 'lost')) = (finished_at_ms IS NOT NULL)),
  CONSTRAINT "a running task has an owner, named by pid, start and boot"
    CHECK (status <> 'running' OR (owner_pid IS NOT NULL AND owner_start IS NOT NULL AND owner_boot IS NOT NULL)),
  CONSTRAINT "a queued task has neither owner nor worker"
    CHECK (status <> 'queued' OR (owner_pid IS NULL AND worker_pid IS NULL AND started_at_ms IS NULL)),
  CONSTRAINT "a completed task has its output and no error"
    CHECK (status <> 'completed' OR (coalesce(output_sha256, inline_output) IS NOT NULL AND error_code IS NULL)),
  CONSTRAINT "a task that failed, was lost or timed out says why"
    CHECK (status NOT IN ('failed', 'timed_out', 'lost') OR (error_code IS NOT NULL AND error_message IS NOT NULL)),
  CONSTRAINT "an output is named by digest and size"
    CHECK ((output_sha256 IS NULL) = (output_bytes IS NULL) AND (stderr_sha256 IS NULL) = (stderr_bytes IS NULL)),
  CONSTRAINT "a key belongs to somebody"
    CHECK ((idempotency_key IS NULL) = (key_scope IS NULL)),
  CONSTRAINT "a digest is 64 characters"
    CHECK (coalesce(length(output_sha256), 64) = 64 AND coalesce(length(stderr_sha256), 64) = 64),
  CONSTRAINT "only an ended task is cleaned up after"
    CHECK (cleanup IS NULL OR (cleanup IN ('pending', 'done') AND finished_at_ms IS NOT NULL)),
  CONSTRAINT "a task is bounded by its caller or independent of it"
    CHECK (mode IS NULL OR mode IN ('bounded', 'independent')),
  CONSTRAINT "a sub-agent has a parent and leaves creator and principal absent"
    CHECK (kind <> 'subagent' OR (parent_id IS NOT NULL AND creator IS NULL AND principal IS NULL)),
  CONSTRAINT "a paused task has no worker"
    CHECK (status <> 'paused' OR worker_pid IS NULL),
  CONSTRAINT "counts are not negative"
    CHECK (inputs >= 0 AND retries_left >= 0 AND attempt >= 1 AND depth >= 0 AND timeout_ms > 0 AND truncated IN (0, 1) AND delivered IN (0, 1))
) STRICT;

INSERT INTO task_new (
  seq, id, kind, agent, status, priority, created_at_ms, queue_deadline_ms, started_at_ms, finished_at_ms,
  heartbeat_at_ms, heartbeat_mono_ms, deadline_at_ms, deadline_mono_ms, timeout_ms, retries_left, attempt, retry_of,
  idempotency_key, key_scope, request_sha256, creator, chain, depth, principal, parent_id, goal_id, labels, source, prompt,
  cwd, env, inputs, owner_pid, owner_start, owner_boot, worker_pid, worker_start, worker_boot, exit_code, signal,
  error_code, error_message, output_sha256, output_bytes, stderr_sha256, stderr_bytes, truncated, cleanup,
  cleanup_report, usage, delivered, budget_id
)
SELECT
  seq, id, kind, agent, status, priority, created_at_ms, queue_deadline_ms, started_at_ms, finished_at_ms,
  heartbeat_at_ms, heartbeat_mono_ms, deadline_at_ms, deadline_mono_ms, timeout_ms, retries_left, attempt, retry_of,
  idempotency_key, iif(idempotency_key IS NULL, NULL, creator), request_sha256, creator, chain, depth, principal, parent_id, goal_id, labels, source, prompt,
  cwd, env, inputs, owner_pid, owner_start, owner_boot, worker_pid, worker_start, worker_boot, exit_code, signal,
  error_code, error_message, output_sha256, output_bytes, stderr_sha256, stderr_bytes, truncated, cleanup,
  cleanup_report, usage, delivered, id
FROM task;

DROP TABLE task;
ALTER TABLE task_new RENAME TO task;

-- The queue: the next task of an agent is the first row of its part of this index.
CREATE INDEX task_queued ON task (agent, priority DESC, seq) WHERE status = 'queued';
CREATE INDEX task_queue_deadline ON task (queue_deadline_ms) WHERE status = 'queued' AND queue_deadline_ms IS NOT NULL;
CREATE INDEX task_running ON task (seq) WHERE status = 'running';
CREATE INDEX task_cleanup ON task (seq) WHERE cleanup = 'pending';
CREATE UNIQUE INDEX task_idempotency ON task (key_scope, idempotency_key, key_place)
WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX task_retry ON task (retry_of) WHERE retry_of IS NOT NULL;
CREATE INDEX task_parent ON task (parent_id) WHERE parent_id IS NOT NULL;

CREATE TRIGGER task_transition BEFORE UPDATE OF status ON task
WHEN OLD.status <> NEW.status AND OLD.status || ' ' || NEW.status NOT IN (
  'queued running', 'queued cancelled', 'queued failed',
  'running paused', 'running completed', 'running failed', 'running cancelled', 'running timed_out', 'running lost',
  'paused running', 'paused completed', 'paused failed', 'paused cancelled'
)
BEGIN
  SELECT RAISE(ABORT, 'the task state machine has no such transition');
END;

CREATE TRIGGER task_kept_while_alive BEFORE DELETE ON task
WHEN OLD.finished_at_ms IS NULL OR OLD.cleanup = 'pending'
BEGIN
  SELECT RAISE(ABORT, 'a task that has not ended is not deleted');
END;

CREATE TRIGGER task_counted_in AFTER INSERT ON task
BEGIN
  INSERT INTO task_count VALUES (NEW.status, 1) ON CONFLICT DO UPDATE SET tasks = tasks + 1;
END;
CREATE TRIGGER task_counted_over AFTER UPDATE OF status ON task WHEN OLD.status <> NEW.status
BEGIN
  UPDATE task_count SET tasks = tasks - 1 WHERE status = OLD.status;
  INSERT INTO task_count VALUES (NEW.status, 1) ON CONFLICT DO UPDATE SET tasks = tasks + 1;
END;
CREATE TRIGGER task_counted_out AFTER DELETE ON task
BEGIN
  UPDATE task_count SET tasks = tasks - 1 WHERE status = OLD.status;
END;

-- Which agents a task exists for, beside the operator: its creator and everybody in its chain; a sub-agent is its
-- parent's. An index over what the rows say, kept by the database.
CREATE TABLE task_viewer (
  alias    TEXT    NOT NULL,
  task_seq INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  PRIMARY KEY (alias, task_seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_viewer_task ON task_viewer (task_seq);

CREATE TRIGGER task_seen_by AFTER INSERT ON task WHEN NEW.creator <> 'operator'
BEGIN
  INSERT OR IGNORE INTO task_viewer VALUES (NEW.creator, NEW.seq);
  INSERT OR IGNORE INTO task_viewer SELECT value, NEW.seq FROM json_each(NEW.chain);
END;
CREATE TRIGGER subagent_seen_by AFTER INSERT ON task WHEN NEW.kind = 'subagent'
BEGIN
  INSERT OR IGNORE INTO task_viewer SELECT p.agent, NEW.seq FROM task p WHERE p.id = NEW.parent_id;
  INSERT OR IGNORE INTO task_viewer
    SELECT v.alias, NEW.seq FROM task p JOIN task_viewer v ON v.task_seq = p.seq WHERE p.id = NEW.parent_id;
END;

INSERT OR IGNORE INTO task_viewer SELECT creator, seq FROM task WHERE creator <> 'operator';
INSERT OR IGNORE INTO task_viewer
  SELECT c.value, t.seq FROM task t, json_each(CASE WHEN json_valid(t.chain) THEN t.chain ELSE '[]' END) c
  WHERE t.creator <> 'operator';

-- What counts against the budget of a task, for as long as it counts: an hour for actions, a day for cost.
CREATE TABLE spent (
  holder_id TEXT    NOT NULL,          -- whose budget (budget_id)
  what      TEXT    NOT NULL,
  at_ms     INTEGER NOT NULL,          -- wall: a budget outlives the machine's restart
  amount    INTEGER NOT NULL,          -- actions, or millionths of the currency
  task_id   TEXT    NOT NULL,          -- who spent it
  CONSTRAINT "actions and cost are budgeted" CHECK (what IN ('action', 'cost')),
  CONSTRAINT "nothing is given back" CHECK (amount > 0)
) STRICT;
CREATE INDEX spent_holder ON spent (holder_id, what, at_ms);
CREATE INDEX spent_age ON spent (what, at_ms);

-- What tasks reported of the models they used.
CREATE TABLE usage (
  seq         INTEGER PRIMARY KEY,
  task_id     TEXT    NOT NULL REFERENCES task (id) ON DELETE CASCADE,
  at_ms       INTEGER NOT NULL,
  tokens      INTEGER NOT NULL,
  cost_micros INTEGER NOT NULL,
  model       TEXT,
  request_key TEXT,                    -- the same report twice counts once
  CONSTRAINT "usage is not negative" CHECK (tokens >= 0 AND cost_micros >= 0)
) STRICT;
CREATE INDEX usage_task ON usage (task_id, model);
CREATE UNIQUE INDEX usage_once ON usage (task_id, request_key) WHERE request_key IS NOT NULL;
