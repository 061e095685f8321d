//! Logs: one line an event, to stderr, safe to show in a terminal.
use std::fmt;
use std::io::{self, Write};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// The environment variable that filters logs, such as `info` or `info,runnel_hub=debug`.
pub const LOG_FILTER: &str = "RUNNEL_LOG";

/// The keys of a JSON log line of Runnel (its `target` begins with `runnel`), each with its
/// meaning. The list only grows, so that alerts and searches keep working. Libraries have keys of
/// their own.
pub const LOG_KEYS: &[(&str, &str)] = &[
    (
        "acked",
        "how many intents of a rule an agent has acknowledged",
    ),
    ("address", "host:port of another process"),
    ("agent", "version of an agent"),
    ("announced", "how many intents the hub announced"),
    ("ca", "fingerprint of a CA's certificate"),
    ("cluster", "name of a member cluster"),
    ("copies", "a number of copies"),
    ("copy", "a copy, as resource/namespace/name"),
    ("count", "number of occurrences"),
    ("drift", "whether a write corrects drift"),
    ("epoch", "uid of the Lease under which a hub leads"),
    (
        "error",
        "the text of a library or the system about a failure",
    ),
    ("file", "a file"),
    ("hub", "id or address of a hub"),
    ("intents", "a number of intents"),
    ("key", "fingerprint of a public key"),
    ("leader", "name of the replica that leads"),
    ("level", "ERROR, WARN, INFO, DEBUG or TRACE; in every line"),
    ("listen", "where agents connect to"),
    ("message", "a sentence; in every line"),
    ("name", "name of an object on the hub"),
    ("namespace", "a namespace"),
    ("ops", "where health, readiness and metrics are served"),
    ("peer", "address of the other end of a connection"),
    ("reason", "a value of a closed list, as in a status"),
    ("reconnect_in", "when an agent connects again, as planned"),
    ("resource", "a kind, as plural[.group]"),
    ("retry_in", "time until the next retry"),
    (
        "rule",
        "a rule, as namespace/name, or its uid where no more is known",
    ),
    ("rules", "a number of rules"),
    ("scope", "a kind in a namespace of the hub, or in all"),
    ("secret", "name of a Secret of Runnel's own"),
    ("signal", "name of a signal"),
    (
        "skipped",
        "how many lines about the same thing were left out before",
    ),
    ("source", "a source, as resource/namespace/name"),
    (
        "span",
        "what the line is part of: `name` is session, watch, write or copy; the other keys are of this list",
    ),
    (
        "status",
        "HTTP status of an API server's answer, 0 for none",
    ),
    ("target", "the part of the program; in every line"),
    (
        "term",
        "how many times the lead has changed within an epoch",
    ),
    ("timestamp", "when, in RFC 3339; in every line"),
    ("token", "id of a join token, which is no secret"),
    ("verb", "what was to be done, as in RBAC"),
    ("version", "an API version of a kind"),
    ("waited", "duration of the wait"),
    ("wave", "number of a wave of a rollout"),
    ("why", "a sentence about a failure"),
    ("wrote", "result of a write"),
];

/// Modules of libraries that log whole bodies of requests or answers, including Secrets, or what the programs log
/// themselves. They are disabled at every level.
const QUIET: &[&str] = &[
    "kube_client::client=off",
    "kube_runtime::watcher=error",
    "h2=info",
    "hyper=info",
    "tower=info",
];

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, its time in RFC 3339.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Why logs cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A directive of the filter is not a level.
    #[error(
        "{LOG_FILTER}: `{0}` is not a log level: write off, error, warn, info, debug or trace, or such as \
         `info,runnel_hub=debug`"
    )]
    Level(String),
    /// The filter is none.
    #[error(
        "{LOG_FILTER} is not a log filter ({0}): write a level such as `info`, or `info,runnel_hub=debug`"
    )]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Logging was started before.
    #[error("logs are already set up: {0}")]
    Twice(#[from] TryInitError),
}

/// Starts logging, once in a process. Without a level in `RUNNEL_LOG` it is `info`.
///
/// # Errors
/// [`LogError`], when the filter is unreadable or logging has started already.
pub fn init_logs(format: LogFormat) -> Result<(), LogError> {
    let filter = log_filter(std::env::var(LOG_FILTER).unwrap_or_default().trim())?;
    let filter = QUIET
        .iter()
        .filter_map(|quiet| quiet.parse().ok())
        .fold(filter, EnvFilter::add_directive);
    subscriber(format, filter, || Escaped(io::stderr())).try_init()?;
    Ok(())
}

/// Levels, in any case of letters.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Parses a log filter; an empty one is `info`. A word that is not a level is refused: it would be
/// parsed as a target, and disable all others.
///
/// # Errors
/// [`LogError`], with that word.
pub fn log_filter(text: &str) -> Result<EnvFilter, LogError> {
    if text.is_empty() {
        return Ok(EnvFilter::new("info"));
    }
    // Filters by span are passed through.
    let words = text.split(',').filter(|_| !text.contains('['));
    let levels = words.map(|word| word.rsplit('=').next().unwrap_or(word).trim());
    if let Some(wrong) = levels
        .into_iter()
        .find(|level| !LEVELS.contains(&level.to_ascii_lowercase().as_str()))
    {
        return Err(LogError::Level(wrong.to_owned()));
    }
    // The parser does not accept white space.
    Ok(EnvFilter::try_new(
        text.split_whitespace().collect::<String>(),
    )?)
}

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(writer);
    let base = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => Box::new(base.with(lines)),
        LogFormat::Json => {
            Box::new(base.with(lines.json().flatten_event(true).with_span_list(false)))
        }
    }
}

/// Writes a line with its control characters made visible, so that no text can forge a line or move a cursor.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_all(line)?;
        Ok(line.len())
    }

    /// The whole line arrives in one call, and leaves in one.
    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let (text, end) = match line.strip_suffix(b"\n") {
            Some(text) => (text, "\n"),
            None => (line, ""),
        };
        let text = String::from_utf8_lossy(text);
        let mut safe = String::with_capacity(text.len() + end.len());
        for c in text.chars() {
            match c {
                '\n' => safe.push_str("\\n"),
                '\t' => safe.push_str("\\t"),
                // Every control character fits four digits; the form is right in JSON too.
                c if c.is_control() => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => safe.push(c),
            }
        }
        safe.push_str(end);
        self.0.write_all(safe.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat) -> String {
        let kept = LogBuffer::default();
        let writer = kept.clone();
        let subscriber = subscriber(format, EnvFilter::new("info"), move || {
            Escaped(writer.clone())
        });
        tracing::subscriber::with_default(subscriber, || {
            let _in_session = tracing::info_span!("session", cluster = "eu-1").entered();
            tracing::info!(name = "a\u{1b}[2Jb", "one\nline \u{9b}31m");
            tracing::debug!("unseen");
        });
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_text_line_stays_one_line_without_control_characters() {
        let text = logged(LogFormat::Text);
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
        assert!(!text.trim_end().chars().any(char::is_control), "{text:?}");
        assert!(text.contains("one\\nline"), "{text:?}");
    }

    #[test]
    fn a_json_line_is_json_with_a_time() {
        let line: serde_json::Value = serde_json::from_str(&logged(LogFormat::Json)).unwrap();
        assert!(line["message"].as_str().unwrap().starts_with("one\nline"));
        assert_eq!(line["level"], "INFO");
        assert_eq!(
            line["span"],
            serde_json::json!({"name": "session", "cluster": "eu-1"})
        );
        let time = line["timestamp"].as_str().unwrap();
        assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
    }

    #[test]
    fn unknown_log_level_is_refused_by_name() {
        for text in [
            "",
            "info",
            "WARN",
            "off",
            "info,runnel_hub=debug",
            "runnel_hub::server=trace, h2=off",
        ] {
            assert!(log_filter(text).is_ok(), "{text}");
        }
        for (text, wrong) in [
            ("verbose", "verbose"),
            ("info,runnel_hub", "runnel_hub"),
            ("h2=loud", "loud"),
            (",", ""),
        ] {
            let error = log_filter(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{wrong}` is not a log level")) && error.contains("info"),
                "{error}"
            );
        }
    }

    #[test]
    fn formats_are_called_as_on_the_command_line() {
        for format in LogFormat::value_variants() {
            assert_eq!(LogFormat::from_str(&format.to_string(), false), Ok(*format));
        }
    }
}
