//! The files of all jobs of an HTCJob as one archive.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bed::direct::Direct;
use bed::person::Person;
use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, UNTIL_LET_GO, htcjob};
use serde_json::json;
use testbed::{FRONT_PROXY, Version, wait_for};

use crate::jobs_api::{API, json};

on_versions! {
    long: archive_of_an_htcjob_has_all_jobs_or_no_end;
}

/// More than there is room for on the way to who does not read.
const SIZE: usize = 100_000_000;

fn path(here: &Namespace<'_>, name: &str) -> String {
    format!("{API}/namespaces/{}/htcstories/{name}/files", here.name)
}

fn fetch(person: &Person<'_>, path: &str) -> Vec<u8> {
    let output = person.command(&["get", "--raw", path]).output().unwrap();
    assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Gives an archive to tar, which may find it cut; the folder that it makes of it.
fn untar(bed: &Bed, archive: &[u8], name: &str) -> (bool, PathBuf) {
    let folder = bed.scratch().dir(name).unwrap();
    let mut tar = Command::new("tar").arg("-x").current_dir(&folder).stdin(Stdio::piped()).spawn().unwrap();
    let written = tar.stdin.take().unwrap().write_all(archive);
    (tar.wait().unwrap().success() && written.is_ok(), folder)
}

fn are_equal(one: &Path, other: &Path) {
    let diff = Command::new("diff").arg("-r").args([one, other]).output().unwrap();
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

fn archive_of_an_htcjob_has_all_jobs_or_no_end(version: Version) {
    let bed = Bed::with_jobs_api(version, LONG_SUBMISSIONS);
    bed.start_operator();
    bed.front();
    let here = bed.namespace();
    let viewer = here.person("viewer", &["htcprocs-view"]);
    viewer.comes_to_see(&["get", "htcprocs"]);
    each_job_is_as_its_own_archive(&here, &viewer);
    has_a_right_of_its_own(&here, &viewer);
    cut_and_gone_on_with(&here, &viewer);
}

fn each_job_is_as_its_own_archive(here: &Namespace<'_>, viewer: &Person<'_>) {
    let bed = here.bed;
    let mut object =
        htcjob("three", &format!("mkdir -p d/e; echo $1 >d/e/index; seq 0 $1; [ $1 != 1 ] || {{ {UNTIL_LET_GO}; }}"));
    object["spec"]["queue"] = 3.into();
    here.create(&object);
    let two_are_here = || {
        let list = json(&here.kubectl(&["get", "htcprocs", "-o", "json"]));
        let fetched = |proc: &serde_json::Value| proc["status"]["outputFetched"] == true;
        let here = list["items"].as_array().unwrap().iter().filter(|proc| fetched(proc)).count();
        if here == 2 { Ok(()) } else { Err(list.to_string()) }
    };
    wait_for("the output of two jobs", PATIENCE, two_are_here).unwrap();
    // What is not here is not in it.
    let (complete, two) = untar(bed, &fetch(viewer, &path(here, "three")), "two");
    assert_eq!((complete, entries(&two)), (true, vec!["0".to_owned(), "2".to_owned()]));
    here.let_go("three");
    here.wait_output("three");
    let whole = fetch(viewer, &path(here, "three"));
    let (complete, three) = untar(bed, &whole, "three");
    assert_eq!((complete, entries(&three)), (true, ["0", "1", "2"].map(str::to_owned).to_vec()));
    for index in 0..3 {
        let own = fetch(viewer, &format!("{}/three-{index}/files", here.procs()));
        let (complete, own) = untar(bed, &own, &format!("three-{index}"));
        assert!(complete);
        are_equal(&three.join(index.to_string()), &own);
        assert_eq!(std::fs::read_to_string(own.join("d/e/index")).unwrap(), format!("{index}\n"));
        let rest = fetch(viewer, &format!("{}?index={index}", path(here, "three")));
        assert!(whole.ends_with(&rest) && (index == 0) == (rest.len() == whole.len()), "{} bytes", rest.len());
    }
    let (code, stdout, error) = viewer.htc(&["files", "three", three.with_extension("htc").to_str().unwrap()]);
    assert_eq!(code, 0, "{stdout}{error}");
    are_equal(&three, &three.with_extension("htc"));
    let uid = here.uid("three");
    assert_eq!(fetch(viewer, &format!("{}?index=3&uid={uid}", path(here, "three"))), [0; 1024]);
    for (query, words) in [("?uid=another", "another HTCJob now"), ("?offset=7", "is not known")] {
        let why = viewer.is_refused(&["get", "--raw", &format!("{}{query}", path(here, "three"))]);
        assert!(why.contains(words), "{query}: {why}");
    }
    let why = viewer.is_refused(&["get", "--raw", &path(here, "nosuch")]);
    assert!(why.contains("NotFound"), "{why}");
}

/// Who may read what has happened may not read files by that, whoever lets the request through.
fn has_a_right_of_its_own(here: &Namespace<'_>, viewer: &Person<'_>) {
    let bed = here.bed;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "stories", "namespace": here.name },
        "rules": [{ "apiGroups": ["procs.htc.cern.ch"], "resources": ["htcstories"], "verbs": ["get"] }],
    });
    bed.apply(&role);
    let reader = here.person("reader", &[]);
    here.kubectl(&["create", "rolebinding", "stories", "--role=stories", &format!("--user={}", reader.name)]);
    reader.comes_to_see(&["get", "htcstory", "three"]);
    let words = format!("User \"{}\" cannot get resource \"htcstories/files\"", reader.name);
    let why = reader.is_refused(&["get", "--raw", &path(here, "three")]);
    assert!(why.contains("Forbidden") && why.contains(&words), "{why}");
    let api_server =
        Direct::new(bed.front().port.number, Some(&bed.kube.front_proxy_credentials(FRONT_PROXY).unwrap()));
    let ask = |name: &str| api_server.get(&path(here, "three"), &[("X-Remote-User", name)]).unwrap();
    let (status, body) = ask(&reader.name);
    assert!(status == 403 && json(&body)["message"].as_str().unwrap().contains(&words), "{status} {body}");
    assert_eq!(ask(&viewer.name).0, 200);
}

fn cut_and_gone_on_with(here: &Namespace<'_>, viewer: &Person<'_>) {
    let bed = here.bed;
    let mut object = htcjob("large", &format!("[ $1 != 1 ] || head -c {SIZE} /dev/zero | tr '\\0' x >data"));
    object["spec"]["queue"] = 3.into();
    here.create(&object);
    here.wait_ended("large");
    here.wait_output("large");
    let mut kubectl = viewer.command(&["get", "--raw", &path(here, "large")]);
    let mut child = kubectl.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // Until job 1 is on its way.
    let (mut archive, mut out) = (vec![0; SIZE / 100], child.stdout.take().unwrap());
    out.read_exact(&mut archive).unwrap();
    bed.kill_operator();
    out.read_to_end(&mut archive).unwrap();
    assert!(!child.wait().unwrap().success(), "kubectl takes {} bytes for all", archive.len());
    let (complete, folder) = untar(bed, &archive, "cut");
    assert_eq!((complete, entries(&folder)), (false, vec!["0".to_owned(), "1".to_owned()]));

    bed.start_operator();
    let from = format!("{}?index=1&uid={}", path(here, "large"), here.uid("large"));
    viewer.comes_to_see(&["get", "htcprocs"]);
    let (complete, folder) = untar(bed, &fetch(viewer, &from), "cut");
    assert_eq!((complete, entries(&folder)), (true, ["0", "1", "2"].map(str::to_owned).to_vec()));
    for index in 0..3 {
        are_equal(&folder.join(index.to_string()), &here.output("large", index));
    }
    assert_eq!(std::fs::metadata(folder.join("1/data")).unwrap().len(), SIZE as u64);
}
