//! Tables as kubectl prints them, ages, and colours.
use std::fmt::Write;

use jiff::Timestamp;

use super::wrap::on_one_line;

/// Between two columns, as kubectl has it.
const GAP: usize = 3;

/// How a cell is meant; shown as a colour where the output is a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing to say.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Worth a look.
    Odd,
    /// Wrong.
    Bad,
}

impl Tone {
    /// What a condition's status means.
    pub fn of_status(status: &str) -> Self {
        match status {
            "True" => Tone::Good,
            "False" => Tone::Bad,
            _ => Tone::Odd,
        }
    }

    /// `text` in the colour of this tone, if there are colours.
    pub fn paint(self, text: &str, colours: bool) -> String {
        let code = match self {
            Tone::Plain => return text.to_owned(),
            Tone::Good => 32,
            Tone::Odd => 33,
            Tone::Bad => 31,
        };
        if colours { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell that means something.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: on_one_line(&text.into()), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: on_one_line(&text.into()), tone: Tone::Plain }
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
        Self { header: header.to_vec(), rows: Vec::new() }
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
        let header: Vec<Cell> = self.header.iter().map(|title| Cell::from(*title)).collect();
        let width = |column: usize| {
            let cells = std::iter::once(&header).chain(&self.rows).filter_map(|row| row.get(column));
            cells.map(|cell| shown(&cell.text).chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let mut text = String::new();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let content = shown(&cell.text);
                line += &cell.tone.paint(content, colours);
                if index + 1 < row.len() {
                    line += &" ".repeat(width - content.chars().count() + GAP);
                }
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

fn shown(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

/// How long ago `then` was, as kubectl writes it: `4s`, `5m10s`, `3h`, `2d`.
pub fn age(then: Option<Timestamp>, now: Timestamp) -> String {
    let Some(then) = then else { return "<unknown>".to_owned() };
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
        table.row(vec!["a-long-name".into(), Cell::toned("True", Tone::Good), "4s".into()]);
        table.row(vec!["b".into(), Cell::toned("", Tone::Bad), "2d".into()]);
        let golden = "NAME          READY    AGE\na-long-name   True     4s\nb             <none>   2d\n";
        assert_eq!(table.text(false), golden);
        let coloured = table.text(true);
        assert!(coloured.contains("\u{1b}[32mTrue\u{1b}[0m     4s"), "{coloured:?}");
        assert!(coloured.contains("\u{1b}[31m<none>\u{1b}[0m   2d"), "{coloured:?}");
    }

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        let said: Vec<String> = [0, 119, 120, 310, 599, 600, 7199, 10_800, 11_100, 90_000, 180_000, 864_000]
            .into_iter()
            .map(span)
            .collect();
        assert_eq!(said, ["0s", "119s", "2m", "5m10s", "9m59s", "10m", "119m", "3h", "3h5m", "25h", "2d2h", "10d"]);
        let now = Timestamp::from_second(100).unwrap();
        assert_eq!(age(Timestamp::from_second(160).ok(), now), "0s");
        assert_eq!(age(None, now), "<unknown>");
    }
}
