//! A bar chart as SVG, for a light and for a dark page.

use std::fmt::Write as _;

use crate::results::Spread;

/// One variant: a bar for each column of figures that it has.
#[derive(Debug)]
pub(crate) struct Bars {
    pub(crate) name: &'static str,
    /// Of the framework itself; the others are what it is compared with.
    pub(crate) ours: bool,
    /// In the order of the legend.
    pub(crate) ratios: Vec<Option<Spread>>,
}

const WIDTH: f64 = 820.0;
/// Where the names end and the bars begin.
const LEFT: f64 = 270.0;
/// Room for the figures behind the longest bar.
const RIGHT: f64 = 50.0;
const TOP: f64 = 64.0;
const BAR: f64 = 11.0;
const GAP: f64 = 9.0;

const STYLE: &str = "
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 15px; font-weight: 600; }
  .figure, .tick { font-size: 10.5px; }
  .ours { fill: #1f6feb; } .other { fill: #818b98; }
  .second { fill-opacity: 0.55; }
  .axis { stroke: #d1d9e0; } .base { stroke: #1f2328; stroke-dasharray: 3 3; } .spread { stroke: #1f2328; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .ours { fill: #58a6ff; } .other { fill: #8b949e; }
    .axis { stroke: #3d444d; } .base, .spread { stroke: #e6edf3; }
  }";

/// Ratios to the first variant, on a logarithmic axis; a line through the end of each bar shows the smallest and the
/// largest.
pub(crate) fn svg(title: &str, legend: &[&str], variants: &[Bars]) -> String {
    let ratios = || {
        variants
            .iter()
            .flat_map(|bars| bars.ratios.iter().flatten())
    };
    let scale = Scale::over(ratios());
    let group = BAR * legend.len() as f64 + GAP;
    let bottom = TOP + group * variants.len() as f64;
    let height = bottom + 48.0;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}\n</style>\n"
    );
    let mut line = |text: std::fmt::Arguments<'_>| {
        // Writing into a text does not fail.
        let _ = writeln!(svg, "{text}");
    };
    line(format_args!(
        r#"<text class="title" x="12" y="22">{title}</text>"#
    ));
    for (index, name) in legend.iter().enumerate() {
        let x = LEFT + 190.0 * index as f64;
        let second = if index > 0 { " second" } else { "" };
        line(format_args!(
            r#"<rect class="ours{second}" x="{x}" y="36" width="11" height="11"/><rect class="other{second}" x="{:.0}" y="36" width="11" height="11"/><text x="{:.0}" y="46">{name}</text>"#,
            x + 13.0,
            x + 30.0
        ));
    }
    for tick in scale.ticks() {
        let x = scale.place(tick);
        let class = if tick == 1.0 { "base" } else { "axis" };
        line(format_args!(
            r#"<line class="{class}" x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom:.1}"/><text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{tick}</text>"#,
            bottom + 16.0
        ));
    }
    line(format_args!(
        r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">messages per second, times those of the first row (logarithmic)</text>"#,
        f64::midpoint(LEFT, WIDTH - RIGHT),
        bottom + 36.0
    ));
    for (index, bars) in variants.iter().enumerate() {
        let top = TOP + GAP / 2.0 + group * index as f64;
        line(format_args!(
            r#"<text x="{:.0}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 8.0,
            top + (group - GAP) / 2.0 + 4.0,
            bars.name
        ));
        for (column, ratio) in bars.ratios.iter().enumerate() {
            let Some(ratio) = ratio else { continue };
            let y = top + BAR * column as f64;
            let second = if column > 0 { " second" } else { "" };
            let class = if bars.ours { "ours" } else { "other" };
            let (start, end) = (scale.place(scale.least), scale.place(ratio.median));
            let middle = y + (BAR - 1.0) / 2.0;
            line(format_args!(
                r#"<rect class="{class}{second}" x="{start:.1}" y="{y:.1}" width="{:.1}" height="{:.1}"/><line class="spread" x1="{:.1}" y1="{middle:.1}" x2="{:.1}" y2="{middle:.1}"/><text class="figure" x="{:.1}" y="{:.1}">{:.2}</text>"#,
                end - start,
                BAR - 1.0,
                scale.place(ratio.least),
                scale.place(ratio.most),
                scale.place(ratio.most.max(ratio.median)) + 5.0,
                y + BAR - 2.0,
                ratio.median
            ));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// From ratios to places.
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    fn over<'a>(ratios: impl Iterator<Item = &'a Spread>) -> Self {
        let (mut least, mut most) = (0.5_f64, 2.0_f64);
        for ratio in ratios {
            least = least.min(ratio.least * 0.9);
            most = most.max(ratio.most * 1.1);
        }
        Self { least, most }
    }

    fn place(&self, ratio: f64) -> f64 {
        let part = (ratio / self.least).ln() / (self.most / self.least).ln();
        LEFT + part * (WIDTH - RIGHT - LEFT)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        [
            0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0,
        ]
        .into_iter()
        .filter(|tick| *tick >= self.least && *tick <= self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_ends_at_its_ratio_and_every_place_is_inside() {
        let exactly = |ratio| Spread {
            least: ratio,
            median: ratio,
            most: ratio,
        };
        let ratios = [exactly(1.0), exactly(40.0)];
        let scale = Scale::over(ratios.iter());
        assert!(scale.place(0.5) >= LEFT && scale.place(40.0) <= WIDTH - RIGHT);
        // A logarithmic axis: the same factor is the same distance.
        let distance = |from, to| scale.place(to) - scale.place(from);
        assert!((distance(1.0, 2.0) - distance(20.0, 40.0)).abs() < 1e-9);

        let bars = [
            Bars {
                name: "base",
                ours: false,
                ratios: vec![Some(ratios[0]), None],
            },
            Bars {
                name: "fast",
                ours: true,
                ratios: vec![None, Some(ratios[1])],
            },
        ];
        let svg = svg("t", &["a", "b"], &bars);
        assert_eq!(svg.matches("class=\"spread\"").count(), 2);
        let width = scale.place(40.0) - scale.place(scale.least);
        assert!(
            svg.contains(&format!(
                "class=\"ours second\" x=\"{LEFT:.1}\" y=\"110.5\" width=\"{width:.1}\""
            )),
            "{svg}"
        );
    }
}
