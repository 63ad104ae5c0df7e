//! Users whose jobs HTCondor cannot show together with those of others.
//!
//! Who owns a job may write as much as he likes into its ad. `condor_q` then takes long, or fails, for all jobs that it is asked
//! about: one value of some megabytes is enough. A question cannot leave out long values, and to measure them takes time
//! as well. But `User` cannot be edited. So if a question fails while the schedd answers, it is put about fewer and fewer
//! users, until it is known in whose names the jobs are that make it fail. Those users are asked about apart from then on,
//! and after the others, by the size of the ads: of a large one only whose it is. What is not answered in time is a doubt about
//! the objects of that user.
//!
//! Each job is asked about in one of these questions, by its `User`: to put several proves as much as to put one.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ads::LARGE;
use super::row::{ATTRIBUTES, NAMES, Row};
use super::schedd::{EXCESS, Schedd, by_length, quoted};
use super::shown::Shown;
use crate::machine::facts::{Unknown, Why};
use crate::machine::{JobId, Uid};

/// After a question that was not answered, its user is left alone for so many times as long as it took.
const REST: u32 = 4;
/// Failed questions in one search. It goes on with the next question to the queue.
const MOST_FAILURES: u32 = 40;
/// A question of a search, or about one user, may take this part of the usual limit.
const SHARE: u32 = 4;
/// Whose jobs they are, of those with a large ad.
const WHOSE: &str = "ClusterId,ProcId,User,HTCJobUID";
/// What may be left out.
const REASON: &str = "HoldReason";
/// That they are there.
const THAT: &str = "ClusterId,ProcId,User";
/// ClassAd expression for ads whose uid is short enough to be asked for.
const SHORT_UID: &str = "size(unparse(HTCJobUID)) < 200";

/// What became of a search.
#[derive(Default)]
struct Search {
    /// Somebody's jobs were shown.
    answered: bool,
    /// Those who cannot be asked about together with others.
    found: BTreeSet<String>,
    /// Why it came to no end.
    failed: Option<Unknown>,
}

/// A question about some ads, by their size.
pub(super) struct Part {
    /// ClassAd expression for them.
    pub(super) which: String,
    /// What is asked of them.
    pub(super) attributes: String,
    /// They have more than ours have.
    pub(super) large: bool,
}

/// Whose the large ads are; all others; and those of which the hold's reason alone is too long, without it: it decides nothing, and
/// what HTCondor writes there may be long, too.
pub(super) fn parts() -> [Part; 3] {
    let but_reason: Vec<&str> = NAMES.iter().copied().filter(|name| *name != REASON).collect();
    let (small, readable) = (small(NAMES), small(&but_reason));
    let whose = WHOSE.to_owned();
    [
        Part { which: format!("{readable} =!= true && {SHORT_UID}"), attributes: whose, large: true },
        Part { which: small.clone(), attributes: ATTRIBUTES.to_owned(), large: false },
        Part { which: format!("{small} =!= true && {readable}"), attributes: but_reason.join(","), large: true },
    ]
}

/// ClassAd expression for ads that have no more in these attributes than ours. `unparse` gives an attribute as it is written, and an
/// empty text for one that is not there.
fn small(names: &[&str]) -> String {
    let sizes: Vec<String> = names.iter().map(|name| format!("size(unparse({name}))")).collect();
    format!("({} < {LARGE})", sizes.join(" + "))
}

fn all_of(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join(" && ")
}

/// `member` does not tell upper from lower case; of two users who differ in that, one may be a suspect.
fn among_users(users: &[String]) -> String {
    let list: Vec<String> = users.iter().map(|user| quoted(user)).collect();
    format!("identicalMember(User, {{{}}})", list.join(","))
}

/// To come before all else: what the schedd would evaluate in their ads takes time, too.
fn not_among_users(users: &BTreeSet<String>) -> String {
    let users: Vec<String> = users.iter().cloned().collect();
    if users.is_empty() { String::new() } else { format!("!{}", among_users(&users)) }
}

impl Schedd {
    /// This operator's jobs in the queue for which `which` holds, if it says anything. `about`: only these objects are asked about,
    /// and only users who may have jobs of them.
    pub(super) async fn ask_queue(&self, which: &str, about: &[Uid]) -> Result<Shown, Unknown> {
        self.own_users().await?;
        let all = self.users.all();
        let (alone, concerns) = (all.len() == 1, |user: &&String| {
            about.is_empty() || about.iter().any(|uid| self.users.belongs(uid.as_str(), user))
        });
        // Who is a suspect may change meanwhile, and each job is to be asked about.
        let suspects = self.suspects.users();
        let others: Vec<String> = all.difference(&suspects).filter(concerns).cloned().collect();
        let mut apart: Vec<String> = suspects.iter().filter(concerns).cloned().collect();
        let (mut shown, mut answered, mut failed) = (Shown::default(), false, None);
        let mut found = BTreeSet::new();
        if !others.is_empty() {
            let constraint = all_of(&[&not_among_users(&suspects), &self.ours_of(&others), which]);
            match self.ask_whole(&constraint, self.tools.limit, (!alone).then_some(EXCESS)).await {
                Ok(part) => {
                    shown = part;
                    answered = true;
                }
                // Where there is one user only, nobody else is held up.
                Err(unknown) if !alone && self.may_be_theirs(&unknown).await => {
                    let search = self.search(&others, which, &mut shown).await;
                    (answered, found, failed) = (search.answered, search.found, Some(unknown));
                    if let Some(unknown) = search.failed {
                        for user in found.iter().filter(|_| answered) {
                            self.suspects.did_harm(user, self.clock.now());
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
            if let Some(unknown) = self.suspects.rests(user, began) {
                shown.silent.insert(user.clone());
                failed.get_or_insert(unknown);
                continue;
            }
            let answer = self.ask_by_size(user, which).await;
            let now = self.clock.now();
            match answer {
                Ok((part, any_large)) => {
                    shown.absorb(part);
                    answered = true;
                    if any_large || found.contains(user) {
                        self.suspects.did_harm(user, now);
                    } else {
                        self.suspects.did_none(user, now);
                    }
                }
                // It may be so with all of them.
                Err(_) if !answered && found.contains(user) => break,
                Err(unknown) => {
                    shown.silent.insert(user.clone());
                    self.suspects.did_not_answer(user, now, now.plus(now.since(began) * REST), &unknown);
                    failed.get_or_insert(unknown);
                }
            }
        }
        // What fails for all is nobody's fault, and no doubt about some.
        if let Some(unknown) = failed.filter(|_| !answered) {
            return Err(unknown);
        }
        shown.sort();
        Ok(shown)
    }

    /// The same, without suspects: that a job is not among them says nothing about it.
    pub(super) async fn ask_some_of_queue(&self, which: &str, limit: Duration) -> Result<Shown, Unknown> {
        self.own_users().await?;
        let apart = self.suspects.users();
        let others: Vec<String> = self.users.all().difference(&apart).cloned().collect();
        // The cheapest comes first: the schedd evaluates this for all its jobs.
        let constraint = all_of(&[&not_among_users(&apart), which, &self.ours_of(&others)]);
        let excess = (apart.len() + others.len() > 1).then_some(EXCESS);
        let mut shown = self.ask_whole(&constraint, limit, excess).await?;
        shown.sort();
        Ok(shown)
    }

    /// Whether an answer may be missing because of what is in the ads: the schedd answers other questions.
    pub(super) async fn may_be_theirs(&self, unknown: &Unknown) -> bool {
        let limit = self.tools.limit / SHARE;
        matches!(unknown.why, Why::ScheddUnreachable | Why::ToolFailed | Why::Incomplete)
            && matches!(tokio::time::timeout(limit, self.reading()).await, Ok(Ok(_)))
    }

    async fn ask_whole(&self, constraint: &str, limit: Duration, excess: Option<usize>) -> Result<Shown, Unknown> {
        let mut shown = Shown::default();
        self.each_queued(constraint, ATTRIBUTES, limit, excess, |row| shown.collect(&self.users, row)).await?;
        Ok(shown)
    }

    /// Asks about fewer and fewer of these users.
    async fn search(&self, others: &[String], which: &str, shown: &mut Shown) -> Search {
        let (mut search, mut failures) = (Search::default(), 0);
        let mut groups = by_length(others);
        while let Some(group) = groups.pop() {
            let constraint = all_of(&[&among_users(group), &self.ours_of(&[]), which]);
            match (self.ask_whole(&constraint, self.limit_of(group), Some(EXCESS)).await, group) {
                (Ok(part), _) => {
                    shown.absorb(part);
                    search.answered = true;
                }
                (Err(unknown), _) if failures == MOST_FAILURES || !self.may_be_theirs(&unknown).await => {
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

    /// How long a question about these users alone may take. The operator's own jobs stand for all namespaces without a Secret, those of a
    /// namespace for all of it: there may be very many, and nobody with a Secret can edit them.
    fn limit_of(&self, users: &[String]) -> Duration {
        let own = self.users.without_secrets();
        if users.iter().all(|user| own.contains(user)) { self.tools.limit } else { self.tools.limit / SHARE }
    }

    /// The jobs of one user, and whether some of them have a large ad. Which there are is asked last: one that was never of
    /// the size that was asked for is then among those that do not say whose they are.
    async fn ask_by_size(&self, user: &str, which: &str) -> Result<(Shown, bool), Unknown> {
        let limit = self.limit_of(&[user.to_owned()]);
        let its = all_of(&[&among_users(&[user.to_owned()]), &self.ours_of(&[]), which]);
        let (mut shown, mut seen, mut any_large) = (Shown::default(), BTreeSet::<JobId>::new(), false);
        let mut collect = |row: &Row| {
            if row.job_id().is_none_or(|id| seen.insert(id)) {
                shown.collect(&self.users, row);
            }
        };
        for Part { which, attributes, large } in parts() {
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
