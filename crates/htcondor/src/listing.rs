//! This operator's jobs in one answer of HTCondor.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use htc_machine::facts::{Ad, QueryError, QueryErrorKind};
use htc_machine::ids::id_ranges;
use htc_machine::{JobId, Uid};

use super::known_users::KnownUsers;
use super::row::Row;

/// The ads of many objects.
pub type AdsByUid = HashMap<Uid, Vec<Ad>>;

/// This operator's jobs in one answer of HTCondor. An unreadable ad does not affect other objects: it raises a doubt
/// about the object that it belongs to, or about none.
#[derive(Debug, Default)]
pub struct AdListing {
    /// Readable ads.
    pub ads: AdsByUid,
    /// Jobs whose ads are unreadable, by object.
    pub unreadable: HashMap<Uid, Vec<JobId>>,
    /// Jobs without a valid `HTCJobUID`, by `User`.
    pub without_uid: BTreeMap<String, Arc<[JobId]>>,
    nameless_yet: BTreeMap<String, BTreeSet<JobId>>,
    /// Number of ads that belong to no object: those without a valid `User` or `HTCJobUID`, and those whose `User` is
    /// none of their object's identity.
    pub ignored: usize,
    /// Users about whose jobs there was no answer.
    pub unanswered_users: BTreeSet<String>,
}

impl AdListing {
    /// Adds one ad of this operator if its `User` is a known one.
    pub(super) fn add(&mut self, users: &KnownUsers, row: &Row) {
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
            self.add_unreadable(uid.into(), row);
            return;
        };
        match self.ads.get_mut(uid) {
            Some(list) => list.push(ad),
            None => drop(self.ads.insert(Uid::from(uid), vec![ad])),
        }
    }

    pub(super) fn add_unreadable(&mut self, uid: Uid, row: &Row) {
        tracing::debug!(%uid, job = row.id(), "job ad unreadable");
        self.unreadable.entry(uid).or_default().extend(row.job_id());
    }

    /// Returns why the answer proves nothing about this object: one of its ads is unreadable, or may be missing.
    #[must_use]
    pub fn doubt(&self, uid: &Uid, users: &KnownUsers) -> Option<QueryError> {
        let message = if let Some(jobs) = self.unreadable.get(uid) {
            format!(
                "attributes that htc-operator has given to its jobs are missing or changed in {}, or somebody has written more than can be read; restore them with condor_qedit, or remove the jobs with condor_rm",
                id_ranges(jobs, 200)
            )
        } else {
            let user = self.unanswered_users.iter().find(|user| users.belongs(uid.as_str(), user))?;
            format!(
                "HTCondor does not show the jobs of {user}, though those of others: somebody may have written too much into one of them; look for it with condor_q, and remove it with condor_rm"
            )
        };
        Some(QueryError { kind: QueryErrorKind::Incomplete, message })
    }

    /// Adds the answer about the jobs of other users.
    pub(super) fn extend(&mut self, other: Self) {
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
        self.unanswered_users.extend(other.unanswered_users);
    }

    /// Returns the jobs without a valid `HTCJobUID` whose `User` belongs to this object's identity, by id. There may be
    /// very many of them, and very many objects: objects with the same user share one list.
    #[must_use]
    pub fn without_uid_for(&self, uid: &Uid, users: &KnownUsers) -> Arc<[JobId]> {
        let its = || self.without_uid.iter().filter(|(user, _)| users.belongs(uid.as_str(), user)).map(|(_, ids)| ids);
        match its().count() {
            0 => Arc::default(),
            1 => its().next().map(Arc::clone).unwrap_or_default(),
            _ => its().flat_map(|ids| ids.iter().copied()).collect::<BTreeSet<_>>().into_iter().collect(),
        }
    }

    /// Returns how many ads are unreadable or belong to no object. A user without an answer counts as one.
    #[must_use]
    pub fn count_unreadable(&self) -> usize {
        self.unreadable.values().map(Vec::len).sum::<usize>() + self.ignored + self.unanswered_users.len()
    }

    /// Returns the ids of all jobs in the answer, with readable or unreadable ads.
    pub fn ids(&self) -> impl Iterator<Item = JobId> + '_ {
        let read = self.ads.values().flatten().map(|ad| ad.id);
        let unread = self.unreadable.values().flatten().chain(self.without_uid.values().flat_map(|ids| ids.iter()));
        read.chain(unread.copied())
    }

    pub(super) fn sort(&mut self) {
        for list in self.ads.values_mut() {
            list.sort_by_key(|ad| ad.id);
        }
        let nameless = std::mem::take(&mut self.nameless_yet);
        self.without_uid.extend(nameless.into_iter().map(|(user, ids)| (user, ids.into_iter().collect())));
    }
}

#[cfg(test)]
mod tests {
    use htc_api::Identity;
    use htc_machine::Timestamp;

    use super::*;
    use crate::ads::AdReader;
    use crate::row::Rows;

    const WHOLE: &str = r#""HTCJobAttempt": 1, "HTCJobIndex": 0, "JobStatus": 2"#;

    /// Users of two identities with one object each.
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

    fn shown(ads: &[&str]) -> AdListing {
        let (mut shown, users) = (AdListing::default(), users());
        let mut reader = AdReader::new(Rows::new(|row: &Row| shown.add(&users, row)));
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
        JobId { cluster: htc_machine::ClusterId(cluster), proc: 0 }
    }

    #[test]
    fn unreadable_ad_is_a_doubt_only_about_its_own_object() {
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
            assert!(doubt.kind == QueryErrorKind::Incomplete && doubt.message.contains("2.0"), "{doubt:?}");
            assert_eq!(shown.ids().count(), 2);
        }
    }

    #[test]
    fn ad_without_a_rightful_owner_is_ignored() {
        let strange = [
            // A user's ad that claims another one's object, complete or broken.
            format!(r#""User": "alice@test", "HTCJobUID": "ours", {WHOLE}"#),
            r#""User": "alice@test", "HTCJobUID": "ours""#.to_owned(),
            format!(r#""User": 5, "HTCJobUID": "ours", {WHOLE}"#),
            format!(r#""User": "alice@test", "HTCJobUID": 7, {WHOLE}"#),
            format!(r#""User": "alice@test", {WHOLE}"#),
        ];
        let shown = shown(&strange.each_ref().map(String::as_str));
        assert!(shown.ads.is_empty() && shown.unreadable.is_empty(), "{shown:?}");
        assert_eq!(shown.ignored, 5);
        assert_eq!(shown.without_uid, BTreeMap::from([("alice@test".to_owned(), Arc::from([id(4), id(5)]))]));
    }

    #[test]
    fn long_hold_reason_is_truncated() {
        let long = "y".repeat(3_000_000);
        let ours = format!(r#""HoldReason": "{long}", "User": "operator@test", "HTCJobUID": "ours", {WHOLE}"#);
        let shown = shown(&[&ours]);
        assert_eq!(shown.ads[&Uid::from("ours")][0].hold.reason.len(), 1000);
    }
}
