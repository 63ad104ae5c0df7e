//! `testbed demo`: one `HTCJob` from `kubectl apply` to `kubectl delete`, every command shown before it runs.
#![allow(clippy::print_stdout, reason = "a command-line tool")]

use std::io::IsTerminal as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Doing as _, Error, Result};
use crate::progress;
use crate::tool::run_ok;
use crate::{Account, Assets, Client, EXAMPLES_IMAGE, Kube, Owned, Pool, PoolOptions, Scratch, Spec, Version};

/// For building the operator.
const BUILD: Duration = Duration::from_mins(40);

/// How long the demo's job may take.
const PATIENCE: Duration = Duration::from_secs(180);

struct Demo {
    kube: Kube,
    pool: Pool,
    condor: Client,
    scratch: Scratch,
    data: PathBuf,
    checkout: PathBuf,
}

/// Makes what it needs, the operator and the servers side by side, and runs the demo with the files of `checkout`. With a
/// terminal it then stays up until `stop` gets a message.
pub fn demo(checkout: &Path, stop: &Receiver<()>) -> Result<()> {
    let (assets, program) = thread::scope(|scope| {
        let program = scope.spawn(|| build(checkout));
        let assets = Assets::setup_for_demo();
        let program = program.join().unwrap_or_else(|panic| resume_unwind(panic));
        assets.and_then(|assets| Ok((assets, program?)))
    })?;
    let began = Instant::now();
    say("starting etcd, kube-apiserver and an HTCondor pool (about 5 s)");
    let kube = Kube::start(&assets)?;
    let pool = Pool::start(&assets, Version::Sid, &PoolOptions::default())?;
    let condor = pool.client("operator")?;
    let scratch = Scratch::new()?;
    let data = scratch.dir("data")?;
    let demo =
        Demo { kube, pool, condor, scratch, data, checkout: checkout.canonicalize().doing("finding", checkout)? };
    demo.kubectl(&["apply", "-f", "crd/"])?;
    demo.kube.kubectl_ok(&["wait", "--for=condition=Established", "crd/htcjobs.htc.cern.ch", "--timeout=60s"])?;
    demo.kubectl(&["create", "namespace", "htc-operator"])?;
    let operator = demo.start_operator(&program, &assets)?;
    say(&format!("the operator runs (its log: {})", operator.log().display()));
    let result = demo.show();
    if let Err(error) = result {
        println!("{}", operator.log_text());
        return Err(error);
    }
    say(&format!("done in {:.0} s", began.elapsed().as_secs_f64()));
    if std::io::stdin().is_terminal() {
        demo.stay(&operator, stop);
    }
    operator.terminate()?;
    operator.wait(Duration::from_secs(20)).map(drop)
}

/// The operator's program. It is built without optimization: that would take longer than the demo.
fn build(checkout: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(checkout).args(["build", "--quiet", "--locked", "--bin", "htc-operator"]);
    cargo.args(["--config", "profile.dev.package.htc-operator.opt-level=0"]);
    progress::step("the operator, built by cargo (3 min on 2 cores, the first time)", || {
        run_ok("building the operator", &mut cargo, "", BUILD)
    })?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| checkout.join("target"), PathBuf::from);
    Ok(target.join("debug/htc-operator"))
}

impl Demo {
    fn start_operator(&self, program: &Path, assets: &Assets) -> Result<Owned> {
        let kubeconfig = self.scratch.path().join("kubeconfig");
        let contents = std::fs::read(self.kube.kubeconfig()).doing("reading", self.kube.kubeconfig())?;
        Account::unprivileged().write(&kubeconfig, contents, 0o600)?;
        let spec = Spec::new(self.scratch.share(program)?, self.scratch.path().join("operator.log"))
            .args(["run", "--schedd", self.pool.schedd_name(), "--poll-interval", "2s"])
            .args(["--data-dir".as_ref(), self.data.as_os_str()])
            .arg("--image")
            .arg(format!("{EXAMPLES_IMAGE}={}", assets.image().display()))
            .env("KUBECONFIG", &kubeconfig)
            .env("CONDOR_CONFIG", self.condor.config())
            .env("PATH", format!("{}:/usr/bin:/bin", self.condor.bin_dir().display()));
        Owned::spawn(&spec)
    }

    fn show(&self) -> Result<()> {
        self.kubectl(&["apply", "-f", "examples/retcode/zero.yaml"])?;
        self.watch("zero")?;
        self.kubectl(&["wait", "--for=condition=Complete", "htcjob/zero", "--timeout=60s"])?;
        self.kubectl(&["describe", "htcjob", "zero"])?;
        let folder = self.data.join("htc_out/default/zero/latest/0");
        say(&format!("its output, in {}", folder.display()));
        run("cat out", Command::new("cat").arg("out").current_dir(&folder))?;
        self.kubectl(&["delete", "htcjob", "zero", "--timeout=120s"])?;
        say("what HTCondor has left of it: nothing in the queue, one line in the history");
        self.condor(&["condor_q", "-allusers"])?;
        self.condor(&[
            "condor_history",
            "-name",
            self.pool.schedd_name(),
            "-af:h",
            "ClusterId",
            "ProcId",
            "JobBatchName",
            "JobStatus",
            "ExitCode",
        ])?;
        let left = self.condor.ok("condor_q", &["-allusers", "-af", "ClusterId"])?;
        if left.trim().is_empty() { Ok(()) } else { Err(failed("leave nothing in HTCondor's queue", left)) }
    }

    /// Prints the object's line whenever it changes, until it is Completed.
    fn watch(&self, name: &str) -> Result<()> {
        say(&format!("$ kubectl get htcjob {name} --watch"));
        let began = Instant::now();
        let mut last = String::new();
        while began.elapsed() < PATIENCE {
            let text = self.kube.kubectl_ok(&["get", "htcjob", name])?;
            let shown: String = text.split_whitespace().filter(|word| !is_age(word)).collect();
            if shown != last {
                let lines = if last.is_empty() { text.as_str() } else { text.lines().last().unwrap_or_default() };
                println!("{}", lines.trim_end());
                last = shown;
            }
            if text.contains("Completed") {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(200));
        }
        Err(failed("see the HTCJob complete", format!("it did not within {} s", PATIENCE.as_secs())))
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<()> {
        run(&format!("kubectl {}", arguments.join(" ")), self.kube.kubectl(arguments).current_dir(&self.checkout))
    }

    fn condor(&self, command: &[&str]) -> Result<()> {
        let [tool, arguments @ ..] = command else { return Ok(()) };
        run(&command.join(" "), self.condor.command(tool).args(arguments))
    }

    fn stay(&self, operator: &Owned, stop: &Receiver<()>) {
        say("everything stays up until Ctrl-C. In another terminal:");
        println!("    export KUBECONFIG={}", self.kube.kubeconfig().display());
        println!("    cd {}", self.checkout.display());
        println!("    kubectl apply -f examples/queue.yaml && kubectl get htcjobs -w");
        println!("    kubectl describe htcjob queue");
        println!("    cat {}/htc_out/default/queue/latest/*/out", self.data.display());
        println!("    kubectl delete htcjob queue");
        println!("HTCondor's own tools:");
        println!(
            "    export CONDOR_CONFIG={} PATH={}:$PATH",
            self.pool.config().display(),
            self.pool.bin_dir().display()
        );
        println!("    condor_q -allusers; condor_history");
        println!("The operator's log:");
        println!("    tail -f {}", operator.log().display());
        let _ = stop.recv();
    }
}

/// Shows a command, and runs it.
pub(crate) fn run(shown: &str, command: &mut Command) -> Result<()> {
    say(&format!("$ {shown}"));
    let status = command.status().doing("running", Path::new(shown))?;
    if status.success() { Ok(()) } else { Err(failed(&format!("run `{shown}`"), format!("it ended with {status}"))) }
}

pub(crate) fn failed(doing: &str, outcome: String) -> Error {
    Error::Demo { doing: doing.to_owned(), outcome }
}

pub(crate) fn say(line: &str) {
    if std::io::stdout().is_terminal() {
        println!("\n\u{1b}[1m{line}\u{1b}[0m");
    } else {
        println!("\n{line}");
    }
}

/// Whether a word of kubectl's table is the object's age, as `12s` or `3m4s`.
fn is_age(word: &str) -> bool {
    word.ends_with(['s', 'm']) && word.starts_with(|c: char| c.is_ascii_digit())
}
