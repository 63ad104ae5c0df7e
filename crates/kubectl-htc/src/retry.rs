//! Command `retry`: creates an HTCJob that runs the failed jobs of another one again.

use std::collections::BTreeMap;
use std::process::ExitCode;

use htc_api::htcproc::State;
use htc_api::{FILES_OF_ANNOTATION, HTCJob, Phase};
use htc_machine::Index;
use htc_machine::indices::Indices;
use htc_submit::spec;
use htc_submit::spec::PlanError;
use kube::ResourceExt as _;
use serde_json::Value;

use super::CommandFailure;
use super::cluster::{Cluster, JobsClient, parse_name};
use super::new::{DryRun, New};

/// Maximum bytes of an HTCJob that is created: etcd takes 1.5 MiB, and the status and additions by the API server
/// need space.
const LARGEST: usize = 1_400_000;
/// Maximum bytes of indexes in a message.
const INDEXES: usize = 512;
/// Number of names that are tried.
const NAMES: u32 = 100;

#[derive(clap::Args)]
#[command(
    after_help = "The new HTCJob has the same spec, the same items and the same files, and is named NAME-r1, NAME-r2 and so on. Items that were read \
    from a ConfigMap are written into spec.items: those of the jobs that run again, each at its index.\n\n\
    Examples:\n  \
    kubectl htc retry sums\n  \
    kubectl htc retry sums --indexes 3,17,200-210\n  \
    kubectl htc retry sums --dry-run=client -o yaml"
)]
pub(super) struct Arguments {
    /// Name of the HTCJob, which must have ended.
    #[arg(value_parser = parse_name)]
    name: String,
    /// Run the failed jobs again. This is the default.
    #[arg(long, conflicts_with = "indexes")]
    failed: bool,
    /// Run these jobs again, for example `3,17,200-210`.
    #[arg(long)]
    indexes: Option<Indices>,
    #[command(flatten)]
    new: New,
}

pub(super) async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<ExitCode, CommandFailure> {
    let jobs = cluster.jobs().await?;
    let former = jobs.get(&arguments.name).await?;
    let indexes = match &arguments.indexes {
        Some(indexes) if !arguments.failed => ended(&former, indexes)?,
        _ => match failed(&former)? {
            Some(indexes) => indexes,
            None => failed_listed(&jobs, &former).await?,
        },
    };
    let items = if former.spec.items_from.is_some() { items(&jobs, &former, &indexes).await? } else { BTreeMap::new() };
    let mut new = again(&former, &indexes, items)?;
    create(&jobs, &arguments.name, &arguments.new, &mut new).await?;
    arguments.new.print(&new, &format!(": jobs {indexes} of {}", arguments.name))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns these jobs, if each has ended: one that still runs would run twice.
fn ended(former: &HTCJob, indexes: &Indices) -> Result<Indices, CommandFailure> {
    let status = former.status.as_ref();
    if status.and_then(|status| status.phase) == Some(Phase::Completed) {
        return Ok(indexes.clone());
    }
    let lists = status.into_iter().flat_map(|status| [&status.completed_indexes, &status.failed_indexes]);
    let ended: Vec<Indices> = lists.flatten().filter_map(|list| list.trim_end_matches(",…").parse().ok()).collect();
    let open = indexes.without(&Indices::union(&ended));
    if open.is_empty() {
        Ok(indexes.clone())
    } else {
        Err(CommandFailure(format!("jobs {open} of HTCJob {} have not ended", former.name_any())))
    }
}

/// Returns the failed jobs, once all have ended; `None` if they are too many for the status to list.
fn failed(former: &HTCJob) -> Result<Option<Indices>, CommandFailure> {
    let name = former.name_any();
    let status = former.status.as_ref();
    let phase = status.and_then(|status| status.phase);
    if phase != Some(Phase::Completed) {
        let phase = phase.map_or_else(|| "not Pending yet".to_owned(), |phase| phase.to_string());
        let why = format!(
            "HTCJob {name} has not ended ({phase}): wait for it, or choose jobs that have ended with --indexes"
        );
        return Err(CommandFailure(why));
    }
    let indexes = status.and_then(|status| status.failed_indexes.as_deref());
    let indexes = indexes.ok_or_else(|| CommandFailure(format!("no job of HTCJob {name} has failed")))?;
    Ok(indexes.parse().ok())
}

/// Returns the failed jobs, one by one from the jobs API.
async fn failed_listed(jobs: &JobsClient, former: &HTCJob) -> Result<Indices, CommandFailure> {
    let (mut failed, name) = (Vec::new(), former.name_any());
    let listed = jobs.each_page(&name, "", "application/json", |page| failed.extend(failed_of(&page)));
    listed.await.map_err(|CommandFailure(why)| {
        CommandFailure(format!(
            "status.failedIndexes of HTCJob {name} is too long to list all jobs, and they cannot be read one by one: {why}. Choose \
             jobs with --indexes"
        ))
    })?;
    let expected = former.status.as_ref().map(|status| status.failed).unwrap_or_default();
    let found: Indices = failed.into_iter().collect();
    if i64::try_from(found.len()).ok() != Some(expected) {
        return Err(CommandFailure(format!(
            "{expected} jobs of HTCJob {name} have failed, and the operator knows which {} of them are: choose jobs with --indexes",
            found.len()
        )));
    }
    Ok(found)
}

/// Returns the jobs on this page that count as failed.
fn failed_of(page: &Value) -> Vec<Index> {
    let procs = page["items"].as_array().into_iter().flatten();
    let state = |proc: &Value| proc["status"]["state"].as_str()?.parse::<State>().ok();
    let failed = procs.filter(|proc| state(proc).is_some_and(State::has_failed));
    failed.filter_map(|proc| proc["spec"]["index"].as_u64()?.try_into().ok()).map(Index).collect()
}

/// Returns the same HTCJob with these jobs only, without a name. In place of a ConfigMap it has the `items` of these
/// jobs: each at its index, and empty ones for those that do not run.
fn again(former: &HTCJob, indexes: &Indices, mut items: BTreeMap<Index, String>) -> Result<HTCJob, CommandFailure> {
    let refused = |error: PlanError| CommandFailure(format!("HTCJob {}: {error}", former.name_any()));
    let queue = spec::queue(&former.spec, read(former)).map_err(refused)?;
    let ours = spec::indexes(&former.spec, queue).map_err(refused)?;
    let outside = indexes.without(&ours.unwrap_or_else(|| Indices::first(queue)));
    if !outside.is_empty() {
        return Err(CommandFailure(format!("HTCJob {} has no jobs {outside}", former.name_any())));
    }
    let mut spec = former.spec.clone();
    (spec.indexes, spec.suspend) = (Some(indexes.to_string()), false);
    if spec.items_from.take().is_some() {
        let unknown: Indices = indexes.iter().filter(|index| !items.contains_key(index)).collect();
        if !unknown.is_empty() {
            return Err(CommandFailure(format!(
                "the operator does not know the items of jobs {} any more: create an HTCJob with their items in spec.items",
                unknown.within(INDEXES)
            )));
        }
        spec.items = (0..queue).map(|index| items.remove(&Index(index)).unwrap_or_default()).collect();
    }
    let mut new = HTCJob::new("", spec);
    new.metadata.namespace = former.namespace();
    new.metadata.labels.clone_from(&former.metadata.labels);
    let has_files = former.status.as_ref().is_some_and(|status| !status.inputs.is_empty());
    if let Some(uid) = former.uid().filter(|_| has_files) {
        new.annotations_mut().insert(FILES_OF_ANNOTATION.to_owned(), uid);
    }
    let size = serde_json::to_vec(&new).map_err(|error| CommandFailure::new("write the new HTCJob", error))?.len();
    if size > LARGEST {
        return Err(CommandFailure(format!(
            "with the items of {} jobs in spec.items the new HTCJob would have {size} bytes, and Kubernetes has room for {LARGEST}: \
             run fewer of them at a time with --indexes, or create an HTCJob with spec.itemsFrom and spec.indexes",
            indexes.len()
        )));
    }
    Ok(new)
}

/// Returns how many items the operator has read from the ConfigMap of this HTCJob.
fn read(former: &HTCJob) -> Option<u32> {
    former.spec.items_from.as_ref()?;
    former.status.as_ref()?.total?.try_into().ok()
}

/// Returns the items of these jobs as the operator has read them: the ConfigMap may have changed since.
async fn items(
    jobs: &JobsClient,
    former: &HTCJob,
    indexes: &Indices,
) -> Result<BTreeMap<Index, String>, CommandFailure> {
    let (mut items, name) = (BTreeMap::new(), former.name_any());
    let listed = jobs.each_page(&name, "", "application/json", |page| {
        for spec in page["items"].as_array().into_iter().flatten().map(|proc| &proc["spec"]) {
            let index = spec["index"].as_u64().and_then(|index| index.try_into().ok()).map(Index);
            if let (Some(index), Some(item)) = (index.filter(|index| indexes.contains(*index)), spec["item"].as_str()) {
                items.insert(index, item.to_owned());
            }
        }
    });
    listed.await.map_err(|CommandFailure(why)| {
        CommandFailure(format!("the items of HTCJob {name} (spec.itemsFrom) cannot be read: {why}"))
    })?;
    Ok(items)
}

/// Creates the HTCJob as `NAME-r1`, or with the next number that is free.
async fn create(jobs: &JobsClient, name: &str, how: &New, new: &mut HTCJob) -> Result<(), CommandFailure> {
    let (base, last) = match name.rsplit_once("-r").map(|(base, number)| (base, number.parse::<u32>())) {
        Some((base, Ok(number))) => (base, number),
        Some((_, Err(_))) | None => (name, 0),
    };
    for number in (1..=NAMES).map(|more| last.saturating_add(more)) {
        let name = format!("{base}-r{number}");
        new.metadata.name = Some(name.clone());
        let failure = |error| CommandFailure::new(&format!("create HTCJob {}/{name}", jobs.namespace), error);
        if how.dry_run == DryRun::Client {
            if jobs.api.get_opt(&name).await.map_err(failure)?.is_none() {
                return Ok(());
            }
            continue;
        }
        match jobs.api.create(&how.parameters(), new).await {
            Ok(created) => {
                *new = created;
                return Ok(());
            }
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
            Err(error) => return Err(failure(error)),
        }
    }
    Err(CommandFailure(format!(
        "{base}-r{} to {base}-r{} exist: delete those that nobody needs",
        last + 1,
        last + NAMES
    )))
}

#[cfg(test)]
mod tests {
    use htc_api::{HTCJobSpec, HTCJobStatus, InputStatus, ItemsFrom};

    use super::*;

    fn job(failed: Option<&str>, phase: Phase) -> HTCJob {
        let mut job = HTCJob::new("sums", HTCJobSpec { queue: Some(10), suspend: true, ..HTCJobSpec::default() });
        let failed_indexes = failed.map(str::to_owned);
        job.status = Some(HTCJobStatus { phase: Some(phase), failed_indexes, ..HTCJobStatus::default() });
        job
    }

    #[test]
    fn failed_jobs_come_from_the_status() {
        let failed = |job: &HTCJob| failed(job).map(|set| set.map(|set| set.to_string())).map_err(|failure| failure.0);
        assert_eq!(failed(&job(Some("1,3-5"), Phase::Completed)), Ok(Some("1,3-5".to_owned())));
        assert!(failed(&job(None, Phase::Completed)).unwrap_err().contains("has failed"));
        assert!(failed(&job(Some("1"), Phase::Running)).unwrap_err().contains("has not ended (Running)"));
        assert_eq!(failed(&job(Some("1,3,…"), Phase::Completed)), Ok(None), "those are listed one by one");
        let proc =
            |index: u32, state: &str| serde_json::json!({ "spec": { "index": index }, "status": { "state": state } });
        let page = serde_json::json!({ "items": [proc(1, "Failed"), proc(2, "Succeeded"), proc(7, "Removed")] });
        assert_eq!(failed_of(&page), [Index(1), Index(7)]);
    }

    #[test]
    fn unfinished_jobs_are_not_retried() {
        let running = job(Some("1,3-5"), Phase::Running);
        assert!(ended(&running, &"1,4".parse().unwrap()).is_ok());
        assert_eq!(ended(&running, &"1-2".parse().unwrap()).unwrap_err().0, "jobs 2 of HTCJob sums have not ended");
        assert!(ended(&job(None, Phase::Completed), &"2".parse().unwrap()).is_ok());
    }

    #[test]
    fn retried_htcjob_has_the_same_spec_and_the_given_indexes() {
        let former = job(Some("1"), Phase::Completed);
        let again = |job: &HTCJob, indexes: &str| again(job, &indexes.parse().unwrap(), BTreeMap::new());
        let new = again(&former, "1,9").unwrap();
        assert_eq!((new.spec.indexes.as_deref(), new.spec.queue, new.spec.suspend), (Some("1,9"), Some(10), false));
        assert!(new.status.is_none());
        assert_eq!(again(&former, "9-11").unwrap_err().0, "HTCJob sums has no jobs 10-11");
        let mut some = former;
        some.spec.indexes = Some("4,2-3".to_owned());
        assert_eq!(again(&some, "1,4").unwrap_err().0, "HTCJob sums has no jobs 1");
    }

    #[test]
    fn files_are_those_of_the_former_htcjob() {
        let mut former = job(Some("1"), Phase::Completed);
        former.metadata.uid = Some("u-1".to_owned());
        let files_of = |former: &HTCJob| {
            let new = again(former, &"1".parse().unwrap(), BTreeMap::new()).unwrap();
            new.annotations().get(FILES_OF_ANNOTATION).cloned()
        };
        assert_eq!(files_of(&former), None);
        former.status.as_mut().unwrap().inputs = vec![InputStatus::default()];
        assert_eq!(files_of(&former), Some("u-1".to_owned()));
    }

    #[test]
    fn items_of_a_config_map_keep_their_indexes() {
        let mut former = job(Some("1,3"), Phase::Completed);
        (former.spec.queue, former.spec.items_from) = (None, Some(ItemsFrom::default()));
        former.status.as_mut().unwrap().total = Some(5);
        let items = |length: usize| [1, 3].map(|index| (Index(index), "x".repeat(length))).into();
        let wanted: Indices = "1,3".parse().unwrap();
        let new = again(&former, &wanted, items(2)).unwrap().spec;
        assert_eq!(new.items, ["", "xx", "", "xx", ""]);
        assert_eq!((new.items_from, new.indexes.as_deref()), (None, Some("1,3")));
        let error = again(&former, &wanted, [(Index(3), String::new())].into()).unwrap_err().0;
        assert!(error.contains("the items of jobs 1 any more"), "{error}");
        let error = again(&former, &wanted, items(LARGEST / 2)).unwrap_err().0;
        assert!(error.contains("run fewer of them at a time with --indexes"), "{error}");
        let outside = again(&former, &"4-5".parse().unwrap(), BTreeMap::new()).unwrap_err().0;
        assert_eq!(outside, "HTCJob sums has no jobs 5");
        former.status = None;
        assert!(again(&former, &wanted, items(2)).is_err(), "the items are not read yet");
    }
}
