//! Links from page to page, and to headings, as GitHub and GitLab make them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use bed::checkout;
use bed::pages::{has_extension, read};

/// The targets of a page's links that do not lead out of the checkout.
pub(crate) fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose(text) {
        let mut rest = line;
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let target = &rest[..rest.find(')').unwrap_or_else(|| panic!("a link without end: {line}"))];
            if !target.contains("://") && !target.starts_with("mailto:") {
                links.push(target.to_owned());
            }
        }
    }
    links
}

/// Lines that are not in blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    })
}

/// What a link in the page `from` leads to, as a path from the checkout.
pub(crate) fn follow(from: &str, link: &str) -> Result<String, String> {
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = if path.is_empty() { PathBuf::from(from) } else { joined(Path::new(from), path)? };
    if !checkout().join(&target).exists() {
        return Err(format!("there is no {}", target.display()));
    }
    let target = target.display().to_string();
    let page = has_extension(&target, "md");
    if let Some(anchor) = anchor {
        if !page {
            return Err("an anchor in what is no page".to_owned());
        }
        let anchors = anchors(&read(&target));
        if !anchors.iter().any(|other| other == anchor) {
            return Err(format!("{target} has no such heading, but {anchors:?}"));
        }
    }
    Ok(target)
}

fn joined(from: &Path, link: &str) -> Result<PathBuf, String> {
    let mut path = from.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                if !path.pop() {
                    return Err("it leads out of the checkout".to_owned());
                }
            }
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err("it is absolute".to_owned()),
        }
    }
    Ok(path)
}

fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
            let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
            let count = seen.entry(name.clone()).or_default();
            *count += 1;
            if *count == 1 { name } else { format!("{name}-{}", *count - 1) }
        })
        .collect()
}
