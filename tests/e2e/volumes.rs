//! Volumes on HTCondor: folders of the nodes that the site has named for claims.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use bed::{Bed, Namespace, condition, htcjob, is_true};
use serde_json::{Value, json};
use testbed::{PoolOptions, Version};

on_versions! {
    both: jobs_see_the_folders_of_their_claims;
    sid: claims_without_a_folder_are_refused_before_submission;
}

/// A pool whose nodes have a folder for claims of one namespace.
struct Site {
    bed: Bed,
    namespace: String,
    folder: PathBuf,
}

impl Site {
    fn start(version: Version) -> Self {
        let bed = Bed::new(version, &PoolOptions::default(), &[]);
        let folder = bed.scratch().dir("ntuples").unwrap();
        fs::write(folder.join("all.txt"), "data\n").unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let namespace = bed.namespace().name;
        let at = folder.display();
        let claims = [("ntuples-claim", ""), ("archive", ":ro")]
            .map(|(claim, how)| format!("{namespace}/{claim}={at}{how}"))
            .join(",");
        bed.set_env("HTC_CLAIMS", &claims);
        bed.start_operator();
        Self { bed, namespace, folder }
    }

    fn here(&self) -> Namespace<'_> {
        Namespace { bed: &self.bed, name: self.namespace.clone() }
    }
}

fn with(name: &str, source: &str, volumes: Value) -> Value {
    let mut object = htcjob(name, source);
    object["spec"]["volumes"] = volumes;
    object
}

fn out(here: &Namespace<'_>, name: &str) -> String {
    here.wait_output(name);
    fs::read_to_string(here.output(name, 0).join("out")).unwrap()
}

/// The command of the submission helper with `--backend HTCondor`, a job that reads, and a node without the folder.
fn jobs_see_the_folders_of_their_claims(version: Version) {
    let site = Site::start(version);
    let here = site.here();
    let script = "cat /ntuples/all.txt; echo $HTCPROCID >/ntuples/result";
    let helper = ["--k8s-image", "centos", "--k8s-volume-claim", "ntuples-claim", "--k8s-mount-path", "/ntuples"];
    let words = [&["submit", "fit", "--backend", "HTCondor"][..], &helper, &["--", script]].concat();
    let (code, _, error) = here.admin().htc(&words);
    assert_eq!(code, 0, "{error}");
    let ended = here.wait_ended("fit");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(out(&here, "fit"), "data\n");
    assert_eq!(fs::read_to_string(site.folder.join("result")).unwrap(), "0\n");

    // Others have linked what they cannot see; the folder of the node is not at its own path.
    let other = site.bed.scratch().dir("other").unwrap();
    fs::write(other.join("secret"), "secret\n").unwrap();
    symlink(&other, site.folder.join("link")).unwrap();
    let script = format!(
        "cat /in/all.txt /in/link/secret; [ ! -e {0} ] || echo seen; echo x >/in/new || [ ! -e /in/new ]",
        site.folder.display()
    );
    here.create(&with("read", &script, json!([{ "claim": "archive", "path": "/in", "readOnly": true }])));
    let ended = here.wait_ended("read");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(out(&here, "read"), "data\n");
    assert!(!site.folder.join("new").exists());

    fs::remove_dir_all(&site.folder).unwrap();
    here.create(&with("lost", "echo ran", json!([{ "claim": "ntuples-claim", "path": "/ntuples" }])));
    let ended = here.wait_ended("lost");
    let message = condition(&ended, "Failed").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("247") && message.contains("a folder that the site has named"), "{message}");
    assert_eq!(out(&here, "lost"), "");
    for name in ["fit", "read", "lost"] {
        here.delete(name);
    }
}

fn claims_without_a_folder_are_refused_before_submission(version: Version) {
    let site = Site::start(version);
    let (here, other) = (site.here(), site.bed.namespace());
    let refused = |here: &Namespace<'_>, name: &str, volumes: Value, words: &str| {
        here.create(&with(name, "true", volumes));
        let message = here.wait_says(name, "Submitted", "False", "InvalidSpec");
        assert!(message.contains(words), "{message}");
        assert_eq!(here.get(name)["status"]["attempt"], Value::Null);
        here.delete(name);
    };
    let volume = |claim: &str, path: &str| json!([{ "claim": claim, "path": path }]);
    let ask = |here: &Namespace<'_>, claim: &str| {
        format!("ask the operator's administrator for the setting --claim {}/{claim}=", here.name)
    };
    refused(&here, "unknown", volume("unknown", "/in"), &ask(&here, "unknown"));
    // A claim of another namespace is none of this one, and its folder cannot be named.
    refused(&other, "foreign", volume("ntuples-claim", "/in"), &ask(&other, "ntuples-claim"));
    refused(&here, "writes", volume("archive", "/in"), "write readOnly: true");
    refused(&here, "bind", volume("ntuples-claim", "/cvmfs/x"), "which all jobs see");
    let both =
        json!([{ "claim": "archive", "path": "/a", "readOnly": true }, { "claim": "ntuples-claim", "path": "/a/b" }]);
    refused(&here, "nested", both, "are in one another");
}
