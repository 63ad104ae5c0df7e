//! Attacks on the ports of the front and of the leader, and with headers that only the API server may send.

use std::io::Read as _;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bed::direct::Direct;
use bed::front::available;
use bed::person::{Person, wait_printed};
use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, UNTIL_LET_GO, htcjob, is_true};
use testbed::{FRONT_PROXY, KubeOptions, Version, wait_for};

use crate::jobs_api::{API, json};

on_versions! {
    trixie:
        front_accepts_only_the_api_server,
        leader_accepts_only_fronts,
        forged_user_headers_are_ignored,
        open_archives_are_limited_per_user,
        silent_connections_keep_the_api_available;
    sid: paths_mean_the_same_to_front_and_api_server;
    long: archive_reader_that_reads_nothing_is_disconnected, followed_logs_are_limited_per_user;
}

/// What the API server would say of a cluster admin.
const ADMIN: [(&str, &str); 2] = [("X-Remote-User", "system:admin"), ("X-Remote-Group", "system:masters")];

/// Each answer begins within some milliseconds, if there is one.
const NO_ANSWER: Duration = Duration::from_secs(20);

/// Connections of somebody who says nothing: some times as many as actix-web's own ports keep while their handshakes last.
const SILENT: usize = 3000;
/// How long each of them is kept: those ports end handshakes after 3 s.
const RENEWED: Duration = Duration::from_millis(2500);
/// How long the API server waits for the answer to its check (kube-aggregator, `remote/remote_available_controller.go`).
const CHECK: Duration = Duration::from_secs(5);

/// No connection, or none on which anything is answered.
fn is_shut(caller: &Direct, method: &str, path: &str) -> Result<(), String> {
    match caller.status(NO_ANSWER, method, path, &ADMIN) {
        Err(_) => Ok(()),
        Ok(status) => Err(format!("{method} {path}: {status}")),
    }
}

/// What is read of the jobs of the HTCJob `fit`, and what who may edit can do about one of them.
fn all_requests(here: &Namespace<'_>) -> Vec<(&'static str, String)> {
    let jobs = here.procs();
    let read = ["", "?watch=true", "/fit-0", "/fit-0/log", "/fit-0/log?stream=err&follow=true", "/fit-0/files"];
    let read = read.map(|what| ("GET", format!("{jobs}{what}")));
    let story = ["fit", "fit/files"].map(|what| ("GET", format!("{API}/namespaces/{}/htcstories/{what}", here.name)));
    let edit = [("GET", "analysis"), ("POST", "hold"), ("POST", "release"), ("POST", "remove")];
    let edit = edit.map(|(method, what)| (method, format!("{jobs}/fit-0/{what}")));
    read.into_iter().chain(story).chain(edit).collect()
}

fn front_accepts_only_the_api_server(version: Version) {
    let bed = Bed::shared(version);
    let port = bed.front().port.number;
    let kube = &bed.kube;
    let api_server = Direct::new(port, Some(&kube.front_proxy_credentials(FRONT_PROXY).unwrap()));
    let here = bed.namespace();
    here.create(&htcjob("fit", UNTIL_LET_GO));
    here.wait_running("fit", 1);
    let everywhere = [format!("{API}/htcprocs"), API.to_owned(), "/apis".to_owned(), "/openapi/v3".to_owned()];
    for path in &everywhere {
        assert_eq!(api_server.get(path, &ADMIN).map(|(status, _)| status), Ok(200), "{path}");
    }
    let everything: Vec<_> = everywhere.map(|path| ("GET", path)).into_iter().chain(all_requests(&here)).collect();
    let another_name = kube.front_proxy_credentials("somebody").unwrap();
    // The authority of users signs any name.
    let another_authority = kube.credentials(FRONT_PROXY, None).unwrap();
    let an_admin = kube.credentials("system:admin", Some("system:masters")).unwrap();
    let shown = [None, Some(&another_name), Some(&another_authority), Some(&an_admin)];
    for (number, shown) in shown.into_iter().enumerate() {
        let caller = Direct::new(port, shown);
        for (method, path) in &everything {
            is_shut(&caller, method, path).unwrap_or_else(|answer| panic!("caller {number} has an answer: {answer}"));
        }
    }
    // It speaks for somebody, or it hears nothing of jobs.
    let of_jobs = [("GET", format!("{API}/htcprocs"))].into_iter().chain(all_requests(&here));
    for (method, path) in of_jobs {
        let (status, body) = api_server.ask(method, &path, &[]).unwrap();
        assert_eq!((status, &json(&body)["reason"]), (403, &"Forbidden".into()), "{method} {path}: {body}");
    }
    assert!(is_true(&here.let_go("fit"), "Complete"), "nobody has held or removed it");
}

fn leader_accepts_only_fronts(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let kube = &bed.kube;
    let entry = |secret: &str, key: &str| bed.own_secret(secret, key);
    let secret = "htc-operator-jobs-api-front";
    let front = testbed::Credentials {
        authority: entry(secret, "ca.crt"),
        certificate: entry(secret, "tls.crt"),
        key: entry(secret, "tls.key"),
    };
    let jobs = here.procs();
    let (status, body) = Direct::new(bed.leader_port(), Some(&front)).get(&jobs, &[]).unwrap();
    assert_eq!(status, 200, "{body}");
    let shown = [
        None,
        Some(kube.front_proxy_credentials(FRONT_PROXY).unwrap()),
        Some(kube.front_proxy_credentials("htc-operator-jobs-api-front").unwrap()),
        Some(kube.credentials("htc-operator-jobs-api-front", Some("system:masters")).unwrap()),
    ];
    for (number, shown) in shown.iter().enumerate() {
        let caller = Direct::new(bed.leader_port(), shown.as_ref());
        for (method, path) in all_requests(&here) {
            is_shut(&caller, method, &path).unwrap_or_else(|answer| panic!("caller {number} has an answer: {answer}"));
        }
    }
    // And a front's certificate opens no front.
    is_shut(&Direct::new(bed.front().port.number, Some(&front)), "GET", &jobs).unwrap();
}

/// The API server removes such headers of a client, so that each answer is for the authenticated user.
fn forged_user_headers_are_ignored(version: Version) {
    let bed = Bed::shared(version);
    let port = bed.front().port.number;
    let (here, there) = (bed.namespace(), bed.namespace());
    for namespace in [&here, &there] {
        namespace.create(&htcjob("fit", UNTIL_LET_GO));
    }
    for namespace in [&here, &there] {
        namespace.wait_running("fit", 1);
    }
    let ann = here.person("ann", &["htcprocs-view"]);
    ann.comes_to_see(&["get", "htcprocs"]);
    let certificate = bed.kube.credentials(&ann.name, None).unwrap();
    let through = Direct::new(bed.kube.port(), Some(&certificate));
    let forged = [ADMIN[0], ADMIN[1], ("X-Remote-Extra-Scopes", "all"), ("X-Remote-Uid", "0")];
    let (status, body) = through.get(&here.procs(), &forged).unwrap();
    assert_eq!((status, json(&body)["items"].as_array().map(Vec::len)), (200, Some(1)), "{body}");
    for path in [there.procs(), format!("{API}/htcprocs")] {
        let (status, body) = through.get(&path, &forged).unwrap();
        assert!(status == 403 && body.contains(&ann.name), "{path}: {status} {body}");
    }
    let anonymous = Direct::new(bed.kube.port(), None);
    for (method, path) in all_requests(&there) {
        let (status, body) = through.ask(method, &path, &forged).unwrap();
        assert!(status == 403 && body.contains(&ann.name), "{method} {path}: {status} {body}");
    }
    for (method, path) in all_requests(&here) {
        let (status, body) = anonymous.ask(method, &path, &forged).unwrap();
        assert!([401, 403].contains(&status), "anonymous, {method} {path}: {status} {body}");
    }

    // The front asks again, whoever has let a request through.
    let api_server = Direct::new(port, Some(&bed.kube.front_proxy_credentials(FRONT_PROXY).unwrap()));
    let as_ann = [("X-Remote-User", ann.name.as_str()), ("X-Remote-Group", "system:authenticated")];
    let as_nobody = [("X-Remote-User", "system:anonymous"), ("X-Remote-Group", "system:unauthenticated")];
    let refused = |method: &str, path: &str, user: &[(&str, &str)]| {
        let (status, body) = api_server.ask(method, path, user).unwrap();
        assert!(status == 403 && body.contains("is forbidden: User"), "{method} {path}: {status} {body}");
    };
    let jobs = here.procs();
    let stories = format!("{API}/namespaces/{}/htcstories/fit", here.name);
    for path in [jobs.clone(), format!("{jobs}/fit-0"), format!("{jobs}/fit-0/log"), stories] {
        assert_eq!(api_server.get(&path, &as_ann).map(|(status, _)| status), Ok(200), "{path}");
    }
    for (method, path) in all_requests(&there) {
        refused(method, &path, &as_ann);
    }
    for path in [format!("{API}/htcprocs"), format!("{API}/htcprocs?fieldSelector=metadata.namespace%3D{}", here.name)]
    {
        refused("GET", &path, &as_ann);
    }
    for (method, path) in all_requests(&here) {
        // Who may look may not act, here as little as there.
        if method == "POST" {
            refused(method, &path, &as_ann);
        }
        refused(method, &path, &as_nobody);
    }
    for namespace in [&here, &there] {
        assert!(is_true(&namespace.let_go("fit"), "Complete"), "nobody has held or removed it");
    }
}

/// A path that the two parsed differently could be authorized for one object and served for another.
fn paths_mean_the_same_to_front_and_api_server(version: Version) {
    let bed = Bed::shared(version);
    let port = bed.front().port.number;
    let (here, there) = (bed.namespace(), bed.namespace());
    for namespace in [&here, &there] {
        namespace.create(&htcjob("fit", "true"));
        namespace.wait_ended("fit");
    }
    let ann = here.person("ann", &["htcprocs-view"]);
    ann.comes_to_see(&["get", "htcprocs"]);
    let (jobs, theirs) = (here.procs(), there.procs());
    let tricks = [
        format!("{jobs}/../../../namespaces/{}/htcprocs", there.name),
        format!("{jobs}/..%2f..%2f{}%2fhtcprocs", there.name),
        format!("{jobs}/%2e%2e/%2e%2e/{}/htcprocs/fit-0", there.name),
        format!("{API}/namespaces/{}/../{}/htcprocs", here.name, there.name),
        format!("{API}/namespaces/{}/htcprocs/fit-0/../../../{}/htcprocs/fit-0", here.name, there.name),
        format!("{API}//namespaces/{}/htcprocs", there.name),
        format!("{API}/namespaces//{}/htcprocs", there.name),
        format!("{API}/./htcprocs"),
        format!("{API}/watch/namespaces/{}/htcprocs", there.name),
        format!("{API}/proxy/namespaces/{}/htcprocs/fit-0", there.name),
        format!("{jobs}/fit-0/log/x"),
        format!("{jobs}/fit-0/"),
        format!("{jobs}/fit%2d0/x"),
        format!("{jobs};x={}", there.name),
        format!("{theirs}#"),
    ];
    // As ann through the API server; and as the API server, which has allowed a cluster admin whatever it is.
    let certificate = bed.kube.credentials(&ann.name, None).unwrap();
    let through = Direct::new(bed.kube.port(), Some(&certificate));
    let api_server = Direct::new(port, Some(&bed.kube.front_proxy_credentials(FRONT_PROXY).unwrap()));
    for trick in &tricks {
        if let Ok((status, body)) = through.get(trick, &[]) {
            assert!(status >= 300 && !body.contains(r#""kind":"HTCProc"#), "{trick}: {status} {body}");
        }
    }
    for trick in &tricks[..tricks.len() - 1] {
        let (status, body) = api_server.get(trick, &ADMIN).unwrap();
        assert_eq!((status, json(&body)["reason"].as_str()), (404, Some("NotFound")), "{trick}: {body}");
    }
    // What an API server has not decided on is not done.
    for query in
        ["?limit=1&limit=2", "?fieldSelector=metadata.name%3Dfit-0&fieldSelector=spec.index%3D0", "?watch=0&watch=1"]
    {
        let (status, body) = api_server.get(&format!("{jobs}{query}"), &ADMIN).unwrap();
        assert_eq!(status, 400, "{query}: {body}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        for path in [&jobs, &format!("{jobs}/fit-0")] {
            let (status, body) = api_server.ask(method, path, &ADMIN).unwrap();
            assert_eq!((status, json(&body)["reason"].as_str()), (405, Some("MethodNotAllowed")), "{method}: {body}");
        }
    }
}

/// A followed log lasts as long as its job: one user cannot take all of them.
fn followed_logs_are_limited_per_user(version: Version) {
    /// As many as one user may.
    const EACH: usize = 8;
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    here.create(&htcjob("talks", &format!("echo first; {UNTIL_LET_GO}")));
    here.wait_running("talks", 1);
    let [ann, bob] = ["ann", "bob"].map(|name| here.person(name, &["htcprocs-view"]));
    let log = format!("{}/talks-0/log", here.procs());
    let follow = format!("{log}?follow=true");
    ann.comes_to_see(&["get", "htcprocs"]);
    let mut followed: Vec<_> = (0..EACH).map(|_| ann.begins(&["get", "--raw", &follow])).collect();
    for one in &followed {
        wait_printed(one, "what the job wrote", |text| text.contains("first"));
    }
    let read = |name: &str| {
        let certificate = bed.kube.credentials(name, None).unwrap();
        Direct::new(bed.kube.port(), Some(&certificate)).get(&log, &[]).unwrap()
    };
    let (status, body) = read(&ann.name);
    assert_eq!((status, json(&body)["reason"].as_str()), (429, Some("TooManyRequests")), "{body}");
    assert!(body.contains("as many as may be"), "{body}");
    bob.comes_to_see(&["get", "htcprocs"]);
    assert_eq!(read(&bob.name), (200, "first\n".to_owned()));
    // Whoever leaves gives his turn back, also while the job writes nothing that could not be sent to him.
    drop(followed.pop());
    assert_eq!(read(&ann.name), (200, "first\n".to_owned()));
}

/// More than there is room for on the way to who does not read.
const SIZE: usize = 100_000_000;

/// A namespace with an HTCJob `large`, whose output is here.
fn with_large_output(bed: &Bed) -> Namespace<'_> {
    bed.front();
    let here = bed.namespace();
    here.create(&htcjob("large", &format!("head -c {SIZE} /dev/zero >data")));
    here.wait_ended("large");
    here.wait_output("large");
    here
}

/// kubectl that has read the first byte of something large, and no more.
struct Reader(Child);

impl Reader {
    fn begin(person: &Person<'_>, path: &str) -> Self {
        let mut child = person.command(&["get", "--raw", path]).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A slow reader keeps an archive open for long: one user cannot take all of them.
fn open_archives_are_limited_per_user(version: Version) {
    let bed = Bed::shared(version);
    let here = with_large_output(bed);
    let [ann, bob] = ["ann", "bob"].map(|name| here.person(name, &["htcprocs-view"]));
    let files = format!("{}/large-0/files", here.procs());
    for person in [&ann, &bob] {
        person.comes_to_see(&["get", "htcprocs"]);
    }
    // As many as one user may; that of all jobs counts as one of one job.
    let of_all = format!("{API}/namespaces/{}/htcstories/large/files", here.name);
    let mut readers = [&files, &of_all].map(|path| Reader::begin(&ann, path)).into_iter();
    let certificate = bed.kube.credentials(&ann.name, None).unwrap();
    let (status, body) = Direct::new(bed.kube.port(), Some(&certificate)).get(&files, &[]).unwrap();
    assert_eq!(status, 429, "{} bytes", body.len());
    assert!(body.contains("as many as may be"), "{body}");
    drop(Reader::begin(&bob, &files));
    drop(readers.next());
    drop(Reader::begin(&ann, &files));
}

/// The API server ends an answer after a minute, and requests that wait for it end with it.
fn archive_reader_that_reads_nothing_is_disconnected(version: Version) {
    let bed = Bed::shared(version);
    let here = with_large_output(bed);
    let ann = here.person("ann", &["htcprocs-view"]);
    ann.comes_to_see(&["get", "htcprocs"]);
    let of_all = format!("{API}/namespaces/{}/htcstories/large/files", here.name);
    let certificate = bed.kube.credentials(&ann.name, None).unwrap();
    let ask = |query: &str| {
        Direct::new(bed.kube.port(), Some(&certificate)).get(&format!("{of_all}?index={query}"), &[]).unwrap()
    };
    let _readers = [(); 2].map(|()| Reader::begin(&ann, &of_all));
    assert_eq!(ask("1").0, 429);
    // What is refused takes no turn: one past all jobs is the end alone.
    for wrong in ["-1", "4294967296", "0x1", "1&index=2"] {
        assert_eq!(ask(wrong).0, 400, "{wrong}");
    }
    // Each of these waits for 20 s.
    wait_for("a turn of those who read nothing", Duration::from_secs(120), || match ask("4294967295") {
        (200, body) if body.len() == 1024 => Ok(()),
        (status, body) => Err(format!("{status}: {} bytes", body.len())),
    })
    .unwrap();
}

/// Opens connections from so many addresses, of which nothing is heard, and opens each again until `stop`.
fn keep_silent_connections(port: u16, addresses: u8, stop: &AtomicBool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let keep = |number: usize| async move {
        let last = u8::try_from(number % usize::from(addresses)).unwrap() + 2;
        while !stop.load(Ordering::Relaxed) {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(([127, 0, 7, last], 0).into()).unwrap();
            let held = async {
                let _connection = socket.connect(([127, 0, 0, 1], port).into()).await;
                std::future::pending::<()>().await;
            };
            let _ended = tokio::time::timeout(RENEWED, held).await;
        }
    };
    runtime.block_on(futures::future::join_all((0..SILENT).map(keep)));
}

fn silent_connections_keep_the_api_available(version: Version) {
    let bed = Bed::with_jobs_api_alone(version, &KubeOptions::default(), LONG_SUBMISSIONS);
    bed.start_operator();
    let front = bed.front();
    let port = front.port.number;
    let credentials = bed.kube.front_proxy_credentials(FRONT_PROXY).unwrap();
    // A connection of its own each time.
    let check = || Direct::new(port, Some(&credentials)).status(CHECK, "GET", API, &ADMIN);
    for addresses in [1, 50] {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| keep_silent_connections(port, addresses, &stop));
            // Whatever happens, the thread ends.
            let _stop = StopOnDrop(&stop);
            for number in 0..10 {
                let answer = check();
                assert!(matches!(answer, Ok(200)), "{addresses} addresses, connection {number}: {answer:?}");
                assert_eq!(available(&bed)["status"], "True", "{:#}", available(&bed));
            }
            // The API server has no connection left, and needs new ones.
            front.stop();
            front.start(&bed);
            wait_for("the API to be available", PATIENCE, || {
                let condition = available(&bed);
                let answer = check();
                if condition["status"] == "True" && matches!(answer, Ok(200)) {
                    return Ok(());
                }
                Err(format!("{condition:#}, {answer:?}"))
            })
            .unwrap();
            bed.wait_known();
        });
    }
}

/// Ends the thread that looks there.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
