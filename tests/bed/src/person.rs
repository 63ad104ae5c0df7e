//! Somebody with a certificate of his own and the rights that are bound to him, at a terminal with kubectl.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use testbed::tool::{self, Finished};
use testbed::{Account, Owned, Spec, wait_for};

use super::{Namespace, PATIENCE};

const KUBECTL: Duration = Duration::from_secs(60);

/// Somebody who works in one namespace.
pub struct Person<'a> {
    here: &'a Namespace<'a>,
    /// His name to the API server.
    pub name: String,
    kubeconfig: PathBuf,
}

impl Namespace<'_> {
    /// Somebody with these ClusterRoles in this namespace, and no other rights.
    pub fn person(&self, name: &str, roles: &[&str]) -> Person<'_> {
        let name = format!("{name}.{}", self.name);
        for role in roles {
            self.bed.bind(&self.name, &format!("{name}-{role}"), ("ClusterRole", role), ("User", &name));
        }
        Person { here: self, kubeconfig: self.bed.kube.kubeconfig_for(&name, None).unwrap(), name }
    }

    /// Who is a cluster admin.
    pub fn admin(&self) -> Person<'_> {
        Person { here: self, name: "testbed-admin".to_owned(), kubeconfig: self.bed.kube.kubeconfig().to_owned() }
    }
}

impl Person<'_> {
    /// kubectl in his namespace.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.here.bed.kube.kubectl(&["-n", &self.here.name]);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// kubectl in his namespace, however it ends.
    pub fn kubectl(&self, arguments: &[&str]) -> Finished {
        tool::run("asking as somebody", &mut self.command(arguments), "", KUBECTL).unwrap()
    }

    /// `kubectl htc` with these arguments, as kubectl finds it.
    pub fn htc_command(&self, arguments: &[&str]) -> Command {
        let folder = super::program().parent().unwrap().to_owned();
        let mut kubectl = self.here.bed.kube.kubectl(&[&["htc", "-n", &self.here.name], arguments].concat());
        kubectl.env("KUBECONFIG", &self.kubeconfig).env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
        kubectl
    }

    /// The same run to its end: its exit code, standard output and standard error.
    pub fn htc(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.htc_command(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        println!("{}: kubectl htc {}: {output:?}", self.name, arguments.join(" "));
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }

    /// What kubectl prints, which must succeed.
    pub fn sees(&self, arguments: &[&str]) -> String {
        tool::run_ok("asking as somebody", &mut self.command(arguments), "", KUBECTL).unwrap()
    }

    /// The same once it succeeds: the API server learns of a right, or of an API, a little later.
    pub fn comes_to_see(&self, arguments: &[&str]) -> String {
        wait_for("what a user may see", PATIENCE, || {
            tool::run_ok("asking as somebody", &mut self.command(arguments), "", KUBECTL)
        })
        .unwrap()
    }

    /// Why kubectl fails, which it must; it prints nothing else.
    pub fn is_refused(&self, arguments: &[&str]) -> String {
        let Finished { status, stdout, stderr } = self.kubectl(arguments);
        assert!(!status.success() && stdout.is_empty(), "kubectl {arguments:?}: {status}\n{stdout}{stderr}");
        stderr
    }

    /// kubectl that goes on until it is dropped; what it prints is in its log.
    pub fn begins(&self, arguments: &[&str]) -> Owned {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let bed = self.here.bed;
        let kubeconfig = bed.scratch().path().join(format!("kubeconfig-{}", self.name));
        Account::unprivileged().write(&kubeconfig, std::fs::read(&self.kubeconfig).unwrap(), 0o600).unwrap();
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let log = bed.scratch().path().join(format!("kubectl-{run}.log"));
        let spec = Spec::new(bed.assets.kubectl(), log)
            .args(["-n", &self.here.name])
            .args(arguments)
            .env("HOME", bed.scratch().dir("kubectl").unwrap())
            .env("KUBECONFIG", kubeconfig);
        Owned::spawn(&spec).unwrap()
    }
}

/// Waits until a program that was begun has printed what is `wanted`; all that it has printed.
pub fn wait_printed(program: &Owned, what: &str, wanted: impl Fn(&str) -> bool) -> String {
    wait_for(what, PATIENCE, || {
        let text = program.log_text();
        if wanted(&text) { Ok(text) } else { Err(text) }
    })
    .unwrap()
}
