//! The numbered steps in doc comments of decisions, compared with the numbers beside the branches.

use std::fs;
use std::path::{Path, PathBuf};

/// Functions whose steps are numbered: file, and name of the function.
const NUMBERED: [(&str, &str); 6] = [
    ("decide.rs", "decide"),
    ("decide/live.rs", "live"),
    ("decide/terminate.rs", "terminate"),
    ("pods/decide.rs", "decide_pods"),
    ("pods/decide/live.rs", "live"),
    ("pods/decide/terminate.rs", "terminate"),
];

/// A function, the numbers in its doc comment, and those in the comments of its body.
#[derive(Debug, Default)]
struct Steps {
    function: String,
    documented: Vec<u32>,
    taken: Vec<u32>,
}

/// Returns the number at the beginning of a comment: `1. Text` or `1.`
fn number(comment: &str) -> Option<u32> {
    comment.split_once('.').filter(|(_, rest)| rest.is_empty() || rest.starts_with(' '))?.0.parse().ok()
}

/// Returns the functions of a file that have numbers in their doc comment or in their body.
fn steps(text: &str) -> Vec<Steps> {
    let (mut found, mut documented) = (vec![Steps::default()], Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("/// ") {
            documented.extend(number(comment));
        } else if let (Some((_, comment)), Some(steps)) = (line.split_once("// "), found.last_mut()) {
            steps.taken.extend(number(comment));
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|(before, _)| is_visibility(before)) {
            let function = rest.split(['(', '<']).next().unwrap_or_default().to_owned();
            found.push(Steps { function, documented: std::mem::take(&mut documented), taken: Vec::new() });
        }
    }
    found.retain(|steps| !steps.documented.is_empty() || !steps.taken.is_empty());
    found
}

fn is_visibility(text: &str) -> bool {
    matches!(text, "" | "pub " | "pub(super) " | "pub(crate) ")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn documented_steps_are_those_of_the_code_and_in_its_order() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut numbered = Vec::new();
    for path in files(&source) {
        let name = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
        for Steps { function, documented, taken } in steps(&fs::read_to_string(&path).unwrap()) {
            let in_order: Vec<u32> = (1..=u32::try_from(documented.len()).unwrap()).collect();
            assert_eq!(documented, in_order, "doc comment of {function} in {name}");
            assert_eq!(taken, in_order, "numbers beside the branches of {function} in {name}");
            numbered.push((name.clone(), function));
        }
    }
    for (name, function) in NUMBERED {
        assert!(
            numbered.contains(&(name.to_owned(), function.to_owned())),
            "{function} in {name} has no numbered steps"
        );
    }
}
