use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;
use crate::api::Identity;
use crate::clock::Clock;
use crate::condor::known_users::KnownUsers;
use crate::condor::{Confining, Tools};
use crate::confine::Confinement;
use crate::health::Health;
use crate::machine::{ClusterId, Timestamp};
use crate::metrics::Metrics;

/// Answers as a schedd does: 1.0 is the operator's, 2.0 to 5.0 are alice's. It fails when it is to show 2.0, which is large. 4.0 is
/// large whenever small ones are asked for, and small whenever large ones are. 5.0 has a long reason. While there is a file `hangs`,
/// nothing about alice is answered; while there is `away`, nothing at all.
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
        *HoldReasonSubCode,StageInFinish,*"=!= true"*) ad 5 alice ", \"HTCJobUID\": \"small\", $whole" ;;
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
    /// With as many users beside alice.
    fn new(others: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        program(&folder.path().join("condor_q"), CONDOR_Q);
        program(&folder.path().join("condor_status"), "#!/bin/sh\necho 1 1\n");
        let limit = Duration::from_secs(60);
        let off = Confining { wanted: Confinement::Off, reads: &[], protected: &[] };
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

    /// What `condor_q` has been asked since the last time.
    fn calls(&self) -> Vec<String> {
        let file = self.folder.path().join("calls");
        let calls = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        calls.lines().map(str::to_owned).collect()
    }

    fn doubts(&self, shown: &Shown) -> Vec<&'static str> {
        let doubt = |uid: &&str| shown.doubt(&Uid::from(*uid), &self.schedd.users).is_some();
        ["ours", "large", "small", "none"].into_iter().filter(doubt).collect()
    }
}

fn ids(shown: &Shown) -> BTreeSet<u64> {
    shown.ads.values().flatten().map(|ad| ad.id.cluster.0).collect()
}

#[tokio::test]
async fn what_is_too_large_to_be_shown_is_a_doubt_about_its_own_object_alone() {
    let fake = Fake::new(5);
    for first in [true, false] {
        let shown = fake.schedd.queue().await.unwrap();
        assert_eq!(ids(&shown), BTreeSet::from([1, 3, 5]));
        assert_eq!(fake.doubts(&shown), ["large"]);
        let nameless = [JobId { cluster: ClusterId(4), proc: 0 }];
        assert_eq!(*shown.nameless_in_its_name(&"none".into(), &fake.schedd.users), nameless, "in neither answer");
        assert!(shown.nameless_in_its_name(&"ours".into(), &fake.schedd.users).is_empty());
        let calls = fake.calls();
        if !first {
            assert_eq!(calls.len(), 5, "the others, and four about alice: {calls:?}");
            assert!(calls[0].contains("!identicalMember(User, {\"alice@test\"})"), "{calls:?}");
        }
    }
    // What is about to happen with others does not wait for it.
    let shown = fake.schedd.queue_of(&["ours".into()]).await.unwrap();
    assert_eq!((ids(&shown), fake.calls().len()), (BTreeSet::from([1]), 1));
    let fresh = Fake::new(5);
    let shown = fresh.schedd.queue_of(&["ours".into()]).await.unwrap();
    assert_eq!((ids(&shown), fresh.calls().len()), (BTreeSet::from([1]), 1), "before anybody knows of her");
    let shown = fake.schedd.queue_of(&["small".into()]).await.unwrap();
    assert!(ids(&shown).contains(&3) && fake.calls().len() == 4);
    let changed = fake.schedd.changed_since(crate::machine::SchedDate(1), Duration::from_secs(60)).await.unwrap();
    assert_eq!((ids(&changed), fake.calls().len()), (BTreeSet::from([1]), 1));
}

#[tokio::test]
async fn what_is_not_answered_is_a_doubt_about_that_user_alone() {
    let fake = Fake::new(2);
    fake.set("hangs");
    for _ in 0..2 {
        let shown = fake.schedd.queue().await.unwrap();
        assert_eq!(ids(&shown), BTreeSet::from([1]));
        assert_eq!(fake.doubts(&shown), ["large", "small", "none"]);
        assert_eq!(shown.silent, BTreeSet::from(["alice@test".to_owned()]));
    }
}

#[tokio::test]
async fn what_fails_for_all_is_nobodys_fault() {
    let fake = Fake::new(2);
    fake.set("away");
    let unknown = fake.schedd.queue().await.unwrap_err();
    assert!(unknown.why == Why::ScheddUnreachable && unknown.message.contains("Failed to fetch"), "{unknown:?}");
    assert!(fake.schedd.suspects.users().is_empty(), "condor_q fails for everybody");
    let fake = Fake::new(2);
    fake.set("away");
    program(&fake.folder.path().join("condor_status"), "#!/bin/sh\nexit 1\n");
    assert!(fake.schedd.queue().await.is_err());
    assert_eq!(fake.calls().len(), 1, "the schedd does not answer at all");
    assert!(fake.schedd.suspects.users().is_empty());
}

#[tokio::test]
async fn one_among_hundreds_is_found() {
    let fake = Fake::new(300);
    let shown = fake.schedd.queue().await.unwrap();
    assert_eq!(ids(&shown), BTreeSet::from([1, 3, 5]));
    let calls = fake.calls().len();
    assert!(calls < 25, "{calls}");
    assert_eq!(fake.schedd.suspects.users(), BTreeSet::from(["alice@test".to_owned()]));
}

/// The constraint then names nobody.
#[tokio::test]
async fn one_is_found_among_more_than_fit_into_an_argument() {
    let fake = Fake::new(3000);
    let shown = fake.schedd.queue().await.unwrap();
    assert_eq!(ids(&shown), BTreeSet::from([1, 3, 5]));
    assert_eq!(fake.doubts(&shown), ["large"]);
    let calls = fake.calls();
    assert!(calls[0].ends_with(" HTCOperator =?= \"op\"") && calls.len() < 35, "{}: {}", calls.len(), calls[0]);
    assert_eq!(fake.schedd.suspects.users(), BTreeSet::from(["alice@test".to_owned()]));
}

#[test]
fn the_size_of_each_attribute_counts() {
    let [large, small, long_reason] = parts();
    assert!(small.which.starts_with("(size(unparse(ClusterId)) + "), "{}", small.which);
    assert!(small.which.ends_with(" + size(unparse(User)) < 8192)"), "{}", small.which);
    assert_eq!(small.which.matches("unparse").count(), NAMES.len());
    assert_eq!(large.which.matches("unparse").count(), NAMES.len(), "all but the reason, and the uid once more");
    assert_eq!(long_reason.attributes.split(',').count(), NAMES.len() - 1);
}
