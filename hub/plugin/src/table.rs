//! Tables as kubectl prints them, ages, and colors.
use comfy_table::Color;
use jiff::Timestamp;

use super::wrap::on_one_line;

/// The blanks between two columns, as kubectl prints them.
const GAP: u16 = 3;

/// The meaning of a cell; shown as a color on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Neutral.
    #[default]
    Plain,
    /// The desired state.
    Good,
    /// A warning.
    Odd,
    /// Wrong.
    Bad,
}

impl Tone {
    /// Returns the tone of a condition's status.
    pub fn of_status(status: &str) -> Self {
        match status {
            "True" => Tone::Good,
            "False" => Tone::Bad,
            _ => Tone::Odd,
        }
    }

    /// `text` in the color of this tone, if there are colors.
    pub fn paint(self, text: &str, colours: bool) -> String {
        let code = match self {
            Tone::Plain => return text.to_owned(),
            Tone::Bad => 1,
            Tone::Good => 2,
            Tone::Odd => 3,
        };
        // The escape sequences that a table has for the colors of `color`.
        if colours {
            format!("\u{1b}[38;5;{code}m{text}\u{1b}[39m")
        } else {
            text.to_owned()
        }
    }

    fn color(self) -> Option<Color> {
        match self {
            Tone::Plain => None,
            Tone::Bad => Some(Color::DarkRed),
            Tone::Good => Some(Color::DarkGreen),
            Tone::Odd => Some(Color::DarkYellow),
        }
    }
}

/// A cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// Creates a cell with a tone.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: on_one_line(&text.into()),
            tone,
        }
    }

    fn shown(&self) -> comfy_table::Cell {
        let cell = comfy_table::Cell::new(if self.text.is_empty() {
            "<none>"
        } else {
            &self.text
        });
        match self.tone.color() {
            Some(color) => cell.fg(color),
            None => cell,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: on_one_line(&text.into()),
            tone: Tone::Plain,
        }
    }
}

/// Rows under a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table.
    pub fn new(header: &[&'static str]) -> Self {
        Self {
            header: header.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text; an empty cell is `<none>`, as kubectl has it.
    pub fn text(&self, colours: bool) -> String {
        let mut table = comfy_table::Table::new();
        table
            .load_style(comfy_table::presets::NOTHING)
            .force_no_tty()
            .set_header(&self.header);
        table.style_text_only();
        if colours {
            table.enforce_styling();
        }
        table.add_rows(
            self.rows
                .iter()
                .map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>()),
        );
        for column in table.column_iter_mut() {
            column.set_padding((0, GAP));
        }
        table.trim_fmt() + "\n"
    }
}

/// How long ago `then` was, as kubectl writes it: `4s`, `5m10s`, `3h`, `2d`.
pub fn age(then: Option<Timestamp>, now: Timestamp) -> String {
    let Some(then) = then else {
        return "<unknown>".to_owned();
    };
    span(now.as_second().saturating_sub(then.as_second()).max(0))
}

/// A number of seconds, in the words of [`age`].
pub fn span(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["NAME", "READY", "AGE"]);
        table.row(vec![
            "a-long-name".into(),
            Cell::toned("True", Tone::Good),
            "4s".into(),
        ]);
        table.row(vec!["b".into(), Cell::toned("", Tone::Bad), "2d".into()]);
        let golden =
            "NAME          READY    AGE\na-long-name   True     4s\nb             <none>   2d\n";
        assert_eq!(table.text(false), golden);
        let coloured = table.text(true);
        assert!(
            coloured.contains("\u{1b}[38;5;2mTrue\u{1b}[39m     4s"),
            "{coloured:?}"
        );
        assert!(
            coloured.contains("\u{1b}[38;5;1m<none>\u{1b}[39m   2d"),
            "{coloured:?}"
        );
    }

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        let message: Vec<String> = [
            0, 119, 120, 310, 599, 600, 7199, 10_800, 11_100, 90_000, 180_000, 864_000,
        ]
        .into_iter()
        .map(span)
        .collect();
        assert_eq!(
            message,
            [
                "0s", "119s", "2m", "5m10s", "9m59s", "10m", "119m", "3h", "3h5m", "25h", "2d2h",
                "10d"
            ]
        );
        let now = Timestamp::from_second(100).unwrap();
        assert_eq!(age(Timestamp::from_second(160).ok(), now), "0s");
        assert_eq!(age(None, now), "<unknown>");
    }
}
