//! TLS, and a certificate that is renewed while the receiver runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use rstest::rstest;
use testbed::Version::{self, Sid, Trixie};
use testbed::{Account, Assets, PoolOptions, Scratch, wait_for};

use crate::callbacks::jobs::{Site, stored};
use bed::desk::{Desk, ended};
use bed::{PATIENCE, UNTIL_LET_GO, htcjob, is_true};

/// A certificate of its own issuer for 127.0.0.1, and its key.
pub fn write(folder: &Path, chain: &str, key: &str) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    for (name, text) in [(chain, made.cert.pem()), (key, made.signing_key.serialize_pem())] {
        Account::unprivileged().write(&folder.join(name), text, 0o644).unwrap();
    }
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
fn renewed_certificate_is_served_without_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(folder.path(), "tls.crt", "tls.key");
    fs::copy(path("tls.crt"), path("first.crt")).unwrap();
    let desk = Desk::standing_by(Some((&path("tls.crt"), &path("tls.key"))));
    desk.open();
    assert_eq!(status(&desk, &path("first.crt")), 204);
    let plain = bed::http::post(desk.address, &desk.headers("b"), &ended("12.0", "0"));
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

/// Returns a site whose jobs trust the receiver, and the folder of its certificate.
pub fn site(version: Version) -> (Site, Scratch) {
    let scratch = Scratch::new().unwrap();
    write(scratch.path(), "tls.crt", "tls.key");
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let (bin, trusted) = (Assets::locate().unwrap().job_bin(), path("tls.crt"));
    let extra_config = format!(
        "STARTER_JOB_ENVIRONMENT = \"PATH={}:/usr/bin:/bin CURL_CA_BUNDLE={trusted} APPTAINER_NOHTTPS=true\"",
        bin.display()
    );
    let options = PoolOptions { extra_config, ..PoolOptions::default() };
    let tls = [format!("--callback-tls-cert={trusted}"), format!("--callback-tls-key={}", path("tls.key"))];
    let site = Site::with(version, &options, &tls.each_ref().map(String::as_str));
    site.bed.start_operator();
    (site, scratch)
}

/// As docs/operating.md describes.
#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn jobs_report_over_tls_when_their_nodes_trust_the_certificate(#[case] version: Version) {
    let (site, _certificate) = site(version);
    let here = site.bed.namespace();
    let uid = here.create(&htcjob("secure", UNTIL_LET_GO));
    let told = |reports: &[&str]| {
        wait_for(&format!("{reports:?} in the ledger"), PATIENCE, || {
            let found = stored(&site.bed, &uid);
            if found == reports { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .unwrap();
    };
    told(&["-1"]);
    assert!(is_true(&here.let_go("secure"), "Complete"));
    told(&["-1", "0"]);
}
