//! Row 14: many HTCJobs through Kueue, beside as many Workloads that nobody stands behind.

use std::time::Instant;

use serde_json::{Value, json};
use testbed::Kueue;

use super::{LONG, rate, real, seconds};
use crate::bed::Bed;
use crate::cluster::htcjob;
use crate::error::Result;
use crate::raw::Raw;
use crate::report::{Line, Report};
use crate::{Options, say};

/// Name of the queues.
const QUEUE: &str = "bench";

pub(crate) fn measure(bed: &mut Bed, _: &Raw, options: &Options, report: &mut Report) -> Result<()> {
    let count = options.workloads;
    let wanted = count as usize;
    bed.pool.set_start(false)?;
    say("row 14: starting Kueue");
    let kueue = Kueue::start(bed.kube())?;
    let (bare, own) = (bed.namespace()?, bed.namespace()?);
    bed.kube().apply_stdin(&queues(2 * count, &[&bare, &own]).to_string())?;
    bed.restart_with(&["--queueing=kueue".to_owned(), "--kueue-resource=jobs".to_owned()])?;

    say(&format!("row 14: {count} bare Workloads at once"));
    let admitted = bed.cluster.until_admitted(&bare, wanted, LONG);
    let (requests, began) = (bed.cluster.requests()?, Instant::now());
    bed.cluster.create_workloads(&bare, QUEUE, count)?;
    let by_hand = admitted.wait()?.duration_since(began).as_secs_f64();
    let bare_writes = bed.cluster.requests()?.since(&requests);
    say(&format!("row 14: writes: {}", bare_writes.words()));

    say(&format!("row 14: {count} HTCJobs at once"));
    let (cpu, calls, requests) = (bed.usage()?.cpu, bed.tools.calls(), bed.cluster.requests()?);
    let admitted = bed.cluster.until_admitted(&own, wanted, LONG);
    let began = Instant::now();
    bed.cluster.create(&own, (0..count).map(|number| in_queue(&format!("k{number}"))))?;
    let admitted = admitted.wait()?.duration_since(began).as_secs_f64();
    let ids = bed.cluster.seen.wait("ids in all statuses", &own, LONG, |tally| tally.with_ids == wanted)?;
    let ids = ids.duration_since(began).as_secs_f64();
    let cpu = bed.usage()?.cpu - cpu;
    let (calls, writes) = (bed.tools.calls().since(&calls), bed.cluster.requests()?.since(&requests));
    say(&format!("row 14: tools: {}; writes: {}", calls.words(), writes.words()));
    say(&format!("row 14: admitted after {}, ids after {}", seconds(admitted), seconds(ids)));
    let ratio = admitted / by_hand;
    report.lines.push(Line {
        row: 14,
        what: format!("{count} HTCJobs at once through Kueue"),
        operator: format!(
            "all admitted after {} ({:.0}/s), ids in all statuses after {} ({:.0}/s); {} API writes in all; CPU {}",
            seconds(admitted),
            rate(count, admitted),
            seconds(ids),
            rate(count, ids),
            writes.writes(),
            seconds(cpu)
        ),
        raw: format!(
            "as many bare Workloads, created 16 at a time, until all are admitted: {} ({:.0}/s), {} API writes",
            seconds(by_hand),
            rate(count, by_hand),
            bare_writes.writes()
        ),
        ratio: format!("{ratio:.2} × the time until admitted, {:.2} × until ids", ids / by_hand),
        numbers: [
            ("htcjobs", real(wanted)),
            ("admittedSeconds", admitted),
            ("idsSeconds", ids),
            ("bareSeconds", by_hand),
            ("bareRatio", ratio),
            ("cpuSeconds", cpu),
        ]
        .into(),
        ..Line::default()
    });
    bed.pool.tool("condor_rm", &["-all"])?;
    bed.clear(&own)?;
    bed.restart_with(&[])?;
    // Its webhooks stay: no row that makes a Job comes after this one.
    kueue.stop()?;
    Ok(())
}

fn queues(jobs: u32, namespaces: &[&str]) -> Value {
    let kind = |kind: &str, metadata: Value, spec: Value| json!({ "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec });
    let resources = json!([{ "name": "htc.cern.ch/jobs", "nominalQuota": jobs }]);
    let group =
        json!({ "coveredResources": ["htc.cern.ch/jobs"], "flavors": [{ "name": QUEUE, "resources": resources }] });
    let mut all = vec![
        kind("ResourceFlavor", json!({ "name": QUEUE }), json!({})),
        kind("ClusterQueue", json!({ "name": QUEUE }), json!({ "namespaceSelector": {}, "resourceGroups": [group] })),
    ];
    all.extend(namespaces.iter().map(|namespace| {
        kind("LocalQueue", json!({ "name": QUEUE, "namespace": namespace }), json!({ "clusterQueue": QUEUE }))
    }));
    json!({ "apiVersion": "v1", "kind": "List", "items": all })
}

fn in_queue(name: &str) -> Value {
    let mut object = htcjob(name, 1, "true");
    object["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": QUEUE });
    object
}
