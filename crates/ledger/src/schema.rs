//! Schema of the ledger. The Go operator's table keeps its name and columns. Everything else is added beside them, and
//! no table or column is ever dropped.

use std::path::Path;

use rusqlite::Connection;

use super::LedgerError;

/// `PRAGMA user_version` of this schema.
pub(super) const VERSION: i64 = 3;

/// Table of the Go operator, as the Go operator creates it.
const ORIGINAL: &str = "create table if not exists htcjobs
    (htcjobName varchar, jobId char(10), status integer, tempDir varchar, uniqid integer)";

/// Columns added to `htcjobs`. Rows of the Go operator have no uid. All dates are on the schedd's clock.
///
/// - `status`: 1 active, 4 succeeded, 7 failed; +10 once the output is fetched.
/// - `starts`, `runStart`, `runEnd`, `host`: the job's runs.
/// - `changed`: number of the transaction that last changed the job (`sequence` in the table `ledger`).
/// - `stated`: number of the transaction in which HTCondor's answer last changed its state; null if an older version
///   did.
/// - `refused`: reason why its output was not kept. `refusedBy`: the limits that refused it (key `outputLimits` of
///   `ledger`).
/// - `holdReason`: also the reason of a removal, where `outcome` is `Removed`. `heldSince`: date of the hold.
/// - `outputBytes`: size of the fetched output; null if an older version fetched it.
/// - `omitted`: parts of the output that did not come back; null if all did.
/// - `exits`, `lastExit` (encoded as in the table `exits`): how often it ended by itself, and how it did last.
/// - `vacated`: date at which HTCondor last interrupted it.
/// - `faults`: its runs that ended by faults of their nodes, as HTCondor's reason for the hold says it.
const JOB_COLUMNS: &[(&str, &str)] = &[
    ("uniqid", "integer"),
    ("namespace", "text"),
    ("uid", "text"),
    ("idx", "integer"),
    ("attempt", "integer"),
    ("schedd", "text"),
    ("birthdate", "integer"),
    ("recordedAt", "integer"),
    ("stagedIn", "integer"),
    ("started", "integer"),
    ("jobStatus", "integer"),
    ("exitCode", "integer"),
    ("exitSignal", "integer"),
    ("outcome", "text"),
    ("holdCode", "integer"),
    ("holdSubcode", "integer"),
    ("holdReason", "text"),
    ("gone", "integer"),
    ("starts", "integer"),
    ("runStart", "integer"),
    ("runEnd", "integer"),
    ("host", "text"),
    ("changed", "integer"),
    ("refused", "text"),
    ("refusedBy", "text"),
    ("outputBytes", "integer"),
    ("exits", "integer"),
    ("lastExit", "integer"),
    ("vacated", "integer"),
    ("faults", "text"),
    ("heldSince", "integer"),
    ("stated", "integer"),
    ("omitted", "text"),
];

/// Columns added to `objects`.
///
/// - `expiredAt`: when a limit ended it early. `exceeded`: that limit of its spec; null for the deadline. `givenUp`:
///   number of jobs given up then.
/// - `errIdx`, `errTail`: end of the `err` of the first failed job that wrote to it.
/// - `releasedAt`: when it was last released. `sandboxGone`, `outputGone`: 1 once those files are removed.
/// - `attempted`: number of its jobs in attempted submissions. `recorded`: number of its jobs with a row. Null if they
///   are to be counted again.
/// - `early`: number of rows of `callbacks` for jobs without a row.
/// - `pool`: namespace and name of its HTCPool; null for the pool of the operator's flags.
/// - `batchJob`: uid of its Job, where its jobs are Pods; null before that is recorded, and where they are HTCondor's.
/// - `queue`: name of the HTCQueue that it was last in; null if it was in none.
/// - `made`, `gaveUp`, `letGo`: numbers of the transactions that recorded it, gave up jobs of it, and released it; null
///   or 0 if an older version did.
/// - `missing`: number of the transaction that recorded that it is gone without having been released.
const OBJECT_COLUMNS: &[(&str, &str)] = &[
    ("expiredAt", "integer"),
    ("exceeded", "text"),
    ("givenUp", "integer"),
    ("errIdx", "integer"),
    ("errTail", "text"),
    ("releasedAt", "integer"),
    ("sandboxGone", "integer"),
    ("outputGone", "integer"),
    ("attempted", "integer"),
    ("recorded", "integer"),
    ("early", "integer"),
    ("made", "integer"),
    ("letGo", "integer"),
    ("gaveUp", "integer"),
    ("missing", "integer"),
    ("pool", "text"),
    ("batchJob", "text"),
    ("queue", "text"),
];

/// Columns added to `wishes`.
const WISH_COLUMNS: &[(&str, &str)] = &[("failure", "text")];

/// Columns added to `runs`: the log of the index's last Pod.
///
/// - `logPod`, `logBytes`: Pod whose log is on the volume, and the log's size.
/// - `logTries`: number of refusals in a row; null if the log was not requested yet, and 0 with no `logPod` if the Pod
///   was gone.
/// - `logAt`, `logFailure`: time and message of the last refusal.
/// - `stated`: as in `htcjobs`.
const RUN_COLUMNS: &[(&str, &str)] = &[
    ("logPod", "text"),
    ("logBytes", "integer"),
    ("logTries", "integer"),
    ("logAt", "integer"),
    ("logFailure", "text"),
    ("stated", "integer"),
];

/// Columns added to `submissions`.
///
/// - `credentials`: namespace and name of the Secret with the credentials of the submission. `namespace/` if they were
///   made for that namespace; empty or null if they were the operator's own. The column `identity` is the HTCondor user
///   that the schedd saw.
/// - `lock`: lock that the submitter holds while it lives; null if it holds none.
/// - `absent`: 1 if its jobs without a row are proved never to have been accepted.
const SUBMISSION_COLUMNS: &[(&str, &str)] = &[("credentials", "text"), ("lock", "text"), ("absent", "integer")];

/// Columns added to `grants`. `each`: resources per job, as the queue has encoded them.
const GRANT_COLUMNS: &[(&str, &str)] = &[("each", "text")];

/// Columns added to `items`. `changed`: as in `htcjobs`. Only the first item has a number, because all are written
/// together.
const ITEM_COLUMNS: &[(&str, &str)] = &[("changed", "integer")];

/// Indexes and updates that need the columns above. An older operator forgets objects and leaves their files.
const INDEXES: &str = "
delete from files where uid not in (select uid from objects);
delete from variables where uid not in (select uid from objects);
delete from secrets where uid not in (select uid from objects);
delete from pulls where uid not in (select uid from objects);
create index if not exists items_changed on items(changed) where changed is not null;
create index if not exists objects_gave_up on objects(gaveUp) where gaveUp is not null;
update objects set gaveUp = 0 where givenUp > 0 and gaveUp is null;
create index if not exists htcjobs_changed on htcjobs(changed) where changed is not null;
create index if not exists objects_let_go on objects(letGo) where letGo is not null;
create index if not exists objects_missing on objects(missing) where missing is not null;
create index if not exists objects_pool on objects(pool) where pool is not null and released = 0;
create index if not exists objects_sandbox on objects(uid) where released = 1 and sandboxGone is null;
create index if not exists submissions_unseen on submissions(notAfter, lock)
    where state = 'open' and deadSince is null and lock is not null;
create index if not exists objects_output on objects(uid, releasedAt) where released = 1 and outputGone is null;
create index if not exists objects_rows on objects(uid, releasedAt) where released = 1 and sandboxGone = 1 and outputGone = 1;
update objects set releasedAt = coalesce((select max(time) from transitions t where t.uid = objects.uid), knownAt)
    where released = 1 and releasedAt is null;
";

/// Tables of this operator. Times are unix milliseconds on the operator's clock. Dates are unix seconds on the schedd's
/// clock.
///
/// - `submissions.state`: `open`, `superseded`, `settled` (it is not read again) or `notRun`.
/// - `submissions.witness`: GlobalJobId of the newest ad in HTCondor's history before the intent; empty if the history
///   was empty.
/// - `files`: what `spec.files` were when they were read. Rows with a large blob are faster with a rowid.
/// - `variables`: values that `spec.env` took from ConfigMaps and fields when they were read.
/// - `secrets`: keys of Secrets that the object uses, with a keyed checksum of their content (`seal`).
/// - `pulls`: registry and repository of an object's image, and names of Secrets that may have a login for it.
/// - `images`: the digest that the tag of an object's image meant before its first submission; or why it is not known.
/// - `wishes`: actions that users request for single jobs (`wanted`: Hold, Release or Remove). `askedAt`: when a
///   release was last sent to HTCondor. `withdrawn`: the job was proved never to have been in HTCondor. `failure`:
///   reason why HTCondor refused the action the last time. `over`: nothing more is to be done. `changed`: as in
///   `htcjobs`.
/// - `grants`: jobs of an object that have quota in its queue (`indices`), and the number of its last grant (`number`).
/// - `exits`: how a job ended by itself for the `number`th time (`exit`: its exit code, or a signal as a negative
///   number), if that was seen.
/// - `runs`: indexes of HTCJobs whose jobs are Pods: the newest Pod, the number of Pods (`starts`), `runStart` and
///   `runEnd` (unix seconds on the node's clock). `state`: Waiting, Pending, Running, Exited; or, as the Job says,
///   Succeeded, Failed, Removed.
const TABLES: &str = "
create unique index if not exists htcjobs_uid on htcjobs(uid, idx) where uid is not null;
create table if not exists objects(
    uid text primary key, namespace text not null, name text not null, phase text not null, isNew integer not null,
    epoch integer not null, startedAt integer, completedAt integer, released integer not null, conditions text not null,
    knownAt integer not null
) without rowid;
create table if not exists submissions(
    uid text not null, attempt integer not null, indices text not null, schedd text not null, birthdate integer not null,
    intentAt integer not null, intentDate integer not null, notAfter integer not null, deadSince integer,
    witness text not null, identity text not null, exitStatus integer, message text, state text not null,
    primary key(uid, attempt)
) without rowid;
create table if not exists requests(
    uid text not null, kind text not null, attempt integer not null, step integer not null, startedAt integer not null,
    finishedAt integer, failureReason text, failure text, failures integer not null,
    primary key(uid, kind)
) without rowid;
create table if not exists transitions(
    uid text not null, seq integer not null, time integer not null, \"from\" text, \"to\" text, trigger text not null,
    active integer not null, succeeded integer not null, failed integer not null, detail text not null,
    reason text not null, warning integer not null, eventAt integer,
    primary key(uid, seq)
) without rowid;
drop index if exists transitions_untold;
create index if not exists transitions_to_tell on transitions(time, uid, seq) where eventAt is null;
create table if not exists items(
    uid text not null, idx integer not null, item text not null, primary key(uid, idx)
) without rowid;
create table if not exists files(
    uid text not null, idx integer not null, path text not null, mode integer not null, bytes integer not null,
    sha256 text not null, content blob not null, primary key(uid, idx)
);
create table if not exists variables(
    uid text not null, idx integer not null, name text not null, value text not null, primary key(uid, idx)
) without rowid;
create table if not exists secrets(
    uid text not null, name text not null, key text not null, seal text not null, primary key(uid, name, key)
) without rowid;
create table if not exists pulls(uid text primary key, repository text not null, secrets text not null) without rowid;
create table if not exists images(uid text primary key, digest text, problem text) without rowid;
create table if not exists wishes(
    number integer primary key autoincrement, uid text not null, idx integer not null, wanted text not null, user text not null,
    at integer not null, told integer not null default 0, askedAt integer, withdrawn integer not null default 0,
    over integer not null default 0, changed integer not null, unique(uid, idx)
);
create index if not exists wishes_changed on wishes(changed);
create table if not exists exits(
    uid text not null, idx integer not null, number integer not null, exit integer not null, primary key(uid, idx, number)
) without rowid;
create table if not exists grants(
    uid text primary key, queue text not null, indices text not null, number integer not null
) without rowid;
create table if not exists runs(
    uid text not null, idx integer not null, pod text, state text not null, starts integer not null, runStart integer,
    runEnd integer, host text, exitCode integer, message text, changed integer not null, primary key(uid, idx)
) without rowid;
create index if not exists runs_changed on runs(changed);
create table if not exists ledger(key text primary key, value text not null) without rowid;
";

/// Table of the reports of jobs. `retcode` is null for a start. `refuted`: HTCondor contradicts the report. `settled`:
/// HTCondor has confirmed how the job ended, so the report no longer matters.
const CALLBACKS: &str = "
create table if not exists callbacks(
    uid text not null, jobId text not null, event text not null, at integer not null, retcode integer,
    refuted integer not null default 0, settled integer not null default 0, primary key(uid, jobId, event)
) without rowid;
create index if not exists callbacks_open on callbacks(uid) where settled = 0;
create index if not exists htcjobs_jobid on htcjobs(jobId) where uid is not null;
create index if not exists submissions_birthdate on submissions(uid, birthdate);
";

/// Columns added to `callbacks`. `earlier`: ids of the events that this one replaced, newest first, as a JSON array.
const CALLBACK_COLUMNS: &[(&str, &str)] = &[("earlier", "text")];

/// Triggers that clear the counts of `objects` when the counted rows change, because an older version of the operator
/// does not know of them.
const COUNTS: &str = "
create trigger if not exists attempted_more after insert on submissions begin
    update objects set attempted = null where uid = new.uid;
end;
create trigger if not exists attempted_otherwise after update of state on submissions
    when (new.state = 'notRun') <> (old.state = 'notRun') begin
    update objects set attempted = null where uid = new.uid;
end;
create trigger if not exists recorded_more after insert on htcjobs when new.uid is not null begin
    update objects set recorded = null where uid = new.uid and recorded is not null;
end;
create trigger if not exists recorded_otherwise after update of uid on htcjobs when new.uid is not old.uid begin
    update objects set recorded = null where uid in (old.uid, new.uid) and recorded is not null;
end;
";

/// Triggers that clear `stated` when the state changes, because an older version of the operator does not know of it.
const STATED: &str = "
create trigger if not exists stated_otherwise after update of jobId, jobStatus, outcome on htcjobs
    when new.stated is old.stated and (new.jobId, new.jobStatus, new.outcome) is not (old.jobId, old.jobStatus, old.outcome) begin
    update htcjobs set stated = null where uid = new.uid and idx = new.idx;
end;
create trigger if not exists run_stated_otherwise after update of state on runs
    when new.stated is old.stated and new.state is not old.state begin
    update runs set stated = null where uid = new.uid and idx = new.idx;
end;
";

/// Keeps the newest start and the newest end of each job. Older versions kept 200 events per job.
const NEWEST: &str = "
begin immediate;
delete from callbacks where (uid, jobId, event) in (
    select uid, jobId, event from (
        select uid, jobId, event,
            row_number() over (partition by uid, jobId, retcode is null order by at desc, event desc) as place
        from callbacks
    ) where place > 1
);
insert or ignore into ledger(key, value) values ('callbacks', 'newest');
commit;
";

/// Removes a kind of request that older versions had.
const NO_ADOPTIONS: &str = "delete from requests where kind = 'Adopt'";

/// Index on the Go operator's only key. Its rows have no uid until they are bound.
const INHERITED: &str = "create index if not exists htcjobs_name on htcjobs(htcjobName) where uid is null";

/// Fails for a file of a later version. `failed` converts an error of reading the version.
pub(super) fn must_be_known(
    connection: &Connection,
    path: &Path,
    failed: impl FnOnce(rusqlite::Error) -> LedgerError,
) -> Result<(), LedgerError> {
    let found: i64 = connection.query_row("pragma user_version", [], |row| row.get(0)).map_err(failed)?;
    if found > VERSION {
        return Err(LedgerError::TooNew { path: path.to_owned(), found, known: VERSION });
    }
    Ok(())
}

/// Brings the file to [`VERSION`]. A file of the Go operator loses no row.
pub(super) fn migrate(connection: &Connection) -> Result<(), LedgerError> {
    let sql = LedgerError::sql("bring its schema up to date");
    (|| {
        connection.execute_batch(ORIGINAL)?;
        add_columns(connection, "htcjobs", JOB_COLUMNS)?;
        connection.execute_batch(TABLES)?;
        connection.execute_batch(CALLBACKS)?;
        add_columns(connection, "objects", OBJECT_COLUMNS)?;
        add_columns(connection, "wishes", WISH_COLUMNS)?;
        add_columns(connection, "items", ITEM_COLUMNS)?;
        add_columns(connection, "runs", RUN_COLUMNS)?;
        add_columns(connection, "submissions", SUBMISSION_COLUMNS)?;
        add_columns(connection, "grants", GRANT_COLUMNS)?;
        add_columns(connection, "callbacks", CALLBACK_COLUMNS)?;
        connection.execute_batch(COUNTS)?;
        connection.execute_batch(STATED)?;
        if !connection
            .query_row("select exists (select 1 from ledger where key = 'callbacks')", [], |row| row.get(0))?
        {
            connection.execute_batch(NEWEST)?;
        }
        connection.execute_batch(INDEXES)?;
        connection.execute_batch(INHERITED)?;
        connection.execute_batch(NO_ADOPTIONS)?;
        connection.pragma_update(None, "user_version", VERSION)
    })()
    .map_err(sql)
}

/// Returns the columns of a table; none if the table does not exist.
pub(super) fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("select name from pragma_table_info(?1)")?;
    statement.query_map([table], |row| row.get(0))?.collect()
}

/// Whether a table has a column. False also if the table does not exist, as in files of older versions.
pub(super) fn has_column(connection: &Connection, table: &str, column: &str) -> rusqlite::Result<bool> {
    Ok(columns(connection, table)?.iter().any(|name| name == column))
}

fn add_columns(connection: &Connection, table: &str, wanted: &[(&str, &str)]) -> rusqlite::Result<()> {
    let have = columns(connection, table)?;
    for (column, kind) in wanted {
        if !have.iter().any(|name| name.eq_ignore_ascii_case(column)) {
            connection.execute_batch(&format!("alter table {table} add column {column} {kind}"))?;
        }
    }
    Ok(())
}
