//! Faults of nodes are no failures of jobs: HTCondor runs the jobs again elsewhere, and the machine is named.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, io, thread};

use serde_json::json;
use testbed::{Account, Assets, PoolOptions, Registry, Scratch, Version, wait_for};

use bed::{Bed, condition, htcjob, is_true, of};

on_versions! {
    both: jobs_of_a_broken_machine_succeed_on_others, job_that_no_machine_can_run_fails_as_a_node_fault;
    sid: payload_that_exits_with_a_code_of_job_sh_fails_by_itself, registry_that_is_busy_fails_no_job;
    long: all_of_200_jobs_succeed_beside_a_broken_machine;
}

/// `Machine` of the startd on which no container starts.
const BROKEN: &str = "broken.test";
const FLAGS: &[&str] = &["--node-fault-retries=5", "--node-fault-pause=2s"];

/// A pool with a machine of some slots, and one with a slot where Apptainer ends with 255 at once.
struct Machines {
    bed: Bed,
    _bin: Scratch,
}

impl Machines {
    /// `slots`: those of the sound machine.
    fn new(version: Version, slots: u32, flags: &[&str]) -> Self {
        let (assets, bin) = (Assets::locate().unwrap(), Scratch::new().unwrap());
        let (folder, job_bin) = (bin.dir("bin").unwrap(), assets.job_bin());
        let broken = format!(
            "#!/bin/sh\ngrep -q '^Machine = \"{BROKEN}\"' \"$_CONDOR_MACHINE_AD\" && {{ echo 'FATAL: no container here' >&2; exit 255; }}\n\
             exec {} \"$@\"\n",
            job_bin.join("apptainer").display()
        );
        Account::unprivileged().write(&folder.join("apptainer"), broken, 0o755).unwrap();
        let path = format!("{}:{}:/usr/bin:/bin", folder.display(), job_bin.display());
        let extra_config = format!(
            "STARTER_JOB_ENVIRONMENT = \"PATH={path} APPTAINER_NOHTTPS=true\"\n\
             NUM_CPUS = {slots}\n\
             DAEMON_LIST = $(DAEMON_LIST) STARTD_BROKEN\n\
             STARTD_BROKEN = $(STARTD)\n\
             STARTD_BROKEN_ARGS = -f -local-name broken\n\
             BROKEN.STARTD_NAME = broken\n\
             BROKEN.STARTD_LOG = $(LOG)/StartdBrokenLog\n\
             BROKEN.NUM_CPUS = 1\n\
             BROKEN.NETWORK_HOSTNAME = broken\n"
        );
        let options = PoolOptions { extra_config, ..PoolOptions::default() };
        let bed = Bed::new(version, &options, flags);
        bed.start_operator();
        Self { bed, _bin: bin }
    }
}

/// More jobs than slots, so that the broken machine is the only one that is free.
fn jobs_of_a_broken_machine_succeed_on_others(version: Version) {
    let machines = Machines::new(version, 2, FLAGS);
    let here = machines.bed.namespace();
    let mut object = htcjob("crowd", "sleep 1; [ $1 != 3 ]");
    object["spec"]["queue"] = 8.into();
    object["spec"]["maxRetries"] = 1.into();
    let uid = here.create(&object);
    let seen = here.wait("crowd", "a fault of a node", |object| is_true(object, "NodeFaults"));
    let message = condition(&seen, "NodeFaults").unwrap()["message"].as_str().unwrap();
    assert!(message.contains(&format!("most often on {BROKEN}, last on {BROKEN}: the node cannot pull")), "{message}");
    assert!(message.contains("no failure of the jobs") && message.contains("TARGET.Machine =!= \"broken.test\""));
    assert!(!is_true(&seen, "Held"), "{seen:#}");
    let ended = here.wait_ended("crowd");
    assert_eq!([&ended["status"]["succeeded"], &ended["status"]["failedIndexes"]], [&json!(7), &json!("3")]);
    let faults = &ended["status"]["nodeFaults"];
    assert_eq!([&faults["mostOften"], &faults["lastMachine"]], [BROKEN, BROKEN], "{faults}");
    assert!(faults["runs"].as_u64() >= Some(1) && faults["jobs"].as_u64() >= Some(1), "{faults}");
    assert!(condition(&ended, "NodeFaults").is_some_and(|now| now["status"] == "False"), "{ended:#}");
    assert!(here.wait_event("crowd", "TriedElsewhere").contains(&"TriedElsewhere".to_owned()));
    // The payload that fails has its retries, whatever ran before.
    let runs =
        machines.bed.wait_history(&of(&uid), &["HTCJobIndex", "NumJobCompletions", "NumHolds ?: 0", "ExitCode"], 8);
    for run in runs {
        let [index, exits, holds, code] = [0, 1, 2, 3].map(|column| run[column].parse::<u32>().unwrap());
        let payloads = if index == 3 { 2 } else { 1 };
        assert_eq!((exits - holds, code), (payloads, u32::from(index == 3)), "job {index}");
    }
}

/// After the last try the job ends, with a reason of its own and the machines.
fn job_that_no_machine_can_run_fails_as_a_node_fault(version: Version) {
    let machines = Machines::new(version, 1, &["--node-fault-retries=1", "--node-fault-pause=1s"]);
    let here = machines.bed.namespace();
    let mut object = htcjob("nowhere", "echo ran");
    object["spec"]["requirements"] = format!("TARGET.Machine == \"{BROKEN}\"").into();
    object["spec"]["maxRetries"] = 3.into();
    let uid = here.create(&object);
    let ended = here.wait_ended("nowhere");
    let failed = condition(&ended, "Failed").unwrap()["message"].as_str().unwrap();
    let tried = format!("HTCondor tried it 2 times, on {BROKEN},{BROKEN}");
    assert!(
        failed.contains("could not run its script (243): the node cannot pull") && failed.contains(&tried),
        "{failed}"
    );
    assert_eq!(ended["status"]["nodeFaults"]["runs"], 2, "{ended:#}");
    let ends =
        machines.bed.wait_history(&of(&uid), &["ExitBySignal", "ExitSignal", "NumJobCompletions", "NumHolds"], 1);
    assert_eq!(ends, [["true", "43", "2", "1"]]);
}

fn payload_that_exits_with_a_code_of_job_sh_fails_by_itself(version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let mut object = htcjob("same", "exit $((240 + $1))");
    object["spec"]["queue"] = 10.into();
    here.create(&object);
    let ended = here.wait_ended("same");
    assert_eq!([&ended["status"]["failed"], &ended["status"]["nodeFaults"]], [&json!(10), &json!(null)]);
    let failed = condition(&ended, "Failed").unwrap()["message"].as_str().unwrap();
    assert!(failed.contains("exit code 243 (1)") && failed.contains(" exited with 240"), "{failed}");
}

/// A port before a registry that answers 429 while `busy`.
fn busy_registry(registry: &Registry, busy: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, behind, busy) = (listener.local_addr().unwrap().to_string(), registry.address(), Arc::clone(busy));
    thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let (behind, busy) = (behind.clone(), Arc::clone(&busy));
            thread::spawn(move || answer(caller, &behind, busy.load(Ordering::SeqCst)));
        }
    });
    address
}

fn answer(mut caller: TcpStream, behind: &str, busy: bool) -> io::Result<()> {
    if busy {
        let body = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your pull rate limit"}]}"#;
        caller.set_read_timeout(Some(Duration::from_secs(5)))?;
        let _ = caller.read(&mut [0; 4096])?;
        return write!(
            caller,
            "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
    }
    let mut registry = TcpStream::connect(behind)?;
    let (mut to, mut from) = (registry.try_clone()?, caller.try_clone()?);
    thread::spawn(move || io::copy(&mut from, &mut to));
    io::copy(&mut registry, &mut caller).map(drop)
}

fn registry_that_is_busy_fails_no_job(version: Version) {
    let assets = Assets::locate().unwrap();
    let registry = Registry::start(&assets).unwrap();
    registry.push("team/tiny", "1", assets.image()).unwrap();
    let busy = Arc::new(AtomicBool::new(true));
    let address = busy_registry(&registry, &busy);
    let bed = Bed::new(version, &PoolOptions::default(), &["--node-fault-retries=5", "--node-fault-pause=1s"]);
    bed.start_operator();
    let here = bed.namespace();
    let mut object = htcjob("pulls", "echo ran");
    object["spec"]["script"]["image"] = format!("{address}/team/tiny:1").into();
    here.create(&object);
    let seen = here.wait("pulls", "a refusal", |object| is_true(object, "NodeFaults"));
    let message = condition(&seen, "NodeFaults").unwrap()["message"].as_str().unwrap();
    assert!(message.contains("refuses more requests for now"), "{message}");
    busy.store(false, Ordering::SeqCst);
    let ended = here.wait_ended("pulls");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(fs::read_to_string(here.output("pulls", 0).join("out")).unwrap(), "ran\n");
}

/// Case 20 of the reports: beside it what HTCondor does with the same jobs by itself.
fn all_of_200_jobs_succeed_beside_a_broken_machine(version: Version) {
    const JOBS: u32 = 200;
    let machines = Machines::new(version, 3, FLAGS);
    let (bed, here) = (&machines.bed, machines.bed.namespace());
    let mut object = htcjob("crowd", "sleep 2");
    (object["spec"]["queue"], object["spec"]["maxRetries"]) = (JOBS.into(), 3.into());
    here.create(&object);
    let ended = wait_for("all jobs to end", Duration::from_secs(1200), || {
        Some(here.get("crowd")).filter(|object| is_true(object, "Complete") || is_true(object, "Failed"))
    });
    let ended = ended.unwrap();
    assert_eq!(ended["status"]["succeeded"], JOBS, "{ended:#}");
    let image = Assets::locate().unwrap().image().display().to_string();
    let plain = format!(
        "executable = /bin/sh\narguments = \"-c 'exec apptainer --quiet exec {image} sleep 2'\"\ntransfer_executable = false\n\
         should_transfer_files = YES\nmax_retries = 3\n+Plain = true\nqueue {JOBS}\n"
    );
    bed.condor.submit(&plain).unwrap();
    let ends = || bed.queue("Plain && JobStatus == 4", &["ExitCode"]).len() == JOBS as usize;
    wait_for("the same jobs without the operator", Duration::from_secs(1200), || ends().then_some(())).unwrap();
    let mut codes: BTreeMap<String, u32> = BTreeMap::new();
    for code in bed.queue("Plain", &["ExitCode"]).concat() {
        *codes.entry(code).or_default() += 1;
    }
    eprintln!("{version}: HTCondor by itself, by exit codes: {codes:?}; {}", ended["status"]["nodeFaults"]);
    assert!(codes.get("255").is_some_and(|failed| *failed > 0), "the machine is not broken: {codes:?}");
}
