//! Images that HTCJobs name get workers of their own.

use serde_json::{Value, json};
use testbed::{Version, wait_for};

use bed::PATIENCE;
use bed::site::says;

use super::super::site::{delete, wait_ready};
use super::node::{BARE, Node};
use super::{Cluster, IMAGE, POOL, apply, ends_well_as, fixed, get, lasting, pool};

const OTHER: &str = "registry.example.org/tools/other:1";

fn of_image(name: &str, image: &str) -> Value {
    let mut object = lasting(name);
    object["spec"]["script"]["image"] = image.into();
    object
}

/// Workers run jobs of their image only; one that cannot be a worker says so, and holds up no other.
pub fn each_image_gets_workers_of_its_own(version: Version) {
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

        let bare = format!("registry.example.org/tools/{BARE}:1");
        here.create(&of_image("bare", &bare));
        let lacks = "the image lacks find tar base64";
        wait_for("the pool to say what the image lacks", PATIENCE, || {
            let pool = get(&here);
            let conditions = pool["status"]["conditions"].to_string();
            if says(&pool, "WorkersReady", "False", "EndTooSoon") && conditions.contains(lacks) {
                Ok(())
            } else {
                Err(conditions)
            }
        })
        .unwrap();
        wait_for("the HTCJob to have an Event", PATIENCE, || {
            let events = here.kubectl(&["get", "events", "-o", "json"]);
            let events: Value = serde_json::from_str(&events).unwrap();
            let about = |event: &Value| event["involvedObject"]["name"] == "bare" && event["reason"] == "NoWorkerFits";
            let said: Vec<String> = events["items"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|event| about(event))
                .map(|event| event["message"].as_str().unwrap().to_owned())
                .collect();
            if said.iter().any(|said| said.contains(lacks)) { Ok(()) } else { Err(events.to_string()) }
        })
        .unwrap();
        assert_eq!(here.get("bare")["status"]["phase"], "Submitted");

        for (name, image) in jobs {
            ends_well_as(&here, node, name, &format!("{name}.0.{image}"));
        }
        for name in ["bare", "own", "other", "another"] {
            here.delete(name);
        }
        node.wait_pods("worker", "none", <[Value]>::is_empty);
        delete(&here, POOL);
    });
}
