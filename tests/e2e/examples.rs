//! The examples: each is accepted by a real API server and does what it says, as the commands in its own comments show.

mod argo;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use bed::terminal::{Page, Terminal};
use bed::{Bed, Namespace, is_true};
use rstest::rstest;
use testbed::Version::{self, Sid, Trixie};
use testbed::{Assets, PoolOptions, Registry, Scratch, tool};

/// For the commands of one example.
const LIMIT: Duration = Duration::from_secs(400);

/// A site whose jobs pull the examples' images from a registry of its own.
struct Site {
    bed: Bed,
    // These live as long as the bed.
    _registry: Registry,
    _images: Scratch,
}

impl Site {
    fn new(version: Version) -> Self {
        let (assets, images) = (Assets::locate().unwrap(), Scratch::new().unwrap());
        let registry = Registry::start(&assets).unwrap();
        let root = images.path().join("cc7-cms");
        let mut cp = std::process::Command::new("cp");
        tool::run_ok("copying an image", cp.arg("-a").arg(assets.image()).arg(&root), "", bed::PATIENCE).unwrap();
        fs::write(root.join("etc/os-release"), "NAME=\"CentOS Linux\"\n").unwrap();
        registry.push("mirror/clange/cc7-cms", "latest", &root).unwrap();
        let arguments = [
            format!("--image-prefix=gitlab-registry.cern.ch/={}/mirror/", registry.address()),
            format!("--image=python:3.12={}", assets.python().display()),
            "--queueing=embedded".to_owned(),
        ];
        let bed = Bed::new(version, &PoolOptions::default(), &arguments.each_ref().map(String::as_str));
        bed.start_operator();
        Self { bed, _registry: registry, _images: images }
    }

    fn shared(version: Version) -> &'static Self {
        static TRIXIE: OnceLock<Site> = OnceLock::new();
        static SID: OnceLock<Site> = OnceLock::new();
        bed::turns::take(bed::Weight::Light);
        match version {
            Trixie => TRIXIE.get_or_init(|| Self::new(version)),
            Sid => SID.get_or_init(|| Self::new(version)),
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Runs the commands in an example's comments, in a namespace of its own.
fn follow<'a>(bed: &'a Bed, file: &str) -> Namespace<'a> {
    let here = bed.namespace();
    let name = format!("examples/{file}");
    let page = Page::of_comments(&name, &fs::read_to_string(folder().join(file)).unwrap());
    assert!(!page.is_empty(), "{name} does not say how to look at it");
    Terminal::open(bed, &here.name).run(&page, LIMIT).unwrap_or_else(|error| panic!("{error}\n{}", bed.log()));
    here
}

fn out(here: &Namespace<'_>, name: &str, index: u32) -> String {
    here.wait_output(name);
    fs::read_to_string(here.output(name, index).join("out")).unwrap()
}

fn is_gone(here: &Namespace<'_>, name: &str) -> bool {
    here.all().iter().all(|object| object["metadata"]["name"] != name)
}

#[rstest]
#[case(Sid, "retcode/zero.yaml", "zero", "A\n")]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case(Trixie, "retcode/zero.yaml", "zero", "A\n")]
#[case(Trixie, "command/python.yaml", "command-python", "A\n")]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case(Sid, "command/python.yaml", "command-python", "A\n")]
#[case(Sid, "resources.yaml", "resources", "hello, $HOME is not expanded here\n")]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case(Trixie, "resources.yaml", "resources", "hello, $HOME is not expanded here\n")]
#[case(Trixie, "retries.yaml", "retries", "the second try succeeds\n")]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case(Sid, "retries.yaml", "retries", "the second try succeeds\n")]
#[case(Sid, "hold-and-release.yaml", "hold-and-release", "calibrated\n")]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case(Trixie, "hold-and-release.yaml", "hold-and-release", "calibrated\n")]
#[case(Trixie, "suspend.yaml", "suspended", "")]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case(Sid, "suspend.yaml", "suspended", "")]
#[case(Sid, "htcopts.yaml", "htcopts", "two cores, please\n")]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case(Trixie, "htcopts.yaml", "htcopts", "two cores, please\n")]
#[case(Trixie, "image-registry.yaml", "image-registry", "NAME=\"CentOS Linux\"\n")]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case(Sid, "image-registry.yaml", "image-registry", "NAME=\"CentOS Linux\"\n")]
fn example_succeeds_and_prints_its_output(
    #[case] version: Version,
    #[case] file: &str,
    #[case] name: &str,
    #[case] printed: &str,
) {
    let here = follow(&Site::shared(version).bed, file);
    let object = here.wait_ended(name);
    assert!(is_true(&object, "Complete"), "{object:#}");
    assert_eq!(out(&here, name, 0), printed);
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn queue_example_runs_three_jobs(#[case] version: Version) {
    let here = follow(&Site::shared(version).bed, "queue.yaml");
    assert!(is_true(&here.wait_ended("queue"), "Complete"));
    assert_eq!(
        [0, 1, 2].map(|index| out(&here, "queue", index)),
        [0, 1, 2].map(|n| format!("this is job {n} of queue\n"))
    );
}

#[test]
fn container_example_prints_its_arguments() {
    let here = follow(&Site::shared(Trixie).bed, "container.yaml");
    assert!(is_true(&here.wait_ended("container"), "Complete"));
    assert_eq!(out(&here, "container", 1), "job 1 reads muons.root, and $HOME is not expanded\n");
}

#[test]
fn htcqueue_example_completes_within_its_quota() {
    let here = follow(&Site::shared(Trixie).bed, "htcqueue.yaml");
    assert!(is_true(&here.wait_ended("queued"), "Complete"));
    assert_eq!(out(&here, "queued", 3), "job 3 had quota\n");
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn items_example_runs_one_job_per_item(#[case] version: Version) {
    let here = follow(&Site::shared(version).bed, "items.yaml");
    assert!(is_true(&here.wait_ended("items"), "Complete"));
    let items = ["one.root", "two words.root", "$(Process).root"];
    for (index, item) in (0..).zip(items) {
        assert_eq!(out(&here, "items", index), format!("job {index} reads {item}\n"));
    }
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn outputs_example_returns_only_selected_files(#[case] version: Version) {
    let here = follow(&Site::shared(version).bed, "outputs.yaml");
    assert_eq!(out(&here, "outputs", 0), "");
    let output = here.output("outputs", 0);
    assert_eq!(fs::read_to_string(output.join("plots/mass.pdf")).unwrap(), "1\n");
    assert_eq!(fs::read_to_string(output.join("summary/2026/fit.txt")).unwrap(), "3\n");
    assert!(!output.join("plots/raw.root").exists() && !output.join("scratch.root").exists());
    let err = fs::read_to_string(output.join("err")).unwrap();
    assert_eq!(err, "htc-operator: nothing matches 1 of spec.outputs: tables/*.csv\n");
}

#[test]
fn items_from_example_runs_one_job_per_line() {
    let here = follow(&Site::shared(Sid).bed, "items-from.yaml");
    assert!(is_true(&here.wait_ended("items-from"), "Complete"));
    for (index, item) in (0..).zip(["one.root", "two words.root", "three.root"]) {
        assert_eq!(out(&here, "items-from", index), format!("job {index} reads {item}\n"));
    }
}

#[test]
fn files_example_brings_its_files() {
    let here = follow(&Site::shared(Sid).bed, "files.yaml");
    assert!(is_true(&here.wait_ended("files"), "Complete"));
    for index in 0..2 {
        assert_eq!(out(&here, "files", index), "selected with pt: 25\n");
    }
}

#[test]
fn retry_example_reruns_only_failed_jobs() {
    let here = follow(&Site::shared(Sid).bed, "retry.yaml");
    assert!(is_true(&here.wait_ended("retry-r1"), "Complete"));
    assert_eq!(here.get("retry")["status"]["failedIndexes"], "1,3");
    for index in [1, 3] {
        assert_eq!(out(&here, "retry-r1", index), format!("job {index} of retry-r1 succeeds\n"));
    }
}

#[test]
fn single_jobs_example_works() {
    let here = follow(&Site::shared(Trixie).bed, "single-jobs.yaml");
    here.delete("single-jobs");
}

#[test]
fn parallelism_example_completes() {
    let here = follow(&Site::shared(Trixie).bed, "parallelism.yaml");
    assert!(is_true(&here.wait_ended("parallelism"), "Complete"));
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn notzero_example_fails(#[case] version: Version) {
    let here = follow(&Site::shared(version).bed, "retcode/notzero.yaml");
    let object = here.wait_ended("notzero");
    assert!(is_true(&object, "Failed") && object["status"]["failed"] == 1, "{object:#}");
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn deadline_example_deletes_itself(#[case] version: Version) {
    let here = follow(&Site::shared(version).bed, "deadline.yaml");
    assert!(is_gone(&here, "deadline"));
}

#[test]
#[ignore = "make test-long: the machine is busy for a minute with a thousand containers"]
fn thousand_example_completes_and_deletes_itself() {
    run_thousand_example(Trixie);
}

#[test]
#[ignore = "make test-long: the machine is busy for minutes with a thousand containers"]
fn thousand_example_completes_and_deletes_itself_on_sid() {
    run_thousand_example(Sid);
}

/// In a pool of their own, so that they are in nobody's way, and with the time for a submission that operators have.
fn run_thousand_example(version: Version) {
    bed::turns::take(bed::Weight::Heavy);
    let bed = Bed::new(version, &PoolOptions::default(), &["--submit-timeout=60s", "--submit-timeout-max=600s"]);
    bed.start_operator();
    let here = follow(&bed, "thousand.yaml");
    assert!(is_gone(&here, "thousand"));
    assert!(bed.queue("true", &["ClusterId"]).is_empty());
}

#[test]
fn command_r_example_is_accepted() {
    let bed = &Site::shared(Sid).bed;
    let here = follow(bed, "command/R.yaml");
    here.wait("command-r", "accepted by HTCondor", |object| is_true(object, "Submitted"));
    here.delete("command-r");
}

#[test]
fn every_example_file_has_a_test() {
    let source = concat!(
        include_str!("examples.rs"),
        include_str!("examples/argo.rs"),
        include_str!("kubernetes_backend/document.rs")
    );
    let mut files = Vec::new();
    let mut folders = vec![folder()];
    while let Some(here) = folders.pop() {
        for entry in fs::read_dir(here).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(folder()).unwrap().display().to_string());
            }
        }
    }
    // Those of credentials need pools that ask for them: credentials.rs. Those of pools need other pools: pools/managed.rs has one, and
    // apply.rs has the API server look at all of them.
    let elsewhere = |file: &str| file.starts_with("credentials") || file.starts_with("pools/");
    let forgotten = files.iter().filter(|file| !elsewhere(file) && !source.contains(&format!("{file:?}")));
    assert_eq!(forgotten.collect::<Vec<_>>(), Vec::<&String>::new());
}
