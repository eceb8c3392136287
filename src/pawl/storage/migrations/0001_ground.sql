-- The ground floor: tasks, settlement intents, inputs, counters and the audit log.
-- The lists of statuses and the pairs of `task_transition` come from pawl.control_plane.model; a test compares.

CREATE TABLE task (
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
  request_sha256    TEXT,
  creator           TEXT    NOT NULL,
  chain             TEXT    NOT NULL DEFAULT '[]',
  depth             INTEGER NOT NULL DEFAULT 0,
  principal         TEXT,
  parent_id         TEXT,
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
  usage             TEXT,
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
    CHECK (status <> 'completed' OR (output_sha256 IS NOT NULL AND error_code IS NULL)),
  CONSTRAINT "a task that failed, was lost or timed out says why"
    CHECK (status NOT IN ('failed', 'timed_out', 'lost') OR (error_code IS NOT NULL AND error_message IS NOT NULL)),
  CONSTRAINT "an output is named by digest and size"
    CHECK ((output_sha256 IS NULL) = (output_bytes IS NULL) AND (stderr_sha256 IS NULL) = (stderr_bytes IS NULL)),
  CONSTRAINT "a digest is 64 characters"
    CHECK (coalesce(length(output_sha256), 64) = 64 AND coalesce(length(stderr_sha256), 64) = 64),
  CONSTRAINT "only an ended task is cleaned up after"
    CHECK (cleanup IS NULL OR (cleanup IN ('pending', 'done') AND finished_at_ms IS NOT NULL)),
  CONSTRAINT "a paused task has no worker"
    CHECK (status <> 'paused' OR worker_pid IS NULL),
  CONSTRAINT "counts are not negative"
    CHECK (inputs >= 0 AND retries_left >= 0 AND attempt >= 1 AND depth >= 0 AND timeout_ms > 0 AND truncated IN (0, 1) AND delivered IN (0, 1))
) STRICT;

-- The queue: the next task of an agent is the first row of its part of this index.
CREATE INDEX task_queued ON task (agent, priority DESC, seq) WHERE status = 'queued';
CREATE INDEX task_queue_deadline ON task (queue_deadline_ms) WHERE status = 'queued' AND queue_deadline_ms IS NOT NULL;
CREATE INDEX task_running ON task (seq) WHERE status = 'running';
CREATE INDEX task_cleanup ON task (seq) WHERE cleanup = 'pending';
CREATE UNIQUE INDEX task_idempotency ON task (creator, idempotency_key) WHERE idempotency_key IS NOT NULL;
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

-- The columns of a table without rowid stand in the order of its key: SQLite before 3.41 finds a sound table damaged
-- otherwise (quick_check).
CREATE TABLE task_label (
  key      TEXT    NOT NULL,
  value    TEXT    NOT NULL,
  task_seq INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  PRIMARY KEY (key, value, task_seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_label_task ON task_label (task_seq);

-- Files handed over with a task: their bytes are artifacts, their names are unique within the task.
CREATE TABLE task_input (
  task_seq   INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  name       TEXT    NOT NULL,
  sha256     TEXT    NOT NULL,
  size_bytes INTEGER NOT NULL,
  PRIMARY KEY (task_seq, name)
) STRICT, WITHOUT ROWID;

-- How many tasks have each status, so that nobody has to count a million rows.
CREATE TABLE task_count (
  status TEXT    PRIMARY KEY,
  tasks  INTEGER NOT NULL,
  CONSTRAINT "a count is not negative" CHECK (tasks >= 0)
) STRICT, WITHOUT ROWID;

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

-- A promise to settle: written by the owner before any output is published, deleted with the settlement.
CREATE TABLE settlement_intent (
  task_id       TEXT    PRIMARY KEY REFERENCES task (id) ON DELETE CASCADE,
  owner_pid     INTEGER NOT NULL,
  owner_start   TEXT    NOT NULL,
  owner_boot    TEXT    NOT NULL,
  status        TEXT    NOT NULL,
  exit_code     INTEGER,
  signal        INTEGER,
  error_code    TEXT,
  error_message TEXT,
  output_sha256 TEXT    NOT NULL,
  output_bytes  INTEGER NOT NULL,
  stderr_sha256 TEXT,
  stderr_bytes  INTEGER,
  truncated     INTEGER NOT NULL DEFAULT 0,
  leftovers     INTEGER NOT NULL DEFAULT 0,
  ended_at_ms   INTEGER,               -- when the work ended, where that was long before this was written
  created_at_ms INTEGER NOT NULL,
  CONSTRAINT "what is promised is an outcome of the work" CHECK (status IN ('completed', 'failed'))
) STRICT, WITHOUT ROWID;

-- The audit log: who did what to which thing, from what to what, and why. Append-only, each entry hashed over the
-- one before it.
CREATE TABLE event (
  seq          INTEGER PRIMARY KEY,
  at_ms        INTEGER NOT NULL,
  actor        TEXT    NOT NULL,
  subject_kind TEXT    NOT NULL,
  subject_id   TEXT    NOT NULL,
  event        TEXT    NOT NULL,
  from_status  TEXT,
  to_status    TEXT,
  reason       TEXT,
  details      TEXT,
  hash         TEXT    NOT NULL
) STRICT;
CREATE INDEX event_subject ON event (subject_id, seq);

CREATE TRIGGER event_not_changed BEFORE UPDATE ON event
BEGIN
  SELECT RAISE(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER event_not_deleted BEFORE DELETE ON event
BEGIN
  SELECT RAISE(ABORT, 'the audit log is append-only');
END;
