//! Cost of stuck HTCJobs and HTCPools at rest: no writes, and queries of HTCondor after growing pauses.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::{Controllers, KubeOptions, Pool, PoolOptions, Port, Version, wait_for};

use bed::site::{Site, says};
use bed::{ACCOUNT, Namespace, PATIENCE, SOON, of};

use crate::deploy::rights::{Asked, asked};
use crate::kubernetes_backend::stage::{CONTROLLERS, Owned as _, pods};
use crate::pools::managed;
use crate::pools::site::{describe, other, wait_ready, with_pool};
use crate::queue::site::{labelled, wait_quota};

on_versions! {
    sid: stuck_htcjobs_cause_no_writes_while_unchanged;
}

/// For so long nothing is written. What is tried again after pauses is tried several times meanwhile: what HTCondor refuses is not among it,
/// as each attempt is in the status.
const WINDOW: Duration = Duration::from_secs(30);

/// How often HTCondor is asked at rest, in each pool.
const INTERVAL: Duration = Duration::from_secs(5);

/// Each kind of stuck object, and an operator that has all of them.
struct Stuck {
    // Fields drop in this order: the servers before their folders.
    _controllers: Controllers,
    /// The pool that is silent.
    away: Pool,
    site: Site,
    _net: Port,
}

/// An HTCJob, and what it says once it is stuck.
type Says<'a> = (&'a str, &'a str, &'a str, &'a str);

const SAYS: &[Says<'_>] = &[
    ("invalid", "Submitted", "False", "InvalidSpec"),
    ("secret", "Submitted", "False", "CredentialsFailed"),
    ("nowhere", "QuotaReserved", "False", "QueueNotFound"),
    ("full", "QuotaReserved", "False", "WaitingForQuota"),
    ("held", "Held", "True", "JobsHeld"),
    ("away", "Tracked", "False", "ScheddUnreachable"),
    ("away-waits", "Submitted", "False", "ScheddUnreachable"),
    ("away-goes", "JobsRemoved", "False", "ScheddUnreachable"),
    ("no-pool", "Submitted", "False", "PoolNotFound"),
    ("same-pool", "Submitted", "False", "PoolNotReady"),
    ("unplaced", "Stuck", "True", "PodsCannotStart"),
    ("job-stays", "JobsRemoved", "False", "Removing"),
    ("pods-stay", "JobsRemoved", "False", "Removing"),
];

/// An HTCPool, and the reason of its condition `Ready` once it is stuck.
const POOLS: &[(&str, &str)] = &[
    (AWAY, "ScheddUnreachable"),
    ("same", "SameSchedd"),
    ("of-a-name-that-is-too-long-for-the-objects-of-a-managed-pool-to-have", "InvalidName"),
    (managed::POOL, "ScheddUnreachable"),
];
const AWAY: &str = "away";

impl Stuck {
    fn new(version: Version) -> Self {
        let net = Port::reserve().unwrap();
        let services = format!("127.{}.{}.0/24", net.number >> 8, net.number & 255);
        let kube = KubeOptions { audit: true, services, ..KubeOptions::default() };
        let interval = format!("--poll-interval={}s", INTERVAL.as_secs());
        let arguments = ["--kubernetes-backend", "--queueing=embedded", SOON, &interval];
        let site = Site::alone(version, &kube, &arguments);
        let controllers = site.bed.controllers(CONTROLLERS);
        let away = Pool::start(&site.bed.assets, other(version), &PoolOptions::default()).unwrap();
        let stuck = Self { _controllers: controllers, away, site, _net: net };
        stuck.site.bed.start_operator();
        stuck
    }

    fn namespace(&self) -> Namespace<'_> {
        let here = self.site.bed.namespace();
        let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", here.name);
        wait_for("the ServiceAccount default", PATIENCE, || self.site.bed.object(&accounts, "default").is_some())
            .unwrap();
        here.let_operator("namespace-pools");
        here
    }

    /// Makes all of them, and waits until each says what it waits for.
    fn make_all(&self, here: &Namespace<'_>) {
        self.make_pools(here);
        let site = &self.site;
        let queue = json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCQueue", "metadata": { "name": "batch" },
            "spec": { "namespaceSelector": {}, "quota": { "jobs": 1 } },
        });
        site.bed.apply(&queue);
        here.create(&labelled(site.lasting("runs", 1), "batch"));
        here.create(&site.lasting("held", 1));
        for name in ["away", "away-goes"] {
            here.create(&with_pool(site.lasting(name, 1), AWAY));
        }
        for name in ["runs", "held", "away", "away-goes"] {
            here.wait_phase(name, "Running");
        }
        site.bed.pool.tool("condor_hold", &["-constraint", &of(&here.uid("held"))]).unwrap();
        self.away.stop().unwrap();
        here.begin_delete("away-goes");
        here.create(&with_pool(site.noted("away-waits", 1, ""), AWAY));
        here.create(&with_pool(site.noted("no-pool", 1, ""), "none"));
        here.create(&with_pool(site.noted("same-pool", 1, ""), "same"));
        let mut invalid = site.noted("invalid", 1, "");
        invalid["spec"]["htcopts"] = "include command : /bin/true".into();
        here.create(&invalid);
        let mut secret = site.noted("secret", 1, "");
        secret["spec"]["credentialsSecretName"] = "none".into();
        here.create(&secret);
        here.create(&labelled(site.noted("full", 1, ""), "batch"));
        here.create(&labelled(site.noted("nowhere", 1, ""), "nowhere"));
        // Asks for workers, which are Pods that nobody places.
        let mut grows = with_pool(site.noted("grows", 4, ""), managed::POOL);
        grows["spec"]["script"]["image"] = "docker://registry.example.org/analysis:1".into();
        here.create(&grows);
        here.wait_pods("workers", |pods| {
            pods.iter().any(|pod| pod["metadata"]["labels"]["htc.cern.ch/role"] == "worker")
        });
        Self::make_pods(here);
        for (name, kind, status, reason) in SAYS {
            if *kind == "QuotaReserved" {
                wait_quota(here, name, status, reason);
            } else {
                here.wait_says(name, kind, status, reason);
            }
        }
        for (name, reason) in POOLS {
            wait_ready(here, name, reason);
        }
    }

    fn make_pools(&self, here: &Namespace<'_>) {
        describe(here, AWAY, &self.away, &[]);
        wait_ready(here, AWAY, "Answering");
        describe(here, "same", &self.site.bed.pool, &[]);
        let workers = json!({
            "image": "registry.example.org/analysis:1", "autoscaling": { "min": 1, "max": 3 },
            "resources": { "cpus": 2, "memory": "512Mi", "disk": "4Gi" },
        });
        for (name, _) in &POOLS[2..] {
            let mut pool = managed::pool(&workers);
            pool["metadata"]["name"] = (*name).into();
            managed::apply(here, pool);
        }
    }

    /// Those whose jobs are Pods.
    fn make_pods(here: &Namespace<'_>) {
        let of_htcjob = |name: &str| {
            let uid = here.uid(name);
            here.wait_pods(&format!("that of {name}"), |pods| pods.iter().any(|pod| is_of(pod, &uid)));
            let pod = here.pods().into_iter().find(|pod| is_of(pod, &uid)).unwrap();
            pod["metadata"]["name"].as_str().unwrap().to_owned()
        };
        for name in ["unplaced", "job-stays", "pods-stay"] {
            here.create(&pods(name, 1));
        }
        let placed = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available" });
        here.patch_status("pod", &of_htcjob("unplaced"), &json!({ "status": { "conditions": [placed] } }));
        for name in ["job-stays", "pods-stay"] {
            // As one on a node that is lost.
            let stays = json!({ "metadata": { "finalizers": ["example.org/stays"] } });
            here.patch("pod", &of_htcjob(name), &stays);
            let job = here.job_name(name);
            here.begin_delete(name);
            if name == "pods-stay" {
                wait_for("the Job to be deleted", PATIENCE, || {
                    here.object("job", &job).is_some_and(|job| job["metadata"]["deletionTimestamp"].is_string())
                })
                .unwrap();
                here.patch("job", &job, &json!({ "metadata": { "finalizers": null } }));
            }
        }
    }

    /// Waits until nothing has been written for [`WINDOW`]; what was done meanwhile.
    fn rest(&self) -> Window {
        let (mut written, mut window) = (Vec::new(), Window::open(self, 0));
        let rest = wait_for("nothing to be written while nothing changes", PATIENCE + WINDOW, || {
            let writes = self.writes();
            if writes.len() != window.writes {
                written.extend(writes[window.writes..].iter().map(|asked| (Instant::now(), asked.to_string())));
                window = Window::open(self, writes.len());
            }
            if window.began.elapsed() >= WINDOW { Ok(()) } else { Err(last(&written)) }
        });
        rest.unwrap_or_else(|error| panic!("{error}\n{}", self.site.bed.log()));
        window
    }

    /// What the operator has written, but for renewals of its Lease.
    fn writes(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(is_write).collect()
    }

    fn asked(&self) -> Vec<Asked> {
        asked(&self.site.bed.kube.audit_log(), ACCOUNT)
    }
}

/// A time in which nothing was written.
struct Window {
    began: Instant,
    writes: usize,
    /// How much was asked of the API server before, and logged.
    asked: usize,
    logged: usize,
}

impl Window {
    fn open(stuck: &Stuck, writes: usize) -> Self {
        let (asked, logged) = (stuck.asked().len(), stuck.site.bed.log().len());
        Self { began: Instant::now(), writes, asked, logged }
    }

    /// Each pool is asked once each interval, whatever is stuck there, and what is tried again is so after pauses.
    fn assert_paced(&self, stuck: &Stuck) {
        let (seconds, log) = (self.began.elapsed().as_secs_f64(), stuck.site.bed.log());
        let mut tools: BTreeMap<(&str, &str), f64> = BTreeMap::new();
        for line in log[self.logged..].lines() {
            let Some((place, tool)) = line.split_once(" tool ended tool=\"") else { continue };
            let pool = place.split_once(":pool{htcpool=").map_or("", |(_, pool)| pool.split('}').next().unwrap_or(""));
            // Which jobs have changed is asked more often, where there are any, by what that costs.
            if !place.contains("look{htcjobs=\"changed\"}") {
                *tools.entry((pool, tool.split('"').next().unwrap_or(""))).or_default() += 1.0;
            }
        }
        let mut reads: BTreeMap<String, f64> = BTreeMap::new();
        let read = |asked: &Asked| ["get", "list"].contains(&asked.verb.as_str());
        for asked in stuck.asked().into_iter().skip(self.asked).filter(read) {
            *reads.entry(asked.to_string()).or_default() += 1.0;
        }
        let looks = u32::try_from(log[self.logged..].matches("reconciling workers").count()).unwrap();
        println!("in {seconds:.0} s: {tools:?}; {looks} looks at workers; {reads:#?}");
        // A look takes two condor_status at most, of the collector as of the schedd.
        let most = (seconds / INTERVAL.as_secs_f64() + 2.0) * 4.0;
        for ((pool, tool), count) in &tools {
            assert!(*count <= most, "{count} {tool} in {seconds:.0} s in pool {pool:?}: {tools:?}");
        }
        assert!(
            f64::from(looks) <= seconds / INTERVAL.as_secs_f64() + 2.0,
            "{looks} looks at workers in {seconds:.0} s"
        );
        for (path, count) in &reads {
            assert!(*count <= seconds / 2.0, "{count} × {path} in {seconds:.0} s");
        }
    }
}

fn is_write(asked: &Asked) -> bool {
    let asks = ["get", "list", "watch"].contains(&asked.verb.as_str());
    let asks_about_rights = ["authorization.k8s.io", "authentication.k8s.io"].contains(&asked.group.as_str());
    !asks && !asks_about_rights && asked.resource != "leases"
}

fn is_of(pod: &Value, uid: &str) -> bool {
    pod["metadata"]["labels"]["htc.cern.ch/htcjob-uid"] == uid
}

/// How often each object was written lately.
fn last(written: &[(Instant, String)]) -> String {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for (_, what) in written.iter().filter(|(at, _)| at.elapsed() < WINDOW) {
        *counts.entry(what).or_default() += 1;
    }
    counts.into_iter().fold(String::new(), |mut text, (what, count)| {
        let _ = writeln!(text, "{count} × {what}");
        text
    })
}

fn stuck_htcjobs_cause_no_writes_while_unchanged(version: Version) {
    let stuck = Stuck::new(version);
    let here = stuck.namespace();
    stuck.make_all(&here);
    let window = stuck.rest();
    // What does not go is said to be overdue after two minutes.
    for (name, kind, status, reason) in SAYS.iter().filter(|(.., reason)| *reason != "Removing") {
        let object = here.get(name);
        assert!(says(&object, kind, status, reason), "{object:#}");
    }
    window.assert_paced(&stuck);
}
