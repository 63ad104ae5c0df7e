//! Specs that `kubectl apply` accepts and refuses, with the messages; `kubectl explain` and `kubectl get`.

mod pages;

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bed::api::{Reader, collection_of};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::{Assets, Kube, tool, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

fn folder(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).display().to_string()
}

/// An API server that has the CRD from the checkout, by the command that the README names.
fn server() -> &'static Kube {
    static SERVER: OnceLock<Kube> = OnceLock::new();
    bed::turns::take(bed::Weight::Light);
    SERVER.get_or_init(|| {
        let kube = Kube::start(&Assets::locate().unwrap()).unwrap();
        kube.kubectl_ok(&["apply", "-f", &folder("crd")]).unwrap();
        // It is Established a little before its objects can be had.
        wait_for("HTCJobs on the API server", LIMIT, || kube.kubectl_ok(&["get", "htcjobs"])).unwrap();
        // Its description comes later still.
        wait_for("HTCJobs to be described", LIMIT, || kube.kubectl_ok(&["explain", "htcjobs"])).unwrap();
        kube
    })
}

fn kubectl(arguments: &[&str], input: &Value) -> Result<String, String> {
    let done = tool::run("asking", &mut server().kubectl(arguments), &input.to_string(), LIMIT).unwrap();
    if done.status.success() { Ok(done.stdout) } else { Err(done.stderr) }
}

/// Where a test does not look at what kubectl says.
fn reader() -> &'static Reader {
    static READER: OnceLock<Reader> = OnceLock::new();
    // Each waits for its turn here. Whoever did so in there would keep those waiting that have theirs, and never get one.
    let server = server();
    READER.get_or_init(|| Reader::new(server.kubeconfig()))
}

/// In which collection an object is, of these tests' namespace.
fn place(object: &Value) -> String {
    let mut object = object.clone();
    object["metadata"]["namespace"] = "default".into();
    collection_of(&object)
}

fn create(object: &Value) {
    reader().create(&place(object), object).unwrap();
}

fn find(object: &Value) -> Value {
    reader().object(&place(object), name_of(object)).unwrap()
}

fn patch(object: &Value, patch: &Value) -> Result<Value, String> {
    reader().merge(&place(object), name_of(object), patch).map_err(|error| error.to_string())
}

/// Writes the status as the operator would.
fn patch_status(object: &Value, status: &Value) -> Result<Value, String> {
    let patch = json!({ "status": status });
    reader().merge_status(&place(object), name_of(object), &patch).map_err(|error| error.to_string())
}

/// A name that no other test has.
fn fresh_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("job-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn htcjob(spec: &Value) -> Value {
    json!({ "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": { "name": fresh_name() }, "spec": spec })
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// A spec that is fine, merged with `change`; null takes a key away.
fn spec(change: &Value) -> Value {
    fn merge(into: &mut Value, change: &Value) {
        match change {
            Value::Object(changes) => {
                for (key, value) in changes {
                    if value.is_null() {
                        into.as_object_mut().unwrap().remove(key);
                    } else {
                        merge(&mut into[key], value);
                    }
                }
            }
            value => *into = value.clone(),
        }
    }
    let mut spec = json!({ "script": { "image": "centos", "command": "bash", "source": "echo A" } });
    merge(&mut spec, change);
    spec
}

/// kubectl wraps lines; words are compared.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

const ONE_THING: &str = "a job has one thing to run: write either spec.script or spec.container";
const QUEUE: &str = "queue must be a number of jobs from 1 to 100000; leave it out for one job";
const IMMUTABLE: &str = "the spec cannot be changed once the HTCJob exists (only suspend, parallelism, activeDeadlineSeconds and ttlSecondsAfterFinished can): delete the HTCJob and create it again";

#[rstest]
#[case::no_jobs(json!({ "queue": 0 }), "spec.queue", QUEUE)]
#[case::too_many_jobs(json!({ "queue": 2_000_000 }), "spec.queue", QUEUE)]
#[case::one_job_too_many(json!({ "queue": 100_001 }), "spec.queue", QUEUE)]
#[case::negative_number_of_jobs(json!({ "queue": -1 }), "spec.queue", QUEUE)]
#[case::no_jobs_in_the_script(json!({ "script": { "queue": 0 } }), "spec.script.queue", QUEUE)]
#[case::too_many_jobs_in_the_script(json!({ "script": { "queue": 2_000_000 } }), "spec.script.queue", QUEUE)]
#[case::indexes_with_blanks(json!({ "indexes": "3, 4" }), "spec.indexes", "indexes is a list of indexes and ranges, without blanks, such as 3,17,200-210")]
#[case::indexes_without_an_end(json!({ "indexes": "3-" }), "spec.indexes", "indexes is a list of indexes and ranges")]
#[case::queue_as_a_word(json!({ "queue": "three" }), "spec.queue", "must be of type integer")]
#[case::conflicting_numbers_of_jobs(
    json!({ "queue": 2, "script": { "queue": 3 } }),
    "spec.queue",
    "spec.queue and spec.script.queue differ: write the number of jobs once, as spec.queue"
)]
#[case::no_script(json!({ "script": null }), "spec.script", ONE_THING)]
#[case::script_and_container(json!({ "container": { "image": "i" } }), "spec.script", ONE_THING)]
#[case::container_without_an_image(json!({ "script": null, "container": { "args": ["a"] } }), "spec.container.image", "Required value")]
#[case::blank_image_of_a_container(json!({ "script": null, "container": { "image": " " } }), "spec.container.image", "image is empty: write the container image")]
#[case::empty_program(json!({ "script": null, "container": { "image": "i", "command": [""] } }), "spec.container.command", "command begins with the program to run")]
#[case::option_as_the_program(json!({ "script": null, "container": { "image": "i", "command": ["-e"] } }), "spec.container.command", "command begins with the program to run")]
#[case::variable_as_the_program(json!({ "script": null, "container": { "image": "i", "command": ["A=b", "sh"] } }), "spec.container.command", "command begins with the program to run")]
#[case::too_many_arguments(json!({ "script": null, "container": { "image": "i", "args": vec!["a"; 257] } }), "spec.container.args", "must have at most 256 items")]
#[case::command_as_a_text(json!({ "script": null, "container": { "image": "i", "command": "sh" } }), "spec.container.command", "must be of type array")]
#[case::no_image(json!({ "script": { "image": null } }), "spec.script.image", "Required value")]
#[case::no_command(json!({ "script": { "command": null } }), "spec.script.command", "Required value")]
#[case::no_source(json!({ "script": { "source": null } }), "spec.script.source", "Required value")]
#[case::empty_image(json!({ "script": { "image": "" } }), "spec.script.image", "image is empty: write the container image, for example `centos`")]
#[case::blank_image(json!({ "script": { "image": " \t" } }), "spec.script.image", "image is empty: write the container image, for example `centos`")]
#[case::empty_command(json!({ "script": { "command": "" } }), "spec.script.command", "command is empty: write the program that runs the script, for example `bash`")]
#[case::blank_command(json!({ "script": { "command": "  " } }), "spec.script.command", "command is empty: write the program that runs the script, for example `bash`")]
#[case::empty_source(json!({ "script": { "source": "" } }), "spec.script.source", "source is empty: write the script that the command is to run")]
#[case::blank_source(json!({ "script": { "source": "\n \t\n" } }), "spec.script.source", "source is empty: write the script that the command is to run")]
#[case::source_too_long(json!({ "script": { "source": "a".repeat(262_145) } }), "spec.script.source", "Too long: may not be more than 262144 bytes")]
#[case::htcopts_too_long(json!({ "htcopts": "a".repeat(8193) }), "spec.htcopts", "Too long: may not be more than 8192 bytes")]
#[case::invalid_memory_unit(json!({ "resources": { "memory": "2 GB" } }), "spec.resources.memory", "memory is a Kubernetes quantity such as 2Gi or 500M; a number alone is bytes")]
#[case::no_memory(json!({ "resources": { "memory": 0 } }), "spec.resources.memory", "memory is a Kubernetes quantity such as 2Gi or 500M; a number alone is bytes")]
#[case::cpus_in_words(json!({ "resources": { "cpus": "two" } }), "spec.resources.cpus", "cpus is a number of cores such as 4 or 500m")]
#[case::invalid_disk_unit(json!({ "resources": { "disk": "1gi" } }), "spec.resources.disk", "disk is a Kubernetes quantity such as 10Gi or 500M; a number alone is bytes")]
#[case::negative_number_of_gpus(json!({ "resources": { "gpus": -1 } }), "spec.resources.gpus", "gpus is a number of GPUs, from 0 to 1000")]
#[case::variable_with_a_dash(json!({ "env": [{ "name": "a-b", "value": "x" }] }), "spec.env[0].name", "name is the name of an environment variable: use letters, digits and _, and do not start with a digit")]
#[case::reserved_variable(json!({ "env": [{ "name": "HTCPROCID", "value": "x" }] }), "spec.env[0].name", "HTCPROCID, HTC_ITEM and JOB_NAME are set by htc-operator")]
#[case::queue_unlike_number_of_items(json!({ "queue": 3, "items": ["a", "b"] }), "spec.queue", "spec.queue is not the number of items: leave spec.queue out")]
#[case::two_sources_of_items(json!({ "items": ["a"], "itemsFrom": { "configMapKeyRef": { "name": "a", "key": "b" } } }), "spec.itemsFrom", "exclude each other: write one of them")]
#[case::items_of_another_namespace(json!({ "itemsFrom": { "configMapKeyRef": { "name": "kube-system/a", "key": "b" } } }), "spec.itemsFrom.configMapKeyRef.name", "in the HTCJob's own namespace")]
#[case::items_of_a_path(json!({ "itemsFrom": { "configMapKeyRef": { "name": "a", "key": "../b" } } }), "spec.itemsFrom.configMapKeyRef.key", "letters, digits, -, _ and .")]
#[case::item_of_two_lines(json!({ "items": ["a", "b\nc"] }), "spec.items[1]", "should match")]
#[case::absolute_output_path(json!({ "outputs": ["a", "/etc"] }), "spec.outputs", "outputs are paths below the script's working directory, such as results or plots/*.pdf: without .., and not beginning with /")]
#[case::output_outside_the_folder(json!({ "outputs": ["a/../../b"] }), "spec.outputs", "outputs are paths below the script's working directory, such as results or plots/*.pdf: without .., and not beginning with /")]
#[case::output_of_the_whole_folder(json!({ "outputs": ["."] }), "spec.outputs", "outputs are paths below the script's working directory, such as results or plots/*.pdf: without .., and not beginning with /")]
#[case::output_without_a_name(json!({ "outputs": ["a//b"] }), "spec.outputs", "outputs are paths below the script's working directory, such as results or plots/*.pdf: without .., and not beginning with /")]
#[case::output_of_two_lines(json!({ "outputs": ["a\nend"] }), "spec.outputs[0]", "should match")]
#[case::output_with_a_backslash(json!({ "outputs": ["a\\*"] }), "spec.outputs[0]", "should match")]
#[case::empty_output(json!({ "outputs": [""] }), "spec.outputs[0]", "should be at least 1")]
#[case::long_output(json!({ "outputs": ["a".repeat(257)] }), "spec.outputs[0]", "Too long")]
#[case::too_many_outputs(json!({ "outputs": vec!["a"; 65] }), "spec.outputs", "must have at most 64 items")]
#[case::file_outside_the_folder(json!({ "files": [{ "path": "../a", "inline": "x" }] }), "spec.files[0].path", "path is a path below the job's working directory, such as conf/cuts.yaml: without .., and not beginning or ending with /")]
#[case::absolute_file(json!({ "files": [{ "path": "/etc/a", "inline": "x" }] }), "spec.files[0].path", "not beginning or ending with /")]
#[case::file_with_a_pattern(json!({ "files": [{ "path": "a*", "inline": "x" }] }), "spec.files[0].path", "should match")]
#[case::file_without_a_source(json!({ "files": [{ "path": "a" }] }), "spec.files[0]", "a file has one source: write one of configMap, inline, url and secret")]
#[case::url_with_a_password(json!({ "files": [{ "path": "a", "url": "https://u:p@h/a" }] }), "spec.files[0].url", "url has a user or a password before the host")]
#[case::sha256_without_a_url(json!({ "files": [{ "path": "a", "inline": "x", "sha256": "0".repeat(64) }] }), "spec.files[0].sha256", "sha256 is for files with a url")]
#[case::variable_with_two_sources(json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" }, "fieldRef": { "fieldPath": "metadata.uid" } } }] }), "spec.env[0].valueFrom", "valueFrom has one source")]
#[case::variable_with_a_value_and_a_source(json!({ "env": [{ "name": "A", "value": "1", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } }] }), "spec.env[0].valueFrom", "value and valueFrom exclude each other")]
#[case::variable_of_another_field(json!({ "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "spec.queue" } } }] }), "spec.env[0].valueFrom.fieldRef.fieldPath", "fieldPath is metadata.name")]
#[case::file_with_two_sources(json!({ "files": [{ "path": "a", "inline": "x", "configMap": { "name": "m" } }] }), "spec.files[0]", "a file has one source: write one of configMap, inline, url and secret")]
#[case::file_of_another_namespace(json!({ "files": [{ "path": "a", "configMap": { "name": "other/m" } }] }), "spec.files[0].configMap.name", "in the HTCJob's own namespace")]
#[case::file_that_its_owner_cannot_read(json!({ "files": [{ "path": "a", "inline": "x", "mode": 0o200 }] }), "spec.files[0].mode", "mode is from 0400 to 0777: the owner must be able to read the file")]
#[case::two_files_of_one_path(json!({ "files": [{ "path": "a", "inline": "x" }, { "path": "a", "inline": "y" }] }), "spec.files[1]", "Duplicate value")]
#[case::volume_of_another_namespace(json!({ "volumes": [{ "claim": "other/a", "path": "/a" }] }), "spec.volumes[0].claim", "claim is the name of a PersistentVolumeClaim in the HTCJob's own namespace")]
#[case::volume_outside_its_folder(json!({ "volumes": [{ "claim": "a", "path": "/a/../etc" }] }), "spec.volumes[0].path", "path is an absolute path such as /ntuples")]
#[case::volume_with_a_second_bind(json!({ "volumes": [{ "claim": "a", "path": "/a,/etc:/b" }] }), "spec.volumes[0].path", "path is an absolute path such as /ntuples")]
#[case::relative_volume(json!({ "volumes": [{ "claim": "a", "path": "a" }] }), "spec.volumes[0].path", "path is an absolute path such as /ntuples")]
#[case::volume_in_a_folder_of_the_job(json!({ "volumes": [{ "claim": "a", "path": "/htc_run/x" }] }), "spec.volumes[0].path", "path is in a folder that belongs to the image or to the job")]
#[case::two_volumes_of_one_path(json!({ "volumes": [{ "claim": "a", "path": "/a" }, { "claim": "b", "path": "/a" }] }), "spec.volumes[1]", "Duplicate value")]
#[case::volumes_in_two_fields(json!({ "backend": "Kubernetes", "volumes": [{ "claim": "a", "path": "/a" }], "kubernetes": { "volumes": [{ "claim": "b", "mountPath": "/b" }] } }), "spec.volumes", "spec.volumes and spec.kubernetes.volumes exclude each other: write spec.volumes")]
#[case::negative_parallelism(json!({ "parallelism": -1 }), "spec.parallelism", "parallelism is a number of jobs from 0 to 100000; leave it out for no limit")]
#[case::negative_max_failed_indexes(json!({ "maxFailedIndexes": -1 }), "spec.maxFailedIndexes", "maxFailedIndexes is a number of jobs from 0 to 100000; leave it out for no limit")]
#[case::duplicate_variable(json!({ "env": [{ "name": "A" }, { "name": "A" }] }), "spec.env[1]", "Duplicate value")]
#[case::blank_requirements(json!({ "requirements": " " }), "spec.requirements", "requirements is empty: leave it out, or write an expression such as `TARGET.HasAvx2`")]
#[case::negative_retries(json!({ "maxRetries": -1 }), "spec.maxRetries", "maxRetries is how often a failed job runs again: write a number from 0 to 1000")]
#[case::secret_of_another_namespace(json!({ "credentialsSecretName": "other/secret" }), "spec.credentialsSecretName", "credentialsSecretName is the name of a Secret in the HTCJob's own namespace")]
#[case::empty_secret_name(json!({ "credentialsSecretName": "" }), "spec.credentialsSecretName", "credentialsSecretName is the name of a Secret")]
#[case::zero_deadline(json!({ "activeDeadlineSeconds": 0 }), "spec.activeDeadlineSeconds", "activeDeadlineSeconds must be at least 1 second; leave it out for no limit")]
#[case::negative_ttl(json!({ "ttlSecondsAfterFinished": -1 }), "spec.ttlSecondsAfterFinished", "ttlSecondsAfterFinished must not be negative; leave it out to keep the HTCJob")]
#[case::htcopts_as_a_number(json!({ "htcopts": 5 }), "spec.htcopts", "must be of type string")]
#[case::suspend_as_a_word(json!({ "suspend": "yes" }), "spec.suspend", "must be of type boolean")]
#[case::unknown_field(json!({ "sript": 1 }), "spec.sript", "unknown field")]
#[case::unknown_field_of_the_script(json!({ "script": { "imgae": "centos" } }), "spec.script.imgae", "unknown field")]
fn invalid_spec_is_refused_with_a_remedy(#[case] change: Value, #[case] field: &str, #[case] message: &str) {
    let refusal = kubectl(&["apply", "-f", "-"], &htcjob(&spec(&change))).expect_err("it was accepted");
    let refusal = words(&refusal);
    assert!(refusal.contains(field) && refusal.contains(message), "{refusal}");
}

/// Client-side `kubectl apply` copies the whole object into an annotation of at most 256 KiB; a larger source needs
/// `--server-side`.
#[test]
fn script_source_limit_is_in_bytes() {
    let long = htcjob(&spec(&json!({ "script": { "source": "é".repeat(131_073) } })));
    let refusal = words(&kubectl(&["apply", "--server-side", "-f", "-"], &long).unwrap_err());
    let message = "spec.script.source: Invalid value: source is larger than 256 KiB: put large files where the nodes can read them (/cvmfs, /eos) and let the script fetch them";
    assert!(refusal.contains(message), "{refusal}");
    assert!(kubectl(&["apply", "-f", "-"], &long).is_err());
    let fits = htcjob(&spec(&json!({ "script": { "source": "é".repeat(131_072) } })));
    kubectl(&["apply", "--server-side", "-f", "-"], &fits).unwrap();
}

#[rstest]
#[case::minimal(json!({}))]
#[case::both_queues_the_same(json!({ "queue": 4, "script": { "queue": 4 } }))]
#[case::queue_in_the_script(json!({ "script": { "queue": 4 } }))]
#[case::most_jobs(json!({ "queue": 100_000 }))]
#[case::one_job(json!({ "queue": 1 }))]
#[case::several_fields(json!({ "name": "n", "queue": 2, "htcopts": "request_cpus = 2\n+JobFlavour = \"espresso\"\n", "suspend": true }))]
#[case::long_source(json!({ "script": { "source": "a".repeat(200_000) } }))]
#[case::quantities(json!({ "resources": { "cpus": "500m", "memory": "1.5Gi", "disk": 1_000_000_000, "gpus": 0 } }))]
#[case::whole_numbers(json!({ "resources": { "cpus": 4, "memory": "2G" }, "maxRetries": 3 }))]
#[case::variables(json!({ "env": [{ "name": "A", "value": " $x\n" }, { "name": "B", "value": "" }] }))]
#[case::outputs(json!({ "outputs": ["results/", "**/*.root", "a b", ".hidden", "a..b", "...", "$(x) 'y'", "[!a-z]?"] }))]
#[case::most_outputs(json!({ "outputs": vec!["a".repeat(256); 64] }))]
#[case::files(json!({ "files": [{ "path": "conf/a b", "inline": "x", "mode": 0o755 }, { "path": "all", "configMap": { "name": "m" } }, { "path": "one", "configMap": { "name": "m", "key": "a.b" } }] }))]
#[case::volumes(json!({ "volumes": [{ "claim": "a.b-1", "path": "/data/v1.2_x-y", "readOnly": true }, { "claim": "b", "path": "/tmpx" }] }))]
#[case::times(json!({ "activeDeadlineSeconds": 86_400, "ttlSecondsAfterFinished": 0, "requirements": "TARGET.Memory > 1" }))]
#[case::credentials(json!({ "credentialsSecretName": "my.condor-token" }))]
#[case::any_text(json!({ "script": { "source": "\u{feff}echo \"$HOME\" 'é' \\ 日本 $(x) @\t%\r\n" } }))]
fn valid_spec_is_accepted_and_stored_unchanged(#[case] change: Value) {
    let object = htcjob(&spec(&change));
    kubectl(&["apply", "-f", "-"], &object).unwrap();
    assert_eq!(find(&object)["spec"], object["spec"]);
}

#[rstest]
#[case::source(json!({ "script": { "source": "echo B" } }))]
#[case::image(json!({ "script": { "image": "debian" } }))]
#[case::command(json!({ "script": { "command": "sh" } }))]
#[case::queue(json!({ "queue": 3 }))]
#[case::queue_removed(json!({ "queue": null }))]
#[case::queue_in_the_script(json!({ "script": { "queue": 2 } }))]
#[case::htcopts(json!({ "htcopts": "request_cpus = 2" }))]
#[case::htcopts_removed(json!({ "htcopts": null }))]
#[case::name(json!({ "name": "other" }))]
#[case::resources(json!({ "resources": { "cpus": 2 } }))]
#[case::env(json!({ "env": [{ "name": "A", "value": "b" }] }))]
#[case::outputs(json!({ "outputs": ["a"] }))]
#[case::files(json!({ "files": [{ "path": "a", "inline": "x" }] }))]
#[case::requirements(json!({ "requirements": "true" }))]
#[case::retries(json!({ "maxRetries": 1 }))]
#[case::credentials(json!({ "credentialsSecretName": "another" }))]
#[case::name_removed(json!({ "name": null }))]
#[case::with_suspend(json!({ "suspend": true, "queue": 3 }))]
fn payload_fields_are_immutable(#[case] change: Value) {
    let whole = spec(&json!({ "name": "n", "queue": 2, "htcopts": "request_cpus = 1" }));
    let object = htcjob(&whole);
    create(&object);
    let refusal = words(&patch(&object, &json!({ "spec": change })).expect_err("the change was accepted"));
    assert!(refusal.contains(IMMUTABLE), "{refusal}");
}

#[test]
fn omitted_fields_cannot_be_added() {
    let object = htcjob(&spec(&json!({})));
    create(&object);
    for change in [
        json!({ "queue": 1 }),
        json!({ "htcopts": "" }),
        json!({ "name": "" }),
        json!({ "credentialsSecretName": "a" }),
    ] {
        let refused = patch(&object, &json!({ "spec": change }));
        assert!(words(&refused.unwrap_err()).contains(IMMUTABLE), "{change}");
    }
}

/// Adds a field to the type, without any rule for it.
#[test]
fn new_field_is_immutable_by_default() {
    use htc_api::{HTCJob, fix_spec};
    use kube::CustomResourceExt as _;
    let mut crd = serde_json::to_value(HTCJob::crd()).unwrap();
    crd["metadata"]["name"] = "htcjobs.tomorrow.example.org".into();
    crd["spec"]["group"] = "tomorrow.example.org".into();
    for names in ["categories", "shortNames"] {
        crd["spec"]["names"][names] = json!([]);
    }
    let spec_schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    crd.pointer_mut(spec_schema).unwrap()["novel"] = json!({ "type": "string", "maxLength": 10 });
    let crd = serde_json::to_string(&fix_spec(serde_json::from_value(crd).unwrap())).unwrap();
    server().apply_crd(&crd, "htcjobs.tomorrow.example.org").unwrap();
    let created = |novel: &Value| {
        let mut object = htcjob(&spec(&json!({ "novel": novel })));
        object["apiVersion"] = "tomorrow.example.org/v1alpha1".into();
        create(&object);
        object
    };
    for (before, after) in [(json!("a"), json!("b")), (json!("a"), Value::Null), (Value::Null, json!("b"))] {
        let object = created(&before);
        let refusal =
            words(&patch(&object, &json!({ "spec": { "novel": after } })).expect_err("the change was accepted"));
        assert!(refusal.contains(IMMUTABLE), "{before} to {after}: {refusal}");
        patch(&object, &json!({ "spec": { "suspend": true } })).unwrap();
    }
}

/// An object of an earlier version has a field that today's rules refuse, and lacks one that they require. Its status
/// and its finalizer can still be written, and the finalizer removed.
#[test]
fn htcjob_stored_under_other_rules_can_be_updated() {
    fn relax(node: &mut Value) {
        if let Some(object) = node.as_object_mut() {
            object.remove("x-kubernetes-validations");
            object.values_mut().for_each(relax);
        }
        node.as_array_mut().into_iter().flatten().for_each(relax);
    }
    let mut strict = serde_json::to_value(htc_api::crd()).unwrap();
    let mut lax = strict.clone();
    let schema = lax.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").unwrap();
    relax(schema);
    schema["properties"]["spec"].as_object_mut().unwrap().remove("required");
    let resource = "htcjobs.yesterday.example.org";
    for crd in [&mut lax, &mut strict] {
        crd["metadata"]["name"] = resource.into();
        crd["spec"]["group"] = "yesterday.example.org".into();
        for names in ["categories", "shortNames"] {
            crd["spec"]["names"][names] = json!([]);
        }
    }
    server().apply_crd(&lax.to_string(), resource).unwrap();
    let specs = [
        json!({ "queue": 0, "requirements": " ", "script": { "image": "", "command": "bash", "source": "true" } }),
        json!({ "queue": 2 }),
        json!({ "queue": null, "script": { "image": "centos", "command": "bash", "source": "true", "queue": null } }),
    ];
    let objects = specs.each_ref().map(|spec| {
        let mut object = htcjob(spec);
        object["apiVersion"] = "yesterday.example.org/v1alpha1".into();
        create(&object);
        object
    });
    server().apply_crd(&strict.to_string(), resource).unwrap();
    // The new rules are there once the second one refuses to be given what it lacks.
    let dry_run = ["--type=merge", "--dry-run=server", "-p", r#"{"spec":{"queue":1}}"#];
    wait_for("the new rules", LIMIT, || {
        let taken = kubectl(&[&["patch", resource, name_of(&objects[2])], &dry_run[..]].concat(), &Value::Null);
        if taken.is_err() { Ok(()) } else { Err("not yet") }
    })
    .unwrap();
    for object in &objects {
        patch(object, &json!({ "metadata": { "finalizers": ["htc.cern.ch/condor-jobs"] } })).unwrap();
        patch_status(object, &json!({ "phase": "Submitted", "active": 1 })).unwrap();
        patch(object, &json!({ "metadata": { "finalizers": null } })).unwrap();
        let refusal = words(&patch(object, &json!({ "spec": { "queue": 7 } })).unwrap_err());
        assert!(refusal.contains(IMMUTABLE), "{refusal}");
    }
}

#[test]
fn deadline_and_ttl_can_be_changed() {
    let object = htcjob(&spec(&json!({ "activeDeadlineSeconds": 10 })));
    create(&object);
    for times in [(json!(20), json!(30)), (Value::Null, json!(0)), (json!(1), Value::Null)] {
        let change = json!({ "activeDeadlineSeconds": times.0, "ttlSecondsAfterFinished": times.1 });
        let kept = patch(&object, &json!({ "spec": change })).unwrap();
        let of = |field: &str| kept["spec"][field].clone();
        assert_eq!((of("activeDeadlineSeconds"), of("ttlSecondsAfterFinished")), times);
    }
}

#[test]
fn suspend_can_be_changed() {
    let mut object = htcjob(&spec(&json!({ "queue": 2 })));
    kubectl(&["apply", "-f", "-"], &object).unwrap();
    for suspend in [true, false] {
        object["spec"]["suspend"] = suspend.into();
        kubectl(&["apply", "-f", "-"], &object).unwrap();
        assert_eq!(find(&object)["spec"]["suspend"], suspend);
    }
    object["spec"].as_object_mut().unwrap().remove("suspend");
    kubectl(&["apply", "-f", "-"], &object).unwrap();
}

#[test]
fn labels_annotations_and_finalizers_can_be_changed() {
    let object = htcjob(&spec(&json!({})));
    create(&object);
    let metadata = json!({ "metadata": { "labels": { "a": "b" }, "annotations": { "htc.cern.ch/abandon": "true" }, "finalizers": ["htc.cern.ch/condor-jobs"] } });
    patch(&object, &metadata).unwrap();
    patch(&object, &json!({ "metadata": { "finalizers": null } })).unwrap();
}

#[test]
fn phase_never_goes_back() {
    let phases = ["Pending", "Submitted", "Running", "Completed", "Terminating"];
    for (before, from) in phases.iter().enumerate() {
        for (after, to) in phases.iter().enumerate() {
            let object = htcjob(&spec(&json!({})));
            create(&object);
            patch_status(&object, &json!({ "phase": from })).unwrap();
            let changed = patch_status(&object, &json!({ "phase": to }));
            if after >= before {
                changed.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
            } else {
                let refusal = words(&changed.unwrap_err());
                assert!(refusal.contains("the phase of an HTCJob cannot go back"), "{from} to {to}: {refusal}");
            }
        }
        let object = htcjob(&spec(&json!({})));
        create(&object);
        patch_status(&object, &json!({ "phase": from })).unwrap();
        let taken_away = patch_status(&object, &json!({ "phase": null }));
        assert_eq!(taken_away.is_ok(), *from == "Pending", "{from} taken away: {taken_away:?}");
    }
    let object = htcjob(&spec(&json!({})));
    create(&object);
    assert!(patch_status(&object, &json!({ "phase": "Suspended" })).is_err());
}

#[test]
fn cluster_id_changes_only_with_the_attempt() {
    let object = htcjob(&spec(&json!({})));
    create(&object);
    patch_status(&object, &json!({ "attempt": 1 })).unwrap();
    patch_status(&object, &json!({ "attempt": 1, "clusterid": "12" })).unwrap();
    patch_status(&object, &json!({ "active": 1 })).unwrap();
    for change in
        [json!({ "clusterid": "13" }), json!({ "clusterid": null }), json!({ "attempt": 0, "clusterid": "13" })]
    {
        let refusal = words(&patch_status(&object, &change).unwrap_err());
        assert!(refusal.contains("clusterid changes only with a new attempt"), "{change}: {refusal}");
    }
    patch_status(&object, &json!({ "attempt": 2, "clusterid": "13" })).unwrap();
}

#[test]
fn status_is_written_only_through_its_subresource() {
    let mut object = htcjob(&spec(&json!({})));
    object["status"] = json!({ "phase": "Completed" });
    kubectl(&["apply", "-f", "-"], &object).unwrap();
    assert_eq!(find(&object)["status"], Value::Null);
}

/// Fields of a status that the first htc-operator stored.
#[test]
fn status_of_the_first_operator_is_accepted() {
    let object = htcjob(&spec(&json!({})));
    create(&object);
    let old = json!({ "clusterid": "884426", "jobid": ["884426.0"], "jobids": ["884426.0"], "uniqid": 7, "active": 1, "succeeded": 0, "failed": 0 });
    patch_status(&object, &old).unwrap();
    let kept = find(&object);
    for (key, value) in old.as_object().unwrap() {
        assert_eq!(&kept["status"][key], value, "{key}");
    }
}

#[test]
fn kubectl_explain_describes_the_fields() {
    let explain = |field: &str| words(&server().kubectl_ok(&["explain", field]).unwrap());
    for (field, sentences) in [
        (
            "htcjob",
            &[
                "An HTCJob runs a script or a program in a container on an HTCondor pool, once or many times. Deleting it removes its jobs from HTCondor.",
                "What to run on the HTCondor pool, and how many times.",
            ] as &[&str],
        ),
        (
            "htcjob.spec",
            &[
                "script <Object> Image, command and script that each job runs.",
                "Number of jobs, 1 to 100000. Default: the number of items, or 1 without items. Each job gets its index, from 0, as the script's argument and in HTCPROCID.",
                "Additional HTCondor submit commands, one `key = value` per line, for example `+JobFlavour = \"espresso\"`. docs/htcopts.md lists the allowed commands. `$` macros and line continuations are not allowed.",
                "While true, no job is submitted and jobs in HTCondor are held; Pods are deleted, and start anew. Set it to false to resume.",
            ],
        ),
        (
            "htcjob.spec.script",
            &[
                "A path is an unpacked image folder or a file in Apptainer's format, for example `/eos/project/images/root.sif`.",
                "Program in the image that runs the script",
                "Contents of the script, at most 256 KiB. From about 200 KiB `kubectl apply` needs `--server-side`. Its first argument is the job's index, from 0.",
            ],
        ),
        (
            "htcjob.status",
            &[
                "phase <string> enum: Pending, Submitted, Running, Completed, .... How far the HTCJob has come; a phase never goes back.",
                "Jobs in HTCondor that have not ended.",
                "Jobs that exited with 0.",
                "Current conditions, for example Submitted, Complete and Failed.",
            ],
        ),
    ] {
        let text = explain(field);
        for sentence in sentences {
            assert!(text.contains(sentence), "`kubectl explain {field}` lacks: {sentence}\n{text}");
        }
    }
    assert!(!words(&server().kubectl_ok(&["explain", "htcjob", "--recursive"]).unwrap()).contains("<empty>"));
    for field in ["htcjob", "htcjob.spec", "htcjob.spec.script", "htcjob.status", "htcjob.status.conditions"] {
        assert!(!explain(field).contains("<empty>"), "`kubectl explain {field}` has an empty description");
    }
}

#[test]
fn kubectl_has_short_names_and_columns() {
    let resources = server().kubectl_ok(&["api-resources", "--api-group=htc.cern.ch", "--no-headers"]).unwrap();
    let kinds: Vec<String> = resources.lines().map(words).collect();
    assert_eq!(
        kinds,
        [
            "htcjobs htcj htc.cern.ch/v1alpha1 true HTCJob",
            "htcpools htcpl htc.cern.ch/v1alpha1 true HTCPool",
            "htcqueues htcq htc.cern.ch/v1alpha1 false HTCQueue",
        ]
    );
    let object = htcjob(&spec(&json!({ "queue": 3 })));
    let name = name_of(&object);
    create(&object);
    let status = json!({
        "phase": "Running", "state": "Held", "message": "1 of 3 jobs held", "schedd": "schedd@test",
        "total": 3, "active": 1, "succeeded": 2, "failed": 0, "attempt": 1, "clusterid": "12",
    });
    patch_status(&object, &status).unwrap();
    let table = server().kubectl_ok(&["get", "htcj", name]).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "STATUS", "JOBS", "ACTIVE", "SUCCEEDED", "FAILED", "CLUSTER", "AGE"]);
    assert_eq!(rows[1][..7], [name, "Held", "3", "1", "2", "0", "12"]);
    let wide = server().kubectl_ok(&["get", "htcj", name, "-o", "wide"]).unwrap();
    assert!(words(wide.lines().next().unwrap()).ends_with("AGE PHASE SCHEDD MESSAGE"), "{wide}");
    assert!(words(&wide).ends_with("Running schedd@test 1 of 3 jobs held"), "{wide}");
    for (selector, found) in
        [("status.state=Held", true), ("status.state=Failed", false), ("status.phase=Running", true)]
    {
        let listed = server().kubectl_ok(&["get", "htcj", "--field-selector", selector, "-o", "name"]).unwrap();
        assert_eq!(listed.contains(&format!("/{name}\n")), found, "{selector}: {listed}");
    }
    assert!(server().kubectl_ok(&["get", "all"]).unwrap().contains(name), "`kubectl get all` does not show HTCJobs");
}

#[test]
fn conditions_are_keyed_by_type() {
    let object = htcjob(&spec(&json!({})));
    let name = name_of(&object);
    create(&object);
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    assert!(patch_status(&object, &json!({ "conditions": [condition("Held", "Perhaps")] })).is_err());
    let twice = json!({ "conditions": [condition("Held", "True"), condition("Held", "False")] });
    assert!(words(&patch_status(&object, &twice).unwrap_err()).contains("Duplicate value"));
    patch_status(&object, &json!({ "conditions": [condition("Complete", "True"), condition("Held", "False")] }))
        .unwrap();
    server().kubectl_ok(&["wait", "--for=condition=Complete", &format!("htcjob/{name}"), "--timeout=20s"]).unwrap();
}

#[test]
fn every_example_applies() {
    // The workflow is Argo's, not this server's: tests/examples/argo.rs has it.
    for part in ["", "command", "retcode", "kubernetes", "pools", "argo/rbac.yaml"] {
        let examples = format!("{}/{part}", folder("examples"));
        let applied = server().kubectl_ok(&["apply", "--dry-run=server", "-f", &examples, "-o", "name"]).unwrap();
        let kinds = [
            "htcjob.htc.cern.ch/",
            "htcqueue.htc.cern.ch/",
            "htcpool.htc.cern.ch/",
            "role.rbac.authorization.k8s.io/",
            "rolebinding.rbac.authorization.k8s.io/",
        ];
        let core = ["serviceaccount/", "configmap/", "persistentvolumeclaim/"];
        let of_core = |name: &str| core.iter().any(|kind| name.starts_with(kind));
        let known = |name: &str| kinds.iter().any(|kind| name.starts_with(kind)) || of_core(name);
        assert!(applied.lines().count() >= 2 && applied.lines().all(known), "{part}: {applied}");
    }
}

#[test]
fn crd_is_structural_and_reapplies_unchanged() {
    let again = server().kubectl_ok(&["apply", "-f", &folder("crd")]).unwrap();
    assert!(again.trim().ends_with("unchanged"), "{again}");
    let conditions = server()
        .kubectl_ok(&["get", "crd", "htcjobs.htc.cern.ch", "-o", "jsonpath={.status.conditions[*].type}"])
        .unwrap();
    assert!(conditions.contains("Established") && !conditions.contains("NonStructuralSchema"), "{conditions}");
}
