//! Timeline of a job from its HTCProc: when it waited, was idle, ran or was held, and how it ended.

use htc_api::htcproc::State;
use htc_api::{HTCJobStatus, Phase};
use htc_machine::text::human;
use serde_json::Value;

/// Activity of a job during a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Waiting,
    Idle,
    Running,
    Held,
}

/// A period, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) doing: Activity,
    pub(super) from: i64,
    pub(super) to: i64,
}

/// Result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobResult {
    Open,
    Succeeded,
    /// Failed, removed or lost.
    Failed,
}

/// One row of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimelineRow {
    /// Index of the job; `None` for the HTCJob as a whole.
    pub(super) index: Option<u64>,
    pub(super) spans: Vec<Span>,
    pub(super) result: JobResult,
    /// State or exit in a few words: `exit code 7`.
    pub(super) end: String,
    /// Further details.
    pub(super) more: String,
    /// The job was started more than once.
    pub(super) restarted: bool,
    /// It is held, and it is not known since when.
    pub(super) held_since_unknown: bool,
}

/// A period in which HTCondor held some of the jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HoldSpan {
    pub(super) from: i64,
    pub(super) to: i64,
    /// Number of jobs and reason.
    pub(super) message: String,
}

/// Builds spans, each from the end of the one before it: clocks may differ, and times of one job must not go
/// backwards.
struct Spans {
    done: Vec<Span>,
    at: i64,
    now: i64,
}

impl Spans {
    fn until(&mut self, doing: Activity, to: i64) {
        let to = to.clamp(self.at, self.now.max(self.at));
        if to > self.at {
            self.done.push(Span { doing, from: self.at, to });
            self.at = to;
        }
    }
}

impl TimelineRow {
    /// Returns the row of an HTCProc. `finished`: when its HTCJob had ended.
    pub(super) fn of_job(object: &Value, created: i64, finished: Option<i64>, now: i64) -> Self {
        let status = &object["status"];
        let time = |key: &str| status[key].as_str()?.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second);
        let (start, end) = (time("startTime"), time("completionTime"));
        let state = status["state"].as_str().and_then(|state| state.parse().ok()).unwrap_or(State::Waiting);
        // For a removed job, HTCondor may not have reported the time.
        let until = if state.is_over() { end.or(finished).unwrap_or(now) } else { now };
        let mut spans = Spans { done: Vec::new(), at: created, now };
        let submitted = time("submitTime").or(start).or(status["id"].as_str().map(|_| created));
        spans.until(Activity::Waiting, submitted.unwrap_or(until));
        let start = start.filter(|_| state != State::Idle);
        if let Some(start) = start {
            spans.until(Activity::Idle, start);
        }
        let held_since = time("heldSince").filter(|_| state == State::Held);
        if let Some(since) = held_since.filter(|_| submitted.is_some()) {
            spans.until(if start.is_some() { Activity::Running } else { Activity::Idle }, since);
        }
        let last = match state {
            State::Waiting => Activity::Waiting,
            State::Held => Activity::Held,
            _ if start.is_some() => Activity::Running,
            _ => Activity::Idle,
        };
        spans.until(last, until);
        let attempts = status["attempts"].as_u64().unwrap_or_default();
        let end = match (status["exitCode"].as_i64(), status["exitSignal"].as_i64()) {
            (Some(0), _) => "succeeded".to_owned(),
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => state.to_string().to_lowercase(),
        };
        let result = match state {
            State::Succeeded => JobResult::Succeeded,
            state if state.is_over() => JobResult::Failed,
            _ => JobResult::Open,
        };
        let mut more: Vec<String> = Vec::new();
        more.extend(object["spec"]["item"].as_str().map(|item| format!("item {}", short(item))));
        more.extend(status["host"].as_str().map(|host| format!("on {host}")));
        if attempts > 1 {
            more.push(format!("started {attempts} times"));
        }
        more.extend(["holdReason", "message"].iter().filter_map(|key| status[*key].as_str()).map(short));
        Self {
            index: object["spec"]["index"].as_u64(),
            spans: spans.done,
            result,
            end,
            more: more.join("; "),
            restarted: attempts > 1,
            // A user may hold a waiting job, which then is not submitted.
            held_since_unknown: state == State::Held && held_since.is_none() && submitted.is_some(),
        }
    }

    /// Returns the row of an HTCJob as a whole. `running`: when its first job started, if known.
    pub(super) fn of_htcjob(status: &HTCJobStatus, created: i64, running: Option<i64>, now: i64) -> Self {
        let seconds = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            time.as_ref().map(|time| time.0.as_second())
        };
        let (accepted, finished) = (seconds(&status.start_time), seconds(&status.completion_time));
        let until = finished.unwrap_or(now);
        let mut spans = Spans { done: Vec::new(), at: created, now };
        spans.until(Activity::Waiting, accepted.unwrap_or(until));
        if let Some(running) = running {
            spans.until(Activity::Idle, running);
        }
        let ran = running.is_some() || status.phase == Some(Phase::Running);
        spans.until(if ran { Activity::Running } else { Activity::Idle }, until);
        let result = match (finished, status.failed) {
            (None, _) => JobResult::Open,
            (Some(_), 0) => JobResult::Succeeded,
            (Some(_), _) => JobResult::Failed,
        };
        let end = match result {
            JobResult::Failed => format!("{} failed", status.failed),
            JobResult::Succeeded => "succeeded".to_owned(),
            JobResult::Open => status.phase.map(|phase| phase.to_string().to_lowercase()).unwrap_or_default(),
        };
        Self {
            index: None,
            spans: spans.done,
            result,
            end,
            more: String::new(),
            restarted: false,
            held_since_unknown: false,
        }
    }

    /// Returns the first and the last time in the row.
    pub(super) fn bounds(&self) -> Option<(i64, i64)> {
        Some((self.spans.first()?.from, self.spans.last()?.to))
    }

    /// Formats a sentence: `job 3: exit code 7; waiting 2s, idle 5s, running 1m2s; on slot1@node`.
    pub(super) fn sentence(&self) -> String {
        let name = self.index.map_or_else(|| "all jobs".to_owned(), |index| format!("job {index}"));
        let spans: Vec<String> =
            self.spans.iter().map(|span| format!("{} {}", span.doing.word(), human(span.to - span.from))).collect();
        let parts = [spans.join(", "), self.more.clone()];
        parts
            .iter()
            .filter(|part| !part.is_empty())
            .fold(format!("{name}: {}", self.end), |text, part| text + "; " + part)
    }

    /// Returns the activity or the result at a moment.
    pub(super) fn at(&self, moment: i64) -> Option<Shade> {
        let (first, last) = self.bounds()?;
        if moment < first {
            return None;
        }
        if moment >= last {
            return match self.result {
                JobResult::Open => None,
                JobResult::Succeeded => Some(Shade::Succeeded),
                JobResult::Failed => Some(Shade::Failed),
            };
        }
        self.spans.iter().find(|span| (span.from..span.to).contains(&moment)).map(|span| Shade::Doing(span.doing))
    }
}

/// What one colour stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shade {
    Doing(Activity),
    Succeeded,
    Failed,
}

impl Activity {
    pub(super) const ALL: [Self; 4] = [Self::Waiting, Self::Idle, Self::Running, Self::Held];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Held => "held",
        }
    }
}

/// Shortens a user's or HTCondor's text to one line.
fn short(text: &str) -> String {
    const MOST: usize = 120;
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= MOST { line.to_owned() } else { line.chars().take(MOST).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a time as HTCProcs have it, in seconds after 1970.
    fn time(second: i64) -> String {
        jiff::Timestamp::from_second(second).unwrap().to_string()
    }

    fn row(status: &Value) -> TimelineRow {
        TimelineRow::of_job(&json!({ "spec": { "index": 3 }, "status": status }), 100, Some(900), 1000)
    }

    fn spans(row: &TimelineRow) -> Vec<(&str, i64, i64)> {
        row.spans.iter().map(|span| (span.doing.word(), span.from, span.to)).collect()
    }

    #[test]
    fn times_of_a_job_become_spans() {
        let (submit, start, end) = (time(110), time(150), time(180));
        let failed = row(&json!({ "state": "Failed", "exitCode": 7, "id": "1.0", "attempts": 1, "host": "slot1@n",
            "submitTime": submit, "startTime": start, "completionTime": end }));
        assert_eq!(spans(&failed), [("waiting", 100, 110), ("idle", 110, 150), ("running", 150, 180)]);
        assert_eq!(failed.sentence(), "job 3: exit code 7; waiting 10s, idle 40s, running 30s; on slot1@n");
        assert_eq!(failed.at(99), None);
        assert_eq!(failed.at(120), Some(Shade::Doing(Activity::Idle)));
        assert_eq!(failed.at(180), Some(Shade::Failed));

        let running = row(&json!({ "state": "Running", "submitTime": submit, "startTime": start }));
        assert_eq!(spans(&running)[2], ("running", 150, 1000));
        assert_eq!((running.end.as_str(), running.result), ("running", JobResult::Open));
        let idle = row(&json!({ "state": "Idle", "id": "1.0", "submitTime": submit, "startTime": start }));
        assert_eq!(spans(&idle), [("waiting", 100, 110), ("idle", 110, 1000)], "it was evicted");
        let held =
            row(&json!({ "state": "Held", "submitTime": submit, "startTime": start, "holdReason": "disk\nfull" }));
        assert!(held.sentence().ends_with("; disk"), "{}", held.sentence());
        assert_eq!(spans(&held)[2], ("held", 150, 1000));
        assert!(held.held_since_unknown);
        let held = |more: &[(&str, &str)]| {
            let mut status = json!({ "state": "Held", "heldSince": time(170) });
            for (key, value) in more {
                status[*key] = (*value).into();
            }
            row(&status)
        };
        let ran = held(&[("submitTime", &submit), ("startTime", &start)]);
        let wanted = [("waiting", 100, 110), ("idle", 110, 150), ("running", 150, 170), ("held", 170, 1000)];
        assert_eq!(spans(&ran), wanted);
        assert!(!ran.held_since_unknown);
        let idle = held(&[("submitTime", &submit)]);
        assert_eq!(spans(&idle), [("waiting", 100, 110), ("idle", 110, 170), ("held", 170, 1000)]);
        assert_eq!(spans(&row(&json!({ "state": "Waiting" }))), [("waiting", 100, 1000)]);
    }

    #[test]
    fn unknown_or_inconsistent_times_make_no_span() {
        let removed = row(&json!({ "state": "Removed" }));
        assert_eq!((spans(&removed), removed.end.as_str()), (vec![("waiting", 100, 900)], "removed"));
        let removed = row(&json!({ "state": "Removed", "id": "1.0", "submitTime": time(110) }));
        assert_eq!(spans(&removed), [("waiting", 100, 110), ("idle", 110, 900)]);
        // The schedd's clock is behind, or ahead.
        let odd = row(&json!({ "state": "Succeeded", "exitCode": 0, "submitTime": time(5), "startTime": time(2000),
            "completionTime": time(2001) }));
        assert_eq!(spans(&odd), [("idle", 100, 1000)]);
        assert_eq!(TimelineRow::of_job(&json!({}), 100, None, 100).bounds(), None);
    }

    #[test]
    fn htcjob_without_jobs_has_one_row() {
        let stamp = |second| {
            let time = jiff::Timestamp::from_second(second).unwrap();
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time))
        };
        let mut status = HTCJobStatus { start_time: stamp(110), ..HTCJobStatus::default() };
        status.phase = Some(Phase::Submitted);
        assert_eq!(
            spans(&TimelineRow::of_htcjob(&status, 100, None, 1000)),
            [("waiting", 100, 110), ("idle", 110, 1000)]
        );
        (status.completion_time, status.failed) = (stamp(300), 2);
        let ended = TimelineRow::of_htcjob(&status, 100, Some(150), 1000);
        assert_eq!(spans(&ended), [("waiting", 100, 110), ("idle", 110, 150), ("running", 150, 300)]);
        assert_eq!(ended.sentence(), "all jobs: 2 failed; waiting 10s, idle 40s, running 2m30s");
    }
}
