//! Flags and files that are kubectl's own, forms of output, and terminals.

use std::fs;
use std::process::{Command, Stdio};

use bed::{Bed, Namespace, PATIENCE, UNTIL_LET_GO, htcjob};
use serde_json::{Value, json};
use testbed::{Version, tool};

use super::logs::parts;
use super::submit_and_retry::{command, htc};

on_versions! {
    trixie: kubeconfig_and_context_are_found_as_by_kubectl;
    sid: progress_bars_are_drawn_only_on_terminals;
}

/// Names of the jobs that it lists, called with nothing but these arguments and this `KUBECONFIG`.
fn lists(here: &Namespace<'_>, arguments: &[&str], kubeconfig: &str) -> Vec<String> {
    let folder = bed::program().parent().unwrap().to_owned();
    let mut kubectl = here.bed.kube.kubectl(&[&["htc", "jobs", "fit", "-o", "name"], arguments].concat());
    kubectl.env("KUBECONFIG", kubeconfig).env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
    let names = tool::run_ok("listing jobs", &mut kubectl, "", PATIENCE).unwrap();
    names.lines().map(|name| name.rsplit('/').next().unwrap().to_owned()).collect()
}

/// Which cluster and namespace, it finds where kubectl does.
fn kubeconfig_and_context_are_found_as_by_kubectl(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let (one, two) = (&bed.namespace(), &bed.namespace());
    for (here, queue) in [(one, 1), (two, 2)] {
        let mut object = htcjob("fit", "true");
        object["spec"]["queue"] = queue.into();
        here.create(&object);
    }
    for (here, queue) in [(one, 1), (two, 2)] {
        here.wait("fit", "its jobs to be known", |object| object["status"]["total"] == queue);
    }
    let whole = bed.kube.kubectl_ok(&["config", "view", "--raw", "--flatten", "-o", "json"]).unwrap();
    let mut whole: Value = serde_json::from_str(&whole).unwrap();
    let context = |name: &str, namespace: &str| {
        let mut context = whole["contexts"][0].clone();
        (context["name"], context["context"]["namespace"]) = (name.into(), namespace.into());
        context
    };
    let contexts = json!([context("one", &one.name), context("two", &two.name)]);
    (whole["contexts"], whole["current-context"]) = (contexts, "one".into());
    // Who the user is stands in another file than where the cluster is.
    let (mut clusters, mut users) = (whole.clone(), whole.clone());
    clusters["users"] = json!([]);
    (users["clusters"], users["contexts"], users["current-context"]) = (json!([]), json!([]), "".into());
    let folder = bed.scratch().dir(&format!("{}-kubeconfigs", one.name)).unwrap();
    let file = |name: &str, kubeconfig: &Value| {
        let path = folder.join(name);
        fs::write(&path, kubeconfig.to_string()).unwrap();
        path.display().to_string()
    };
    let (whole, clusters, users) = (file("whole", &whole), file("clusters", &clusters), file("users", &users));

    let (of_one, of_two) = (["fit-0"], ["fit-0", "fit-1"]);
    assert_eq!(lists(one, &[], &whole), of_one, "the current context");
    assert_eq!(lists(one, &["--context", "two"], &whole), of_two);
    assert_eq!(lists(one, &["--kubeconfig", &whole], "/nosuch"), of_one);
    assert_eq!(lists(one, &["--kubeconfig", &whole, "--context=two"], "/nosuch"), of_two);
    assert_eq!(lists(one, &["--context=two", "-n", &one.name], &whole), of_one, "the flag says more than the context");
    let both = format!("{clusters}:{users}");
    assert_eq!(lists(one, &[], &both), of_one);
    assert_eq!(lists(one, &["--context=two"], &both), of_two);
    let (code, _, error) = htc(one, &["jobs", "fit", "--context=three"]);
    assert!(code == 2 && error.contains("three"), "{error}");
    the_forms_of_a_list(two);
}

fn the_forms_of_a_list(here: &Namespace<'_>) {
    here.wait_ended("fit");
    here.wait_output("fit");
    let form = |form: &str| {
        let (code, text, error) = htc(here, &["jobs", "fit", "-o", form]);
        assert_eq!((code, error.as_str()), (0, ""), "{form}");
        text
    };
    let words = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let wide = form("wide");
    let of_kubectl = here.kubectl(&["get", "htcprocs", "-o", "wide"]);
    assert_eq!(words(&wide)[0], words(&of_kubectl)[0]);
    assert!(words(&wide)[0].contains(&"OUTPUT".to_owned()), "{wide}");
    assert_eq!([1, 2].map(|row| words(&wide)[row][..2].join(" ")), ["fit-0 Succeeded", "fit-1 Succeeded"], "{wide}");

    let listed: Value = serde_json::from_str(&form("json")).unwrap();
    let of_kubectl: Value = serde_json::from_str(&here.kubectl(&["get", "htcprocs", "-o", "json"])).unwrap();
    assert_eq!((&listed["kind"], &listed["items"]), (&"List".into(), &of_kubectl["items"]));
    let yaml: Value = serde_saphyr::from_str(&form("yaml")).unwrap();
    assert_eq!(yaml, listed);
}

/// The same at a terminal: what is shown there, standard output and standard error alike.
fn at_a_terminal(call: &Command) -> Command {
    let words: Vec<String> = [call.get_program()]
        .into_iter()
        .chain(call.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--flush", "--command", &words.join(" "), "/dev/null"]);
    script.env_clear().envs(call.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm");
    script
}

/// Files and pipes get lines.
fn progress_bars_are_drawn_only_on_terminals(version: Version) {
    /// A place at the beginning of the line, and an empty line.
    const ANEW: &str = "\r\x1b[K";
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    here.create(&htcjob("fit", &format!("{UNTIL_LET_GO}; head -c 3000000 /dev/zero >data")));
    here.wait_running("fit", 1);
    let call = command(here, &["wait", "fit"]);
    let mut looks = at_a_terminal(&call);
    let mut looks = looks.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut piped = command(here, &["wait", "fit"]);
    let piped = piped.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let shown = parts(looks.stdout.take().unwrap());
    let bar = format!("{ANEW}[{}] 0 of 1 jobs ended; 1 running", ".".repeat(30));
    let mut text = String::new();
    while !text.contains(&bar) {
        let part = shown.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no bar: {text:?}"));
        text += &String::from_utf8_lossy(&part);
    }
    here.let_go("fit");
    text.extend(shown.iter().map(|part| String::from_utf8_lossy(&part).into_owned()));
    assert!(looks.wait().unwrap().success(), "{text:?}");
    assert!(text.ends_with(&format!("{ANEW}htcjob.htc.cern.ch/fit: 1 job succeeded\r\n")), "{text:?}");
    let piped = piped.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&piped.stdout), "htcjob.htc.cern.ch/fit: 1 job succeeded\n");
    let stderr = String::from_utf8_lossy(&piped.stderr);
    assert!(stderr.contains("0 of 1 jobs ended; 1 running\n") && !stderr.contains(['\r', '\x1b', '[']), "{stderr:?}");

    here.wait_output("fit");
    let folder = bed.scratch().dir(&format!("{}-files", here.name)).unwrap();
    let [looked, taken] = ["looked", "taken"].map(|name| folder.join(name).display().to_string());
    let looks = at_a_terminal(&command(here, &["files", "fit/0", &looked])).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&looks.stdout);
    assert!(looks.status.success(), "{looks:?}");
    let full = format!("{ANEW}[{}] 1/1 fit-0: 3.0 of 3.0 MB", "#".repeat(30));
    assert!(text.contains(&full), "{text:?}");
    let (code, stdout, error) = htc(here, &["files", "fit/0", &taken]);
    assert_eq!((code, stdout, error.as_str()), (0, format!("output of 1 of 1 jobs is in {taken}\n"), ""));
}
