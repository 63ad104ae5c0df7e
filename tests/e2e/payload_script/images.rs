//! Images of a registry: pulled once for each account of a node, into a folder that only it can write.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command as Process, Stdio};

use htc_submit::payload::{Image, ImageCache, ImageMap, Payload, PayloadFailure, Program};
use testbed::{Assets, Registry};

use super::{NOBODY, SHELLS, Scratch, ended, image, is_root};

const UID: &str = "3f0c9a34-0f53-4c5a-8a0c-6f1f9c2f7f11";

/// A registry with one image, and the folder for images of a node.
struct Node {
    registry: Registry,
    digest: String,
    images: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let registry = Registry::start(&Assets::locate().unwrap()).unwrap();
        let digest = registry.push("team/tiny", "1", &image()).unwrap();
        let images = tempfile::tempdir().unwrap();
        set_mode(images.path(), 0o1777);
        Self { registry, digest, images }
    }

    fn tag(&self) -> String {
        format!("{}/team/tiny:1", self.registry.address())
    }

    fn pulls(&self) -> usize {
        self.registry.pulls("team/tiny")
    }

    /// Folder of the account that the jobs of these tests run as.
    fn of_the_account(&self) -> std::path::PathBuf {
        self.images.path().join(if is_root() { NOBODY.to_string() } else { id("-u") })
    }

    fn job(&self, image: &str, uid: &str, source: &str) -> Scratch {
        let image = Image::resolve(image, &ImageMap::new()).unwrap();
        let payload = Payload {
            name: "my-job",
            image: &image,
            image_name: "python:3.12",
            private: false,
            image_cache: Some(ImageCache { folder: self.images.path().to_str().unwrap(), uid }),
            program: &Program::script("bash").unwrap(),
            source,
            binds: &[],
            callback: None,
            volumes: &[],
            env: &[],
            files: &[],
            fetched: &[],
            secret_files: &[],
            secret_env: &[],
            outputs: &[],
        };
        let mut scratch = Scratch::of(tempfile::tempdir().unwrap(), &payload);
        scratch.environment.push(("APPTAINER_NOHTTPS", "true".into()));
        owned_by(&scratch, &if is_root() { "nobody".to_owned() } else { id("-un") });
        scratch
    }
}

fn id(option: &str) -> String {
    let output = Process::new("id").arg(option).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Writes the job's owner into its ad.
fn owned_by(scratch: &Scratch, owner: &str) {
    scratch.write(
        ".job.ad",
        &format!("ClusterId = 1\nProcId = 0\nHTCNotAfter = 1000\nStageInFinish = 1000\nOwner = \"{owner}\"\n"),
    );
}

#[test]
fn jobs_of_one_account_pull_an_image_once() {
    let node = Node::new();
    let run_all = |image: &str, uids: &[&str]| {
        let jobs: Vec<_> = SHELLS
            .iter()
            .flat_map(|shell| uids.iter().map(move |uid| (shell, uid)))
            .map(|(shell, uid)| {
                let scratch = node.job(image, uid, "ls /proc/self/fd | grep -x 9 || echo ran");
                let started = scratch.start(shell, &["3"]);
                (scratch, started)
            })
            .collect();
        for (scratch, started) in jobs {
            let (code, stdout, stderr) = ended(started.wait_with_output().unwrap());
            assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "ran\n", ""));
            assert_eq!(scratch.names(), [".job.ad", "job.sh", "payload.conf", "script.sh"]);
        }
    };
    // The bytes behind a tag may change: they are the same for all jobs of an HTCJob.
    run_all(&node.tag(), &[UID]);
    assert_eq!(node.pulls(), 1);
    let digest = format!("{}/team/tiny@{}", node.registry.address(), node.digest);
    run_all(&digest, &[UID, "another-uid"]);
    assert_eq!(node.pulls(), 2);
    let folder = node.of_the_account();
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o700);
    let hex = node.digest.trim_start_matches("sha256:");
    assert!(folder.join(hex).is_file() && folder.join(UID).is_file(), "{folder:?}");
}

#[test]
fn image_that_no_job_has_used_for_a_week_goes() {
    let node = Node::new();
    assert_eq!(node.job(&node.tag(), UID, "").run("dash").0, 0);
    let age = |name: &str| {
        let path = node.of_the_account().join(name);
        fs::write(&path, "").unwrap();
        let old = Process::new("touch").args(["-d", "8 days ago"]).arg(&path).status().unwrap();
        assert!(old.success());
        path
    };
    let (unused, used) = (age("unused"), node.of_the_account().join(UID));
    assert!(Process::new("touch").args(["-d", "8 days ago"]).arg(&used).status().unwrap().success());
    assert_eq!(node.job(&node.tag(), UID, "").run("dash").0, 0);
    assert!(!unused.exists() && used.exists());
    assert_eq!(node.pulls(), 1);
}

#[test]
fn image_that_others_could_have_written_is_not_used() {
    // Each leaves a file in the place of the image that no container can be started from.
    let spoiled = |make: &dyn Fn(&Node)| {
        let node = Node::new();
        let folder = node.of_the_account();
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(UID), "no image").unwrap();
        set_mode(&folder, 0o700);
        if is_root() {
            chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        make(&node);
        node
    };
    let expect = |node: &Node, scratch: &Scratch, why: &str| {
        let (code, stdout, stderr) = scratch.run("dash");
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "ran\n", ""), "{why}");
        assert_eq!(node.pulls(), 1, "{why}");
    };
    let job = |node: &Node| node.job(&node.tag(), UID, "echo ran");
    let node = spoiled(&|_| {});
    assert_ne!(job(&node).run("dash").0, 0, "the file is taken for the image where all is as it should be");
    let scratch = job(&node);
    owned_by(&scratch, "alice");
    expect(&node, &scratch, "an account that is not the job's owner");
    let node = spoiled(&|node| set_mode(node.images.path(), 0o777));
    expect(&node, &job(&node), "a folder in which others can replace folders");
    for mode in [0o770, 0o707, 0o755, 0o2700] {
        let node = spoiled(&|node| set_mode(&node.of_the_account(), mode));
        expect(&node, &job(&node), &format!("mode {mode:o}"));
    }
    let node = spoiled(&|node| {
        let (folder, moved) = (node.of_the_account(), node.images.path().join("moved"));
        fs::rename(&folder, &moved).unwrap();
        symlink(&moved, &folder).unwrap();
    });
    expect(&node, &job(&node), "a link");
    if is_root() {
        let node = spoiled(&|node| chown(node.of_the_account(), Some(1), Some(1)).unwrap());
        expect(&node, &job(&node), "a folder of another account");
        let node = spoiled(&|node| {
            chown(node.images.path(), Some(1), Some(1)).unwrap();
        });
        expect(&node, &job(&node), "folders of an account that is not root");
    }
}

/// Answers each request with 429.
fn busy_registry() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let body = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"you have reached your pull rate limit"}]}"#;
            let _ = write!(
                stream,
                "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
        }
    });
    address.to_string()
}

/// A registry that serves the manifest of the tag for every digest.
fn lying_registry(node: &Node) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, registry) = (listener.local_addr().unwrap(), node.registry.address());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..read]).into_owned();
            let path = request.split(' ').nth(1).unwrap_or_default();
            let asked = match path.split_once("/manifests/sha256:") {
                Some((before, _)) => request.replacen(path, &format!("{before}/manifests/1"), 1),
                None => request.clone(),
            };
            let asked = asked.replacen("\r\n", "\r\nConnection: close\r\n", 1);
            let mut there = std::net::TcpStream::connect(&registry).unwrap();
            there.write_all(asked.as_bytes()).unwrap();
            let _ = std::io::copy(&mut there, &mut stream);
        }
    });
    address.to_string()
}

#[test]
fn image_of_another_digest_is_not_kept() {
    let node = Node::new();
    let other = "0".repeat(64);
    let lying = lying_registry(&node);
    let honest = node.job(&format!("{lying}/team/tiny:1"), UID, "echo ran").run("dash");
    assert_eq!(honest, (0, "ran\n".to_owned(), String::new()), "the registry serves what it has");
    let image = format!("{lying}/team/tiny@sha256:{other}");
    super::expect(PayloadFailure::ImageUnavailable, "it cannot be pulled", || node.job(&image, UID, "echo yes > ran"));
    assert!(!node.of_the_account().join(other).exists());
}

#[test]
fn failed_pull_has_its_cause() {
    let node = Node::new();
    let away = format!("127.0.0.1:{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    for (image, failure, hint) in [
        (format!("{}/team/none:1", node.registry.address()), PayloadFailure::ImageRefused, "does not have it"),
        (
            format!("{}/team/tiny:1", busy_registry()),
            PayloadFailure::RegistryBusy,
            "refuses further pulls for now (429)",
        ),
        (format!("{away}/team/tiny:1"), PayloadFailure::ImageUnavailable, "it cannot be pulled"),
    ] {
        super::expect(failure, hint, || node.job(&image, UID, "echo yes > ran"));
        assert!(!node.of_the_account().join(UID).exists());
    }
}

#[test]
fn full_cache_is_not_used() {
    let node = Node::new();
    let mut scratch = node.job(&node.tag(), UID, "echo ran");
    let real = Path::new(scratch.path.split(':').next().unwrap()).join("apptainer");
    let programs = tempfile::tempdir().unwrap();
    let stub = programs.path().join("apptainer");
    let text = format!(
        "#!/bin/sh\ncase $* in *{}*.part*) echo 'FATAL: write x: no space left on device' >&2; exit 255 ;; esac\nexec {} \"$@\"\n",
        node.images.path().display(),
        real.display()
    );
    fs::write(&stub, text).unwrap();
    set_mode(&stub, 0o755);
    set_mode(programs.path(), 0o755);
    scratch.path = format!("{}:{}", programs.path().display(), scratch.path);
    assert_eq!(scratch.run("dash"), (0, "ran\n".to_owned(), String::new()));
    assert!(!node.of_the_account().join(UID).exists());
}

#[test]
fn job_that_waits_for_a_pull_can_be_stopped() {
    let node = Node::new();
    assert_eq!(node.job(&node.tag(), UID, "").run("dash").0, 0);
    let lock = node.of_the_account().join(format!("{UID}.lock"));
    for shell in SHELLS {
        let mut flock = Process::new("flock");
        let flock = flock.arg(&lock).args(["-c", "echo held; read end"]);
        let mut holder = flock.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        let scratch = node.job(&node.tag(), UID, "echo yes > ran");
        let started = scratch.start(shell, &["3"]);
        let children = format!("/proc/{0}/task/{0}/children", started.id());
        testbed::wait_for("the job to wait for the lock", bed::PATIENCE, || {
            let child = fs::read_to_string(&children).unwrap_or_default();
            let command = fs::read_to_string(format!("/proc/{}/cmdline", child.trim())).unwrap_or_default();
            if command.contains("flock\u{0}9") { Ok(()) } else { Err(format!("its child is {command:?}")) }
        })
        .unwrap();
        let stopped = Process::new("kill").arg(started.id().to_string()).status().unwrap();
        assert!(stopped.success());
        let (code, _, stderr) = ended(started.wait_with_output().unwrap());
        assert_eq!((code, scratch.read("ran").as_str()), (143, ""), "{shell}: {stderr}");
        // Some shells say what has ended by a signal.
        assert!(["", "Terminated\n"].contains(&stderr.as_str()), "{shell}: {stderr}");
        drop(holder.stdin.take());
        holder.wait().unwrap();
    }
}
