//! What HTCondor has of our jobs: `condor_q` and `condor_history`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::known_users::KnownUsers;
use super::row::{ATTRIBUTES, INHERITED_ATTRIBUTES, Row};
use super::schedd::{NOT_ADOPTED, QUEUE_TOOL, Schedd, quoted, unknown};
use crate::machine::facts::{Ad, Reach, Unknown, Why, Witness};
use crate::machine::ids::id_ranges;
use crate::machine::inherited::InheritedJob;
use crate::machine::{JobId, SchedDate, Uid};

/// A remote condor_history reads at most `HISTORY_HELPER_MAX_HISTORY` ads (50,000 in 23.9) and then ends with rc 0, unless
/// it is told a number.
const SCAN_ALL: [&str; 2] = ["-scanlimit", "2000000000"];
/// Uids in one constraint: 3,300 fit into one argument of 128 KiB, and witnesses may come on top.
pub const UIDS_PER_CALL: usize = 1500;
/// Witnesses in one constraint; a `GlobalJobId` has the schedd's name in it.
const WITNESSES_PER_CALL: usize = 400;
/// Clusters in one constraint.
const CLUSTERS_PER_CALL: usize = 5000;
/// A date is taken for earlier only if it is so by this many seconds.
const DATE_MARGIN: i64 = 60;

/// What history is asked by.
const HISTORY_TOOL: &str = "condor_history";
/// A `GlobalJobId` that can be a witness: the schedd's name, the job's id and a time, as a plain text. Whose job it is may write
/// an expression there, or a text that looks like one: these are shown as none.
const HAS_GLOBAL_ID: &str = r##"size(unparse(GlobalJobId)) < 1000 && regexp(strcat("^\"[^\"\\\\/][^\"\\\\]*#", ClusterId, "[.]", ProcId, "#[^\"\\\\]*\"$"), unparse(GlobalJobId))"##;

/// The ads of many objects.
pub type Ads = HashMap<Uid, Vec<Ad>>;

/// What an answer shows of this operator's jobs. An ad that cannot be read spoils nothing for others: it is a doubt about the
/// object that it belongs to, or about none.
#[derive(Debug, Default)]
pub struct Shown {
    /// The ads that can be read.
    pub ads: Ads,
    /// Of these objects there are ads that cannot be read, of these jobs.
    pub unreadable: HashMap<Uid, Vec<JobId>>,
    /// Jobs that do not say whose they are, by the `User` in whose name they are.
    pub nameless: BTreeMap<String, Arc<[JobId]>>,
    nameless_yet: BTreeMap<String, BTreeSet<JobId>>,
    /// How many ads are no object's: those of `nameless`, and those in a name that is not their object's.
    pub ignored: usize,
}

impl Shown {
    /// Adds one ad of this operator's, if it is in one of its names.
    fn collect(&mut self, users: &KnownUsers, row: &Row) {
        let Some(user) = row.user() else {
            self.ignored += 1;
            return;
        };
        let Some(uid) = row.uid() else {
            self.ignored += 1;
            if let Some(id) = row.job_id() {
                self.nameless_yet.entry(user.to_owned()).or_default().insert(id);
            }
            return;
        };
        if !users.belongs(uid, user) {
            self.ignored += 1;
            return;
        }
        let Some(ad) = row.ad() else {
            self.cannot_read(uid.into(), row);
            return;
        };
        match self.ads.get_mut(uid) {
            Some(list) => list.push(ad),
            None => drop(self.ads.insert(Uid::from(uid), vec![ad])),
        }
    }

    fn cannot_read(&mut self, uid: Uid, row: &Row) {
        tracing::debug!(%uid, job = row.id(), "a job's ad cannot be read");
        self.unreadable.entry(uid).or_default().extend(row.job_id());
    }

    /// Why the answer says nothing about this object, if it has an ad that cannot be read.
    #[must_use]
    pub fn doubt(&self, uid: &Uid) -> Option<Unknown> {
        let jobs = self.unreadable.get(uid)?;
        let message = format!(
            "attributes that htc-operator has given to its jobs are missing or changed in {}; restore them with condor_qedit, or remove the jobs with condor_rm",
            id_ranges(jobs, 200)
        );
        Some(unknown(Why::Incomplete, message))
    }

    /// Jobs that do not say whose they are, in a name of this object's identity, by id. There may be very many, and objects, too:
    /// those of one name share them.
    #[must_use]
    pub fn nameless_in_its_name(&self, uid: &Uid, users: &KnownUsers) -> Arc<[JobId]> {
        let its = || self.nameless.iter().filter(|(user, _)| users.belongs(uid.as_str(), user)).map(|(_, ids)| ids);
        match its().count() {
            0 => Arc::default(),
            1 => its().next().map(Arc::clone).unwrap_or_default(),
            _ => its().flat_map(|ids| ids.iter().copied()).collect::<BTreeSet<_>>().into_iter().collect(),
        }
    }

    /// How many ads cannot be read, or are no object's.
    #[must_use]
    pub fn count_unreadable(&self) -> usize {
        self.unreadable.values().map(Vec::len).sum::<usize>() + self.ignored
    }

    /// The ids of all jobs that are shown, whether their ads can be read or not.
    pub fn ids(&self) -> impl Iterator<Item = JobId> + '_ {
        let read = self.ads.values().flatten().map(|ad| ad.id);
        let unread = self.unreadable.values().flatten().chain(self.nameless.values().flat_map(|ids| ids.iter()));
        read.chain(unread.copied())
    }

    /// Adds what was seen of jobs of the Go operator to what was seen of ours; one that is among both was adopted in between.
    pub fn merge(&mut self, inherited: Self) {
        for (uid, others) in inherited.ads {
            let list = self.ads.entry(uid).or_default();
            for ad in others {
                if list.iter().all(|known| known.id != ad.id) {
                    list.push(ad);
                }
            }
            list.sort_by_key(|ad| ad.id);
        }
        for (uid, jobs) in inherited.unreadable {
            self.unreadable.entry(uid).or_default().extend(jobs);
        }
        self.ignored += inherited.ignored;
    }

    fn sort(&mut self) {
        for list in self.ads.values_mut() {
            list.sort_by_key(|ad| ad.id);
        }
        let nameless = std::mem::take(&mut self.nameless_yet);
        self.nameless.extend(nameless.into_iter().map(|(user, ids)| (user, ids.into_iter().collect())));
    }
}

/// Jobs of the Go operator, by object.
pub type WantedInherited = HashMap<Uid, Arc<[InheritedJob]>>;

/// ClassAd expressions that these jobs fulfil, and perhaps others: whose they are decides whether they can be adopted, not
/// whether they are there.
fn inherited(wanted: &WantedInherited) -> Vec<String> {
    let clusters: BTreeSet<u64> = wanted.values().flat_map(|jobs| jobs.iter().map(|job| job.id.cluster.0)).collect();
    let clusters: Vec<String> = clusters.iter().map(u64::to_string).collect();
    let expression = |chunk: &[String]| format!("{NOT_ADOPTED} && member(ClusterId, {{{}}})", chunk.join(","));
    clusters.chunks(CLUSTERS_PER_CALL).map(expression).collect()
}

/// Adds the ad of a job of the Go operator, if it is one of those that are wanted: ids come again, so the folder that it was
/// submitted from must be the same.
fn pick(shown: &mut Shown, wanted: &ById<'_>, row: &Row) {
    let (Some(id), Some(folder)) = (row.job_id(), row.folder()) else { return };
    for (uid, job) in wanted.get(&id).into_iter().flatten().filter(|(_, job)| *job.folder == *folder) {
        match row.inherited_ad(job.index) {
            Some(ad) => shown.ads.entry((*uid).clone()).or_default().push(ad),
            None => shown.cannot_read((*uid).clone(), row),
        }
    }
}

type ById<'a> = HashMap<JobId, Vec<(&'a Uid, &'a InheritedJob)>>;

fn by_id(wanted: &WantedInherited) -> ById<'_> {
    let mut by_id = ById::new();
    for (uid, jobs) in wanted {
        for job in jobs.iter() {
            by_id.entry(job.id).or_default().push((uid, job));
        }
    }
    by_id
}

/// A complete answer of history.
#[derive(Debug, Default)]
pub struct HistoryAnswer {
    /// The ads of the objects asked for.
    pub shown: Shown,
    /// `GlobalJobId`s that were asked for as witnesses and are still there.
    pub witnesses: BTreeSet<String>,
}

impl Schedd {
    /// All jobs of this operator that are in the queue.
    pub async fn queue(&self) -> Result<Shown, Unknown> {
        self.ask_queue(self.ours().await?).await
    }

    /// All jobs of these objects that are in the queue; at most [`UIDS_PER_CALL`] objects.
    pub async fn queue_of(&self, uids: &[Uid]) -> Result<Shown, Unknown> {
        self.ask_queue(self.jobs_of_or_of_none(uids).await?).await
    }

    /// Those in the queue that say that their HTCJob is in this namespace. For people: jobs of the Go operator do not say it, and
    /// a person may have changed it.
    pub async fn queue_in(&self, namespace: &str) -> Result<Shown, Unknown> {
        let batch = format!("{namespace}/");
        let its = format!("substr(JobBatchName ?: \"\", 0, {}) =?= {}", batch.len(), quoted(&batch));
        self.ask_queue(format!("{} && {its}", self.ours().await?)).await
    }

    /// Those of this operator's jobs in the queue whose `JobStatus` has changed since `date`. That a job is not among them
    /// says nothing about it.
    pub async fn changed_since(&self, date: SchedDate, limit: Duration) -> Result<Shown, Unknown> {
        // The cheapest comes first: the schedd evaluates this for all its jobs.
        let constraint = format!("EnteredCurrentStatus >= {} && {}", date.0, self.ours().await?);
        self.ask_queue_within(constraint, limit).await
    }

    async fn ask_queue(&self, constraint: String) -> Result<Shown, Unknown> {
        self.ask_queue_within(constraint, self.tools.limit).await
    }

    async fn ask_queue_within(&self, constraint: String, limit: Duration) -> Result<Shown, Unknown> {
        let mut shown = Shown::default();
        self.each_queued(&constraint, ATTRIBUTES, limit, |row| shown.collect(&self.users, row)).await?;
        shown.sort();
        Ok(shown)
    }

    async fn each_queued(
        &self,
        constraint: &str,
        attributes: &str,
        limit: Duration,
        each: impl FnMut(&Row) + Send,
    ) -> Result<(), Unknown> {
        let arguments =
            ["-allusers", "-name", self.name.as_str(), "-json", "-attributes", attributes, "-constraint", constraint];
        self.ask_for_ads(QUEUE_TOOL, &arguments, limit, each).await
    }

    /// What the queue has of these jobs of the Go operator that are not adopted. To be asked before the others: a job that is
    /// adopted in between is then seen twice, and not missed.
    pub async fn queue_of_inherited(&self, wanted: &WantedInherited) -> Result<Shown, Unknown> {
        let (mut shown, by_id) = (Shown::default(), by_id(wanted));
        for constraint in inherited(wanted) {
            let each = |row: &Row| pick(&mut shown, &by_id, row);
            self.each_queued(&constraint, INHERITED_ATTRIBUTES, self.tools.limit, each).await?;
        }
        Ok(shown)
    }

    /// Whose those of these jobs are that are in the queue and not adopted.
    pub(super) async fn users_of_inherited(&self, which: &str) -> Result<BTreeSet<String>, Unknown> {
        let mut users = BTreeSet::new();
        let wanted = format!("{NOT_ADOPTED} && {which}");
        let each = |row: &Row| users.extend(row.user().map(str::to_owned));
        self.each_queued(&wanted, "ClusterId,ProcId,User", self.tools.limit, each).await?;
        Ok(users)
    }

    /// What history has of these jobs of the Go operator that were not adopted.
    pub async fn history_of_inherited(&self, wanted: &WantedInherited) -> Result<Shown, Unknown> {
        let (mut shown, by_id) = (Shown::default(), by_id(wanted));
        let own_users = self.own_users().await?;
        for constraint in inherited(wanted) {
            let each = |row: &Row| {
                // Of anybody else it would be a job of a queue that began anew.
                if row.user().is_some_and(|user| own_users.iter().any(|own| own == user)) {
                    pick(&mut shown, &by_id, row);
                }
            };
            let arguments = ["-constraint", &constraint];
            self.history_with(INHERITED_ATTRIBUTES, &arguments, self.tools.history_limit, each).await?;
        }
        Ok(shown)
    }

    /// What history has of these objects, and which of the witnesses it still has.
    pub async fn history(&self, uids: &[Uid], witnesses: &BTreeSet<String>) -> Result<HistoryAnswer, Unknown> {
        let limit = self.tools.history_limit;
        let mut answer = HistoryAnswer::default();
        let quoted: Vec<String> = witnesses.iter().map(|id| quoted(id)).collect();
        let still_there = |list: &[String]| format!("member(GlobalJobId, {{{}}})", list.join(","));
        let mut constraints = Vec::new();
        for chunk in uids.chunks(UIDS_PER_CALL) {
            constraints.push(self.jobs_of(chunk).await?);
        }
        match constraints.as_mut_slice() {
            [only] if quoted.len() <= WITNESSES_PER_CALL => *only = format!("({only}) || {}", still_there(&quoted)),
            // After the ads: what is there then was there before. The other way round it might have been dropped between.
            _ => constraints.extend(quoted.chunks(WITNESSES_PER_CALL).map(still_there)),
        }
        for constraint in constraints {
            let each = |row: &Row| {
                if let Some(id) = row.global_id().filter(|id| witnesses.contains(*id)) {
                    answer.witnesses.insert(id.to_owned());
                }
                // A witness may be anybody's, and say anything.
                if row.operator() == Some(&self.operator) {
                    answer.shown.collect(&self.users, row);
                }
            };
            self.ask_history(&["-constraint", &constraint], limit, each).await?;
        }
        Ok(answer)
    }

    /// Whether history still has a job that left the queue before `date`: only for removed jobs does the ad say when
    /// they left.
    pub async fn history_reaches(&self, date: SchedDate) -> Result<bool, Unknown> {
        let before = date.0 - DATE_MARGIN;
        let constraint =
            format!("JobStatus == 3 && EnteredCurrentStatus < {before} && (JobFinishedHookDone ?: 0) < {before}");
        let arguments = ["-forwards", "-limit", "1", "-constraint", &constraint];
        let mut found = false;
        self.ask_history(&arguments, self.tools.history_limit, |_| found = true).await?;
        Ok(found)
    }

    /// The newest ad of history: as long as it is there, so is everything that comes after it. One without an id that names
    /// it is passed over: those that come after an older one come after this one, too.
    pub async fn newest_in_history(&self) -> Result<Witness, Unknown> {
        // A first job may come in between the two questions.
        for _ in 0..2 {
            // Each submission waits for it; it reads one ad, whatever the length of history.
            let mut newest = None;
            let arguments = ["-limit", "1", "-constraint", HAS_GLOBAL_ID];
            self.ask_history(&arguments, self.tools.limit, |row| newest = row.global_id().map(str::to_owned)).await?;
            if let Some(id) = newest {
                return Ok(Witness::Newest(id));
            }
            let mut empty = true;
            self.ask_history(&["-limit", "1"], self.tools.limit, |_| empty = false).await?;
            if empty {
                return Ok(Witness::Empty);
            }
        }
        Err(unknown(Why::Incomplete, format!("{HISTORY_TOOL} shows no job with a GlobalJobId, only others")))
    }

    async fn ask_history(&self, more: &[&str], limit: Duration, each: impl FnMut(&Row) + Send) -> Result<(), Unknown> {
        self.history_with(ATTRIBUTES, more, limit, each).await
    }

    async fn history_with(
        &self,
        attributes: &str,
        more: &[&str],
        limit: Duration,
        each: impl FnMut(&Row) + Send,
    ) -> Result<(), Unknown> {
        let mut arguments = vec!["-name", self.name.as_str(), "-json", "-attributes", attributes];
        arguments.extend(SCAN_ALL);
        arguments.extend(more);
        self.ask_for_ads(HISTORY_TOOL, &arguments, limit, each).await
    }
}

/// How far back an answer was found to reach.
#[must_use]
pub fn reach(asked: &Reach, found: &BTreeSet<String>, date_reached: Option<SchedDate>) -> Reach {
    Reach {
        witnesses: asked.witnesses.intersection(found).cloned().collect(),
        date: asked.date.filter(|date| date_reached.is_some_and(|reached| reached <= *date)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Identity;
    use crate::condor::ads::AdReader;
    use crate::condor::row::Rows;
    use crate::machine::Timestamp;

    const WHOLE: &str = r#""HTCJobAttempt": 1, "HTCJobIndex": 0, "JobStatus": 2"#;

    /// Of two identities, each with one object.
    fn users() -> KnownUsers {
        let alice = Identity::Secret { namespace: "a".to_owned(), name: "token".to_owned() };
        let users = KnownUsers::new([
            (Identity::Operator, "operator@test".to_owned()),
            (alice.clone(), "alice@test".to_owned()),
        ]);
        users.assign(&"ours".into(), &Identity::Operator, Timestamp(1));
        users.assign(&"hers".into(), &alice, Timestamp(1));
        users
    }

    fn shown(ads: &[&str]) -> Shown {
        let (mut shown, users) = (Shown::default(), users());
        let mut reader = AdReader::new(Rows::new(|row: &Row| shown.collect(&users, row)));
        let ads: Vec<String> = (1..)
            .zip(ads)
            .map(|(cluster, ad)| format!("{{ \"ClusterId\": {cluster}, \"ProcId\": 0, {ad} }}"))
            .collect();
        reader.take(format!("[{}]", ads.join(",")).as_bytes());
        assert!(reader.end().is_ok());
        shown.sort();
        shown
    }

    fn id(cluster: u64) -> JobId {
        JobId { cluster: crate::machine::ClusterId(cluster), proc: 0 }
    }

    #[test]
    fn an_ad_that_cannot_be_read_is_a_doubt_about_its_own_object_alone() {
        let ours = format!(r#""User": "operator@test", "HTCJobUID": "ours", {WHOLE}"#);
        for broken in [
            WHOLE.replace("\"HTCJobAttempt\": 1", "\"HTCJobAttempt\": \"x\""),
            WHOLE.replace("\"HTCJobIndex\": 0", "\"HTCJobIndex\": INF"),
            WHOLE.replace("\"JobStatus\": 2", "\"JobStatus\": 9"),
            WHOLE.replace("\"JobStatus\": 2", "\"Other\": 9"),
        ] {
            let hers = format!(r#""User": "alice@test", "HTCJobUID": "hers", {broken}"#);
            let shown = shown(&[&ours, &hers]);
            assert_eq!(shown.ads.keys().collect::<Vec<_>>(), [&Uid::from("ours")], "{broken}");
            assert_eq!(shown.doubt(&"ours".into()), None);
            let doubt = shown.doubt(&"hers".into()).unwrap();
            assert!(doubt.why == Why::Incomplete && doubt.message.contains("2.0"), "{doubt:?}");
            assert_eq!(shown.ids().count(), 2);
        }
    }

    #[test]
    fn an_ad_that_is_provably_nobodys_is_passed_over() {
        let strange = [
            // Somebody's word about another one's object, whole or broken.
            format!(r#""User": "alice@test", "HTCJobUID": "ours", {WHOLE}"#),
            r#""User": "alice@test", "HTCJobUID": "ours""#.to_owned(),
            format!(r#""User": 5, "HTCJobUID": "ours", {WHOLE}"#),
            format!(r#""User": "alice@test", "HTCJobUID": 7, {WHOLE}"#),
            format!(r#""User": "alice@test", {WHOLE}"#),
        ];
        let shown = shown(&strange.each_ref().map(String::as_str));
        assert!(shown.ads.is_empty() && shown.unreadable.is_empty(), "{shown:?}");
        assert_eq!(shown.ignored, 5);
        assert_eq!(shown.nameless, BTreeMap::from([("alice@test".to_owned(), Arc::from([id(4), id(5)]))]));
    }

    #[test]
    fn a_reason_of_any_length_is_cut_and_does_no_harm() {
        let long = "y".repeat(3_000_000);
        let ours = format!(r#""HoldReason": "{long}", "User": "operator@test", "HTCJobUID": "ours", {WHOLE}"#);
        let shown = shown(&[&ours]);
        assert_eq!(shown.ads[&Uid::from("ours")][0].hold.reason.len(), 1000);
    }
}
