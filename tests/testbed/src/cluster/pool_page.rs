//! What docs/pools.md shows of a pool, step by step, done on a real node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::page::{PATIENCE, Page};
use super::site::Site;
use crate::demo::{failed, say};
use crate::error::Result;
use crate::wait::wait_for;

/// Where the commands begin.
const HEADING: &str = "## A pool, step by step";
/// The names that condor_status has for what is in the pool.
const CENTRAL_MANAGER: &str = "central-manager@steps.pools.htcpool";
const SCHEDD: &str = "schedd@steps.pools.htcpool";
const WORKERS: [&str; 2] = ["steps-worker-0@steps.pools.htcpool", "steps-worker-1@steps.pools.htcpool"];

/// Runs the page.
pub(super) fn run_page(site: &Site<'_>) -> Result<()> {
    site.add_volume("steps")?;
    let page = Steps { site, page: Page::section(site, "pools.md", HEADING)? };
    let began = Instant::now();
    page.make()?;
    page.scale()?;
    page.lose_the_central_manager()?;
    page.lose_the_schedd()?;
    page.lose_a_worker()?;
    page.kill_and_change()?;
    page.delete()?;
    page.page.is_done()?;
    say(&format!("docs/pools.md, step by step: {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}

struct Steps<'a> {
    site: &'a Site<'a>,
    page: Page<'a>,
}

impl Steps<'_> {
    fn does(&self, words: &str) -> Result<()> {
        self.page.does(words)
    }

    fn shows(&self, words: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        self.page.shows(words, wanted)
    }

    /// From an empty namespace that lets in no pod that is not restricted to three pods that work together.
    fn make(&self) -> Result<()> {
        for words in ["create namespace pools", "enforce=restricted", "deploy/namespace-pools", "step-by-step.yaml"] {
            self.does(words)?;
        }
        self.does("wait --for=condition=Ready")?;
        self.shows("get pods", |pods| {
            let running = |line: &&str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words[1..4] == ["1/1", "Running", "0"]
            };
            pods.lines().skip(1).filter(running).count() == 3 && pods.lines().count() == 4
        })?;
        let types = |all: &str| {
            ["Collector", "Negotiator", "Scheduler", "Machine", "StartD"].iter().all(|kind| begins(all, kind) == 1)
        };
        self.shows("condor_status -any", |all| types(all) && begins(all, "DaemonMaster") == 3 && knows(all, 1))?;
        Ok(())
    }

    fn scale(&self) -> Result<()> {
        // Without a volume of its own a container has 64 MB there.
        let write = "dd if=/dev/zero of=/dev/shm/x bs=1M count=100 && rm /dev/shm/x";
        self.page.ask(&format!("kubectl -n pools exec steps-worker-0 -- sh -c '{write}'"))?;
        self.does("scale htcpool/steps --replicas=2")?;
        self.shows("condor_status", |shown| slots(shown, &WORKERS)).map(drop)
    }

    fn lose_the_central_manager(&self) -> Result<()> {
        self.does("delete pod")?;
        let first = self.shows("condor_status -any", |all| begins(all, "Collector") == 1)?;
        if knows(&first, 2) {
            let outcome = "the new central manager knew all at once; was the old one asked?".to_owned();
            return Err(failed("replace the central manager", outcome));
        }
        self.shows("condor_status -any", |all| knows(all, 2) && begins(all, "Negotiator") == 1).map(drop)
    }

    /// Two jobs, each of which takes a worker, go on while the schedd is replaced.
    fn lose_the_schedd(&self) -> Result<()> {
        let (before, written) = self.starts()?;
        self.does("delete pod steps-schedd-0")?;
        let after = self.shows("condor_q", |jobs| running(jobs).len() == 2)?;
        same("leave jobs where they run", &sorted(&before), &sorted(&after))?;
        self.end_as_begun(&written)
    }

    /// Both jobs run; what HTCondor says of them, and what the payload has written on which worker.
    fn starts(&self) -> Result<(String, BTreeMap<String, String>)> {
        self.does("minutes.yaml")?;
        let shown = self.shows("condor_q", |jobs| running(jobs).len() == 2)?;
        let written = |worker: &str| {
            let out = format!(
                "kubectl -n pools exec {worker} -- sh -c 'cat /htcpool/local/execute/dir_*/_condor_stdout || true'"
            );
            Ok((worker.to_owned(), self.page.until(&out, |out| out.contains(" began at "))?))
        };
        let written = running(&shown).into_iter().map(written).collect::<Result<_>>()?;
        Ok((shown, written))
    }

    /// Each job has run once: what comes back is what it has written when it began.
    fn end_as_begun(&self, written: &BTreeMap<String, String>) -> Result<()> {
        let begun: String = written.values().map(String::as_str).collect();
        same("have each job run once", &sorted(&begun), &sorted(&self.ends()?))?;
        self.does("delete htcjob minutes")
    }

    /// All jobs have ended well; what they have written.
    fn ends(&self) -> Result<String> {
        self.does("wait --for=condition=Complete")?;
        self.does("wait --for=condition=OutputFetched")?;
        self.shows("/data/htc_out", |out| out.lines().count() == 2)
    }

    /// The job that ran there runs again; the other one does not notice.
    fn lose_a_worker(&self) -> Result<()> {
        let (_, mut written) = self.starts()?;
        let lost = written.remove("steps-worker-0").unwrap_or_default();
        let other = written.into_values().collect::<String>();
        self.does("delete pod steps-worker-0")?;
        let ended = self.ends()?;
        let job = lost.split(" began at ").next().unwrap_or_default();
        let again = ended.lines().any(|line| line.starts_with(job) && line != lost.trim_end());
        if !again || !ended.contains(&other) {
            let outcome = format!("on the lost worker:\n{lost}on the other one:\n{other}afterwards:\n{ended}");
            return Err(failed("have the lost worker's job run again, and no other", outcome));
        }
        self.does("delete htcjob minutes")
    }

    /// The schedd's process dies, and the workers are to be larger: both jobs go on, and larger workers come after them.
    fn kill_and_change(&self) -> Result<()> {
        let (before, written) = self.starts()?;
        let schedd = "kubectl -n pools exec steps-schedd-0 -- sh -c 'grep -lx condor_schedd /proc/[0-9]*/comm || true'";
        let killed = self.page.ask(schedd)?;
        self.does("kill -9")?;
        self.page.until(schedd, |now| !now.is_empty() && now != killed)?;
        self.does("patch htcpool steps")?;
        let after = self.shows("condor_q", |jobs| running(jobs).len() == 2)?;
        same("leave jobs where they run", &sorted(&before), &sorted(&after))?;
        self.end_as_begun(&written)?;
        self.shows("custom-columns", |workers| {
            let larger = |line: &&str| line.starts_with("steps-worker-") && line.trim_end().ends_with(" 2176Mi");
            workers.lines().count() == 3 && workers.lines().filter(larger).count() == 2
        })?;
        self.does("wait --for=condition=WorkersReady")
    }

    fn delete(&self) -> Result<()> {
        self.does("delete htcpool steps")?;
        self.shows("-l htc.cern.ch/htcpool", |left| left.trim().is_empty())?;
        let kinds = "persistentvolumeclaims,secrets,configmaps,leases,endpointslices";
        wait_for("nothing of the pool to be left", PATIENCE, || {
            let left = self.site.ask(&format!("-n pools get {kinds} -o name")).map_err(|error| error.to_string())?;
            // What each namespace has.
            let left = left.replace("configmap/kube-root-ca.crt", "");
            if left.trim().is_empty() { Ok(()) } else { Err(left) }
        })?;
        self.does("delete namespace pools")
    }
}

/// How many lines begin with a word.
fn begins(text: &str, word: &str) -> usize {
    text.lines().filter(|line| line.split_whitespace().next() == Some(word)).count()
}

/// The pods of the workers on which jobs run.
fn running(jobs: &str) -> BTreeSet<&str> {
    jobs.lines().filter_map(|job| Some(job.split_once(" 2 slot1_1@")?.1.split_once('@')?.0)).collect()
}

fn sorted(jobs: &str) -> String {
    let mut jobs: Vec<&str> = jobs.lines().map(str::trim_end).collect();
    jobs.sort_unstable();
    jobs.join("\n")
}

/// Whether HTCondor names all that the pool has, with the slots of this many workers.
fn knows(all: &str, workers: usize) -> bool {
    let has = |name: &&str| all.contains(*name);
    [CENTRAL_MANAGER, SCHEDD].iter().all(has) && slots(all, &WORKERS[..workers])
}

/// Whether it shows the slots of these workers.
fn slots(shown: &str, workers: &[&str]) -> bool {
    workers.iter().all(|worker| shown.contains(&format!("slot1@{worker}")))
}

fn same(doing: &str, before: &str, after: &str) -> Result<()> {
    if before == after { Ok(()) } else { Err(failed(doing, format!("before:\n{before}\nafterwards:\n{after}"))) }
}
