-- What all migrations together make. Written by `python -m pawl.storage.schema`; not executed by anything.

CREATE TABLE task_label (
  key      TEXT    NOT NULL,
  value    TEXT    NOT NULL,
  task_seq INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  PRIMARY KEY (key, value, task_seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX task_label_task ON task_label (task_seq);

CREATE TABLE task_input (
  task_seq   INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  name       TEXT    NOT NULL,
  sha256     TEXT    NOT NULL,
  size_bytes INTEGER NOT NULL,
  PRIMARY KEY (task_seq, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE task_count (
  status TEXT    PRIMARY KEY,
  tasks  INTEGER NOT NULL,
  CONSTRAINT "a count is not negative" CHECK (tasks >= 0)
) STRICT, WITHOUT ROWID;

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

CREATE TABLE policy (
  sha256   TEXT PRIMARY KEY,
  document TEXT NOT NULL,
  CONSTRAINT "a policy is named by its digest" CHECK (length(sha256) = 64)
) STRICT, WITHOUT ROWID;

CREATE TABLE "task" (
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

CREATE TRIGGER cron_fire_follows AFTER UPDATE OF status ON task
WHEN NEW.kind = 'cron' AND OLD.status <> NEW.status
BEGIN
  UPDATE cron_fire SET status = NEW.status, started_at_ms = coalesce(started_at_ms, NEW.started_at_ms),
    finished_at_ms = NEW.finished_at_ms, exit_code = NEW.exit_code, reason = NEW.error_message
  WHERE task_id = NEW.id AND NEW.status <> 'queued' AND NEW.status <> 'paused'
    AND NOT (NEW.status IN ('failed', 'timed_out', 'lost') AND NEW.retries_left > 0 AND OLD.status = 'running');
END;

CREATE TRIGGER cron_fire_exits AFTER UPDATE OF exit_code ON task
WHEN NEW.kind = 'cron' AND NEW.exit_code IS NOT NULL AND OLD.status = NEW.status
BEGIN
  UPDATE cron_fire SET exit_code = NEW.exit_code WHERE task_id = NEW.id AND finished_at_ms IS NOT NULL;
END;

CREATE TRIGGER cron_fire_retries AFTER INSERT ON task
WHEN NEW.kind = 'cron' AND NEW.retry_of IS NOT NULL
BEGIN
  UPDATE cron_fire SET task_id = NEW.id, status = 'claimed' WHERE task_id = NEW.retry_of AND finished_at_ms IS NULL;
END;

CREATE TABLE task_viewer (
  alias    TEXT    NOT NULL,
  task_seq INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  PRIMARY KEY (alias, task_seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX task_viewer_task ON task_viewer (task_seq);

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

CREATE TABLE cron_job (
  seq             INTEGER PRIMARY KEY,
  name            TEXT    NOT NULL UNIQUE,
  origin          TEXT    NOT NULL,
  definition      TEXT    NOT NULL,           -- the job as the file would say it, as canonical JSON
  override        INTEGER,                    -- what the operator said last of whether it fires; absent: its definition
  disabled_reason TEXT,                       -- why it cannot fire, whatever anybody says
  finished        INTEGER NOT NULL DEFAULT 0, -- nothing of this schedule is left to fire
  first_seen_ms   INTEGER NOT NULL,           -- this schedule; wall
  next_at_ms      INTEGER,                    -- the nominal instant of its next fire; wall

  CONSTRAINT "a job comes from the file or was added" CHECK (origin IN ('config', 'runtime')),
  CONSTRAINT "a job that cannot fire has no next fire"
    CHECK (next_at_ms IS NULL OR (disabled_reason IS NULL AND finished = 0 AND coalesce(override, 1) = 1)),
  CONSTRAINT "what is a flag is 0 or 1" CHECK (finished IN (0, 1) AND coalesce(override, 0) IN (0, 1))
) STRICT;

CREATE TABLE cron_fire (
  seq           INTEGER PRIMARY KEY,
  job           TEXT    NOT NULL,
  nominal_at_ms INTEGER NOT NULL,             -- wall
  manual        INTEGER NOT NULL DEFAULT 0,
  trigger       TEXT    NOT NULL,
  status        TEXT    NOT NULL,
  reason        TEXT,
  fires         INTEGER NOT NULL DEFAULT 1,   -- how many this record stands for
  until_at_ms   INTEGER,                      -- and the last of them
  recorded_at_ms INTEGER NOT NULL,
  waits         TEXT,                         -- how it treats those before it: absent where it starts beside them
  owner_pid     INTEGER,                      -- the daemon that claimed it
  owner_start   TEXT,
  owner_boot    TEXT,
  check_id      TEXT,                         -- the task of its precondition
  task_id       TEXT,                         -- its task, of several attempts the last
  started_at_ms  INTEGER,
  finished_at_ms INTEGER,
  exit_code     INTEGER,

  CONSTRAINT "a fire has a known status" CHECK (status IN (
    'claimed', 'running', 'completed', 'failed', 'cancelled', 'timed_out', 'lost', 'skipped', 'missed')),
  CONSTRAINT "a fire has a known trigger" CHECK (trigger IN ('schedule', 'catch_up', 'manual')),
  CONSTRAINT "a fire waits its turn or replaces those before it" CHECK (waits IN ('queue', 'replace')),
  CONSTRAINT "a manual fire was triggered so" CHECK (manual = (trigger = 'manual')),
  CONSTRAINT "a claimed fire names its owner" CHECK (
    status NOT IN ('claimed', 'running') OR (owner_pid IS NOT NULL AND owner_start IS NOT NULL AND owner_boot IS NOT NULL)),
  CONSTRAINT "a fire has a finish time exactly when it has ended" CHECK (
    (status IN ('claimed', 'running')) = (finished_at_ms IS NULL)),
  CONSTRAINT "what runs or ran has a task" CHECK (status NOT IN ('running', 'completed', 'lost', 'timed_out') OR task_id IS NOT NULL),
  CONSTRAINT "what did not run says why" CHECK (status NOT IN ('skipped', 'missed') OR reason IS NOT NULL),
  CONSTRAINT "only missed fires share a record" CHECK (
    fires >= 1 AND (fires > 1) = (until_at_ms IS NOT NULL) AND (fires = 1 OR status = 'missed'))
) STRICT;

CREATE UNIQUE INDEX cron_fire_instant ON cron_fire (job, manual, nominal_at_ms);

CREATE INDEX cron_fire_task ON cron_fire (task_id) WHERE task_id IS NOT NULL;

CREATE INDEX cron_fire_open ON cron_fire (job) WHERE status IN ('claimed', 'running');

CREATE INDEX cron_fire_span ON cron_fire (job, until_at_ms) WHERE fires > 1;

CREATE INDEX cron_fire_recorded ON cron_fire (recorded_at_ms);

CREATE INDEX cron_fire_late ON cron_fire (recorded_at_ms) WHERE status = 'missed' OR trigger = 'catch_up';

CREATE TRIGGER cron_fire_transition BEFORE UPDATE OF status ON cron_fire
WHEN OLD.status <> NEW.status AND OLD.status || ' ' || NEW.status NOT IN (
  'claimed running', 'claimed failed', 'claimed cancelled', 'claimed skipped', 'claimed missed',
  'running claimed', 'running completed', 'running failed', 'running cancelled', 'running timed_out', 'running lost'
)
BEGIN
  SELECT RAISE(ABORT, 'the state machine of fires has no such transition');
END;

CREATE TRIGGER cron_fire_kept_while_open BEFORE DELETE ON cron_fire WHEN OLD.finished_at_ms IS NULL
BEGIN
  SELECT RAISE(ABORT, 'a fire that has not ended is not deleted');
END;

CREATE TRIGGER cron_job_has_run AFTER UPDATE OF status ON cron_fire
WHEN NEW.status = 'completed' AND OLD.status <> 'completed' AND NEW.manual = 0
BEGIN
  DELETE FROM cron_job WHERE name = NEW.job AND origin = 'runtime' AND first_seen_ms <= NEW.recorded_at_ms
    AND json_extract(definition, '$.delete_after_run');
  UPDATE cron_job SET finished = 1, next_at_ms = NULL,
    disabled_reason = 'it has run, and delete_after_run is set; the file still declares it'
  WHERE name = NEW.job AND origin = 'config' AND first_seen_ms <= NEW.recorded_at_ms
    AND json_extract(definition, '$.delete_after_run');
END;

CREATE TABLE cron_forgotten (
  job      TEXT    NOT NULL,
  from_ms  INTEGER NOT NULL,                  -- the nominal instant of the first; wall
  until_ms INTEGER NOT NULL,                  -- and of the last

  PRIMARY KEY (job, from_ms),
  CONSTRAINT "what is forgotten has a first and a last" CHECK (from_ms <= until_ms)
) STRICT, WITHOUT ROWID;
