//! Tables as kubectl prints them, and colors.
use comfy_table::{Color, ColumnConstraint, Width};

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
    Warning,
    /// Wrong.
    Bad,
}

impl Tone {
    /// Returns the tone of a condition's status.
    pub fn of_status(status: &str) -> Self {
        match status {
            "True" => Tone::Good,
            "False" => Tone::Bad,
            _ => Tone::Warning,
        }
    }

    /// `text` in the color of this tone, if there are colors.
    pub fn paint(self, text: &str, colors: bool) -> String {
        let code = match self {
            Tone::Plain => return text.to_owned(),
            Tone::Bad => 1,
            Tone::Good => 2,
            Tone::Warning => 3,
        };
        // The escape sequences that a table has for the colors of `color`.
        if colors {
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
            Tone::Warning => Some(Color::DarkYellow),
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

    fn to_cell(&self) -> comfy_table::Cell {
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
    headless: bool,
}

/// The widths of the columns of tables that continue each other.
#[derive(Clone, Debug, Default)]
pub struct Widths(Vec<u16>);

impl Table {
    /// An empty table.
    pub fn new(header: &[&'static str]) -> Self {
        Self {
            header: header.to_vec(),
            ..Self::default()
        }
    }

    /// Whether the header is printed.
    #[must_use]
    pub fn headed(mut self, headed: bool) -> Self {
        self.headless = !headed;
        self
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
    pub fn text(&self, colors: bool) -> String {
        self.built(colors).trim_fmt() + "\n"
    }

    /// The table as text that continues the tables before it: a column is as wide as there.
    pub fn continued(&self, widths: &mut Widths, colors: bool) -> String {
        let mut table = self.built(colors);
        let own = table.column_max_content_widths();
        widths.0.resize(own.len(), 0);
        for ((column, known), own) in table.column_iter_mut().zip(&mut widths.0).zip(own) {
            *known = own.max(*known);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(*known + GAP)));
        }
        table.trim_fmt() + "\n"
    }

    fn built(&self, colors: bool) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table
            .load_style(comfy_table::presets::NOTHING)
            .force_no_tty();
        if !self.headless {
            table.set_header(&self.header);
        }
        table.style_text_only();
        if colors {
            table.enforce_styling();
        }
        table.add_rows(
            self.rows
                .iter()
                .map(|row| row.iter().map(Cell::to_cell).collect::<Vec<_>>()),
        );
        for column in table.column_iter_mut() {
            column.set_padding((0, GAP));
        }
        table
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
        let headless = table.clone().headed(false).text(false);
        assert_eq!(
            headless,
            "a-long-name   True     4s\nb             <none>   2d\n"
        );
        let colored = table.text(true);
        assert!(
            colored.contains("\u{1b}[38;5;2mTrue\u{1b}[39m     4s"),
            "{colored:?}"
        );
        assert!(
            colored.contains("\u{1b}[38;5;1m<none>\u{1b}[39m   2d"),
            "{colored:?}"
        );
    }

    #[test]
    fn columns_continue_those_of_the_table_before() {
        let table = |name: &str, ready: &str| {
            let mut table = Table::new(&["NAME", "READY"]);
            table.row(vec![name.into(), ready.into()]);
            table
        };
        let mut widths = Widths::default();
        let first = table("a-long-name", "True").continued(&mut widths, false);
        assert_eq!(first, "NAME          READY\na-long-name   True\n");
        let second = table("b", "False").headed(false);
        assert_eq!(
            second.continued(&mut widths, false),
            "b             False\n"
        );
    }
}
