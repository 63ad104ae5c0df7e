//! What is wanted of a log.

use jiff::Timestamp;

use crate::condor::tail::Stream;
use crate::procs::answer::Failure;
use crate::procs::list::parameters;

/// What is wanted of a log: words of `kubectl logs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogQuery {
    pub(super) stream: Stream,
    pub(super) follow: bool,
    /// The last so many lines of what there is.
    pub(super) tail_lines: Option<usize>,
    /// At most so many bytes.
    pub(super) limit_bytes: Option<u64>,
    /// From this byte of the file on.
    pub(super) offset: u64,
    /// Of the run that began then, and of no other.
    pub(super) run: Option<Timestamp>,
    /// The line from which the offset is counted was written then.
    pub(super) first_line: Option<Timestamp>,
}

impl LogQuery {
    /// From a query.
    pub(super) fn parse(query: &str) -> Result<Self, Failure> {
        let mut wanted = Self::default();
        for (name, value) in parameters(query)? {
            let wrong = || Failure::wrong_parameter(&name, &value);
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
                _ => return Err(Failure::unknown_parameter(&name)),
            }
        }
        if wanted.tail_lines.is_some() && wanted.offset > 0 {
            return Err(Failure::bad_request("tailLines and offset exclude each other"));
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused() {
        let run = LogQuery::parse("run=2026-01-02T03:04:05Z").unwrap().run.unwrap();
        assert_eq!(run.to_string(), "2026-01-02T03:04:05Z", "what the answer's head says can be asked for");
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
