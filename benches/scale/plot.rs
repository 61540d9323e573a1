//! The figures of `cargo bench --bench scale`, drawn.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{CLIENTS, CONNECTIONS, Figure, NAMES};

const SIZE: (u32, u32) = (1040, 800);
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 2] = [RGBColor(0, 90, 170), RGBColor(200, 80, 0)];

/// One diagram: figures against a count.
struct Panel {
    title: &'static str,
    what: &'static str,
    count_title: &'static str,
    value_title: &'static str,
    /// Figures as the table calls them, and as the legend does.
    lines: &'static [(&'static str, &'static str)],
}

const PANELS: [Panel; 4] = [
    Panel {
        title: "Memory of a held name",
        what: NAMES,
        count_title: "names held by one connection",
        value_title: "resident bytes a name",
        lines: &[("bytes a name", "signalbox")],
    },
    Panel {
        title: "CPU of a held name",
        what: NAMES,
        count_title: "names held by one connection",
        value_title: "CPU of the server, ns a name",
        lines: &[("CPU ns an acquire", "acquire"), ("CPU ns a release at end", "release at the end")],
    },
    Panel {
        title: "Memory of idle connections",
        what: CONNECTIONS,
        count_title: "idle connections",
        value_title: "resident bytes a connection",
        lines: &[("bytes a connection", "signalbox")],
    },
    Panel {
        title: "CPU of an operation on one name",
        what: CLIENTS,
        count_title: "clients that acquire and release it",
        value_title: "CPU of the server, ns an answer",
        lines: &[("CPU ns an answer", "signalbox"), ("of the floor", "the floor")],
    },
];

/// Draws the figures that exist.
pub fn draw(path: &Path, figures: &[Figure]) -> Result<(), Box<dyn Error>> {
    let page = SVGBackend::new(path, SIZE).into_drawing_area();
    // Without it, black text stands on whatever the viewer's background is.
    page.fill(&WHITE)?;
    for (area, panel) in page.split_evenly((2, 2)).iter().zip(&PANELS) {
        panel.draw(area, figures)?;
    }
    page.present()?;
    Ok(())
}

impl Panel {
    fn draw(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        figures: &[Figure],
    ) -> Result<(), Box<dyn Error>> {
        let line = |name: &str| -> Vec<(f64, f64)> {
            let of_line = figures.iter().filter(|figure| figure.what == self.what && figure.name == name);
            of_line.map(|figure| (figure.count as f64, figure.value)).collect()
        };
        let points: Vec<_> = self.lines.iter().flat_map(|(name, _)| line(name)).collect();
        if points.is_empty() {
            return Ok(());
        }
        let counts = || points.iter().map(|(count, _)| *count);
        let (least, most) = (counts().fold(f64::MAX, f64::min), counts().fold(0.0, f64::max));
        let highest = points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let headroom = if self.lines.len() > 1 { 1.45 } else { 1.25 }; // The legend's place.
        let mut chart = ChartBuilder::on(area)
            .margin(18)
            .caption(self.title, (FONT, 19))
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d((least / 1.5..most * 1.5).log_scale(), 0.0..highest * headroom)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15))
            .x_desc(format!("{} (logarithmic)", self.count_title))
            .y_desc(self.value_title)
            .x_label_formatter(&|count| grouped(*count))
            .y_label_formatter(&|value| grouped(*value))
            .draw()?;
        for ((name, label), colour) in self.lines.iter().zip(COLOURS) {
            let points = line(name);
            let stroke = colour.stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), stroke))?
                .label(*label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], stroke));
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, colour.filled())))?;
        }
        if self.lines.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .label_font((FONT, 14))
                .background_style(WHITE)
                .border_style(BLACK.mix(0.3))
                .draw()?;
        }
        Ok(())
    }
}

/// A whole number with a separator between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
