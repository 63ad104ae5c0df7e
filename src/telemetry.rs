//! Log lines: for people, or as JSON. SIGHUP shows more of them, or no longer.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, registry, reload};

/// What a log shows beside its usual lines when it shows more.
const MORE: &str = "htc_operator=debug";

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The log of this process.
#[derive(Debug)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    /// The filter that it began with.
    usual: String,
    shows_more: bool,
}

/// Begins logging to standard error. `filter` is `tracing`'s, e.g. `info` or `htc_operator=debug`.
pub fn start(format: LogFormat, filter: &str) -> Result<Log, Box<dyn std::error::Error + Send + Sync>> {
    let (layer, log) = Log::new(filter)?;
    // Of what cannot be written nothing more can be said: its words would go to where this could not be written.
    let lines = fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => registry().with(layer).with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(true).with_span_list(false);
            registry().with(layer).with(lines).try_init()
        }
    }?;
    Ok(log)
}

impl Log {
    fn new(filter: &str) -> Result<(reload::Layer<EnvFilter, Registry>, Self), tracing_subscriber::filter::ParseError> {
        let (layer, handle) = reload::Layer::new(EnvFilter::try_new(filter)?);
        Ok((layer, Self { filter: handle, usual: filter.to_owned(), shows_more: false }))
    }

    /// Shows more from the next SIGHUP on, and no longer from the one after that. Such a signal does not end the process any
    /// more.
    pub fn follow_hangups(mut self) -> io::Result<impl Future<Output = ()>> {
        let mut hangups = signal(SignalKind::hangup())?;
        Ok(async move {
            while hangups.recv().await.is_some() {
                self.toggle();
            }
        })
    }

    fn toggle(&mut self) {
        let more = !self.shows_more;
        let filter = if more { format!("{},{MORE}", self.usual) } else { self.usual.clone() };
        let set = EnvFilter::try_new(&filter).map_err(|error| error.to_string());
        match set.and_then(|filter| self.filter.reload(filter).map_err(|error| error.to_string())) {
            Ok(()) => {
                self.shows_more = more;
                tracing::info!(%filter, "SIGHUP: the log shows other lines from now on");
            }
            Err(error) => tracing::warn!(%error, %filter, "SIGHUP: the log cannot show other lines"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn it_shows_more_and_then_no_longer() {
        let (layer, mut log) = Log::new("warn,htc_operator=info").unwrap();
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = registry().with(layer).with(fmt::layer().with_ansi(false).with_writer(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("first");
            log.toggle();
            tracing::debug!("second");
            tracing::debug!(target: "kube", "another's");
            log.toggle();
            tracing::debug!("third");
            tracing::info!("last");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let shown = ["first", "second", "another's", "third", "last"].map(|word| text.contains(word));
        assert_eq!(shown, [false, true, false, false, true], "{text}");
        assert!(text.contains("warn,htc_operator=info,htc_operator=debug"), "{text}");
    }
}
