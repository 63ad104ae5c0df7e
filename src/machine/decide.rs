//! The decision: facts in; the new record, at most one request, and when to look again out.

mod absorb;
mod deadline;
mod doubts;
mod elsewhere;
mod hints;
mod inherit;
mod kept;
mod lent;
mod live;
mod output;
mod queued;
mod submit;
mod terminate;
#[cfg(test)]
mod tests;
mod wishes;

use std::collections::BTreeSet;
use std::time::Duration;

use super::facts::{Answer, Condition, Facts, Failure, InFlight, Known, Past, Reach, Record};
use super::ids::{Attempt, Index, JobId, Kind, RequestKey, Timestamp};
use super::indices::Indices;
use super::judge::{self, Doubt, Sightings};
use super::phase::Phase;
use super::request::{Request, Scope, Work};
use super::rules::{Rules, Settings};
use super::status::{Conditions, Counts};
use super::summary::EVERYDAY;
use super::transitions::{IllegalTransition, Transition, Trigger, legal};
use super::wishes::Change;
use crate::api::{ConditionStatus, ConditionType, Reason};

/// What is to be done about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The record as it is to be after this decision; none where the object is not ours yet (or no longer).
    pub after: Option<Record>,
    /// The jobs whose rows differ from before.
    pub changed: BTreeSet<Index>,
    /// The attempts up to this one need not be read again.
    pub settled: Option<Attempt>,
    /// Of the attempts up to this one, all jobs that are not recorded are proved never to have been accepted.
    pub absent: Option<Attempt>,
    /// What has become of wishes about single jobs.
    pub wishes: Vec<Change>,
    /// What is to be journaled, in the same transaction.
    pub transitions: Vec<Transition>,
    /// Jobs whose own report of their end HTCondor contradicts; it no longer counts.
    pub refuted: Vec<JobId>,
    /// The effect to hand over, once the record is committed.
    pub action: Action,
    /// What HTCondor is to be asked.
    pub look: Look,
    /// Look at the object again after this time even if nothing happens.
    pub again: Option<Duration>,
    /// It has jobs to submit, and its namespace may have no more.
    pub namespace_is_full: bool,
    /// Jobs that it would submit or release now if its queue gave them room, within all other limits. Empty without a queue.
    pub wants: Indices,
    /// When the last try to submit came to nothing; none once HTCondor has accepted jobs since. From then on it is in line.
    pub failed_at: Option<Timestamp>,
}

/// Reasons of `Submitted` False that the next try may do away with.
const FAILED_TRIES: &[Reason] = &[
    Reason::SubmitRefused,
    Reason::ScheddUnreachable,
    Reason::ToolFailed,
    Reason::CredentialsRefused,
    Reason::CredentialsFailed,
    Reason::CannotWriteFiles,
    Reason::Incomplete,
];

/// Reasons of `Submitted` False that history gives, and may give again.
const WAITS_FOR_A_PERSON: &[Reason] = &[Reason::HistoryTooShort, Reason::QueueLost, Reason::Lost];

/// Reasons of `Submitted` False for which jobs wait until others have ended.
const KEEPS_BACK: &[Reason] = &[Reason::NamespaceLimit, Reason::Parallelism, Reason::Queued];

/// Failures that no HTCJob is to blame for: it goes on together with others. A fetch alone may fail in these words for what one
/// HTCJob's jobs have left.
const NOBODYS_FAULT: &[Reason] = &[
    Reason::ScheddUnreachable,
    Reason::ToolFailed,
    Reason::CredentialsRefused,
    Reason::CredentialsFailed,
    Reason::Incomplete,
    Reason::AnotherSchedd,
    Reason::Stopped,
];

/// At most one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing to do, or nothing that may be done now.
    Nothing,
    /// Carry this out.
    Hand(Request),
    /// Drop this request unless its worker has taken it up.
    Cancel(RequestKey),
}

/// What HTCondor is to be asked about an object, and what wakes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Look {
    /// Nothing: it is at rest.
    #[default]
    Nothing,
    /// Ask at the usual interval; wake the object when its ads change.
    Changes,
    /// The same, and ask soon about the jobs of the attempts from this one on, which HTCondor is accepting.
    Accepting(Attempt),
    /// Ask, and wake the object after each answer.
    Every {
        /// Ask history, too, and whether it reaches back this far.
        history: Option<Reach>,
        /// Ask soon instead of at the usual interval.
        soon: bool,
    },
}

impl Look {
    fn more(&mut self, other: Self) {
        *self = match (std::mem::take(self), other) {
            (Self::Every { history: a, soon: s }, Self::Every { history: b, soon: t }) => {
                Self::Every { history: a.or(b), soon: s || t }
            }
            (every @ Self::Every { .. }, _) | (_, every @ Self::Every { .. }) => every,
            (Self::Accepting(a), Self::Accepting(b)) => Self::Accepting(a.min(b)),
            (accepting @ Self::Accepting(_), _) | (_, accepting @ Self::Accepting(_)) => accepting,
            (Self::Changes, _) | (_, Self::Changes) => Self::Changes,
            (Self::Nothing, Self::Nothing) => Self::Nothing,
        };
    }
}

/// Decides what is to be done about one object. Total: there is an answer for all facts.
///
/// # Errors
///
/// The decision would make a transition that is not in the table: a defect of this program. Nothing of it may be carried out.
pub fn decide(
    facts: &Facts,
    now: Timestamp,
    settings: &Settings,
    rules: &Rules,
) -> Result<Decision, IllegalTransition> {
    let Some(mut run) = Run::begin(facts, now, settings, rules) else {
        return Ok(not_ours_yet(facts));
    };
    if let Some(other) = judge::elsewhere(&facts.object, &facts.record, &facts.schedd, rules) {
        // What the jobs themselves say is said by no schedd.
        run.hints(&Sightings::default());
        run.wait_for(other);
        return run.finish();
    }
    let sightings = Sightings::new(&facts.evidence, rules);
    run.absorb(&sightings);
    run.hints(&sightings);
    run.advance();
    if facts.object.deleting {
        run.terminate();
    } else if run.came_back() {
        run.wait_for_deletion();
    } else {
        run.live(&sightings);
    }
    run.finish()
}

/// No row, and no finalizer that would ask for one: attach it, unless the object is on its way out.
fn not_ours_yet(facts: &Facts) -> Decision {
    let uid = facts.object.uid.clone();
    let attach = Request {
        key: RequestKey { uid, kind: Kind::AttachFinalizer, attempt: Attempt(0), step: 1 },
        work: Work::AttachFinalizer,
        alone: false,
    };
    let action = if facts.object.deleting { Action::Nothing } else { Action::Hand(attach) };
    Decision {
        after: None,
        changed: BTreeSet::new(),
        settled: None,
        absent: None,
        wishes: Vec::new(),
        transitions: Vec::new(),
        refuted: Vec::new(),
        action,
        look: Look::Nothing,
        again: None,
        namespace_is_full: false,
        wants: Indices::default(),
        failed_at: None,
    }
}

/// One decision in the making.
struct Run<'a> {
    facts: &'a Facts,
    now: Timestamp,
    settings: &'a Settings,
    rules: &'a Rules,
    record: Record,
    known: Known,
    conditions: Conditions,
    changed: BTreeSet<Index>,
    /// Jobs recorded by this decision.
    new_jobs: usize,
    ran_again: usize,
    /// Why some recorded job's fate is not known.
    doubt: Option<Doubt>,
    absent: Option<Attempt>,
    transitions: Vec<Transition>,
    illegal: Option<IllegalTransition>,
    refuted: Vec<JobId>,
    action: Action,
    look: Look,
    again: Option<Duration>,
    namespace_is_full: bool,
    wants: Indices,
    failed_at: Option<Timestamp>,
}

impl<'a> Run<'a> {
    fn begin(facts: &'a Facts, now: Timestamp, settings: &'a Settings, rules: &'a Rules) -> Option<Self> {
        let mut record = facts.record.clone();
        let row = record.known.take();
        let guarded = row.is_none();
        let known = match row {
            Some(known) => known,
            None if !facts.object.finalizer && rules.finalizer_first => return None,
            None => Known {
                phase: Phase::Pending,
                new: (facts.object.claim == super::facts::Claim::Ours || !rules.finalizer_first)
                    && facts.past == Past::Continuous
                    && facts.object.inherited.is_none()
                    && !facts.object.published.shows_jobs(),
                started: None,
                completed: None,
                cut_short: None,
                given_up: 0,
                released: false,
                queue: None,
                conditions: Vec::new(),
            },
        };
        let conditions = Conditions::new(known.conditions.clone());
        record.known = Some(known.clone());
        let mut run = Self {
            facts,
            now,
            settings,
            rules,
            record,
            known,
            conditions,
            changed: BTreeSet::new(),
            new_jobs: 0,
            ran_again: 0,
            doubt: None,
            absent: None,
            transitions: Vec::new(),
            illegal: None,
            refuted: Vec::new(),
            action: Action::Nothing,
            look: Look::Nothing,
            again: None,
            namespace_is_full: false,
            wants: Indices::default(),
            failed_at: None,
        };
        if guarded {
            run.tell(
                None,
                Trigger::Guarded,
                Some(Phase::Pending),
                "the finalizer is attached; the HTCJob is recorded".to_owned(),
                false,
            );
        }
        Some(run)
    }

    fn finish(mut self) -> Result<Decision, IllegalTransition> {
        if let Some(illegal) = self.illegal {
            return Err(illegal);
        }
        let (conditions, changed) = std::mem::take(&mut self.conditions).finish();
        for condition in changed.into_iter().filter(worth_an_event) {
            let warning = match condition.kind {
                ConditionType::Held => condition.status == ConditionStatus::True,
                ConditionType::QuotaReserved => {
                    let troubles = [Reason::ExceedsMaxQuota, Reason::Misconfigured, Reason::Inadmissible];
                    condition.reason.parse().is_ok_and(|reason| troubles.contains(&reason))
                }
                ConditionType::Stuck | ConditionType::Suspended | ConditionType::Complete | ConditionType::Failed => {
                    false
                }
                ConditionType::Submitted
                | ConditionType::Tracked
                | ConditionType::OutputFetched
                | ConditionType::JobsRemoved => condition.status != ConditionStatus::True,
            };
            self.tell_condition(condition.reason, condition.message, warning);
        }
        self.known.conditions = conditions;
        self.record.known = Some(self.known);
        Ok(Decision {
            settled: judge::settled_for_good(&self.record, self.rules),
            absent: self.absent,
            wishes: self.record.wishes.changes(&self.facts.record.wishes),
            after: Some(self.record),
            changed: self.changed,
            transitions: self.transitions,
            refuted: self.refuted,
            action: self.action,
            look: self.look,
            again: self.again,
            namespace_is_full: self.namespace_is_full,
            wants: self.wants,
            failed_at: self.failed_at,
        })
    }

    /// Journals a change, if the table allows it; if it does not, there is no decision.
    fn tell(&mut self, from: Option<Phase>, trigger: Trigger, to: Option<Phase>, detail: String, warning: bool) {
        let row = match legal(from, trigger, to) {
            Ok(row) => row,
            Err(illegal) => {
                self.illegal.get_or_insert(illegal);
                return;
            }
        };
        let counts = Counts::of(&self.record);
        let reason = row.reason.map_or_else(|| trigger.to_string(), str::to_owned);
        self.transitions.push(Transition {
            from,
            to,
            trigger,
            reason,
            detail,
            warning,
            active: counts.active,
            succeeded: counts.succeeded,
            failed: counts.failed,
        });
    }

    /// Journals what a condition says now.
    fn tell_condition(&mut self, reason: String, detail: String, warning: bool) {
        let phase = Some(self.known.phase);
        let counts = Counts::of(&self.record);
        self.transitions.push(Transition {
            from: phase,
            to: phase,
            trigger: Trigger::ConditionChanged,
            reason,
            detail,
            warning,
            active: counts.active,
            succeeded: counts.succeeded,
            failed: counts.failed,
        });
    }

    /// Moves to another phase.
    fn go(&mut self, trigger: Trigger, to: Phase, detail: String, warning: bool) {
        self.tell(Some(self.known.phase), trigger, Some(to), detail, warning);
        self.known.phase = to;
    }

    /// What a try failed by, or what a person is waited for, stays said while it is tried or asked again: one Event, not one
    /// for each time.
    fn say(&mut self, kind: ConditionType, status: ConditionStatus, reason: Reason, message: &str) {
        let told = self.conditions.get(kind).filter(|told| told.status == ConditionStatus::False);
        let told = told.and_then(|told| told.reason.parse().ok());
        let is_one_of = |reasons: &[Reason]| told.is_some_and(|told| reasons.contains(&told));
        let has_jobs = !self.record.jobs.is_empty();
        let others_wait = is_one_of(KEEPS_BACK) && has_jobs;
        let progress = match reason {
            Reason::Asking => is_one_of(FAILED_TRIES) || is_one_of(WAITS_FOR_A_PERSON) || others_wait,
            // Each part of the jobs, and what is left waits again.
            Reason::Submitting | Reason::SmallerSubmissions => is_one_of(FAILED_TRIES) || is_one_of(KEEPS_BACK),
            // Some of the jobs after others: the schedd takes no more at a time.
            Reason::Staging | Reason::JobsPresent => (is_one_of(&[Reason::SubmitRefused]) && has_jobs) || others_wait,
            _ => false,
        };
        if progress && kind == ConditionType::Submitted {
            return;
        }
        self.conditions.set(kind, status, reason.into(), message, self.now);
    }

    /// Says by what the last request failed.
    fn say_failure(&mut self, kind: ConditionType, failure: &Failure) {
        self.conditions.set(kind, ConditionStatus::False, &failure.reason, &failure.message, self.now);
    }

    /// Whether nothing is queued or running, so that a request may be made.
    fn free(&self) -> bool {
        self.facts.in_flight.is_none() || !self.rules.one_request
    }

    fn in_flight(&self, kind: Kind) -> Option<&InFlight> {
        self.facts.in_flight.as_ref().filter(|request| request.key.kind == kind)
    }

    /// Hands over a request, unless one stands already. A fetch that waits for its turn, which failed ones of all share, is in
    /// nobody's way: it is asked for again. Nor do removal, hold and release wait for a transfer, which may take an hour.
    fn ask(&mut self, kind: Kind, work: Work) {
        if self.action != Action::Nothing {
            return;
        }
        if !self.free() {
            let remove =
                matches!(work, Work::Remove(Scope::All | Scope::Staging | Scope::Unfinished | Scope::Wished(_)));
            let hold = matches!(work, Work::Hold | Work::HoldJobs(_) | Work::Release | Work::ReleaseJobs(_));
            let urgent = remove || hold;
            let in_the_way = |fetch: &&InFlight| {
                kind != Kind::Fetch && (!fetch.running || urgent) && fetch.can_be_cancelled(self.rules)
            };
            if let Some(key) = self.in_flight(Kind::Fetch).filter(in_the_way).map(|fetch| fetch.key.clone()) {
                self.action = Action::Cancel(key);
            }
            return;
        }
        let attempt = match kind {
            Kind::Submit => Attempt(self.highest().0.saturating_add(1)),
            Kind::AttachFinalizer
            | Kind::Adopt
            | Kind::Remove
            | Kind::Hold
            | Kind::Release
            | Kind::Fetch
            | Kind::Tidy
            | Kind::ReleaseFinalizer
            | Kind::DeleteObject => self.record.highest,
        };
        let last = self.record.requests.get(&kind);
        let at_fault = |failure: &Failure| {
            failure.known_reason().is_none_or(|reason| {
                // For these no transfer was begun, or one was ended for another's sake.
                let not_begun = matches!(
                    reason,
                    Reason::NoSpace | Reason::NamespaceLimit | Reason::CredentialsFailed | Reason::Stopped
                );
                !not_begun && (kind == Kind::Fetch || !NOBODYS_FAULT.contains(&reason))
            })
        };
        let alone = last.is_some_and(|last| last.failures > 0 && last.failure.as_ref().is_none_or(at_fault));
        let step = last.map_or(0, |last| last.step) + 1;
        let key = RequestKey { uid: self.facts.object.uid.clone(), kind, attempt, step };
        self.action = Action::Hand(Request { key, work, alone });
    }

    /// The highest attempt that the ledger, the status or an ad knows.
    fn highest(&self) -> Attempt {
        let evidence = &self.facts.evidence;
        let history = match &evidence.history {
            Answer::Known(history) => history.ads.as_ref(),
            Answer::Unknown(_) => &[],
        };
        let seen = evidence.queued().iter().chain(history).map(|ad| ad.attempt);
        seen.chain([self.record.highest, Attempt(self.facts.object.published.attempt)]).max().unwrap_or_default()
    }

    /// Like [`Self::ask`], but after failures of this kind only when their pause is over.
    fn ask_after_pause(&mut self, kind: Kind, work: Work) {
        let wait = self.record.requests.get(&kind).map_or(Duration::ZERO, |last| {
            let until = last.latest().min(self.now).plus(self.settings.pause(last.failures));
            until.since(self.now)
        });
        if wait.is_zero() {
            self.ask(kind, work);
        } else {
            self.look_again(wait);
        }
    }

    fn look_again(&mut self, wait: Duration) {
        let wait = wait.max(Duration::from_millis(1));
        self.again = Some(self.again.map_or(wait, |other| other.min(wait)));
    }

    /// Ask HTCondor again: soon after `event`, then at the usual interval.
    fn watch_closely(&mut self, event: Timestamp) {
        let soon = self.now.since(event) < self.settings.eager;
        self.look.more(Look::Every { history: None, soon });
    }

    /// Asks HTCondor again soon, for as long as something is awaited that was begun. The tracker spares what lasts long.
    fn await_effect(&mut self) {
        self.look.more(Look::Every { history: None, soon: true });
    }
}

/// Whether a change of this condition is an Event of its own; the others come with a transition of the phase, or are
/// everyday progress.
fn worth_an_event(condition: &Condition) -> bool {
    // An operator that stops, or does not lead for a moment, is nothing that has befallen the HTCJob.
    if condition.reason.parse() == Ok(Reason::Stopped) {
        return false;
    }
    match condition.kind {
        ConditionType::Submitted | ConditionType::JobsRemoved => {
            condition.status == ConditionStatus::False
                && !condition.reason.parse().is_ok_and(|reason| EVERYDAY.contains(&reason))
        }
        ConditionType::Tracked
        | ConditionType::Held
        | ConditionType::Suspended
        | ConditionType::QuotaReserved
        | ConditionType::OutputFetched => true,
        ConditionType::Stuck | ConditionType::Complete | ConditionType::Failed => false,
    }
}
