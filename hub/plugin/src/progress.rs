//! Progress output: one line that changes on a terminal, otherwise a line per change.
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::note;
use super::wrap::on_one_line;

const TICK: Duration = Duration::from_millis(120);

/// A wait that is shown on standard error.
pub struct Progress {
    bar: ProgressBar,
    shown: bool,
    last: String,
    begin: Instant,
}

impl Progress {
    /// Begins to wait for `what`.
    pub fn start(what: &str) -> Self {
        let shown = std::io::stderr().is_terminal();
        let bar = if shown {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed:>4}") {
            bar.set_style(style);
        }
        let mut progress = Self {
            bar,
            shown,
            last: String::new(),
            begin: Instant::now(),
        };
        if shown {
            progress.bar.enable_steady_tick(TICK);
        }
        progress.set_text(what);
        progress
    }

    /// Shows the current state.
    pub fn set_text(&mut self, text: &str) {
        if self.last == text {
            return;
        }
        self.last = text.to_owned();
        self.bar.set_message(on_one_line(text));
        if !self.shown {
            note(text);
        }
    }

    /// Returns the elapsed time.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Ends the line.
    pub fn end(self) {
        self.bar.finish_and_clear();
    }
}

/// Whether standard output may have colors.
pub fn colors() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    std::io::stdout().is_terminal() && !refused && !dumb
}
