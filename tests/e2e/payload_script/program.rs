//! Programs without a script: a command of the image, and the image's own entrypoint.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use htc_api::{ContainerSpec, FrozenFile, HTCJobSpec};
use htc_submit::payload::{Image, ImageMap, Payload, Program};
use testbed::{Assets, Registry, tool};

use super::worker::on_worker;
use super::{PayloadFailure, SHELLS, Scratch, bare, ended, image};

/// Prints its arguments.
const PRINT: &str = "printf '<%s>' \"$@\"; ls -A >seen";
/// The item of the job, and as HTCondor gives it.
const ITEM: &str = "${index} 'x' \\n";
const ITEM_ARGUMENT: &str = "=JHtpbmRleH0gJ3gnIFxu";

/// What users may write as arguments, and what a program gets.
const ARGUMENTS: [(&str, &str); 9] = [
    ("", ""),
    (" a  b ", " a  b "),
    ("two\nlines\n", "two\nlines\n"),
    ("it's \"q\" \\n \\\\ \\", "it's \"q\" \\n \\\\ \\"),
    ("$HOME $(date) `x` * ~ $1 $$", "$HOME $(date) `x` * ~ $1 $$"),
    ("ÁÈÂ 字 \u{1}\u{7f}", "ÁÈÂ 字 \u{1}\u{7f}"),
    ("${index}/$${index}${HOME}", "3/${index}${HOME}"),
    ("<${item}>", "<${index} 'x' \\n>"),
    ("-e", "-e"),
];

/// What [`PRINT`] prints for them.
fn printed() -> String {
    ARGUMENTS.iter().fold(String::new(), |text, (_, got)| text + "<" + got + ">")
}

fn written() -> Vec<&'static str> {
    ARGUMENTS.iter().map(|(written, _)| *written).collect()
}

/// A job that runs these words in this image.
fn job(image: &str, command: &[&str], args: &[&str]) -> Scratch {
    job_with(&[], image, command, args)
}

fn job_with(files: &[FrozenFile], image: &str, command: &[&str], args: &[&str]) -> Scratch {
    let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect();
    let container = ContainerSpec { image: image.to_owned(), command: owned(command), args: owned(args) };
    let spec = HTCJobSpec { container: Some(container), items: vec![ITEM.to_owned()], ..HTCJobSpec::default() };
    let image =
        if image.starts_with('/') { Image::of_the_site(image) } else { Image::resolve(image, &ImageMap::new()) };
    let (image, program) = (image.unwrap(), Program::parse(&spec).unwrap());
    let payload = Payload { files, ..bare(&image, &program, "") };
    bed::turns::take(bed::Weight::Light);
    let mut scratch = Scratch::of(tempfile::tempdir().unwrap(), &payload);
    scratch.environment.push(("APPTAINER_NOHTTPS", "true".into()));
    scratch
}

/// Exit code, standard output, standard error.
fn run(scratch: &Scratch, shell: &str) -> (i32, String, String) {
    ended(scratch.start(shell, &["3", ITEM_ARGUMENT]).wait_with_output().unwrap())
}

#[test]
fn command_gets_its_words_byte_for_byte() {
    let image = image();
    for shell in SHELLS {
        for worker in [false, true] {
            let mut scratch = job(image.to_str().unwrap(), &["bash", "-c", PRINT, "x"], &written());
            if worker {
                scratch = on_worker("python:3.12", scratch);
            }
            let (code, stdout, stderr) = run(&scratch, shell);
            assert_eq!((code, stderr.as_str()), (0, ""), "{shell} {worker}");
            assert_eq!(stdout, printed(), "{shell} {worker}");
            assert!(!scratch.read("seen").contains("script.sh"), "{shell} {worker}");
        }
    }
}

#[test]
fn file_of_the_job_can_be_its_program() {
    let content = b"#!/bin/sh\necho \"selected $1\"\n".to_vec();
    let file = FrozenFile { path: "bin/select".to_owned(), mode: 0o755, sha256: String::new(), content };
    let image = image();
    for worker in [false, true] {
        let mut scratch =
            job_with(std::slice::from_ref(&file), image.to_str().unwrap(), &["./bin/select", "${index}"], &[]);
        if worker {
            scratch = on_worker("python:3.12", scratch);
        }
        assert_eq!(run(&scratch, "dash"), (0, "selected 3\n".to_owned(), String::new()), "{worker}");
    }
}

/// Runs under each shell, and expects one failure with a line that has these words.
fn fails(failure: PayloadFailure, hint: &str, make: impl Fn() -> Scratch) {
    for shell in SHELLS {
        let (code, _, stderr) = run(&make(), shell);
        assert_eq!(super::failure(code), Some(failure), "{shell}: {code} {stderr}");
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("htc-operator: ") && last.contains(hint), "{shell}: {stderr}");
    }
}

#[test]
fn missing_command_or_entrypoint_has_its_own_signal() {
    let folder = image();
    let folder = folder.to_str().unwrap();
    fails(PayloadFailure::CommandNotFound, "the command no such is not in the image", || {
        job(folder, &["no such"], &[])
    });
    let no_entrypoint = format!("the image {folder} has no entrypoint: write spec.container.command");
    fails(PayloadFailure::CommandNotFound, &no_entrypoint, || job(folder, &[], &["x"]));
    fails(PayloadFailure::ImageUnavailable, "/no/such/image", || job("/no/such/image", &[], &[]));
    fails(PayloadFailure::ImageUnavailable, "docker://localhost:9/a:1", || job("localhost:9/a:1", &[], &[]));
    fails(PayloadFailure::CommandNotFound, "does not know the entrypoint of python:3.12", || {
        on_worker("python:3.12", job(folder, &[], &[]))
    });
}

/// A copy of the image in which everybody may run this script as its entrypoint.
fn with_runscript(assets: &Assets, folder: &Path, runscript: &str) -> PathBuf {
    let copy = folder.join("image");
    let mut cp = Command::new("cp");
    tool::run_ok("copying an image", cp.arg("-a").arg(assets.image()).arg(&copy), "", bed::PATIENCE).unwrap();
    fs::create_dir(copy.join(".singularity.d")).unwrap();
    let path = copy.join(".singularity.d/runscript");
    fs::write(&path, runscript).unwrap();
    for path in [folder, &path] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    copy
}

#[test]
fn entrypoint_gets_its_arguments_byte_for_byte() {
    let assets = Assets::locate().unwrap();
    let registry = Registry::start(&assets).unwrap();
    let push = |name: &str, config: &str| {
        registry.push_with(name, "1", assets.image(), config).unwrap();
        format!("{}/{name}:1", registry.address())
    };
    let entrypoint = format!(r#""Entrypoint":["bash","-c",{},"x"]"#, serde_json::json!(PRINT));
    let both = push("both", &format!(r#"{{{entrypoint},"Cmd":["the $HOME","default"]}}"#));
    let alone = push("alone", &format!("{{{entrypoint}}}"));
    let command = push("command", r#"{"Cmd":["echo","the default"]}"#);
    let nothing = push("nothing", "{}");
    for (image, args, stdout) in [
        (&both, written(), printed()),
        (&both, vec![], "<the $HOME><default>".to_owned()),
        (&alone, written(), printed()),
        (&alone, vec![], "<>".to_owned()),
        (&command, vec!["printf", "<%s>", "${index}"], "<3>".to_owned()),
        (&command, vec![], "the default\n".to_owned()),
        (&nothing, vec!["printf", "<%s>", "a b"], "<a b>".to_owned()),
    ] {
        let (code, out, stderr) = run(&job(image, &[], &args), "dash");
        assert_eq!((code, out, stderr.as_str()), (0, stdout, ""), "{image} {args:?}");
    }
    let hint = format!("the image docker://{nothing} has no entrypoint");
    fails(PayloadFailure::CommandNotFound, &hint, || job(&nothing, &[], &[]));
}

/// As Singularity wrote runscripts before it had `--no-eval`, and as those on CVMFS are written.
#[test]
fn older_runscript_gets_its_arguments_byte_for_byte() {
    let assets = Assets::locate().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let entrypoint = r#""bash" "-c" "printf \"<%s>\" \"\$@\"" "x""#;
    let runscript = format!(
        "#!/bin/sh\nOCI_ENTRYPOINT='{entrypoint}'\nOCI_CMD=''\nARGS=\nfor arg in \"$@\"; do\n    ARGS=\"$ARGS \\\"$arg\\\"\"\ndone\n\
         SINGULARITY_OCI_RUN=\"$OCI_ENTRYPOINT $ARGS\"\neval \"set ${{SINGULARITY_OCI_RUN}}\"\nexec \"$@\"\n"
    );
    let image = with_runscript(&assets, folder.path(), &runscript);
    for shell in SHELLS {
        let (code, stdout, stderr) = run(&job(image.to_str().unwrap(), &[], &written()), shell);
        assert_eq!((code, stdout, stderr.as_str()), (0, printed(), ""), "{shell}");
    }
}

#[test]
fn entrypoint_exits_with_its_own_code() {
    let assets = Assets::locate().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = with_runscript(&assets, folder.path(), "#!/bin/bash\necho text >made\nexit $1\n");
    for code in ["0", "7", "255"] {
        let scratch = job(image.to_str().unwrap(), &[], &[code]);
        let (ended, _, stderr) = run(&scratch, "busybox sh");
        assert_eq!((ended.to_string().as_str(), stderr.as_str()), (code, ""));
        assert_eq!(scratch.names(), [".job.ad", "job.sh", "made", "payload.conf", "script.sh"]);
    }
}

/// As Apptainer writes it into images that are built from a folder or from a definition without one.
#[test]
fn placeholder_runscript_is_no_entrypoint() {
    let assets = Assets::locate().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let placeholder = "#!/bin/sh\necho \"There is no runscript defined for this container\\n\";\n";
    let image = with_runscript(&assets, folder.path(), placeholder);
    fails(PayloadFailure::CommandNotFound, "has no entrypoint", || job(image.to_str().unwrap(), &[], &["x"]));
}
