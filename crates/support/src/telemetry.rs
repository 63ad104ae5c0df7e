//! Log lines, as text or as JSON. SIGHUP switches additional lines on and off.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, registry, reload};

/// Filter that SIGHUP adds to the usual one.
const MORE: &str = "htc=debug";

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Log of this process.
#[derive(Debug)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    /// Filter with which the log was started.
    usual: String,
    shows_more: bool,
}

/// Starts logging to standard error. `filter` is that of `tracing`, for example `info` or `htc=debug`.
pub fn start(format: LogFormat, filter: &str) -> Result<Log, Box<dyn std::error::Error + Send + Sync>> {
    let (layer, log) = Log::new(filter)?;
    // Errors of writing the log are not logged, because they would go to the same place.
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

    /// Toggles the additional log lines at each SIGHUP. The signal then no longer ends the process.
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
                tracing::info!(%filter, "log filter changed by SIGHUP");
            }
            Err(error) => tracing::warn!(%error, %filter, "log filter not changed by SIGHUP"),
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
    fn log_level_is_raised_and_lowered_again() {
        let (layer, mut log) = Log::new("warn,htc=info").unwrap();
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
        assert!(text.contains("warn,htc=info,htc=debug"), "{text}");
    }
}
