//! What is generated stands in the repository as it would be generated today, and it is what it claims to be.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test program; only functions with #[test] count as tests to clippy"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use htc_api as api;
use htc_api::HTCJob;
use htc_machine::chart;
use htc_machine::transitions::TRANSITIONS;
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Fails with the first line that differs, not with two whole files.
fn must_be(path: &str, generated: &str) {
    let found = std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = |text: &str, nth: usize| text.lines().nth(nth).unwrap_or("(no such line)").to_owned();
    let count = found.lines().count().max(generated.lines().count());
    if let Some(nth) = (0..count).find(|&nth| line(&found, nth) != line(generated, nth)) {
        panic!(
            "{path} is not what the code generates: run `make generate` and commit the result\nline {}\n  there:     {}\n  generated: {}",
            nth + 1,
            line(&found, nth),
            line(generated, nth)
        );
    }
    assert_eq!(found, generated, "{path} differs at its end: run `make generate` and commit the result");
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn names(folder: &str) -> BTreeSet<String> {
    files_below(&root().join(folder))
        .iter()
        .map(|path| path.strip_prefix(root().join(folder)).unwrap().display().to_string())
        .collect()
}

#[test]
fn crd_is_up_to_date() {
    must_be("crd/htcjobs.htc.cern.ch.yaml", &api::crd_yaml().unwrap());
    must_be("crd/htcpools.htc.cern.ch.yaml", &api::pool_crd_yaml().unwrap());
    must_be("crd/htcqueues.htc.cern.ch.yaml", &api::queue_crd_yaml().unwrap());
    assert_eq!(
        names("crd"),
        ["Kustomization", "htcjobs.htc.cern.ch.yaml", "htcpools.htc.cern.ch.yaml", "htcqueues.htc.cern.ch.yaml"]
            .map(str::to_owned)
            .into(),
        "`kubectl apply -f crd/` takes all files with an extension"
    );
}

#[test]
fn statecharts_are_up_to_date() {
    let files = chart::files();
    for file in &files {
        must_be(&format!("statecharts/{}", file.name), &file.contents);
    }
    assert_eq!(names("statecharts"), files.iter().map(|file| file.name.to_owned()).collect());
}

#[test]
fn scxml_is_well_formed_and_every_transition_has_its_states() {
    let text = chart::scxml();
    let document = roxmltree::Document::parse(&text).unwrap();
    let scxml = document.root_element();
    assert_eq!(scxml.tag_name().namespace(), Some("http://www.w3.org/2005/07/scxml"));
    let states: Vec<_> = scxml.children().filter(roxmltree::Node::is_element).collect();
    let ids: BTreeSet<&str> = states.iter().map(|state| state.attribute("id").unwrap()).collect();
    assert_eq!(ids.len(), states.len(), "an id stands twice");
    assert!(ids.contains(scxml.attribute("initial").unwrap()));
    let mut drawn = BTreeSet::new();
    for transition in document.descendants().filter(|node| node.has_tag_name("transition")) {
        let from = transition.parent().and_then(|state| state.attribute("id")).unwrap();
        let (event, to) = (transition.attribute("event").unwrap(), transition.attribute("target").unwrap());
        assert!(ids.contains(to), "{from} --{event}--> {to}: there is no such state");
        assert!(drawn.insert((from.to_owned(), event.to_owned(), to.to_owned())), "{from} --{event}--> {to} twice");
    }
    let table: BTreeSet<_> = TRANSITIONS
        .iter()
        .map(|row| {
            let name = |phase: Option<api::Phase>, none: &str| phase.map_or(none.to_owned(), |phase| phase.to_string());
            (name(row.from, "Unknown"), row.trigger.to_string(), name(row.to, "Gone"))
        })
        .collect();
    assert_eq!(drawn, table, "the chart differs from the table");
    for state in states.iter().filter(|state| state.has_tag_name("state")) {
        assert!(state.children().any(|child| child.is_element()), "nothing leads out of {:?}", state.attribute("id"));
    }
}

/// Every property that the schema has, with its path.
fn walk(schema: &Value, path: &str, each: &mut impl FnMut(&str, &Value)) {
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            let path = format!("{path}.{name}");
            each(&path, property);
            walk(property, &path, each);
        }
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}[]"), each);
    }
}

fn schema() -> Value {
    schema_of(&api::crd())
}

fn schema_of(crd: &impl serde::Serialize) -> Value {
    let crd = serde_json::to_value(crd).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 1);
    versions[0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn every_field_is_described_as_a_sentence() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    let mut check = |path: &str, property: &Value| {
        seen += 1;
        let text = property["description"].as_str().unwrap_or_default();
        let sentence =
            text.chars().next().is_some_and(|first| first.is_uppercase() || first == '`') && text.ends_with('.');
        // kubectl keeps line breaks: one inside a sentence would look like a mistake.
        let whole_lines = text.lines().all(|line| line.ends_with('.'));
        if !sentence || !whole_lines || text.len() < 15 {
            wrong.push(format!("{path}: {text:?}"));
        }
    };
    for schema in [schema(), schema_of(&api::queue_crd())] {
        check("", &schema);
        walk(&schema, "", &mut check);
    }
    assert!(wrong.is_empty(), "`kubectl explain` would read badly:\n{}", wrong.join("\n"));
    assert!(seen > 30, "only {seen} fields were looked at");
}

#[test]
fn every_string_list_and_map_has_a_bound() {
    let mut wrong = Vec::new();
    let bounded = |schema: &Value| match schema["type"].as_str() {
        Some("string") => {
            schema["maxLength"].is_u64() || schema["enum"].is_array() || schema["format"].as_str() == Some("date-time")
        }
        Some("array") => schema["maxItems"].is_u64(),
        Some("object") => schema["properties"].is_object() || schema["maxProperties"].is_u64(),
        Some("integer" | "boolean") => true,
        None if schema["x-kubernetes-int-or-string"] == true => schema["maxLength"].is_u64(),
        _ => false,
    };
    for schema in [schema(), schema_of(&api::queue_crd())] {
        walk(&schema, "", &mut |path, property| {
            for (path, part) in [(path.to_owned(), property), (format!("{path}[]"), &property["items"])] {
                if part.is_object() && !bounded(part) {
                    wrong.push(path);
                }
            }
        });
    }
    assert!(wrong.is_empty(), "without bound: {wrong:?}");
}

/// The `HTCJob`s of all examples, with the files in which they stand.
fn examples() -> Vec<(String, Value)> {
    let folder = root().join("examples");
    let mut examples = Vec::new();
    for path in files_below(&folder) {
        let file = path.strip_prefix(&folder).unwrap().display().to_string();
        let text = std::fs::read_to_string(&path).unwrap();
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let htcjobs = objects.into_iter().filter(|object| object["kind"] == "HTCJob");
        examples.extend(htcjobs.map(|object| (file.clone(), object)));
    }
    examples
}

/// What stands in `before` and not, or otherwise, in `after`.
fn lost(before: &Value, after: &Value, path: &str) -> Vec<String> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => before
            .iter()
            .flat_map(|(key, value)| {
                after
                    .get(key)
                    .map_or_else(|| vec![format!("{path}.{key}")], |after| lost(value, after, &format!("{path}.{key}")))
            })
            .collect(),
        (before, after) if before == after => Vec::new(),
        (before, after) => vec![format!("{path}: {before} became {after}")],
    }
}

/// Nodes keep no image from a registry: a thousand jobs are a thousand pulls, which registries refuse. The images of a managed pool and
/// of Kubernetes' nodes are there.
#[test]
fn no_example_of_many_jobs_pulls_an_image() {
    let mut seen = 0;
    for (file, object) in examples() {
        let spec = &object["spec"];
        let has = |key: &str| !spec[key].is_null();
        let many = spec["queue"].as_u64().unwrap_or(1) > 1 || has("items") || has("itemsFrom");
        let Some(image) = spec["script"]["image"].as_str().filter(|_| many && !has("pool") && !has("backend")) else {
            continue;
        };
        assert!(image.starts_with('/'), "{file}: each of its jobs pulls {image}");
        seen += 1;
    }
    assert!(seen > 5, "only {seen} examples were looked at");
}

#[test]
fn examples_decode_without_losing_a_key() {
    let examples = examples();
    assert!(examples.len() >= 5, "only {} examples", examples.len());
    let mut names = BTreeSet::new();
    for (file, example) in examples {
        let decoded: HTCJob = serde_json::from_value(example.clone()).unwrap_or_else(|error| panic!("{file}: {error}"));
        let lost = lost(&example, &serde_json::to_value(&decoded).unwrap(), "");
        assert!(lost.is_empty(), "{file}: the type loses {lost:?}");
        assert!(
            names.insert(decoded.metadata.name.clone()),
            "{file}: another example has the name {:?} too",
            decoded.metadata.name
        );
    }
}
