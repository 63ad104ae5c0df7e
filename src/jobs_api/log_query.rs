//! Query of a request for a log.

use jiff::Timestamp;

use crate::jobs_api::resource::list::parameters;
use crate::jobs_api::resource::status_error::StatusError;
use htcondor::tail::Stream;

/// Query of a request for a log; the parameters are those of `kubectl logs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogQuery {
    pub(super) stream: Stream,
    pub(super) follow: bool,
    /// Number of last lines to send.
    pub(super) tail_lines: Option<usize>,
    /// Maximum number of bytes.
    pub(super) limit_bytes: Option<u64>,
    /// First byte of the file to send.
    pub(super) offset: u64,
    /// Start time of the run: only this one is sent.
    pub(super) run: Option<Timestamp>,
    /// Time of the line from which the offset is counted.
    pub(super) first_line: Option<Timestamp>,
}

impl LogQuery {
    /// Parses a query.
    pub(super) fn parse(query: &str) -> Result<Self, StatusError> {
        let mut wanted = Self::default();
        for (name, value) in parameters(query)? {
            let wrong = || StatusError::wrong_parameter(&name, &value);
            match name.as_str() {
                "stream" => {
                    wanted.stream = match value.as_str() {
                        "out" => Stream::Out,
                        "err" => Stream::Err,
                        _ => return Err(wrong()),
                    }
                }
                "follow" => wanted.follow = value.parse().map_err(|_| wrong())?,
                "tailLines" => wanted.tail_lines = Some(value.parse().map_err(|_| wrong())?),
                "limitBytes" => wanted.limit_bytes = Some(value.parse().map_err(|_| wrong())?),
                "offset" => wanted.offset = value.parse().map_err(|_| wrong())?,
                "run" => wanted.run = Some(value.parse().map_err(|_| wrong())?),
                "firstLine" => wanted.first_line = Some(value.parse().map_err(|_| wrong())?),
                "pretty" | "timeout" => {}
                _ => return Err(StatusError::unknown_parameter(&name)),
            }
        }
        if wanted.tail_lines.is_some() && wanted.offset > 0 {
            return Err(StatusError::bad_request("tailLines and offset exclude each other"));
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_log_parameters_are_refused() {
        let run = LogQuery::parse("run=2026-01-02T03:04:05Z").unwrap().run.unwrap();
        assert_eq!(run.to_string(), "2026-01-02T03:04:05Z", "the run of the answer's header can be requested");
        let wanted = LogQuery::parse("stream=err&follow=true&tailLines=5&limitBytes=10").unwrap();
        assert_eq!((wanted.stream, wanted.follow, wanted.tail_lines), (Stream::Err, true, Some(5)));
        for query in [
            "stream=log",
            "follow=maybe",
            "tail=5",
            "tailLines=-1",
            "offset=5&tailLines=1",
            "offset=1&offset=2",
            "run=5",
            "firstLine=1",
        ] {
            assert_eq!(LogQuery::parse(query).map_err(|failure| failure.code), Err(400), "{query}");
        }
    }
}
