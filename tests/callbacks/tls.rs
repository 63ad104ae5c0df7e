//! TLS, and a certificate that is renewed while the receiver runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use testbed::wait_for;

use crate::bed::PATIENCE;
use crate::desk::{Desk, ended};

/// A certificate of its own issuer for 127.0.0.1, and its key.
fn write(folder: &Path, chain: &str, key: &str) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    fs::write(folder.join(chain), made.cert.pem()).unwrap();
    fs::write(folder.join(key), made.signing_key.serialize_pem()).unwrap();
}

/// What the receiver answers to one who trusts only the certificate in `trusted`; 0 if there is no answer.
fn status(desk: &Desk, trusted: &Path) -> u16 {
    let mut curl = Command::new("curl");
    curl.args(["-q", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--noproxy", "*", "--cacert"]);
    curl.arg(trusted).arg(format!("https://{}/cloudevents", desk.address));
    for (name, value) in desk.headers("a") {
        curl.args(["--header", &format!("{name}: {value}")]);
    }
    let output = curl.arg("--data").arg(String::from_utf8(ended("12.0", "0")).unwrap()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().parse().unwrap()
}

#[test]
fn a_renewed_certificate_is_served_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(folder.path(), "tls.crt", "tls.key");
    fs::copy(path("tls.crt"), path("first.crt")).unwrap();
    let desk = Desk::standing_by(Some((&path("tls.crt"), &path("tls.key"))));
    desk.open();
    assert_eq!(status(&desk, &path("first.crt")), 204);
    let plain = crate::http::post(desk.address, &desk.headers("b"), &ended("12.0", "0"));
    assert!(plain.is_err(), "without TLS: {plain:?}");

    // Half of a renewal, and a broken one: the old certificate is served.
    write(folder.path(), "new.crt", "new.key");
    fs::rename(path("new.crt"), path("tls.crt")).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(status(&desk, &path("first.crt")), 204);
    fs::copy(path("tls.crt"), path("second.crt")).unwrap();
    fs::rename(path("new.key"), path("tls.key")).unwrap();
    wait_for("the new certificate to be served", PATIENCE, || status(&desk, &path("second.crt")) == 204).unwrap();
    assert_eq!(status(&desk, &path("first.crt")), 0);
}
