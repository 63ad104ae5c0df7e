//! The Markdown files of the checkout, and the blocks in them.

use std::path::Path;

use crate::checkout;

/// Pages whose commands need another bed than the one for all others, and the tests that run them there.
pub const ELSEWHERE: [(&str, &str); 3] = [
    ("docs/install.md", "tests/e2e/deploy/overlays.rs"),
    ("docs/kubernetes-backend.md", "tests/e2e/kubernetes_backend/document.rs"),
    ("docs/upgrading.md", "tests/e2e/upgrade/document.rs"),
];

/// The pages whose commands are run together.
pub fn run_here() -> Vec<String> {
    user_pages().into_iter().filter(|name| ELSEWHERE.iter().all(|(elsewhere, _)| elsewhere != name)).collect()
}

pub fn read(name: &str) -> String {
    std::fs::read_to_string(checkout().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Files below a folder of the checkout, as paths from the checkout.
pub fn files(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(checkout().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.unwrap();
        let name = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            files.extend(self::files(&name));
        } else {
            files.push(name);
        }
    }
    files.sort();
    files
}

pub fn has_extension(name: &str, wanted: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == wanted)
}

/// What users and admins read.
pub fn user_pages() -> Vec<String> {
    let is_page = |name: &String| has_extension(name, "md") && !name.starts_with("docs/decisions/");
    std::iter::once("README.md".to_owned()).chain(files("docs").into_iter().filter(is_page)).collect()
}

/// All pages.
pub fn pages() -> Vec<String> {
    let below = ["docs", "examples", "statecharts"].into_iter().flat_map(files);
    let root = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned);
    root.into_iter().chain(below.filter(|name| has_extension(name, "md"))).collect()
}

/// What stands between two lines of three backquotes.
pub struct Block {
    pub language: String,
    /// Number of the line with which it begins.
    pub line: usize,
    pub text: String,
    /// The last line before it that is not empty.
    pub before: String,
}

pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut inside, mut before) = (false, String::new());
    for (number, line) in text.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            inside = !inside;
            if inside {
                let language = language.trim_end().to_owned();
                blocks.push(Block { language, line: number + 1, text: String::new(), before: before.clone() });
            }
        } else if inside {
            let block = blocks.last_mut().unwrap();
            block.text.push_str(line);
            block.text.push('\n');
        }
        if !line.trim().is_empty() {
            line.trim().clone_into(&mut before);
        }
    }
    assert!(!inside, "a block has no end");
    blocks
}
