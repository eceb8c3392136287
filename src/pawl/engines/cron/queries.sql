-- The statements of the scheduler. A fire changes its status by compare-and-set, or follows its task by trigger.

-- name: jobs
-- with the newest instant that is on record, manual fires not counted
SELECT j.*, (SELECT max(f.nominal_at_ms) FROM cron_fire f WHERE f.job = j.name AND f.manual = 0),
  (SELECT max(f.until_at_ms) FROM cron_fire f WHERE f.job = j.name AND f.fires > 1)
FROM cron_job j ORDER BY j.name;

-- name: job
SELECT * FROM cron_job WHERE name = ?;

-- name: definitions
SELECT name, definition, first_seen_ms FROM cron_job;

-- name: insert_job
INSERT INTO cron_job (name, origin, definition, disabled_reason, finished, first_seen_ms, next_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING *;

-- name: update_job
UPDATE cron_job SET definition = :definition, override = :override, disabled_reason = :disabled_reason,
  finished = :finished, first_seen_ms = :first_seen_ms, next_at_ms = :next_at_ms
WHERE seq = :seq RETURNING *;

-- name: advance
-- the next fire is stored before this one starts; only where nobody has moved it
UPDATE cron_job SET next_at_ms = :next, finished = :next IS NULL, disabled_reason = iif(:next IS NULL, :over, disabled_reason)
WHERE seq = :seq AND next_at_ms = :due RETURNING *;

-- name: delete_job
DELETE FROM cron_job WHERE seq = ?;

-- name: insert_fire
-- (none) -> claimed, skipped or missed
INSERT INTO cron_fire (job, nominal_at_ms, manual, trigger, status, reason, fires, until_at_ms, recorded_at_ms, waits,
  owner_pid, owner_start, owner_boot, finished_at_ms)
VALUES (:job, :nominal, :manual, :trigger, :status, :reason, :fires, :until, :now, :waits, :pid, :start, :boot, :finished)
ON CONFLICT (job, manual, nominal_at_ms) DO NOTHING RETURNING *;

-- name: fire
SELECT * FROM cron_fire WHERE seq = ?;

-- name: open_fires
-- in the order in which they wait for one another: of claims, and not of instants, for the clock may have been set back
SELECT * FROM cron_fire INDEXED BY cron_fire_open WHERE status IN ('claimed', 'running') ORDER BY task_id IS NULL, seq;

-- name: open_fires_of
SELECT * FROM cron_fire WHERE job = ? AND status IN ('claimed', 'running') ORDER BY nominal_at_ms, seq;

-- name: unclean_fires
-- their tasks have ended, and processes of them may live
SELECT f.* FROM task t INDEXED BY task_cleanup JOIN cron_fire f ON f.task_id = t.id
WHERE t.cleanup = 'pending' AND f.finished_at_ms IS NOT NULL;

-- name: adopt
-- one without a task that is late by now is caught up
UPDATE cron_fire SET owner_pid = :pid, owner_start = :start, owner_boot = :boot,
  trigger = iif(:late AND manual = 0 AND task_id IS NULL, 'catch_up', trigger)
WHERE seq = :seq AND status IN ('claimed', 'running') AND owner_pid = :old_pid AND owner_start = :old_start
  AND owner_boot = :old_boot RETURNING *;

-- name: link
-- claimed -> running where its task began at once; only for whoever claimed it
UPDATE cron_fire SET task_id = :task, status = iif(:started IS NULL, 'claimed', 'running'), started_at_ms = :started
WHERE seq = :seq AND status = 'claimed' AND task_id IS NULL AND owner_pid = :pid AND owner_start = :start
  AND owner_boot = :boot RETURNING *;

-- name: link_check
UPDATE cron_fire SET check_id = :task WHERE seq = :seq AND status = 'claimed' AND task_id IS NULL AND check_id IS NULL
  AND owner_pid = :pid AND owner_start = :start AND owner_boot = :boot RETURNING *;

-- name: close
-- claimed -> skipped, missed, failed or cancelled; what has a task ends with it
UPDATE cron_fire SET status = :status, reason = :reason, finished_at_ms = :now, exit_code = :exit_code
WHERE seq = :seq AND status = 'claimed' AND task_id IS NULL RETURNING *;

-- name: close_waiting
-- claimed -> skipped, all of a job that have no task yet
UPDATE cron_fire SET status = 'skipped', reason = ?, finished_at_ms = ?
WHERE job = ? AND status = 'claimed' AND task_id IS NULL RETURNING seq;

-- name: settle_from_task
-- where an attempt that should have followed never did
UPDATE cron_fire SET status = (SELECT status FROM task WHERE id = task_id),
  finished_at_ms = (SELECT finished_at_ms FROM task WHERE id = task_id),
  exit_code = (SELECT exit_code FROM task WHERE id = task_id),
  reason = (SELECT error_message FROM task WHERE id = task_id)
WHERE seq = ? AND status IN ('claimed', 'running')
  AND EXISTS (SELECT 1 FROM task WHERE id = task_id AND finished_at_ms IS NOT NULL AND coalesce(cleanup, '') <> 'pending')
RETURNING *;

-- name: on_record
SELECT nominal_at_ms FROM cron_fire WHERE job = ? AND manual = 0 AND nominal_at_ms >= ? AND fires = 1;

-- name: spans
-- records for many, and what has left the history
SELECT nominal_at_ms, until_at_ms FROM cron_fire INDEXED BY cron_fire_span
WHERE job = ?1 AND fires > 1 AND until_at_ms >= ?2 AND manual = 0
UNION ALL SELECT from_ms, until_ms FROM cron_forgotten WHERE job = ?1 AND until_ms >= ?2;

-- name: spans_over
SELECT seq, nominal_at_ms FROM cron_fire INDEXED BY cron_fire_span
WHERE job = :job AND fires > 1 AND until_at_ms > :now AND manual = 0 AND nominal_at_ms <= :now;

-- name: missed_after
SELECT seq FROM cron_fire WHERE job = ? AND manual = 0 AND nominal_at_ms > ? AND status = 'missed' LIMIT 1;

-- name: take_back
-- missed -> (none): by a clock that was set back they are still to come
DELETE FROM cron_fire WHERE job = ? AND manual = 0 AND nominal_at_ms > ? AND status = 'missed' RETURNING fires;

-- name: cut_span
UPDATE cron_fire SET fires = min(fires, :fires), until_at_ms = iif(min(fires, :fires) > 1, :until, NULL)
WHERE seq = :seq AND until_at_ms > :until RETURNING seq;

-- name: newest_manual
SELECT max(nominal_at_ms) FROM cron_fire WHERE job = ? AND manual = 1;

-- name: fires_of
SELECT f.*, t.output_sha256, t.output_bytes, t.stderr_sha256, t.stderr_bytes
FROM cron_fire f LEFT JOIN task t ON t.id = f.task_id
WHERE f.job = ? ORDER BY f.nominal_at_ms DESC, f.seq DESC LIMIT ?;

-- name: fires_all
SELECT f.*, t.output_sha256, t.output_bytes, t.stderr_sha256, t.stderr_bytes
FROM cron_fire f LEFT JOIN task t ON t.id = f.task_id
ORDER BY f.seq DESC LIMIT ?;

-- name: last_fires
-- of each job the newest by schedule and the newest by hand; CROSS, or all fires are read where there are no statistics
SELECT f.* FROM cron_job j CROSS JOIN cron_fire f ON f.seq IN (
  (SELECT seq FROM cron_fire WHERE job = j.name AND manual = 0 ORDER BY nominal_at_ms DESC LIMIT 1),
  (SELECT seq FROM cron_fire WHERE job = j.name AND manual = 1 ORDER BY nominal_at_ms DESC LIMIT 1));

-- name: last_fires_of
SELECT f.* FROM cron_fire f WHERE f.seq IN (
  (SELECT seq FROM cron_fire WHERE job = ?1 AND manual = 0 ORDER BY nominal_at_ms DESC LIMIT 1),
  (SELECT seq FROM cron_fire WHERE job = ?1 AND manual = 1 ORDER BY nominal_at_ms DESC LIMIT 1));

-- name: late_since
SELECT job, status, sum(fires), max(nominal_at_ms) FROM cron_fire INDEXED BY cron_fire_late
WHERE (status = 'missed' OR trigger = 'catch_up') AND recorded_at_ms >= ? GROUP BY job, status = 'missed';

-- name: oldest_kept
SELECT nominal_at_ms FROM cron_fire WHERE job = ? AND manual = ? AND nominal_at_ms <= ?
ORDER BY nominal_at_ms DESC LIMIT 1 OFFSET ?;

-- name: forget_fires
-- not those of which processes may live: after a restart others wait for them
DELETE FROM cron_fire WHERE job = ? AND manual = ? AND nominal_at_ms < ? AND finished_at_ms IS NOT NULL
  AND coalesce(until_at_ms, nominal_at_ms) <= ?
  AND (task_id IS NULL OR task_id NOT IN (SELECT id FROM task INDEXED BY task_cleanup WHERE cleanup = 'pending'))
RETURNING nominal_at_ms, coalesce(until_at_ms, nominal_at_ms);

-- name: forget_old
DELETE FROM cron_fire WHERE recorded_at_ms < ? AND finished_at_ms IS NOT NULL
  AND job NOT IN (SELECT name FROM cron_job);

-- name: extend_forgotten
-- what lies between was passed by the clock too; before the first stretch there may be fires to come, after a set back
UPDATE cron_forgotten SET until_ms = max(until_ms, :last)
WHERE job = :job AND from_ms = (SELECT max(from_ms) FROM cron_forgotten WHERE job = :job AND from_ms <= :first);

-- name: insert_forgotten
INSERT INTO cron_forgotten (job, from_ms, until_ms) VALUES (:job, :first, :last);
