//! `testbed demo-pool`: nothing but a cluster, then a pool and an HTCJob by two `kubectl apply`.
#![allow(clippy::print_stdout, reason = "a command-line tool")]

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::proof::change;
use super::site::Site;
use super::{Cluster, OUTSIDE};
use crate::demo::say;
use crate::error::Result;

/// Shows it, and stays up if somebody is there who may look round.
pub(super) fn show(cluster: &Cluster, program: &Path, checkout: &Path, stay: bool) -> Result<()> {
    let site = Site::new(cluster, program, checkout)?;
    let began = Instant::now();
    let shown = install(&site).and_then(|()| use_it(&site, stay));
    if shown.is_err() {
        for line in ["get all --all-namespaces", "-n pools describe pods", "-n htc-operator logs deploy/htc-operator"] {
            let _ = site.kubectl(line);
        }
    }
    shown?;
    say(&format!("done in {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}

/// An operator without a schedd of its own.
fn install(site: &Site<'_>) -> Result<()> {
    say(
        "a cluster: a control plane, and a node that runs pods. First the operator, as docs/install.md says, but without a pool",
    );
    site.kubectl("apply -k deploy/crd")?;
    change(&site.folder.join("deploy/overlays/local/settings.env"), |line| match line.strip_prefix("HTC_SCHEDD=") {
        Some(_) => String::new(),
        None => line.to_owned(),
    })?;
    site.kubectl("apply -k deploy/overlays/local")?;
    site.kubectl("-n htc-operator rollout status deployment/htc-operator --timeout=180s")?;
    site.kubectl("create namespace pools")?;
    site.kubectl("label namespace pools pod-security.kubernetes.io/enforce=restricted")?;
    site.kubectl("apply -n pools -k deploy/namespace-pools")
}

fn use_it(site: &Site<'_>, stay: bool) -> Result<()> {
    say("a pool");
    site.add_volume("steps")?;
    site.kubectl("apply -n pools -f examples/pools/step-by-step.yaml")?;
    site.kubectl("-n pools wait --for=condition=Ready htcpool/steps --timeout=5m")?;
    site.kubectl("-n pools wait --for=condition=WorkersReady htcpool/steps --timeout=5m")?;
    site.kubectl("-n pools get pods")?;
    site.kubectl("-n pools exec deploy/steps-central-manager -- condor_status -any")?;
    say("an HTCJob of two jobs of two minutes");
    site.kubectl("apply -n pools -f examples/pools/minutes.yaml")?;
    site.kubectl("-n pools wait --for=jsonpath={.status.phase}=Running htcjob/minutes --timeout=5m")?;
    site.kubectl("-n pools scale htcpool/steps --replicas=2")?;
    site.kubectl("-n pools wait --for=condition=Complete htcjob/minutes --timeout=10m")?;
    site.kubectl("-n pools describe htcjob minutes")?;
    site.kubectl("-n pools wait --for=condition=OutputFetched htcjob/minutes --timeout=5m")?;
    site.kubectl("-n htc-operator exec deploy/htc-operator -- cat /data/htc_out/pools/minutes/latest/1/out")?;
    if stay {
        look_round(site)?;
    }
    site.kubectl("-n pools delete htcjob minutes --timeout=2m")?;
    site.kubectl("-n pools delete htcpool steps --timeout=2m")
}

/// Until Ctrl-C, which ends all.
fn look_round(site: &Site<'_>) -> Result<()> {
    say("everything stays up until Ctrl-C. In another terminal, as root:");
    let outside = std::fs::read_to_string(std::env::temp_dir().join(OUTSIDE)).unwrap_or_default();
    println!("    nsenter --target {} --net --mount --uts --wd={}", outside.trim(), site.folder.display());
    println!("    export KUBECONFIG={}", site.cluster.kube.kubeconfig().display());
    if let Some(folder) = site.cluster.assets.kubectl().parent() {
        println!("    export PATH={}:$PATH", folder.display());
    }
    println!("    kubectl get pods,htcpools,htcjobs --all-namespaces");
    println!("    kubectl -n pools scale htcpool/steps --replicas=3");
    println!("docs/pools.md goes on from here.");
    loop {
        site.cluster.must_run()?;
        thread::sleep(Duration::from_secs(1));
    }
}
