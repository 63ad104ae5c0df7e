//! Row 12: many HTCJobs of the Kubernetes backend created at once until all their Pods are made.

use std::time::Instant;

use serde_json::Value;
use testbed::wait_for;

use super::{LONG, rate, real, seconds};
use crate::bed::Bed;
use crate::cluster::{PATIENCE, htcjob};
use crate::error::Result;
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::{Options, say};

/// What a cluster runs for Jobs. There are no nodes: Pods stay Pending.
const CONTROLLERS: &[&str] = &["job-controller", "garbage-collector-controller", "serviceaccount-controller"];

pub(crate) fn measure(bed: &mut Bed, _: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    let count = options.pods;
    say(&format!("row 12: {count} HTCJobs of the Kubernetes backend at once"));
    bed.restart_with(&["--kubernetes-backend".to_owned()])?;
    let controllers = bed.controllers(CONTROLLERS)?;
    let namespace = with_account(bed)?;
    let wanted = count as usize;
    let (usage, requests) = (bed.usage()?, bed.cluster.requests()?);
    let with_pods = bed.cluster.until_jobs_have_pods(&namespace, wanted, LONG);
    let began = Instant::now();
    bed.cluster.create(&namespace, (0..count).map(|number| pods(&format!("p{number}"))))?;
    let took = with_pods.wait()?.duration_since(began).as_secs_f64();
    let requests = bed.cluster.requests()?.since(&requests);
    let cpu = bed.usage()?.cpu - usage.cpu;
    say(&format!("row 12: Pods after {}; {}", seconds(took), requests.words()));
    let (script, job) = bed.cluster.mould(&namespace)?;
    bed.clear(&namespace)?;

    say("row 12: as many Jobs by a bare client");
    let own = with_account(bed)?;
    let with_pods = bed.cluster.until_jobs_have_pods(&own, wanted, LONG);
    let began = Instant::now();
    bed.cluster.create_jobs(&own, count, &script, &job)?;
    let by_hand = with_pods.wait()?.duration_since(began).as_secs_f64();
    bed.cluster.delete_jobs(&own)?;
    drop(controllers);
    let ratio = took / by_hand;
    report.lines.push(Line {
        row: 12,
        what: format!("{count} HTCJobs of the Kubernetes backend at once until all their Pods are made"),
        operator: format!(
            "{} ({:.0}/s); {} POST and {} PATCH of Jobs; CPU {}",
            seconds(took),
            rate(count, took),
            requests.of("jobs", "POST"),
            requests.of("jobs", "PATCH"),
            seconds(cpu)
        ),
        raw: format!(
            "a client that creates as many ConfigMaps and Jobs, 16 at a time: {} ({:.0}/s)",
            seconds(by_hand),
            rate(count, by_hand)
        ),
        ratio: format!("{ratio:.2} × the time"),
        numbers: [
            ("htcjobs", real(wanted)),
            ("podsSeconds", took),
            ("bareSeconds", by_hand),
            ("bareRatio", ratio),
            ("cpuSeconds", cpu),
        ]
        .into(),
        ..Line::default()
    });
    bed.restart_with(&[])
}

/// A new namespace, in which Pods can be made: they need its ServiceAccount.
fn with_account(bed: &mut Bed) -> Result<String> {
    let name = bed.namespace()?;
    let account = ["get", "serviceaccount", "default", "--namespace", &name];
    wait_for("the ServiceAccount of a namespace", PATIENCE, || bed.kube().kubectl_ok(&account).map(drop))?;
    Ok(name)
}

fn pods(name: &str) -> Value {
    let mut object = htcjob(name, 1, "true");
    object["spec"]["backend"] = "Kubernetes".into();
    object
}
