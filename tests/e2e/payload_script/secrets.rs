//! Content of Secrets, which the job fetches from the operator.

use htc_api::{FileSource, KeyRef};
use htc_submit::files::{SecretFile, parse};
use htc_submit::payload::{Callback, Image, OutputPattern, Payload, Program};

use super::urls::{Page, Web};
use super::{INPUT_REFUSED, NO_INPUT, SHELLS, Scratch, bare, image};

const TOKEN: &str = "5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d0";
const UID: &str = "0b5e-01";

fn key(name: &str, key: &str) -> KeyRef {
    KeyRef { name: name.to_owned(), key: key.to_owned() }
}

fn secret_file(path: &str, from: KeyRef) -> SecretFile {
    parse(&[FileSource { path: path.to_owned(), secret: Some(from), ..FileSource::default() }], &[])
        .unwrap()
        .secret
        .remove(0)
}

fn job(web: &Web, source: &str, worker: bool) -> Scratch {
    let (image, command) = (Image::of_the_site(image().to_str().unwrap()).unwrap(), Program::script("bash").unwrap());
    let url = web.url("/cloudevents");
    let scratch = Scratch::of(
        tempfile::tempdir().unwrap(),
        &Payload {
            callback: Some(Callback { url: &url, source: "cern.ch", uid: UID, token: TOKEN }),
            secret_files: &[secret_file("conf/.netrc", key("robot", "netrc")), secret_file("key", key("robot", "key"))],
            // Some names mean something to job.sh itself.
            secret_env: &["PASSWORD", "env", "file", "text", "PATH", "work"]
                .map(|name| (name.to_owned(), key("robot", if name == "PATH" { "path" } else { "password" }))),
            outputs: &[OutputPattern::parse("**").unwrap()],
            ..bare(&image, &command, source)
        },
    );
    web.trusted(scratch, worker)
}

fn content(path: &str, _: usize) -> Page {
    match path {
        "/cloudevents/0b5e-01/secrets/robot/netrc" => (200, "", b"hunter2-netrc"),
        "/cloudevents/0b5e-01/secrets/robot/key" => (200, "", b"\0\xffhunter2-key"),
        "/cloudevents/0b5e-01/secrets/robot/path" => (200, "", b"/usr/bin:/bin"),
        "/cloudevents/0b5e-01/secrets/robot/password" => (200, "", b" hunter2-\\n$x'\"`y`\n\n"),
        "/cloudevents" => (204, "", b""),
        _ => (404, "", b""),
    }
}

#[test]
fn payload_has_the_content_of_secrets_and_none_comes_back() {
    let web = Web::new(content);
    let source = r#"cat conf/.netrc; od -An -tx1 -v key | tr -d ' \n'; printf '<%s>' "$PASSWORD"; test "$PASSWORD$env" = "$file$text" && test "$work" = "$env"; echo $?; stat -c %a conf/.netrc
        env | grep -c 5eaf00d; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -c "[h]unter2"
        chmod u+w key; echo hunter2-changed >key; echo x >made; : >conf/empty"#;
    for shell in SHELLS {
        for worker in [false, true] {
            let scratch = job(&web, source, worker);
            let (code, stdout, stderr) = scratch.run(shell);
            let expected = "hunter2-netrc00ff68756e746572322d6b6579< hunter2-\\n$x'\"`y`\n\n>0\n400\n0\n0\n";
            assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, expected, ""), "{shell}, worker: {worker}");
            for (path, head) in web.requests() {
                let with_token = head.contains(&format!("Authorization: Bearer {TOKEN}\r\n"));
                assert!(with_token && !path.contains("5eaf00d"), "{shell}: {head}");
            }
            assert_eq!(scratch.read("made"), "x\n", "{shell}, worker: {worker}");
            let left = std::process::Command::new("grep")
                .arg("-r")
                .arg("hunter2")
                .arg(scratch.folder.path())
                .output()
                .unwrap();
            let left: String =
                String::from_utf8_lossy(&left.stdout).lines().filter(|line| !line.contains("script.sh")).collect();
            assert_eq!(left, "", "{shell}, worker: {worker}");
        }
    }
}

#[test]
fn job_without_its_secrets_does_not_run() {
    for (answer, end, words) in [
        ((409, "", &b""[..]), INPUT_REFUSED, "it is another one than when the first job was submitted"),
        ((410, "", &b""[..]), INPUT_REFUSED, "it is gone, or HTCJobs may not use it any more"),
        ((403, "", &b""[..]), INPUT_REFUSED, "The requested URL returned error: 403"),
        ((302, "Location: https://127.0.0.1:1/x\r\n", &b""[..]), NO_INPUT, "robot/netrc cannot be fetched"),
    ] {
        let web = Web::new(move |path, before| if path.contains("/secrets/") { answer } else { content(path, before) });
        for shell in SHELLS {
            let (code, stdout, stderr) = job(&web, "echo ran", true).run(shell);
            assert_eq!((code, stdout.as_str()), (end, ""), "{shell}: {stderr}");
            assert!(stderr.contains(words) && !stderr.contains("5eaf00d"), "{shell}: {stderr}");
        }
    }
    let web = Web::new(content);
    let mut scratch = job(&web, "echo ran", true);
    // A node without curl.
    let bin =
        tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    for folder in ["/usr/bin", "/bin"] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != "curl" {
                let _ = std::os::unix::fs::symlink(entry.path(), bin.path().join(entry.file_name()));
            }
        }
    }
    scratch.path = bin.path().display().to_string();
    let (code, _, stderr) = scratch.run("dash");
    assert!(code == NO_INPUT && stderr.contains("the node has no curl"), "{code} {stderr}");
}
