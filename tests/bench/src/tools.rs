//! HTCondor's tools as the operator calls them: counted, and one submission recorded.

use std::fs;
use std::path::{Path, PathBuf};

use testbed::{Account, Scratch};

use crate::error::{Doing as _, Error, Result};

const TOOLS: &[&str] = &[
    "condor_submit",
    "condor_q",
    "condor_status",
    "condor_history",
    "condor_ping",
    "condor_rm",
    "condor_hold",
    "condor_release",
    "condor_transfer_data",
    "condor_qedit",
];

/// A folder of stand-ins, each of which notes the call and becomes the real tool (1 ms).
pub(crate) struct Tools {
    folder: PathBuf,
}

/// Calls so far.
#[derive(Clone, Debug)]
pub(crate) struct Calls(Vec<(&'static str, usize)>);

impl Tools {
    /// In front of the tools in `real`.
    pub(crate) fn new(scratch: &Scratch, real: &Path) -> Result<Self> {
        let folder = scratch.dir("tools")?;
        for tool in TOOLS {
            let (own, real) = (folder.join(tool), real.join(tool));
            let (own_, real_) = (own.display(), real.display());
            let script = format!(
                "#!/bin/sh\necho >>{own_}.calls\n[ ! -e {own_}.record ] || {{\n    rm {own_}.record\n    tee {own_}.stdin | {real_} \"$@\"\n    exit\n}}\n\
                 exec {real_} \"$@\"\n"
            );
            Account::unprivileged().write(&own, script, 0o755)?;
        }
        Ok(Self { folder })
    }

    /// The operator's argument.
    pub(crate) fn argument(&self) -> String {
        format!("--condor-bin={}", self.folder.display())
    }

    /// From now on, what the next condor_submit reads is kept.
    pub(crate) fn record(&self) -> Result<()> {
        Ok(Account::unprivileged().write(&self.folder.join("condor_submit.record"), "", 0o644)?)
    }

    /// What it read.
    pub(crate) fn recorded(&self) -> Result<String> {
        let path = self.folder.join("condor_submit.stdin");
        fs::read_to_string(&path).doing("read what condor_submit was given", &path)
    }

    pub(crate) fn calls(&self) -> Calls {
        let length = |tool: &str| {
            let path = self.folder.join(format!("{tool}.calls"));
            fs::metadata(path).map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX))
        };
        Calls(TOOLS.iter().map(|tool| (*tool, length(tool))).collect())
    }
}

impl Calls {
    /// What came after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self(self.0.iter().zip(&before.0).map(|((tool, now), (_, then))| (*tool, now - then)).collect())
    }

    pub(crate) fn all(&self) -> usize {
        self.0.iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn of(&self, tool: &str) -> usize {
        self.0.iter().filter(|(name, _)| *name == tool).map(|(_, count)| count).sum()
    }

    /// As in `3 condor_submit, 1 condor_q`.
    pub(crate) fn words(&self) -> String {
        let words: Vec<String> =
            self.0.iter().filter(|(_, count)| *count > 0).map(|(tool, count)| format!("{count} {tool}")).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(", ") }
    }
}

/// One submission of the operator's, as a mould for submissions by hand.
#[derive(Debug)]
pub(crate) struct Mould {
    /// All lines before the first row.
    head: String,
    /// The names of a row's columns.
    columns: Vec<String>,
    row: Vec<String>,
    /// All lines after the last row.
    tail: String,
    /// Folder with the files of its jobs.
    pub(crate) sandbox: PathBuf,
    /// Where the operator has its files.
    data: PathBuf,
}

const UID: &str = "htc_uid";
const INDEX: &str = "htc_index";
const OUTPUT: &str = "htc_output";

impl Mould {
    /// From what the operator wrote for one job, with its files in `data`.
    pub(crate) fn of(description: &str, data: &Path) -> Result<Self> {
        let odd = |what: &str| {
            Error::Unexpected(format!(
                "the operator's submit description is another than this measurement knows ({what}): change tests/bench/src/tools.rs\n{description}"
            ))
        };
        let (head, rest) = description.split_once(" from (\n").ok_or_else(|| odd("no `queue … from (`"))?;
        let (rows, end) = rest.split_once("\n)").ok_or_else(|| odd("no end of the rows"))?;
        let row: Vec<String> =
            rows.lines().next().unwrap_or_default().split(',').map(|word| word.trim().to_owned()).collect();
        let (lines, columns) = head.rsplit_once("queue ").ok_or_else(|| odd("no columns"))?;
        let columns: Vec<String> = columns.split(',').map(|word| word.trim().to_owned()).collect();
        if columns.len() != row.len() {
            return Err(odd("the columns do not fit the row"));
        }
        let mut new = String::new();
        let (mut dated, mut named) = (false, false);
        for line in lines.lines() {
            // Far away, so that no job comes too late; and no job of the operator's.
            if line.starts_with("MY.HTCNotAfter") {
                dated = true;
                new.push_str("MY.HTCNotAfter = 9999999999\n");
            } else if line.starts_with("MY.HTCOperator") {
                named = true;
                new.push_str("MY.HTCOperator = \"nobody\"\n");
            } else {
                new.push_str(line);
                new.push('\n');
            }
        }
        let place = |name: &str| columns.iter().position(|column| column == name);
        let (Some(uid), Some(_), Some(_)) = (place(UID), place(INDEX), place(OUTPUT)) else {
            return Err(odd("columns have other names"));
        };
        if !dated || !named {
            return Err(odd("no HTCNotAfter or no HTCOperator"));
        }
        let sandbox = data.join("sandbox").join(&row[uid]);
        let head = format!("{new}queue {} from (\n", columns.join(","));
        Ok(Self { head, columns, row, tail: format!("\n){end}"), sandbox, data: data.to_owned() })
    }

    fn column(&self, name: &str) -> &str {
        self.columns.iter().zip(&self.row).find(|(column, _)| *column == name).map_or("", |(_, value)| value)
    }

    /// The row of one job, with its files below `folder`; and its folder for output.
    pub(crate) fn job(&self, uid: &str, index: u32, folder: &Path) -> (String, PathBuf) {
        let old = self.column(UID);
        let (old8, new8) = (old.get(..8).unwrap_or(old), uid.get(..8).unwrap_or(uid));
        let moved = |text: &str| {
            text.replace(&*self.data.to_string_lossy(), &folder.to_string_lossy()).replace(old, uid).replace(old8, new8)
        };
        let mut output = PathBuf::new();
        let words: Vec<String> = self
            .columns
            .iter()
            .zip(&self.row)
            .map(|(column, value)| match column.as_str() {
                INDEX => index.to_string(),
                OUTPUT => {
                    output = Path::new(&moved(value)).with_file_name(index.to_string());
                    output.display().to_string()
                }
                _ => moved(value),
            })
            .collect();
        (words.join(","), output)
    }

    /// The whole description.
    pub(crate) fn description(&self, rows: &[String]) -> String {
        format!("{}{}{}", self.head, rows.join("\n"), self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submission_is_copied_for_another_htcjob() {
        let text = "a = b\nMY.HTCOperator = \"o\"\nMY.HTCNotAfter = 7\nqueue htc_uid,htc_index,htc_sandbox,htc_output from (\n\
                    12345678-9,0,/d/sandbox/12345678-9,/d/htc_out/n/x/12345678/0\n)\n";
        let mould = Mould::of(text, Path::new("/d")).unwrap();
        let (row, output) = mould.job("0000000a-raw", 3, Path::new("/r"));
        assert_eq!(row, "0000000a-raw,3,/r/sandbox/0000000a-raw,/r/htc_out/n/x/0000000a/3");
        assert_eq!(output, Path::new("/r/htc_out/n/x/0000000a/3"));
        assert_eq!(mould.sandbox, Path::new("/d/sandbox/12345678-9"));
        let text = mould.description(&[row.clone(), row]);
        assert!(
            text.starts_with("a = b\nMY.HTCOperator = \"nobody\"\nMY.HTCNotAfter = 9999999999\nqueue htc_uid,"),
            "{text}"
        );
        assert!(text.ends_with("/3\n)\n"), "{text}");
        assert!(Mould::of("queue 1", Path::new("/d")).is_err());
    }
}
