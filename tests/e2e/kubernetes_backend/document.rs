//! The page for users and the examples, as far as no node is needed: Pods end as soon as they are there, by our word.

use std::time::Duration;

use bed::pages::read;
use bed::terminal::{Page, Terminal};
use bed::{Namespace, beside};
use testbed::Version;

use super::stage::{Owned as _, Stage};

on_versions! {
    trixie: page_commands_and_examples_work;
}

const LIMIT: Duration = Duration::from_secs(300);

/// The HTCJobs whose Pods end well; those of others wait.
const END: [&str; 2] = ["pods-", "volume-"];

/// What the page applies itself.
const APPLIED: &str = "kubernetes/claim.yaml";

/// Ends each Pod that waits to be run.
fn end_pods(here: &Namespace<'_>) {
    for pod in here.pods().iter().filter(|pod| pod["status"]["phase"] == "Pending") {
        let name = pod["metadata"]["name"].as_str().unwrap();
        if END.iter().any(|begin| name.starts_with(begin)) {
            let ended = serde_json::json!({ "status": { "phase": "Succeeded" } });
            // It may be gone by now.
            let _ = here.try_patch_status("pod", name, &ended);
        }
    }
    std::thread::sleep(Duration::from_millis(200));
}

fn page_commands_and_examples_work(version: Version) {
    let stage = Stage::start(version);
    assert!(read("docs/kubernetes-backend.md").contains(APPLIED));
    let page = ("docs/kubernetes-backend.md", Page::of_markdown as fn(&str, &str) -> Page);
    let examples = ["kubernetes/pods.yaml", "kubernetes/volume.yaml"].map(|file| format!("examples/{file}"));
    let comments = Page::of_comments as fn(&str, &str) -> Page;
    let pages = std::iter::once((page.0.to_owned(), page.1)).chain(examples.map(|file| (file, comments)));
    for (name, parse) in pages {
        let here = stage.namespace();
        let page = parse(&name, &read(&name));
        assert!(!page.is_empty(), "{name}");
        let run = || Terminal::open(&stage.bed, &here.name).run(&page, LIMIT);
        let (ran, ()) = beside((), |()| end_pods(&here), run);
        ran.unwrap_or_else(|error| panic!("{error}\n{}", stage.bed.log()));
        here.wait_all_gone();
    }
}
