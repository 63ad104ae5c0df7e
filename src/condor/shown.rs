//! What an answer shows of this operator's jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::known_users::KnownUsers;
use super::row::Row;
use crate::machine::facts::{Ad, Unknown, Why};
use crate::machine::ids::id_ranges;
use crate::machine::{JobId, Uid};

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
    /// Nothing is known about the jobs of these users.
    pub silent: BTreeSet<String>,
}

impl Shown {
    /// Adds one ad of this operator's, if it is in one of its names.
    pub(super) fn collect(&mut self, users: &KnownUsers, row: &Row) {
        let Some(user) = row.user() else {
            self.ignored += 1;
            return;
        };
        if !users.knows(user) {
            return;
        }
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

    pub(super) fn cannot_read(&mut self, uid: Uid, row: &Row) {
        tracing::debug!(%uid, job = row.id(), "a job's ad cannot be read");
        self.unreadable.entry(uid).or_default().extend(row.job_id());
    }

    /// Why the answer says nothing about this object: it has an ad that cannot be read, or may have one that was not shown.
    #[must_use]
    pub fn doubt(&self, uid: &Uid, users: &KnownUsers) -> Option<Unknown> {
        let message = if let Some(jobs) = self.unreadable.get(uid) {
            format!(
                "attributes that htc-operator has given to its jobs are missing or changed in {}, or somebody has written more than can be read; restore them with condor_qedit, or remove the jobs with condor_rm",
                id_ranges(jobs, 200)
            )
        } else {
            let user = self.silent.iter().find(|user| users.belongs(uid.as_str(), user))?;
            format!(
                "HTCondor does not show the jobs of {user}, though those of others: somebody may have written too much into one of them; look for it with condor_q, and remove it with condor_rm"
            )
        };
        Some(Unknown { why: Why::Incomplete, message })
    }

    /// Adds what was shown of the jobs of other users.
    pub(super) fn absorb(&mut self, other: Self) {
        for (uid, ads) in other.ads {
            self.ads.entry(uid).or_default().extend(ads);
        }
        for (uid, jobs) in other.unreadable {
            self.unreadable.entry(uid).or_default().extend(jobs);
        }
        for (user, ids) in other.nameless_yet {
            self.nameless_yet.entry(user).or_default().extend(ids);
        }
        self.ignored += other.ignored;
        self.silent.extend(other.silent);
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

    /// How many ads cannot be read, or are no object's. A user of whose jobs nothing is known counts as one.
    #[must_use]
    pub fn count_unreadable(&self) -> usize {
        self.unreadable.values().map(Vec::len).sum::<usize>() + self.ignored + self.silent.len()
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

    pub(super) fn sort(&mut self) {
        for list in self.ads.values_mut() {
            list.sort_by_key(|ad| ad.id);
        }
        let nameless = std::mem::take(&mut self.nameless_yet);
        self.nameless.extend(nameless.into_iter().map(|(user, ids)| (user, ids.into_iter().collect())));
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
            WHOLE.replace("\"JobStatus\": 2", "\"JobStatus\": 11"),
            WHOLE.replace("\"JobStatus\": 2", "\"Other\": 9"),
        ] {
            let hers = format!(r#""User": "alice@test", "HTCJobUID": "hers", {broken}"#);
            let shown = shown(&[&ours, &hers]);
            assert_eq!(shown.ads.keys().collect::<Vec<_>>(), [&Uid::from("ours")], "{broken}");
            assert_eq!(shown.doubt(&"ours".into(), &users()), None);
            let doubt = shown.doubt(&"hers".into(), &users()).unwrap();
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
