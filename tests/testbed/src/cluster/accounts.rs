//! Pools whose daemons are root and whose users have accounts of their own, as those of sites are: who runs what, whose jobs are removed, and what
//! outlives a kill.

use std::time::Instant;

use serde_json::{Value, json};

use super::ADDRESS;
use super::site::Site;
use crate::EXAMPLES_IMAGE;
use crate::demo::{failed, say};
use crate::error::Result;
use crate::pool::{FIRST_ACCOUNT, Pool, PoolOptions, Version};

/// Each is a namespace, a user of HTCondor and an account.
const USERS: [&str; 2] = ["alice", "bob"];
/// The identity of HTCPools: it sees the jobs of both.
const READER: &str = "pools@test";
/// As long as the kills beside it take on a slow machine.
const LASTING: &str = "sleep 90; id -u";

/// Has both users run jobs in a pool of each version.
pub(super) fn run(site: &Site<'_>) -> Result<()> {
    let began = Instant::now();
    for user in USERS {
        site.kubectl(&format!("create namespace {user}"))?;
        site.kubectl(&format!("apply --namespace {user} -k deploy/namespace-credentials"))?;
    }
    site.kubectl("create namespace accounts")?;
    site.kubectl("apply --namespace accounts -k deploy/namespace-credentials")?;
    for version in Version::ALL {
        let options = PoolOptions { accounts: USERS.to_vec(), ..PoolOptions::at(ADDRESS) };
        let pool = Pool::start(&site.cluster.assets, version, &options)?;
        in_pool(site, &pool)?;
    }
    site.kubectl("delete namespace accounts alice bob --timeout=3m")?;
    say(&format!("pools with accounts of their own: {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}

fn in_pool(site: &Site<'_>, pool: &Pool) -> Result<()> {
    let name = pool.version().to_string();
    secret(site, pool, "accounts", READER)?;
    site.apply(&json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCPool", "metadata": { "name": name, "namespace": "accounts" },
        "spec": {
            "external": {
                "collector": pool.address(), "schedd": pool.schedd_name(), "credentialsSecretName": SECRET,
            },
            "allowedNamespaces": USERS,
        },
    }))?;
    site.kubectl(&format!("-n accounts wait --for=condition=Ready htcpool/{name} --timeout=3m"))?;
    for (user, id) in USERS.iter().zip(FIRST_ACCOUNT..) {
        secret(site, pool, user, &format!("{user}@test"))?;
        site.apply(&htcjob(pool, user, "short", "id -u"))?;
        site.apply(&htcjob(pool, user, "lasting", LASTING))?;
        succeeds(site, user, "short", id)?;
        site.kubectl(&format!("-n {user} wait --for=jsonpath={{.status.phase}}=Running htcjob/lasting --timeout=3m"))?;
    }
    pool.restart_schedd_kill9()?;
    let [removed, kept] = USERS;
    site.kubectl(&format!("-n {removed} delete htcjob lasting --timeout=3m"))?;
    let queued = pool.tool("condor_q", &["-allusers", "-af", "Owner", "JobBatchName"])?;
    if queued.lines().map(str::trim).ne([format!("{kept} {kept}/lasting")]) {
        return Err(failed("remove the jobs of one user and no other", queued));
    }
    site.kubectl("-n htc-operator delete pod --selector=app.kubernetes.io/name=htc-operator --grace-period=0 --force")?;
    succeeds(site, kept, "lasting", FIRST_ACCOUNT + 1)?;
    for user in USERS {
        site.kubectl(&format!("-n {user} delete htcjobs --all --timeout=3m"))?;
    }
    let ran =
        pool.tool("condor_history", &["-constraint", "JobBatchName == \"bob/lasting\"", "-af", "ClusterId", "Owner"])?;
    if ran.lines().count() != 1 || !ran.trim().ends_with(" bob") {
        return Err(failed("run a job once although schedd and operator were killed", ran));
    }
    let left = pool.tool("condor_q", &["-allusers", "-af", "ClusterId"])?;
    if !left.trim().is_empty() {
        return Err(failed("leave nothing in the queue", left));
    }
    site.kubectl(&format!("-n accounts delete htcpool {name} --timeout=2m"))?;
    say(&format!("{name}: each user's jobs ran under an account of its own, once, and their output came back"));
    Ok(())
}

/// As deploy/namespace-credentials has it.
const SECRET: &str = "my-condor";

/// Puts a token of the pool into a namespace.
fn secret(site: &Site<'_>, pool: &Pool, namespace: &str, identity: &str) -> Result<()> {
    let token = pool.tool("condor_token_create", &["-identity", identity, "-key", "POOL"])?;
    site.apply(&json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": SECRET, "namespace": namespace, "labels": { "htc.cern.ch/use": "credentials" } },
        "stringData": { "token": token.trim() },
    }))
}

fn htcjob(pool: &Pool, user: &str, name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": { "name": name, "namespace": user },
        "spec": {
            "pool": format!("accounts/{}", pool.version()), "credentialsSecretName": SECRET, "queue": 1,
            "resources": { "cpus": 1, "memory": "64Mi", "disk": "64Mi" },
            "script": { "image": EXAMPLES_IMAGE, "command": "sh", "source": script },
        },
    })
}

/// Waits for the end of an HTCJob whose job prints the id of its account.
fn succeeds(site: &Site<'_>, user: &str, name: &str, id: u32) -> Result<()> {
    for condition in ["Complete", "OutputFetched"] {
        site.kubectl(&format!("-n {user} wait --for=condition={condition} htcjob/{name} --timeout=5m"))?;
    }
    site.kubectl("-n htc-operator rollout status deployment/htc-operator --timeout=180s")?;
    let line =
        format!("kubectl -n htc-operator exec deploy/htc-operator -- cat /data/htc_out/{user}/{name}/latest/0/out");
    let message = site.says(&line)?;
    if message.trim() == id.to_string() {
        Ok(())
    } else {
        Err(failed(&format!("run the job of {user} under its account"), message))
    }
}
