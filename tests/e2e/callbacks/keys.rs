//! The keys of the tokens are changed while the operator runs.

use bed::api::OWN_SECRETS;
use bed::http;
use bed::{Bed, PATIENCE, UNTIL_LET_GO, htcjob, ids};
use htc_submit::job_token::TokenKeys;
use serde_json::json;
use testbed::Version::Trixie;
use testbed::{PoolOptions, Port, wait_for};

use crate::callbacks::jobs::stored;

const NEW: &str = "fedcba9876543210fedcba9876543210";
const SECRET: &str = "htc-operator-callback-keys";

fn write(bed: &Bed, keys: &str) {
    bed.merge(OWN_SECRETS, SECRET, &json!({ "stringData": { "keys": keys } }));
}

#[test]
fn token_keys_are_reloaded_without_restart() {
    let port = Port::reserve().unwrap();
    let url = format!("--callback-url=http://127.0.0.1:{}/cloudevents", port.number);
    let listen = format!("--callback-listen=127.0.0.1:{}", port.number);
    let bed = Bed::new(Trixie, &PoolOptions::default(), &[&url, &listen]);
    bed.start_operator();
    let here = bed.namespace();
    let uid = here.create(&htcjob("old", UNTIL_LET_GO));
    let id = ids(&here.wait_phase("old", "Running")).remove(0);
    let number = std::cell::Cell::new(0);
    // What is answered to a start of the first job that is signed with this key.
    let signed = |key: &str| {
        number.set(number.get() + 1);
        let token = TokenKeys::parse(key).unwrap().token(&uid.as_str().into());
        let headers = http::headers_of_start(&token, &uid, &number.get().to_string());
        let data = json!({ "name": "old", "jobid": id }).to_string();
        http::post(([127, 0, 0, 1], port.number).into(), &headers, data.as_bytes()).unwrap().status
    };
    let answered = |key: &str, status: u16| {
        wait_for(&format!("{status} for {key:?}"), PATIENCE, || {
            let now = signed(key);
            if now == status { Ok(()) } else { Err(now.to_string()) }
        })
        .unwrap();
    };
    let pid = bed.operator_pid();
    let old = bed.own_secret(SECRET, "keys");
    assert_eq!((signed(&old), signed(NEW)), (204, 403));

    write(&bed, &format!("{NEW}\n{old}"));
    answered(NEW, 204);
    // The job that was submitted before has the old one.
    here.let_go("old");
    let told = || stored(&bed, &uid).last().is_some_and(|code| code == "0");
    wait_for("its end, signed with the old key", PATIENCE, told).unwrap();

    // What cannot be used changes nothing, and is told.
    write(&bed, "short");
    wait_for("that to be told", PATIENCE, || bed.log().contains("callback keys not reloaded")).unwrap();
    assert_eq!((signed(&old), signed(NEW)), (204, 204));

    write(&bed, NEW);
    answered(&old, 403);
    let uid = here.create(&htcjob("new", UNTIL_LET_GO));
    wait_for("its start", PATIENCE, || stored(&bed, &uid) == ["-1"]).unwrap();
    here.let_go("new");
    wait_for("what is signed with the new key", PATIENCE, || stored(&bed, &uid) == ["-1", "0"]).unwrap();
    assert_eq!(bed.operator_pid(), pid, "without a restart");
}
