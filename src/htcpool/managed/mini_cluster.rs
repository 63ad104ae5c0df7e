//! Workers that belong to one HTCJob: how many there should be, and of what kind. Pure.

use std::collections::BTreeMap;

use htc_api::{HTCJob, ManagedPool, ObjectName};
use htc_machine::demand::JobDemand;
use htc_machine::scaling::Goal;
use htc_machine::worker_groups::{ExistingWorkers, divide_workers};
use htc_submit::volumes;

use super::demand::{image, is_suspended, jobs_per_worker};
use super::objects::{OwnWorker, WorkerKind, WorkerSize};

/// The workers that an HTCJob requests for itself.
#[derive(Clone, Debug, PartialEq)]
pub struct MiniClusterRequest {
    /// Input for the pods of its workers.
    pub kind: WorkerKind,
    /// Requested number, before the limit of the pool.
    pub count: u32,
}

/// Returns the request of this HTCJob; `None` if it has no workers of its own.
///
/// The workers exist while HTCondor has jobs of the HTCJob: from the first submission until all have ended. With an
/// HTCQueue the first submission comes after the admission. While the HTCJob is suspended, by its spec or its queue,
/// there are only as many workers as its running jobs need.
#[must_use]
pub fn mini_cluster_request(
    pool: &ManagedPool,
    job: &HTCJob,
    work: &JobDemand,
    uid: &str,
    name: &ObjectName,
) -> Option<MiniClusterRequest> {
    let own = job.spec.mini_cluster.as_ref()?;
    let size = WorkerSize::of(pool, Some(own)).ok()?;
    let template = own.template.clone().unwrap_or_default();
    let whose = OwnWorker { uid: uid.to_owned(), name: name.clone(), template };
    let volumes = volumes::parse(&job.spec).map(<[_]>::to_vec).unwrap_or_default();
    let kind =
        WorkerKind { image: image(job.spec.image()).to_owned(), size, namespace: None, volumes, own: Some(whose) };
    let has_begun = work.begun || work.active() > 0;
    let going = job.metadata.deletion_timestamp.is_some();
    let fits = jobs_per_worker(pool, &job.spec);
    let filled = |jobs: usize, fits: u64| u32::try_from((jobs as u64).div_ceil(fits.max(1))).unwrap_or(u32::MAX);
    let (size, most) = own.bounds();
    let count = match fits {
        _ if work.ended || going || !has_begun => 0,
        Ok(fits) if is_suspended(job, work) => filled(work.running, fits).min(most),
        Ok(fits) => filled(work.idle + work.running, fits).max(size).min(most),
        Err(_) => 0,
    };
    Some(MiniClusterRequest { kind, count })
}

/// Returns the goal of each HTCJob that requests workers or has some.
///
/// If `max` is too small for all requests, each HTCJob gets one more worker in turn. A worker that is not needed is
/// removed after `after` seconds, and at once if its HTCJob requests none.
#[must_use]
pub fn goals(
    asked: &BTreeMap<String, u32>,
    there: &BTreeMap<String, ExistingWorkers>,
    (max, after): (u32, i64),
    now: i64,
) -> BTreeMap<String, Goal> {
    let may = |uid: &String, count: u32| count.min(there.get(uid).map_or(u32::MAX, |there| there.most(now)));
    let mut counts: BTreeMap<String, u32> = there.keys().map(|uid| (uid.clone(), 0)).collect();
    counts.extend(asked.iter().map(|(uid, count)| (uid.clone(), may(uid, *count))));
    let given = divide_workers(&counts, BTreeMap::new(), max, |_| ());
    let goal = |(uid, count): (String, u32)| {
        let ended = asked.get(&uid).is_none_or(|count| *count == 0);
        let goal =
            Goal::Autoscale { needed: count, min: 0, max: count, scale_down_after: if ended { 0 } else { after } };
        (uid, goal)
    };
    given.into_iter().map(goal).collect()
}

#[cfg(test)]
mod tests {
    use htc_machine::demand::Unsubmitted;
    use htc_machine::scaling::EarlyExits;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const NOW: i64 = 1_000_000;

    fn pool() -> ManagedPool {
        let pool = json!({
            "image": "htcondor:1", "schedd": { "storage": { "size": "1Gi" } },
            "workers": { "image": "i", "resources": { "cpus": 2, "memory": "4Gi", "disk": "9Gi" }, "miniClusters": { "max": 9 } },
        });
        serde_json::from_value(pool).unwrap()
    }

    fn job(spec: &Value) -> HTCJob {
        let mut object = json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": { "name": "j" },
            "spec": { "script": { "image": "docker://i", "command": "sh", "source": "x" },
                "miniCluster": { "size": 1, "maxSize": 3 } },
            // A status is not trusted: it may be written by others.
            "status": { "phase": "Running", "active": 99, "running": 99 },
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn name() -> ObjectName {
        ObjectName { namespace: "n".to_owned(), name: "j".to_owned() }
    }

    const fn begun([idle, running, held]: [usize; 3]) -> JobDemand {
        JobDemand {
            idle,
            running,
            held,
            queue: None,
            finished: 0,
            unsubmitted: Unsubmitted::Blocked,
            suspended: false,
            begun: true,
            ended: false,
        }
    }

    #[rstest]
    #[case::no_job_submitted(json!({}), JobDemand { unsubmitted: Unsubmitted::Imminent, ..JobDemand::default() }, 0)]
    #[case::some_jobs_submitted(json!({}), JobDemand { begun: false, ..begun([1, 0, 0]) }, 1)]
    #[case::two_jobs_per_worker(json!({}), begun([3, 0, 0]), 2)]
    #[case::at_most_max_size(json!({}), begun([9, 0, 0]), 3)]
    #[case::at_least_size(json!({}), begun([0, 0, 1]), 1)]
    #[case::held_jobs(json!({ "miniCluster": { "size": 0, "maxSize": 3 } }), begun([0, 0, 1]), 0)]
    #[case::suspended(json!({ "suspend": true }), begun([0, 0, 9]), 0)]
    #[case::suspended_with_running_jobs(json!({ "suspend": true }), begun([7, 2, 0]), 1)]
    #[case::suspended_by_its_queue(json!({}), JobDemand { suspended: true, ..begun([7, 2, 0]) }, 1)]
    #[case::ended(json!({}), JobDemand { ended: true, ..begun([0, 0, 0]) }, 0)]
    #[case::ended_with_running_jobs(json!({}), JobDemand { ended: true, ..begun([0, 5, 0]) }, 0)]
    #[case::not_allowed(json!({ "miniCluster": { "image": "other" } }), begun([0, 5, 0]), 0)]
    fn mini_cluster_workers_follow_the_demand(#[case] spec: Value, #[case] work: JobDemand, #[case] expected: u32) {
        let asks = mini_cluster_request(&pool(), &job(&spec), &work, "u", &name()).unwrap();
        assert_eq!(asks.count, expected);
    }

    #[test]
    fn deleted_or_shared_htcjob_requests_no_mini_cluster() {
        let running = begun([0, 5, 0]);
        let mut deleted = job(&json!({}));
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(mini_cluster_request(&pool(), &deleted, &running, "u", &name()).unwrap().count, 0);
        let mut shared = job(&json!({}));
        shared.spec.mini_cluster = None;
        assert_eq!(mini_cluster_request(&pool(), &shared, &running, "u", &name()), None);
    }

    #[test]
    fn mini_cluster_workers_run_the_requested_image() {
        let kind =
            |spec: Value| mini_cluster_request(&pool(), &job(&spec), &JobDemand::default(), "u", &name()).unwrap().kind;
        assert_eq!(kind(json!({})).image, "i");
        let other = kind(json!({ "miniCluster": { "image": "other:1", "resources": { "cpus": 1 } } }));
        assert_eq!((other.image.as_str(), other.size.cpus, other.size.memory), ("other:1", 1, 4096));
        assert_eq!(other.own.map(|own| (own.uid, own.name)), Some(("u".to_owned(), name())));
    }

    #[rstest]
    #[case::enough_for_all(&[("a", 2), ("b", 1)], 9, &[("a", 2), ("b", 1), ("gone", 0)])]
    #[case::divided_in_turn(&[("a", 9), ("b", 2)], 4, &[("a", 2), ("b", 2), ("gone", 0)])]
    fn mini_clusters_share_the_allowed_workers(
        #[case] asked: &[(&str, u32)],
        #[case] max: u32,
        #[case] expected: &[(&str, u32)],
    ) {
        let asked = asked.iter().map(|(uid, count)| ((*uid).to_owned(), *count)).collect();
        let there = BTreeMap::from([("gone".to_owned(), ExistingWorkers::default())]);
        let goals = goals(&asked, &there, (max, 300), NOW);
        let wanted: Vec<(&str, u32)> = goals.iter().map(|(uid, goal)| (uid.as_str(), goal.wanted())).collect();
        assert_eq!(wanted, expected);
    }

    #[test]
    fn ended_or_failing_mini_cluster_gives_its_workers_to_others() {
        let asked = BTreeMap::from([("a".to_owned(), 3), ("b".to_owned(), 3), ("ended".to_owned(), 0)]);
        let failing = ExistingWorkers { deaths: EarlyExits { count: 3, last: NOW }, ..ExistingWorkers::default() };
        let goals = goals(&asked, &BTreeMap::from([("a".to_owned(), failing)]), (3, 300), NOW);
        let follow = |needed, after| Goal::Autoscale { needed, min: 0, max: needed, scale_down_after: after };
        assert_eq!((goals["a"], goals["b"], goals["ended"]), (follow(0, 300), follow(3, 300), follow(0, 0)));
    }
}
