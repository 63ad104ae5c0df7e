//! The folders of deploy/ as kustomize renders them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testbed::{Assets, tool};

use super::api::documents;
use super::{PATIENCE, checkout};

/// The objects of a folder anywhere.
pub fn render_at(folder: &Path) -> Vec<Value> {
    let kubectl = Assets::locate().unwrap().kubectl().to_owned();
    let mut kustomize = Command::new(kubectl);
    kustomize.arg("kustomize").arg(folder);
    documents(&tool::run_ok("rendering an overlay", &mut kustomize, "", PATIENCE).unwrap())
}

/// The objects of an overlay below deploy/ to which somebody has added a component.
pub fn render_with(overlay: &str, component: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(checkout().join("deploy")).arg(folder.path());
    tool::run_ok("copying", &mut copy, "", PATIENCE).unwrap();
    let overlay = folder.path().join("deploy").join(overlay);
    let file = overlay.join("kustomization.yaml");
    let mut text = std::fs::read_to_string(&file).unwrap();
    let line = format!("components:\n  - {component}\n");
    if text.contains("\ncomponents:\n") {
        text = text.replacen("components:\n", &line, 1);
    } else {
        text.push_str(&line);
    }
    std::fs::write(&file, text).unwrap();
    render_at(&overlay)
}
