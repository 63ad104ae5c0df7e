//! Reports of `job.sh` to the operator, which do not change the job.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use htc_submit::payload::Callback;

use super::{SHELLS, Scratch, ended, image};

const TOKEN: &str = "5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d5eaf00d0";
/// Longest time that a report may take, by the words of `job.sh`; and what a busy machine adds.
pub const BOUND: Duration = Duration::from_secs(23 + 15);

/// One request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub kind: String,
    id: String,
    head: String,
    body: String,
}

/// A listener that answers each request with the next of its statuses, and with the last one for ever; 0: never.
pub struct Ear {
    url: String,
    heard: Arc<Mutex<Vec<Request>>>,
}

impl Ear {
    fn new(statuses: &'static [u16]) -> Self {
        Self::over("http", statuses, |stream| stream)
    }

    /// `wrap` makes of each connection what requests are read from.
    pub fn over<S: Read + Write + Send>(
        scheme: &str,
        statuses: &'static [u16],
        wrap: impl Fn(TcpStream) -> S + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}/cloudevents", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&heard);
        // Ends with the test program.
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let mut stream = wrap(stream);
                let Some(request) = read(&mut stream) else { continue };
                let mut all = all.lock().unwrap();
                let status = statuses[all.len().min(statuses.len() - 1)];
                all.push(request);
                if status != 0 {
                    let _ = stream.write_all(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").as_bytes());
                }
                kept.push(stream);
            }
        });
        Self { url, heard }
    }

    /// A job that reports to it.
    pub fn job(&self, command: &str, source: &str) -> Scratch {
        let callback = Callback { url: &self.url, source: "cern.ch", uid: "0b5e-01", token: TOKEN };
        Scratch::reporting(image().to_str().unwrap(), command, source, Some(callback))
    }

    pub fn heard(&self) -> Vec<Request> {
        self.heard.lock().unwrap().clone()
    }

    /// Exit codes that were reported.
    pub fn ends(&self) -> Vec<String> {
        let ends = self.heard().into_iter().filter(|request| request.kind == "htcjob.cloudevent");
        ends.map(|end| {
            let data: serde_json::Value = serde_json::from_str(&end.body).unwrap();
            data["retcode"].as_str().unwrap().to_owned()
        })
        .collect()
    }
}

fn read(stream: &mut impl Read) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut request = Request::default();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let text = line.trim_end();
        if text.is_empty() {
            break;
        }
        match text.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().unwrap(),
            Some(("ce-type", value)) => value.clone_into(&mut request.kind),
            Some(("ce-id", value)) => value.clone_into(&mut request.id),
            _ => {}
        }
        request.head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).unwrap();
    Some(request)
}

#[test]
fn start_and_end_are_reported_as_cloudevents() {
    for shell in SHELLS {
        let ear = Ear::new(&[204]);
        let source = "env; ls -A; until [ -e go ]; do sleep 0.05; done; touch mine; exit 7";
        let scratch = ear.job("bash", source);
        let job = scratch.start(shell, &["3"]);
        let began = Instant::now();
        while ear.heard().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(30), "{shell}: no start is reported");
            std::thread::sleep(Duration::from_millis(10));
        }
        scratch.write(".htc_work/run/go", "");
        let (code, stdout, stderr) = ended(job.wait_with_output().unwrap());
        assert_eq!((code, stderr.as_str()), (7, ""), "{shell}");
        assert!(!stdout.contains(TOKEN) && !stdout.contains("callback.token"), "{shell}: {stdout}");
        let heard = ear.heard();
        let kinds: Vec<&str> = heard.iter().map(|request| request.kind.as_str()).collect();
        assert_eq!(kinds, ["htcjob.cloudevent.started", "htcjob.cloudevent"], "{shell}");
        assert_eq!(heard[0].body, r#"{"name":"my-job","jobid":"884426.7"}"#, "{shell}");
        assert_eq!(heard[1].body, r#"{"name":"my-job","jobid":"884426.7","retcode":"7"}"#, "{shell}");
        assert_ne!(heard[0].id, heard[1].id);
        for line in [
            "POST /cloudevents HTTP/1.1".to_owned(),
            format!("Authorization: Bearer {TOKEN}"),
            "Content-Type: application/json".to_owned(),
            "ce-specversion: 1.0".to_owned(),
            "ce-source: cern.ch".to_owned(),
            "ce-subject: 0b5e-01".to_owned(),
        ] {
            assert!(heard.iter().all(|request| request.head.lines().any(|found| found == line)), "{line}\n{heard:?}");
        }
    }
}

/// Those with a meaning of their own, to shells or to job.sh, and some that have none.
#[test]
fn exit_codes_are_reported_and_unchanged() {
    let plain = [0, 1, 2, 3, 42, 64, 100, 137, 143];
    assert_reported(plain.into_iter().chain(124..=129).chain(239..=255));
}

#[test]
#[ignore = "make test-long: three minutes"]
fn every_exit_code_is_reported_and_unchanged() {
    assert_reported(0..=255);
}

fn assert_reported(codes: impl IntoIterator<Item = usize>) {
    for code in codes {
        let shell = SHELLS[code % SHELLS.len()];
        let ear = Ear::new(&[204]);
        let (ended, _, stderr) = ear.job("bash", &format!("exit {code}")).run(shell);
        assert_eq!((ended.to_string(), stderr.as_str()), (code.to_string(), ""), "{shell}");
        assert_eq!(ear.ends(), [code.to_string()], "{shell}");
    }
}

#[test]
fn killed_payload_reports_its_end_and_stopped_job_does_not() {
    for shell in SHELLS {
        for (signal, code) in [("KILL", "137"), ("TERM", "143")] {
            let ear = Ear::new(&[204]);
            assert_eq!(
                ear.job("bash", &format!("kill -{signal} $$; sleep 5")).run(shell).0.to_string(),
                code,
                "{shell}"
            );
            assert_eq!(ear.ends(), [code], "{shell}");
        }
        // As condor_rm and condor_hold do it: HTCondor knows what it means, the job does not.
        let ear = Ear::new(&[204]);
        let scratch = ear.job("bash", "trap 'exit 0' TERM; touch up; while :; do sleep 0.05; done");
        let job = scratch.start(shell, &["3"]);
        let began = Instant::now();
        while !scratch.folder.path().join(".htc_work/run/up").exists() {
            assert!(began.elapsed() < Duration::from_secs(30), "{shell}: the payload did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(std::process::Command::new("kill").arg(job.id().to_string()).status().unwrap().success());
        assert_eq!(ended(job.wait_with_output().unwrap()).0, 0, "{shell}");
        assert_eq!(ear.ends(), Vec::<String>::new(), "{shell}");
    }
}

#[test]
fn failures_before_the_payload_are_no_ends_of_it() {
    let ear = Ear::new(&[204]);
    assert_eq!(ear.job("nosuch", "").run("dash").0, -44);
    assert_eq!(ear.ends(), Vec::<String>::new());
    let ear = Ear::new(&[204]);
    let mut scratch = ear.job("bash", "");
    scratch.path = "/usr/bin:/bin".to_owned();
    assert_eq!((scratch.run("dash").0, ear.heard().len()), (-42, 0));
    // A job that came too late is no job, and says nothing.
    let ear = Ear::new(&[204]);
    let scratch = ear.job("bash", "");
    scratch.write(".job.ad", "ClusterId = 1\nProcId = 0\nStageInFinish = 1001\nHTCNotAfter = 1000\n");
    assert_eq!((scratch.run("dash").0, ear.heard().len()), (-41, 0));
}

#[test]
fn report_is_resent_after_503_and_not_after_404() {
    for shell in SHELLS {
        let ear = Ear::new(&[204, 503, 503, 204]);
        assert_eq!(ear.job("bash", "sleep 3; exit 9").run(shell).0, 9, "{shell}");
        assert_eq!(ear.ends(), ["9", "9", "9"], "{shell}");
        let heard = ear.heard();
        assert!(heard[1..].iter().all(|request| request.id == heard[1].id), "{shell}: {heard:?}");
        let ear = Ear::new(&[204, 404]);
        assert_eq!(ear.job("bash", "sleep 3; exit 9").run(shell).0, 9, "{shell}");
        assert_eq!(ear.ends(), ["9"], "{shell}");
    }
}

#[test]
fn unavailable_receiver_does_not_change_the_end_of_a_job() {
    // A node without curl.
    let programs = tempfile::tempdir().unwrap();
    for folder in ["/usr/bin", "/bin"] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != "curl" {
                let _ = std::os::unix::fs::symlink(entry.path(), programs.path().join(entry.file_name()));
            }
        }
    }
    std::fs::set_permissions(programs.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let apptainer = |path: &Path| format!("{}:{}", super::condor_root().join("usr/bin").display(), path.display());
    for shell in SHELLS {
        let check = |what: &str, scratch: &Scratch, bound: Duration| {
            let began = Instant::now();
            let (code, stdout, stderr) = scratch.run(shell);
            assert_eq!((code, stdout.as_str(), stderr.as_str()), (5, "x\n", ""), "{shell}: {what}");
            assert!(began.elapsed() < bound, "{shell}: {what}: {:?}", began.elapsed());
        };
        let source = "echo x; exit 5";
        let ear = Ear::new(&[204]);
        let mut scratch = ear.job("bash", source);
        scratch.path = apptainer(programs.path());
        check("no curl", &scratch, BOUND);
        assert!(ear.heard().is_empty());
        let ear = Ear::new(&[204]);
        let scratch = ear.job("bash", source);
        std::fs::remove_file(scratch.folder.path().join("callback.token")).unwrap();
        check("no token", &scratch, BOUND);
        assert!(ear.heard().is_empty());
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let nobody = Ear { url: format!("http://{free}/cloudevents"), heard: Arc::default() };
        check("nobody listens", &nobody.job("bash", source), BOUND);
        check("nobody answers", &Ear::new(&[0]).job("bash", source), BOUND);
    }
}
