//! Real jobs on real pools: what they report moves their HTCJobs on long before HTCondor would be asked.

use std::time::{Duration, Instant};

use bed::carrier::{Carrier, Lot, Report};
use bed::desk::KEY;
use bed::gates::Gates;
use bed::http::{self, Answer};
use bed::{Bed, Namespace, UNTIL_LET_GO, htcjob, ids, is_true, of};
use htc_submit::job_token::TokenKeys;
use rstest::rstest;
use serde_json::{Value, json};
use testbed::Version::{self, Sid, Trixie};
use testbed::{Account, PoolOptions, Port, Scratch};

/// HTCondor is asked by itself so seldom that a test would wait for it.
const SELDOM: Duration = Duration::from_secs(600);

/// A bed whose jobs report.
pub struct Site {
    pub bed: Bed,
    pub port: Port,
    pub monitor: Port,
    carrier: Option<Carrier>,
    _scratch: Scratch,
}

impl Site {
    pub fn new(version: Version, further: &[&str]) -> Self {
        Self::with(version, &PoolOptions::default(), further)
    }

    /// Whose jobs' reports come through a carrier.
    pub fn through(version: Version, choose: impl FnMut(&Report) -> Lot + Send + 'static, further: &[&str]) -> Self {
        let carrier = |port: &Port| Some(Carrier::new(port.number, choose));
        Self::start(version, &PoolOptions::default(), further, carrier)
    }

    /// On a pool of its own kind.
    pub fn with(version: Version, options: &PoolOptions, further: &[&str]) -> Self {
        Self::start(version, options, further, |_| None)
    }

    fn start(
        version: Version,
        options: &PoolOptions,
        further: &[&str],
        carrier: impl FnOnce(&Port) -> Option<Carrier>,
    ) -> Self {
        let scratch = Scratch::new().unwrap();
        let file = scratch.path().join("keys");
        Account::unprivileged().write(&file, KEY, 0o600).unwrap();
        let (port, monitor) = (Port::reserve().unwrap(), Port::reserve().unwrap());
        let carrier = carrier(&port);
        let secure = further.iter().any(|argument| argument.starts_with("--callback-tls-cert="));
        let scheme = if secure { "https" } else { "http" };
        let straight = format!("--callback-url={scheme}://127.0.0.1:{}/cloudevents", port.number);
        let arguments = [
            carrier.as_ref().map_or(straight, Carrier::argument),
            format!("--callback-listen=127.0.0.1:{}", port.number),
            format!("--callback-key-file={}", file.display()),
            format!("--metrics-bind-address=127.0.0.1:{}", monitor.number),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(further.iter().copied()).collect();
        let bed = Bed::new(version, options, &arguments);
        Self { bed, port, monitor, carrier, _scratch: scratch }
    }

    pub fn carrier(&self) -> &Carrier {
        self.carrier.as_ref().expect("reports come through a carrier")
    }

    pub fn address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.port.number).into()
    }

    pub fn monitor_address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.monitor.number).into()
    }

    /// Sends what a job would, with the token of `owner` for the job of `uid`.
    pub fn send(&self, owner: &str, uid: &str, kind: &str, event: &str, data: &Value) -> std::io::Result<Answer> {
        let token = TokenKeys::parse(KEY).unwrap().token(&owner.into());
        let headers = http::headers(&[
            ("Authorization", &format!("Bearer {token}")),
            ("Content-Type", "application/json"),
            ("ce-specversion", "1.0"),
            ("ce-type", kind),
            ("ce-source", "cern.ch"),
            ("ce-subject", uid),
            ("ce-id", event),
        ]);
        http::post(self.address(), &headers, data.to_string().as_bytes())
    }

    pub fn send_end(&self, uid: &str, event: &str, name: &str, id: &str, code: &str) -> u16 {
        let data = json!({ "name": name, "jobid": id, "retcode": code });
        self.send(uid, uid, "htcjob.cloudevent", event, &data).unwrap().status
    }

    /// The same, until the operator has looked at what was reported. It looks after each report that is stored; a look that had begun
    /// before the first one is over when that after the second one is.
    pub fn send_late_end(&self, uid: &str, event: &str, name: &str, id: &str, code: &str) {
        for event in [event.to_owned(), format!("{event} once more")] {
            let before = self.reconciles();
            assert_eq!(self.send_end(uid, &event, name, id, code), 204);
            testbed::wait_for("a look at what was reported", bed::PATIENCE, || self.reconciles() > before).unwrap();
        }
    }

    /// How many the operator has made.
    fn reconciles(&self) -> u64 {
        let answer = http::get(self.monitor_address(), "/metrics").unwrap();
        let count = answer.body.lines().find_map(|line| line.strip_prefix("htc_reconciles_total "));
        count.and_then(|count| count.parse().ok()).expect("a count of reconciles")
    }

    /// Whether the metrics have this line; not while the operator starts.
    pub fn metric(&self, line: &str) -> bool {
        let answer = http::get(self.monitor_address(), "/metrics");
        answer.map_or(String::new(), |answer| answer.body).lines().any(|found| found == line)
    }
}

pub fn counts(object: &Value) -> [i64; 3] {
    ["active", "succeeded", "failed"].map(|count| object["status"][count].as_i64().unwrap_or(-1))
}

/// What is stored of its jobs' newest reports, oldest first: the exit code, -1 for a start.
pub fn stored(bed: &Bed, uid: &str) -> Vec<String> {
    let query = format!("select coalesce(retcode, -1) from callbacks where uid = '{uid}' order by at");
    bed.ledger(&query).unwrap_or_default().concat()
}

/// How many starts and how many ends its jobs have reported, with those of which only the ids are kept.
fn reported(bed: &Bed, uid: &str) -> Vec<String> {
    let query = format!(
        "select iif(retcode is null, 'starts ', 'ends ') || sum(1 + coalesce(json_array_length(earlier), 0)) from callbacks
         where uid = '{uid}' group by retcode is null order by retcode is null desc"
    );
    bed.ledger(&query).unwrap_or_default().concat()
}

/// Waits until HTCondor has not been asked for a while.
fn wait_quiet(gates: &Gates) {
    let last = std::cell::Cell::new((0, Instant::now()));
    testbed::wait_for("the operator to ask HTCondor no more", bed::PATIENCE, || {
        let calls = gates.calls("condor_q");
        if calls != last.get().0 {
            last.set((calls, Instant::now()));
        }
        last.get().1.elapsed() > Duration::from_secs(5)
    })
    .unwrap();
}

fn submitted<'a>(site: &'a Site, name: &str, source: &str) -> (Namespace<'a>, String) {
    let here = site.bed.namespace();
    let uid = here.create(&htcjob(name, source));
    (here, uid)
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn job_reports_its_start_and_end(#[case] version: Version) {
    let seldom = format!("--poll-interval={}s", SELDOM.as_secs());
    let gates = Gates::new(version);
    gates.tell_no_changes();
    let site = Site::new(version, &[&seldom, &gates.argument()]);
    site.bed.start_operator();
    for (code, condition, expected) in [(0, "Complete", [0, 1, 0]), (7, "Failed", [0, 0, 1])] {
        let name = format!("exit-{code}");
        let (here, uid) = submitted(&site, &name, &format!("{UNTIL_LET_GO}\nexit {code}"));
        here.wait_phase(&name, "Running");
        // From here on the operator would not ask by itself.
        wait_quiet(&gates);
        let asked = gates.calls("condor_q");
        site.bed.open_gate(&uid);
        let began = Instant::now();
        here.wait(&name, "an end that counts", |object| counts(object) == expected);
        let counted = began.elapsed();
        let ended = here.wait(&name, condition, |object| is_true(object, condition));
        let (took, asked) = (began.elapsed(), gates.calls("condor_q") - asked);
        println!("{version}: counted after {counted:.2?}, {condition} after {took:.2?}, {asked} condor_q");
        assert!(took < SELDOM / 4, "HTCondor alone would have said so at {SELDOM:?}");
        assert_eq!(counts(&ended), expected);
        let rows = || stored(&site.bed, &uid) == ["-1".to_owned(), code.to_string()];
        testbed::wait_for("both reports in the ledger", bed::PATIENCE, rows).unwrap();
        // Nobody can read its token.
        let token = TokenKeys::parse(KEY).unwrap().token(&uid.as_str().into());
        let ads = site.bed.pool.tool("condor_history", &["-long", "-constraint", &of(&uid)]);
        let queue = site.bed.pool.tool("condor_q", &["-long", "-allusers"]).unwrap();
        assert!(!(ads.unwrap() + &queue).contains(&token));
        let output = here.output(&name, 0);
        let files: Vec<_> = std::fs::read_dir(output).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(files.iter().all(|file| file != "callback.token"), "{files:?}");
        assert!(!here.events(&name).iter().any(|(reason, _)| reason == "CallbackRefuted"));
    }
    assert!(site.metric("htc_callbacks_total{outcome=\"Stored\"} 4"));
    let ready = http::get(site.monitor_address(), "/readyz").unwrap();
    assert_eq!(ready.status, 200, "{}", ready.body);
    assert_eq!(ready.body.matches(": ok\n").count(), 6, "{}", ready.body);
}

/// Repeated, early, late and forged reports: the final status is that of HTCondor.
#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn forged_and_repeated_reports_do_not_change_the_outcome(#[case] version: Version) {
    let site = Site::new(version, &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let uid = here.create(&htcjob("one", &format!("{UNTIL_LET_GO}\nexit 3")));
    let other = here.create(&htcjob("other", UNTIL_LET_GO));
    for name in ["one", "other"] {
        here.wait_phase(name, "Running");
    }
    let [id, others] = ["one", "other"].map(|name| ids(&here.get(name)).remove(0));
    let data = |id: &str, code: &str| json!({ "name": "one", "jobid": id, "retcode": code });
    let ends = "htcjob.cloudevent";

    // Forged: another HTCJob's token, none that is right, its own token for another's job, and a job of nobody.
    assert_eq!(site.send(&other, &uid, ends, "f1", &data(&id, "0")).unwrap().status, 403);
    assert_eq!(site.send("nobody", &uid, ends, "f2", &data(&id, "0")).unwrap().status, 403);
    assert_eq!(site.send(&uid, &uid, ends, "f3", &data(&others, "0")).unwrap().status, 404);
    assert_eq!(site.send(&uid, &uid, ends, "f4", &data("999999.0", "0")).unwrap().status, 404);

    // Its own job says too early that it has ended: it counts, completes nothing, and HTCondor has the last word.
    assert_eq!(site.send_end(&uid, "early", "one", &id, "0"), 204);
    here.wait("one", "an end that counts", |object| counts(object) == [0, 1, 0]);
    let before = here.get("one");
    assert_eq!((before["status"]["phase"].as_str(), is_true(&before, "Complete")), (Some("Running"), false));
    assert_eq!(site.send_end(&uid, "early", "one", &id, "0"), 204, "twice is once");
    let ended = here.let_go("one");
    assert!(is_true(&ended, "Failed"), "{ended:#}");
    assert_eq!(counts(&ended), [0, 0, 1]);

    // Late: after its completion, and after its deletion.
    site.send_late_end(&uid, "late", "one", &id, "0");
    let late = here.get("one");
    assert_eq!((counts(&late), is_true(&late, "Failed")), ([0, 0, 1], true), "{late:#}");
    here.wait_event("one", "Failed");
    here.delete("one");
    assert_eq!(site.send_end(&uid, "gone", "one", &id, "0"), 204);
    assert_eq!(counts(&here.let_go("other")), [0, 1, 0]);
    site.bed.assert_removed(&uid, "one");
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn reported_end_of_a_retried_job_only_triggers_a_query(#[case] version: Version) {
    let site = Site::new(version, &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    // The first run fails, the second does not: HTCondor keeps what the first one left.
    let mut object = htcjob("again", "[ -e ran ] && exit 0; touch ran; exit 5");
    object["spec"]["htcopts"] = "max_retries = 2".into();
    let uid = here.create(&object);
    let seen = std::cell::RefCell::new(Vec::new());
    let ended = here.wait("again", "Complete or Failed", |object| {
        seen.borrow_mut().push(counts(object)[2]);
        is_true(object, "Complete") || is_true(object, "Failed")
    });
    let seen = seen.into_inner();
    assert!(seen[..seen.len() - 1].iter().all(|failed| *failed <= 0), "{seen:?}: an end before a retry counted");
    let (newest, all) = (stored(&site.bed, &uid), reported(&site.bed, &uid));
    println!("{:?} reported {all:?}, the newest {newest:?}", counts(&ended));
    // A job waits for the answer to the report of its end. So short a run may be over before its start is reported.
    let newest: Vec<_> = newest.into_iter().filter(|code| code != "-1").collect();
    assert_eq!(
        (newest, all.last().map(String::as_str)),
        (vec!["0".to_owned()], Some("ends 2")),
        "each run reports its end"
    );
}

/// Nothing listens at the address: the jobs report nothing, and HTCondor reports how they ended.
#[rstest]
#[ignore = "another test shows the same promise: make test-long"]
#[case::sid(Sid)]
#[ignore = "another test shows the same promise: make test-long"]
#[case::trixie(Trixie)]
fn jobs_end_normally_without_a_receiver(#[case] version: Version) {
    let away = Port::reserve().unwrap();
    let url = format!("http://127.0.0.1:{}/cloudevents", away.number);
    let bed = Bed::new(version, &PoolOptions::default(), &[]);
    // For `check`, too.
    bed.set_env("HTC_CALLBACK_URL", &url);
    bed.start_operator();
    let here = bed.namespace();
    let uid = here.create(&htcjob("deaf", "echo hello; exit 4"));
    assert_eq!(counts(&here.wait_ended("deaf")), [0, 0, 1]);
    here.wait_output("deaf");
    let out = here.output("deaf", 0);
    let read = |file: &str| std::fs::read_to_string(out.join(file)).unwrap();
    assert_eq!((read("out").as_str(), read("err").as_str()), ("hello\n", ""));
    assert!(stored(&bed, &uid).is_empty());
    // Tokens would go over the network in clear text.
    let warned = format!("--callback-url {url}: jobs send their tokens without encryption");
    let (_, output) = bed.check();
    assert!(output.contains(&format!("callbacks: warning: {warned}")), "{output}");
    assert!(bed.log().contains(&warned), "{}", bed.log());
    // The keys are in a Secret that the operator has made, for itself alone.
    assert!(bed.own_secret("htc-operator-callback-keys", "keys").len() >= 64);
}

/// HTCondor stops the jobs, and knows best what that means: their reports could only contradict it.
#[rstest]
#[ignore = "another test shows the same promise: make test-long"]
#[case::trixie(Trixie)]
#[ignore = "another test shows the same promise: make test-long"]
#[case::sid(Sid)]
fn held_or_removed_job_reports_no_end(#[case] version: Version) {
    let site = Site::new(version, &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    // They take their time to stop, and end with 0.
    let source = format!("trap 'exit 0' TERM\n{UNTIL_LET_GO}");
    let names = ["held", "removed"];
    let uids = names.map(|name| here.create(&htcjob(name, &source)));
    let [held, removed] = names.map(|name| ids(&here.wait_phase(name, "Running")).remove(0));
    for uid in &uids {
        testbed::wait_for("the start of each to be reported", bed::PATIENCE, || stored(&site.bed, uid) == ["-1"])
            .unwrap();
    }
    site.bed.pool.tool("condor_hold", &[&held]).unwrap();
    site.bed.pool.tool("condor_rm", &[&removed]).unwrap();
    here.wait("held", "one held job", |object| object["status"]["held"] == 1);
    assert_eq!(counts(&here.wait_ended("removed")), [0, 0, 1]);
    site.bed.pool.tool("condor_release", &[&held]).unwrap();
    testbed::wait_for("its second start to be reported", bed::PATIENCE, || {
        reported(&site.bed, &uids[0]) == ["starts 2"]
    })
    .unwrap();
    assert_eq!(counts(&here.let_go("held")), [0, 1, 0]);
    testbed::wait_for("the end of the one that was released", bed::PATIENCE, || {
        let found = stored(&site.bed, &uids[0]);
        if found == ["-1", "0"] { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .unwrap();
    assert_eq!(stored(&site.bed, &uids[1]), ["-1"]);
    for name in names {
        assert!(!here.events(name).iter().any(|(reason, _)| reason == "CallbackRefuted"), "{:?}", here.events(name));
    }
}
