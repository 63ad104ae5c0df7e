//! The end of a failed job's `err`, for users who only look at the HTCJob.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use htc_machine::text::sanitize_end;
use rustix::fs::{Mode, OFlags};

/// Maximum number of lines.
const LINES: usize = 10;
/// Maximum number of bytes: an Event's message may have 1024.
const BYTES: usize = 512;
/// Number of bytes read from the end of the file.
const READ: u64 = 4096;
/// Separator of two lines. A line break would let a job write lines of its own into the operator's log.
const BETWEEN: &str = " | ";

/// Returns the last lines of a file; `None` if it is empty, or not a regular file. A job may have replaced it by a
/// link or a pipe: neither is followed or waited for.
pub fn err_tail(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(READ))).ok()?;
    let mut bytes = Vec::new();
    file.take(READ).read_to_end(&mut bytes).ok()?;
    last_lines(&String::from_utf8_lossy(&bytes))
}

fn last_lines(text: &str) -> Option<String> {
    let all: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let lines = all.get(all.len().saturating_sub(LINES)..).unwrap_or_default();
    Some(sanitize_end(&lines.join(BETWEEN), BYTES)).filter(|shown| !shown.is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn of(contents: &[u8]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("err");
        std::fs::write(&path, contents).unwrap();
        err_tail(&path)
    }

    #[test]
    fn last_lines_are_kept() {
        assert_eq!(of(b"one\ntwo\r\n\n  three  \n"), Some("one | two |   three".to_owned()));
        let many: Vec<String> = (1..=30).map(|line| format!("line {line}")).collect();
        let kept = of(many.join("\n").as_bytes()).unwrap();
        assert!(kept.starts_with("line 21 | ") && kept.ends_with(" | line 30"), "{kept}");
        assert_eq!(of(b""), None);
        assert_eq!(of(b"\n \n"), None);
    }

    #[test]
    fn err_tail_is_short_whatever_the_input() {
        for contents in ["x".repeat(100_000), "é".repeat(3000), "𝄞\n".repeat(3000), "é".repeat(256), "é".repeat(257)]
        {
            let kept = of(contents.as_bytes()).unwrap();
            assert!(kept.len() <= BYTES && kept.len() > BYTES - 8 || contents.starts_with('𝄞'), "{}", kept.len());
            assert!(kept.len() <= BYTES);
        }
        let mut sparse = vec![0; 50_000_000];
        sparse.extend(b"\nthe end");
        assert!(of(&sparse).unwrap().ends_with(" | the end"));
    }

    #[test]
    fn err_tail_has_no_control_characters() {
        let kept = of(b"\x1b[31mred\x1b[0m\x07 \xff\xfe \xe2\x80\xaeturned\x00\x0b\tINFO a\rb\x85\xc2\x85").unwrap();
        assert!(kept.chars().all(|c| !c.is_control()), "{kept:?}");
        assert!(kept.contains("[31mred") && kept.contains("turned") && !kept.contains('\u{202e}'), "{kept:?}");
        assert!(!of(b"a\nb").unwrap().contains('\n'));
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("secret"), "secret").unwrap();
        symlink(at("secret"), at("link")).unwrap();
        symlink(at("missing"), at("dangling")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for name in ["link", "dangling", "folder", "pipe", "socket", "nothing"] {
            assert_eq!(err_tail(&at(name)), None, "{name}");
        }
    }
}
