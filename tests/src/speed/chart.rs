//! Cost against size, as SVG. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::verdict::{Judged, number};

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 20.0;

/// One place on a chart: a size, Runnel's cost, the bare program's.
type ChartPoint = (f64, f64, Option<f64>);

/// A chart below the other for each line that was measured at two sizes or more; `None` where there is none.
#[must_use]
pub fn chart(judged: &[Judged]) -> Option<String> {
    let mut lines: BTreeMap<(u8, &str), (String, Vec<ChartPoint>)> = BTreeMap::new();
    for Judged { row, line, found } in judged {
        let Ok(reading) = found else { continue };
        let title = format!("row {}: {}, {}", row, line.what, line.unit);
        let (_, points) = lines
            .entry((*row, reading.what))
            .or_insert_with(|| (title, Vec::new()));
        points.push((reading.size, reading.runnel, reading.bare));
    }
    lines.retain(|_, (_, points)| points.len() > 1);
    if lines.is_empty() {
        return None;
    }
    let height = HEIGHT * lines.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (place, (title, points)) in lines.values_mut().enumerate() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        one(&mut svg, HEIGHT * place as f64, title, points);
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

fn one(svg: &mut String, offset: f64, title: &str, points: &[ChartPoint]) {
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
    let widest = most(&mut points.iter().map(|point| point.0));
    let highest = most(
        &mut points
            .iter()
            .flat_map(|point| [Some(point.1), point.2])
            .flatten(),
    );
    let (floor, ceiling) = (offset + HEIGHT - BOTTOM, offset + TOP);
    let x = |size: f64| LEFT + size / widest * (WIDTH - LEFT - RIGHT);
    let y = |cost: f64| floor - cost / highest * (floor - ceiling);
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" font-size=\"13\">{}</text>",
        offset + 20.0,
        escaped(title)
    );
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {ceiling}V{floor}H{}\" fill=\"none\" stroke=\"#888\"/>",
        WIDTH - RIGHT
    );
    for (size, cost, bare) in points {
        let (at, below) = (x(*size), floor + 16.0);
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>",
            number(*size)
        );
        for cost in [Some(*cost), *bare].into_iter().flatten() {
            let (left, high) = (LEFT - 6.0, y(cost) + 4.0);
            let _ = writeln!(
                svg,
                "<text x=\"{left}\" y=\"{high:.1}\" text-anchor=\"end\">{}</text>",
                number(cost)
            );
        }
    }
    let runnel: Vec<(f64, f64)> = points
        .iter()
        .map(|point| (x(point.0), y(point.1)))
        .collect();
    let bare: Vec<(f64, f64)> = points
        .iter()
        .filter_map(|point| Some((x(point.0), y(point.2?))))
        .collect();
    curve(svg, &runnel, "#0a6", "Runnel");
    curve(svg, &bare, "#888", "bare");
}

fn curve(svg: &mut String, places: &[(f64, f64)], color: &str, name: &str) {
    let Some((x, y)) = places.last() else { return };
    let steps: Vec<String> = places
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{color}\">{name}</text>",
        steps.join(" "),
        x,
        y - 6.0
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::verdict::{Metric, Reading};
    use super::*;

    fn judged(row: u8, size: f64, runnel: f64, bare: Option<f64>) -> Judged {
        let line = Metric {
            what: "edit -> last ack",
            unit: "ms",
            gate: None,
            aim: None,
        };
        let reading = Reading {
            row,
            what: line.what,
            size,
            at: number(size),
            runnel,
            bare,
            samples: Default::default(),
        };
        Judged {
            row,
            line,
            found: Ok(reading),
        }
    }

    #[test]
    fn only_what_was_measured_at_several_sizes_is_drawn() {
        assert_eq!(
            chart(&[
                judged(4, 1000.0, 30.0, Some(20.0)),
                judged(8, 5.0, 1.0, None)
            ]),
            None
        );
        let both = [
            judged(4, 10_000.0, 300.0, Some(200.0)),
            judged(4, 1000.0, 30.0, None),
            judged(8, 5.0, 1.0, None),
        ];
        let svg = chart(&both).unwrap_or_default();
        assert!(
            svg.contains("row 4: edit -&gt; last ack, ms") && !svg.contains("row 8"),
            "{svg}"
        );
        // From the left to the right, independent of the order of the measurements; the bare one
        // has one point.
        assert!(
            svg.contains("points=\"109.0,202.0 460.0,40.0\" fill=\"none\" stroke=\"#0a6\""),
            "{svg}"
        );
        assert!(
            svg.contains("points=\"460.0,100.0\" fill=\"none\" stroke=\"#888\""),
            "{svg}"
        );
    }
}
