//! Gets Kerberos tickets with `kinit`.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use htc_machine::text::{MAX_MESSAGE, sanitize};
use htcondor::FileAccess;
use htcondor::tools::{ToolError, ToolInvocation, ToolOutput, Tools};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::material::Kerberos;
use crate::backends::condor::credentials::private_folder as private;

/// Timeout for the KDC. MIT's libraries take about as long to retry each of several KDCs.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum size of the tools' output, in bytes.
const ANSWER: usize = 64 * 1024;

/// Reason why there is no new ticket.
#[derive(Debug, thiserror::Error)]
pub(super) enum TicketError {
    /// The last line of the tool's message.
    #[error("{0}")]
    Refused(String),
    #[error("cannot start {tool}: {message}; it is in Debian's package krb5-user")]
    NotInstalled { tool: &'static str, message: String },
    /// The tool was not started, or was killed.
    #[error(transparent)]
    Tool(ToolError),
    #[error("{0}; can a KDC be reached?")]
    NoAnswer(#[source] ToolError),
    #[error("klist shows no ticket-granting ticket")]
    NotShown,
    #[error("cannot write {what}: {source}")]
    Write { what: &'static str, source: io::Error },
}

/// Gets a ticket into `folder/ccache`. Returns its end, in Unix seconds.
pub(super) async fn get(tools: &Tools, folder: &Path, kerberos: &Kerberos) -> Result<i64, TicketError> {
    let (cache, new, keytab) = (folder.join("ccache"), folder.join("ccache.new"), folder.join("keytab"));
    let (name, file) = (format!("FILE:{}", new.display()), format!("FILE:{}", keytab.display()));
    let _ = fs::remove_file(&new);
    let result = match kerberos {
        Kerberos::Password { user, password } => {
            kinit(tools, folder, &["-c", &name, user], [password.as_slice(), b"\n"].concat()).await
        }
        Kerberos::Keytab { user, keytab: contents } => {
            private::write(&keytab, contents)
                .map_err(|source| TicketError::Write { what: "the keytab's copy", source })?;
            let result = kinit(tools, folder, &["-k", "-t", &file, "-c", &name, user], Vec::new()).await;
            let _ = fs::remove_file(&keytab);
            result
        }
    };
    result?;
    let ends = ends(tools, folder, &name).await?;
    fs::rename(&new, &cache).map_err(|source| TicketError::Write { what: "the ticket", source })?;
    Ok(ends)
}

async fn kinit(tools: &Tools, folder: &Path, arguments: &[&str], input: Vec<u8>) -> Result<(), TicketError> {
    let limit = LIMIT.min(tools.limit);
    let (arguments, writes) = (arguments.to_vec(), [folder.to_owned()]);
    let touches = FileAccess { writes: &writes, ..FileAccess::default() };
    let most_bytes = ANSWER;
    let call = ToolInvocation {
        tool: "kinit",
        arguments,
        input,
        limit,
        max_output: most_bytes,
        outlives_operator: false,
        inherited_lock: None,
        access: touches,
    };
    said(tools.call(call).await).map(drop)
}

/// Returns the output of a successful tool.
fn said(result: Result<ToolOutput, ToolError>) -> Result<ToolOutput, TicketError> {
    match result {
        Ok(output) if output.status == Some(0) => Ok(output),
        // The last line: the lines before it are the prompt for the password.
        Ok(output) => {
            let line = output.stderr.lines().last().unwrap_or("kinit failed and does not say why");
            Err(TicketError::Refused(sanitize(line.trim(), MAX_MESSAGE)))
        }
        Err(ToolError::NotStarted { tool, message, missing: true }) => Err(TicketError::NotInstalled { tool, message }),
        Err(error @ (ToolError::NotStarted { .. } | ToolError::Killed { .. })) => Err(TicketError::Tool(error)),
        Err(error) => Err(TicketError::NoAnswer(error)),
    }
}

/// Returns the end of the ticket-granting ticket in a cache.
async fn ends(tools: &Tools, folder: &Path, cache: &str) -> Result<i64, TicketError> {
    let mut tools = tools.clone();
    tools.environment.retain(|(name, _)| name != "TZ");
    tools.environment.push(("TZ".to_owned(), "UTC0".to_owned()));
    let (arguments, reads, limit) = (vec!["-c", cache], [folder.to_owned()], tools.limit);
    let touches = FileAccess { reads: &reads, ..FileAccess::default() };
    let (input, most_bytes) = (Vec::new(), ANSWER);
    let call = ToolInvocation {
        tool: "klist",
        arguments,
        input,
        limit,
        max_output: most_bytes,
        outlives_operator: false,
        inherited_lock: None,
        access: touches,
    };
    let output = said(tools.call(call).await)?;
    let text = String::from_utf8_lossy(&output.stdout);
    last_end(&text).ok_or(TicketError::NotShown)
}

/// Parses the output of `klist`, which prints a ticket as `Valid starting`, `Expires`, `Service principal`: `11/21/26
/// 16:00:00  11/22/26 02:00:00  krbtgt/…`.
fn last_end(text: &str) -> Option<i64> {
    let line = text.lines().find(|line| line.contains("krbtgt/"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let (date, time) = (words.get(2)?, words.get(3)?);
    let format = if date.len() == "11/22/26".len() { "%m/%d/%y %H:%M:%S" } else { "%m/%d/%Y %H:%M:%S" };
    let moment = DateTime::strptime(format, format!("{date} {time}")).ok()?;
    moment.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_expiry_is_parsed_with_two_and_four_digit_years() {
        let text = |years: [&str; 2]| {
            format!(
                "Ticket cache: FILE:/tmp/x\nDefault principal: alice@TEST\n\nValid starting     Expires            Service principal\n\
                 11/21/{} 16:00:00  11/22/{} 02:00:05  krbtgt/TEST@TEST\n\trenew until 11/23/26 16:00:00\n",
                years[0], years[1]
            )
        };
        assert_eq!(last_end(&text(["26", "26"])), Some(1_795_312_805));
        assert_eq!(last_end(&text(["2026", "2026"])), Some(1_795_312_805));
        assert_eq!(last_end("no ticket"), None);
    }
}
