//! Files that the job fetches from URLs before its payload.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use htc_api::FileSource;
use htc_submit::files::url::UrlScheme;
use htc_submit::files::{FetchedFile, parse};
use htc_submit::payload::{Image, Payload, Program};
use rustls::{ServerConnection, StreamOwned};
use sha2::{Digest as _, Sha256};

use super::https::Authority;
use super::worker::on_worker;
use super::{INPUT_REFUSED, NO_INPUT, SHELLS, Scratch, bare, ended, image};

/// Status, further header lines, and body of an answer.
pub type Page = (u16, &'static str, &'static [u8]);

/// A web server with TLS.
pub struct Web {
    authority: Authority,
    port: u16,
    /// A `sleep` that does not.
    sleepless: tempfile::TempDir,
    /// Paths and whole heads of the requests.
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

impl Web {
    /// `answer` gets the path of a request, and how often it was asked for before.
    pub fn new(answer: impl Fn(&str, usize) -> Page + Send + Sync + 'static) -> Self {
        let authority = Authority::new();
        let (config, answer) = (authority.server("127.0.0.1"), Arc::new(answer));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::<(String, String)>::new()));
        let all = Arc::clone(&asked);
        // Ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, answer, all) = (Arc::clone(&config), Arc::clone(&answer), Arc::clone(&all));
                std::thread::spawn(move || {
                    let stream = stream.unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    let stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
                    let mut reader = BufReader::new(stream);
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if reader.read_line(&mut head).unwrap_or_default() == 0 {
                            return;
                        }
                    }
                    let path = head.split(' ').nth(1).unwrap().to_owned();
                    let before = all.lock().unwrap().iter().filter(|(other, _)| *other == path).count();
                    all.lock().unwrap().push((path.clone(), head));
                    let (status, more, body) = answer(&path, before);
                    let mut stream = reader.into_inner();
                    let head = format!(
                        "HTTP/1.1 {status} X\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n",
                        body.len()
                    );
                    let _ = stream.write_all(&[head.as_bytes(), body].concat());
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                });
            }
        });
        Self { authority, port, sleepless: tool("sleep", "exit 0"), asked }
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    /// A job that fetches from it.
    fn job(&self, fetched: &[FetchedFile], source: &str, worker: bool) -> Scratch {
        self.trusted(job(fetched, source), worker)
    }

    /// Lets a job trust it. The job does not wait between two tries.
    pub(super) fn trusted(&self, mut scratch: Scratch, worker: bool) -> Scratch {
        if worker {
            scratch = on_worker("python:3.12", scratch);
        }
        scratch.environment.push(("CURL_CA_BUNDLE", self.authority.file()));
        put_before(&mut scratch, &self.sleepless);
        scratch
    }

    fn asked(&self) -> Vec<String> {
        self.requests().into_iter().map(|(path, _)| path).collect()
    }

    /// File with the authority that its clients must trust.
    pub fn trust(&self) -> std::path::PathBuf {
        self.authority.file()
    }

    /// Paths and heads of the requests since the last call.
    pub fn requests(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn fetched(path: &str, url: &str, sha256: Option<&str>, mode: Option<i32>) -> FetchedFile {
    let entry = FileSource {
        path: path.to_owned(),
        url: Some(url.to_owned()),
        sha256: sha256.map(str::to_owned),
        mode,
        ..FileSource::default()
    };
    let schemes = [UrlScheme::Https, UrlScheme::Http, UrlScheme::Root, UrlScheme::Osdf, UrlScheme::Pelican];
    parse(&[entry], &schemes).unwrap().fetched.remove(0)
}

fn job(fetched: &[FetchedFile], source: &str) -> Scratch {
    let (image, command) = (Image::of_the_site(image().to_str().unwrap()).unwrap(), Program::script("bash").unwrap());
    Scratch::of(tempfile::tempdir().unwrap(), &Payload { fetched, ..bare(&image, &command, source) })
}

/// A folder with this program, to come before those of the node.
fn tool(name: &str, script: &str) -> tempfile::TempDir {
    let folder = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    std::fs::write(folder.path().join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(folder.path().join(name), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

fn put_before(scratch: &mut Scratch, tools: &tempfile::TempDir) {
    scratch.path = format!("{}:{}", tools.path().display(), scratch.path);
}

fn sha256(content: &[u8]) -> String {
    htc_submit::job_token::hex(&Sha256::digest(content))
}

fn run_with_item(scratch: &Scratch, shell: &str, item: &str) -> (i32, String, String) {
    let item = format!("={}", base64::engine::general_purpose::STANDARD.encode(item));
    ended(scratch.start(shell, &["3", &item]).wait_with_output().unwrap())
}

#[test]
fn job_fetches_its_files_and_changed_ones_come_back() {
    let web = Web::new(|path, _| (200, "", if path.starts_with("/tool") { b"#!/bin/sh\necho ran" } else { b"data" }));
    let files = [
        fetched("bin/tool", &web.url("/tool"), Some(&sha256(b"#!/bin/sh\necho ran")), Some(0o755)),
        fetched("same", &web.url("/same/${index}"), None, Some(0o400)),
        fetched("d/changed", &web.url("/changed"), None, None),
        fetched("plain", &web.url("/plain"), None, None),
    ];
    let source = "./bin/tool; cat same d/changed; stat -c %a same bin/tool; echo x >>d/changed; echo y >plain";
    for shell in SHELLS {
        for worker in [false, true] {
            let scratch = web.job(&files, source, worker);
            let expected = (0, "ran\ndatadata400\n755\n".to_owned(), String::new());
            assert_eq!(scratch.run(shell), expected, "{shell}, worker: {worker}");
            assert_eq!(web.asked(), ["/tool", "/same/3", "/changed", "/plain"], "{shell}");
            let names = scratch.names();
            let ours = [".job.ad", ".machine.ad", "job.sh", "payload.conf", "script.sh"];
            let back: Vec<&str> = names.iter().map(String::as_str).filter(|name| !ours.contains(name)).collect();
            assert_eq!(back, ["htc_output.tar", "plain"], "{shell}, worker: {worker}");
            let archive = scratch.folder.path().join("htc_output.tar");
            let listed = std::process::Command::new("tar").arg("-tf").arg(archive).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&listed.stdout), "./\n./d/\n./d/changed\n", "{shell}, worker: {worker}");
            // The next run gets the file as the server has it.
            assert_eq!(scratch.run(shell).1, "ran\ndatadata400\n755\n", "{shell}, worker: {worker}");
            web.asked();
        }
    }
}

/// No item reaches another host, another query or another file than its own.
#[test]
fn item_is_percent_encoded_in_the_url() {
    let web = Web::new(|_, _| (200, "", b"x"));
    let files = [fetched("in", &web.url("/data/${item}.root?v=${item}&i=${index}"), None, None)];
    for shell in SHELLS {
        for (item, encoded) in [
            ("run3/a_b-1.2~X", "run3/a_b-1.2~X"),
            ("@other.example.org/x", "%40other.example.org/x"),
            ("a b?c#d&e=f%20+", "a%20b%3Fc%23d%26e%3Df%2520%2B"),
            ("\"\\\n$(touch x)`y`${index}é", "%22%5C%0A%24%28touch%20x%29%60y%60%24%7Bindex%7D%C3%A9"),
            ("", ""),
        ] {
            let scratch = web.job(&files, "cat in", true);
            assert_eq!(run_with_item(&scratch, shell, item), (0, "x".to_owned(), String::new()), "{shell}: {item:?}");
            assert_eq!(web.asked(), [format!("/data/{encoded}.root?v={encoded}&i=3")], "{shell}: {item:?}");
        }
    }
}

#[test]
fn file_that_cannot_be_had_ends_the_job_before_the_payload() {
    let web = Web::new(|path, _| match path {
        "/forbidden?sig=5ecret" => (403, "", b"no"),
        "/broken" => (500, "", b"no"),
        "/elsewhere" => (302, "Location: http://127.0.0.1:1/x\r\n", b""),
        "/local" => (302, "Location: file:///etc/passwd\r\n", b""),
        _ => (200, "", b"other"),
    });
    let right = sha256(b"right");
    for shell in SHELLS {
        for (path, sum, end, words, times) in [
            ("/forbidden?sig=5ecret", None, INPUT_REFUSED, "The requested URL returned error: 403", 1),
            ("/broken", None, NO_INPUT, "The requested URL returned error: 500", 4),
            ("/elsewhere", None, NO_INPUT, "cannot be fetched", 4),
            ("/local", None, NO_INPUT, "cannot be fetched", 4),
            ("/other", Some(right.as_str()), INPUT_REFUSED, "is another one", 1),
        ] {
            let scratch = web.job(&[fetched("in", &web.url(path), sum, None)], "echo ran", true);
            let (code, stdout, stderr) = scratch.run(shell);
            assert_eq!((code, stdout.as_str()), (end, ""), "{shell} {path}: {stderr}");
            assert!(
                stderr.contains(words) && stderr.contains("htc-operator: the file in "),
                "{shell} {path}: {stderr}"
            );
            assert!(!stderr.contains("5ecret"), "{shell}: {stderr}");
            assert_eq!(web.asked().len(), times, "{shell} {path}");
        }
        let mut untrusted = web.job(&[fetched("in", &web.url("/x"), None, None)], "echo ran", true);
        untrusted.environment.pop();
        assert_eq!(untrusted.run(shell).0, NO_INPUT, "{shell}");
        assert!(web.asked().is_empty(), "{shell}");
    }
}

#[test]
fn server_that_is_away_for_a_moment_is_asked_again() {
    let web = Web::new(|_, before| match before % 4 {
        0 => (429, "Retry-After: 1\r\n", b"wait"),
        1 => (503, "", b"wait"),
        2 => (408, "", b"wait"),
        _ => (200, "", b"there"),
    });
    for shell in SHELLS {
        let scratch = web.job(&[fetched("in", &web.url("/in"), None, None)], "cat in", true);
        assert_eq!(scratch.run(shell), (0, "there".to_owned(), String::new()), "{shell}");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let away = fetched("in", &format!("https://127.0.0.1:{port}/x"), None, None);
    let (code, _, stderr) = web.job(&[away], "cat in", true).run("dash");
    assert!(code == NO_INPUT && stderr.contains("127.0.0.1"), "{code} {stderr}");
}

#[test]
fn other_schemes_are_fetched_by_their_tools() {
    for shell in SHELLS {
        for (tool, url, words) in [
            (
                "xrdcp",
                "root://eos.example.org//eos/${item}?x=${index}",
                "--nopbar --force root://eos.example.org//eos/a/b.root?x=3 ",
            ),
            ("pelican", "osdf:///ospool/${item}", "object get osdf:///ospool/a/b.root "),
            ("pelican", "pelican://f.example.org/${item}", "object get pelican://f.example.org/a/b.root "),
        ] {
            let files = [fetched("in", url, None, None)];
            let mut scratch = on_worker("python:3.12", job(&files, "cat in"));
            let (code, _, stderr) = run_with_item(&scratch, shell, "a/b.root");
            assert_eq!(code, NO_INPUT, "{shell} {tool}");
            assert!(stderr.contains(&format!("the node has no {tool}")), "{stderr}");
            let mut again = on_worker("python:3.12", job(&files, "cat in"));
            let works = self::tool(tool, "echo noise; for last in \"$@\"; do :; done; printf '%s ' \"$@\" >\"$last\"");
            put_before(&mut again, &works);
            let (code, stdout, stderr) = run_with_item(&again, shell, "a/b.root");
            assert_eq!((code, stderr.as_str()), (0, ""), "{shell} {tool}");
            assert!(stdout.starts_with(words), "{shell}: {stdout}");
            let (fails, sleepless) =
                (self::tool(tool, "echo no such object >&2; exit 1"), self::tool("sleep", "exit 0"));
            put_before(&mut scratch, &fails);
            put_before(&mut scratch, &sleepless);
            let (code, _, stderr) = run_with_item(&scratch, shell, "a/b.root");
            assert!(code == NO_INPUT && stderr.contains(": no such object"), "{shell} {tool}: {code} {stderr}");
        }
        let root = [fetched("in", "root://eos.example.org//eos/${item}", None, None)];
        let (code, _, stderr) = run_with_item(&on_worker("python:3.12", job(&root, "true")), shell, "a?authz=x");
        assert!(
            code == INPUT_REFUSED && stderr.contains("the item of the job has a character"),
            "{shell}: {code} {stderr}"
        );
    }
}

/// xrdcp ends with 54 for all of these, and writes an empty line at last.
#[test]
fn what_xrootd_refuses_is_refused_on_all_nodes() {
    let files = [fetched("in", "root://eos.example.org//eos/a", None, None)];
    for shell in SHELLS {
        for (words, end) in [
            ("[3010] Unable to open /eos/a; permission denied (source)", INPUT_REFUSED),
            ("[3011] Unable to open /eos/a; no such file or directory (source)", INPUT_REFUSED),
            ("[3016] Unable to open /eos/a; is a directory (source)", INPUT_REFUSED),
            ("[3011] No servers are available to read the file. (source)", NO_INPUT),
            ("[3005] Unable to open /eos/a; input/output error (source)", NO_INPUT),
        ] {
            let mut scratch = on_worker("python:3.12", job(&files, "cat in"));
            let answer = format!("echo 'Run: [ERROR] Server responded with an error: {words}' >&2; echo >&2; exit 54");
            let (xrdcp, sleepless) = (tool("xrdcp", &answer), tool("sleep", "exit 0"));
            put_before(&mut scratch, &xrdcp);
            put_before(&mut scratch, &sleepless);
            let (code, _, stderr) = scratch.run(shell);
            assert!(code == end && stderr.trim_end().ends_with(words), "{shell}: {code} {stderr}");
        }
    }
}
