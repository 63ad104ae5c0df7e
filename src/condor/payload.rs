//! What runs on the worker node: the files of a job's sandbox and the meaning of their exit codes.
//!
//! `job.sh` is the same for all jobs. `payload.conf` tells it what to run, one `key value` per line; every value has been
//! parsed here, so that the shell never reads anything it could take for its own language. Further keys may be added in
//! version 1: `job.sh` skips what it does not know.

mod command;
mod image;
mod image_map;
mod outputs;

pub use crate::api::PayloadFailure;
pub use command::{Command, CommandError};
pub use image::{Image, ImageError, without_scheme};
pub use image_map::{ImageMap, ImagePrefix, ImagePrefixError};
pub use outputs::{MOST as MOST_OUTPUTS, OutputPattern, OutputPatternError};

/// File name of the program that HTCondor starts.
pub const JOB_SH: &str = "job.sh";
/// File name of the user's script, in the sandbox and in the container's `/htc_run`.
pub const SCRIPT_SH: &str = "script.sh";
/// File name of what `job.sh` reads.
pub const PAYLOAD_CONF: &str = "payload.conf";

/// The folder in the scratch directory that `job.sh` has for the payload, and makes if it is not there.
pub const WORK_FOLDER: &str = ".htc_work";
/// File name of the token that `job.sh` shows when it reports. It is read and deleted before the payload begins.
pub const TOKEN: &str = "callback.token";

const JOB_SH_SOURCE: &str = include_str!("payload/job.sh");
const PAYLOAD_CONF_VERSION: u32 = 1;

/// What one HTCJob runs. Its jobs differ in their index only, which is an argument: their sandboxes are the same.
#[derive(Debug, Clone, Copy)]
pub struct Payload<'a> {
    /// `metadata.name`, which becomes `JOB_NAME`.
    pub name: &'a str,
    /// Where the container's files come from.
    pub image: &'a Image,
    /// How the HTCJob calls the image, without `docker://`: on a worker that is a container of it the payload gets no other.
    pub named: &'a str,
    /// What runs the script.
    pub command: &'a Command,
    /// The script.
    pub source: &'a str,
    /// Absolute paths that are bound into the container where the node has them.
    pub binds: &'a [String],
    /// Where the job reports its start and its end, if it does.
    pub callback: Option<Callback<'a>>,
    /// Variables for the script, names and values.
    pub env: &'a [(String, String)],
    /// Which of what the script leaves comes back; empty for all of it.
    pub outputs: &'a [OutputPattern],
}

/// Where a job reports, and as whom.
#[derive(Debug, Clone, Copy)]
pub struct Callback<'a> {
    /// URL of the receiver.
    pub url: &'a str,
    /// `source` of its events.
    pub source: &'a str,
    /// `metadata.uid` of its HTCJob.
    pub uid: &'a str,
    /// That HTCJob's token.
    pub token: &'a str,
}

/// One file of a job's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFile {
    /// File name, without a folder.
    pub name: &'static str,
    /// Unix permissions.
    pub mode: u32,
    /// What is in it.
    pub contents: Vec<u8>,
}

/// A value that `payload.conf` cannot carry. Users' texts are parsed before: it means a wrong setting or a defect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// `metadata.name` is no Kubernetes name.
    #[error("{0:?} is not a valid Kubernetes name")]
    Name(String),
    /// A bind that is not an absolute path, or has a character with a meaning for Apptainer.
    #[error("the bind {0:?} must be an absolute path of letters, digits and `-._/` only")]
    Bind(String),
    /// A part of the callback that could end its line or its quotation marks.
    #[error("{0:?} cannot be part of a callback")]
    Callback(String),
}

/// Renders the files that belong into the job's sandbox folder.
///
/// # Errors
/// A name or a bind that could not be told apart from the lines around it.
pub fn sandbox_files(payload: &Payload) -> Result<Vec<SandboxFile>, PayloadError> {
    let file = |name, mode, contents: &str| SandboxFile { name, mode, contents: contents.as_bytes().to_vec() };
    let mut files = vec![
        file(JOB_SH, 0o755, JOB_SH_SOURCE),
        file(SCRIPT_SH, 0o755, payload.source),
        file(PAYLOAD_CONF, 0o644, &payload_conf(payload)?),
    ];
    if let Some(Callback { token, .. }) = payload.callback {
        // In a file of its own: who may read a job's ad, its arguments or its environment is everybody.
        files.push(file(TOKEN, 0o600, &format!("{token}\n")));
    }
    Ok(files)
}

fn payload_conf(payload: &Payload) -> Result<String, PayloadError> {
    let Payload { name, image, named, command, source: _, binds, callback, env, outputs } = *payload;
    let plain = |text: &str, further: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || further.contains(c));
    if !(1..=253).contains(&name.len()) || !plain(name, "-.") {
        return Err(PayloadError::Name(name.to_owned()));
    }
    if let Some(bind) = binds.iter().find(|bind| !bind.starts_with('/') || !plain(bind, "-._/")) {
        return Err(PayloadError::Bind(bind.clone()));
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
    let lines = lines.chain(matches!(image, Image::UsersFolder(_)).then_some(("image_in_binds", "yes")));
    let lines = lines.chain(binds.iter().map(|bind| ("bind", bind.as_str())));
    let callback = [("callback", url), ("source", source), ("uid", uid)];
    let lines = lines.chain(callback.into_iter().filter(|(_, part)| !part.is_empty()));
    let lines = lines.chain(command.words().map(|word| ("command", word)));
    let env: Vec<String> = env.iter().map(|(name, value)| format!("{name} {}", one_line(value))).collect();
    let lines = lines.chain(env.iter().map(|variable| ("env", variable.as_str())));
    let outputs = outputs.iter().flat_map(|output| [("output", output.text()), ("match", output.expression())]);
    let lines = lines.chain(outputs);
    let text = lines.fold(String::new(), |text, (key, value)| text + key + " " + value + "\n");
    Ok(text + "end\n")
}

/// A value on one line, for the shell's `printf %b` to undo.
fn one_line(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::IntoEnumIterator as _;

    #[test]
    fn job_sh_and_rust_agree_about_exit_codes() {
        let header: Vec<i32> = JOB_SH_SOURCE
            .lines()
            .filter_map(|line| line.strip_prefix("#   ")?.split(' ').next()?.parse().ok())
            .collect();
        let mut used: Vec<i32> =
            JOB_SH_SOURCE.split("fail ").filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect();
        used.sort_unstable();
        used.dedup();
        let known: Vec<i32> = PayloadFailure::iter().map(PayloadFailure::exit_code).collect();
        assert_eq!((&header, &used), (&known, &known));
        for failure in PayloadFailure::iter() {
            assert_eq!(PayloadFailure::from_exit_code(failure.exit_code()), Some(failure));
            assert!(!failure.sentence().is_empty());
        }
        assert!([0, 1, 239, 247, 255].iter().all(|code| PayloadFailure::from_exit_code(*code).is_none()));
    }

    #[test]
    fn job_sh_and_rust_agree_about_the_folder_of_the_payload() {
        assert!(JOB_SH_SOURCE.contains(&format!(" work=$PWD/{WORK_FOLDER}\n")));
        assert!(JOB_SH_SOURCE.contains(&format!("\n    unset {}\n", crate::confine::job_wrapper::WORK)));
    }

    #[test]
    fn a_users_path_is_looked_at_on_the_node() {
        let command = Command::parse("bash").unwrap();
        let conf = |image: Image| {
            let binds = &["/cvmfs".to_owned()];
            let (name, source) = ("n", "");
            let payload = Payload {
                name,
                image: &image,
                named: "docker://python:3.12",
                command: &command,
                source,
                binds,
                callback: None,
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
        let (image, command) = (Image::Registry("python:3".to_owned()), Command::parse("python -u").unwrap());
        let binds = ["/cvmfs".to_owned(), "/eos".to_owned()];
        let env = [("A".to_owned(), " b\nc\\n$x ".to_owned()), ("EMPTY".to_owned(), String::new())];
        let payload = Payload {
            name: "my-job",
            image: &image,
            named: "centos",
            command: &command,
            source: "print(1)",
            binds: &binds,
            callback: None,
            env: &env,
            outputs: &[OutputPattern::parse("a b/*").unwrap()],
        };
        let files = sandbox_files(&payload).unwrap();
        let names: Vec<_> = files.iter().map(|file| (file.name, file.mode)).collect();
        assert_eq!(names, [("job.sh", 0o755), ("script.sh", 0o755), ("payload.conf", 0o644)]);
        assert_eq!(files[1].contents, b"print(1)");
        let text = "version 1\nname my-job\nimage docker://python:3\nnamed centos\nbind /cvmfs\nbind /eos\ncommand python\ncommand -u\nenv A  b\\nc\\\\n$x \nenv EMPTY \noutput a b/*\nmatch [.]/a b/[^/]*\\(/[^/]*\\)*\nend\n";
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
        for name in ["", "a b", "a\nend", "a$b"] {
            assert!(sandbox_files(&Payload { name, ..payload }).is_err(), "{name:?}");
        }
        for bind in ["cvmfs", "/a:b", "/a,b", "/a\nend"] {
            assert!(sandbox_files(&Payload { binds: &[bind.to_owned()], ..payload }).is_err(), "{bind:?}");
        }
    }
}
