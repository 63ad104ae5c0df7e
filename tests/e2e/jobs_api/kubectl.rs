//! kubectl with HTCProcs, as with any kind, and the errors for unsupported requests.

use std::collections::BTreeSet;

use bed::{Bed, htcjob};
use testbed::Version;

use crate::jobs_api::{API, json, names, rows};

on_versions! {
    trixie: kubectl_lists_selects_and_prints_htcprocs, unsupported_requests_are_refused;
}

fn kubectl_lists_selects_and_prints_htcprocs(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let mut object = htcjob("fit", "case $1 in 3) exit 7 ;; esac");
    object["spec"]["queue"] = 5.into();
    here.create(&object);
    here.create(&htcjob("other", "true"));
    for name in ["fit", "other"] {
        here.wait_ended(name);
    }
    let ann = here.person("ann", &["htcprocs-view"]);
    ann.comes_to_see(&["get", "htcprocs"]);
    let all = ["fit-0", "fit-1", "fit-2", "fit-3", "fit-4", "other-0"];

    let wide = ann.sees(&["get", "htcprocs", "-o", "wide"]);
    let head: Vec<&str> = wide.lines().next().unwrap().split_whitespace().collect();
    let columns = ["NAME", "STATE", "EXIT", "ID", "ATTEMPTS", "DURATION", "AGE", "HOST", "OUTPUT", "ITEM", "MESSAGE"];
    assert_eq!(head, columns, "{wide}");
    assert_eq!(rows(&wide)[3][..3], ["fit-3", "Failed", "7"], "{wide}");

    let printed = ann.sees(&["get", "htcprocs", "-o", "name"]);
    assert_eq!(printed.lines().collect::<Vec<_>>(), all.map(|name| format!("htcproc.procs.htc.cern.ch/{name}")));
    let codes = "-o=jsonpath={range .items[*]}{.spec.index}:{.status.exitCode} {end}";
    assert_eq!(ann.sees(&["get", "htcprocs", "-l", "htc.cern.ch/htcjob=fit", codes]), "0:0 1:0 2:0 3:7 4:0 ");
    for (selector, expected) in [
        ("htc.cern.ch/htcjob=other", ["other-0"].as_slice()),
        ("htc.cern.ch/htcjob!=fit", &["other-0"]),
        ("htc.cern.ch/htcjob=fit,htc.cern.ch/index in (1,3)", &["fit-1", "fit-3"]),
        ("!htc.cern.ch/htcjob", &[]),
    ] {
        assert_eq!(names(&ann.sees(&["get", "htcp", "-l", selector])), expected, "{selector}");
    }
    for (selector, expected) in [
        ("status.state=Failed", ["fit-3"].as_slice()),
        ("status.state!=Succeeded,spec.htcJob=fit", &["fit-3"]),
        ("metadata.name=fit-2", &["fit-2"]),
        ("spec.htcJob=fit,spec.index=4", &["fit-4"]),
    ] {
        let selector = format!("--field-selector={selector}");
        assert_eq!(names(&ann.sees(&["get", "htcprocs", &selector])), expected, "{selector}");
    }
    let sorted = ann.sees(&["get", "htcprocs", "-l", "htc.cern.ch/htcjob=fit", "--sort-by=.status.exitCode"]);
    assert_eq!(names(&sorted).last(), Some(&"fit-3"), "{sorted}");
    let labels = ann.sees(&["get", "htcproc", "fit-3", "--show-labels"]);
    assert!(labels.contains("htc.cern.ch/htcjob=fit,htc.cern.ch/index=3"), "{labels}");
    let everywhere = here.kubectl(&["get", "htcprocs", "-A"]);
    assert!(everywhere.starts_with("NAMESPACE"), "{everywhere}");
    let ours: Vec<&str> = rows(&everywhere).into_iter().filter(|row| row[0] == here.name).map(|row| row[1]).collect();
    assert_eq!(ours, all);
    // Its Events are looked for by its uid.
    let described = ann.sees(&["describe", "htcproc", "fit-3"]);
    assert!(described.contains("Exit Code:") && described.contains("Kind:         HTCProc"), "{described}");
    ann.sees(&["wait", "--for=jsonpath={.status.state}=Failed", "htcproc/fit-3", "--timeout=10s"]);

    // In pages.
    assert_eq!(names(&ann.sees(&["get", "htcprocs", "--chunk-size=2"])), all);
    let (mut next, mut pages, mut versions) = (String::new(), Vec::new(), BTreeSet::new());
    loop {
        let page = json(&ann.sees(&["get", "--raw", &format!("{}?limit=4{next}", here.procs())]));
        let items = page["items"].as_array().unwrap();
        pages.push(items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>());
        versions.insert(page["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        next = format!("&continue={token}");
    }
    assert_eq!(pages, [all[..4].to_vec(), all[4..].to_vec()]);
    assert_eq!(versions.len(), 1, "pages of one list: {versions:?}");

    let explained = ann.sees(&["explain", "htcprocs"]);
    assert!(explained.contains("KIND:       HTCProc") && explained.contains("one job of an HTCJob"), "{explained}");
    let state = ann.sees(&["explain", "htcprocs.status.state"]);
    assert!(state.contains("Waiting, Idle, Running, Held, Succeeded"), "{state}");
    let kinds = ann.sees(&["api-resources", "--api-group=procs.htc.cern.ch", "-o", "wide"]);
    assert_eq!(rows(&kinds)[0][..5], ["htcprocs", "htcp", "procs.htc.cern.ch/v1alpha1", "true", "HTCProc"], "{kinds}");
    // Who lists all there is lists no jobs, of which there may be very many.
    let everything = here.kubectl(&["get", "all"]);
    assert!(!everything.contains("htcproc"), "{everything}");
}

fn unsupported_requests_are_refused(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let uid = here.create(&htcjob("fit", "true"));
    here.wait_ended("fit");
    // A right that allows it does not make it possible.
    let admin = here.admin();
    for name in ["nosuch-1", "fit-1", "fit-00", "fit", "fit-0-0", "FIT-0"] {
        let why = admin.is_refused(&["get", "htcproc", name]);
        assert!(why.contains("NotFound"), "{name}: {why}");
    }
    for arguments in [
        ["delete", "htcproc", "fit-0"].as_slice(),
        &["patch", "htcproc", "fit-0", "--type=merge", "-p", r#"{"spec":{"index":7}}"#],
        &["label", "htcproc", "fit-0", "colour=red"],
        &["annotate", "htcproc", "fit-0", "colour=red"],
    ] {
        let done = admin.kubectl(arguments);
        let refused = done.stderr.contains("MethodNotAllowed") && done.stderr.contains("change their HTCJob");
        assert!(!done.status.success() && refused, "{arguments:?}: {done:?}");
    }
    let all = admin.kubectl(&["delete", "htcprocs", "--all"]);
    assert!(!all.status.success(), "{all:?}");
    let made = r#"{"apiVersion":"procs.htc.cern.ch/v1alpha1","kind":"HTCProc","metadata":{"name":"new-0"}}"#;
    let made = made.replace("\"new-0\"", &format!("\"new-0\",\"namespace\":\"{}\"", here.name));
    let why = bed.kube.apply_stdin(&made).unwrap_err().to_string();
    assert!(why.contains("MethodNotAllowed") || why.contains("does not allow this method"), "{why}");
    for (selector, why) in [
        ("--field-selector=status.host=x", "field label not supported: status.host"),
        ("--field-selector=status.phase=Failed", "supported are metadata.name"),
        ("-l=a in (b", "unable to parse"),
        ("--field-selector=status.state", "status.state"),
    ] {
        let message = admin.is_refused(&["get", "htcprocs", selector]);
        assert!(message.contains(why), "{selector}: {message}");
    }
    let jobs = here.procs();
    for (query, why) in [
        ("?limit=x", "limit"),
        ("?continue=abc", "list again from the start"),
        ("?nosuch=1", "nosuch"),
        ("?watch=1&sendInitialEvents=true", "sendInitialEvents"),
    ] {
        let message = admin.is_refused(&["get", "--raw", &format!("{jobs}{query}")]);
        assert!(message.contains(why), "{query}: {message}");
    }
    // And nothing has come of it.
    assert_eq!(here.uid("fit"), uid);
    assert_eq!(names(&admin.sees(&["get", "htcprocs"])), ["fit-0"]);
    assert!(admin.is_refused(&["get", "--raw", &format!("{API}/nosuch")]).contains("could not find"));
}
