//! The pages for users and admins: every command in them runs. What else must hold of them is in tests/docs.
//!
//! Commands stand in blocks marked `sh`, which are run in order, page by page, each page in a namespace of its own. What cannot be
//! run here is marked `console`, and a comment before it says why: `<!-- not run: needs a node -->`.

mod deployment;
mod names;

use std::time::Duration;

use bed::Bed;
use bed::pages::{read, run_here};
use bed::terminal::{Page, Terminal};
use testbed::{Port, Version};

/// The page that puts an old ledger back: what the other pages' HTCJobs have done since then would be in doubt, so it runs after
/// them.
const RESTORES: &str = "docs/operating.md";

/// For the commands of one page.
const LIMIT: Duration = Duration::from_secs(400);

#[test]
fn every_command_in_the_docs_runs() {
    let ports = [Port::reserve().unwrap(), Port::reserve().unwrap()];
    let [callbacks, http] = ports.each_ref().map(|port| format!("127.0.0.1:{}", port.number));
    let bed = Bed::with_jobs_api(
        Version::Trixie,
        &[
            &format!("--callback-listen={callbacks}"),
            &format!("--callback-url=http://{callbacks}/cloudevents"),
            &format!("--metrics-bind-address={http}"),
        ],
    );
    bed.start_operator();
    bed.front();
    let failed = deployment::run_as_deployed(&bed, || {
        let run = |name: &String| {
            let page = Page::of_markdown(name, &read(name));
            if page.is_empty() {
                return None;
            }
            let here = bed.namespace();
            let terminal = Terminal::open(&bed, &here.name).with("OPERATOR", &format!("http://{http}"));
            terminal.run(&page, LIMIT).err()
        };
        let (alone, together): (Vec<_>, Vec<_>) = run_here().into_iter().partition(|name| name == RESTORES);
        let mut failed = std::thread::scope(|scope| {
            let threads: Vec<_> = together.iter().map(|name| scope.spawn(|| run(name))).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        failed.extend(alone.iter().filter_map(run));
        failed
    });
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
