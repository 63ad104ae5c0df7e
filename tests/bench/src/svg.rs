//! Curves as SVG: lines over two axes that begin at zero.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// The plot's edges.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 350.0;
/// Distinct for those who see colours differently, too (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
/// Most points of one curve.
const POINTS: usize = 300;

/// One picture.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Stands above it.
    pub title: String,
    /// Below the horizontal axis.
    pub x: String,
    /// Beside the vertical axis.
    pub y: String,
    /// Names and points.
    pub curves: Vec<(String, Vec<(f64, f64)>)>,
}

impl Chart {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let most = |axis: fn(&(f64, f64)) -> f64| {
            let all = self.curves.iter().flat_map(|(_, points)| points.iter().map(axis));
            let most = all.filter(|value| value.is_finite()).fold(0.0, f64::max);
            if most > 0.0 { most } else { 1.0 }
        };
        let (step_x, step_y) = (step(most(|point| point.0)), step(most(|point| point.1)));
        let (end_x, end_y) =
            ((most(|point| point.0) / step_x).ceil() * step_x, (most(|point| point.1) / step_y).ceil() * step_y);
        let place = |(x, y): (f64, f64)| (LEFT + x / end_x * (RIGHT - LEFT), BOTTOM - y / end_y * (BOTTOM - TOP));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let text = |svg: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, words: &str| {
            let words = words.replace('&', "&amp;").replace('<', "&lt;");
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{words}</text>");
        };
        let line = |svg: &mut String, from: (f64, f64), to: (f64, f64)| {
            let (x1, y1, x2, y2) = (from.0, from.1, to.0, to.1);
            let _ =
                writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>");
        };
        text(&mut svg, (f64::midpoint(LEFT, RIGHT), 22.0), "middle", " font-size=\"15\"", &self.title);
        text(&mut svg, (f64::midpoint(LEFT, RIGHT), HEIGHT - 10.0), "middle", "", &self.x);
        let turned = format!(" transform=\"rotate(-90 15 {0:.1})\"", f64::midpoint(TOP, BOTTOM));
        text(&mut svg, (15.0, f64::midpoint(TOP, BOTTOM)), "middle", &turned, &self.y);
        for x in ticks(step_x, end_x) {
            line(&mut svg, place((x, 0.0)), place((x, end_y)));
            text(&mut svg, (place((x, 0.0)).0, BOTTOM + 18.0), "middle", "", &number(x));
        }
        for y in ticks(step_y, end_y) {
            line(&mut svg, place((0.0, y)), place((end_x, y)));
            text(&mut svg, (LEFT - 6.0, place((0.0, y)).1 + 4.0), "end", "", &number(y));
        }
        for (((name, points), colour), row) in self.curves.iter().zip(COLOURS.iter().cycle()).zip(0_u8..) {
            let every = points.len().div_ceil(POINTS).max(1);
            let last = points.len().saturating_sub(1);
            let kept = points.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
            let path = kept.fold(String::new(), |mut path, (_, point)| {
                let (x, y) = place(*point);
                let _ = write!(path, "{x:.1},{y:.1} ");
                path
            });
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                path.trim_end()
            );
            let more = format!(" fill=\"{colour}\"");
            text(&mut svg, (LEFT + 10.0, TOP + 16.0 + 16.0 * f64::from(row)), "start", &more, name);
        }
        svg + "</svg>\n"
    }
}

/// 1, 2 or 5 times a power of ten, for about six ticks.
fn step(most: f64) -> f64 {
    let rough = most / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    let digit = rough / power;
    power
        * if digit <= 1.0 {
            1.0
        } else if digit <= 2.0 {
            2.0
        } else if digit <= 5.0 {
            5.0
        } else {
            10.0
        }
}

fn ticks(step: f64, end: f64) -> impl Iterator<Item = f64> {
    (0_u8..=12).map(move |count| f64::from(count) * step).take_while(move |value| *value <= end * 1.001)
}

fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curve_lies_between_its_axes() {
        let curve = ("a < b".to_owned(), vec![(0.0, 0.0), (7.0, 130.0)]);
        let chart = Chart { title: "t".to_owned(), curves: vec![curve], ..Chart::default() };
        let svg = chart.svg();
        assert!(svg.contains("points=\"70.0,350.0 ") && svg.contains("a &lt; b"), "{svg}");
        assert_eq!((step(7.0), step(130.0), step(0.5)), (2.0, 50.0, 0.1));
        assert_eq!(number(0.05), "0.05");
        assert!(Chart::default().svg().ends_with("</svg>\n"));
    }
}
