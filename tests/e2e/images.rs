//! Where a container's files come from: image files, names that the site keeps as folders or mirrors, and a registry. Each
//! image has a file that says which one it is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use bed::{Bed, Namespace, condition, htcjob, htcjob_of_container, is_true};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::Version::{self, Sid, Trixie};
use testbed::{Account, Assets, Owned, PoolOptions, Registry, Scratch, Spec, tool};

/// What the operator of these tests makes of names.
struct Site {
    bed: Bed,
    registry: Registry,
    /// Digest of `team/tiny:1` in the registry.
    digest: String,
    files: Scratch,
    /// Folder for images of the node.
    _cache: Scratch,
}

impl Site {
    fn new(version: Version) -> Self {
        let (assets, files) = (Assets::locate().unwrap(), Scratch::new().unwrap());
        let registry = Registry::start(&assets).unwrap();
        let image = |which: &str| unpacked(&assets, &files, which);
        let digest = registry.push("team/tiny", "1", &image("registry")).unwrap();
        registry.push("proxy/library/tiny", "1", &image("mirror")).unwrap();
        let entrypoint = r#"{"Entrypoint":["printf","<%s>"],"Cmd":["the default"]}"#;
        registry.push_with("team/entrypoint", "1", &image("entrypoint"), entrypoint).unwrap();
        let atlas = image("atlas");
        fs::create_dir(atlas.join("home/atlas")).unwrap();
        fs::write(atlas.join("home/atlas/.bashrc"), "export CAF_RELEASE=21.2.171\n").unwrap();
        registry.push_with("team/atlas", "1", &atlas, r#"{"User":"atlas"}"#).unwrap();
        // As in /cvmfs/unpacked.cern.ch: a link for each tag.
        let folders = files.dir("images").unwrap().join("team");
        fs::create_dir(&folders).unwrap();
        symlink(image("one"), folders.join("tiny:1")).unwrap();
        symlink(image("latest"), folders.join("tiny:latest")).unwrap();
        let sif = files.dir("sif").unwrap().join("tiny.sif");
        apptainer(&assets, &sif, &["build", "tiny.sif", image("unpacked-sif").to_str().unwrap()]);
        apptainer(&assets, &sif, &["push", "tiny.sif", &format!("oras://{}/team/file:1", registry.address())]);
        let cache = Scratch::new().unwrap();
        let (address, files_) = (registry.address(), files.path().display());
        let bed = Bed::new(
            version,
            &PoolOptions::default(),
            &[
                &format!("--bind={files_}"),
                &format!("--image-prefix=images.test/={files_}/images/"),
                &format!("--image-prefix=images.test/live={address}/team"),
                &format!("--image-prefix=docker.io/={address}/proxy/"),
                &format!("--image=images.test/team/tiny:file={files_}/sif/tiny.sif"),
                &format!("--image-cache={}", cache.path().display()),
                &format!("--resolve-digests=http://{address}"),
                "--resolve-digests=http://127.0.0.1:9",
                "--image-scheme=oras,https",
            ],
        );
        bed.start_operator();
        Self { bed, registry, digest, files, _cache: cache }
    }

    fn shared(version: Version) -> &'static Self {
        static TRIXIE: OnceLock<Site> = OnceLock::new();
        static SID: OnceLock<Site> = OnceLock::new();
        bed::turns::take(bed::Weight::Light);
        match version {
            Trixie => TRIXIE.get_or_init(|| Self::new(version)),
            Sid => SID.get_or_init(|| Self::new(version)),
        }
    }
}

/// An unpacked image whose `/etc/which` says its name.
fn unpacked(assets: &Assets, files: &Scratch, which: &str) -> PathBuf {
    let copy = files.path().join(which);
    let mut cp = Command::new("cp");
    tool::run_ok("copying an image", cp.arg("-a").arg(assets.image()).arg(&copy), "", bed::PATIENCE).unwrap();
    fs::write(copy.join("etc/which"), which).unwrap();
    copy
}

/// Runs Apptainer in the folder of the image file.
fn apptainer(assets: &Assets, sif: &Path, arguments: &[&str]) {
    let mut program = Account::unprivileged().command(&assets.job_bin().join("apptainer"));
    program.env_clear().env("PATH", format!("{}:/usr/bin:/bin", assets.job_bin().display()));
    let folder = sif.parent().unwrap();
    program.env("HOME", folder).env("APPTAINER_TMPDIR", folder).env("APPTAINER_NOHTTPS", "true").current_dir(folder);
    tool::run_ok("making an image file", program.args(arguments), "", bed::PATIENCE).unwrap();
}

/// Runs one job in each image, all at the same time.
fn run(here: &Namespace<'_>, images: &[(&str, &str)]) -> Vec<Value> {
    let objects = images.iter().map(|(name, image)| {
        let mut object = htcjob(name, "cat /etc/which");
        object["spec"]["script"]["image"] = (*image).into();
        object
    });
    here.create_all(&objects.collect::<Vec<_>>());
    images.iter().map(|(name, _)| here.wait_ended(name)).collect()
}

fn file(here: &Namespace<'_>, name: &str, file: &str) -> String {
    here.wait_output(name);
    fs::read_to_string(here.output(name, 0).join(file)).unwrap()
}

/// Every image is had, and is the one that says `which`.
fn expect(here: &Namespace<'_>, images: &[(&str, &str, &str)]) {
    let asked: Vec<_> = images.iter().map(|(name, image, _)| (*name, *image)).collect();
    for ((name, image, which), ended) in images.iter().zip(run(here, &asked)) {
        assert!(is_true(&ended, "Complete"), "{image}: {}\n{ended:#}", file(here, name, "err"));
        assert_eq!(file(here, name, "out"), *which, "{image}");
    }
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor\'s version makes no difference: make test-long"]
#[case::sid(Sid)]
fn image_file_runs_by_its_path(#[case] version: Version) {
    let site = Site::shared(version);
    let path = site.files.path().join("sif/tiny.sif").display().to_string();
    expect(&site.bed.namespace(), &[("sif", &path, "unpacked-sif")]);
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor\'s version makes no difference: make test-long"]
#[case::sid(Sid)]
fn site_image_names_resolve_as_configured(#[case] version: Version) {
    let site = Site::shared(version);
    expect(
        &site.bed.namespace(),
        &[
            ("folder", "images.test/team/tiny:1", "one"),
            ("no-tag", "docker://images.test/team/tiny", "latest"),
            ("whole-name", "images.test/team/tiny:file", "unpacked-sif"),
            ("longest", "images.test/live/tiny:1", "registry"),
            ("mirror", "tiny:1", "mirror"),
        ],
    );
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor\'s version makes no difference: make test-long"]
#[case::sid(Sid)]
fn registry_image_runs_by_tag_and_digest(#[case] version: Version) {
    let site = Site::shared(version);
    let (address, digest) = (site.registry.address(), &site.digest);
    let (tag, digest) = (format!("{address}/team/tiny:1"), format!("{address}/team/tiny@{digest}"));
    expect(&site.bed.namespace(), &[("tag", &tag, "registry"), ("digest", &digest, "registry")]);
}

fn status<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object["status"][field].as_str()
}

/// The account of the jobs is not that of their owner here, so that others could have written what it keeps:
/// `payload_script::images` has the other case.
#[rstest]
#[case::trixie(Trixie)]
#[case::sid(Sid)]
fn jobs_of_a_shared_account_keep_no_images(#[case] version: Version) {
    let site = Site::shared(version);
    let here = site.bed.namespace();
    let root = unpacked(&Assets::locate().unwrap(), &site.files, "once");
    let digest = site.registry.push("team/once", "1", &root).unwrap();
    let image = format!("{}/team/once:1", site.registry.address());
    let mut object = htcjob("once", "cat /etc/which");
    object["spec"]["script"]["image"] = image.as_str().into();
    object["spec"]["queue"] = 12.into();
    here.create(&object);
    let ended = here.wait_ended("once");
    assert!(is_true(&ended, "Complete"), "{}\n{ended:#}", file(&here, "once", "err"));
    assert_eq!((file(&here, "once", "out").as_str(), file(&here, "once", "err").as_str()), ("once", ""));
    assert_eq!((status(&ended, "imageDigest"), site.registry.pulls("team/once")), (Some(digest.as_str()), 12));
}

#[rstest]
#[case::trixie(Trixie)]
#[case::sid(Sid)]
fn jobs_of_an_htcjob_run_one_image_although_its_tag_moves(#[case] version: Version) {
    let site = Site::shared(version);
    let here = site.bed.namespace();
    let push = |which: &str| {
        let root = unpacked(&Assets::locate().unwrap(), &site.files, which);
        site.registry.push("team/moved", "1", &root).unwrap()
    };
    let digest = push("before");
    let go = site.files.dir("go").unwrap().join("on");
    let mut object = htcjob("moved", &format!("cat /etc/which; until [ -e {} ]; do sleep 0.2; done", go.display()));
    object["spec"]["script"]["image"] = format!("{}/team/moved:1", site.registry.address()).into();
    object["spec"]["queue"] = 2.into();
    object["spec"]["parallelism"] = 1.into();
    here.create(&object);
    here.wait("moved", "its first job runs", |object| object["status"]["running"] == 1);
    assert_ne!(push("after"), digest);
    fs::write(&go, "").unwrap();
    let ended = here.wait_ended("moved");
    assert_eq!(status(&ended, "imageDigest"), Some(digest.as_str()));
    here.wait_output("moved");
    for index in [0, 1] {
        assert_eq!(fs::read_to_string(here.output("moved", index).join("out")).unwrap(), "before");
    }
}

#[rstest]
#[case::trixie(Trixie)]
#[case::sid(Sid)]
fn image_file_in_a_registry_runs(#[case] version: Version) {
    let site = Site::shared(version);
    let here = site.bed.namespace();
    let mut object = htcjob("file", "cat /etc/which");
    object["spec"]["script"]["image"] = format!("oras://{}/team/file:1", site.registry.address()).into();
    here.create(&object);
    let ended = here.wait_ended("file");
    assert!(is_true(&ended, "Complete"), "{}\n{ended:#}", file(&here, "file", "err"));
    assert_eq!(file(&here, "file", "out"), "unpacked-sif");
}

#[test]
fn tag_stays_if_the_registry_does_not_answer() {
    let site = Site::shared(Trixie);
    let here = site.bed.namespace();
    let ended = &run(&here, &[("silent", "127.0.0.1:9/team/tiny:1")])[0];
    let problem = status(ended, "imageDigestProblem").unwrap_or_else(|| panic!("{ended:#}"));
    assert!(problem.starts_with("the registry cannot be asked: "), "{problem}");
    assert_eq!(status(ended, "imageDigest"), None);
    let message = condition(ended, "Failed").unwrap()["message"].as_str().unwrap();
    assert!(message.contains("127.0.0.1:9"), "{message}");
}

#[rstest]
#[case::trixie(Trixie)]
#[case::sid(Sid)]
fn image_with_a_named_user_runs_with_its_bashrc(#[case] version: Version) {
    let site = Site::shared(version);
    let here = site.bed.namespace();
    let mut object = htcjob("atlas", ". /home/atlas/.bashrc; echo $CAF_RELEASE");
    object["spec"]["script"]["image"] = format!("{}/team/atlas:1", site.registry.address()).into();
    object["spec"]["script"]["command"] = "bash -l".into();
    here.create(&object);
    let ended = here.wait_ended("atlas");
    assert!(is_true(&ended, "Complete"), "{}\n{ended:#}", file(&here, "atlas", "err"));
    assert_eq!(file(&here, "atlas", "out"), "21.2.171\n");
}

/// A command and the image's own entrypoint, with the index and the item of each job.
#[rstest]
#[case::trixie(Trixie)]
#[case::sid(Sid)]
fn programs_without_a_script_get_index_and_item(#[case] version: Version) {
    let site = Site::shared(version);
    let here = site.bed.namespace();
    let image = format!("{}/team/entrypoint:1", site.registry.address());
    let command = json!(["printf", "[%s]", "${index}", "two\nlines"]);
    let objects = [
        ("command", json!({ "image": image, "command": command, "args": ["${item}", "", "$${item}"] })),
        ("entrypoint", json!({ "image": image, "args": ["${index}", "${item}"] })),
        ("default", json!({ "image": image })),
    ]
    .map(|(name, container)| {
        let mut object = htcjob_of_container(name, &container);
        object["spec"]["items"] = json!(["a b", "$(x) `y` 'z'"]);
        object
    });
    here.create_all(&objects);
    for (name, printed) in [
        ("command", ["[0][two\nlines][a b][][${item}]", "[1][two\nlines][$(x) `y` 'z'][][${item}]"]),
        ("entrypoint", ["<0><a b>", "<1><$(x) `y` 'z'>"]),
        ("default", ["<the default>", "<the default>"]),
    ] {
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{}\n{ended:#}", file(&here, name, "err"));
        here.wait_output(name);
        for (index, printed) in (0..).zip(printed) {
            assert_eq!(fs::read_to_string(here.output(name, index).join("out")).unwrap(), printed, "{name} {index}");
        }
    }
}

#[rstest]
#[case::trixie(Trixie)]
#[case::sid(Sid)]
fn image_without_an_entrypoint_fails_the_job_with_its_reason(#[case] version: Version) {
    let site = Site::shared(version);
    let here = site.bed.namespace();
    let image = format!("{}/team/tiny:1", site.registry.address());
    here.create(&htcjob_of_container("none", &json!({ "image": image })));
    let ended = here.wait_ended("none");
    let message = condition(&ended, "Failed").unwrap()["message"].as_str().unwrap();
    assert!(message.contains("(244): the image does not contain the command"), "{message}");
    assert!(message.contains(" has no entrypoint: write spec.container.command"), "{message}");
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor\'s version makes no difference: make test-long"]
#[case::sid(Sid)]
fn unavailable_image_fails_the_job_with_its_reason(#[case] version: Version) {
    let site = Site::shared(version);
    let here = site.bed.namespace();
    let address = site.registry.address();
    let none = format!("{address}/team/none:1");
    let other = format!("{address}/team/tiny@sha256:{}", "0".repeat(64));
    let images = [("none", none.as_str()), ("other", &other), ("no-folder", "images.test/team/none")];
    let folder = site.files.path().join("images/team/none:latest").display().to_string();
    let tried = [format!("docker://{none}"), format!("docker://{other}"), folder];
    let reasons = ["manifest unknown", "manifest unknown", "no such file or directory"];
    let sentences = [
        "(249): the registry does not have the image",
        "(249): the registry does not have the image",
        "(243): the node cannot pull or open the image in spec.script.image or spec.container.image",
    ];
    for ((((name, image), ended), (tried, reason)), sentence) in
        images.iter().zip(run(&here, &images)).zip(tried.iter().zip(reasons)).zip(sentences)
    {
        let failed = condition(&ended, "Failed").unwrap_or_else(|| panic!("{image}: {ended:#}"));
        let message = failed["message"].as_str().unwrap();
        assert!(message.contains(sentence) && message.contains(reason), "{image}: {message}");
        let reported = file(&here, name, "err");
        let last = reported.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("htc-operator: the image {tried} cannot be had on ")), "{image}: {reported}");
        assert!(reported.contains(reason), "{image}: {reported}");
    }
}

#[test]
fn relative_image_file_is_refused() {
    let site = Site::shared(Trixie);
    let here = site.bed.namespace();
    let mut object = htcjob("file", "true");
    object["spec"]["script"]["image"] = "tiny.sif".into();
    here.create(&object);
    let refused = here.wait("file", "InvalidSpec", |object| {
        condition(object, "Submitted").is_some_and(|condition| condition["reason"] == "InvalidSpec")
    });
    let message = condition(&refused, "Submitted").unwrap()["message"].as_str().unwrap();
    assert!(
        message.contains("spec.script.image: \"tiny.sif\" looks like a file: write its absolute path"),
        "{message}"
    );
}

#[test]
fn invalid_image_table_stops_the_operator() {
    let scratch = Scratch::new().unwrap();
    let program = scratch.share(&bed::program()).unwrap();
    for (number, (arguments, words)) in [
        (["--image-prefix=registry.cern.ch", "--image=a=/b"], "write PREFIX=TARGET"),
        (["--image-prefix=registry.cern.ch/=images", "--image=a=/b"], "\"images\" is neither a folder nor a registry"),
        (["--image-prefix=team=/a", "--image-prefix=docker.io/team/=/b"], "two entries for \"docker.io/team/\""),
        (["--bind=/data", "--image-cache=/data/images"], "choose another folder"),
        (["--bind=/data/jobs", "--image-cache=/data"], "choose another folder"),
        (["--bind=/data", "--image-cache=images"], "write an absolute path"),
        (["--bind=/data", "--resolve-digests=https://a.b"], "write the registry of image names"),
        (["--image-prefix=team=/a", "--image=a=/my images"], "the image's path \"/my images\" is not allowed"),
    ]
    .into_iter()
    .enumerate()
    {
        let log = scratch.path().join(number.to_string());
        let spec = Spec::new(&program, &log).args(["run", "--schedd=none", "--data-dir=/none"]).args(arguments);
        let operator = Owned::spawn(&spec).unwrap();
        let (status, output) = (operator.wait(bed::PATIENCE).unwrap(), operator.log_text());
        assert!(!status.success() && output.contains(words), "{arguments:?}: {output}");
    }
}
