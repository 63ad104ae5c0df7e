//! Images that HTCJobs name get workers of their own.

use serde_json::{Value, json};
use testbed::Version;

use super::super::site::{delete, wait_ready};
use super::node::Node;
use super::{Cluster, IMAGE, POOL, apply, ends_well_as, fixed, lasting, pool};

on_versions! {
    trixie: each_image_has_its_own_workers;
}

const OTHER: &str = "registry.example.org/tools/other:1";

fn of_image(name: &str, image: &str) -> Value {
    let mut object = lasting(name);
    object["spec"]["script"]["image"] = image.into();
    object
}

/// Workers run jobs of their image only.
fn each_image_has_its_own_workers(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        let mut workers = fixed(0);
        workers.as_object_mut().unwrap().remove("replicas");
        workers["autoscaling"] = json!({ "max": 3, "scaleDownAfterSeconds": 5 });
        workers["allowedImages"] = json!(["registry.example.org/tools/*"]);
        apply(&here, pool(&workers));
        wait_ready(&here, POOL, "Answering");

        here.create(&of_image("elsewhere", "elsewhere.example.org/tools/other:1"));
        let message = here.wait_says("elsewhere", "Submitted", "False", "NoWorkerFits");
        assert!(message.contains("registry.example.org/tools/*"), "{message}");
        here.delete("elsewhere");

        // Neither what is in no pool nor what somebody else says in a status brings a worker, or keeps one.
        let mut pods = of_image("pods", IMAGE);
        pods["spec"]["backend"] = "Kubernetes".into();
        let mut forged = of_image("forged", IMAGE);
        forged["metadata"]["annotations"] = json!({ "htc.cern.ch/operator": "other/one" });
        for object in [&pods, &forged] {
            here.create(object);
        }
        here.wait("pods", "its finalizer", |object| object["metadata"]["finalizers"].is_array());
        let status = json!({ "status": { "phase": "Running", "attempt": 1, "total": 50, "active": 50, "idle": 50 } });
        here.patch_status("htcjob", "forged", &status);

        // A worker has room for two jobs: those of the other image do not get it.
        let jobs = [("own", IMAGE), ("other", OTHER), ("another", OTHER)];
        for (name, image) in jobs {
            here.create(&of_image(name, image));
            here.wait_phase(name, "Running");
        }
        let pods = node.pods("worker");
        let mut images: Vec<&str> =
            pods.iter().map(|pod| pod["spec"]["containers"][0]["image"].as_str().unwrap()).collect();
        images.sort_unstable();
        assert_eq!(images, [IMAGE, OTHER]);

        for (name, image) in jobs {
            ends_well_as(&here, node, name, &format!("{name}.0.{image}"));
        }
        for name in ["own", "other", "another"] {
            here.delete(name);
        }
        node.wait_pods("worker", "none", <[Value]>::is_empty);
        for name in ["pods", "forged"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}
