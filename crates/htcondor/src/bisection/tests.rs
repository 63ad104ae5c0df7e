use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use htc_api::Identity;
use htc_confine::Confinement;
use htc_machine::{ClusterId, Timestamp};
use htc_support::clock::Clock;
use htc_support::health::Health;
use htc_support::metrics::Metrics;

use super::*;
use crate::known_users::KnownUsers;
use crate::{ConfinementSettings, Tools};

/// Stand-in for a schedd's `condor_q`. Job 1.0 is the operator's, jobs 2.0 to 5.0 are alice's. A query that includes
/// the large ad of 2.0 fails. Job 4.0 is large while small ads are queried, and small while large ads are. Job 5.0 has
/// a long hold reason. While a file `hangs` exists, queries about alice get no answer; while `away` exists, no query
/// gets one.
const CONDOR_Q: &str = r#"#!/bin/sh
dir=${0%/*}; attributes=$6; constraint=$8
echo "$attributes $constraint" >> "$dir/calls"
fail() { echo "-- Failed to fetch ads from: <127.0.0.1:1>" >&2; exit 1; }
[ -e "$dir/away" ] && fail
about() {
    case ${constraint%%\}*} in
        '!identicalMember(User'*"\"$1\""*) return 1 ;;
        '!identicalMember(User'*) return 0 ;;
        'identicalMember(User'*"\"$1\""*) return 0 ;;
        'identicalMember(User'*) return 1 ;;
        'member(User'*"\"$1\""*) return 0 ;;
        'member(User'*) return 1 ;;
    esac
}
out=
ad() { out="$out${out:+,}{\"ClusterId\": $1, \"ProcId\": 0, \"User\": \"$2@test\"$3}"; }
whole='"HTCJobAttempt": 1, "HTCJobIndex": 0, "JobStatus": 2'
if about operator@test; then ad 1 operator ", \"HTCJobUID\": \"ours\", $whole"; fi
if about alice@test; then
    [ -e "$dir/hangs" ] && fail
    case $attributes,$constraint in
        *HoldReasonSubCode,LastHoldReason,StageInFinish,*"=!= true"*) ad 5 alice ", \"HTCJobUID\": \"small\", $whole" ;;
        *RemoveReason,*"< 8192"*) ad 3 alice ", \"HTCJobUID\": \"small\", $whole" ;;
        *RemoveReason,*) fail ;;
        *HTCJobUID*"=!= true"*) ad 2 alice ", \"HTCJobUID\": \"large\"" ;;
        *) for id in 2 3 4 5; do ad $id alice; done ;;
    esac
fi
[ -n "$out" ] && echo "[$out]"
exit 0
"#;

struct Fake {
    folder: tempfile::TempDir,
    schedd: Schedd,
}

fn user(name: &str) -> (Identity, String) {
    (Identity::Secret { namespace: name.to_owned(), name: "token".to_owned() }, format!("{name}@test"))
}

fn program(path: &Path, script: &str) {
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Fake {
    /// Creates a schedd with this many users beside alice.
    fn new(others: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        program(&folder.path().join("condor_q"), CONDOR_Q);
        program(&folder.path().join("condor_status"), "#!/bin/sh\necho 1 1\n");
        let limit = Duration::from_secs(60);
        let off = ConfinementSettings { wanted: Confinement::Off, reads: &[], protected: &[] };
        let bin = folder.path().to_owned();
        let tools = Tools::new(Some(&bin), off, limit, limit, limit, Metrics::default());
        let others = (0..others).map(|number| user(&format!("user{number}")));
        let users = KnownUsers::new(others.chain([user("alice"), (Identity::Operator, "operator@test".to_owned())]));
        users.assign(&"ours".into(), &Identity::Operator, Timestamp(1));
        for uid in ["large", "small", "none"] {
            users.assign(&uid.into(), &user("alice").0, Timestamp(1));
        }
        let schedd = Schedd::new("s".into(), "op".to_owned(), tools, Clock::default(), users, Health::default());
        Self { folder, schedd }
    }

    fn set(&self, state: &str) {
        fs::write(self.folder.path().join(state), "").unwrap();
    }

    /// Returns the calls of `condor_q` since the last time.
    fn calls(&self) -> Vec<String> {
        let file = self.folder.path().join("calls");
        let calls = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        calls.lines().map(str::to_owned).collect()
    }

    fn doubts(&self, shown: &AdListing) -> Vec<&'static str> {
        let doubt = |uid: &&str| shown.doubt(&Uid::from(*uid), &self.schedd.users).is_some();
        ["ours", "large", "small", "none"].into_iter().filter(doubt).collect()
    }
}

fn ids(shown: &AdListing) -> BTreeSet<u64> {
    shown.ads.values().flatten().map(|ad| ad.id.cluster.0).collect()
}

#[tokio::test]
async fn oversized_ad_is_a_doubt_only_about_its_own_object() {
    let fake = Fake::new(5);
    for first in [true, false] {
        let shown = fake.schedd.queue().await.unwrap();
        assert_eq!(ids(&shown), BTreeSet::from([1, 3, 5]));
        assert_eq!(fake.doubts(&shown), ["large"]);
        let nameless = [JobId { cluster: ClusterId(4), proc: 0 }];
        assert_eq!(*shown.without_uid_for(&"none".into(), &fake.schedd.users), nameless, "in neither answer");
        assert!(shown.without_uid_for(&"ours".into(), &fake.schedd.users).is_empty());
        let calls = fake.calls();
        if !first {
            assert_eq!(calls.len(), 5, "the others, and four about alice: {calls:?}");
            assert!(calls[0].contains("!identicalMember(User, {\"alice@test\"})"), "{calls:?}");
        }
    }
    // A query about other users does not wait for it.
    let shown = fake.schedd.queue_of(&["ours".into()]).await.unwrap();
    assert_eq!((ids(&shown), fake.calls().len()), (BTreeSet::from([1]), 1));
    let fresh = Fake::new(5);
    let shown = fresh.schedd.queue_of(&["ours".into()]).await.unwrap();
    assert_eq!((ids(&shown), fresh.calls().len()), (BTreeSet::from([1]), 1), "before anybody knows of her");
    let shown = fake.schedd.queue_of(&["small".into()]).await.unwrap();
    assert!(ids(&shown).contains(&3) && fake.calls().len() == 4);
    let changed = fake.schedd.changed_since(htc_machine::SchedDate(1), Duration::from_secs(60)).await.unwrap();
    assert_eq!((ids(&changed), fake.calls().len()), (BTreeSet::from([1]), 1));
}

#[tokio::test]
async fn unanswered_query_is_a_doubt_only_about_that_user() {
    let fake = Fake::new(2);
    fake.set("hangs");
    for _ in 0..2 {
        let shown = fake.schedd.queue().await.unwrap();
        assert_eq!(ids(&shown), BTreeSet::from([1]));
        assert_eq!(fake.doubts(&shown), ["large", "small", "none"]);
        assert_eq!(shown.unanswered_users, BTreeSet::from(["alice@test".to_owned()]));
    }
}

#[tokio::test]
async fn query_that_fails_for_all_users_quarantines_none() {
    let fake = Fake::new(2);
    fake.set("away");
    let unknown = fake.schedd.queue().await.unwrap_err();
    assert!(
        unknown.kind == QueryErrorKind::ScheddUnreachable && unknown.message.contains("Failed to fetch"),
        "{unknown:?}"
    );
    assert!(fake.schedd.quarantine.users().is_empty(), "condor_q fails for everybody");
    let fake = Fake::new(2);
    fake.set("away");
    program(&fake.folder.path().join("condor_status"), "#!/bin/sh\nexit 1\n");
    assert!(fake.schedd.queue().await.is_err());
    assert_eq!(fake.calls().len(), 1, "the schedd does not answer at all");
    assert!(fake.schedd.quarantine.users().is_empty());
}

#[tokio::test]
async fn harmful_user_among_hundreds_is_found() {
    let fake = Fake::new(300);
    let shown = fake.schedd.queue().await.unwrap();
    assert_eq!(ids(&shown), BTreeSet::from([1, 3, 5]));
    let calls = fake.calls().len();
    assert!(calls < 25, "{calls}");
    assert_eq!(fake.schedd.quarantine.users(), BTreeSet::from(["alice@test".to_owned()]));
}

/// The constraint then contains no users.
#[tokio::test]
async fn harmful_user_is_found_among_more_than_fit_one_argument() {
    let fake = Fake::new(3000);
    let shown = fake.schedd.queue().await.unwrap();
    assert_eq!(ids(&shown), BTreeSet::from([1, 3, 5]));
    assert_eq!(fake.doubts(&shown), ["large"]);
    let calls = fake.calls();
    assert!(calls[0].ends_with(" HTCOperator =?= \"op\"") && calls.len() < 35, "{}: {}", calls.len(), calls[0]);
    assert_eq!(fake.schedd.quarantine.users(), BTreeSet::from(["alice@test".to_owned()]));
}

#[test]
fn size_query_counts_each_attribute() {
    let [large, small, long_reason] = size_queries();
    assert!(small.constraint.starts_with("(size(unparse(ClusterId)) + "), "{}", small.constraint);
    assert!(small.constraint.ends_with(" + size(unparse(User)) < 8192)"), "{}", small.constraint);
    assert_eq!(small.constraint.matches("unparse").count(), NAMES.len());
    assert_eq!(large.constraint.matches("unparse").count(), NAMES.len(), "all but the reason, and the uid once more");
    assert_eq!(long_reason.attributes.split(',').count(), NAMES.len() - 1);
}
