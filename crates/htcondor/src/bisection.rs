//! Search for users whose jobs HTCondor cannot list together with those of others.
//!
//! A job's owner may write any amount of text into its ad. One value of some megabytes is enough to make `condor_q`
//! slow, or fail, for all queried jobs. A query cannot leave out long values, and measuring them takes time as well.
//! But `User` cannot be edited. So if a query fails while the schedd answers others, it is repeated for ever smaller
//! groups of users, until the users are found whose jobs make it fail. From then on these users are quarantined: their
//! jobs are queried separately, after the others, and split by the size of the ads. Of a large ad only the ids and the
//! user are queried. A query without an answer in time is a doubt about the objects of that user.
//!
//! Each job is covered by exactly one of these queries, by its `User`. So all of them together prove as much as one
//! query.

use std::collections::BTreeSet;
use std::time::Duration;

use htc_machine::facts::{QueryError, QueryErrorKind};
use htc_machine::{JobId, Uid};

use super::ads::LARGE_AD;
use super::row::{ATTRIBUTES, NAMES, Row};
use super::schedd::{EXCESS, Schedd, chunk_by_length, quoted};
use crate::listing::AdListing;

/// Pause after a query without an answer for a user, as a multiple of the query's duration.
const REST: u32 = 4;
/// Maximum failed queries in one search. The next query of the queue continues it.
const MOST_FAILURES: u32 = 40;
/// Divisor of the usual time limit for a query of a search, or about one user.
const SHARE: u32 = 4;
/// Attributes that identify a job with a large ad.
const WHOSE: &str = "ClusterId,ProcId,User,HTCJobUID";
/// Attribute that may be left out.
const REASON: &str = "HoldReason";
/// Attributes that show that a job exists.
const THAT: &str = "ClusterId,ProcId,User";
/// ClassAd expression for ads with a uid short enough to be queried.
const SHORT_UID: &str = "size(unparse(HTCJobUID)) < 200";

/// Result of a search.
#[derive(Default)]
struct Search {
    /// Whether there was an answer for any user.
    answered: bool,
    /// Users that cannot be queried together with others.
    found: BTreeSet<String>,
    /// Error that stopped the search.
    failed: Option<QueryError>,
}

/// A query for ads of some size.
pub(super) struct SizeQuery {
    /// ClassAd expression for these ads.
    pub(super) constraint: String,
    /// Attributes to query.
    pub(super) attributes: String,
    /// Whether these ads are larger than those of this operator.
    pub(super) large: bool,
}

/// Returns three queries that together cover all ads: ids and user of the large ones, the small ones, and those where
/// only the hold reason is too long, without that. The hold reason decides nothing, and HTCondor itself may write a
/// long one.
pub(super) fn size_queries() -> [SizeQuery; 3] {
    let but_reason: Vec<&str> = NAMES.iter().copied().filter(|name| *name != REASON).collect();
    let (small, readable) = (small(NAMES), small(&but_reason));
    let whose = WHOSE.to_owned();
    [
        SizeQuery { constraint: format!("{readable} =!= true && {SHORT_UID}"), attributes: whose, large: true },
        SizeQuery { constraint: small.clone(), attributes: ATTRIBUTES.to_owned(), large: false },
        SizeQuery {
            constraint: format!("{small} =!= true && {readable}"),
            attributes: but_reason.join(","),
            large: true,
        },
    ]
}

/// Returns a ClassAd expression for ads whose listed attributes are no larger than those of this operator. `unparse`
/// returns an attribute as it is written, and an empty text for a missing one.
fn small(names: &[&str]) -> String {
    let sizes: Vec<String> = names.iter().map(|name| format!("size(unparse({name}))")).collect();
    format!("({} < {LARGE_AD})", sizes.join(" + "))
}

fn all_of(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join(" && ")
}

/// Returns a ClassAd expression for jobs of these users. It does not use `member`, which ignores case: of two users
/// whose names differ only in case, one may be quarantined and the other not.
fn among_users(users: &[String]) -> String {
    let list: Vec<String> = users.iter().map(|user| quoted(user)).collect();
    format!("identicalMember(User, {{{}}})", list.join(","))
}

/// Returns a ClassAd expression for jobs of all other users. It must come first: evaluating attributes of quarantined
/// ads takes the schedd time, too.
fn not_among_users(users: &BTreeSet<String>) -> String {
    let users: Vec<String> = users.iter().cloned().collect();
    if users.is_empty() { String::new() } else { format!("!{}", among_users(&users)) }
}

impl Schedd {
    /// Returns this operator's jobs in the queue that match `which`, or all if it is empty. With `about`, only these
    /// objects and the users who may have jobs of them are queried.
    pub(super) async fn ask_queue(&self, which: &str, about: &[Uid]) -> Result<AdListing, QueryError> {
        self.own_users().await?;
        let all = self.users.all();
        let (alone, concerns) = (all.len() == 1, |user: &&String| {
            about.is_empty() || about.iter().any(|uid| self.users.belongs(uid.as_str(), user))
        });
        // Read once: the set of quarantined users may change meanwhile, and each job must be queried.
        let suspects = self.quarantine.users();
        let others: Vec<String> = all.difference(&suspects).filter(concerns).cloned().collect();
        let mut apart: Vec<String> = suspects.iter().filter(concerns).cloned().collect();
        let (mut shown, mut answered, mut failed) = (AdListing::default(), false, None);
        let mut found = BTreeSet::new();
        if !others.is_empty() {
            let constraint = all_of(&[&not_among_users(&suspects), &self.jobs_of_users(&others), which]);
            match self.ask_whole(&constraint, self.tools.limit, (!alone).then_some(EXCESS)).await {
                Ok(part) => {
                    shown = part;
                    answered = true;
                }
                // No search if there is a single user: its large ads delay no one else's jobs.
                Err(unknown) if !alone && self.may_be_caused_by_ads(&unknown).await => {
                    let search = self.search(&others, which, &mut shown).await;
                    (answered, found, failed) = (search.answered, search.found, Some(unknown));
                    if let Some(unknown) = search.failed {
                        for user in found.iter().filter(|_| answered) {
                            self.quarantine.record_harm(user, self.clock.now());
                        }
                        return Err(unknown);
                    }
                    apart.extend(found.iter().cloned());
                }
                Err(unknown) => return Err(unknown),
            }
        }
        for user in &apart {
            let began = self.clock.now();
            if let Some(unknown) = self.quarantine.backoff(user, began) {
                shown.unanswered_users.insert(user.clone());
                failed.get_or_insert(unknown);
                continue;
            }
            let answer = self.ask_by_size(user, which).await;
            let now = self.clock.now();
            match answer {
                Ok((part, any_large)) => {
                    shown.extend(part);
                    answered = true;
                    if any_large || found.contains(user) {
                        self.quarantine.record_harm(user, now);
                    } else {
                        self.quarantine.record_clean_answer(user, now);
                    }
                }
                // The same failure may hit all users.
                Err(_) if !answered && found.contains(user) => break,
                Err(unknown) => {
                    shown.unanswered_users.insert(user.clone());
                    self.quarantine.record_timeout(user, now, now.plus(now.since(began) * REST), &unknown);
                    failed.get_or_insert(unknown);
                }
            }
        }
        // A failure for all users is caused by none of them, and must not become a doubt about some.
        if let Some(unknown) = failed.filter(|_| !answered) {
            return Err(unknown);
        }
        shown.sort();
        Ok(shown)
    }

    /// Returns matching jobs of users who are not quarantined. A job's absence proves nothing.
    pub(super) async fn ask_some_of_queue(&self, which: &str, limit: Duration) -> Result<AdListing, QueryError> {
        self.own_users().await?;
        let apart = self.quarantine.users();
        let others: Vec<String> = self.users.all().difference(&apart).cloned().collect();
        // The cheapest part comes first: the schedd evaluates it for all its jobs.
        let constraint = all_of(&[&not_among_users(&apart), which, &self.jobs_of_users(&others)]);
        let excess = (apart.len() + others.len() > 1).then_some(EXCESS);
        let mut shown = self.ask_whole(&constraint, limit, excess).await?;
        shown.sort();
        Ok(shown)
    }

    /// Returns whether a failure may be caused by the contents of ads: the schedd answers other queries.
    pub(super) async fn may_be_caused_by_ads(&self, unknown: &QueryError) -> bool {
        let limit = self.tools.limit / SHARE;
        matches!(
            unknown.kind,
            QueryErrorKind::ScheddUnreachable | QueryErrorKind::ToolFailed | QueryErrorKind::Incomplete
        ) && matches!(tokio::time::timeout(limit, self.reading()).await, Ok(Ok(_)))
    }

    async fn ask_whole(
        &self,
        constraint: &str,
        limit: Duration,
        excess: Option<usize>,
    ) -> Result<AdListing, QueryError> {
        let mut shown = AdListing::default();
        self.each_queued(constraint, ATTRIBUTES, limit, excess, |row| shown.add(&self.users, row)).await?;
        Ok(shown)
    }

    /// Queries ever smaller groups of these users.
    async fn search(&self, others: &[String], which: &str, shown: &mut AdListing) -> Search {
        let (mut search, mut failures) = (Search::default(), 0);
        let mut groups = chunk_by_length(others);
        while let Some(group) = groups.pop() {
            let constraint = all_of(&[&among_users(group), &self.jobs_of_users(&[]), which]);
            match (self.ask_whole(&constraint, self.limit_of(group), Some(EXCESS)).await, group) {
                (Ok(part), _) => {
                    shown.extend(part);
                    search.answered = true;
                }
                (Err(unknown), _) if failures == MOST_FAILURES || !self.may_be_caused_by_ads(&unknown).await => {
                    search.failed = Some(unknown);
                    return search;
                }
                (Err(_), group) => {
                    failures += 1;
                    if let [user] = group {
                        search.found.insert(user.clone());
                    } else {
                        groups.extend(<[&[String]; 2]>::from(group.split_at(group.len() / 2)));
                    }
                }
            }
        }
        search
    }

    /// Returns the time limit for a query about these users alone. The operator's own user has the jobs of all
    /// namespaces without a Secret, and a namespace's user those of the whole namespace. There may be very many of
    /// them, and no user with a Secret can edit them.
    fn limit_of(&self, users: &[String]) -> Duration {
        let own = self.users.without_secrets();
        if users.iter().all(|user| own.contains(user)) { self.tools.limit } else { self.tools.limit / SHARE }
    }

    /// Returns the jobs of one user, and whether some have a large ad. The list of all ids is queried last. A job that
    /// matched none of the sizes when these were queried then counts as one without a valid `HTCJobUID`.
    async fn ask_by_size(&self, user: &str, which: &str) -> Result<(AdListing, bool), QueryError> {
        let limit = self.limit_of(&[user.to_owned()]);
        let its = all_of(&[&among_users(&[user.to_owned()]), &self.jobs_of_users(&[]), which]);
        let (mut shown, mut seen, mut any_large) = (AdListing::default(), BTreeSet::<JobId>::new(), false);
        let mut collect = |row: &Row| {
            if row.job_id().is_none_or(|id| seen.insert(id)) {
                shown.add(&self.users, row);
            }
        };
        for SizeQuery { constraint: which, attributes, large } in size_queries() {
            let each = |row: &Row| {
                any_large |= large;
                collect(row);
            };
            self.each_queued(&all_of(&[&its, &which]), &attributes, limit, None, each).await?;
        }
        self.each_queued(&its, THAT, limit, None, &mut collect).await?;
        Ok((shown, any_large))
    }
}

#[cfg(test)]
mod tests;
