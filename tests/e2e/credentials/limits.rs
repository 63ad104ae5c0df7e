//! No namespace has more Secrets in use than its part.

use testbed::Version;

use crate::credentials::site::{Site, put_secret, wait_says, with_secret};
use bed::is_true;

#[test]
fn secret_beyond_the_namespace_limit_waits() {
    let site = Site::new(Version::Trixie, &["--namespace-identities=1"]);
    site.bed.start_operator();
    let (here, elsewhere) = (site.bed.namespace(), site.bed.namespace());
    let token = site.token("alice@test", &[]);
    // One that fails is tried again and again, and so in use.
    put_secret(&here, "first", &[("something", b"else")]);
    here.let_read_secret("first");
    here.create(&with_secret("first", "first", "true"));
    wait_says(&here, "first", "Submitted", "CredentialsFailed", "expected the entries `token`");
    for namespace in [&here, &elsewhere] {
        put_secret(namespace, "second", &[("token", token.as_bytes())]);
        namespace.let_read_secret("second");
        namespace.create(&with_secret("second", "second", "true"));
    }
    let message = wait_says(&here, "second", "Submitted", "CredentialsFailed", "--namespace-identities");
    assert!(message.contains(&here.name), "{message}");
    let ended = elsewhere.wait_ended("second");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    here.delete("first");
    let ended = here.wait_ended("second");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
}
