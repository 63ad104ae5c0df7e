//! The submission helper's commands, as docs/kubernetes-backend.md has them, on a real node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use serde_json::json;

use super::page::{PATIENCE, Page};
use super::private_registry::{self, HOST};
use super::proof::change;
use super::site::{STANDARD, Site};
use crate::demo::{failed, say};
use crate::environment::{Column, INTERPRETER, INTERPRETER_NAME, PROBE, differences};
use crate::error::{Doing as _, Result};
use crate::wait::wait_for;

/// Where the commands begin.
const HEADING: &str = "## The submission helper's command line";
/// Where users have their HTCJobs.
const NAMESPACE: &str = "analysis";
/// The page's image, as its registry calls it.
const IMAGE: &str = "fsauerbu/caf-k8s/cafexample";
/// What the page writes into a file.
const PAYLOAD: &str =
    "--k8s-image gitlab-registry.cern.ch/fsauerbu/caf-k8s/cafexample -- ./fit.py --input /ntuples/all.root";
/// What `kubectl get` lists of the helper's.
const LISTED: &str = "-l app=submission-helper --no-headers --ignore-not-found";

/// The last line of the overlay.
const JOBS_API: &str = "  - ../../components/jobs-api\n";

/// The image's files, in the home of the account that it runs as. Only a login shell sets what the program needs.
const HOME: &str = "home/atlas";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\natlas:x:1000:1000:atlas:/home/atlas:/bin/bash\n";
const PROFILE: &str = ". ~/.bashrc\n";
const BASHRC: &str = "export CAF_RELEASE=21.2.171\n";
const PROGRAM: &str = r#"#!/usr/bin/python3
import os, sys, time
events = [int(line) for line in open(sys.argv[sys.argv.index("--input") + 1])]
print("read", len(events), "events with release", os.environ["CAF_RELEASE"], flush=True)
while not os.path.exists("/ntuples/go"):
    time.sleep(0.2)
with open("/ntuples/result.txt", "w") as result:
    print(sum(events), file=result)
print("wrote their sum", flush=True)
"#;
const BEGINS: &str = "read 3 events with release 21.2.171\n";
const ENDS: &str = "wrote their sum\n";

/// The input data, and a volume for whoever claims it by hand.
const EVENTS: &str = "10\n20\n30\n";
const VOLUME: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: ntuples}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ''
  hostPath: {path: FOLDER, type: Directory}
";

/// Runs the page.
pub(super) fn run_page(site: &Site<'_>) -> Result<()> {
    let began = Instant::now();
    let page = Page::section(site, "kubernetes-backend.md", HEADING)?.within(NAMESPACE)?;
    let ntuples = site.cluster.scratch.path().join("ntuples");
    let registry = private_registry::start(site.cluster)?;
    let api = Page::section(site, "jobs-api.md", "## Install")?;
    let steps = Steps { site, page, api, ntuples };
    steps.prepare()?;
    steps.install_the_jobs_api()?;
    steps.lack_and_get_what_it_needs()?;
    steps.follow()?;
    steps.show_the_environment()?;
    steps.lose_pods_that_have_ended()?;
    steps.cancel()?;
    steps.evict_from_a_silent_node()?;
    steps.refuse_root()?;
    steps.take_away()?;
    registry.must_run()?;
    say(&format!(
        "docs/kubernetes-backend.md, the submission helper's commands: {:.0} s",
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}

struct Steps<'a> {
    site: &'a Site<'a>,
    page: Page<'a>,
    /// docs/jobs-api.md
    api: Page<'a>,
    /// The volume's folder.
    ntuples: PathBuf,
}

impl Steps<'_> {
    /// What administrators do: the backend is on, and a namespace that takes only Pods of the level `restricted` may use it.
    fn prepare(&self) -> Result<()> {
        self.change_overlay(|text| text + "components:\n  - ../../components/kubernetes-backend\n")?;
        self.apply_overlay()?;
        self.site.kubectl(&format!("create namespace {NAMESPACE}"))?;
        self.site.kubectl(&format!("label namespace {NAMESPACE} pod-security.kubernetes.io/enforce=restricted"))?;
        self.site.kubectl(&format!("apply --namespace {NAMESPACE} -k deploy/namespace-kubernetes-backend"))?;
        fs::create_dir(&self.ntuples).doing("making the folder", &self.ntuples)?;
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&self.ntuples, everybody).doing("opening the folder", &self.ntuples)?;
        self.write("all.root", EVENTS)?;
        let volume = VOLUME.replace("FOLDER", &self.ntuples.display().to_string());
        self.site.cluster.kube.apply_stdin(&volume)?;
        let layer = self.site.cluster.scratch.path().join("cafexample");
        let (home, etc, tmp) = (layer.join(HOME), layer.join("etc"), layer.join("tmp"));
        for folder in [&home, &etc, &tmp] {
            fs::create_dir_all(folder).doing("making the folder", folder)?;
        }
        fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777)).doing("opening the folder", &tmp)?;
        for (path, text, mode) in [
            (etc.join("passwd"), PASSWD, 0o644),
            (home.join(".bash_profile"), PROFILE, 0o644),
            (home.join(".bashrc"), BASHRC, 0o644),
            (home.join("fit.py"), PROGRAM, 0o755),
            (home.join(INTERPRETER_NAME), INTERPRETER, 0o755),
        ] {
            fs::write(&path, text).doing("writing", &path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).doing("setting the mode of", &path)?;
        }
        let config = format!(r#"{{"User": "1000", "WorkingDir": "/{HOME}", "Env": ["PATH={STANDARD}"]}}"#);
        let image = format!("{HOST}/{IMAGE}:latest");
        self.site.publish(&image, &[self.site.cluster.assets.python(), &layer], &config)?;
        say(&format!("{image} is in a registry that wants a login"));
        Ok(())
    }

    /// As docs/jobs-api.md says.
    fn install_the_jobs_api(&self) -> Result<()> {
        self.change_overlay(|text| text + JOBS_API)?;
        for words in ["overlays/mine", "reader.yaml", "rollout status", "apply -k deploy/jobs-api", "Available"] {
            self.api.does(words)?;
        }
        self.site.kubectl("-n htc-operator rollout status deployment/htc-operator --timeout=180s")
    }

    fn remove_the_jobs_api(&self) -> Result<()> {
        self.api.does("delete -k deploy/jobs-api")?;
        self.change_overlay(|text| text.strip_suffix(JOBS_API).unwrap_or(&text).to_owned())?;
        self.apply_overlay()?;
        for words in
            ["deployment,", "delete service,networkpolicy", "delete role,", "delete clusterrole,", "delete secret"]
        {
            self.api.does(words)?;
        }
        self.api.is_done()
    }

    fn change_overlay(&self, change: impl FnOnce(String) -> String) -> Result<()> {
        let overlay = self.site.folder.join("deploy/overlays/mine/kustomization.yaml");
        let text = fs::read_to_string(&overlay).doing("reading", &overlay)?;
        fs::write(&overlay, change(text)).doing("writing", &overlay)
    }

    fn apply_overlay(&self) -> Result<()> {
        self.site.kubectl("apply -k deploy/overlays/mine")?;
        self.site.kubectl("-n htc-operator rollout status deployment/htc-operator --timeout=180s")
    }

    /// Without the claim, and without the Secret, the HTCJob says so, and goes on when they come.
    fn lack_and_get_what_it_needs(&self) -> Result<()> {
        let claim = self.page.next("claim.yaml")?;
        let secret = self.page.next("create secret docker-registry sh-k8s-registry-secret")?;
        self.page.does("fit.sh")?;
        self.page.does("kubectl htc submit fit ")?;
        self.page.does("--for=condition=Submitted")?;
        self.is_stuck("fit", "PodsCannotStart", "ntuples-claim")?;
        self.page.runs(&claim)?;
        self.is_stuck("fit", "PodsCannotStart", "cafexample")?;
        self.page.runs(&secret)?;
        self.page.until("kubectl get htcjob fit -o jsonpath={.status.phase}", |phase| phase == "Running").map(drop)?;
        let stuck = "kubectl get htcjob fit -o 'jsonpath={.status.conditions[?(@.type==\"Stuck\")].status}'";
        self.page.until(stuck, |status| status != "True").map(drop)
    }

    /// The log comes while the Pod runs, and ends with it.
    fn follow(&self) -> Result<()> {
        let jobs = self.page.shows("get jobs -l app=submission-helper", |jobs| lines(jobs) == 2)?;
        let pods = self.page.shows("get pods -l app=submission-helper", |pods| pods.contains("1/1     Running   0"))?;
        let named = |table: &str| table.lines().skip(1).all(|line| line.starts_with("fit-"));
        if !named(&jobs) || !named(&pods) || lines(&pods) != 2 {
            return Err(failed("list the helper's Job and its Pod", format!("{jobs}{pods}")));
        }
        let pod = self.page.ask("kubectl get pods -l app=submission-helper -o name")?;
        self.page.until("kubectl get htcproc fit-0 -o jsonpath={.status.state}", |state| state == "Running")?;
        self.page.runs("kubectl get htcprocs -o wide")?;
        let line = self.page.next("kubectl logs -f POD-NAME")?.replace("POD-NAME", pod.trim());
        let both = [self.following(&line)?, self.following("kubectl htc logs fit/0 -f")?];
        let begun = both.iter().try_for_each(|following| following.shows(BEGINS));
        begun.and_then(|()| self.write("go", ""))?;
        both.into_iter().try_for_each(Following::ends)?;
        self.page.runs("kubectl wait --for=condition=Complete --timeout=5m htcjob/fit")?;
        let result = self.ntuples.join("result.txt");
        let sum = fs::read_to_string(&result).doing("reading", &result)?;
        is(sum, "60\n").map_err(|sum| failed("find the results on the volume", sum))
    }

    /// The environment of a payload is the one of docs/using.md.
    fn show_the_environment(&self) -> Result<()> {
        let object = json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": { "name": "environment" },
            "spec": {
                "backend": "Kubernetes",
                "script": { "image": format!("{HOST}/{IMAGE}"), "command": INTERPRETER_NAME, "source": PROBE },
                "env": [{ "name": "PATH", "value": format!("/{HOME}:{STANDARD}") }],
                "resources": { "memory": "512Mi" },
                "kubernetes": { "imagePullSecrets": [{ "name": "sh-k8s-registry-secret" }] },
            },
        });
        let file = self.site.cluster.scratch.path().join("environment.json");
        fs::write(&file, object.to_string()).doing("writing", &file)?;
        self.page.runs(&format!("kubectl apply -f {}", file.display()))?;
        self.page.runs("kubectl wait --for=condition=Complete --timeout=5m htcjob/environment")?;
        let last = "user\t1000\n";
        let printed = self.page.until("kubectl htc logs environment/0", |log| log.ends_with(last))?;
        let differences = differences(&self.site.page("using.md")?, Column::Pod, &printed);
        if !differences.is_empty() {
            return Err(failed("find the documented environment", format!("{}\n{printed}", differences.join("\n"))));
        }
        crate::progress::say(&printed);
        self.page.runs("kubectl delete htcjob environment --timeout=2m")
    }

    fn following(&self, line: &str) -> Result<Following> {
        say(&format!("$ {line}"));
        let shown = self.site.cluster.scratch.path().join(line.replace(['/', ' '], "-"));
        let file = fs::File::create(&shown).doing("making", &shown)?;
        let child =
            self.page.shell(line).stdin(Stdio::null()).stdout(file).spawn().doing("running", Path::new(line))?;
        Ok(Following { line: line.to_owned(), shown, child })
    }

    /// The log is kept, and nothing runs again.
    fn lose_pods_that_have_ended(&self) -> Result<()> {
        let kept = "kubectl -n htc-operator exec deploy/htc-operator -- cat /data/htc_out/analysis/fit/latest/0/out";
        self.page.until(&format!("{kept} || true"), |text| !text.is_empty())?;
        self.page.runs("kubectl delete pods -l app=submission-helper")?;
        self.page.until(&format!("kubectl get pods {LISTED}"), str::is_empty)?;
        self.page.runs(kept)?;
        for line in [kept, "kubectl htc logs fit/0"] {
            let all = format!("{BEGINS}{ENDS}");
            is(self.page.ask(line)?, &all).map_err(|text| failed("keep the log", format!("{line} shows {text:?}")))?;
        }
        self.page.runs("kubectl delete htcjob fit --timeout=2m")?;
        self.page.until(&format!("kubectl get jobs,pods {LISTED}"), str::is_empty).map(drop)
    }

    /// Two HTCJobs whose Jobs somebody deletes while their Pods run.
    fn cancel(&self) -> Result<()> {
        let go = self.ntuples.join("go");
        fs::remove_file(&go).doing("removing", &go)?;
        for name in ["fit", "again"] {
            self.page.runs(&format!("kubectl htc submit {name} {PAYLOAD}"))?;
        }
        self.page.until(&format!("kubectl get pods {LISTED}"), |pods| pods.matches(" Running ").count() == 2)?;
        self.page.does("kubectl delete jobs -l app=submission-helper")?;
        self.page.does("--for=condition=Failed")?;
        self.page.runs("kubectl wait --for=condition=Failed --timeout=5m htcjob/again")?;
        self.page.until(&format!("kubectl get jobs,pods {LISTED}"), str::is_empty)?;
        let failed_with = "-o 'jsonpath={.status.conditions[?(@.type==\"Failed\")].reason}'";
        for name in ["fit", "again"] {
            let reason = self.page.ask(&format!("kubectl get htcjob {name} {failed_with}"))?;
            is(reason, "JobsLost").map_err(|reason| failed("say why the HTCJob has failed", reason))?;
        }
        self.page.shows("kubectl get htcjob fit -o wide", |shown| shown.contains("Failed"))?;
        // Another operator makes nothing either.
        self.site.kubectl("-n htc-operator rollout restart deployment/htc-operator")?;
        self.site.kubectl("-n htc-operator rollout status deployment/htc-operator --timeout=180s")?;
        self.page
            .runs("kubectl htc submit later --k8s-image gitlab-registry.cern.ch/fsauerbu/caf-k8s/cafexample -- true")?;
        self.page.runs("kubectl wait --for=condition=Complete --timeout=5m htcjob/later")?;
        let jobs = self.page.ask(&format!("kubectl get jobs {LISTED} -o name"))?;
        if lines(&jobs) != 1 || !jobs.contains("/later-") {
            return Err(failed("make nothing again", jobs));
        }
        self.page.does("kubectl delete htcjob fit ")?;
        self.page.runs("kubectl delete htcjob again later --timeout=2m")
    }

    /// No other Pod takes the place of one that is evicted before its node has said that it has ended.
    fn evict_from_a_silent_node(&self) -> Result<()> {
        self.page.runs(&format!("kubectl htc submit evicted {PAYLOAD}"))?;
        let pods = "kubectl get pods -l app=submission-helper -o jsonpath={.items[*].metadata.name}";
        self.page.until(&format!("kubectl get pods {LISTED}"), |pods| pods.contains(" Running "))?;
        let first = self.page.ask(pods)?;
        let eviction = format!(
            r#"{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{first}", "namespace": "{NAMESPACE}"}}}}"#
        );
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{first}/eviction");
        let there = self.site.cluster.with_silent_node(|| {
            self.page.ask(&format!("echo '{eviction}' | kubectl create --raw {path} -f -"))?;
            self.is_stuck("evicted", "NodeNotAnswering", &first)?;
            self.page.ask(pods)
        })?;
        is(there, &first).map_err(|pods| failed("wait for the silent node", pods))?;
        self.page.until(pods, |now| !now.is_empty() && !now.contains(&first))?;
        self.write("go", "")?;
        self.page.runs("kubectl wait --for=condition=Complete --timeout=5m htcjob/evicted")?;
        let counts = "kubectl get htcjob evicted -o 'jsonpath={.status.succeeded} {.status.failed}'";
        is(self.page.ask(counts)?, "1 0").map_err(|counts| failed("count an eviction as no failure", counts))?;
        self.page.runs("kubectl delete htcjob evicted --timeout=2m")
    }

    /// An image whose user is root does not start, unless the site says as whom.
    fn refuse_root(&self) -> Result<()> {
        let (apply, delete) =
            ("kubectl apply -f examples/kubernetes/pods.yaml", "kubectl delete htcjob pods --timeout=2m");
        self.page.runs(apply)?;
        self.is_stuck("pods", "PodsCannotStart", "root")?;
        self.page.runs(delete)?;
        let settings = self.site.folder.join("deploy/overlays/mine/settings.env");
        change(&settings, |line| match line.strip_prefix("HTC_SCHEDD=") {
            Some(_) => format!("{line}\nHTC_KUBERNETES_RUN_AS_USER=65534"),
            None => line.to_owned(),
        })?;
        self.apply_overlay()?;
        self.page.runs(apply)?;
        self.page.runs("kubectl wait --for=condition=Complete --timeout=5m htcjob/pods")?;
        self.page.runs(delete)
    }

    fn take_away(&self) -> Result<()> {
        self.page.is_done()?;
        self.remove_the_jobs_api()?;
        self.page.until("kubectl get jobs,pods -o name", str::is_empty)?;
        let left = self.page.ask("kubectl get configmaps -o name")?;
        is(left, "configmap/kube-root-ca.crt\n").map_err(|left| failed("leave no ConfigMap", left))?;
        self.site.kubectl(&format!("delete namespace {NAMESPACE} --timeout=2m"))
    }

    /// The HTCJob says why its Pods do not start or end.
    fn is_stuck(&self, name: &str, reason: &str, words: &str) -> Result<()> {
        let stuck = ".status.conditions[?(@.type==\"Stuck\")]";
        let line = format!("kubectl get htcjob {name} -o 'jsonpath={{{stuck}.reason}}: {{{stuck}.message}}'");
        let message = self.page.until(&line, |message| message.starts_with(reason) && message.contains(words))?;
        say(&format!("{name} is Stuck: {message}"));
        Ok(())
    }

    /// A file on the volume.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.ntuples.join(name);
        fs::write(&path, text).doing("writing", &path)
    }
}

/// A command that shows a log while it is written.
struct Following {
    line: String,
    /// What it has written.
    shown: PathBuf,
    child: Child,
}

impl Following {
    fn shows(&self, wanted: &str) -> Result<()> {
        wait_for(&format!("what `{}` shows", self.line), PATIENCE, || {
            let text = fs::read_to_string(&self.shown).map_err(|error| error.to_string())?;
            is(text, wanted)
        })
    }

    /// It ends by itself, and has shown all.
    fn ends(mut self) -> Result<()> {
        wait_for(&format!("`{}` to end", self.line), PATIENCE, || match self.child.try_wait() {
            Ok(Some(status)) if status.success() => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        self.shows(&format!("{BEGINS}{ENDS}"))?;
        crate::progress::say(&format!("{BEGINS}{}", ENDS.trim_end()));
        Ok(())
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(text: &str) -> usize {
    text.lines().count()
}

fn is(text: String, wanted: &str) -> std::result::Result<(), String> {
    if text == wanted { Ok(()) } else { Err(text) }
}
