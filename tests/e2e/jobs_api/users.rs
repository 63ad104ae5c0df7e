//! RBAC for jobs: users read jobs of their namespaces only.

use bed::{Bed, Namespace, htcjob};
use serde_json::json;
use testbed::Version;

use crate::jobs_api::{API, json, names};

on_versions! {
    sid:
        namespace_role_reads_only_its_namespace,
        role_with_resource_names_reads_only_named_jobs,
        user_without_rights_reads_nothing;
}

fn namespace_role_reads_only_its_namespace(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let (here, there) = (bed.namespace(), bed.namespace());
    for namespace in [&here, &there] {
        namespace.create(&htcjob("fit", "true"));
        namespace.wait_ended("fit");
    }
    let ann = here.person("ann", &["htcprocs-view"]);
    assert_eq!(names(&ann.comes_to_see(&["get", "htcprocs"])), ["fit-0"]);
    assert_eq!(json(&ann.sees(&["get", "htcproc", "fit-0", "-o", "json"]))["metadata"]["namespace"], here.name);
    let watched = |place: &Namespace<'_>| place.procs() + "?watch=1&timeoutSeconds=1";
    let frames = ann.sees(&["get", "--raw", &watched(&here)]);
    assert_eq!(frames.lines().map(|frame| json(frame)["type"].clone()).collect::<Vec<_>>(), ["ADDED"]);

    // Elsewhere, and everywhere, nothing.
    let (jobs, watch) = (there.procs(), watched(&there));
    for (arguments, verb) in [
        (["-n", &there.name, "get", "htcprocs"].as_slice(), "list"),
        (&["-n", &there.name, "get", "htcproc", "fit-0"], "get"),
        (&["get", "--raw", &format!("{jobs}/fit-0")], "get"),
        (&["get", "--raw", &watch], "watch"),
        (&["get", "htcprocs", "-A"], "list"),
    ] {
        let why = ann.is_refused(arguments);
        let words = format!("User \"{}\" cannot {verb} resource \"htcprocs\"", ann.name);
        assert!(why.contains("Forbidden") && why.contains(&words), "{arguments:?}: {why}");
    }
    for (path, resource) in [
        ("htcprocs/fit-0/log", "htcprocs/log"),
        ("htcprocs/fit-0/log?follow=true&stream=err", "htcprocs/log"),
        ("htcprocs/fit-0/files", "htcprocs/files"),
        ("htcprocs/fit-0/analysis", "htcprocs/analysis"),
        ("htcstories/fit", "htcstories"),
        ("htcstories/fit/files", "htcstories/files"),
    ] {
        let why = ann.is_refused(&["get", "--raw", &format!("{API}/namespaces/{}/{path}", there.name)]);
        let words = format!("User \"{}\" cannot get resource \"{resource}\"", ann.name);
        assert!(why.contains("Forbidden") && why.contains(&words), "{path}: {why}");
    }
    // Nor does she see what another right is for.
    assert!(ann.is_refused(&["get", "htcjobs"]).contains("Forbidden"));

    for (arguments, expected) in [
        (["get", "htcprocs"].as_slice(), "yes"),
        (&["list", "htcprocs.procs.htc.cern.ch"], "yes"),
        (&["watch", "htcprocs"], "yes"),
        (&["delete", "htcprocs"], "no"),
        (&["create", "htcprocs"], "no"),
        (&["get", "htcprocs", "-n", &there.name], "no"),
        (&["list", "htcprocs", "-A"], "no"),
    ] {
        let output = ann.kubectl(&[&["auth", "can-i"], arguments].concat()).stdout;
        assert_eq!(output.trim(), expected, "{arguments:?}");
    }
}

/// A right with `resourceNames` allows lists of one of these names.
fn role_with_resource_names_reads_only_named_jobs(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let mut object = htcjob("fit", "true");
    object["spec"]["queue"] = 2.into();
    here.create(&object);
    here.wait_ended("fit");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "one", "namespace": here.name },
        "rules": [{
            "apiGroups": ["procs.htc.cern.ch"], "resources": ["htcprocs"], "resourceNames": ["fit-1"],
            "verbs": ["get", "list", "watch"],
        }],
    });
    bed.apply(&role);
    let bob = here.person("bob", &[]);
    here.kubectl(&["create", "rolebinding", "one", "--role=one", &format!("--user={}", bob.name)]);
    assert_eq!(names(&bob.comes_to_see(&["get", "htcproc", "fit-1"])), ["fit-1"]);
    let selected = |selector: &str| bob.kubectl(&["get", "htcprocs", &format!("--field-selector={selector}")]);
    assert_eq!(names(&selected("metadata.name=fit-1").stdout), ["fit-1"]);
    assert_eq!(names(&selected("metadata.name=fit-1,status.state=Succeeded").stdout), ["fit-1"]);
    // The API server allows this list of one name: no other job may be in it.
    assert_eq!(selected("metadata.name=fit-1,metadata.name=fit-0").stdout, "");
    for selector in
        ["metadata.name=fit-0", "metadata.name!=fit-0", "spec.index=1", "metadata.name=fit-0,metadata.name=fit-1"]
    {
        let done = selected(selector);
        assert!(!done.status.success() && done.stderr.contains("Forbidden"), "{selector}: {done:?}");
    }
    let twice = format!("{}?fieldSelector=metadata.name%3Dfit-1&fieldSelector=spec.index%3D0", here.procs());
    let why = bob.is_refused(&["get", "--raw", &twice]);
    assert!(why.contains("comes more than once"), "{why}");
    for arguments in [["get", "htcprocs"].as_slice(), &["get", "htcproc", "fit-0"]] {
        assert!(bob.is_refused(arguments).contains("Forbidden"), "{arguments:?}");
    }
}

/// Impersonation is allowed as RBAC says.
fn user_without_rights_reads_nothing(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    here.create(&htcjob("fit", "true"));
    here.wait_ended("fit");
    let nobody = here.person("nobody", &[]);
    // Who may look at HTCJobs may not look at their jobs by that.
    let half = here.person("half", &["htcjobs-view"]);
    assert_eq!(names(&half.comes_to_see(&["get", "htcjobs"])), ["fit"]);
    for person in [&nobody, &half] {
        for arguments in [["get", "htcprocs"].as_slice(), &["get", "htcproc", "fit-0"]] {
            assert!(person.is_refused(arguments).contains("Forbidden"), "{arguments:?}");
        }
    }
    // What there is to be asked for is no secret.
    assert!(nobody.sees(&["api-resources", "--api-group=procs.htc.cern.ch"]).contains("htcprocs"));

    let ann = here.person("ann", &["htcprocs-view"]);
    ann.comes_to_see(&["get", "htcprocs"]);
    let (admin, group) = (here.admin(), format!("--as-group={}", here.name));
    assert_eq!(names(&admin.sees(&["get", "htcprocs", "--as", &ann.name])), ["fit-0"]);
    assert!(admin.is_refused(&["get", "htcprocs", "--as", &nobody.name]).contains("Forbidden"));
    assert!(admin.is_refused(&["get", "htcprocs", "--as", &nobody.name, &group]).contains("Forbidden"));
    // Groups come through.
    here.kubectl(&["create", "rolebinding", "group", "--clusterrole=htcprocs-view", &format!("--group={}", here.name)]);
    let as_member = ["get", "htcprocs", "--as", nobody.name.as_str(), group.as_str()];
    assert_eq!(names(&admin.comes_to_see(&as_member)), ["fit-0"]);
    assert!(ann.is_refused(&["get", "htcprocs", "--as", "system:admin"]).contains("cannot impersonate"));
}
