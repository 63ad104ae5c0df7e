//! Volumes: `job.sh` binds the folders of the node that the site has named, and nothing else.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use htc_submit::payload::{Image, Payload, PayloadFailure, Program};
use htc_submit::volumes::BoundFolder;

use super::{NOBODY, SHELLS, Scratch, bare, chown, expect, image, is_root};

fn scratch_with(volumes: &[BoundFolder], source: &str) -> Scratch {
    let (image, command) = (Image::of_the_site(image().to_str().unwrap()).unwrap(), Program::script("bash").unwrap());
    Scratch::of(tempfile::tempdir().unwrap(), &Payload { volumes, ..bare(&image, &command, source) })
}

/// A folder of the node that jobs may write to, with one file.
fn node_folder(at: &Path) -> String {
    fs::create_dir(at).unwrap();
    fs::write(at.join("all.txt"), "data\n").unwrap();
    fs::set_permissions(at, Permissions::from_mode(0o777)).unwrap();
    at.to_str().unwrap().to_owned()
}

/// A folder with a name without a dot, which no setting could have.
fn node() -> tempfile::TempDir {
    let node = tempfile::Builder::new().prefix("node").tempdir().unwrap();
    fs::set_permissions(node.path(), Permissions::from_mode(0o755)).unwrap();
    node
}

fn volume(source: &str, path: &str, read_only: bool) -> BoundFolder {
    BoundFolder { source: source.to_owned(), path: path.to_owned(), read_only }
}

#[test]
fn volumes_are_at_their_paths_and_read_only_ones_cannot_be_written() {
    let source = "cat /data/in/all.txt; echo result >/out/result; [ -w /out ] && echo writable
        if { echo x >/data/in/new; } 2>/dev/null; then echo written; fi; rm -f /data/in/all.txt 2>/dev/null; ls -A /data/in";
    for shell in SHELLS {
        let node = node();
        let [input, output] = ["in", "out"].map(|name| node_folder(&node.path().join(name)));
        let scratch = scratch_with(&[volume(&input, "/data/in", true), volume(&output, "/out", false)], source);
        let (code, stdout, stderr) = scratch.run(shell);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "data\nwritable\nall.txt\n", ""), "{shell}");
        assert_eq!(fs::read_to_string(Path::new(&output).join("result")).unwrap(), "result\n", "{shell}");
        assert_eq!(scratch.names(), [".job.ad", "job.sh", "payload.conf", "script.sh"], "{shell}");
    }
}

/// Users of the volume can make links there. They lead nowhere on the node.
#[test]
fn links_in_a_volume_show_no_other_folder_of_the_node() {
    let source =
        "for link in file folder up root; do cat /in/$link/secret /in/$link 2>/dev/null; done; cat /in/own; echo end";
    for shell in SHELLS {
        let node = node();
        let (input, other) = (node_folder(&node.path().join("in")), node_folder(&node.path().join("other")));
        fs::write(Path::new(&other).join("secret"), "secret\n").unwrap();
        let links = [
            ("file", format!("{other}/secret")),
            ("folder", other.clone()),
            ("up", "../other".to_owned()),
            ("own", "all.txt".to_owned()),
        ];
        for (name, target) in
            links.iter().map(|(name, target)| (*name, target.as_str())).chain([("root", "/proc/1/root")])
        {
            symlink(target, Path::new(&input).join(name)).unwrap();
        }
        let (code, stdout, stderr) = scratch_with(&[volume(&input, "/in", false)], source).run(shell);
        assert_eq!((code, stdout.as_str()), (0, "data\nend\n"), "{shell}: {stderr}");
    }
}

#[test]
fn node_without_the_folder_runs_nothing() {
    let node = node();
    let real = node_folder(&node.path().join("real"));
    let at = |name: &str| node.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("file"), "").unwrap();
    symlink(&real, at("link")).unwrap();
    if is_root() {
        chown(&real, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::create_dir(Path::new(&real).join("sub")).unwrap();
    let try_ = |folder: &str, hint: &str| {
        let volumes = [volume(&real, "/a", true), volume(folder, "/in", true)];
        expect(PayloadFailure::FolderMissing, hint, || scratch_with(&volumes, "echo yes >ran"));
    };
    try_(&at("nothing"), "nothing, which the site has named for the volume /in, is not on ");
    try_(&at("file"), "is not on ");
    try_(&at("link"), &format!("is a link to {real} on "));
    try_(&at("link/sub"), &format!("is a link to {real}/sub on "));
}
