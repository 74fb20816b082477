//! The results as an image with two figures: the share of trials that tore against the wait
//! (compare the paper's Figure 9), and against the offset of the split.

use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, BitMapBackend, ChartBuilder, Circle, Color, DrawingArea, DrawingBackend, IntoDrawingArea,
    IntoLogRange, LineSeries, Palette, Palette99, PathElement, SVGBackend, SeriesLabelPosition, WHITE,
};
use plotters::style::{FontStyle, register_font};

use super::{lines_by_boundary, lines_by_wait};
use crate::boundary::CACHE_LINE;
use crate::error::Error;
use crate::results::Results;
use crate::trial::{Kernel, LENGTH};

const SIZE: (u32, u32) = (1100, 1000);

const FONT: &str = "sans-serif";

/// Draws the figures into a file, as SVG or PNG depending on its extension.
///
/// # Errors
/// [`Error::Plot`] for another extension, or if the file cannot be written.
pub(crate) fn draw(results: &Results, path: &Path) -> Result<(), Error> {
    let failed = |reason: String| Error::Plot { path: path.to_owned(), reason };
    register().map_err(failed)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => figures(results, SVGBackend::new(path, SIZE).into_drawing_area()).map_err(failed),
        Some("png") => figures(results, BitMapBackend::new(path, SIZE).into_drawing_area()).map_err(failed),
        _ => Err(failed("its name must end in .svg or .png".into())),
    }
}

/// Machines without a screen have no fonts.
fn register() -> Result<(), String> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let font = || register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).is_ok();
    if *REGISTERED.get_or_init(font) { Ok(()) } else { Err("the font is not valid".into()) }
}

fn figures<B: DrawingBackend>(results: &Results, area: DrawingArea<B, Shift>) -> Result<(), String> {
    let draw = || -> Result<(), Box<dyn std::error::Error + '_>> {
        area.fill(&WHITE).map_err(text)?;
        let (above, below) = area.split_vertically(SIZE.1 * 3 / 5);
        by_wait(results, &above)?;
        by_boundary(results, &below)?;
        area.present().map_err(text)?;
        Ok(())
    };
    draw().map_err(|error| error.to_string())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

type Lines = Vec<(String, Vec<(u32, f64)>)>;

fn by_wait<B: DrawingBackend>(results: &Results, area: &DrawingArea<B, Shift>) -> Result<(), String> {
    let machine = if results.simulated { "simulated machine" } else { &results.cpu };
    let caption = match results.t_max_ticks {
        Some(t_max) => format!("Torn trials against the wait, T_max {t_max} ticks: {machine}"),
        None => format!("Torn trials against the wait: {machine}"),
    };
    let lines = lines_by_wait(&results.trials).into_iter().map(|(line, points)| {
        let back = LENGTH - line.front;
        let s = if line.executors == 1 { "" } else { "s" };
        (format!("{} executor{s}, {}|{back}", line.executors, line.front), points)
    });
    chart(area, &caption, "wait in TSC ticks", lines.collect(), Points::Joined)
}

fn by_boundary<B: DrawingBackend>(results: &Results, area: &DrawingArea<B, Shift>) -> Result<(), String> {
    let caption = match results.window_bytes {
        Some(bytes) => format!("Torn trials by one store, fetch window {bytes} bytes"),
        None => "Torn trials by one store".to_owned(),
    };
    let lines = lines_by_boundary(&results.trials).into_iter().map(|(kernel, points)| {
        let name = match kernel {
            Kernel::Immediate => "immediate",
            Kernel::Opcode => "opcode and immediate",
            Kernel::Call => "CALL and NOP (crashes)",
        };
        (name.to_owned(), points)
    });
    let axis = format!("where the instruction is cut: bytes into the cache line of {CACHE_LINE}");
    chart(area, &caption, &axis, lines.collect(), Points::Single)
}

/// How the points of a line are drawn.
#[derive(Clone, Copy)]
enum Points {
    /// Joined, if there are points in between.
    Joined,
    /// Separately.
    Single,
}

/// Points on a logarithmic axis, joined by lines. A share of zero is drawn on the lowest line of
/// the axis.
fn chart<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    caption: &str,
    axis: &str,
    lines: Lines,
    drawn: Points,
) -> Result<(), String> {
    let all = || lines.iter().flat_map(|(_, points)| points.iter());
    let torn = || all().map(|(_, rate)| *rate).filter(|rate| *rate > 0.0);
    let highest = torn().fold(1.0, f64::max) * 2.0;
    let floor = 10_f64.powf((torn().fold(1.0, f64::min) / 2.0).log10().floor());
    let right = all().map(|(x, _)| *x).max().unwrap_or(0) + 1;

    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(0..right, (floor..highest).log_scale())
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc(axis)
        .y_desc("trials that tore, in percent (lowest line: none)")
        .label_style((FONT, 14))
        .y_label_formatter(&|share| if *share < 1.0 { format!("{share:e}") } else { format!("{share:.0}") })
        .draw()
        .map_err(text)?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        let points: Vec<_> = points.iter().map(|(x, rate)| (*x, rate.max(floor))).collect();
        let line = match drawn {
            Points::Joined => points.clone(),
            Points::Single => Vec::new(),
        };
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))
            .map_err(text)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart
            .draw_series(points.into_iter().map(|point| Circle::new(point, 4, colour.filled())))
            .map_err(text)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font((FONT, 13))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.4))
        .draw()
        .map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Depth;
    use crate::simulated::Simulated;
    use crate::survey::{Unobserved, survey};

    #[test]
    fn both_formats_are_drawn_also_of_nothing_and_another_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let trials = survey(&mut Simulated::new(32, 800, 3), Depth::Standard, &mut Unobserved).unwrap();
        for (name, results) in
            [("full", Results::new(trials, None)), ("empty", Results::new(Vec::new(), None))]
        {
            let path = folder.path().join(format!("{name}.svg"));
            draw(&results, &path).unwrap();
            let svg = std::fs::read_to_string(path).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("wait in TSC ticks"), "{svg}");
            assert!(name == "empty" || svg.contains("1 executor, 4|1"), "{svg}");
            let path = folder.path().join(format!("{name}.png"));
            draw(&results, &path).unwrap();
            assert!(std::fs::read(path).unwrap().starts_with(b"\x89PNG"));
            assert!(draw(&results, &folder.path().join("plot.gif")).is_err());
        }
    }
}
