-- Scheduled jobs and their fires. A fire that has a task takes its status from it, in the task's own transaction.

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

-- One record for each nominal instant of a job; what is started by hand stands beside it.
CREATE UNIQUE INDEX cron_fire_instant ON cron_fire (job, manual, nominal_at_ms);
CREATE INDEX cron_fire_task ON cron_fire (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX cron_fire_open ON cron_fire (job) WHERE status IN ('claimed', 'running');
CREATE INDEX cron_fire_span ON cron_fire (job, until_at_ms) WHERE fires > 1;
CREATE INDEX cron_fire_recorded ON cron_fire (recorded_at_ms);
CREATE INDEX cron_fire_late ON cron_fire (recorded_at_ms) WHERE status = 'missed' OR trigger = 'catch_up';

-- Fires that have left the history: they count as recorded. More than one stretch of a job only after the clock was set
-- back to before the first.
CREATE TABLE cron_forgotten (
  job      TEXT    NOT NULL,
  from_ms  INTEGER NOT NULL,                  -- the nominal instant of the first; wall
  until_ms INTEGER NOT NULL,                  -- and of the last

  PRIMARY KEY (job, from_ms),
  CONSTRAINT "what is forgotten has a first and a last" CHECK (from_ms <= until_ms)
) STRICT, WITHOUT ROWID;

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

-- A fire ends with its task, unless another attempt follows.
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

-- A job that goes once it has run: an added one is removed, a declared one is finished.
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
