//! Links to the worker's token that a payload leaves where HTCondor's starter looks for output.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use testbed::{Version, wait_for};

use bed::PATIENCE;

use super::super::site::{delete, wait_ready};
use super::node::Node;
use super::{Cluster, POOL, apply, fixed, lasting, pool, worker_secret};

on_versions! {
    both: worker_token_does_not_leak_by_links_after_wrapper_kill;
}

/// Makes links by every way that the starter may follow, and waits until its wrapper has been killed.
const LINKS: &str = "token=/htcpool/local/tokens.d/token scratch=$(cd ../.. && pwd)
    mkdir links; ln -s $token links/token; ln -s $token token
    ln -s $token $scratch/token; ln -s $token $scratch/.token; ln token $scratch/same; mv token $scratch/moved
    rm -f $scratch/_condor_stderr; ln -s $token $scratch/_condor_stderr; : >>$scratch/_condor_stderr
    mv links $scratch/links; cp -a links $scratch/copy; mv ../run $scratch/run
    ls -la $scratch >/runs/links; touch /runs/made; sleep 600\n";
/// With a folder in the place of a stream HTCondor would give back no output.
const FOLDER: &str = "token=/htcpool/local/tokens.d/token stream=$(cd ../.. && pwd)/_condor_stdout
    mkdir links; ln -s $token links/token; rm $stream
    mv links $stream || mkdir $stream; ln -s $token $stream/token; ls -la $stream >/runs/folder; exit 0\n";

fn worker_token_does_not_leak_by_links_after_wrapper_kill(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        let token = here.secret_entry(&worker_secret(&here.name, 0), "token");
        let came = |name: &str| {
            let found = [here.output(name, 0), node.claims()].map(|folder| holding(&folder, token.trim())).concat();
            let left = fs::read_to_string(node.runs.join(name)).unwrap_or_default();
            assert_eq!(found, Vec::<PathBuf>::new(), "{left}");
        };
        let create = |name: &str, source: &str| {
            let mut object = lasting(name);
            object["spec"]["script"]["source"] = source.into();
            here.create(&object);
        };
        create("links", LINKS);
        wait_for("the payload to have made its links", PATIENCE, || {
            if node.runs.join("made").exists() { Ok(()) } else { Err("not yet") }
        })
        .unwrap();
        let worker = node.pods("worker")[0]["metadata"]["name"].as_str().unwrap().to_owned();
        for wrapper in node.processes(&worker, "htc-job-wrapper") {
            kill_process(Pid::from_raw(wrapper.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
        }
        here.wait_ended("links");
        here.wait_output("links");
        came("links");

        create("folder", FOLDER);
        here.wait_ended("folder");
        here.wait_output("folder");
        came("folder");
        for name in ["links", "folder"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}

/// The files below a folder that have a text in them.
fn holding(folder: &Path, text: &str) -> Vec<PathBuf> {
    let mut files = bed::files_below(folder, &|_| true);
    files.retain(|file| fs::read(file).is_ok_and(|all| String::from_utf8_lossy(&all).contains(text)));
    files
}
