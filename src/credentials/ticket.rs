//! Kerberos tickets, by `kinit`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::material::Kerberos;
use super::private;
use crate::api::text::{WORDS, harmless};
use crate::condor::Touches;
use crate::condor::tools::{Call, Output, ToolError, Tools};

/// Longest time that a KDC may take. MIT's libraries ask each of several again and again for about as long.
const LIMIT: Duration = Duration::from_secs(30);
/// Most bytes of what they say.
const ANSWER: usize = 64 * 1024;

/// Gets a ticket into `folder/ccache`; when it ends, in unix seconds. The message is in `kinit`'s own words.
pub(super) async fn get(tools: &Tools, folder: &Path, kerberos: &Kerberos) -> Result<i64, String> {
    let (cache, new, keytab) = (folder.join("ccache"), folder.join("ccache.new"), folder.join("keytab"));
    let (name, file) = (format!("FILE:{}", new.display()), format!("FILE:{}", keytab.display()));
    let _ = fs::remove_file(&new);
    let result = match kerberos {
        Kerberos::Password { user, password } => {
            kinit(tools, folder, &["-c", &name, user], [password.as_slice(), b"\n"].concat()).await
        }
        Kerberos::Keytab { user, keytab: contents } => {
            private::write(&keytab, contents).map_err(|error| format!("cannot write the keytab's copy: {error}"))?;
            let result = kinit(tools, folder, &["-k", "-t", &file, "-c", &name, user], Vec::new()).await;
            let _ = fs::remove_file(&keytab);
            result
        }
    };
    result?;
    let ends = ends(tools, folder, &name).await?;
    fs::rename(&new, &cache).map_err(|error| format!("cannot write the ticket: {error}"))?;
    Ok(ends)
}

async fn kinit(tools: &Tools, folder: &Path, arguments: &[&str], input: Vec<u8>) -> Result<(), String> {
    let limit = LIMIT.min(tools.limit);
    let (arguments, writes) = (arguments.to_vec(), [folder.to_owned()]);
    let touches = Touches { writes: &writes, ..Touches::default() };
    let most_bytes = ANSWER;
    let call = Call { tool: "kinit", arguments, input, limit, most_bytes, outlives_us: false, holds: None, touches };
    said(tools.call(call).await).map(drop)
}

/// What the tool said, or its complaint.
fn said(result: Result<Output, ToolError>) -> Result<Output, String> {
    match result {
        Ok(output) if output.status == Some(0) => Ok(output),
        // The last line: before it stands the question for the password.
        Ok(output) => {
            let line = output.stderr.lines().last().unwrap_or("kinit failed and does not say why");
            Err(harmless(line.trim(), WORDS))
        }
        Err(ToolError::NotStarted { tool, message, missing: true }) => {
            Err(format!("cannot start {tool}: {message}; it is in Debian's package krb5-user"))
        }
        Err(error @ (ToolError::NotStarted { .. } | ToolError::Killed { .. })) => Err(error.to_string()),
        Err(error) => Err(format!("{error}; can a KDC be reached?")),
    }
}

/// When the ticket-granting ticket of a cache ends.
async fn ends(tools: &Tools, folder: &Path, cache: &str) -> Result<i64, String> {
    let mut tools = tools.clone();
    tools.environment.retain(|(name, _)| name != "TZ");
    tools.environment.push(("TZ".to_owned(), "UTC0".to_owned()));
    let (arguments, reads, limit) = (vec!["-c", cache], [folder.to_owned()], tools.limit);
    let touches = Touches { reads: &reads, ..Touches::default() };
    let (input, most_bytes) = (Vec::new(), ANSWER);
    let call = Call { tool: "klist", arguments, input, limit, most_bytes, outlives_us: false, holds: None, touches };
    let output = said(tools.call(call).await)?;
    let text = String::from_utf8_lossy(&output.stdout);
    last_end(&text).ok_or_else(|| "klist shows no ticket-granting ticket".to_owned())
}

/// `klist` prints a ticket as `Valid starting`, `Expires`, `Service principal`: `11/21/26 16:00:00  11/22/26 02:00:00  krbtgt/…`.
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
    fn the_end_of_a_ticket_is_read_in_both_ways_of_writing_years() {
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
