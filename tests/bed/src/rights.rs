//! What the operator's account may do.

use serde_json::{Value, json};
use testbed::wait_for;

use super::{ACCOUNT, Bed, PATIENCE};

impl Bed {
    /// Whether the operator's ClusterRole lets it list HTCJobs.
    pub fn may_list(&self, allowed: bool) {
        let shown = self.kube.kubectl_ok(&["get", "clusterrole", "htc-operator", "-o", "json"]).unwrap();
        let mut role: Value = serde_json::from_str(&shown).unwrap();
        let mut rules = role["rules"].as_array_mut().unwrap().iter_mut();
        let of_htcjobs = rules.find(|rule| rule["resources"] == json!(["htcjobs"])).unwrap();
        let verbs = of_htcjobs["verbs"].as_array_mut().unwrap();
        verbs.retain(|verb| verb != "list");
        verbs.extend(allowed.then(|| "list".into()));
        self.kube.apply_stdin(&role.to_string()).unwrap();
        wait_for("the authorizer to know", PATIENCE, || {
            let asked = ["auth", "can-i", "list", "htcjobs.htc.cern.ch", "-A", "--as", ACCOUNT];
            let said = self.kube.kubectl_ok(&asked);
            if said.is_ok() == allowed { Ok(()) } else { Err(format!("{said:?}")) }
        })
        .unwrap();
    }
}
