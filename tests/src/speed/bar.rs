//! The progress of a long step, on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Steps of a wait.
const STEPS: usize = 100;

/// A progress bar that disappears on drop; a line if standard error is no terminal.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A step that consists of `steps` equal ones.
    #[must_use]
    pub fn of(steps: usize, what: &str) -> Self {
        Self::styled(
            ProgressBar::new(steps as u64),
            "{bar:32} {pos}/{len} {msg} {eta:>4}",
            what,
        )
    }

    /// A step of unknown duration.
    #[must_use]
    pub fn spinner(what: &str) -> Self {
        Self::styled(
            ProgressBar::new_spinner(),
            "{spinner} {wide_msg} {elapsed:>4}",
            what,
        )
    }

    fn styled(bar: ProgressBar, template: &str, what: &str) -> Self {
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if bar.is_hidden() {
            eprintln!("{what}");
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Sleeps and displays the progress.
    pub async fn wait(time: Duration, what: &str) {
        let bar = Self::of(STEPS, what);
        for _ in 0..STEPS {
            tokio::time::sleep(time / STEPS as u32).await;
            bar.step();
        }
    }

    /// One of the equal steps is done.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
