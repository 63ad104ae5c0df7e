//! Files of a job's sandbox, which run on the worker node, and the meaning of their exit codes.
//!
//! `job.sh` is the same for all jobs. `payload.conf` holds what it runs, with one `key value` per line. Every value has
//! been validated here, so that none has a meaning for the shell. Further keys may be added in version 1: `job.sh`
//! skips unknown ones.

mod command;
mod image;
mod image_map;
mod outputs;
mod program;

use htc_api::{FrozenFile, KeyRef};

use crate::files::{self, FetchedFile, SecretFile};
use crate::volumes::BoundFolder;

pub use command::{CommandError, PayloadCommand};
pub use htc_api::{JobShEnd, PayloadFailure};
pub use image::{Image, ImageError, ImageScheme, Manifest, is_digest, without_scheme};
pub use image_map::{ImageMap, ImagePrefix, ImagePrefixError};
pub use outputs::{MOST as MOST_OUTPUTS, OutputPattern, OutputPatternError};
pub use program::{Piece, Program, ProgramError, Word};

/// File name of the program that HTCondor starts.
pub const JOB_SH: &str = "job.sh";
/// File name of the user's script, in the sandbox and in the container's `/htc_run`.
pub const SCRIPT_SH: &str = "script.sh";
/// File name of the settings that `job.sh` reads.
pub const PAYLOAD_CONF: &str = "payload.conf";

/// Variable that holds [`WORK_FOLDER`] for the wrapper on managed workers: `htc_confine::job_wrapper::WORK_VARIABLE`.
pub const WORK_VARIABLE: &str = "HTC_WORK";
/// Folder in the scratch directory that `job.sh` has for the payload. `job.sh` creates it if it is missing.
pub const WORK_FOLDER: &str = ".htc_work";
/// File name of the token that `job.sh` sends with its reports. The file is read and deleted before the payload begins.
pub const TOKEN: &str = "callback.token";

/// File name of the archive with the files that a job brings. `job.sh` unpacks it.
pub const INPUT_TAR: &str = "htc_input.tar";

const JOB_SH_SOURCE: &str = include_str!("payload/job.sh");
const PAYLOAD_CONF_VERSION: u32 = 1;

/// What one HTCJob runs. Its jobs differ only in their index, which is an argument. So their sandboxes are the same.
#[derive(Debug, Clone, Copy)]
pub struct Payload<'a> {
    /// `metadata.name`, which becomes `JOB_NAME`.
    pub name: &'a str,
    /// Source of the container's files.
    pub image: &'a Image,
    /// The image as the HTCJob names it, without `docker://`. A worker that is a container itself runs the payload only
    /// if its own image is this one.
    pub image_name: &'a str,
    /// Whether the image is pulled with a login, which each job fetches from the receiver.
    pub private: bool,
    /// Where nodes keep the image, if they do.
    pub image_cache: Option<ImageCache<'a>>,
    /// What runs in the container.
    pub program: &'a Program,
    /// The script, if the program runs one.
    pub source: &'a str,
    /// Absolute paths that are bound into the container if the node has them.
    pub binds: &'a [String],
    /// Folders of the node for the volumes of the HTCJob. A node that lacks one cannot run the job.
    pub volumes: &'a [BoundFolder],
    /// Where the job reports its start and its end, if callbacks are on.
    pub callback: Option<Callback<'a>>,
    /// Environment variables of the script, names and values.
    pub env: &'a [(String, String)],
    /// Files that each job brings.
    pub files: &'a [FrozenFile],
    /// Files that each job fetches.
    pub fetched: &'a [FetchedFile],
    /// Files from Secrets, which each job fetches from the receiver.
    pub secret_files: &'a [SecretFile],
    /// Variables from Secrets, which each job fetches from the receiver.
    pub secret_env: &'a [(String, KeyRef)],
    /// Output files to bring back. Empty means all files.
    pub outputs: &'a [OutputPattern],
}

/// Folder of the nodes for images of registries.
#[derive(Debug, Clone, Copy)]
pub struct ImageCache<'a> {
    /// Absolute path.
    pub folder: &'a str,
    /// `metadata.uid` of the HTCJob. It is the file's name if the image has a tag, which may change, and no digest.
    pub uid: &'a str,
}

/// Receiver and credentials for a job's reports.
#[derive(Debug, Clone, Copy)]
pub struct Callback<'a> {
    /// URL of the receiver.
    pub url: &'a str,
    /// `source` of its CloudEvents.
    pub source: &'a str,
    /// `metadata.uid` of its HTCJob.
    pub uid: &'a str,
    /// Token of that HTCJob.
    pub token: &'a str,
}

/// One file of a job's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFile {
    /// File name, without a folder.
    pub name: &'static str,
    /// Unix permissions.
    pub mode: u32,
    pub contents: Vec<u8>,
}

/// A value that `payload.conf` cannot hold. Users' texts are validated before, so the cause is a wrong setting or a
/// defect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// `metadata.name` is no Kubernetes name.
    #[error("{0:?} is not a valid Kubernetes name")]
    Name(String),
    /// A bind that is not an absolute path, or has a character with a meaning for Apptainer.
    #[error("the bind {0:?} must be an absolute path of letters, digits and `-._/` only")]
    Bind(String),
    /// The files of `spec.files` do not fit into an archive.
    #[error("the files of spec.files cannot be packed: {0}")]
    Files(String),
    /// A folder for images that is not an absolute path of plain characters, or a uid with other characters.
    #[error("{0:?} cannot be part of the path of a cached image")]
    ImageCache(String),
    /// A part of the callback with a character that could end its line or its quotation marks.
    #[error("{0:?} cannot be part of a callback")]
    Callback(String),
}

/// Renders the files for the job's sandbox folder.
///
/// # Errors
/// A name, a bind or a part of the callback could be mistaken for other lines of the file.
pub fn sandbox_files(payload: &Payload) -> Result<Vec<SandboxFile>, PayloadError> {
    let file = |name, mode, contents: &str| SandboxFile { name, mode, contents: contents.as_bytes().to_vec() };
    let mut sandbox = vec![
        file(JOB_SH, 0o755, JOB_SH_SOURCE),
        file(SCRIPT_SH, 0o755, payload.source),
        file(PAYLOAD_CONF, 0o644, &payload_conf(payload)?),
    ];
    if !payload.files.is_empty() {
        let contents = files::archive(payload.files).map_err(|error| PayloadError::Files(error.to_string()))?;
        sandbox.push(SandboxFile { name: INPUT_TAR, mode: 0o644, contents });
    }
    if let Some(Callback { token, .. }) = payload.callback {
        // The token has a file of its own: a job's ad, arguments and environment can be read by everyone.
        sandbox.push(file(TOKEN, 0o600, &format!("{token}\n")));
    }
    Ok(sandbox)
}

fn payload_conf(payload: &Payload) -> Result<String, PayloadError> {
    let Payload {
        name,
        image,
        image_name: named,
        private,
        image_cache,
        program,
        source: _,
        binds,
        volumes,
        callback,
        env,
        files: _,
        fetched,
        secret_files,
        secret_env,
        outputs,
    } = *payload;

    let plain = |text: &str, further: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || further.contains(c));
    if !(1..=253).contains(&name.len()) || !plain(name, "-.") {
        return Err(PayloadError::Name(name.to_owned()));
    }
    let bound = volumes.iter().flat_map(|volume| [&volume.source, &volume.path]);
    if let Some(bind) = binds.iter().chain(bound).find(|bind| !bind.starts_with('/') || !plain(bind, "-._/")) {
        return Err(PayloadError::Bind(bind.clone()));
    }
    let cache = image_cache.filter(|_| matches!(image, Image::Registry(_) | Image::Remote(_)));
    let [folder, key] = cache.map_or([""; 2], |cache| {
        // Other HTCJobs of the account may not have the login of a private image.
        let digest = image.digest().filter(|_| !private).map(|digest| digest.trim_start_matches("sha256:"));
        [cache.folder, digest.unwrap_or(cache.uid)]
    });
    if let Some(part) = cache.and([folder, key].into_iter().find(|part| part.is_empty() || !plain(part, "-._/:@+="))) {
        return Err(PayloadError::ImageCache(part.to_owned()));
    }
    let parts = callback.map_or([""; 4], |callback| [callback.url, callback.source, callback.uid, callback.token]);
    if let Some(part) = parts.iter().find(|part| callback.is_some() && (part.is_empty() || !plain(part, "-._~:/[]%"))) {
        return Err(PayloadError::Callback((*part).to_owned()));
    }
    let [url, source, uid, _] = parts;
    let version = PAYLOAD_CONF_VERSION.to_string();
    let lines = [("version", version.as_str()), ("name", name)].into_iter();
    let text = image.argument();
    let lines = lines.chain([("image", text.as_str())]);
    let named = without_scheme(named);
    let lines = lines.chain(plain(named, "-._/:@").then_some(("named", named)));
    let cache = [("image_cache", folder), ("image_key", key)];
    let lines = lines.chain(cache.into_iter().filter(|(_, part)| !part.is_empty()));
    let lines = lines.chain(private.then_some(("private", "yes")));
    let lines = lines.chain(matches!(image, Image::UsersFolder(_)).then_some(("image_in_binds", "yes")));
    let lines = lines.chain(binds.iter().map(|bind| ("bind", bind.as_str())));
    let volumes: Vec<String> = volumes.iter().map(volume_line).collect();
    let lines = lines.chain(volumes.iter().map(|volume| ("volume", volume.as_str())));
    let callback = [("callback", url), ("source", source), ("uid", uid)];
    let lines = lines.chain(callback.into_iter().filter(|(_, part)| !part.is_empty()));
    let program = program_lines(program);
    let lines = lines.chain(program.iter().map(|(key, value)| (*key, value.as_str())));
    let env: Vec<String> = env.iter().map(|(name, value)| format!("{name} {}", one_line(value))).collect();
    let lines = lines.chain(env.iter().map(|variable| ("env", variable.as_str())));
    let fetched: Vec<String> = fetched.iter().map(fetch_line).collect();
    let lines = lines.chain(fetched.iter().map(|file| ("fetch", file.as_str())));
    let from = |KeyRef { name, key }: &KeyRef| format!("{name}/{key}");
    let secret_files =
        secret_files.iter().map(|file| format!("{} file {:o} {}", from(&file.key), file.mode, file.path));
    let secret_env = secret_env.iter().map(|(name, key)| format!("{} env - {name}", from(key)));
    let secrets: Vec<String> = secret_files.chain(secret_env).collect();
    let lines = lines.chain(secrets.iter().map(|secret| ("secret", secret.as_str())));
    let outputs = outputs.iter().flat_map(|output| [("output", output.text()), ("match", output.expression())]);
    let lines = lines.chain(outputs);
    let text = lines.fold(String::new(), |text, (key, value)| text + key + " " + value + "\n");
    Ok(text + "end\n")
}

/// Returns the lines for the program: each word of `spec.container` is lines of its pieces, and a line that ends it.
fn program_lines(program: &Program) -> Vec<(&'static str, String)> {
    let words = |words: &[Word]| -> Vec<(&'static str, String)> {
        let pieces = |word: &Word| -> Vec<(&'static str, String)> {
            let lines = word.pieces().iter().map(|piece| match piece {
                Piece::Text(text) => ("text", one_line(text)),
                Piece::Index => ("index", String::new()),
                Piece::Item => ("item", String::new()),
            });
            lines.chain([("word", String::new())]).collect()
        };
        words.iter().flat_map(pieces).collect()
    };
    match program {
        Program::Script(command) => command.words().map(|word| ("command", word.to_owned())).collect(),
        Program::Command { program, arguments } => {
            let form = ("form", "command".to_owned());
            [vec![form], words(&[Word::from(program.as_str())]), words(arguments)].concat()
        }
        Program::Entrypoint(arguments) => [vec![("form", "entrypoint".to_owned())], words(arguments)].concat(),
    }
}

/// Returns mode, SHA-256, URL and path of a file. Only the path may have blanks.
fn fetch_line(file: &FetchedFile) -> String {
    let FetchedFile { path, mode, url, sha256 } = file;
    format!("{mode:o} {} {} {path}", sha256.as_deref().unwrap_or("-"), url.text())
}

fn volume_line(BoundFolder { source, path, read_only }: &BoundFolder) -> String {
    format!("{source} {path} {}", if *read_only { "ro" } else { "rw" })
}

/// Encodes a value on one line. The shell decodes it by `printf %b`.
fn one_line(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::IntoEnumIterator as _;

    #[test]
    fn job_sh_and_rust_agree_about_codes_and_signals() {
        let header: Vec<i32> = JOB_SH_SOURCE
            .lines()
            .filter_map(|line| line.strip_prefix("#   ")?.split(' ').next()?.parse().ok())
            .collect();
        let mut used: Vec<i32> =
            JOB_SH_SOURCE.split("fail ").filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect();
        used.sort_unstable();
        used.dedup();
        let known: Vec<i32> = PayloadFailure::iter().map(PayloadFailure::code).collect();
        assert_eq!((&header, &used), (&known, &known));
        for failure in PayloadFailure::iter() {
            assert_eq!(PayloadFailure::from_code(failure.code()), Some(failure));
            assert!(!failure.sentence().is_empty());
            for after_payload in [false, true] {
                let end = JobShEnd { failure, after_payload };
                assert_eq!(JobShEnd::from_signal(end.signal()), Some(end));
                assert!(JobShEnd::SIGNALS.contains(&end.signal()));
            }
        }
        assert!([0, 1, 239, 251, 255].iter().all(|code| PayloadFailure::from_code(*code).is_none()));
        assert!([1, 9, 15, 39, 51, 64].iter().all(|signal| JobShEnd::from_signal(*signal).is_none()));
    }

    #[test]
    fn job_sh_and_rust_agree_about_the_folder_of_the_payload() {
        assert!(JOB_SH_SOURCE.contains(&format!(" work=$PWD/{WORK_FOLDER}\n")));
        assert!(JOB_SH_SOURCE.contains(&format!("\n    unset {}\n", super::WORK_VARIABLE)));
    }

    #[test]
    fn image_path_of_a_user_is_checked_on_the_node() {
        let command = Program::script("bash").unwrap();
        let conf = |image: Image| {
            let binds = &["/cvmfs".to_owned()];
            let (name, source) = ("n", "");
            let payload = Payload {
                name,
                image: &image,
                image_name: "docker://python:3.12",
                private: false,
                image_cache: None,
                program: &command,
                source,
                binds,
                volumes: &[],
                callback: None,
                files: &[],
                fetched: &[],
                secret_files: &[],
                secret_env: &[],
                env: &[],
                outputs: &[],
            };
            String::from_utf8(sandbox_files(&payload).unwrap().remove(2).contents).unwrap()
        };
        let path = || "/cvmfs/x".to_owned();
        assert!(conf(Image::UsersFolder(path())).contains("\nimage /cvmfs/x\nnamed python:3.12\nimage_in_binds yes\n"));
        assert!(conf(Image::Folder(path())).contains("\nimage /cvmfs/x\nnamed python:3.12\nbind /cvmfs\n"));
    }

    #[test]
    fn payload_conf_has_one_value_per_line() {
        let (image, command) = (Image::Registry("python:3".to_owned()), Program::script("python -u").unwrap());
        let binds = ["/cvmfs".to_owned(), "/eos".to_owned()];
        let volume = |read_only| BoundFolder { source: "/eos/a".to_owned(), path: "/in".to_owned(), read_only };
        let volumes = [volume(true), volume(false)];
        let env = [("A".to_owned(), " b\nc\\n$x ".to_owned()), ("EMPTY".to_owned(), String::new())];
        let payload = Payload {
            name: "my-job",
            image: &image,
            image_name: "centos",
            private: false,
            image_cache: None,
            program: &command,
            source: "print(1)",
            binds: &binds,
            volumes: &volumes,
            callback: None,
            files: &[],
            fetched: &[],
            secret_files: &[],
            secret_env: &[],
            env: &env,
            outputs: &[OutputPattern::parse("a b/*").unwrap()],
        };
        let files = sandbox_files(&payload).unwrap();
        let names: Vec<_> = files.iter().map(|file| (file.name, file.mode)).collect();
        assert_eq!(names, [("job.sh", 0o755), ("script.sh", 0o755), ("payload.conf", 0o644)]);
        assert_eq!(files[1].contents, b"print(1)");
        let text = "version 1\nname my-job\nimage docker://python:3\nnamed centos\nbind /cvmfs\nbind /eos\nvolume /eos/a /in ro\nvolume /eos/a /in rw\ncommand python\ncommand -u\nenv A  b\\nc\\\\n$x \nenv EMPTY \noutput a b/*\nmatch [.]/a b/[^/]*\\(/[^/]*\\)*\nend\n";
        assert_eq!(files[2].contents, text.as_bytes());
        let callback = Callback { url: "https://h:8/cloudevents", source: "cern.ch", uid: "u-1", token: "00ff" };
        let reporting = Payload { callback: Some(callback), ..payload };
        let files = sandbox_files(&reporting).unwrap();
        let lines = "callback https://h:8/cloudevents\nsource cern.ch\nuid u-1\ncommand python\n";
        assert!(String::from_utf8_lossy(&files[2].contents).contains(lines), "{files:?}");
        assert_eq!((files[3].name, files[3].mode, &*files[3].contents), ("callback.token", 0o600, &b"00ff\n"[..]));
        assert!(!files[..3].iter().any(|file| String::from_utf8_lossy(&file.contents).contains("00ff")));
        for bad in ["", "a b", "a\nend", "a\"", "a\\", "a'b", "a$b", "a`"] {
            for callback in [
                Callback { url: bad, ..callback },
                Callback { source: bad, ..callback },
                Callback { uid: bad, ..callback },
                Callback { token: bad, ..callback },
            ] {
                assert!(sandbox_files(&Payload { callback: Some(callback), ..payload }).is_err(), "{callback:?}");
            }
        }
        let arguments = vec!["a \\\nb".into(), "".into(), Piece::Index.into(), Piece::Item.into()];
        let program = Program::Command { program: "python3".to_owned(), arguments: arguments.clone() };
        for (program, form) in [
            (program, "\nform command\ntext python3\nword \n"),
            (Program::Entrypoint(arguments), "\nform entrypoint\n"),
        ] {
            let files = sandbox_files(&Payload { program: &program, ..payload }).unwrap();
            let lines = format!("{form}text a \\\\\\nb\nword \ntext \nword \nindex \nword \nitem \nword \nenv A ");
            assert!(String::from_utf8_lossy(&files[2].contents).contains(&lines), "{files:?}");
        }
        for name in ["", "a b", "a\nend", "a$b"] {
            assert!(sandbox_files(&Payload { name, ..payload }).is_err(), "{name:?}");
        }
        for bind in ["cvmfs", "/a:b", "/a,b", "/a\nend"] {
            assert!(sandbox_files(&Payload { binds: &[bind.to_owned()], ..payload }).is_err(), "{bind:?}");
            let bad = [BoundFolder { source: bind.to_owned(), ..volume(true) }];
            assert!(sandbox_files(&Payload { volumes: &bad, ..payload }).is_err(), "{bind:?}");
        }
    }
}
